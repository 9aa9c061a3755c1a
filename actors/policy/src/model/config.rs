//! The sizes and switches of a decoder of the Qwen2, Qwen3 or Llama family.
//!
//! Invariants: a `ModelConfig` always describes a model that [`crate::Network`] computes as `transformers` does; whatever it
//! cannot compute is refused while reading `config.json`. [`ModelConfig::tensors`] is the only list of names and shapes, used
//! by initialisation, loading, saving and updates alike.

use serde_json::{Map, Value, json};

/// The families that are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Qwen2 and Qwen2.5 dense: biases on q, k and v.
    Qwen2,
    /// Qwen3 dense: RMS norm on each head of q and k, explicit head size.
    Qwen3,
    /// Llama 2 and 3, and models that share its code (SmolLM2, …).
    Llama,
}

impl Architecture {
    /// `config.json`'s `model_type`.
    #[must_use]
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Llama => "llama",
        }
    }

    /// `config.json`'s entry in `architectures`.
    #[must_use]
    pub fn class_name(self) -> &'static str {
        match self {
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Llama => "LlamaForCausalLM",
        }
    }
}

/// How rotary frequencies are stretched beyond the length of pre-training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies divided by the factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths divided, short ones kept, a smooth passage between.
    Llama3 {
        /// The divisor of long wavelengths.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Length of pre-training, tokens.
        original_max_position_embeddings: f64,
    },
}

/// Everything that decides what the model computes.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Which family.
    pub architecture: Architecture,
    /// Rows of the embedding; token ids are below this.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the gated MLP.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// The longest sequence, tokens.
    pub max_position_embeddings: usize,
    /// Added to the mean square in RMS norms.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Their scaling.
    pub rope_scaling: RopeScaling,
    /// Whether the output head is the embedding.
    pub tie_word_embeddings: bool,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub output_bias: bool,
    /// Whether the MLP's projections have biases.
    pub mlp_bias: bool,
    /// Whether q and k heads are normalised.
    pub qk_norm: bool,
    /// Spread of the initial weights.
    pub initializer_range: f64,
    /// Ids that end a text, from `config.json` and `generation_config.json` together, ascending.
    pub eos_token_ids: Vec<u32>,
    /// The whole `config.json`, kept so that saving loses nothing.
    pub json: Map<String, Value>,
}

/// Sizes of a small Qwen3-shaped model to be trained from nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TinyModel {
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the gated MLP.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// The longest sequence, tokens.
    pub max_position_embeddings: usize,
    /// Ids that end a text.
    pub eos_token_ids: Vec<u32>,
}

impl Default for TinyModel {
    /// About a million parameters.
    fn default() -> Self {
        Self {
            vocab_size: 1024,
            hidden_size: 160,
            intermediate_size: 448,
            num_hidden_layers: 3,
            num_attention_heads: 5,
            num_key_value_heads: 1,
            head_dim: 32,
            max_position_embeddings: 4096,
            eos_token_ids: vec![0],
        }
    }
}

/// Name and shape of one tensor of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Hugging Face name.
    pub name: String,
    /// Shape.
    pub shape: Vec<i64>,
    /// How it starts when trained from nothing.
    pub start: TensorStart,
}

/// Initial values of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorStart {
    /// Normal with `initializer_range`.
    Normal,
    /// Normal, divided by the square root of twice the number of layers: projections back into the residual stream (GPT-2).
    Residual,
    /// Ones: norms.
    Ones,
    /// Zeros: biases.
    Zeros,
}

impl ModelConfig {
    /// A small Qwen3-shaped model with tied embeddings.
    ///
    /// # Errors
    /// [`crate::PolicyError::Config`] when the sizes do not fit together.
    pub fn tiny(sizes: &TinyModel) -> Result<Self, crate::PolicyError> {
        let value = json!({
            "architectures": [Architecture::Qwen3.class_name()],
            "model_type": Architecture::Qwen3.model_type(),
            "attention_bias": false,
            "attention_dropout": 0.0,
            "eos_token_id": sizes.eos_token_ids,
            "head_dim": sizes.head_dim,
            "hidden_act": "silu",
            "hidden_size": sizes.hidden_size,
            "initializer_range": 0.02,
            "intermediate_size": sizes.intermediate_size,
            "max_position_embeddings": sizes.max_position_embeddings,
            "num_attention_heads": sizes.num_attention_heads,
            "num_hidden_layers": sizes.num_hidden_layers,
            "num_key_value_heads": sizes.num_key_value_heads,
            "rms_norm_eps": 1e-6,
            "rope_scaling": null,
            "rope_theta": 10000.0,
            "sliding_window": null,
            "tie_word_embeddings": true,
            "torch_dtype": "float32",
            "use_cache": true,
            "use_sliding_window": false,
            "vocab_size": sizes.vocab_size,
        });
        Self::from_json(&value, std::path::Path::new("<memory>"))
    }

