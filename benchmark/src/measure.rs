//! Time, processor time, and what is told of a machine.
//!
//! Wall time tells what a user waits for; processor time of the process tells what it cost, and hardly changes when others
//! use the machine at the same time. Both are taken together, so that neither stands alone.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use tokio::time::Instant;

/// Processor time of this process so far, its threads together, seconds.
pub fn processor_s() -> f64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(f64::NAN, |usage| {
        (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6
    })
}

/// A span of time.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// What a clock on the wall says, seconds.
    pub wall_s: f64,
    /// Processor time, seconds.
    pub processor_s: f64,
}

/// Measures one span.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    began: Instant,
    processor_s: f64,
}

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Self {
        Self { began: Instant::now(), processor_s: processor_s() }
    }

    /// The span from start to now.
    pub fn cost(&self) -> Cost {
        Cost { wall_s: self.began.elapsed().as_secs_f64(), processor_s: processor_s() - self.processor_s }
    }
}

/// The part `fraction` (0 to 1) of the values is at most this; NaN without values.
pub fn quantile(values: &[f64], fraction: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (sorted.len().saturating_sub(1) as f64 * fraction).round() as usize;
    sorted.get(place).copied().unwrap_or(f64::NAN)
}

/// The middle value.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Processor, cores, load and build, in words.
pub fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default().to_owned();
    let build = if cfg!(debug_assertions) { "the dev profile" } else { "the release profile" };
    format!("{}, {cores} cores, load {load} at the end, {build}", name.trim_start_matches([' ', '\t', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let values = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!((median(&values), quantile(&values, 0.99), quantile(&values, 0.0)), (3.0, 5.0, 1.0));
        assert!(median(&[]).is_nan());
    }
}
