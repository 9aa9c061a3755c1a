//! The life of an engine as tables of inputs and effects.

#![allow(clippy::type_complexity)] // tables of changes

use greenroom_core::Seed;
use greenroom_messages::engine::{EngineSpec, EngineState, PauseMode, UpdateWeights};
use greenroom_messages::{BatchId, EngineId, GroupId, Purpose, RolloutId, RunId, WeightVersion};

use super::*;
use crate::{ApiError, EngineConfig, ModelInfo, ServerInfo};

pub(super) fn version(number: u64) -> WeightVersion {
    WeightVersion { run: RunId::new("run"), number }
}

pub(super) fn wish(number: u64, pause: PauseMode) -> UpdateWeights {
    UpdateWeights { version: version(number), model_dir: format!("/w/{number}"), pause, timeout_ms: 60_000 }
}

pub(super) fn rollout(sample: u32) -> RolloutId {
    let batch = BatchId { purpose: Purpose::Train, number: 1 };
    RolloutId { group: GroupId { batch, index: 0 }, sample, attempt: 0 }
}

pub(super) fn admission(rid: &str) -> Admission {
    Admission {
        rid: rid.to_owned(),
        rollout: rollout(0),
        prompt_tokens: 10,
        largest_id: Some(99),
        max_new_tokens: 50,
        oldest_version: 0,
    }
}

pub(super) fn model(label: &str) -> ModelInfo {
    ModelInfo { weight_version: label.to_owned(), is_generation: true }
}

pub(super) fn server() -> ServerInfo {
    ServerInfo {
        version: "0.5.23".into(),
        identity: "first".into(),
        context_tokens: Some(100),
        max_prompt_tokens: Some(94),
        disaggregated: false,
    }
}

pub(super) fn settings(wanted: Option<UpdateWeights>) -> MachineSettings {
    MachineSettings {
        spec: EngineSpec { engine: EngineId::new("e1"), url: "http://e1".into(), max_in_flight: 2 },
        run: RunId::new("run"),
        vocabulary_tokens: 100,
        config: EngineConfig { spot_check: false, ..EngineConfig::default() },
        wanted,
        distrust: false,
        seed: Seed::new(7),
    }
}

pub(super) fn lost() -> ApiError {
    ApiError::Lost { call: "x", url: "u".into(), message: "reset".into() }
}

pub(super) fn timed_out() -> ApiError {
    ApiError::TimedOut { call: "x", url: "u".into(), waited_ms: 1 }
}

pub(super) fn refused() -> ApiError {
    ApiError::Refused { call: "x", url: "u".into(), status: 400, message: "no".into() }
}

/// A machine, its clock, and a short text for everything it does.
pub(super) struct Bench {
    pub(super) machine: EngineMachine,
    now_ms: u64,
}

impl Bench {
    pub(super) fn new(settings: MachineSettings) -> Self {
        Self { machine: EngineMachine::new(settings), now_ms: 1_000 }
    }

    pub(super) fn step(&mut self, input: Input) -> Vec<String> {
        let effects = self.machine.step(self.now_ms, input);
        effects.iter().map(show).collect()
    }

    /// Answers the call under way.
    pub(super) fn answer(&mut self, result: Result<CallAnswer, ApiError>) -> Vec<String> {
        let ticket = self.machine.call.as_ref().expect("a call is under way").0;
        self.step(Input::Called(ticket, result))
    }

    pub(super) fn done(&mut self) -> Vec<String> {
        self.answer(Ok(CallAnswer::Done))
    }

    pub(super) fn labelled(&mut self, label: &str) -> Vec<String> {
        self.answer(Ok(CallAnswer::Model(model(label))))
    }

    pub(super) fn inspected(&mut self, label: &str) -> Vec<String> {
        self.answer(Ok(CallAnswer::Inspected(server(), model(label))))
    }

    pub(super) fn wake(&mut self) -> Vec<String> {
        self.now_ms = self.machine.next_wake_ms().expect("a timer is set");
        self.step(Input::Tick)
    }

    pub(super) fn state(&self) -> EngineState {
        self.machine.status().state
    }