    /// How many numbers the model has, counted without listing its tensors.
    #[must_use]
    pub fn parameters(&self) -> u128 {
        let count = |layers: usize| -> u128 {
            let few = Self { num_hidden_layers: layers, ..self.clone() };
            let sizes =
                few.tensors().into_iter().map(|spec| spec.shape.iter().map(|size| *size as u128).product::<u128>());
            sizes.sum()
        };
        let (none, one) = (count(0), count(1));
        none + (one - none) * self.num_hidden_layers as u128
    }

    /// Names, shapes and initial values of every tensor, in checkpoint order: embedding, layers, norm, head.
    #[must_use]
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let [vocab, hidden] = [self.vocab_size as i64, self.hidden_size as i64];
        let mut specs = Vec::new();
        let mut add =
            |name: String, shape: &[i64], start| specs.push(TensorSpec { name, shape: shape.to_vec(), start });
        add("model.embed_tokens.weight".into(), &[vocab, hidden], TensorStart::Normal);
        for layer in 0..self.num_hidden_layers {
            self.add_layer(layer, &mut add);
        }
        add("model.norm.weight".into(), &[hidden], TensorStart::Ones);
        if !self.tie_word_embeddings {
            add("lm_head.weight".into(), &[vocab, hidden], TensorStart::Normal);
        }
        specs
    }

    fn add_layer(&self, layer: usize, add: &mut impl FnMut(String, &[i64], TensorStart)) {
        let [hidden, inner, head] = [self.hidden_size as i64, self.intermediate_size as i64, self.head_dim as i64];
        let query_width = self.num_attention_heads as i64 * head;
        let key_width = self.num_key_value_heads as i64 * head;
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        add(name("input_layernorm.weight"), &[hidden], TensorStart::Ones);
        for (part, width) in [("q_proj", query_width), ("k_proj", key_width), ("v_proj", key_width)] {
            add(name(&format!("self_attn.{part}.weight")), &[width, hidden], TensorStart::Normal);
            if self.qkv_bias {
                add(name(&format!("self_attn.{part}.bias")), &[width], TensorStart::Zeros);
            }
        }
        if self.qk_norm {
            add(name("self_attn.q_norm.weight"), &[head], TensorStart::Ones);
            add(name("self_attn.k_norm.weight"), &[head], TensorStart::Ones);
        }
        add(name("self_attn.o_proj.weight"), &[hidden, query_width], TensorStart::Residual);
        if self.output_bias {
            add(name("self_attn.o_proj.bias"), &[hidden], TensorStart::Zeros);
        }
        add(name("post_attention_layernorm.weight"), &[hidden], TensorStart::Ones);
        for (part, rows, columns, start) in [
            ("gate_proj", inner, hidden, TensorStart::Normal),
            ("up_proj", inner, hidden, TensorStart::Normal),
            ("down_proj", hidden, inner, TensorStart::Residual),
        ] {
            add(name(&format!("mlp.{part}.weight")), &[rows, columns], start);
            if self.mlp_bias {
                add(name(&format!("mlp.{part}.bias")), &[rows], TensorStart::Zeros);
            }
        }
    }

    /// Checks that another configuration describes the same computation, so that its weights can take the place of this
    /// one's. Notes, spellings and end-of-text ids may differ.
    ///
    /// # Errors
    /// [`crate::PolicyError::Config`] naming the first difference.
    pub fn check_same_mathematics(&self, other: &Self, path: &std::path::Path) -> Result<(), crate::PolicyError> {
        let comparable = |config: &Self| {
            let mut config = config.clone();
            config.json.clear();
            config.eos_token_ids.clear();
            config.max_position_embeddings = 0;
            config.initializer_range = 0.0;
            format!("{config:?}")
        };
        let (mine, others) = (comparable(self), comparable(other));
        if mine == others {
            return Ok(());
        }
        let differs = mine.split(", ").zip(others.split(", ")).find(|(mine, others)| mine != others);
        let (mine, others) = differs.unwrap_or((&mine, &others));
        let reason = format!("describes another model than the one in force: `{others}` instead of `{mine}`");
        Err(crate::PolicyError::Config { path: path.to_owned(), reason })
    }
}
