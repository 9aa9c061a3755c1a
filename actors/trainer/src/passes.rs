//! Forward and backward passes over the micro-batches of one optimizer step.
//!
//! Backward runs in two stages: the loss back to the hidden states chunk by chunk ([`crate::loss`]), then from there
//! through the network once per micro-batch. A pass can be given up between micro-batches; nothing is applied then.

use tch::{Kind, Tensor, no_grad_guard};

use crate::error::TrainerError;
use crate::logprobs::score_without_gradient;
use crate::loss::{LossSettings, backward_cross_entropy, backward_loss};
use crate::loss_sums::LossSums;
use crate::model::PolicyModel;
use crate::packing::{MicroBatch, pack};
use crate::parameters::ParameterSet;
use crate::progress::Progress;
use crate::samples::{Pack, ReadySample, join};

/// Packs samples by their inputs' lengths.
///
/// # Errors
/// [`TrainerError::SampleTooLong`].
pub fn plan(samples: &[ReadySample], tokens_per_micro_batch: usize) -> Result<Vec<MicroBatch>, TrainerError> {
    let lengths: Vec<usize> = samples.iter().map(|sample| sample.input.len()).collect();
    pack(&lengths, tokens_per_micro_batch, |index| samples[index].place.clone())
}

fn gather(samples: &[ReadySample], micro_batch: &MicroBatch) -> Pack {
    let members: Vec<&ReadySample> = micro_batch.samples.iter().map(|index| &samples[*index]).collect();
    join(&members)
}

/// Log-probabilities of every sample's trained tokens under `model`, without gradients, in the samples' order.
///
/// # Errors
/// [`TrainerError::Tensor`], [`TrainerError::Policy`], [`TrainerError::Stopped`].
pub fn score(
    model: &dyn PolicyModel,
    samples: &[ReadySample],
    micro_batches: &[MicroBatch],
    settings: &LossSettings,
    progress: &Progress,
) -> Result<Vec<Vec<f32>>, TrainerError> {
    let _no_grad = no_grad_guard();
    let head = model.head()?;
    let mut scores = vec![Vec::new(); samples.len()];
    for (index, micro_batch) in micro_batches.iter().enumerate() {
        progress.advance(index, micro_batches.len())?;
        let pack = gather(samples, micro_batch);
        let hidden = model.hidden(&pack.tokens, &pack.lengths)?;
        let (rows, targets) = (&pack.trained.rows, &pack.trained.targets);
        let values =
            score_without_gradient(&hidden, &head, rows, targets, settings.temperature, settings.chunk_tokens)?;
        let mut rest = values.as_slice();
        for member in &micro_batch.samples {
            let (own, others) = rest.split_at(samples[*member].rows.len());
            scores[*member] = own.to_vec();
            rest = others;
        }
    }
    Ok(scores)
}

/// Accumulates the gradient of the GRPO loss over all micro-batches into `parameters`.
///
/// # Errors
/// [`TrainerError::Tensor`], [`TrainerError::Policy`], [`TrainerError::Stopped`].
pub fn backward(
    model: &dyn PolicyModel,
    parameters: &mut ParameterSet,
    samples: &[ReadySample],
    micro_batches: &[MicroBatch],
    settings: &LossSettings,
    progress: &Progress,
) -> Result<LossSums, TrainerError> {
    parameters.clear_gradients();
    let mut sums = LossSums::default();
    for (index, micro_batch) in micro_batches.iter().enumerate() {
        progress.advance(index, micro_batches.len())?;
        let pack = gather(samples, micro_batch);
        through_network(model, &pack, |hidden, head| {
            sums.merge(&backward_loss(hidden, head, &pack.trained, settings)?);
            Ok(())
        })?;
        parameters.accumulate()?;
    }
    Ok(sums)
}

/// Accumulates the gradient of the cross-entropy over all micro-batches into `parameters`; returns the loss.
///
/// # Errors
/// [`TrainerError::Tensor`], [`TrainerError::Policy`], [`TrainerError::Stopped`].
pub fn backward_demonstrations(
    model: &dyn PolicyModel,
    parameters: &mut ParameterSet,
    samples: &[ReadySample],
    micro_batches: &[MicroBatch],
    chunk_tokens: usize,
    progress: &Progress,
) -> Result<f64, TrainerError> {
    parameters.clear_gradients();
    let mut loss = 0.0;
    for micro_batch in micro_batches {
        progress.check()?;
        let pack = gather(samples, micro_batch);
        through_network(model, &pack, |hidden, head| {
            loss += backward_cross_entropy(hidden, head, &pack.trained, chunk_tokens)?;
            Ok(())
        })?;
        parameters.accumulate()?;
    }
    Ok(loss)
}

/// Forward, then `loss_backward` down to a detached copy of the hidden states, then from there through the network.
fn through_network(
    model: &dyn PolicyModel,
    pack: &Pack,
    loss_backward: impl FnOnce(&Tensor, &Tensor) -> Result<(), TrainerError>,
) -> Result<(), TrainerError> {
    let hidden = model.hidden(&pack.tokens, &pack.lengths)?;
    let leaf = hidden.f_detach()?.f_set_requires_grad(true)?;
    loss_backward(&leaf, &model.head()?)?;
    let gradient = leaf.f_grad()?;
    if gradient.defined() && hidden.requires_grad() {
        // The derivative of this sum is exactly `gradient`, which is how one passes a gradient into the graph here.
        hidden.f_mul(&gradient.f_detach()?)?.f_sum(Kind::Float)?.f_backward()?;
    }
    Ok(())
}
