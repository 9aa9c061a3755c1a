//! Settings that may change while a run goes on: all are whole numbers, and none of them is part of what a run is.
//!
//! Invariant: a key is in [`HOT_KEYS`] only if the part that reads it does so each time anew. What is set holds until that
//! part is started again, which takes the configuration's value.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A setting that may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotKey {
    /// Its key, such as `rollout.max_running`.
    pub key: &'static str,
    /// What it means, and from when on a change counts.
    pub meaning: &'static str,
}

const fn hot(key: &'static str, meaning: &'static str) -> HotKey {
    HotKey { key, meaning }
}

/// All of them.
pub const HOT_KEYS: [HotKey; 15] = [
    hot("rollout.max_running", "rollouts that run at once; those that run go on"),
    hot("rollout.max_attempts", "how often one sample is tried when infrastructure fails"),
    hot("rollout.retry_backoff_ms", "the first wait before a sample is tried again"),
    hot("rollout.guard_ms", "the longest a rollout may take; for those that begin from now on"),
    hot("rollout.claim_timeout_ms", "the longest wait for a sandbox; for rollouts that begin from now on"),
    hot("rollout.turn_timeout_ms", "the longest a turn may take; for rollouts that begin from now on"),
    hot("run.batch_retries", "how often a batch is made again before the run ends with an error"),
    hot("run.step_retries", "how often training and publishing are tried again before the run ends with an error"),
    hot("run.keep_checkpoints", "how many checkpoints are kept, 0 for all; from the next step on"),
    hot("run.batch_silence_ms", "no group finished for this long: the run ends with an error"),
    hot("run.train_timeout_ms", "deadline of an optimizer step; from the next one on"),
    hot("run.weights_timeout_ms", "deadline of saving, exporting and publishing, each; from the next one on"),
    hot("run.update_timeout_ms", "deadline of bringing the fleet to a version; from the next one on"),
    hot("run.absence_timeout_ms", "how long a part on another node may be away; from the next wait on"),
    hot(
        "run.warn_after_steps_without_signal",
        "a warning after so many steps without anything to learn from; 0 for none",
    ),
];

/// The settings of one section with one value changed.
///
/// # Errors
/// What is wrong with key or value, in words.
pub fn changed<T: Serialize + DeserializeOwned>(config: &T, section: &str, key: &str, value: u64) -> Result<T, String> {
    let field = key.strip_prefix(section).and_then(|rest| rest.strip_prefix('.'));
    let field = field.filter(|_| HOT_KEYS.iter().any(|hot| hot.key == key));
    let field = field.ok_or_else(|| format!("{key} cannot be changed here"))?;
    let mut values = serde_json::to_value(config).map_err(|error| error.to_string())?;
    let fields = values.as_object_mut().ok_or_else(|| format!("{section} is no section"))?;
    fields.insert(field.to_owned(), value.into());
    serde_json::from_value(values).map_err(|error| format!("{key} cannot be {value}: {error}"))
}

/// The present values of one section's hot keys; those that are not set are left out.
pub fn values<T: Serialize>(config: &T, section: &str) -> Vec<(String, u64)> {
    let json = serde_json::to_value(config).unwrap_or_default();
    let value = |hot: &HotKey| {
        let field = hot.key.strip_prefix(section)?.strip_prefix('.')?;
        Some((hot.key.to_owned(), json.get(field)?.as_u64()?))
    };
    HOT_KEYS.iter().filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Section {
        max_running: u32,
        guard_ms: Option<u64>,
        shuffle: bool,
    }

    #[test]
    fn one_value_changes_and_only_where_it_may() {
        let section = Section { max_running: 3, guard_ms: None, shuffle: true };
        let now = changed(&section, "rollout", "rollout.guard_ms", 9).unwrap();
        assert_eq!(now, Section { guard_ms: Some(9), ..section });
        assert_eq!(
            values(&now, "rollout"),
            [("rollout.max_running".to_owned(), 3), ("rollout.guard_ms".to_owned(), 9)]
        );
        for (key, value) in [("rollout.shuffle", 1), ("run.step_retries", 1), ("rollout.max_running", 1 << 40)] {
            assert!(changed(&now, "rollout", key, value).unwrap_err().contains(key), "{key}");
        }
    }
}
