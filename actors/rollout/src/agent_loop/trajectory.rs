//! Keeps the trajectory of an episode as a file, in mini-swe-agent's format 1.1, so that its inspector opens it.

use std::path::{Path, PathBuf};

use greenroom_core::{in_place, spawn_blocking_named};

use crate::agent::Agent;
use crate::manager::Issue;

/// Writes `DIR/{rollout}.traj.json`. The error is in words.
pub(super) async fn save(dir: &Path, issue: &Issue, agent: &Agent) -> Result<(), String> {
    let path = dir.join(format!("{}.traj.json", issue.rollout));
    let text = in_place(|| {
        let mut trajectory = agent.to_trajectory();
        trajectory["instance_id"] = issue.task.id.as_str().into();
        serde_json::to_string_pretty(&trajectory).map(|text| text + "\n")
    });
    let text = text.map_err(|error| error.to_string())?;
    let name = format!("trajectory-{}", issue.rollout);
    let written = spawn_blocking_named(name, move || write(&path, &text)).await;
    written.ok().flatten().unwrap_or_else(|| Err("writing it panicked".to_owned()))
}

fn write(path: &PathBuf, text: &str) -> Result<(), String> {
    let in_words = |error: std::io::Error| format!("{}: {error}", path.display());
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(in_words)?;
    }
    std::fs::write(path, text).map_err(in_words)
}
