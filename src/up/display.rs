//! The live display of a run: one bar on a terminal, plain lines elsewhere. It talks on stderr; stdout is for data.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use greenroom_core::spawn_named;
use greenroom_messages::run::RunStatus;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Talk;

/// The display; lines said through it stand above the bar.
#[derive(Clone)]
pub struct Display {
    bar: ProgressBar,
}

impl Default for Display {
    fn default() -> Self {
        Self::new()
    }
}

impl Display {
    /// A display on stderr: a bar where that is a terminal.
    pub fn new() -> Self {
        let target =
            if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(1), target);
        let style = ProgressStyle::with_template("{elapsed_precise} {bar:30} {pos}/{len} steps  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar }
    }

    /// How lines are said: above the bar, or as they are.
    pub fn talk(&self) -> Talk {
        let bar = self.bar.clone();
        Arc::new(move |line: &str| {
            if bar.is_hidden() {
                eprintln!("{line}");
            } else {
                bar.println(line);
            }
        })
    }

    /// Follows a run until it has ended.
    pub fn follow(&self, mut progress: watch::Receiver<RunStatus>) -> JoinHandle<Option<()>> {
        let bar = self.bar.clone();
        spawn_named("display", async move {
            loop {
                let status = progress.borrow_and_update().clone();
                bar.set_length(status.steps.max(1));
                bar.set_position(status.step.0);
                bar.set_message(in_words(&status));
                if status.ended || progress.changed().await.is_err() {
                    bar.finish_and_clear();
                    return;
                }
            }
        })
    }
}

fn in_words(status: &RunStatus) -> String {
    let groups =
        if status.groups > 0 { format!(" {}/{} groups", status.groups_finished, status.groups) } else { String::new() };
    let reward = status.reward.map_or_else(String::new, |reward| format!("  reward {reward:.2}"));
    let before = status.eval_before.map_or_else(String::new, |before| format!(" (evaluated before: {before:.2})"));
    format!("{}{groups}{reward}{before}", status.phase)
}
