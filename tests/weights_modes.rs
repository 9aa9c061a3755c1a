//! Deltas are lossless: whichever way weights travel, an engine holds the same bytes at every version.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "the test's own process is real: it waits in real time, and fails by panicking"
)]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Child;

use support::ledger::Ledger;
use support::{Run, finish_child};

/// The newest version whose weights the engine's local checkpoint holds, and that checkpoint's files.
fn received(run: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    support::tree(&run.join("weights/received"))
}

fn follow(run: &Run, child: Child) -> BTreeMap<String, String> {
    let output = finish_child(child);
    assert!(output.status.success(), "{}", support::text(&output.stderr));
    let ledger = Ledger::open(&run.dir());
    let numbers = ledger.column("SELECT number FROM weight_versions ORDER BY number");
    let hashes = ledger.column("SELECT root_hash FROM weight_versions ORDER BY number");
    numbers.into_iter().zip(hashes).collect()
}

#[test]
fn delta_and_full_give_the_engine_the_same_bytes_at_every_version() {
    let mut seen = Vec::new();
    for mode in ["full", "delta"] {
        let run = Run::new(&[&format!("weights.mode={mode}")]);
        let versions = follow(&run, Run::spawn(&mut run.begin()));
        assert_eq!(versions.len(), 4, "the initial policy and three steps");
        let ledger = Ledger::open(&run.dir());
        let modes = ledger.column("SELECT mode FROM weight_versions ORDER BY number");
        assert!(modes[1..].iter().all(|travelled| travelled == mode), "{modes:?}");
        // What the receiver verified on its disk is what was published, version by version.
        let applied = ledger.column(
            "SELECT json_extract(body, '$.root_hash') FROM events WHERE event = 'weights_applied' ORDER BY seq",
        );
        assert_eq!(applied, ledger.column("SELECT root_hash FROM weight_versions ORDER BY number"));
        seen.push((versions, received(&run.dir()), ledger.column("SELECT bytes FROM weight_versions ORDER BY number")));
    }
    let (full, delta) = (&seen[0], &seen[1]);
    assert_eq!(full.0, delta.0, "the same root hash at every version");
    assert_eq!(full.1.keys().collect::<Vec<_>>(), delta.1.keys().collect::<Vec<_>>());
    assert!(full.1 == delta.1, "the received files differ");
    let distinct: std::collections::BTreeSet<&String> = full.0.values().collect();
    assert!(distinct.len() > 1, "the weights must change, or any delta would do: {:?}", full.0);
}
