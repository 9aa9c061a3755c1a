//! Log-probabilities of the tokens that were taken, from hidden states.
//!
//! Only rows that predict a trained token are multiplied with the head, and only a chunk of them at a time, so the logits
//! of a whole pack never exist. Logits are divided by the sampling temperature before the softmax: the engine reports its
//! log-probabilities that way, and a ratio of two temperatures would be meaningless. Everything after the head's product
//! is f32, whatever the network computes in.

use tch::{Device, Kind, Tensor, no_grad_guard};

use crate::error::TrainerError;

/// Log-probabilities and entropies of one chunk of rows.
#[derive(Debug)]
pub struct ChunkScores {
    /// `[rows]` f32, log-probability of each row's target.
    pub logprobs: Tensor,
    /// `[rows]` f32, entropy of each row's distribution in nats.
    pub entropies: Tensor,
}

/// Scores one chunk.
///
/// * `hidden` `[tokens, width]`, last hidden states after the final norm;
/// * `head` `[vocabulary, width]`, the output embedding;
/// * `rows` `[n]` i64, which hidden states; `targets` `[n]` i64, the token each of them should predict;
/// * `entropy_gradient`: whether the entropy takes part in the gradient.
///
/// # Errors
/// [`TrainerError::Tensor`].
pub fn score_chunk(
    hidden: &Tensor,
    head: &Tensor,
    rows: &Tensor,
    targets: &Tensor,
    temperature: f64,
    entropy_gradient: bool,
) -> Result<ChunkScores, TrainerError> {
    let selected = hidden.f_index_select(0, rows)?;
    let logits = selected.f_matmul(&head.f_transpose(0, 1)?)?.f_to_kind(Kind::Float)?;
    let logits = if temperature == 1.0 { logits } else { logits.f_div_scalar(temperature)? };
    let log_normaliser = logits.f_logsumexp(-1, false)?;
    let taken = logits.f_gather(1, &targets.f_unsqueeze(1)?, false)?.f_squeeze_dim(1)?;
    let logprobs = taken.f_sub(&log_normaliser)?;
    let entropies = {
        let _no_grad = (!entropy_gradient).then(no_grad_guard);
        let expected_logit =
            logits.f_softmax(-1, Kind::Float)?.f_mul(&logits)?.f_sum_dim_intlist(-1, false, Kind::Float)?;
        log_normaliser.f_sub(&expected_logit)?
    };
    Ok(ChunkScores { logprobs, entropies })
}

/// Log-probabilities of `targets` at `rows`, without gradients, `chunk` rows at a time; same shapes as [`score_chunk`].
///
/// # Errors
/// [`TrainerError::Tensor`].
pub fn score_without_gradient(
    hidden: &Tensor,
    head: &Tensor,
    rows: &[i64],
    targets: &[i64],
    temperature: f64,
    chunk: usize,
) -> Result<Vec<f32>, TrainerError> {
    let _no_grad = no_grad_guard();
    let device = hidden.device();
    let mut logprobs = Vec::with_capacity(rows.len());
    for (rows, targets) in rows.chunks(chunk).zip(targets.chunks(chunk)) {
        let rows = i64_column(rows, device)?;
        let targets = i64_column(targets, device)?;
        let scores = score_chunk(hidden, head, &rows, &targets, temperature, false)?;
        logprobs.extend(f32_values(&scores.logprobs)?);
    }
    Ok(logprobs)
}

/// A column of integers on the device.
pub(crate) fn i64_column(values: &[i64], device: Device) -> Result<Tensor, TrainerError> {
    Ok(Tensor::f_from_slice(values)?.f_to_device(device)?)
}

/// A column of floats on the device.
pub(crate) fn f32_column(values: &[f32], device: Device) -> Result<Tensor, TrainerError> {
    Ok(Tensor::f_from_slice(values)?.f_to_device(device)?)
}

/// The values of a tensor of any shape, row by row, as f32.
pub(crate) fn f32_values(tensor: &Tensor) -> Result<Vec<f32>, TrainerError> {
    let tensor = tensor.f_detach()?.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?.f_contiguous()?;
    let mut values = vec![0.0_f32; tensor.numel()];
    let count = values.len();
    tensor.f_copy_data(&mut values, count)?;
    Ok(values)
}
