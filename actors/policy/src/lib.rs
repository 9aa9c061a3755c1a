//! The policy network on libtorch and the embedded engine that speaks SGLang's protocol.
//!
//! * [`error`]: what can go wrong, with codes.
//! * [`model`]: configuration and named tensors; [`checkpoint`]: reading and writing Hugging Face directories.
//! * [`network`]: the forward passes of training (packed) and generation (cached).
//! * [`generation`]: requests, events and the handle to the generator thread.

pub mod checkpoint;
pub mod error;
pub mod generation;
pub mod model;
pub mod network;
pub mod server;

pub use error::{ERRORS, GenerationError, PolicyError};
pub use model::{ModelConfig, Parameters, TinyModel};
pub use network::Network;
