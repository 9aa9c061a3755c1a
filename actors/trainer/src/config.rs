//! The trainer's settings, with the defaults of the field's GRPO runs.
//!
//! Every key is optional and every unknown key is an error. Sources of the defaults: the coding-agent example of slime
//! (clip 0.2/0.28, low-variance KL with coefficient 0, AdamW 1e-6, betas 0.9/0.98, decay 0.1, clipping at 1.0, 32768
//! tokens a micro-batch) and its code (TIS cap 2.0, KL term clamped to ±10). [`TrainerConfig::validate`] is called by
//! whoever opens a learner, so a wrong value is heard of before the first tensor is made.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::TrainerError;

/// Element type in which the network computes, or weights are exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DtypeChoice {
    /// bf16 on CUDA, f32 on the CPU (bf16 on a CPU without bf16 instructions is some 20 times slower).
    #[default]
    Auto,
    /// 32-bit floats.
    F32,
    /// bfloat16; the optimizer keeps f32 masters beside the weights.
    Bf16,
}

/// How the loss of single tokens becomes the loss of an optimizer step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossNormaliser {
    /// Mean over the trained tokens of a rollout (all its samples together), then the mean over the step's rollouts.
    #[default]
    RolloutMean,
    /// Sum over all trained tokens of the step divided by their number.
    TokenMean,
}

/// Which log-probabilities the policy ratio is taken against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OldLogprobs {
    /// Those of the trainer's own weights before the batch's first optimizer step.
    #[default]
    Recompute,
    /// Those that the engine reported at sampling.
    Rollout,
}

/// The learning rate's course after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleShape {
    /// Stays at `learning_rate`.
    #[default]
    Constant,
    /// Half a cosine from `learning_rate` to `min_learning_rate` over `decay_steps`, then constant.
    Cosine,
}

/// Group-relative advantages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdvantageConfig {
    /// Divide by the group's (unbiased) standard deviation: true as in GRPO, false as in Dr. GRPO. Default true.
    pub normalise_by_std: bool,
    /// Added to the standard deviation before dividing, in units of reward. Default 1e-6.
    pub std_epsilon: f64,
}

impl Default for AdvantageConfig {
    fn default() -> Self {
        Self { normalise_by_std: true, std_epsilon: 1e-6 }
    }
}

/// The policy loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LossConfig {
    /// Default `rollout_mean`.
    pub normaliser: LossNormaliser,
    /// The ratio is clipped below `1 - clip_low`. Default 0.2.
    pub clip_low: f64,
    /// The ratio is clipped above `1 + clip_high`. Default 0.28.
    pub clip_high: f64,
    /// Coefficient of the low-variance KL (k3) to the reference; at 0 no reference pass is made. Default 0.
    pub kl_coefficient: f64,
    /// Coefficient of the entropy bonus (subtracted from the loss). Default 0.
    pub entropy_coefficient: f64,
    /// Default `recompute`.
    pub old_logprobs: OldLogprobs,
    /// Truncated importance sampling: each token's policy loss is weighted with
    /// `min(exp(old - rollout), cap)`. Needs `old_logprobs = "recompute"`. Absent: off. Default 2.0.
    pub importance_sampling_cap: Option<f64>,
    /// Leave out samples whose advantage is 0 when neither KL nor entropy is in the loss: their gradient is exactly 0,
    /// so this saves time and changes no weight. Metrics over tokens then speak of the remaining samples. Default true.
    pub skip_zero_advantage: bool,
}

impl Default for LossConfig {
    fn default() -> Self {
        Self {
            normaliser: LossNormaliser::RolloutMean,
            clip_low: 0.2,
            clip_high: 0.28,
            kl_coefficient: 0.0,
            entropy_coefficient: 0.0,
            old_logprobs: OldLogprobs::Recompute,
            importance_sampling_cap: Some(2.0),
            skip_zero_advantage: true,
        }
    }
}

