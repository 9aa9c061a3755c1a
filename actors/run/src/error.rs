//! What can go wrong with a run, with a stable code each.

use std::path::PathBuf;

use greenroom_core::ErrorPage;

/// An error of the run's schedule, database or directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The run database could not be read or written (GR0201).
    #[error("run database {path}: {reason}")]
    Database {
        /// The file.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The run directory holds a run already (GR0202).
    #[error("{path} holds a run already; continue it with --resume, or choose another name")]
    RunExists {
        /// The directory.
        path: PathBuf,
    },
    /// There is no run to resume (GR0203).
    #[error("{path} holds no run to resume")]
    NoRun {
        /// The directory.
        path: PathBuf,
    },
    /// A file of the run could not be read or written (GR0204).
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
    /// A step would train a rollout for the second time, or one that the run does not know (GR0205).
    #[error("{step} is refused: {reason}")]
    CommitRefused {
        /// The step.
        step: greenroom_messages::Step,
        /// What is wrong.
        reason: String,
    },
    /// The settings contradict themselves (GR0206).
    #[error("{setting}: {reason}")]
    Setting {
        /// The setting's name.
        setting: &'static str,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// A part of the run failed for good (GR0207).
    #[error("{part}: {reason}")]
    Part {
        /// Which part.
        part: String,
        /// What happened.
        reason: String,
    },
    /// Another process runs this run (GR0208).
    #[error("{path} is in use by process {pid}; stop that process first")]
    InUse {
        /// The run's directory.
        path: PathBuf,
        /// The process.
        pid: u32,
    },
    /// No checkpoint of the run is sound (GR0213).
    #[error("no checkpoint of this run is sound: {newest}; no older one is kept, or sound")]
    NoCheckpoint {
        /// What is wrong with the newest.
        newest: String,
    },
    /// The database is that of another run, or of this one with another seed (GR0209).
    #[error("{path} is the history of run {found} with seed {found_seed}, not of {run} with seed {seed}")]
    OtherRun {
        /// The database.
        path: PathBuf,
        /// The run that it belongs to.
        found: String,
        /// That run's seed.
        found_seed: u64,
        /// The run that was to go on.
        run: String,
        /// Its seed by the configuration.
        seed: u64,
    },
}

impl RunError {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Database { .. } => "GR0201",
            Self::RunExists { .. } => "GR0202",
            Self::NoRun { .. } => "GR0203",
            Self::File { .. } => "GR0204",
            Self::CommitRefused { .. } => "GR0205",
            Self::Setting { .. } => "GR0206",
            Self::Part { .. } => "GR0207",
            Self::InUse { .. } => "GR0208",
            Self::OtherRun { .. } => "GR0209",
            Self::NoCheckpoint { .. } => "GR0213",
        }
    }
}

/// The pages of this crate's codes.
pub const ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR0201",
        cause: "the run database could not be read or written",
        remedy: "see that the disk is not full and the directory writable; a damaged run.db can be examined with sqlite3",
    },
    ErrorPage {
        code: "GR0202",
        cause: "the run directory holds a run already, and an existing run is never overwritten",
        remedy: "continue it with --resume, or give the new run another name with --name",
    },
    ErrorPage {
        code: "GR0203",
        cause: "--resume was given, but the directory holds no run",
        remedy: "check the name and --runs; without --resume a new run is started",
    },
    ErrorPage {
        code: "GR0204",
        cause: "a file in the run directory could not be read or written",
        remedy: "the message names the file and the system's reason; mend it and continue with --resume",
    },
    ErrorPage {
        code: "GR0205",
        cause: "a step would have trained a rollout twice, or one unknown to the run: a defect, stopped before it did harm",
        remedy: "keep the run directory and report it; the last committed step is intact and --resume continues from it",
    },
    ErrorPage {
        code: "GR0206",
        cause: "the run's settings contradict themselves",
        remedy: "the message names the setting and what would be right",
    },
    ErrorPage {
        code: "GR0207",
        cause: "a part of the run failed more often than is tolerated, so the run was ended instead of left hanging",
        remedy: "mend what the message names, then continue with --resume: nothing trained is lost",
    },
    ErrorPage {
        code: "GR0208",
        cause: "another process holds this run's directory",
        remedy: "stop that process, or wait for it to end; a crashed process holds nothing",
    },
    ErrorPage {
        code: "GR0209",
        cause: "a run was to go on under another name, with another seed, or with another run's run.db: its history would not fit",
        remedy: "resume it under its own name and with its own seed, or begin a new run",
    },
    ErrorPage {
        code: "GR0210",
        cause: "a warning: several steps in a row had nothing to learn from. No token could be trained on, or every group earned one and the same reward",
        remedy: "the message says how the rollouts ended. A context shorter than the prompt: raise rollout.max_context_tokens; format errors: warm-start the policy; equal rewards: easier or harder tasks, or more rollouts a group",
    },
    ErrorPage {
        code: "GR0211",
        cause: "a warning: an engine did not take new weights in time, so it serves nothing; the run goes on with the others",
        remedy: "see that it runs and can be reached; it is brought to the newest weights by itself as soon as it answers",
    },
    ErrorPage {
        code: "GR0212",
        cause: "a warning: the newest checkpoints of the run are damaged, or trajectories of its next step are, and --resume does without",
        remedy: "nothing needs to be done: steps after the checkpoint that is sound are undone in run.db and made again, lost rollouts too. \
                 To keep them instead, stop the run at once and put the named file back from a copy of the whole run directory",
    },
    ErrorPage {
        code: "GR0213",
        cause: "no checkpoint of the run is sound: the newest is damaged, and no older one is kept or sound (run.keep_checkpoints)",
        remedy: "put the named file back from a copy and give --resume again; or begin another run with --name and \
                 model.dir = runs/NAME/weights/export/NUMBER, the policy as it was after that step, without a warm start",
    },
];
