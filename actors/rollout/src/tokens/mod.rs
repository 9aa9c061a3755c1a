//! How a turn becomes tokens: token ids are kept, never made again.
//!
//! The ids that an engine sampled are the ids that are trained on. A [`History`] keeps the ids of every turn and renders
//! only what is new, so a linear episode is one sample: prompts and observations masked, sampled tokens trained with the
//! engine's log-probabilities. Where a template does not extend what it rendered before (it drops thinking, or somebody
//! edited the past) the history forks: what was there becomes a finished sample, and the new prompt begins another one.
//! A reply that the agent dropped is a dead branch: a sample of its own, or nothing, by `train_failed_replies`.
//!
//! Invariants: the mask is 1 exactly on sampled tokens, and on each of them in exactly one sample; log-probabilities and
//! version spans stand only there.

mod history;
mod line;
mod stability;

pub use history::{History, Prompt, SampledReply};
pub use stability::{TemplateStability, probe_template};

#[cfg(test)]
mod tests;