/// AdamW with decoupled weight decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// Peak learning rate. Default 1e-6.
    pub learning_rate: f64,
    /// Decay of the first moment. Default 0.9.
    pub beta1: f64,
    /// Decay of the second moment. Default 0.98.
    pub beta2: f64,
    /// Added to the root of the second moment. Default 1e-8.
    pub epsilon: f64,
    /// Decoupled weight decay; norms and biases (one-dimensional parameters) are not decayed. Default 0.1.
    pub weight_decay: f64,
    /// Gradients are scaled down to this global L2 norm; 0 switches clipping off. Default 1.0.
    pub max_gradient_norm: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self { learning_rate: 1e-6, beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weight_decay: 0.1, max_gradient_norm: 1.0 }
    }
}

/// The learning rate's course, in optimizer steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleConfig {
    /// Default `constant`.
    pub shape: ScheduleShape,
    /// Linear warm-up: step `s` (from 0) runs at `learning_rate * (s + 1) / warmup_steps`. Default 0.
    pub warmup_steps: u64,
    /// Length of the cosine after the warm-up; must be at least 1 for `cosine`. Default 0.
    pub decay_steps: u64,
    /// Where the cosine ends. Default 0.
    pub min_learning_rate: f64,
}

/// Warm starts by supervised learning: what the request itself does not say. Moments are dropped afterwards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WarmStartConfig {
    /// Decay of the first moment. Default 0.9.
    pub beta1: f64,
    /// Decay of the second moment. Default 0.95.
    pub beta2: f64,
    /// Decoupled weight decay. Default 0.01.
    pub weight_decay: f64,
    /// Global L2 norm of the gradient. Default 1.0.
    pub max_gradient_norm: f64,
    /// Part of the steps over which the learning rate rises linearly. Default 0.05.
    pub warmup_fraction: f64,
    /// Where the cosine after it ends, as a part of the peak. Default 0.1.
    pub end_learning_rate_fraction: f64,
}

impl Default for WarmStartConfig {
    fn default() -> Self {
        Self {
            beta1: 0.9,
            beta2: 0.95,
            weight_decay: 0.01,
            max_gradient_norm: 1.0,
            warmup_fraction: 0.05,
            end_learning_rate_fraction: 0.1,
        }
    }
}

impl WarmStartConfig {
    /// AdamW's settings for a warm start with this peak learning rate.
    pub fn optimizer(&self, learning_rate: f64) -> OptimizerConfig {
        OptimizerConfig {
            learning_rate,
            beta1: self.beta1,
            beta2: self.beta2,
            weight_decay: self.weight_decay,
            max_gradient_norm: self.max_gradient_norm,
            ..OptimizerConfig::default()
        }
    }

    /// The learning rate's course over `total_steps` steps: warm-up, then a cosine.
    pub fn schedule(&self, learning_rate: f64, total_steps: u64) -> ScheduleConfig {
        let warmup_steps = (total_steps as f64 * self.warmup_fraction).ceil() as u64;
        ScheduleConfig {
            shape: ScheduleShape::Cosine,
            warmup_steps,
            decay_steps: total_steps.saturating_sub(warmup_steps).max(1),
            min_learning_rate: learning_rate * self.end_learning_rate_fraction,
        }
    }
}

