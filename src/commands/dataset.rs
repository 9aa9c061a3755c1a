//! `greenroom dataset`: data sets, made.

use std::process::ExitCode;

use greenroom::core::Seed;
use greenroom::rollout::dataset::make;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::DatasetCommand;

pub(super) fn run(command: DatasetCommand) -> anyhow::Result<ExitCode> {
    match command {
        DatasetCommand::Quickstart { out, seed } => {
            let bar = ProgressBar::new(1);
            bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}")?);
            let made = make::quickstart(&out, Seed::new(seed), &|progress| {
                bar.set_length(progress.total.into());
                bar.set_position(progress.done.into());
                bar.set_message(progress.what);
            })?;
            bar.finish_and_clear();
            eprintln!(
                "{} tasks to train on, {} held out, each checked: its fix earns 1, nothing earns 0",
                made.rl_tasks, made.heldout_tasks
            );
            super::print(&out.display().to_string())
        }
    }
}
