//! The policy crate's network as a [`PolicyModel`].
//!
//! Holds the network and its parameters (one memory). Errors of the policy keep their own code in the text.

use std::path::{Path, PathBuf};

use greenroom_policy::checkpoint::{SaveOptions, load, save};
use greenroom_policy::{ModelConfig, Network, Parameters, PolicyError};
use tch::{Device, Kind, Tensor};

use crate::error::TrainerError;
use crate::logprobs::i64_column;
use crate::model::PolicyModel;

/// A decoder of the Qwen2, Qwen3 or Llama family.
#[derive(Debug)]
pub struct DecoderModel {
    config: ModelConfig,
    network: Network,
    parameters: Parameters,
    companions_from: Option<PathBuf>,
}

impl DecoderModel {
    /// Reads a Hugging Face directory; its tokenizer files are copied into exports.
    ///
    /// # Errors
    /// [`TrainerError::Policy`].
    pub fn open(dir: &Path, device: Device, kind: Kind) -> Result<Self, TrainerError> {
        let (config, parameters) = load(dir, device, kind)?;
        Self::new(config, parameters, Some(dir.to_owned()))
    }

    /// A model over these parameters (shared). `companions_from`: a directory whose tokenizer files go into exports.
    ///
    /// # Errors
    /// [`TrainerError::Policy`].
    pub fn new(
        config: ModelConfig,
        parameters: Parameters,
        companions_from: Option<PathBuf>,
    ) -> Result<Self, TrainerError> {
        let network = Network::new(&config, &parameters)?;
        Ok(Self { config, network, parameters, companions_from })
    }
}

impl PolicyModel for DecoderModel {
    fn vocabulary(&self) -> usize {
        self.config.vocab_size
    }

    fn max_tokens(&self) -> usize {
        self.config.max_position_embeddings
    }

    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        self.parameters.iter().map(|(name, tensor)| (name.to_owned(), tensor.shallow_clone())).collect()
    }

    fn hidden(&self, tokens: &[i64], lengths: &[usize]) -> Result<Tensor, TrainerError> {
        let ids = i64_column(tokens, self.network.device())?;
        let mut ends = vec![0_i64];
        for length in lengths {
            ends.push(ends[ends.len() - 1] + *length as i64);
        }
        let positions = self.network.packed_positions(&ends)?;
        Ok(self.network.forward_packed(&ids, &positions, &ends)?)
    }

    fn head(&self) -> Result<Tensor, TrainerError> {
        let name = if self.config.tie_word_embeddings { "model.embed_tokens.weight" } else { "lm_head.weight" };
        Ok(self.parameters.require(name)?.shallow_clone())
    }

    fn frozen(&self, parameters: &[(String, Tensor)]) -> Result<Box<dyn PolicyModel>, TrainerError> {
        let (kind, device) = (self.network.kind(), self.network.device());
        let copies = shared(&self.config, parameters)?.copy_to(kind, device)?;
        Ok(Box::new(Self::new(self.config.clone(), copies, None)?))
    }

    fn frozen_from(&self, dir: &Path) -> Result<Box<dyn PolicyModel>, TrainerError> {
        let model = Self::open(dir, self.network.device(), self.network.kind())?;
        if model.vocabulary() != self.vocabulary() {
            let detail = format!(
                "the reference {} has a vocabulary of {}, the policy one of {}",
                dir.display(),
                model.vocabulary(),
                self.vocabulary()
            );
            return Err(TrainerError::Policy { detail });
        }
        Ok(Box::new(model))
    }

    fn write(&self, parameters: &[(String, Tensor)], kind: Kind, dir: &Path) -> Result<(), TrainerError> {
        let options = SaveOptions { kind, companions_from: self.companions_from.clone(), ..SaveOptions::default() };
        save(dir, &self.config, &shared(&self.config, parameters)?, &options)?;
        Ok(())
    }
}

fn shared(config: &ModelConfig, parameters: &[(String, Tensor)]) -> Result<Parameters, PolicyError> {
    let tensors = parameters.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect();
    Parameters::from_tensors(config, tensors)
}

impl From<PolicyError> for TrainerError {
    fn from(error: PolicyError) -> Self {
        Self::Policy { detail: format!("{error} ({})", error.code()) }
    }
}