    /// A serving engine with version `number`.
    pub(super) fn serving(number: u64) -> Self {
        let mut bench = Self::new(settings(Some(wish(number, PauseMode::Drain))));
        bench.step(Input::Start);
        bench.labelled("default");
        bench.inspected(&version(number).to_string());
        assert_eq!(bench.done(), ["serving run:1"].map(|text| text.replace('1', &number.to_string())));
        bench
    }
}

fn show(effect: &Effect) -> String {
    match effect {
        Effect::Call { call, .. } => match call {
            Call::Load(load) => format!("load {} flush={}", load.weight_version, load.flush_cache),
            Call::Pause(mode) => format!("pause {mode:?}"),
            Call::Probe { ready, progress: false } => format!("probe ready={ready}"),
            Call::Probe { ready, progress: true } => format!("probe ready={ready} and progress"),
            Call::SpotCheck { turn, .. } => format!("spot check {turn}"),
            call => format!("{call:?}").to_lowercase(),
        },
        Effect::Send { rid, max_new_tokens, version } => format!("send {rid} max={max_new_tokens} v={version}"),
        Effect::Reject { rid, failure } => format!("reject {rid} {:?}", failure.kind),
        Effect::Abort(rid) => format!("abort {rid}"),
        Effect::Fail { rid, failure } => format!("fail {rid} {:?}", failure.kind),
        Effect::UpdateEnded { waiter, result: Ok(confirmed) } => format!("updated {waiter} {}", confirmed.version),
        Effect::UpdateEnded { waiter, result: Err(failure) } => format!("not updated {waiter} {:?}", failure.kind),
        Effect::Drained => "drained".into(),
        Effect::Moved(status) => {
            let version = status.version.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
            format!("{} {version}", format!("{:?}", status.state).to_lowercase())
        }
        Effect::HasRoom(_) => "has room".into(),
        Effect::AskFailed(_) => "ask failed".into(),
        Effect::Note(text) => format!("note: {text}"),
    }
}

#[test]
fn a_fresh_engine_is_loaded_before_it_serves() {
    let mut bench = Bench::new(settings(None));
    assert_eq!(bench.step(Input::Start), ["reach"]);
    assert_eq!(bench.labelled("default"), ["verifying -", "inspect"]);
    assert_eq!(bench.inspected("default"), ["syncing -"]);
    assert_eq!(bench.step(Input::Generate(admission("r"))), ["reject r NoEngine"]);
    assert_eq!(bench.step(Input::Update(1, wish(3, PauseMode::Drain))), ["updating -", "pause Abort"]);
    assert_eq!(bench.done(), ["load run:3 flush=true"]);
    assert_eq!(bench.done(), ["verifying -", "confirm"]);
    assert_eq!(bench.labelled("run:3"), ["resume"]);
    assert_eq!(bench.step(Input::Generate(admission("r"))), ["reject r NoEngine"]);
    assert_eq!(bench.done(), ["updated 1 run:3", "serving run:3"]);
    assert_eq!(bench.step(Input::Generate(admission("r"))), ["send r max=50 v=3"]);
    assert_eq!(bench.step(Input::Update(2, wish(3, PauseMode::Drain))), ["updated 2 run:3"], "nothing to do");
}

#[test]
fn each_pause_mode_treats_what_is_in_flight_its_own_way() {
    let rows = [
        (PauseMode::Drain, vec!["draining run:1"]),
        (PauseMode::Abort, vec!["draining run:1", "abort r1", "abort r2"]),
        (PauseMode::Retract, vec!["updating run:1", "pause Retract"]),
        (PauseMode::InPlace, vec!["updating run:1", "pause InPlace"]),
    ];
    for (mode, expected) in rows {
        let mut bench = Bench::serving(1);
        bench.step(Input::Generate(admission("r1")));
        bench.step(Input::Generate(admission("r2")));
        assert_eq!(bench.step(Input::Update(1, wish(2, mode))), expected, "{mode:?}");
        assert_eq!(bench.step(Input::Generate(admission("r3"))), ["reject r3 NoEngine"], "the gate is closed");
        if matches!(mode, PauseMode::Retract | PauseMode::InPlace) {
            let flush = mode == PauseMode::Retract;
            assert_eq!(bench.done(), [format!("load run:2 flush={flush}")]);
            continue;
        }
        assert_eq!(bench.step(Input::Finished("r1".into(), Report::Answered)), Vec::<String>::new());
        let paused = ["updating run:1", "pause Abort"];
        assert_eq!(bench.step(Input::Finished("r2".into(), Report::Answered)), paused);
    }
}

