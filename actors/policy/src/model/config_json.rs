//! Reading `config.json`, and refusing what would be computed wrongly.
//!
//! A key that is not known here may change the mathematics, so it is an error, not a warning: a model that loads and
//! answers nonsense costs more than one that does not load. Keys that are known to be notes, training-time switches or
//! defaults of text generation are ignored.

use std::path::Path;

use serde_json::{Map, Value};

use super::config::{Architecture, ModelConfig, RopeScaling};
use crate::error::PolicyError;

/// Keys read below.
const READ: &[&str] = &[
    "architectures",
    "attention_bias",
    "dtype",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "mlp_bias",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "pretraining_tp",
    "quantization_config",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "torch_dtype",
    "use_sliding_window",
    "vocab_size",
    "partial_rotary_factor",
];

/// Keys that do not change what a forward pass computes. `sliding_window` and `max_window_layers` have an effect only with
/// `use_sliding_window`, which is checked.
const HARMLESS: &[&str] = &[
    "add_cross_attention",
    "attention_dropout",
    "attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "is_decoder",
    "is_encoder_decoder",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "max_length",
    "max_window_layers",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "rope_interleaved",
    "sep_token_id",
    "sliding_window",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// The largest size that is believed.
const MOST: u64 = (1 << 31) - 1;
/// The longest sequence that is believed: a table of that length is made.
const MOST_POSITIONS: usize = 1 << 22;

/// Typed reading of one object, with errors that name file and key.
struct Keys<'a> {
    map: &'a Map<String, Value>,
    path: &'a Path,
}

impl<'a> Keys<'a> {
    fn error(&self, reason: String) -> PolicyError {
        PolicyError::Config { path: self.path.to_owned(), reason }
    }

    /// The value of a key, null counting as absent.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn integer(&self, key: &str) -> Result<Option<usize>, PolicyError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        // any product of two of them is a number, too
        let number = value.as_u64().filter(|&number| number > 0 && number <= MOST);
        let wrong = || self.error(format!("`{key}` is {value}; a positive integer of at most {MOST} is needed"));
        let number = number.ok_or_else(wrong)?;
        Ok(Some(number as usize))
    }

    fn required(&self, key: &str) -> Result<usize, PolicyError> {
        self.integer(key)?.ok_or_else(|| self.error(format!("`{key}` is missing")))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, PolicyError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
        number.map(Some).ok_or_else(|| self.error(format!("`{key}` is {value}; a positive number is needed")))
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, PolicyError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.error(format!("`{key}` is {value}; true or false is needed")))
    }

    /// An error unless the key is absent or has the only value that is computed.
    fn only(&self, key: &str, allowed: &Value) -> Result<(), PolicyError> {
        match self.get(key) {
            Some(value) if value != allowed => {
                Err(self.error(format!("`{key}` is {value}; only {allowed} is computed by this program")))
            }
            _ => Ok(()),
        }
    }
}

impl ModelConfig {
    /// Reads `config.json`'s content; `path` is for messages.
    ///
    /// # Errors
    /// [`PolicyError::Config`] for a missing or mistyped key, an unknown architecture, an unknown key, or a known key with
    /// a value that is not computed.
    pub fn from_json(value: &Value, path: &Path) -> Result<Self, PolicyError> {
        let not_an_object =
            || PolicyError::Config { path: path.to_owned(), reason: "the top level is not an object".to_owned() };
        let map = value.as_object().ok_or_else(not_an_object)?;
        let keys = Keys { map, path };
        let architecture = read_architecture(&keys)?;
        refuse_what_is_not_computed(&keys)?;
        let heads = keys.required("num_attention_heads")?;
        let hidden_size = keys.required("hidden_size")?;
        let (rope_theta, rope_scaling) = read_rope(&keys)?;
        let bias = keys.flag("attention_bias")?;
        // `transformers` gives Qwen2 these biases whatever the file says, and its class has no `attention_bias`.
        let qkv_bias = architecture == Architecture::Qwen2 || bias.unwrap_or(false);
        let config = Self {
            architecture,
            vocab_size: keys.required("vocab_size")?,
            hidden_size,
            intermediate_size: keys.required("intermediate_size")?,
            num_hidden_layers: keys.required("num_hidden_layers")?,
            num_attention_heads: heads,
            num_key_value_heads: keys.integer("num_key_value_heads")?.unwrap_or(heads),
            head_dim: read_head_dim(&keys, architecture, hidden_size, heads)?,
            max_position_embeddings: keys.required("max_position_embeddings")?,
            rms_norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta,
            rope_scaling,
            tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias,
            output_bias: architecture != Architecture::Qwen2 && bias.unwrap_or(false),
            mlp_bias: architecture == Architecture::Llama && keys.flag("mlp_bias")?.unwrap_or(false),
            qk_norm: architecture == Architecture::Qwen3,
            initializer_range: keys.number("initializer_range")?.unwrap_or(0.02),
            eos_token_ids: token_ids(&keys, "eos_token_id")?,
            json: map.clone(),
        };
        config.check_sizes(&keys)?;
        Ok(config)
    }

    /// Adds the end-of-text ids of `generation_config.json`'s content.
    ///
    /// # Errors
    /// [`PolicyError::Config`] when the content is no object or the ids are no ids.
    pub fn add_generation_config(&mut self, value: &Value, path: &Path) -> Result<(), PolicyError> {
        let not_an_object =
            || PolicyError::Config { path: path.to_owned(), reason: "the top level is not an object".to_owned() };
        let keys = Keys { map: value.as_object().ok_or_else(not_an_object)?, path };
        self.eos_token_ids.extend(token_ids(&keys, "eos_token_id")?);
        self.eos_token_ids.sort_unstable();
        self.eos_token_ids.dedup();
        Ok(())
    }

