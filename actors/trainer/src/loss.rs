//! The GRPO loss and its gradient with respect to hidden states and head.
//!
//! Per trained token: `max(-A·r, -A·clip(r, 1-low, 1+high))`, times the truncated importance weight, plus the k3
//! estimate of the KL to the reference, minus the entropy bonus; times the token's weight from [`crate::normaliser`].
//! The terms follow slime's definitions (Schulman's k3 with the term clamped to ±10; TIS as in "Your efficient RL
//! framework secretly brings you off-policy training", the weight without gradient).
//! Because the step's loss is a plain sum, each chunk is back-propagated as soon as it is computed and its logits freed.

use tch::{Kind, Tensor, no_grad_guard};

use crate::config::LossConfig;
use crate::error::TrainerError;
use crate::logprobs::{f32_column, f32_values, i64_column, score_chunk};
use crate::loss_sums::{LossSums, TokenTerms};

/// The k3 term is clamped to this magnitude, as in slime.
const KL_CLAMP: f64 = 10.0;

/// The trained tokens of one micro-batch, column by column; all columns have the same length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainedTokens {
    /// Row of the hidden state that predicts the token (the position before it in the pack).
    pub rows: Vec<i64>,
    /// The token that was taken.
    pub targets: Vec<i64>,
    /// Advantage of the token's rollout.
    pub advantages: Vec<f32>,
    /// Weight in the step's loss.
    pub weights: Vec<f32>,
    /// Log-probability that the engine reported, at the sampling temperature.
    pub rollout_logprobs: Vec<f32>,
    /// Log-probabilities before the batch's first optimizer step; `None`: the very ones of this pass, without gradient.
    pub old_logprobs: Option<Vec<f32>>,
    /// Log-probabilities of the reference policy; needed when the KL coefficient is not 0.
    pub reference_logprobs: Option<Vec<f32>>,
}

/// What the loss needs besides the tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct LossSettings {
    /// Clip range, coefficients, importance sampling.
    pub loss: LossConfig,
    /// Sampling temperature, above 0.
    pub temperature: f64,
    /// Trained tokens per chunk of logits.
    pub chunk_tokens: usize,
}

/// Computes the loss of a micro-batch and accumulates its gradient into `hidden.grad()` and `head.grad()`.
///
/// `hidden` `[tokens, width]` must be a leaf that requires gradients, `head` `[vocabulary, width]` may. Returns sums over
/// the micro-batch for the metrics.
///
/// # Errors
/// [`TrainerError::Tensor`], or [`TrainerError::InvalidBatch`] when reference log-probabilities are missing.
pub fn backward_loss(
    hidden: &Tensor,
    head: &Tensor,
    tokens: &TrainedTokens,
    settings: &LossSettings,
) -> Result<LossSums, TrainerError> {
    if settings.loss.kl_coefficient != 0.0 && tokens.reference_logprobs.is_none() {
        return Err(TrainerError::batch("micro-batch", "kl_coefficient is not 0, but there is no reference pass"));
    }
    let mut sums = LossSums::default();
    let count = tokens.rows.len();
    let mut start = 0;
    while start < count {
        let end = (start + settings.chunk_tokens).min(count);
        backward_chunk(hidden, head, tokens, start..end, settings, &mut sums)?;
        start = end;
    }
    Ok(sums)
}

