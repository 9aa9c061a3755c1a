//! The history of one rollout in words: what befell it, in order of time, and what became of it.

use greenroom_messages::steer::{Cell, WhyLine};
use greenroom_messages::{Purpose, RolloutId};
use rusqlite::types::Value;
use serde_json::Value as Json;

use super::look::{DatabaseReader, number, real, text};
use crate::RunError;

/// The most events of one rollout that are told.
const MOST_EVENTS: usize = 1_000;

impl DatabaseReader {
    /// Everything that the database knows of a rollout, in order of time; empty for one that never was. Blocks.
    ///
    /// # Errors
    /// [`RunError::Database`].
    pub fn story(&self, rollout: RolloutId, now_ms: u64) -> Result<Vec<WhyLine>, RunError> {
        let name = rollout.to_string();
        let group = rollout.group.to_string();
        let row = "SELECT task, state, issued_ms, ended_ms, outcome, reward, detail, trained_step, epoch FROM rollouts
                   WHERE rollout = ?1";
        let rollouts = self.query(row, &[Value::Text(name.clone())], 1)?.rows;
        let Some(row) = rollouts.first() else { return Ok(Vec::new()) };
        let mut lines = self.before(rollout, number(row, 2))?;
        lines.extend(self.told_by_events(&name)?);
        let groups = "SELECT outcome, reason, finished_ms FROM groups WHERE group_id = ?1";
        let groups = self.query(groups, &[Value::Text(group.clone())], 1)?.rows;
        if let Some(found) = groups.first()
            && let Some(outcome) = text(found, 0)
        {
            let reason = text(found, 1).map(|reason| format!(": {reason}")).unwrap_or_default();
            lines.push(WhyLine { at_ms: number(found, 2), text: format!("its group {group} was {outcome}{reason}") });
        }
        // stable: of one and the same millisecond, the history knows the order
        lines.sort_by_key(|line| line.at_ms);
        // what became of it is the last line, and so it is not older than those before
        let last_ms = lines.iter().map(|line| line.at_ms).chain([number(row, 2), number(row, 3)]).max();
        let may_be_trained_on = self.may_be_trained_on(rollout, row, groups.first())?;
        lines.push(WhyLine { at_ms: last_ms.unwrap_or(0), text: verdict(row, may_be_trained_on, now_ms) });
        Ok(lines)
    }

    /// Whether a rollout that ended may still be trained on: it and its group are fit for it, its batch was not trained on,
    /// and the run has not ended.
    fn may_be_trained_on(&self, rollout: RolloutId, row: &[Cell], group: Option<&Vec<Cell>>) -> Result<bool, RunError> {
        let is_fit = rollout.group.batch.purpose == Purpose::Train
            && matches!(text(row, 4).as_deref(), Some("completed" | "truncated"));
        let is_dropped = group.and_then(|group| text(group, 0)).is_some_and(|outcome| outcome == "dropped");
        if !is_fit || is_dropped {
            return Ok(false);
        }
        let batch = Value::Text(rollout.group.batch.to_string());
        let is_trained = !self.query("SELECT step FROM steps WHERE batch = ?1", &[batch], 1)?.rows.is_empty();
        let last = "SELECT coalesce(ending, '') FROM processes ORDER BY epoch DESC LIMIT 1";
        let ending = self.query(last, &[], 1)?.rows.first().and_then(|last| text(last, 0));
        Ok(!is_trained && ending.as_deref() != Some("completed"))
    }

    /// The attempts at the same sample before this one.
    fn before(&self, rollout: RolloutId, issued_ms: u64) -> Result<Vec<WhyLine>, RunError> {
        let mut lines = Vec::new();
        for attempt in 0..rollout.attempt.min(MOST_EVENTS as u32) {
            let earlier = RolloutId { attempt, ..rollout }.to_string();
            let sql = "SELECT outcome, detail, ended_ms FROM rollouts WHERE rollout = ?1";
            for row in self.query(sql, &[Value::Text(earlier.clone())], 1)?.rows {
                let outcome = text(&row, 0).unwrap_or_else(|| "open".to_owned());
                let detail = text(&row, 1).unwrap_or_default();
                let at_ms = number(&row, 2).min(issued_ms);
                lines.push(WhyLine {
                    at_ms,
                    text: format!("an earlier attempt, {earlier}, ended as {outcome} ({detail})"),
                });
            }
        }
        Ok(lines)
    }

    fn told_by_events(&self, name: &str) -> Result<Vec<WhyLine>, RunError> {
        // leases end by their own number only
        let sql = "SELECT at_ms, body FROM events WHERE body LIKE '%' || ?1 || '%' OR (event = 'lease_ended' AND
                   json_extract(body, '$.lease') IN (SELECT lease FROM leases WHERE rollout = ?1)) ORDER BY seq";
        let answer = self.query(sql, &[Value::Text(name.to_owned())], MOST_EVENTS)?;
        let told = |row: &Vec<Cell>| {
            let body: Json = serde_json::from_str(&text(row, 1)?).ok()?;
            Some(WhyLine { at_ms: number(row, 0), text: in_words(&body)? })
        };
        Ok(answer.rows.iter().filter_map(told).collect())
    }
}