    fn check_sizes(&self, keys: &Keys<'_>) -> Result<(), PolicyError> {
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let reason = format!(
                "`num_attention_heads` {} is not a multiple of `num_key_value_heads` {}",
                self.num_attention_heads, self.num_key_value_heads
            );
            return Err(keys.error(reason));
        }
        if self.max_position_embeddings > MOST_POSITIONS {
            let given = self.max_position_embeddings;
            return Err(
                keys.error(format!("`max_position_embeddings` is {given}; at most {MOST_POSITIONS} is computed"))
            );
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(
                keys.error(format!("the head size {} is odd; rotary embeddings need an even one", self.head_dim))
            );
        }
        Ok(())
    }
}

fn read_architecture(keys: &Keys<'_>) -> Result<Architecture, PolicyError> {
    let known = [Architecture::Qwen2, Architecture::Qwen3, Architecture::Llama];
    let class = keys.get("architectures").and_then(|value| value.get(0)).and_then(Value::as_str);
    let model_type = keys.get("model_type").and_then(Value::as_str);
    let found = known.into_iter().find(|architecture| match class {
        Some(class) => class == architecture.class_name(),
        None => model_type == Some(architecture.model_type()),
    });
    found.ok_or_else(|| {
        let name = class.or(model_type).unwrap_or("(none)");
        keys.error(format!(
            "architecture `{name}` is not computed by this program; it knows Qwen2ForCausalLM, Qwen3ForCausalLM and \
             LlamaForCausalLM"
        ))
    })
}

fn refuse_what_is_not_computed(keys: &Keys<'_>) -> Result<(), PolicyError> {
    keys.only("hidden_act", &Value::from("silu"))?;
    keys.only("use_sliding_window", &Value::from(false))?;
    keys.only("pretraining_tp", &Value::from(1))?;
    if let Some(factor) = keys.number("partial_rotary_factor")?
        && factor != 1.0
    {
        return Err(keys.error(format!("`partial_rotary_factor` is {factor}; only 1 is computed by this program")));
    }
    if keys.get("quantization_config").is_some() {
        return Err(
            keys.error("`quantization_config`: quantised weights are not read; use a bf16, f16 or f32 model".into())
        );
    }
    if let Some(types) = keys.get("layer_types") {
        let all_full = types.as_array().is_some_and(|types| types.iter().all(|kind| kind == "full_attention"));
        if !all_full {
            return Err(
                keys.error("`layer_types` holds other than `full_attention`, which is all that is computed".into())
            );
        }
    }
    for (key, value) in keys.map {
        let known = READ.contains(&key.as_str()) || HARMLESS.contains(&key.as_str()) || key.starts_with('_');
        if !known && !value.is_null() {
            let reason = format!(
                "key `{key}` is unknown to this program and may change what the model computes; if it is only a note, \
                 remove it from the file"
            );
            return Err(keys.error(reason));
        }
    }
    Ok(())
}

fn read_head_dim(
    keys: &Keys<'_>,
    architecture: Architecture,
    hidden_size: usize,
    heads: usize,
) -> Result<usize, PolicyError> {
    if let Some(head_dim) = keys.integer("head_dim")? {
        return Ok(head_dim);
    }
    // The default of the Qwen3 class is 128 and not the quotient.
    if architecture == Architecture::Qwen3 {
        return Ok(128);
    }
    if hidden_size.is_multiple_of(heads) {
        return Ok(hidden_size / heads);
    }
    Err(keys.error(format!("`hidden_size` {hidden_size} is not a multiple of `num_attention_heads` {heads}")))
}

/// Both spellings: `rope_theta` with `rope_scaling`, and `rope_parameters` of transformers 5.
fn read_rope(keys: &Keys<'_>) -> Result<(f64, RopeScaling), PolicyError> {
    let section = if keys.get("rope_parameters").is_some() { "rope_parameters" } else { "rope_scaling" };
    let Some(value) = keys.get(section) else {
        return Ok((keys.number("rope_theta")?.unwrap_or(10_000.0), RopeScaling::None));
    };
    let map = value.as_object().ok_or_else(|| keys.error(format!("`{section}` is not an object")))?;
    let rope = Keys { map, path: keys.path };
    let theta = match rope.number("rope_theta")? {
        Some(theta) => theta,
        None => keys.number("rope_theta")?.unwrap_or(10_000.0),
    };
    if let Some(factor) = rope.number("partial_rotary_factor")?
        && factor != 1.0
    {
        return Err(keys.error(format!("`{section}.partial_rotary_factor` is {factor}; only 1 is computed")));
    }
    let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str).unwrap_or("default");
    let need = |key: &str| -> Result<f64, PolicyError> {
        rope.number(key)?.ok_or_else(|| keys.error(format!("`{section}.{key}` is missing")))
    };
    let scaling = match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: need("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: need("factor")?,
            low_freq_factor: need("low_freq_factor")?,
            high_freq_factor: need("high_freq_factor")?,
            original_max_position_embeddings: need("original_max_position_embeddings")?,
        },
        other => {
            let reason = format!("`{section}` of type `{other}` is not computed; `default`, `linear` and `llama3` are");
            return Err(keys.error(reason));
        }
    };
    Ok((theta, scaling))
}

/// One id, a list of ids, or nothing.
fn token_ids(keys: &Keys<'_>, key: &str) -> Result<Vec<u32>, PolicyError> {
    let Some(value) = keys.get(key) else { return Ok(Vec::new()) };
    let list = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
    let ids: Option<Vec<u32>> = list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect();
    let mut ids = ids.ok_or_else(|| keys.error(format!("`{key}` is {value}; token ids are needed")))?;
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