#[test]
fn an_older_server_is_not_told_to_flush_after_retracting() {
    let mut bench = Bench::new(settings(Some(wish(1, PauseMode::Retract))));
    bench.step(Input::Start);
    bench.labelled("default");
    let old = ServerInfo { version: "0.5.10.post1".into(), ..server() };
    bench.answer(Ok(CallAnswer::Inspected(old, model("default"))));
    assert_eq!(bench.done(), ["load run:1 flush=false"]);
    bench.done();
    bench.labelled("run:1");
    bench.done();
    assert_eq!(bench.wake(), ["probe ready=false"], "it has no /ready");
}

#[test]
fn a_drain_that_takes_too_long_aborts_then_pauses_all_the_same() {
    let mut bench = Bench::serving(1);
    bench.step(Input::Generate(admission("r1")));
    bench.step(Input::Update(1, wish(2, PauseMode::Drain)));
    assert_eq!(bench.wake(), ["abort r1"]);
    assert_eq!(bench.now_ms, 1_000 + 30_000);
    assert_eq!(bench.wake(), ["updating run:1", "pause Abort"], "it did not even answer the abort");
    assert_eq!(bench.now_ms, 1_000 + 35_000);
}

#[test]
fn a_failed_load_taints_until_a_full_load_succeeds() {
    for failure in ["refused", "another label"] {
        let mut bench = Bench::serving(1);
        bench.step(Input::Update(1, wish(2, PauseMode::Drain)));
        bench.done();
        let seen = match failure {
            "refused" => bench.answer(Err(refused())),
            _ => {
                bench.done();
                bench.labelled("run:1")
            }
        };
        assert_eq!(seen, ["tainted -", "not updated 1 Refused"], "{failure}");
        assert_eq!(bench.step(Input::Generate(admission("r"))), ["reject r NoEngine"]);
        assert_eq!(bench.wake(), ["updating -", "pause Abort"], "it tries again by itself");
        bench.done();
        bench.done();
        bench.labelled("run:2");
        assert_eq!(bench.done(), ["serving run:2"]);
    }
}

#[test]
fn a_tainted_engine_stops_trying_and_takes_the_next_version() {
    let mut bench = Bench::serving(1);
    bench.step(Input::Update(1, wish(2, PauseMode::Drain)));
    for _ in 0..=EngineConfig::default().load_retries {
        bench.done();
        bench.answer(Err(refused()));
        assert_eq!(bench.state(), EngineState::Tainted);
        bench.wake();
    }
    assert_eq!(
        bench.machine.call.as_ref().map(|(_, call)| call.clone()),
        Some(Call::Probe { ready: true, progress: false })
    );
    assert_eq!(bench.step(Input::Update(2, wish(3, PauseMode::Drain))), ["updating -", "pause Abort"]);
}

#[test]
fn a_missed_deadline_in_any_call_is_a_loss_and_comes_back_loaded() {
    // How many calls of an update succeed before one is never answered.
    for calls in 0..4 {
        let mut bench = Bench::serving(1);
        bench.step(Input::Update(1, wish(2, PauseMode::Drain)));
        for call in 0..calls {
            if call == 2 {
                bench.labelled("run:2")
            } else {
                bench.done()
            };
        }
        let seen = bench.answer(Err(timed_out()));
        assert_eq!(seen, ["ask failed", "lost -"], "after {calls} calls");
        assert_eq!(bench.wake(), ["connecting -", "reach"]);
        bench.labelled("run:1");
        // The label is what a broken load may have left: it is believed only if no load was under way.
        let seen = bench.inspected("run:2");
        if calls == 0 || calls == 3 {
            assert_eq!(seen.last().unwrap(), if calls == 0 { "resume" } else { "pause Abort" });
        } else {
            assert_eq!(seen, ["syncing -", "updating -", "pause Abort"]);
        }
    }
}

