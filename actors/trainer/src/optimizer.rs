//! AdamW (Loshchilov & Hutter 2019) with the arithmetic of `torch.optim.AdamW`.
//!
//! Moments are f32, one pair per parameter, in the order of the parameters' names. Decay is decoupled and does not touch
//! one-dimensional parameters (norms, biases). All of a step's gradients are known to be finite before it begins, so a
//! step is applied to all parameters or to none.

use tch::{Tensor, no_grad_guard};

use crate::config::OptimizerConfig;
use crate::error::TrainerError;
use crate::parameters::ParameterSet;

/// First and second moment of each parameter, and the number of steps they have seen.
#[derive(Debug)]
pub struct AdamW {
    first: Vec<Tensor>,
    second: Vec<Tensor>,
    steps: u64,
}

impl AdamW {
    /// Moments of zero.
    ///
    /// # Errors
    /// [`TrainerError::Tensor`].
    pub fn new(parameters: &ParameterSet) -> Result<Self, TrainerError> {
        let _no_grad = no_grad_guard();
        let zeros = || -> Result<Vec<Tensor>, TrainerError> {
            parameters.masters().map(|(_, master)| Ok(master.f_zeros_like()?)).collect()
        };
        Ok(Self { first: zeros()?, second: zeros()?, steps: 0 })
    }

    /// Optimizer steps applied.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The moments, in the order of the parameters: (first, second).
    pub fn moments(&self) -> impl Iterator<Item = (&Tensor, &Tensor)> {
        self.first.iter().zip(&self.second)
    }

    /// Overwrites moments and step count.
    ///
    /// # Errors
    /// [`TrainerError::Tensor`].
    pub fn restore(&mut self, first: &[Tensor], second: &[Tensor], steps: u64) -> Result<(), TrainerError> {
        let _no_grad = no_grad_guard();
        for (moment, value) in self.first.iter_mut().zip(first).chain(self.second.iter_mut().zip(second)) {
            moment.f_copy_(value)?;
        }
        self.steps = steps;
        Ok(())
    }

    /// Applies one step at `learning_rate` to the masters and rounds them into the weights.
    ///
    /// # Errors
    /// [`TrainerError::Tensor`].
    pub fn step(
        &mut self,
        parameters: &mut ParameterSet,
        gradients: &[Option<Tensor>],
        config: &OptimizerConfig,
        learning_rate: f64,
    ) -> Result<(), TrainerError> {
        let _no_grad = no_grad_guard();
        self.steps += 1;
        let exponent = self.steps as f64;
        let first_correction = 1.0 - config.beta1.powf(exponent);
        let second_correction_root = (1.0 - config.beta2.powf(exponent)).sqrt();
        let step_size = learning_rate / first_correction;

        for (index, (_, master)) in parameters.masters().enumerate() {
            let Some(gradient) = &gradients[index] else { continue };
            let mut master = master.f_detach()?;
            if master.dim() > 1 && config.weight_decay != 0.0 {
                drop(master.f_mul_scalar_(1.0 - learning_rate * config.weight_decay)?);
            }
            let first = &mut self.first[index];
            drop(first.f_lerp_(gradient, 1.0 - config.beta1)?);
            let second = &mut self.second[index];
            drop(second.f_mul_scalar_(config.beta2)?);
            drop(second.f_add_(&gradient.f_square()?.f_mul_scalar(1.0 - config.beta2)?)?);
            let denominator = second.f_sqrt()?.f_div_scalar(second_correction_root)?.f_add_scalar(config.epsilon)?;
            drop(master.f_sub_(&first.f_div(&denominator)?.f_mul_scalar(step_size)?)?);
        }
        parameters.publish()
    }
}
