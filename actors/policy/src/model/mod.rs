//! What a model is, before any of it is computed: its configuration and its named tensors.
//!
//! * [`config`]: the sizes and switches that decide the mathematics.
//! * [`config_json`]: reading them from `config.json`, refusing what would be computed wrongly.
//! * [`parameters`]: the ordered map from Hugging Face names to tensors.

pub mod config;
pub mod config_json;
pub mod parameters;

pub use config::{Architecture, ModelConfig, RopeScaling, TensorSpec, TinyModel};
pub use parameters::Parameters;
