//! A whole run in virtual time, and what is known of it afterwards.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use greenroom_core::{Deadline, Fault, Faults, Seam, Seed, Supervisor, SupervisorArguments, ask};
use greenroom_messages::engine::EnginePoolMessage;
use greenroom_messages::run::{JournalMessage, RunEvent};
use greenroom_messages::sandbox::SandboxPoolMessage;
use greenroom_run::check::{self, Violation};
use greenroom_run::{RunDirectory, RunEnd};
use ractor::Actor;
use rand::Rng;
use tokio::sync::mpsc;

use crate::checks;
use crate::wiring::{EPOCH_MS, Wiring, clock};
use crate::{Scenario, SimError};

/// How long the last words of the actors may take, as in a real run.
const LAST_WORDS_MS: u64 = 30_000;
/// By then every timer and time-out of a run that has ended is over.
const AFTERLIFE: Duration = Duration::from_secs(24 * 3_600);

/// What is known of a simulated run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed that replays it.
    pub seed: u64,
    /// How it ended; `None` when it did not within the scenario's limit.
    pub end: Option<RunEnd>,
    /// Every rule that was broken.
    pub violations: Vec<Violation>,
    /// The hash of all events with their dates.
    pub event_hash: u64,
    /// How long the run took, virtual milliseconds.
    pub virtual_ms: u64,
    /// Misfortunes that were met, such as `engine.Hang`, and how often.
    pub misfortunes: BTreeMap<String, u32>,
    /// Sandboxes that were made.
    pub boxes: u64,
    /// Every event with its virtual time in milliseconds.
    pub events: Vec<(u64, RunEvent)>,
}

impl Report {
    /// Whether the run completed.
    pub fn is_completed(&self) -> bool {
        matches!(self.end, Some(RunEnd::Completed(_)))
    }

    /// The events, one line each, for a person who looks for what went wrong.
    pub fn story(&self) -> String {
        let line = |(at_ms, event): &(u64, RunEvent)| {
            format!("{:>10.3} s  {}\n", *at_ms as f64 / 1_000.0, serde_json::to_string(event).unwrap_or_default())
        };
        self.events.iter().map(line).collect()
    }
}

/// A place where runs are simulated.
#[derive(Clone, Copy, Debug)]
pub struct World;

impl World {
    /// Plays a whole run. The same scenario and seed give the same events, whatever else the process does.
    pub fn run(scenario: &Scenario, seed: u64) -> Result<Report, SimError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.map_err(|error| SimError::of("runtime")(error.to_string()))?;
        let report = runtime.block_on(play(scenario, seed))?;
        Ok(report)
    }
}

async fn play(scenario: &Scenario, seed: u64) -> Result<Report, SimError> {
    let seam = Seam { clock: clock(), ..Seam::simulated(seed, EPOCH_MS, weights_faults(scenario, seed)?) };
    let wiring = Wiring::new(scenario, &seam)?;
    let place = memory_dir()?;
    let directory = RunDirectory::create(place.path());
    let directory = directory.map_err(|error| SimError::of("run directory")(error.to_string()))?;
    let (tell, mut ended) = mpsc::unbounded_channel();
    let gives_up = tell.clone();
    let arguments = SupervisorArguments {
        children: wiring.children(&directory, tell)?,
        on_give_up: Box::new(move |failure| drop(gives_up.send(RunEnd::Failed(failure.to_string())))),
    };
    let spawned = Actor::spawn(None, Supervisor, arguments).await;
    let (supervisor, _) = spawned.map_err(|error| SimError::of("actors")(error.to_string()))?;
    let end = tokio::time::timeout(Duration::from_millis(scenario.time_limit_ms), ended.recv()).await.ok().flatten();
    let virtual_ms = seam.clock.elapsed_ms();
    let mut violations = take_down(&wiring).await;
    let history = check::history(&wiring.database).map_err(|error| SimError::of("history")(error.to_string()))?;
    let event_hash = wiring.database.event_hash().map_err(|error| SimError::of("events")(error.to_string()))?;
    let broken = |invariant, detail: String| Violation { invariant, detail };
    let wait = Some(Duration::from_millis(LAST_WORDS_MS));
    if let Err(error) = supervisor.stop_and_wait(None, wait).await {
        violations.push(broken("the actors end when they are told to", error.to_string()));
    }
    tokio::time::sleep(AFTERLIFE).await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    if tasks > 0 {
        violations.push(broken("every question is answered or times out", format!("{tasks} tasks wait for ever")));
    }
    if end.is_none() {
        let hours = scenario.time_limit_ms / 3_600_000;
        violations.push(broken("a run ends", format!("it did not within {hours} hours")));
    }
    violations.extend(check::violations(&history));
    let seen = std::mem::take(&mut *wiring.ledger.seen());
    violations.extend(checks::violations(&seen, &history));
    let mut misfortunes = BTreeMap::new();
    let engines = wiring.engines.values().map(|engine| ("engine", engine.misfortunes_met()));
    let others = [("sandbox", wiring.provider.misfortunes_met()), ("trainer", wiring.trainer.misfortunes_met())];
    for (part, met) in engines.chain(others) {
        for (kind, count) in met {
            *misfortunes.entry(format!("{part}.{kind}")).or_default() += count;
        }
    }
    Ok(Report {
        seed,
        end,
        violations,
        event_hash,
        virtual_ms,
        misfortunes,
        boxes: seen.boxes_made,
        events: seen.events,
    })
}

/// Takes the world down as a real run is taken down.
async fn take_down(wiring: &Wiring) -> Vec<Violation> {
    let deadline = || Deadline::after_ms(LAST_WORDS_MS);
    let engines = ask(wiring.engine_pool(), deadline(), EnginePoolMessage::Shutdown).await;
    let sandboxes = ask(wiring.sandbox_pool(), deadline(), SandboxPoolMessage::Drain).await;
    let journal = ask(wiring.journal(), deadline(), JournalMessage::Flush).await;
    let failed = [engines.err(), sandboxes.err(), journal.err()].into_iter().flatten();
    let broken = |error| Violation { invariant: "pools end when they are told to", detail: format!("{error}") };
    failed.map(broken).collect()
}

/// When publisher and receiver fail just before their commits.
fn weights_faults(scenario: &Scenario, seed: u64) -> Result<Faults, SimError> {
    let faults = Faults::parse("").map_err(|error| SimError::of("faults")(error.to_string()))?;
    let mut random = Seed::new(seed).child("misfortunes.weights").random();
    for _ in 0..scenario.misfortunes.weights {
        let points = ["weights.publish.before_commit", "weights.apply.before_commit"];
        let (point, visit) = (points[random.random_range(0..2)], random.random_range(1..=4));
        faults.plan_fault(point, visit, Fault::Fail);
    }
    Ok(faults)
}

/// A directory in memory where there is one: a run's files are tiny, and made durable all the same.
fn memory_dir() -> Result<tempfile::TempDir, SimError> {
    let memory = PathBuf::from("/dev/shm");
    let place = tempfile::tempdir_in(&memory).or_else(|_| tempfile::tempdir());
    place.map_err(|error| SimError::of("directory")(error.to_string()))
}
