//! How a generator is set up, and how one is started from a checkpoint.

use std::fmt;
use std::sync::Arc;

use tch::{Device, Kind};

/// Turns token ids into text, special tokens left out; used to look for stop strings.
pub type TextDecoder = Arc<dyn Fn(&[u32]) -> String + Send + Sync>;

/// How a generator is set up.
#[derive(Clone)]
pub struct GeneratorOptions {
    /// Prompt and output together, tokens; `None`: what the model knows. Never more than that.
    pub context_length: Option<usize>,
    /// The most requests decoded together.
    pub max_running: usize,
    /// Slots beyond `max_running` that keep the keys and values of finished requests for reuse.
    pub prefix_slots: usize,
    /// The most prompt rows computed in one step, so that decoding requests are not held up by a long prompt.
    pub max_prompt_rows_per_step: usize,
    /// What a request yields (ids and logprob bits) does not depend on its neighbours or the prefix cache; see
    /// [`crate::network::RowPlan::Invariant`] for how and what it costs.
    pub batch_invariant: bool,
    /// Seeds the requests that bring no seed of their own.
    pub seed: u64,
    /// Threads inside libtorch's operations; one is best for small models.
    pub threads: i32,
    /// Where to compute.
    pub device: Device,
    /// In which numbers; on the CPU only f32 is fast.
    pub kind: Kind,
    /// Version of the first weights.
    pub weight_version: String,
    /// Needed for stop strings.
    pub decoder: Option<TextDecoder>,
}

impl Default for GeneratorOptions {
    fn default() -> Self {
        Self {
            context_length: None,
            max_running: 32,
            prefix_slots: 32,
            max_prompt_rows_per_step: 512,
            batch_invariant: true,
            seed: 0,
            threads: 1,
            device: Device::Cpu,
            kind: Kind::Float,
            weight_version: "default".to_owned(),
            decoder: None,
        }
    }
}

impl fmt::Debug for GeneratorOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("GeneratorOptions")
            .field("context_length", &self.context_length)
            .field("max_running", &self.max_running)
            .field("prefix_slots", &self.prefix_slots)
            .field("batch_invariant", &self.batch_invariant)
            .field("seed", &self.seed)
            .field("device", &self.device)
            .field("kind", &self.kind)
            .field("decoder", &self.decoder.is_some())
            .finish_non_exhaustive()
    }
}
