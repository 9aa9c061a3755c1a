//! The decoder: from token ids to hidden states and logits.
//!
//! One body of mathematics ([`Network::run`]) serves training and generation; what differs is where attention finds its keys
//! and values, which the caller passes in as a function:
//! * [`packed`]: sequences laid end to end, each attending to itself only; differentiable.
//! * [`cached`]: rows of many requests, each attending to what its slot of the arena holds.
//!
//! Invariants: no gradient mode is set here (generation sets it around); shapes are checked at the two entrances, so that
//! libtorch has nothing left to complain of. A libtorch error comes back as [`PolicyError::Torch`]; nothing panics.

pub mod arena;
pub mod cached;
mod layer;
pub mod packed;
pub mod rope;

use tch::{Device, Kind, Tensor};

pub use arena::KeyValueArena;
pub use cached::{Row, RowPlan};
use layer::{AttentionInput, Layer};
use rope::RopeTable;

use crate::error::PolicyError;
use crate::model::{ModelConfig, Parameters};

/// A decoder whose weights are shared with the [`Parameters`] it was made from.
#[derive(Debug)]
pub struct Network {
    config: ModelConfig,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
    rope: RopeTable,
}

impl Network {
    /// A network over these parameters. It shares their memory: an optimizer that changes them in place changes the network,
    /// and gradients arrive in them.
    ///
    /// # Errors
    /// [`PolicyError::Input`] when a tensor is missing.
    pub fn new(config: &ModelConfig, parameters: &Parameters) -> Result<Self, PolicyError> {
        let layers = (0..config.num_hidden_layers).map(|layer| Layer::new(config, parameters, layer));
        Self::assemble(config, parameters, layers.collect::<Result<_, _>>()?)
    }

    /// A network for generation, and the parameters as they now are: q, k, v (and gate, up) of each layer lie in one tensor
    /// each and the returned parameters are views of them, so that nothing is held twice. Not for training.
    ///
    /// # Errors
    /// [`PolicyError::Input`] when a tensor is missing, [`PolicyError::Torch`] when memory runs out.
    pub fn for_generation(config: &ModelConfig, parameters: &Parameters) -> Result<(Self, Parameters), PolicyError> {
        let _guard = tch::no_grad_guard();
        let mut views = parameters.shallow_clone();
        let layers = (0..config.num_hidden_layers).map(|layer| Layer::fused(config, &mut views, layer));
        let layers = layers.collect::<Result<_, _>>()?;
        let network = Self::assemble(config, &views, layers)?;
        Ok((network, views))
    }

    fn assemble(config: &ModelConfig, parameters: &Parameters, layers: Vec<Layer>) -> Result<Self, PolicyError> {
        let embedding = parameters.require("model.embed_tokens.weight")?.shallow_clone();
        let head = if config.tie_word_embeddings { "model.embed_tokens.weight" } else { "lm_head.weight" };
        Ok(Self {
            rope: RopeTable::new(config, embedding.kind(), embedding.device())?,
            head: parameters.require(head)?.shallow_clone(),
            norm: parameters.require("model.norm.weight")?.shallow_clone(),
            config: config.clone(),
            embedding,
            layers,
        })
    }

    /// What it computes.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Where it computes.
    #[must_use]
    pub fn device(&self) -> Device {
        self.embedding.device()
    }

    /// In which kind of number.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.embedding.kind()
    }

    /// Scores of every token of the vocabulary: `[T, hidden_size]` to `[T, vocab_size]`, same kind.
    ///
    /// # Errors
    /// [`PolicyError::Torch`] for a hidden state of another width.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, PolicyError> {
        Ok(hidden.f_linear(&self.head, None::<&Tensor>)?)
    }

    /// The body: ids and positions `[T]` (int64) to the normalised hidden states `[T, hidden_size]`. `attend` receives the
    /// number of the layer and the rotated heads, and returns `[T, heads * head_dim]`.
    pub(crate) fn run(
        &self,
        ids: &Tensor,
        positions: &Tensor,
        attend: &mut dyn FnMut(usize, &AttentionInput) -> Result<Tensor, PolicyError>,
    ) -> Result<Tensor, PolicyError> {
        let rotation = self.rope.at(positions)?;
        let mut stream = Tensor::f_embedding(&self.embedding, ids, -1, false, false)?;
        for (number, layer) in self.layers.iter().enumerate() {
            let heads = layer.attention_input(&stream, &rotation)?;
            let attended = attend(number, &heads)?;
            stream = layer.finish(&stream, &attended)?;
        }
        layer::rms_norm(&stream, &self.norm, self.config.rms_norm_eps)
    }
}
