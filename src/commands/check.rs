//! `greenroom check runs/NAME`: the invariants over a real run's history.

use std::path::Path;
use std::process::ExitCode;

use greenroom::run::{Database, check};

pub(super) fn run(directory: &Path) -> anyhow::Result<ExitCode> {
    let file = directory.join("run.db");
    if !file.exists() {
        anyhow::bail!("GR0203: {} holds no run", directory.display());
    }
    // the database needs a clock, and a clock needs a runtime
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _guard = runtime.enter();
    let history = check::history(&Database::open_to_read(&file)?)?;
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
