//! Settings that may change while the run goes on: who reads each is asked, and told.

use greenroom_messages::rollout::RolloutManagerMessage;
use greenroom_messages::run::ConductorMessage;
use greenroom_messages::setting::{self, HOT_KEYS, HotKey};
use greenroom_messages::steer::{DeskRefusal, SettingSight};
use serde_json::Value;

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

    fn is_not_hot(&self, key: &str) -> DeskRefusal {
        cannot(is_not_hot(key, &serde_json::to_value(&self.config).unwrap_or_default()))
    }

    /// Changes one; says what holds from now on.
    pub(super) async fn set(&self, key: &str, value: &str) -> Result<String, DeskRefusal> {
        let Some(hot) = HOT_KEYS.iter().find(|hot| hot.key == key) else { return Err(self.is_not_hot(key)) };
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

/// Why a key cannot be set: there is none such, or it is one that stays; `known` are the configuration's.
fn is_not_hot(key: &str, known: &Value) -> String {
    let hot = HOT_KEYS.map(|hot| hot.key);
    let is_known = key.split('.').try_fold(known, |place, part| place.get(part)).is_some();
    if is_known {
        let hot = hot.join(", ");
        return format!(
            "{key} cannot be changed while a run goes on: it is read when the run begins, and a resumed run must be the same; \
             what can be changed: {hot}"
        );
    }
    let mut keys: Vec<String> = hot.map(str::to_owned).to_vec();
    keys_of(known, "", &mut keys);
    let nearness = |known: &String| strsim::jaro_winkler(known, key);
    let nearest = keys.into_iter().max_by(|one, other| nearness(one).total_cmp(&nearness(other)));
    match nearest.filter(|near| nearness(near) > 0.75) {
        Some(near) => format!("unknown key {key}: did you mean {near}?"),
        None => format!("unknown key {key}; what can be changed: {}", hot.join(", ")),
    }
}

/// The keys of all values of a tree.
fn keys_of(tree: &Value, at: &str, keys: &mut Vec<String>) {
    for (name, value) in tree.as_object().into_iter().flatten() {
        let key = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
        if value.is_object() { keys_of(value, &key, keys) } else { keys.push(key) }
    }
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
    }

    #[test]
    fn a_key_that_there_is_not_is_told_from_one_that_stays() {
        let known = serde_json::json!({ "run": { "steps": 3 }, "rollout": { "max_running": 2 } });
        let stays = is_not_hot("run.steps", &known);
        assert!(stays.contains("read when the run begins") && stays.contains("rollout.max_running"), "{stays}");
        let near = is_not_hot("rollout.max_runing", &known);
        assert_eq!(near, "unknown key rollout.max_runing: did you mean rollout.max_running?");
        let of_others = is_not_hot("run.stpes", &known);
        assert_eq!(of_others, "unknown key run.stpes: did you mean run.steps?");
        let far = is_not_hot("zzz", &known);
        assert!(far.starts_with("unknown key zzz; what can be changed: rollout.max_running"), "{far}");
    }
}
