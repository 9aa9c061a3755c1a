//! The learning rate as a pure function of the number of optimizer steps done.
//!
//! Nothing is accumulated, so a resumed run reads the very same rate from its step counter.

use crate::config::{ScheduleConfig, ScheduleShape};

/// The rate of optimizer step `step` (from 0) with peak `learning_rate`.
pub fn learning_rate(learning_rate: f64, schedule: &ScheduleConfig, step: u64) -> f64 {
    if step < schedule.warmup_steps {
        return learning_rate * (step + 1) as f64 / schedule.warmup_steps as f64;
    }
    match schedule.shape {
        ScheduleShape::Constant => learning_rate,
        ScheduleShape::Cosine => {
            let done = (step - schedule.warmup_steps).min(schedule.decay_steps) as f64;
            let progress = done / schedule.decay_steps.max(1) as f64;
            let factor = 0.5 * (1.0 + (std::f64::consts::PI * progress).cos());
            schedule.min_learning_rate + (learning_rate - schedule.min_learning_rate) * factor
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_then_constant_or_cosine() {
        let constant = ScheduleConfig { warmup_steps: 4, ..ScheduleConfig::default() };
        let cosine =
            ScheduleConfig { shape: ScheduleShape::Cosine, warmup_steps: 4, decay_steps: 10, min_learning_rate: 0.2 };
        let cases = [
            (&constant, 0, 0.25),
            (&constant, 3, 1.0),
            (&constant, 4, 1.0),
            (&constant, 1000, 1.0),
            (&cosine, 1, 0.5),
            (&cosine, 4, 1.0),
            (&cosine, 9, 0.6),
            (&cosine, 14, 0.2),
            (&cosine, 99, 0.2),
        ];
        for (schedule, step, expected) in cases {
            let found = learning_rate(1.0, schedule, step);
            assert!((found - expected).abs() < 1e-12, "step {step} of {schedule:?}: {found} instead of {expected}");
        }
    }
}
