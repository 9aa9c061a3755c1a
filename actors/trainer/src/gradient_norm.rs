//! The global norm of the gradients: measured, checked, clipped.
//!
//! The norm is the L2 norm over all parameters together, as in `torch.nn.utils.clip_grad_norm_`. A norm that is not
//! finite is an error that names the first parameter at fault; the caller then applies nothing.

use tch::{Device, Kind, Tensor, no_grad_guard};

use crate::error::TrainerError;

/// Added to the norm before dividing, as torch does.
const NORM_EPSILON: f64 = 1e-6;

/// The global L2 norm; `names` belong to `gradients` one by one, `step` is for the error's text.
///
/// # Errors
/// [`TrainerError::NonFiniteGradient`], [`TrainerError::Tensor`].
pub fn checked_norm<'a>(
    names: impl Iterator<Item = &'a str>,
    gradients: &[Option<Tensor>],
    step: u64,
) -> Result<f64, TrainerError> {
    let _no_grad = no_grad_guard();
    let present: Vec<&Tensor> = gradients.iter().flatten().collect();
    if present.is_empty() {
        return Ok(0.0);
    }
    let norms: Result<Vec<Tensor>, tch::TchError> = present.iter().map(|gradient| gradient.f_norm()).collect();
    let norms = Tensor::f_stack(&norms?, 0)?.f_to_device(Device::Cpu)?.f_to_kind(Kind::Double)?;
    let count = present.len();
    let mut values = vec![0.0_f64; count];
    norms.f_copy_data(&mut values, count)?;

    let with_gradient = names.zip(gradients).filter(|(_, gradient)| gradient.is_some());
    for ((name, _), norm) in with_gradient.zip(&values) {
        if !norm.is_finite() {
            return Err(TrainerError::NonFiniteGradient { parameter: name.to_owned(), step });
        }
    }
    Ok(values.iter().map(|norm| norm * norm).sum::<f64>().sqrt())
}

/// Scales the gradients in place so that their global norm is at most `max_norm`; 0 means no limit.
///
/// # Errors
/// [`TrainerError::Tensor`].
pub fn clip(gradients: &mut [Option<Tensor>], norm: f64, max_norm: f64) -> Result<(), TrainerError> {
    let factor = max_norm / (norm + NORM_EPSILON);
    if max_norm == 0.0 || factor >= 1.0 {
        return Ok(());
    }
    let _no_grad = no_grad_guard();
    for gradient in gradients.iter_mut().flatten() {
        drop(gradient.f_mul_scalar_(factor)?);
    }
    Ok(())
}
