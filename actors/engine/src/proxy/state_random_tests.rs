//! The life of an engine under random inputs: what it must never do, whatever happens in whatever order.

use greenroom_core::Seed;
use greenroom_messages::WeightVersion;
use greenroom_messages::engine::{EngineState, PauseMode};
use proptest::prelude::*;

use super::state_tests::*;
use super::*;
use crate::{ServerInfo, ServerPause};

/// A server as the machine might meet it, with what is really loaded beside what it says.
#[derive(Debug)]
struct Server {
    label: String,
    loaded: Option<u64>,
    identity: u64,
}

impl Server {
    /// The true answer to a call, with its effect on the server.
    fn answer(&mut self, call: &Call) -> CallAnswer {
        let model = model(&self.label);
        match call {
            Call::Reach | Call::Confirm => CallAnswer::Model(model),
            Call::Inspect => {
                let identity = self.identity.to_string();
                CallAnswer::Inspected(ServerInfo { identity, ..server() }, model)
            }
            Call::Probe { .. } => CallAnswer::Probed(true, model, Progress::Unknown),
            Call::SpotCheck { turn, .. } => CallAnswer::SpotChecked(match self.loaded == Some(*turn) {
                true => SpotVerdict::Same,
                false => SpotVerdict::Different("other numbers".into()),
            }),
            Call::Load(load) => {
                self.label = load.weight_version.clone();
                self.loaded = load.weight_version.parse::<WeightVersion>().ok().map(|version| version.number);
                CallAnswer::Done
            }
            Call::Pause(ServerPause::Abort | ServerPause::Retract | ServerPause::InPlace) | Call::Resume => {
                CallAnswer::Done
            }
        }
    }
}

/// What a random life has shown.
#[derive(Debug, Default)]
struct Seen {
    sent: u32,
    updated: u32,
    failed: u32,
}

#[test]
fn it_never_serves_inadmissible_weights_and_every_question_ends() {
    let seen = std::cell::RefCell::new(Seen::default());
    let steps = proptest::collection::vec((0_u8..24, 0_u64..4_000, any::<u8>()), 1..200);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 3_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&(any::<u64>(), steps), |(seed, steps)| live(seed, steps, &mut seen.borrow_mut()));
    assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    let seen = seen.into_inner();
    assert!(seen.sent > 1_000 && seen.updated > 1_000 && seen.failed > 1_000, "too little was tried: {seen:?}");
}

/// One random life of an engine and its proxy.
fn live(seed: u64, steps: Vec<(u8, u64, u8)>, seen: &mut Seen) -> Result<(), TestCaseError> {
    let mut settings = MachineSettings { seed: Seed::new(seed), ..settings(None) };
    settings.config.spot_check = true;
    let mut machine = EngineMachine::new(settings);
    let mut server = Server { label: "default".into(), loaded: None, identity: 0 };
    let (mut now_ms, mut rid, mut waiter, mut wanted) = (0, 0, 0_u64, 0);
    let mut flying = std::collections::BTreeSet::new();
    let mut waiting = std::collections::BTreeMap::new();
    let mut newest_confirmed = 0;
    let mut inputs = vec![Input::Start];
    for (action, wait_ms, choice) in steps {
        now_ms += wait_ms;
        if machine.next_wake_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            inputs.push(Input::Tick);
        }
        let call = machine.call.clone();
        match (action, call) {
            (0..=4 | 14.., Some((ticket, call))) => inputs.push(Input::Called(ticket, Ok(server.answer(&call)))),
            (5, Some((ticket, call))) => {
                // The answer is lost; the work was done, or not, or in part.
                match (choice % 3, &call) {
                    (0, _) => drop(server.answer(&call)),
                    (1, Call::Load(_)) => server.loaded = None,
                    _ => {}
                }
                let error = if choice % 2 == 0 { timed_out() } else { lost() };
                inputs.push(Input::Called(ticket, Err(error)));
            }
            (6, Some((ticket, call))) => {
                if matches!(call, Call::Load(_)) {
                    server.loaded = None;
                }
                inputs.push(Input::Called(ticket, Err(refused())));
            }
            (7, _) => {
                // Started again, now and then with a label that promises more than is loaded.
                let label = if choice % 2 == 0 { "default".into() } else { server.label.clone() };
                server = Server { label, loaded: None, identity: server.identity + 1 };
            }
            (8 | 9, _) => {
                rid += 1;
                let oldest_version = u64::from(choice % 4);
                inputs.push(Input::Generate(Admission { oldest_version, ..admission(&format!("r{rid:04}")) }));
            }
            (10, _) => {
                if let Some(rid) = flying.iter().next().cloned() {
                    let reports = [
                        Report::Answered,
                        Report::Refused,
                        Report::Unusable("no JSON".into()),
                        Report::TimedOut,
                        Report::Abandoned,
                        Report::Broken("reset".into()),
                        Report::Untrusted("default".into()),
                    ];
                    inputs.push(Input::Finished(rid, reports[choice as usize % reports.len()].clone()));
                }
            }
            (11, _) => {
                wanted += u64::from(choice % 3);
                waiter += 1;
                let modes = [PauseMode::Drain, PauseMode::Abort, PauseMode::Retract, PauseMode::InPlace];
                inputs.push(Input::Update(waiter, wish(wanted, modes[choice as usize % 4])));
                waiting.insert(waiter, now_ms + 60_000);
            }
            (12, _) => inputs.push(Input::Drain),
            (13, _) => inputs.push(Input::Undrain),
            _ => {}
        }
        for input in inputs.drain(..) {
            if let Input::Finished(rid, _) = &input {
                flying.remove(rid);
            }
            // A restart that nobody has noticed yet is the Untrusted answer's to catch, not the gate's.
            let unnoticed = machine.facts.as_ref().is_some_and(|facts| facts.identity != server.identity.to_string());
            for effect in machine.step(now_ms, input) {
                match effect {
                    Effect::Send { rid, version, .. } => {
                        seen.sent += 1;
                        prop_assert_eq!(machine.status().state, EngineState::Serving);
                        prop_assert!(unnoticed || server.loaded == Some(version), "{:?} for {version}", server);
                        prop_assert!(flying.insert(rid));
                    }
                    Effect::Fail { rid, .. } => {
                        flying.remove(&rid);
                    }
                    Effect::UpdateEnded { waiter, result } => {
                        let due_ms = waiting.remove(&waiter);
                        prop_assert!(due_ms.is_some(), "answered twice");
                        if result.is_ok() {
                            seen.updated += 1;
                        } else {
                            seen.failed += 1;
                        }
                        if let Ok(confirmed) = result {
                            prop_assert!(confirmed.version.number >= newest_confirmed);
                            newest_confirmed = confirmed.version.number;
                        }
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(machine.violation(), None);
            prop_assert_eq!(machine.flights.len(), flying.len());
        }
        prop_assert!(waiting.values().all(|due_ms| *due_ms > now_ms), "someone waits beyond the time-out");
    }
    Ok(())
}