/// An event of a rollout in words.
fn in_words(body: &Json) -> Option<String> {
    let word = |key: &str| match &body[key] {
        Json::String(text) => text.clone(),
        Json::Null => "none".to_owned(),
        other => other.to_string(),
    };
    Some(match body["event"].as_str()? {
        "rollout_issued" => format!("it was issued, for task {}", word("task")),
        "rollout_moved" => match word("state").as_str() {
            "queued" => "it waits for admission".to_owned(),
            "claiming" => "it waits for a sandbox".to_owned(),
            "setting_up" => "its task is set up in the sandbox".to_owned(),
            "generating" => "it waits for a turn".to_owned(),
            "executing" => "its command runs".to_owned(),
            "grading" => "it is graded".to_owned(),
            other => format!("it is {other}"),
        },
        "turn_finished" => format!(
            "turn {} came from {} with weights {}: {} new tokens after {} of prompt, in {} ms, ended by {}",
            word("turn"),
            word("engine"),
            word("version"),
            word("new_tokens"),
            word("prompt_tokens"),
            word("generate_ms"),
            word("finish")
        ),
        "rollout_ended" => match &body["reward"] {
            Json::Null => format!("it ended as {} ({})", word("outcome"), word("detail")),
            reward => format!("it ended as {} ({}) with reward {reward}", word("outcome"), word("detail")),
        },
        "lease_claimed" => format!(
            "it was given lease {}: a {} box of image {}, after {} ms",
            word("lease"),
            if body["warm"] == true { "warm" } else { "new" },
            word("image"),
            word("waited_ms")
        ),
        "lease_ended" => format!("lease {} ended: {}", word("lease"), word("reason")),
        "ask_failed" => format!("a question of it had no answer: {}", word("error")),
        "steered" => format!("{} steered: {}", word("by"), word("what")),
        "note" => format!("{} says: {}", word("source"), word("text")),
        _ => return None,
    })
}

/// What became of it: columns task, state, issued, ended, outcome, reward, detail, trained step, epoch.
fn verdict(row: &[Cell], may_be_trained_on: bool, now_ms: u64) -> String {
    let state = text(row, 1).unwrap_or_default();
    let Some(outcome) = text(row, 4) else {
        let age_s = now_ms.saturating_sub(number(row, 2)) / 1_000;
        return format!("so far: {state}, issued {age_s} s ago");
    };
    let graded = real(row, 5).map_or_else(String::new, |reward| format!(", reward {reward}"));
    let trained = match row.get(7) {
        Some(Cell::Integer(step)) => format!("it was trained on in step {step}"),
        _ if may_be_trained_on => "it is not trained on yet".to_owned(),
        _ => "it was not trained on".to_owned(),
    };
    format!("in the end: {outcome}{graded}; {trained}")
}

#[cfg(test)]
mod tests {
    use greenroom_core::Clock;
    use greenroom_messages::run::RunEvent;
    use greenroom_messages::{BatchId, GroupId, LeaseId, Purpose, RunId, TaskId};

    use super::*;
    use crate::Database;

    #[test]
    fn a_rollouts_history_is_told_in_order_and_without_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.db");
        let database = Database::open(&path, &RunId::new("mine"), 7, "", Clock::system()).unwrap();
        let group = GroupId { batch: BatchId { purpose: Purpose::Train, number: 1 }, index: 0 };
        let id = |sample| RolloutId { group, sample, attempt: 0 };
        let issued = |sample| RunEvent::RolloutIssued { rollout: id(sample), task: TaskId::new("fix-it") };
        let claimed = |lease, sample| RunEvent::LeaseClaimed {
            lease: LeaseId(lease),
            rollout: id(sample),
            image: "graph".into(),
            sandbox: "box".into(),
            warm: true,
            waited_ms: 3,
        };
        let ended = |lease| RunEvent::LeaseEnded { lease: LeaseId(lease), reason: "released".into() };
        let over = RunEvent::RolloutEnded {
            rollout: id(0),
            outcome: "completed".into(),
            reward: Some(1.0),
            detail: "Submitted".into(),
            turns: 1,
        };
        let events = [issued(0), issued(1), claimed(7, 0), claimed(8, 1), over, ended(8), ended(7)];
        let dated: Vec<_> = events.into_iter().enumerate().map(|(at, event)| (at as u64 + 1, event)).collect();
        database.record(&dated).unwrap();
        let story = DatabaseReader::new(&path).story(id(0), 100).unwrap();
        let told: Vec<String> = story.iter().map(|line| format!("{} {}", line.at_ms, line.text)).collect();
        let expected = [
            "1 it was issued, for task fix-it",
            "3 it was given lease 7: a warm box of image graph, after 3 ms",
            "5 it ended as completed (Submitted) with reward 1.0",
            "7 lease 7 ended: released",
            "7 in the end: completed, reward 1; it is not trained on yet",
        ];
        assert_eq!(told, expected);
        database.end_process("completed").unwrap();
        let over = DatabaseReader::new(&path).story(id(0), 100).unwrap();
        assert_eq!(over.last().unwrap().text, "in the end: completed, reward 1; it was not trained on");
        let open = DatabaseReader::new(&path).story(id(1), 2_002).unwrap();
        assert_eq!(open.last().unwrap().text, "so far: queued, issued 2 s ago");
        assert!(DatabaseReader::new(&path).story(id(9), 1).unwrap().is_empty());
    }
}
