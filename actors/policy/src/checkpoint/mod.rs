//! Checkpoints: directories as Hugging Face tools write them (`config.json`, safetensors, tokenizer files).
//!
//! * [`read`]: everything is checked before the first tensor is handed out: files against the index, headers against file
//!   sizes, names, shapes and types against the configuration. One clear error names file and tensor.
//! * [`write`]: atomic: a complete, synced directory appears under its name, or none.
//!
//! Types read: bf16, f16, f32. Everything is streamed tensor by tensor; no file is held in memory whole.

pub mod header;
pub mod read;
mod sizes;
pub mod write;

pub use read::{ReadReport, load, load_config, load_parameters};
pub use write::{SaveOptions, save};
