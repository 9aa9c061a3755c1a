//! The Trainer: GRPO and warm starts on one device, with AdamW, checkpoints and exact resume.
//!
//! * **A thread owns the tensors.** [`Trainer`] is glue over [`worker::LearnerThread`]; [`Learner`] has one synchronous
//!   method per request; [`state::TrainerState`] says what is allowed when.
//! * **Advantages are per rollout within its prompt group** ([`advantage`]); samples of a forked rollout share theirs.
//! * **The step's loss is one sum** whose weights are fixed before any pass ([`normaliser`]), so micro-batches
//!   ([`packing`]) and chunks of logits ([`loss`]) do not change it.
//! * **Nothing is applied silently**: a gradient that is not finite skips the step and is reported; a failure half-way
//!   makes the state `Lost` until a checkpoint is loaded; a panic is answered like any other failure.
//! * **Same input, same bits**: fixed orders, a fixed number of threads; a resumed run equals an uninterrupted one.
//!
//! The mathematics is checked against PyTorch: `tests/fixtures/trainer/record.py` at the root of the repository.

mod actor;
pub mod advantage;
mod atomic_dir;
pub mod batch;
pub mod checkpoint;
pub mod config;
pub mod device;
mod error;
mod error_pages;
pub mod gradient_norm;
mod learner;
pub mod logprobs;
pub mod loss;
mod loss_sums;
mod metrics;
pub mod model;
pub mod normaliser;
pub mod optimizer;
pub mod packing;
pub mod parameters;
pub mod passes;
mod policy_model;
mod progress;
pub mod samples;
pub mod schedule;
pub mod state;
mod tensor_file;
pub mod warm_start;
pub mod worker;

pub use actor::{Trainer, TrainerArguments};
pub use config::TrainerConfig;
pub use error::TrainerError;
pub use error_pages::ERRORS;
pub use learner::Learner;
pub use loss_sums::LossSums;
pub use metrics::StepMetrics;
pub use policy_model::DecoderModel;
pub use progress::Progress;