fn backward_chunk(
    hidden: &Tensor,
    head: &Tensor,
    tokens: &TrainedTokens,
    range: std::ops::Range<usize>,
    settings: &LossSettings,
    sums: &mut LossSums,
) -> Result<(), TrainerError> {
    let device = hidden.device();
    let rows = i64_column(&tokens.rows[range.clone()], device)?;
    let targets = i64_column(&tokens.targets[range.clone()], device)?;
    let entropy_gradient = settings.loss.entropy_coefficient != 0.0;
    let scores = score_chunk(hidden, head, &rows, &targets, settings.temperature, entropy_gradient)?;

    let column = |values: &[f32]| f32_column(&values[range.clone()], device);
    let old = match &tokens.old_logprobs {
        Some(values) => column(values)?,
        None => scores.logprobs.f_detach()?,
    };
    let policy = policy_terms(&scores.logprobs, &old, &column(&tokens.advantages)?, &settings.loss)?;
    let rollout = column(&tokens.rollout_logprobs)?;
    let importance = importance_weights(&old, &rollout, settings.loss.importance_sampling_cap)?;
    let weighted_policy = match &importance {
        Some(weights) => policy.loss.f_mul(weights)?,
        None => policy.loss.shallow_clone(),
    };
    let mut token_loss = weighted_policy.shallow_clone();

    let kl = match (&tokens.reference_logprobs, settings.loss.kl_coefficient != 0.0) {
        (Some(values), true) => {
            let kl = low_variance_kl(&scores.logprobs, &column(values)?)?;
            token_loss = token_loss.f_add(&kl.f_mul_scalar(settings.loss.kl_coefficient)?)?;
            Some(kl)
        }
        _ => None,
    };
    if entropy_gradient {
        token_loss = token_loss.f_sub(&scores.entropies.f_mul_scalar(settings.loss.entropy_coefficient)?)?;
    }
    let weights = column(&tokens.weights)?;
    let loss = token_loss.f_mul(&weights)?.f_sum(Kind::Float)?;
    loss.f_backward()?;

    let _no_grad = no_grad_guard();
    let zeros = weighted_policy.f_zeros_like()?;
    let terms = [
        &token_loss,
        &weighted_policy,
        kl.as_ref().unwrap_or(&zeros),
        &scores.entropies,
        &policy.ratio,
        &policy.clipped,
        importance.as_ref().unwrap_or(&zeros),
        &scores.logprobs,
        &old,
    ];
    let terms: Result<Vec<Vec<f32>>, TrainerError> = terms.iter().map(|tensor| f32_values(tensor)).collect();
    sums.add(&TokenTerms {
        columns: &terms?,
        weights: &tokens.weights[range.clone()],
        rollout_logprobs: &tokens.rollout_logprobs[range],
        importance_sampling_cap: settings.loss.importance_sampling_cap,
    });
    Ok(())
}

struct PolicyTerms {
    loss: Tensor,
    ratio: Tensor,
    clipped: Tensor,
}

/// The clipped surrogate, `[n]` each: loss (with gradient), ratio, and 1 where the clipped branch was taken.
fn policy_terms(
    logprobs: &Tensor,
    old: &Tensor,
    advantages: &Tensor,
    config: &LossConfig,
) -> Result<PolicyTerms, TrainerError> {
    let ratio = logprobs.f_sub(old)?.f_exp()?;
    let downhill = advantages.f_neg()?;
    let free = downhill.f_mul(&ratio)?;
    let bounded = downhill.f_mul(&ratio.f_clamp(1.0 - config.clip_low, 1.0 + config.clip_high)?)?;
    let clipped = bounded.f_gt_tensor(&free)?;
    Ok(PolicyTerms { loss: free.f_maximum(&bounded)?, ratio, clipped })
}

/// `min(exp(old - rollout), cap)`, `[n]`, without gradient; `None` when importance sampling is off.
fn importance_weights(old: &Tensor, rollout: &Tensor, cap: Option<f64>) -> Result<Option<Tensor>, TrainerError> {
    let Some(cap) = cap else { return Ok(None) };
    Ok(Some(old.f_sub(rollout)?.f_exp()?.f_clamp_max(cap)?))
}

/// k3: `exp(d) - 1 - d` with `d = reference - logprob`, never negative, clamped to ±10.
fn low_variance_kl(logprobs: &Tensor, reference: &Tensor) -> Result<Tensor, TrainerError> {
    let difference = reference.f_sub(logprobs)?;
    let estimate = difference.f_exp()?.f_sub_scalar(1.0)?.f_sub(&difference)?;
    Ok(estimate.f_clamp(-KL_CLAMP, KL_CLAMP)?)
}

/// Cross-entropy of the targets (the SFT loss), accumulated into the gradients like [`backward_loss`].
///
/// Uses `rows`, `targets` and `weights` of `tokens` only; returns the weighted sum.
///
/// # Errors
/// [`TrainerError::Tensor`].
pub fn backward_cross_entropy(
    hidden: &Tensor,
    head: &Tensor,
    tokens: &TrainedTokens,
    chunk_tokens: usize,
) -> Result<f64, TrainerError> {
    let device = hidden.device();
    let mut total = 0.0;
    let chunks = tokens.rows.chunks(chunk_tokens).zip(tokens.targets.chunks(chunk_tokens));
    for ((rows, targets), weights) in chunks.zip(tokens.weights.chunks(chunk_tokens)) {
        let rows = i64_column(rows, device)?;
        let targets = i64_column(targets, device)?;
        let logits = hidden.f_index_select(0, &rows)?.f_matmul(&head.f_transpose(0, 1)?)?.f_to_kind(Kind::Float)?;
        let taken = logits.f_gather(1, &targets.f_unsqueeze(1)?, false)?.f_squeeze_dim(1)?;
        let surprise = logits.f_logsumexp(-1, false)?.f_sub(&taken)?;
        let loss = surprise.f_mul(&f32_column(weights, device)?)?.f_sum(Kind::Float)?;
        loss.f_backward()?;
        total += loss.f_double_value(&[])?;
    }
    Ok(total)
}
