//! Generation of tokens: requests in, events out, one thread that owns the tensors in between.
//!
//! * [`request`]: what is asked for and what comes back, plain data.
//! * [`handle`]: the cheap, cloneable, thread-safe end that servers hold; it talks to the generator thread by channel.
//!
//! Neither of the two knows tensors, so that a server needs no idea of libtorch.

pub mod handle;
pub mod request;

pub use handle::{Command, GenerationStream, GeneratorHandle, ModelInfo};
pub use request::{
    FinishReason, Finished, GeneratedToken, GenerationEvent, GenerationRequest, LoadReport, PauseMode, PromptToken,
    SamplingParams, StopMatch, TokenLogprob, UpdateReport, WeightExcerpt,
};