#[test]
fn a_loss_answers_all_that_is_in_flight_and_those_who_wait_within_their_patience() {
    let mut bench = Bench::serving(1);
    bench.step(Input::Generate(admission("r1")));
    bench.step(Input::Generate(admission("r2")));
    bench.step(Input::Update(1, wish(2, PauseMode::Drain)));
    let seen = bench.step(Input::Finished("r1".into(), Report::Broken("reset".into())));
    assert_eq!(seen, ["lost -", "fail r2 Lost"]);
    let patience_ms = bench.now_ms + EngineConfig::default().lost_patience_ms;
    loop {
        let seen = bench.wake();
        if seen.iter().any(|effect| effect == "reach") {
            bench.answer(Err(lost()));
        }
        if seen.contains(&"not updated 1 Lost".to_owned()) {
            break assert_eq!(bench.now_ms, patience_ms);
        }
    }
}

#[test]
fn a_restart_is_seen_by_the_label_and_by_the_identity() {
    let probed = |label: &str| Ok(CallAnswer::Probed(true, model(label), Progress::Unknown));
    let mut bench = Bench::serving(1);
    assert_eq!(bench.wake(), ["probe ready=true"]);
    assert_eq!(bench.answer(probed("run:1")), Vec::<String>::new());
    bench.wake();
    assert_eq!(bench.answer(probed("default")), ["verifying -", "inspect"]);
    assert_eq!(bench.inspected("default"), ["syncing -", "updating -", "pause Abort"], "it loads what is wanted");

    let mut bench = Bench::serving(1);
    bench.wake();
    bench.answer(Err(lost()));
    bench.wake();
    bench.labelled("run:1");
    let other = ServerInfo { identity: "second".into(), ..server() };
    let seen = bench.answer(Ok(CallAnswer::Inspected(other, model("run:1"))));
    assert_eq!(seen, ["syncing -", "updating -", "pause Abort"], "another process with the same label");
}

#[test]
fn an_engine_paused_by_another_is_told_to_go_on() {
    let mut bench = Bench::serving(1);
    bench.wake();
    assert_eq!(
        bench.answer(Ok(CallAnswer::Probed(false, model("run:1"), Progress::Unknown))),
        ["verifying run:1", "inspect"]
    );
    assert_eq!(bench.inspected("run:1"), ["resume"]);
    assert_eq!(bench.done(), ["serving run:1"]);
}

#[test]
fn what_is_not_supported_is_incompatible_and_looked_at_again() {
    let rows: [(&str, fn(&mut ServerInfo, &mut ModelInfo)); 6] = [
        ("too new", |server, _| server.version = "0.6.0".into()),
        ("too old", |server, _| server.version = "0.5.9".into()),
        ("no version", |server, _| server.version.clear()),
        ("no context length", |server, _| server.context_tokens = None),
        ("prefill and decode apart", |server, _| server.disaggregated = true),
        ("an embedding model", |_, model| model.is_generation = false),
    ];
    for (name, change) in rows {
        let mut bench = Bench::new(settings(None));
        bench.step(Input::Start);
        bench.step(Input::Update(1, wish(1, PauseMode::Drain)));
        bench.labelled("default");
        let (mut server, mut model) = (server(), model("default"));
        change(&mut server, &mut model);
        let seen = bench.answer(Ok(CallAnswer::Inspected(server, model)));
        assert_eq!(seen, ["incompatible -", "not updated 1 Refused"], "{name}");
        assert_eq!(bench.wake(), ["connecting -", "reach"], "{name}");
    }
}

