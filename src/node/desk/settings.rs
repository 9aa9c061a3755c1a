//! Settings that may change while the run goes on: who reads each is asked, and told.

use greenroom_messages::rollout::RolloutManagerMessage;
use greenroom_messages::run::ConductorMessage;
use greenroom_messages::setting::{self, HOT_KEYS, HotKey};
use greenroom_messages::steer::{DeskRefusal, SettingSight};

use super::{Desk, cannot};
use crate::node::service;
use crate::shell::duration_ms;

impl Desk {
    /// All of them, with their present values.
    pub(super) async fn settings(&self) -> Vec<SettingSight> {
        let (rollouts, run) = tokio::join!(
            self.part(service::ROLLOUT_MANAGER.anywhere(&self.cluster), RolloutManagerMessage::Settings),
            self.part(service::CONDUCTOR.anywhere(&self.cluster), ConductorMessage::Settings),
        );
        let present = [rollouts.unwrap_or_default(), run.unwrap_or_default()].concat();
        let configured = self.configured();
        let of = |values: &[(String, u64)], hot: &HotKey| {
            values.iter().find(|(key, _)| key == hot.key).map(|(_, value)| *value)
        };
        let row = |hot: &HotKey| SettingSight {
            key: hot.key.to_owned(),
            value: of(&present, hot),
            configured: of(&configured, hot),
            meaning: hot.meaning.to_owned(),
        };
        HOT_KEYS.iter().map(row).collect()
    }

    fn configured(&self) -> Vec<(String, u64)> {
        let mut rollout = self.config.rollout.clone();
        rollout.guard_ms = Some(rollout.guard_ms());
        [setting::values(&rollout, "rollout"), setting::values(&self.config.run, "run")].concat()
    }

    /// Changes one; says what holds from now on.
    pub(super) async fn set(&self, key: &str, value: &str) -> Result<String, DeskRefusal> {
        let Some(hot) = HOT_KEYS.iter().find(|hot| hot.key == key) else { return Err(is_not_hot(key)) };
        let number = number(key, value).map_err(cannot)?;
        let told = match key.split_once('.') {
            Some(("rollout", _)) => {
                let manager = service::ROLLOUT_MANAGER.anywhere(&self.cluster);
                self.part(manager, |reply| RolloutManagerMessage::Set(key.to_owned(), number, reply)).await
            }
            _ => {
                let conductor = service::CONDUCTOR.anywhere(&self.cluster);
                self.part(conductor, |reply| ConductorMessage::Set(key.to_owned(), number, reply)).await
            }
        };
        told.map_err(cannot)?.map_err(cannot)?;
        let configured = self.configured().into_iter().find(|(configured, _)| configured == key);
        let again = configured.map_or_else(|| "the configuration's value".to_owned(), |(_, value)| value.to_string());
        Ok(format!("{key} is {number} now ({}); the next start of who reads it takes {again} again", hot.meaning))
    }
}

fn is_not_hot(key: &str) -> DeskRefusal {
    let hot = HOT_KEYS.map(|hot| hot.key).join(", ");
    cannot(format!(
        "{key} cannot be changed while a run goes on: it is read when the run begins, and a resumed run must be the same; \
         what can be changed: {hot}"
    ))
}

/// A whole number; of times, also with a unit.
fn number(key: &str, value: &str) -> Result<u64, String> {
    let is_time = key.ends_with("_ms");
    let timed = || duration_ms(value).filter(|_| is_time);
    let hint = if is_time { "milliseconds, or a duration such as 90s or 5m" } else { "a whole number" };
    value.parse().ok().or_else(timed).ok_or_else(|| format!("{key} is {value:?}: write {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_numbers_with_or_without_a_unit() {
        assert_eq!(number("run.train_timeout_ms", "5m"), Ok(300_000));
        assert_eq!(number("run.train_timeout_ms", "250"), Ok(250));
        assert_eq!(number("rollout.max_running", "8"), Ok(8));
        for (key, value) in
            [("rollout.max_running", "5m"), ("rollout.max_running", "-1"), ("run.train_timeout_ms", "x")]
        {
            assert!(number(key, value).unwrap_err().contains(key));
        }
        assert!(is_not_hot("run.steps").to_string().contains("rollout.max_running"));
    }
}
