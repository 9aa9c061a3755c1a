//! The role `controller`: the run's directory and database, the Conductor, the fleet of engines, and where nodes enlist.
//!
//! It is the first to know the run and the last to leave it: nodes are answered as soon as it is in the cluster, the
//! Conductor begins when the gang is complete, and the end of the run is told to every node.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use greenroom_cluster::Cluster;
use greenroom_core::{Address, ChildSpec, RestartPolicy, Seam};
use greenroom_engine::EnginePool;
use greenroom_messages::engine::EnginePoolMessage;
use greenroom_messages::node::{ControllerMessage, Enlist, Enlisted, LEASE_BLOCK, NotEnlisted};
use greenroom_messages::run::{ConductorMessage, JournalMessage, RunStatus};
use greenroom_messages::{Purpose, RunId};
use greenroom_run::{
    Conductor, ConductorArguments, ConductorParts, Database, DatabaseReader, Journal, JournalArguments, RunDirectory,
    RunEnd, RunSummary,
};
use greenroom_tokens::{ChatTemplate, Tokenizer};
use tokio::sync::{oneshot, watch};

use super::blocks::LeaseBlocks;
use super::desk::{self, Desk};
use super::farewell::LastWord;
use super::site::Site;
use super::{NodeConfig, service};
use crate::config::Config;
use crate::up::{RunPlace, Talk, check_not_lost, completed, data, end, history, inputs};

/// The run as it lies on the controller's disk.
pub(super) struct Ledger {
    pub(super) directory: RunDirectory,
    pub(super) database: Database,
    pub(super) blocks: Arc<LeaseBlocks>,
    pub(super) last_word: LastWord,
    /// The nodes that have told this process their settings, which are the controller's.
    pub(super) admitted: watch::Sender<BTreeSet<String>>,
}

impl Ledger {
    /// Opens the run in `dir`, or begins it there.
    pub(super) fn open(dir: &Path, run: &RunId, config: &Config, seam: &greenroom_core::Seam) -> anyhow::Result<Self> {
        check_not_lost(dir)?;
        let is_there = dir.join("run.db").exists();
        let directory = if is_there { RunDirectory::resume(dir) } else { RunDirectory::create(dir) }?;
        let text = toml::to_string_pretty(config)?;
        directory.replace("config.toml", text.as_bytes())?;
        if !dir.join(inputs::FILE).exists() {
            directory.replace(inputs::FILE, inputs::Inputs::of_run(config)?.to_text().as_bytes())?;
        }
        let database = Database::open(&directory.database(), run, config.seed, &text, seam.clock)?;
        let first_lease = first_lease(&database, seam.clock.now_ms())?;
        let blocks = Arc::new(LeaseBlocks::new(database.clone(), first_lease));
        Ok(Self { directory, database, blocks, last_word: LastWord::default(), admitted: watch::Sender::default() })
    }

    /// Counts a node to the gang, or does so no more.
    pub(super) fn admit(&self, node: &str, is_admitted: bool) {
        admit(&self.admitted, node, is_admitted);
    }

