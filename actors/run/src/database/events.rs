//! What the Journal writes: every event as it is, and its effect on the tables that people ask.

use greenroom_messages::run::{EventsFrom, NumberedEvent, RunEvent};
use rusqlite::{OptionalExtension, Transaction, params};

use super::{Database, snake};
use crate::RunError;

impl Database {
    /// Writes events in their order, in one transaction. Each has its date.
    pub fn record(&self, events: &[(u64, RunEvent)]) -> Result<(), RunError> {
        self.write(|transaction| {
            for (at_ms, event) in events {
                record_one(transaction, self.epoch, *at_ms, event)?;
            }
            Ok(())
        })
    }

    /// Writes events of another node, those that were not written before, and gives them back.
    pub fn record_from(&self, from: EventsFrom, at_ms: u64) -> Result<Vec<RunEvent>, RunError> {
        let EventsFrom { source, first, events } = from;
        self.write(|transaction| {
            let known = transaction
                .query_row("SELECT last FROM sources WHERE source = ?1", [&source], |row| row.get::<_, u64>(0))
                .optional()?;
            let last = first.saturating_add(events.len() as u64).saturating_sub(1);
            let written = known.map_or(0, |known| (known + 1).saturating_sub(first)) as usize;
            let new: Vec<RunEvent> = events.into_iter().skip(written).map(|NumberedEvent(event)| event).collect();
            for event in &new {
                record_one(transaction, self.epoch, at_ms, event)?;
            }
            if !new.is_empty() {
                transaction.execute("INSERT OR REPLACE INTO sources VALUES (?1, ?2)", params![source, last])?;
            }
            Ok(new)
        })
    }
}

fn record_one(transaction: &Transaction<'_>, epoch: u64, at_ms: u64, event: &RunEvent) -> rusqlite::Result<()> {
    let body = serde_json::to_value(event).unwrap_or_default();
    let name = body.get("event").and_then(|name| name.as_str()).unwrap_or("unknown").to_owned();
    transaction
        .prepare_cached("INSERT INTO events (epoch, at_ms, event, body) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![epoch, at_ms, name, body.to_string()])?;
    let seq = transaction.last_insert_rowid();
    match event {
        RunEvent::RolloutIssued { rollout, task } => {
            transaction.execute(
                "INSERT OR IGNORE INTO rollouts (rollout, group_id, epoch, task, state, issued_ms)
                 VALUES (?1, ?2, ?3, ?4, 'queued', ?5)",
                params![rollout.to_string(), rollout.group.to_string(), epoch, task.as_str(), at_ms],
            )?;
        }
        RunEvent::RolloutMoved { rollout, state } => {
            transaction.execute(
                "UPDATE rollouts SET state = ?2 WHERE rollout = ?1 AND ended_ms IS NULL",
                params![rollout.to_string(), snake(state)],
            )?;
        }
        RunEvent::TurnFinished { rollout, turn, engine, prompt_tokens, new_tokens, finish, version, generate_ms } => {
            transaction.execute(
                "INSERT OR REPLACE INTO turns VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                params![
                    rollout.to_string(),
                    turn,
                    engine.as_str(),
                    prompt_tokens,
                    new_tokens,
                    snake(finish),
                    version,
                    generate_ms,
                    at_ms
                ],
            )?;
        }
        RunEvent::RolloutEnded { rollout, outcome, reward, detail, turns } => {
            transaction.execute(
                "UPDATE rollouts SET state = 'ended', ended_ms = ?2, outcome = ?3, reward = ?4, detail = ?5, turns = ?6
                 WHERE rollout = ?1 AND ended_ms IS NULL",
                params![rollout.to_string(), at_ms, outcome, reward, detail, turns],
            )?;
        }
        RunEvent::LeaseClaimed { lease, rollout, image, sandbox, warm, waited_ms } => {
            transaction.execute(
                "INSERT OR REPLACE INTO leases (lease, epoch, rollout, image, sandbox, warm, waited_ms,
                     claimed_ms, claimed_seq)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                params![lease.0, epoch, rollout.to_string(), image, sandbox, warm, waited_ms, at_ms, seq],
            )?;
        }
        RunEvent::LeaseEnded { lease, reason } => {
            transaction.execute(
                "UPDATE leases SET ended_ms = ?2, ended_seq = ?4, reason = ?3 WHERE lease = ?1 AND ended_ms IS NULL",
                params![lease.0, at_ms, reason, seq],
            )?;
        }
        RunEvent::EngineMoved { engine, state, version, trouble } => {
            transaction.execute(
                "INSERT OR REPLACE INTO engines VALUES (?1, ?2, ?3, ?4, ?5)",
                params![engine.as_str(), snake(state), version.as_ref().map(ToString::to_string), trouble, at_ms],
            )?;
        }
        RunEvent::WeightsPublished { version, mode, bytes, root_hash } => {
            transaction.execute(
                "INSERT OR REPLACE INTO weight_versions VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![version.to_string(), version.number, mode, bytes, root_hash, at_ms],
            )?;
        }
        _ => {}
    }
    Ok(())
}
