//! `greenroom check runs/NAME`: the invariants over a real run's history.

use std::path::Path;
use std::process::ExitCode;

use greenroom::StartError;
use greenroom::run::{Database, check};
use greenroom::up::{RunPlace, check_history, check_not_lost};

pub(super) fn run(directory: &Path) -> anyhow::Result<ExitCode> {
    let file = directory.join("run.db");
    if !file.is_file() {
        return Err(no_run(directory).into());
    }
    // the database needs a clock, and a clock needs a runtime
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _guard = runtime.enter();
    if std::fs::metadata(&file).is_ok_and(|metadata| metadata.len() == 0) {
        return Err(match check_not_lost(directory) {
            Ok(()) => no_run(directory),
            Err(lost) => lost,
        }
        .into());
    }
    let history = check::history(&Database::open_to_read(&file)?)?;
    check_history(directory, &history)?;
    let violations = check::violations(&history);
    for violation in &violations {
        super::print(&format!("GR0904: {}: {}", violation.invariant, violation.detail))?;
    }
    eprintln!(
        "{} rollouts, {} groups, {} steps, {} leases: {} of {} rules broken",
        history.rollouts.len(),
        history.groups.len(),
        history.steps.iter().filter(|(step, _)| *step > 0).count(), // step 0 is what training starts from
        history.leases.len(),
        violations.iter().map(|violation| violation.invariant).collect::<std::collections::BTreeSet<_>>().len(),
        check::INVARIANTS.len()
    );
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The error that names what lies beside the directory that is no run.
fn no_run(directory: &Path) -> StartError {
    let whole = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let name = whole.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let runs_dir = whole.parent().unwrap_or(&whole).to_owned();
    RunPlace { runs_dir, name, resume: true }.no_run()
}