#[test]
fn wishes_only_go_forward() {
    let mut bench = Bench::serving(5);
    assert_eq!(bench.step(Input::Update(1, wish(4, PauseMode::Drain))), ["not updated 1 Refused"]);
    let foreign = WeightVersion { run: RunId::new("other"), number: 9 };
    let foreign = UpdateWeights { version: foreign, ..wish(9, PauseMode::Drain) };
    assert_eq!(bench.step(Input::Update(2, foreign)), ["not updated 2 Refused"]);
    bench.step(Input::Update(3, wish(6, PauseMode::Drain)));
    bench.step(Input::Update(4, wish(7, PauseMode::Drain)));
    assert_eq!(bench.step(Input::Update(5, wish(8, PauseMode::Drain))), ["not updated 4 Refused"], "8 takes its place");
    bench.done();
    bench.done();
    bench.labelled("run:6");
    assert_eq!(bench.done(), ["updated 3 run:6", "updating run:6", "pause Abort"], "then the next at once");
}

#[test]
fn a_drain_for_leaving_ends_when_nothing_is_in_flight_and_can_be_taken_back() {
    let mut bench = Bench::serving(1);
    bench.step(Input::Generate(admission("r1")));
    assert_eq!(bench.step(Input::Drain), ["draining run:1"]);
    assert_eq!(bench.step(Input::Generate(admission("r2"))), ["reject r2 NoEngine"]);
    assert_eq!(bench.step(Input::Finished("r1".into(), Report::Answered)), ["drained"]);
    assert_eq!(bench.step(Input::Undrain), ["serving run:1"]);
}

/// A machine that compares numbers, with a wish for version 1.
fn checking() -> Bench {
    let mut settings = settings(Some(wish(1, PauseMode::Drain)));
    settings.config.spot_check = true;
    let mut bench = Bench::new(settings);
    bench.step(Input::Start);
    bench.labelled("default");
    bench
}

fn verdict(verdict: SpotVerdict) -> Result<CallAnswer, ApiError> {
    Ok(CallAnswer::SpotChecked(verdict))
}

#[test]
fn a_label_is_believed_when_the_numbers_are_those_of_the_file() {
    let mut bench = checking();
    bench.inspected("default");
    bench.done();
    bench.done();
    assert_eq!(bench.labelled("run:1"), ["spot check 1"]);
    assert_eq!(bench.step(Input::Generate(admission("r"))), ["reject r NoEngine"], "not before");
    assert_eq!(bench.answer(verdict(SpotVerdict::Same)), ["resume"]);
    assert_eq!(bench.done(), ["serving run:1"]);
}

#[test]
fn other_numbers_than_the_files_taint_until_a_full_load_succeeds() {
    let mut bench = checking();
    bench.inspected("default");
    bench.step(Input::Update(1, wish(1, PauseMode::Drain)));
    bench.done();
    bench.done();
    bench.labelled("run:1");
    let different = || verdict(SpotVerdict::Different("value 3 of w is 0 at the engine".into()));
    assert_eq!(bench.answer(different()), ["tainted -", "not updated 1 Refused"]);
    let trouble = bench.machine.status().trouble.unwrap();
    assert!(trouble.contains("not those of its label: value 3 of w"), "{trouble}");
    assert_eq!(bench.wake(), ["updating -", "pause Abort"], "it is loaded again");
    bench.done();
    bench.done();
    bench.labelled("run:1");
    bench.answer(verdict(SpotVerdict::Same));
    assert_eq!(bench.done(), ["serving run:1"]);

    let mut bench = checking();
    assert_eq!(bench.inspected("run:1"), ["spot check 1"], "what an earlier process left there is checked, too");
    assert_eq!(bench.answer(different()), ["tainted -", "updating -", "pause Abort"]);
}

#[test]
fn an_engine_that_cannot_tell_numbers_is_confirmed_by_its_label_and_that_is_said_once() {
    let mut bench = checking();
    bench.inspected("default");
    bench.done();
    bench.done();
    bench.labelled("run:1");
    let seen = bench.answer(verdict(SpotVerdict::Unable("it answers 400".into())));
    assert_eq!(seen, ["note: loads of engine e1 are confirmed by their label alone: it answers 400", "resume"]);
    bench.done();
    bench.step(Input::Update(1, wish(2, PauseMode::Drain)));
    bench.done();
    bench.done();
    assert_eq!(bench.labelled("run:2"), ["resume"], "it is not asked again");

    let mut bench = checking();
    let old = ServerInfo { version: "0.5.10.post1".into(), ..server() };
    bench.answer(Ok(CallAnswer::Inspected(old, model("default"))));
    bench.done();
    bench.done();
    assert_eq!(bench.labelled("run:1"), ["resume"], "a version of which nobody knows what the question does to it");
}

