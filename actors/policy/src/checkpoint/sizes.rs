//! The sizes that `config.json` states, compared with those that the weights have, before anything of that size is made.
//!
//! A configuration of another model, or one with a slip in a number, would else be noticed after a list of all its tensors
//! was built, which may be longer than memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::header::WeightFile;
use crate::error::PolicyError;
use crate::model::ModelConfig;

/// A size: its key in `config.json`, what that says, and where the weights say it: tensor, dimension, and what one of the
/// size takes of that dimension.
struct Size {
    key: &'static str,
    stated: usize,
    tensor: &'static str,
    dimension: usize,
    each: usize,
}

/// Compares each size with the headers of the weights; `path` is that of `config.json`. A tensor that is not there is for
/// the comparison of names.
///
/// # Errors
/// [`PolicyError::Config`], naming the key, what it says and what the weights say.
pub(super) fn check(
    path: &Path,
    config: &ModelConfig,
    files: &[WeightFile],
    places: &BTreeMap<String, usize>,
) -> Result<(), PolicyError> {
    let wrong = |reason: String| Err(PolicyError::Config { path: path.to_owned(), reason });
    let layers: BTreeSet<&str> =
        places.keys().filter_map(|name| name.strip_prefix("model.layers.")?.split('.').next()).collect();
    if layers.len() != config.num_hidden_layers {
        let stated = config.num_hidden_layers;
        return wrong(format!(
            "`num_hidden_layers` is {stated}, but the weights beside it have {} layers",
            layers.len()
        ));
    }
    for size in sizes(config) {
        let Some(file) = places.get(size.tensor).and_then(|number| files.get(*number)) else { continue };
        let Some(info) = file.info(size.tensor) else { continue };
        let found = info.shape.get(size.dimension).copied().unwrap_or(0);
        if found as u128 != size.stated as u128 * size.each as u128 {
            let (key, stated, shape, tensor) = (size.key, size.stated, &info.shape, size.tensor);
            let per_head = if size.each > 1 { format!(", {} for each", size.each) } else { String::new() };
            return wrong(format!(
                "`{key}` is {stated}, but tensor `{tensor}` in {} has shape {shape:?}: {found}{per_head}",
                file.path().display()
            ));
        }
    }
    Ok(())
}

fn sizes(config: &ModelConfig) -> Vec<Size> {
    let size = |key, stated, tensor, dimension, each| Size { key, stated, tensor, dimension, each };
    let embedding = "model.embed_tokens.weight";
    let (gate, query, key) = (
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
    );
    vec![
        size("vocab_size", config.vocab_size, embedding, 0, 1),
        size("hidden_size", config.hidden_size, embedding, 1, 1),
        size("intermediate_size", config.intermediate_size, gate, 0, 1),
        size("num_attention_heads", config.num_attention_heads, query, 0, config.head_dim),
        size("num_key_value_heads", config.num_key_value_heads, key, 0, config.head_dim),
    ]
}