    /// The summary of a run that has nothing left to do with these settings.
    pub(super) fn completed(&self, config: &Config) -> anyhow::Result<Option<RunSummary>> {
        let path = self.directory.path();
        let (Some(runs_dir), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
        let name = name.to_string_lossy().into_owned();
        completed(config, &RunPlace { runs_dir: runs_dir.to_owned(), name, resume: true })
    }
}

/// Where nodes enlist.
pub(super) fn enlistment(run: RunId, settings: String, ledger: &Ledger) -> Address<ControllerMessage> {
    let (blocks, last_word) = (ledger.blocks.clone(), ledger.last_word.clone());
    let admitted = ledger.admitted.clone();
    Address::of_function("controller", move |message| {
        let fits = |enlist: &Enlist| {
            let fits = match (first_difference(&settings, &enlist.settings), last_word.to(enlist)) {
                (Some(difference), _) => Err(NotEnlisted::Refused(difference)),
                (None, Some(over)) => Err(NotEnlisted::Over(over)),
                (None, None) => Ok(()),
            };
            admit(&admitted, &enlist.node, fits.is_ok());
            fits
        };
        match message {
            ControllerMessage::Enlist(enlist, reply) => {
                let answer = fits(&enlist);
                log_answer(&enlist, "has enlisted", &answer);
                reply.send(answer.map(|()| Enlisted { run: run.clone(), first_lease: blocks.give(&enlist.node) }));
            }
            ControllerMessage::Confirm(enlist, reply) => {
                let answer = fits(&enlist);
                log_answer(&enlist, "plays its roles", &answer);
                reply.send(answer);
            }
        }
        Ok(())
    })
}

fn admit(admitted: &watch::Sender<BTreeSet<String>>, node: &str, is_admitted: bool) {
    admitted.send_if_modified(|nodes| match is_admitted {
        true => nodes.insert(node.to_owned()),
        false => nodes.remove(node),
    });
}

/// Opens the desk at which people look at the run and steer it; it answers before the gang is complete.
pub(super) fn open_desk(ledger: &Ledger, cluster: &Cluster, node: &NodeConfig, config: &Config, seam: &Seam) {
    desk::serve(Desk {
        cluster: cluster.clone(),
        node: node.clone(),
        config: config.clone(),
        database: ledger.database.clone(),
        reader: DatabaseReader::new(&ledger.directory.database()),
        run_dir: ledger.directory.path().to_owned(),
        clock: seam.clock,
    });
}

fn log_answer(enlist: &Enlist, what: &str, answer: &Result<(), NotEnlisted>) {
    let (node, roles) = (&enlist.node, enlist.roles.join(", "));
    match answer {
        Ok(()) => tracing::info!(node, roles, "a node {what}"),
        Err(NotEnlisted::Refused(reason)) => tracing::warn!(node, roles, reason, "a node was refused"),
        Err(NotEnlisted::Over(over)) => tracing::info!(node, roles, over.outcome, "a node came after the run's end"),
    }
}

/// The first line in which two texts of settings differ.
fn first_difference(ours: &str, theirs: &str) -> Option<String> {
    let (mut ours, mut theirs) = (ours.lines(), theirs.lines());
    loop {
        match (ours.next(), theirs.next()) {
            (None, None) => return None,
            (one, other) if one == other => {}
            (one, other) => {
                let or_nothing = |line: Option<&str>| line.unwrap_or("nothing").to_owned();
                return Some(format!(
                    "the controller's settings say {}, this node's {}",
                    or_nothing(one),
                    or_nothing(other)
                ));
            }
        }
    }
}

/// The first lease number that nobody had before: above all in the database, and above all that earlier starts may have
/// given out since.
fn first_lease(database: &Database, now_ms: u64) -> anyhow::Result<u64> {
    // 2^20 numbers a millisecond: this holds until the year 2500
    Ok(database.next_lease()?.0.max(now_ms.saturating_mul(LEASE_BLOCK)))
}

/// What the role runs, and how its run ends.
pub(super) struct Controller {
    pub(super) children: Vec<ChildSpec>,
    pub(super) engines: Address<EnginePoolMessage>,
    pub(super) journal: Address<JournalMessage>,
    pub(super) conductor: Address<ConductorMessage>,
    pub(super) progress: watch::Receiver<RunStatus>,
    pub(super) ended: oneshot::Receiver<RunEnd>,
    pub(super) end: end::End,
    pub(super) blocks: Arc<LeaseBlocks>,
    pub(super) last_word: LastWord,
    /// The nodes of whose end a person was told, until they are back.
    pub(super) away: BTreeSet<String>,
}

impl Controller {
    /// That of a run that has ended before: none of its actors runs.
    pub(super) fn of_completed_run(ledger: &Ledger, summary: RunSummary) -> Self {
        let (end, ended) = end::End::new();
        let (_, progress) = watch::channel(RunStatus { ended: true, ..RunStatus::default() });
        end.tell(RunEnd::Completed(summary));
        Self {
            children: Vec::new(),
            engines: service::ENGINE_POOL.address(),
            journal: service::JOURNAL.address(),
            conductor: service::CONDUCTOR.address(),
            progress,
            ended,
            end,
            blocks: ledger.blocks.clone(),
            last_word: ledger.last_word.clone(),
            away: BTreeSet::new(),
        }
    }
}

/// Makes the actors of the role, and offers them to the cluster.
pub(super) fn controller(site: &Site, ledger: &Ledger, model_dir: &Path) -> anyhow::Result<Controller> {
    let talk = site.talk.clone();
    let (end, ended) = end::End::new();
    let (progress_sender, progress) = watch::channel(RunStatus::default());
    let (engines, conductor) = (service::ENGINE_POOL.address(), service::CONDUCTOR.address());
    let journal = service::JOURNAL.address();

    let database = ledger.database.clone();
    let clock = site.seam().clock;
    let write = move || JournalArguments { database: database.clone(), clock, feed: None };
    let pool = site.common.engine_pool(model_dir, site.common.external_engines())?;
    let lead = conductor_arguments(site, ledger, &engines, &journal, progress_sender, talk, end.clone())?;
    let policy = RestartPolicy::PATIENT;
    let writer = ChildSpec::at_address("journal", RestartPolicy::NEVER, || Journal, write, &journal);
    let fleet = ChildSpec::at_address("engine pool", policy, || EnginePool, move || pool.clone(), &engines);
    let leader = ChildSpec::at_address("conductor", policy, || Conductor, move || lead.clone(), &conductor);
    let children = vec![
        // a journal that cannot write must not be papered over
        service::JOURNAL.offered(writer, &journal, &site.cluster),
        service::ENGINE_POOL.offered(fleet, &engines, &site.cluster),
        service::CONDUCTOR.offered(leader, &conductor, &site.cluster),
    ];
    history::watch(&ledger.directory.database(), progress.clone(), site.talk.clone());
    let (blocks, last_word) = (ledger.blocks.clone(), ledger.last_word.clone());
    let away = BTreeSet::new();
    Ok(Controller { children, engines, journal, conductor, progress, ended, end, blocks, last_word, away })
}

fn conductor_arguments(
    site: &Site,
    ledger: &Ledger,
    engines: &Address<EnginePoolMessage>,
    journal: &Address<JournalMessage>,
    progress: watch::Sender<RunStatus>,
    talk: Talk,
    end: end::End,
) -> anyhow::Result<ConductorArguments> {
    let config = site.config();
    let datasets = data::datasets(config)?;
    let model_dir = config.path(&config.model.dir);
    let tokenizer = Arc::new(Tokenizer::from_dir(&model_dir)?);
    let template = Arc::new(ChatTemplate::from_dir(&model_dir)?);
    Ok(ConductorArguments {
        run: site.common.run.clone(),
        config: config.run.clone(),
        parts: ConductorParts {
            rollouts: service::ROLLOUT_MANAGER.anywhere(&site.cluster),
            engines: engines.clone(),
            trainer: service::TRAINER.anywhere(&site.cluster),
            publisher: service::PUBLISHER.anywhere(&site.cluster),
            // each engine's host receives by itself
            receivers: Vec::new(),
            journal: journal.clone(),
        },
        database: ledger.database.clone(),
        directory: Some(ledger.directory.clone()),
        // relative directories lie in the trainer's own
        trainer_root: PathBuf::new(),
        warm_start: data::warm_start(config, &tokenizer, &template)?,
        evaluation_tasks: site.common.measured_tasks(&datasets, Purpose::Train),
        held_out_tasks: site.common.measured_tasks(&datasets, Purpose::HeldOut),
        seam: site.seam().clone(),
        progress,
        talk,
        on_end: Arc::new(move |ended| end.tell(ended)),
    })
}

#[cfg(test)]
mod tests {
    use super::first_difference;

    #[test]
    fn the_first_difference_is_named() {
        assert_eq!(first_difference("a = 1\nb = 2", "a = 1\nb = 2\n"), None);
        let difference = first_difference("a = 1\nb = 2", "a = 1\nb = 3").unwrap();
        assert!(difference.contains("b = 2") && difference.contains("b = 3"), "{difference}");
        assert!(first_difference("a = 1", "a = 1\nb = 3").unwrap().contains("nothing"));
    }
}