#[test]
fn an_engine_that_was_never_seen_holds_an_update_up_for_its_patience_only() {
    let mut bench = Bench::new(settings(None));
    bench.step(Input::Start);
    bench.step(Input::Update(1, wish(2, PauseMode::Drain)));
    let patience_ms = bench.now_ms + EngineConfig::default().lost_patience_ms;
    bench.answer(Err(timed_out()));
    loop {
        let seen = bench.wake();
        if seen.iter().any(|effect| effect == "reach") {
            bench.answer(Err(timed_out()));
        }
        if seen.contains(&"not updated 1 Lost".to_owned()) {
            break assert_eq!(bench.now_ms, patience_ms);
        }
    }
    while bench.machine.call.is_none() {
        bench.wake();
    }
    bench.labelled("default");
    assert_eq!(bench.inspected("default"), ["syncing -", "updating -", "pause Abort"], "it gets what is wanted");
}

#[test]
fn an_engine_that_is_reached_within_its_patience_has_the_whole_time_to_load() {
    let mut bench = Bench::new(settings(None));
    bench.step(Input::Start);
    bench.step(Input::Update(1, wish(2, PauseMode::Drain)));
    bench.now_ms += EngineConfig::default().lost_patience_ms - 1;
    bench.labelled("default");
    bench.inspected("default");
    bench.now_ms += 40_000;
    assert_eq!(bench.step(Input::Tick), Vec::<String>::new(), "a slow load is no silence");
    bench.done();
    bench.done();
    bench.labelled("run:2");
    assert_eq!(bench.done(), ["updated 1 run:2", "serving run:2"]);
}

/// Probes at each wake-up with what `progress` says; gives when the engine was lost, counted from the turn's start.
fn probed_until_lost(progress: impl Fn(u64) -> Progress) -> Option<u64> {
    let mut bench = Bench::serving(1);
    bench.step(Input::Generate(admission("r1")));
    let begun_ms = bench.now_ms;
    while bench.now_ms < begun_ms + 600_000 {
        let asked = bench.wake().iter().any(|effect| effect.ends_with("and progress"));
        let seen = if asked { progress(bench.now_ms - begun_ms) } else { Progress::Unknown };
        let effects = bench.answer(Ok(CallAnswer::Probed(true, model("run:1"), seen)));
        if effects.contains(&"lost -".to_owned()) {
            assert_eq!(effects, ["lost -", "fail r1 Lost"]);
            return Some(bench.now_ms - begun_ms);
        }
    }
    None
}

#[test]
fn an_engine_that_answers_probes_and_makes_no_token_is_lost_long_before_a_turn_times_out() {
    let stall_ms = EngineConfig::default().stall_ms;
    let stands = probed_until_lost(|_| Progress::At("tokens 7".into())).unwrap();
    assert!((stall_ms..stall_ms * 3 / 2).contains(&stands), "{stands} ms");
    let fails = probed_until_lost(|_| Progress::Failing("500".into())).unwrap();
    assert!((stall_ms..stall_ms * 3 / 2).contains(&fails), "{fails} ms");
    let mixed = probed_until_lost(|at_ms| match at_ms / 2_000 % 2 {
        0 => Progress::Failing("500".into()),
        _ => Progress::At("tokens 7".into()),
    });
    assert_eq!(mixed, Some(stands), "what fails now and then moves nothing");
    assert_eq!(probed_until_lost(|at_ms| Progress::At(format!("tokens {at_ms}"))), None, "slow is not dead");
    assert_eq!(
        probed_until_lost(|at_ms| Progress::At(format!("tokens {}", at_ms / 50_000))),
        None,
        "very slow neither"
    );
    assert_eq!(probed_until_lost(|_| Progress::Unknown), None, "what cannot be told is no standstill");
}
