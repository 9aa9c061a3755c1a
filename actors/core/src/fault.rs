//! Named places where a test or a simulation makes something go wrong.
//!
//! Code asks `faults.hit("weights.publish.after_manifest")` at a place where a crash or an error matters; usually the answer
//! is `None` and costs one atomic load. A plan says which visit of which point does what. `Crash` ends the process as
//! SIGKILL would (no destructors): only a real process may be given such a plan.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What a fault point does to its visitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails with the caller's own error type.
    Fail,
    /// The operation is delayed by this many milliseconds first.
    DelayMs(u64),
    /// The process ends at once.
    Crash,
}

/// The fault plan could not be read (GR0006).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault plan entry {entry:?} is not point=action@count (action: fail, crash, delay:MILLISECONDS)")]
pub struct FaultPlanError {
    /// The entry that could not be read.
    pub entry: String,
}

#[derive(Debug, Default)]
struct Plan {
    planned: BTreeMap<String, Vec<(u64, Fault)>>,
    visits: BTreeMap<String, u64>,
}

/// The fault points' plan; cheap to clone, shared by all clones.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    plan: Option<Arc<Mutex<Plan>>>,
}

impl Faults {
    /// No fault ever fires.
    pub fn none() -> Self {
        Self::default()
    }

    /// Reads a plan such as `run.commit.before=crash@2,weights.apply=fail@1`; the count is the visit that fires, from 1.
    pub fn parse(plan: &str) -> Result<Self, FaultPlanError> {
        let faults = Self { plan: Some(Arc::default()) };
        for entry in plan.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (point, visit, fault) = parse_entry(entry).ok_or_else(|| FaultPlanError { entry: entry.to_owned() })?;
            faults.plan_fault(point, visit, fault);
        }
        Ok(faults)
    }

    /// Plans that the `visit`-th visit (from 1) of `point` meets `fault`. Has no effect on [`Faults::none`].
    pub fn plan_fault(&self, point: &str, visit: u64, fault: Fault) {
        if let Some(plan) = &self.plan {
            let mut plan = plan.lock().unwrap_or_else(PoisonError::into_inner);
            plan.planned.entry(point.to_owned()).or_default().push((visit, fault));
        }
    }

    /// Visits a point. `Crash` does not return; `Fail` and `DelayMs` are the caller's to act out.
    pub fn hit(&self, point: &str) -> Option<Fault> {
        let mut plan = self.plan.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let visits = plan.visits.entry(point.to_owned()).or_default();
        *visits += 1;
        let visit = *visits;
        let fault = plan.planned.get(point)?.iter().find(|(at, _)| *at == visit)?.1.clone();
        if fault == Fault::Crash {
            std::process::abort();
        }
        Some(fault)
    }
}

fn parse_entry(entry: &str) -> Option<(&str, u64, Fault)> {
    let (point, action) = entry.split_once('=')?;
    let (action, visit) = action.split_once('@').unwrap_or((action, "1"));
    let fault = match action.split_once(':') {
        None if action == "fail" => Fault::Fail,
        None if action == "crash" => Fault::Crash,
        Some(("delay", milliseconds)) => Fault::DelayMs(milliseconds.parse().ok()?),
        _ => return None,
    };
    Some((point, visit.parse().ok().filter(|visit| *visit > 0)?, fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_fires_on_the_planned_visit_only() {
        let faults = Faults::parse("a.b=fail@2, c=delay:30").unwrap();
        assert_eq!([faults.hit("a.b"), faults.hit("a.b"), faults.hit("a.b")], [None, Some(Fault::Fail), None]);
        assert_eq!(faults.hit("c"), Some(Fault::DelayMs(30)));
        assert_eq!(Faults::none().hit("a.b"), None);
    }

    #[test]
    fn a_bad_plan_names_the_bad_entry() {
        for entry in ["a", "a=explode", "a=fail@0", "a=fail@x", "a=delay", "a=delay:x"] {
            assert_eq!(Faults::parse(&format!("ok=fail,{entry}")).unwrap_err().entry, entry);
        }
    }
}