/// All settings of one trainer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainerConfig {
    /// `"cpu"`, `"cuda:N"` or `"auto"` (the first CUDA device if there is one). Default `"auto"`.
    pub device: String,
    /// Element type of the network. Default `auto`.
    pub compute_dtype: DtypeChoice,
    /// Element type of exported weights; `auto` exports what the network computes with. Default `auto`.
    pub export_dtype: DtypeChoice,
    /// Threads of CPU tensor operations. A fixed number keeps results bit-identical. Default 1.
    pub cpu_threads: i32,
    /// Most tokens packed into one forward and backward pass. Default 32768; at least the longest rollout.
    pub tokens_per_micro_batch: usize,
    /// Trained tokens whose logits exist at once (memory: this × vocabulary × 4 bytes, some five times). Default 1024.
    pub logits_chunk_tokens: usize,
    /// A batch's rollouts are split into this many optimizer steps (slime: `num_steps_per_rollout`). Default 1.
    pub optimizer_steps_per_batch: usize,
    /// Hugging Face directory of the reference policy, read only when `loss.kl_coefficient` is not 0. Absent: the policy
    /// as it is before its first optimizer step (after a warm start); checkpoints then hold it.
    pub reference_dir: Option<PathBuf>,
    /// Group-relative advantages.
    pub advantage: AdvantageConfig,
    /// The policy loss.
    pub loss: LossConfig,
    /// AdamW.
    pub optimizer: OptimizerConfig,
    /// Learning rate over steps.
    pub schedule: ScheduleConfig,
    /// Warm start.
    pub warm_start: WarmStartConfig,
}

impl Default for TrainerConfig {
    fn default() -> Self {
        Self {
            device: "auto".to_owned(),
            compute_dtype: DtypeChoice::Auto,
            export_dtype: DtypeChoice::Auto,
            cpu_threads: 1,
            tokens_per_micro_batch: 32_768,
            logits_chunk_tokens: 1024,
            optimizer_steps_per_batch: 1,
            reference_dir: None,
            advantage: AdvantageConfig::default(),
            loss: LossConfig::default(),
            optimizer: OptimizerConfig::default(),
            schedule: ScheduleConfig::default(),
            warm_start: WarmStartConfig::default(),
        }
    }
}

impl TrainerConfig {
    /// Checks every value and combination; returns all problems, so that they can be shown at once.
    pub fn problems(&self) -> Vec<TrainerError> {
        let mut found = Vec::new();
        check_counts(self, &mut found);
        check_loss(self, &mut found);
        check_optimizer(&self.optimizer, &self.schedule, &mut found);
        check_warm_start(&self.warm_start, &mut found);
        if let Err(error) = crate::device::DeviceChoice::parse(&self.device) {
            found.push(error);
        }
        found
    }

    /// The first of [`TrainerConfig::problems`], if any.
    ///
    /// # Errors
    /// [`TrainerError::InvalidConfig`] naming the setting.
    pub fn validate(&self) -> Result<(), TrainerError> {
        match self.problems().into_iter().next() {
            Some(problem) => Err(problem),
            None => Ok(()),
        }
    }
}

fn check_counts(config: &TrainerConfig, found: &mut Vec<TrainerError>) {
    let counts = [
        ("tokens_per_micro_batch", config.tokens_per_micro_batch),
        ("logits_chunk_tokens", config.logits_chunk_tokens),
        ("optimizer_steps_per_batch", config.optimizer_steps_per_batch),
        ("cpu_threads", usize::try_from(config.cpu_threads).unwrap_or(0)),
    ];
    for (field, value) in counts {
        if value == 0 {
            found.push(TrainerError::config(field, "must be at least 1"));
        }
    }
}

fn check_loss(config: &TrainerConfig, found: &mut Vec<TrainerError>) {
    let loss = &config.loss;
    if !(0.0..1.0).contains(&loss.clip_low) {
        found.push(TrainerError::config("loss.clip_low", format!("{} is not in [0, 1)", loss.clip_low)));
    }
    let not_negative = [
        ("loss.clip_high", loss.clip_high),
        ("loss.kl_coefficient", loss.kl_coefficient),
        ("loss.entropy_coefficient", loss.entropy_coefficient),
        ("advantage.std_epsilon", config.advantage.std_epsilon),
    ];
    for (field, value) in not_negative {
        if !(value >= 0.0 && value.is_finite()) {
            found.push(TrainerError::config(field, format!("{value} is not a finite number of at least 0")));
        }
    }
    if let Some(cap) = loss.importance_sampling_cap {
        if !(cap > 0.0 && cap.is_finite()) {
            found.push(TrainerError::config("loss.importance_sampling_cap", format!("{cap} is not above 0")));
        }
        if loss.old_logprobs == OldLogprobs::Rollout {
            found.push(TrainerError::config(
                "loss.importance_sampling_cap",
                "with old_logprobs = \"rollout\" the ratio already corrects for the engine; remove one of the two",
            ));
        }
    }
}

