//! Whether hosts and engines hold the weights that were published.
//!
//! A host computes the checksum of all tensors when it has applied a version, and the history has it beside the publisher's.
//! What an engine holds now is compared by a sample of its numbers with the files that it loaded.

use greenroom_messages::engine::{EnginePoolMessage, EngineVerdict, WeightsFound};
use greenroom_messages::steer::{Cell, ChecksumSight};

use super::Desk;
use crate::node::service;

/// How long engines may take to tell their numbers; less than the desk waits for a part.
const VERIFY_MS: u64 = 2_500;
/// The last version that each receiver applied, of the newest events: its name, its number where it is known to have been
/// published, its checksum and the publisher's.
const APPLIED: &str = "
    SELECT json_extract(e.body, '$.receiver'), json_extract(e.body, '$.version'), w.number,
           json_extract(e.body, '$.root_hash'), w.root_hash, max(e.seq)
    FROM events e LEFT JOIN weight_versions w ON w.version = json_extract(e.body, '$.version')
    WHERE e.event = 'weights_applied' AND e.seq > (SELECT max(seq) - 50000 FROM events)
    GROUP BY 1 ORDER BY 1";

impl Desk {
    /// All of them, receivers first.
    pub(super) async fn checksums(&self) -> Vec<ChecksumSight> {
        let engines = service::ENGINE_POOL.anywhere(&self.cluster);
        let (applied, verdicts) = tokio::join!(
            self.read(|db| db.ask(APPLIED)),
            self.part(engines, |reply| EnginePoolMessage::Verify(VERIFY_MS, reply)),
        );
        let mut rows: Vec<ChecksumSight> = match applied {
            Ok(answer) => answer.rows.iter().filter_map(|row| of_receiver(row)).collect(),
            Err(refusal) => vec![not_compared("receiver", "all", refusal.to_string())],
        };
        match verdicts {
            Ok(verdicts) => rows.extend(verdicts.into_iter().map(of_engine)),
            Err(reason) => rows.push(not_compared("engine", "all", reason)),
        }
        rows
    }
}

fn not_compared(kind: &str, holder: &str, detail: String) -> ChecksumSight {
    let (kind, holder) = (kind.to_owned(), holder.to_owned());
    ChecksumSight { kind, holder, version: None, found: "not_compared".to_owned(), detail }
}

fn of_receiver(row: &[Cell]) -> Option<ChecksumSight> {
    let [Cell::Text(holder), Cell::Text(version), number, Cell::Text(held), published, ..] = row else { return None };
    let (found, detail) = match published {
        Cell::Text(published) if published == held => ("same", String::new()),
        Cell::Text(published) => {
            ("different", format!("its tensors had checksum {held}, those that were published have {published}"))
        }
        _ => ("not_compared", format!("the history does not know that {version} was published")),
    };
    let version = match number {
        Cell::Integer(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let (kind, found) = ("receiver".to_owned(), found.to_owned());
    Some(ChecksumSight { kind, holder: holder.clone(), version, found, detail })
}

fn of_engine(verdict: EngineVerdict) -> ChecksumSight {
    let (found, detail) = match verdict.found {
        WeightsFound::Same => ("same", String::new()),
        WeightsFound::Different(what) => ("different", what),
        WeightsFound::NotCompared(reason) => ("not_compared", reason),
    };
    ChecksumSight {
        kind: "engine".to_owned(),
        holder: verdict.engine.to_string(),
        version: verdict.version.map(|version| version.number),
        found: found.to_owned(),
        detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receivers_checksum_is_compared_with_the_publishers() {
        let text = |text: &str| Cell::Text(text.to_owned());
        for (published, found) in [(text("aa"), "same"), (text("bb"), "different"), (Cell::Null, "not_compared")] {
            let row = [text("engine-0"), text("run:7"), Cell::Integer(7), text("aa"), published, Cell::Integer(90)];
            let seen = of_receiver(&row).unwrap();
            assert_eq!((seen.found.as_str(), seen.version), (found, Some(7)));
        }
    }
}
