//! The weights of a model: an ordered map from Hugging Face names to tensors.
//!
//! Invariants: exactly the tensors of [`ModelConfig::tensors`], in that order, with those shapes, all of one kind on one
//! device. A tensor handed out by [`Parameters::get`] shares its memory: an in-place change (an optimizer's step) is seen by
//! every [`crate::Network`] built from these parameters.

use std::collections::BTreeMap;

use greenroom_core::Seed;
use rand::Rng;
use tch::{Device, Kind, Tensor};

use super::config::{ModelConfig, TensorStart};
use crate::error::PolicyError;

/// Named tensors in checkpoint order.
#[derive(Debug)]
pub struct Parameters {
    entries: Vec<(String, Tensor)>,
    places: BTreeMap<String, usize>,
}

impl Parameters {
    /// Fresh f32 weights on the CPU; the same seed gives the same bits on every machine.
    ///
    /// # Errors
    /// [`PolicyError::Torch`] when memory runs out.
    pub fn init(config: &ModelConfig, seed: u64) -> Result<Self, PolicyError> {
        let root = Seed::new(seed).child("parameters");
        let residual_scale = 1.0 / (2.0 * config.num_hidden_layers as f64).sqrt();
        let mut entries = Vec::new();
        for spec in config.tensors() {
            let count = spec.shape.iter().product::<i64>() as usize;
            let values = match spec.start {
                TensorStart::Ones => vec![1.0; count],
                TensorStart::Zeros => vec![0.0; count],
                TensorStart::Normal => normal(root.child(&spec.name), count, config.initializer_range),
                TensorStart::Residual => {
                    normal(root.child(&spec.name), count, config.initializer_range * residual_scale)
                }
            };
            entries.push((spec.name, Tensor::f_from_slice(&values)?.f_view(spec.shape.as_slice())?));
        }
        Ok(Self::from_ordered(entries))
    }

    /// Puts tensors in checkpoint order and checks that they are exactly the model's.
    ///
    /// # Errors
    /// [`PolicyError::Input`] names the first tensor that is missing, superfluous or misshapen.
    pub fn from_tensors(config: &ModelConfig, tensors: Vec<(String, Tensor)>) -> Result<Self, PolicyError> {
        let mut given: BTreeMap<String, Tensor> = tensors.into_iter().collect();
        let mut entries = Vec::new();
        for spec in config.tensors() {
            let missing = || PolicyError::Input(format!("tensor `{}` is missing", spec.name));
            let tensor = given.remove(&spec.name).ok_or_else(missing)?;
            if tensor.size() != spec.shape {
                let (name, found, wanted) = (&spec.name, tensor.size(), &spec.shape);
                return Err(PolicyError::Input(format!(
                    "tensor `{name}` has shape {found:?}, the model needs {wanted:?}"
                )));
            }
            entries.push((spec.name, tensor));
        }
        match given.keys().next() {
            Some(name) => Err(PolicyError::Input(format!("tensor `{name}` is not part of the model"))),
            None => Ok(Self::from_ordered(entries)),
        }
    }

    pub(crate) fn from_ordered(entries: Vec<(String, Tensor)>) -> Self {
        let places = entries.iter().enumerate().map(|(place, (name, _))| (name.clone(), place)).collect();
        Self { entries, places }
    }

    /// The tensor of that name; shares memory.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.places.get(name).map(|&place| &self.entries[place].1)
    }

    /// The tensor of that name, or an error that says which is missing.
    ///
    /// # Errors
    /// [`PolicyError::Input`].
    pub fn require(&self, name: &str) -> Result<&Tensor, PolicyError> {
        self.get(name).ok_or_else(|| PolicyError::Input(format!("tensor `{name}` is missing")))
    }

    /// Puts another tensor (of the same shape) under a name that exists.
    pub(crate) fn replace(&mut self, name: &str, tensor: Tensor) {
        if let Some(&place) = self.places.get(name) {
            debug_assert_eq!(self.entries[place].1.size(), tensor.size(), "{name} keeps its shape");
            self.entries[place].1 = tensor;
        }
    }

    /// Names and tensors in checkpoint order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.entries.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Number of tensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of weights.
    #[must_use]
    pub fn weight_count(&self) -> u64 {
        self.entries.iter().map(|(_, tensor)| tensor.numel() as u64).sum()
    }

    /// The same weights, sharing memory.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        Self::from_ordered(self.iter().map(|(name, tensor)| (name.to_owned(), tensor.shallow_clone())).collect())
    }

    /// A copy of the weights in a kind and on a device; never shares memory and never requires gradients.
    ///
    /// # Errors
    /// [`PolicyError::Torch`] when memory runs out or the device does not exist.
    pub fn copy_to(&self, kind: Kind, device: Device) -> Result<Self, PolicyError> {
        let mut entries = Vec::with_capacity(self.len());
        for (name, tensor) in self.iter() {
            let copy = tensor.f_detach()?.f_to_device_(device, kind, false, true)?;
            entries.push((name.to_owned(), copy));
        }
        Ok(Self::from_ordered(entries))
    }

    /// Makes every tensor a leaf that collects gradients (or none).
    #[must_use]
    pub fn with_gradients(self, wanted: bool) -> Self {
        let entries = self.entries.into_iter().map(|(name, tensor)| (name, tensor.set_requires_grad(wanted))).collect();
        Self::from_ordered(entries)
    }
}

/// Normal numbers by the method of Box and Muller.
fn normal(seed: Seed, count: usize, spread: f64) -> Vec<f32> {
    let mut random = seed.random();
    let mut values = Vec::with_capacity(count + 1);
    while values.len() < count {
        // In (0, 1], so that the logarithm is finite.
        let radius = (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt() * spread;
        let angle = std::f64::consts::TAU * random.random::<f64>();
        values.push((radius * angle.cos()) as f32);
        values.push((radius * angle.sin()) as f32);
    }
    values.truncate(count);
    values
}