fn check_warm_start(config: &WarmStartConfig, found: &mut Vec<TrainerError>) {
    let below_one = [
        ("warm_start.beta1", config.beta1),
        ("warm_start.beta2", config.beta2),
        ("warm_start.warmup_fraction", config.warmup_fraction),
        ("warm_start.end_learning_rate_fraction", config.end_learning_rate_fraction),
    ];
    for (field, value) in below_one {
        if !(0.0..1.0).contains(&value) {
            found.push(TrainerError::config(field, format!("{value} is not in [0, 1)")));
        }
    }
    let not_negative =
        [("warm_start.weight_decay", config.weight_decay), ("warm_start.max_gradient_norm", config.max_gradient_norm)];
    for (field, value) in not_negative {
        if !(value >= 0.0 && value.is_finite()) {
            found.push(TrainerError::config(field, format!("{value} is not a finite number of at least 0")));
        }
    }
}

fn check_optimizer(optimizer: &OptimizerConfig, schedule: &ScheduleConfig, found: &mut Vec<TrainerError>) {
    for (field, value) in [("optimizer.beta1", optimizer.beta1), ("optimizer.beta2", optimizer.beta2)] {
        if !(0.0..1.0).contains(&value) {
            found.push(TrainerError::config(field, format!("{value} is not in [0, 1)")));
        }
    }
    let not_negative = [
        ("optimizer.learning_rate", optimizer.learning_rate),
        ("optimizer.epsilon", optimizer.epsilon),
        ("optimizer.weight_decay", optimizer.weight_decay),
        ("optimizer.max_gradient_norm", optimizer.max_gradient_norm),
        ("schedule.min_learning_rate", schedule.min_learning_rate),
    ];
    for (field, value) in not_negative {
        if !(value >= 0.0 && value.is_finite()) {
            found.push(TrainerError::config(field, format!("{value} is not a finite number of at least 0")));
        }
    }
    if schedule.shape == ScheduleShape::Cosine && schedule.decay_steps == 0 {
        found.push(TrainerError::config("schedule.decay_steps", "must be at least 1 with shape = \"cosine\""));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_survive_a_round_trip() {
        let config = TrainerConfig::default();
        assert!(config.problems().is_empty());
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<TrainerConfig>(&text).unwrap(), config);
        assert_eq!(serde_json::from_str::<TrainerConfig>("{}").unwrap(), config);
    }

    #[test]
    fn unknown_keys_and_bad_values_are_named() {
        assert!(serde_json::from_str::<TrainerConfig>(r#"{"loss": {"clip": 0.2}}"#).is_err());
        let cases = [
            (r#"{"device": "gpu"}"#, "device"),
            (r#"{"device": "cuda:x"}"#, "device"),
            (r#"{"tokens_per_micro_batch": 0}"#, "tokens_per_micro_batch"),
            (r#"{"cpu_threads": -1}"#, "cpu_threads"),
            (r#"{"loss": {"clip_low": 1.0}}"#, "loss.clip_low"),
            (r#"{"loss": {"kl_coefficient": -0.1}}"#, "loss.kl_coefficient"),
            (r#"{"loss": {"old_logprobs": "rollout"}}"#, "loss.importance_sampling_cap"),
            (r#"{"optimizer": {"beta2": 1.0}}"#, "optimizer.beta2"),
            (r#"{"schedule": {"shape": "cosine"}}"#, "schedule.decay_steps"),
        ];
        for (text, field) in cases {
            let config: TrainerConfig = serde_json::from_str(text).unwrap();
            let problem = config.validate().unwrap_err().to_string();
            assert!(problem.contains(field), "{text}: {problem}");
        }
    }
}
