//! The same seed gives the same run: metrics and weights, to the last bit, in the `sync` schedule on a batch-invariant
//! engine, however long each rollout took and whichever finished first.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "the test's own process is real: it waits in real time, and fails by panicking"
)]

mod support;

use std::path::Path;

use support::{Run, succeed, tree};

fn last_weights(run: &Run) -> Vec<u8> {
    let exports = tree(&run.dir().join("weights/export"));
    exports.into_iter().rfind(|(path, _)| path.ends_with("model.safetensors")).unwrap().1
}

fn moments(run: &Run) -> std::collections::BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut files = tree(&run.dir().join("checkpoints/step-000003"));
    files.retain(|path, _| path.extension().is_some_and(|extension| extension == "safetensors"));
    assert!(files.contains_key(Path::new("masters.safetensors")), "{:?}", files.keys());
    files
}

#[test]
fn the_same_seed_gives_the_same_metrics_and_weights_whatever_the_timing() {
    let settings =
        ["run.evaluation.before_and_after=true", "run.evaluation.samples_per_task=1", "run.evaluation.tasks=3"];
    let wide = Run::new(&settings);
    succeed(&mut wide.begin());
    // Fewer at once: other neighbours in every decoding step, another order of ends, cold instead of warm sandboxes.
    let mut narrow = settings.to_vec();
    narrow.extend(["rollout.max_running=3", "sandbox.pool.warm_boxes=0", "engine.embedded.max_running_requests=2"]);
    let narrow = Run::new(&narrow);
    succeed(&mut narrow.begin());
    assert_eq!(wide.metrics().len(), 3);
    let learnt = wide.metrics().iter().any(|line| line["train"]["grad_norm"].as_f64() > Some(0.0));
    assert!(learnt, "the policy must learn something, or all runs are the same: {:?}", wide.metrics());
    assert_eq!(wide.metrics(), narrow.metrics());
    assert!(last_weights(&wide) == last_weights(&narrow), "the exported weights differ");
    assert!(moments(&wide) == moments(&narrow), "masters or moments differ");

    let other = Run::new(&["seed=1"]);
    succeed(&mut other.begin());
    assert_ne!(wide.metrics(), other.metrics(), "another seed draws other tokens");
}
