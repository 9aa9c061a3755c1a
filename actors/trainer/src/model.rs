//! What a learner needs of a policy network.
//!
//! The seam between the mathematics of training and the network: tests put small networks here, and a network that is
//! spread over several devices can take the same place. All calls come from the learner's thread.

use std::path::Path;

use tch::{Kind, Tensor};

use crate::error::TrainerError;

/// A policy that can be trained.
pub trait PolicyModel: Send {
    /// Number of token ids; valid ids are below.
    fn vocabulary(&self) -> usize;

    /// The longest sequence it can read, in tokens.
    fn max_tokens(&self) -> usize;

    /// Its parameters by name; the tensors are shared with the network, so that changing them in place trains it.
    fn named_parameters(&self) -> Vec<(String, Tensor)>;

    /// Last hidden states after the final norm, `[sum(lengths), width]`, of sequences that lie one after the other in
    /// `tokens`; sequences do not see each other, and each starts at position 0. Part of the gradient graph unless
    /// gradients are off.
    ///
    /// # Errors
    /// [`TrainerError::Policy`] or [`TrainerError::Tensor`].
    fn hidden(&self, tokens: &[i64], lengths: &[usize]) -> Result<Tensor, TrainerError>;

    /// The output embedding `[vocabulary, width]`, shared with the network.
    ///
    /// # Errors
    /// [`TrainerError::Policy`].
    fn head(&self) -> Result<Tensor, TrainerError>;

    /// A network of the same shape with copies of these parameters, without gradients: the reference policy.
    ///
    /// # Errors
    /// [`TrainerError::Policy`].
    fn frozen(&self, parameters: &[(String, Tensor)]) -> Result<Box<dyn PolicyModel>, TrainerError>;

    /// The network of a Hugging Face directory, without gradients, computing like this one.
    ///
    /// # Errors
    /// [`TrainerError::Policy`].
    fn frozen_from(&self, dir: &Path) -> Result<Box<dyn PolicyModel>, TrainerError>;

    /// Writes these parameters as a Hugging Face directory in the given element type. `dir` does not exist yet.
    ///
    /// # Errors
    /// [`TrainerError::Policy`].
    fn write(&self, parameters: &[(String, Tensor)], kind: Kind, dir: &Path) -> Result<(), TrainerError>;
}
