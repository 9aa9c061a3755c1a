//! The trained parameters: what the network computes with, the f32 masters that the optimizer updates, their gradients.
//!
//! On the CPU (f32) master and weight are one tensor. In bf16 the master is a separate f32 tensor, rounded into the
//! weight after each step, and gradients of micro-batches are added up in f32, since bf16 would lose the small ones.
//! Order is the order of names, everywhere: gradient norms and checkpoints do not depend on how the network lists itself.

use tch::{Kind, Tensor, no_grad_guard};

use crate::error::TrainerError;

/// One named parameter.
#[derive(Debug)]
struct Entry {
    name: String,
    weight: Tensor,
    master: Option<Tensor>,
    accumulated: Option<Tensor>,
}

impl Entry {
    fn master(&self) -> &Tensor {
        self.master.as_ref().unwrap_or(&self.weight)
    }
}

/// All parameters of one learner, by name.
#[derive(Debug)]
pub struct ParameterSet {
    entries: Vec<Entry>,
}

impl ParameterSet {
    /// Takes the network's parameters (shared, not copied) and makes masters where weights are not f32.
    ///
    /// # Errors
    /// [`TrainerError::Tensor`]; [`TrainerError::Policy`] when two parameters have the same name.
    pub fn new(named: Vec<(String, Tensor)>) -> Result<Self, TrainerError> {
        let _no_grad = no_grad_guard();
        let mut entries = Vec::with_capacity(named.len());
        for (name, weight) in named {
            let weight = weight.f_set_requires_grad(true)?;
            let master = match weight.f_kind()? {
                Kind::Float => None,
                _ => Some(weight.f_detach()?.f_to_kind(Kind::Float)?),
            };
            entries.push(Entry { name, weight, master, accumulated: None });
        }
        entries.sort_by(|left, right| left.name.cmp(&right.name));
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(TrainerError::Policy { detail: format!("two parameters are named {}", pair[0].name) });
        }
        Ok(Self { entries })
    }

    /// Number of parameters (tensors).
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Name and f32 master of each parameter, by name.
    pub fn masters(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.entries.iter().map(|entry| (entry.name.as_str(), entry.master()))
    }

    /// Overwrites the masters (in the order of [`ParameterSet::masters`]) and the weights from them.
    ///
    /// # Errors
    /// [`TrainerError::Tensor`].
    pub fn restore(&mut self, values: &[Tensor]) -> Result<(), TrainerError> {
        let _no_grad = no_grad_guard();
        for (entry, value) in self.entries.iter_mut().zip(values) {
            match &mut entry.master {
                Some(master) => master.f_copy_(value)?,
                None => entry.weight.f_copy_(value)?,
            }
        }
        self.publish()
    }

    /// Forgets all gradients.
    pub fn clear_gradients(&mut self) {
        for entry in &mut self.entries {
            entry.accumulated = None;
            entry.weight.zero_grad();
        }
    }

    /// To be called after the backward pass of each micro-batch: moves gradients of non-f32 weights into f32 sums.
    ///
    /// # Errors
    /// [`TrainerError::Tensor`].
    pub fn accumulate(&mut self) -> Result<(), TrainerError> {
        let _no_grad = no_grad_guard();
        for entry in self.entries.iter_mut().filter(|entry| entry.master.is_some()) {
            let gradient = entry.weight.f_grad()?;
            if !gradient.defined() {
                continue;
            }
            let gradient = gradient.f_to_kind(Kind::Float)?;
            match &mut entry.accumulated {
                Some(sum) => drop(sum.f_add_(&gradient)?),
                None => entry.accumulated = Some(gradient),
            }
            entry.weight.zero_grad();
        }
        Ok(())
    }

    /// The f32 gradients, `None` for parameters that took no part; shared with the network, valid until cleared.
    ///
    /// # Errors
    /// [`TrainerError::Tensor`].
    pub fn gradients(&self) -> Result<Vec<Option<Tensor>>, TrainerError> {
        let gradient = |entry: &Entry| -> Result<Option<Tensor>, TrainerError> {
            if entry.master.is_some() {
                return Ok(entry.accumulated.as_ref().map(Tensor::shallow_clone));
            }
            let gradient = entry.weight.f_grad()?;
            Ok(gradient.defined().then_some(gradient))
        };
        self.entries.iter().map(gradient).collect()
    }

    /// Rounds the masters into the weights (nothing to do in f32).
    ///
    /// # Errors
    /// [`TrainerError::Tensor`].
    pub fn publish(&mut self) -> Result<(), TrainerError> {
        let _no_grad = no_grad_guard();
        for entry in &mut self.entries {
            if let Some(master) = &entry.master {
                entry.weight.f_copy_(master)?;
            }
        }
        Ok(())
    }
}
