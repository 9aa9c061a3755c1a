//! Generation of tokens: requests in, events out, one thread that owns the tensors in between.
//!
//! * [`request`]: what is asked for and what comes back, plain data.
//! * [`handle`]: the cheap, cloneable, thread-safe end that servers hold; it talks to the generator thread by channel.
//!
//! * [`state`]: the pure state machine: admission, steps, pauses; with [`sequence`], [`slots`] and [`sampler`].
//! * [`thread`]: owns the tensors and drives the state; [`start`] and [`start_from_directory`] begin one.
//!
//! Requests, events and handle know no tensors, so that a server needs no idea of libtorch.

pub mod handle;
pub mod options;
pub mod request;
pub mod sampler;
pub mod sequence;
pub mod slots;
pub mod state;
#[cfg(test)]
mod state_tests;
pub mod thread;

pub use handle::{Command, GenerationStream, GeneratorHandle, ModelInfo};
pub use options::{GeneratorOptions, TextDecoder};
pub use request::{
    FinishReason, Finished, GeneratedToken, GenerationEvent, GenerationRequest, LoadReport, PauseMode, PromptToken,
    SamplingParams, StopMatch, TokenLogprob, UpdateReport, WeightExcerpt,
};
pub use thread::{start, start_from_directory};
