//! The policy network on libtorch and the embedded engine that speaks SGLang's protocol.
//!
//! * [`error`]: what can go wrong, with codes.
//! * [`generation`]: requests, events and the handle to the generator thread.

pub mod error;
pub mod generation;

pub use error::{GenerationError, PolicyError};
