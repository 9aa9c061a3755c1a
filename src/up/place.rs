//! Where a run lies, what lies there already, and whether it is complete.

use std::path::{Path, PathBuf};

use greenroom_run::{Database, RunSummary};

use super::inputs::Inputs;
use crate::StartError;
use crate::config::Config;
use crate::files::{self, Limit};

/// At most so many runs are named where the right one is missing.
const RUNS_SHOWN: usize = 20;

/// Where a run lies, and whether it goes on or begins.
#[derive(Clone, Debug)]
pub struct RunPlace {
    /// The directory of all runs.
    pub runs_dir: PathBuf,
    /// The run's name; its directory is `runs_dir/name`.
    pub name: String,
    /// Go on with an existing run instead of beginning one.
    pub resume: bool,
}

impl RunPlace {
    /// The run's directory.
    pub fn path(&self) -> PathBuf {
        self.runs_dir.join(&self.name)
    }

    /// The configuration with which the run was last worked on.
    pub fn saved_config(&self) -> PathBuf {
        self.path().join("config.toml")
    }

    /// What a run that has ended has come to.
    pub fn summary(&self) -> PathBuf {
        self.path().join("summary.json")
    }

    /// Whether the name can be one, and whether there is a run to go on with if one is wanted.
    ///
    /// # Errors
    /// [`StartError::Name`] (GR0906); [`StartError::NoRun`] (GR0203), which says where it looked and what is there;
    /// [`StartError::RunLost`] (GR0916).
    pub fn check(&self) -> Result<(), StartError> {
        check_name(&self.name)?;
        check_not_lost(&self.path())?;
        if self.resume && !self.path().join("run.db").exists() {
            return Err(self.no_run());
        }
        Ok(())
    }

    /// The error that tells where a run was looked for and which there are.
    pub fn no_run(&self) -> StartError {
        let dir = std::path::absolute(&self.runs_dir).unwrap_or_else(|_| self.runs_dir.clone());
        let runs = self.names_of_runs();
        let others = match runs.len() {
            0 => format!("there is no run in {}", dir.display()),
            count if count > RUNS_SHOWN => {
                format!("{count} runs are in {}, such as {}", dir.display(), runs[..RUNS_SHOWN].join(", "))
            }
            _ => format!("the runs in {} are {}", dir.display(), runs.join(", ")),
        };
        StartError::NoRun { path: dir.join(&self.name), others }
    }

    /// The names of all runs beside this one.
    fn names_of_runs(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.runs_dir).into_iter().flatten().flatten();
        let runs = entries.filter(|entry| entry.path().join("run.db").exists());
        let mut names: Vec<String> = runs.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// The summary of a run that has nothing left to do under this configuration; `None` for one that has, or that this
/// configuration does not fit. Nothing is begun and nothing is changed.
///
/// # Errors
/// The run's database or its inputs cannot be read; or the inputs are others than the run's (GR0910).
pub fn completed(config: &Config, place: &RunPlace) -> anyhow::Result<Option<RunSummary>> {
    let text = files::read_text("the run's", &place.summary(), Limit::SMALL).unwrap_or_default();
    let Ok(summary) = serde_json::from_str::<RunSummary>(&text) else { return Ok(None) };
    let steps = Database::open_to_read(&place.path().join("run.db"))?.committed_steps()?;
    let is_trained = steps.last().is_some_and(|last| last.step == summary.steps && last.step >= config.run.steps);
    // the summary of a run that was stopped between its last step and the measurement after it lacks that measurement
    let is_measured = if config.run.steps == 0 { summary.eval_before } else { summary.eval_after }.is_some();
    if !is_trained || config.run.evaluation.before_and_after && !is_measured {
        return Ok(None);
    }
    let config = config.clone().with_absolute_paths()?;
    let same_seed = Inputs::of_run(&config)?.check(&place.path())?;
    Ok(same_seed.then_some(summary))
}

/// Whether a directory holds what a run has made and not its history: neither may a new run begin over that, nor can this one
/// go on. A start that was killed before it had made anything is no such run.
///
/// # Errors
/// [`StartError::RunLost`] (GR0916).
pub fn check_not_lost(dir: &Path) -> Result<(), StartError> {
    let is_there = std::fs::metadata(dir.join("run.db")).is_ok_and(|metadata| metadata.len() > 0);
    match made_by_a_run(dir) {
        made if made.is_empty() || is_there => Ok(()),
        made => Err(StartError::RunLost { path: dir.to_owned(), made: made.join(", ") }),
    }
}

/// Whether a history is that of what lies beside it: one without a rollout has made nothing.
///
/// # Errors
/// [`StartError::RunLost`] (GR0916).
pub fn check_history(dir: &Path, history: &greenroom_run::check::History) -> Result<(), StartError> {
    match made_by_a_run(dir) {
        made if made.is_empty() || !history.rollouts.is_empty() || !history.steps.is_empty() => Ok(()),
        made => Err(StartError::RunLost { path: dir.to_owned(), made: made.join(", ") }),
    }
}

/// What only a run makes, and only once it has begun to work.
fn made_by_a_run(dir: &Path) -> Vec<&'static str> {
    let holds_something = |name: &&str| {
        let path = dir.join(name);
        let is_full = std::fs::metadata(&path).is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0);
        is_full || std::fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some())
    };
    ["metrics.jsonl", "trajectories", "checkpoints"].into_iter().filter(holds_something).collect()
}

/// A run's name is a directory's name, and stands in every label of its weights: it must not lead elsewhere.
pub(crate) fn check_name(name: &str) -> Result<(), StartError> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    let begins_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if is_plain && begins_well && name.len() <= 100 {
        return Ok(());
    }
    Err(StartError::Name { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str, runs_dir: &std::path::Path) -> RunPlace {
        RunPlace { runs_dir: runs_dir.to_owned(), name: name.to_owned(), resume: true }
    }

    #[test]
    fn a_name_stays_in_the_directory_of_runs() {
        for name in ["mine", "quickstart-seed0", "a.b_c-1", "7"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        let long = "x".repeat(101);
        for name in
            ["", ".", "..", "../x", "a/b", "/tmp/x", ".hidden", "-x", "a b", "a:1", "new\nline", "n\u{e4}h", &long]
        {
            let refused = check_name(name).map_err(|error| error.code());
            assert_eq!(refused, Err("GR0906"), "{name:?}");
        }
    }

    #[test]
    fn who_looks_for_a_missing_run_hears_where_and_what_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let said = |name: &str| place(name, dir.path()).check().unwrap_err().to_string();
        let root = dir.path().display();
        assert_eq!(said("mine"), format!("{root}/mine holds no run; there is no run in {root}"));
        for name in ["zoe", "adam", "no-run"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        for name in ["zoe", "adam"] {
            std::fs::write(dir.path().join(name).join("run.db"), "").unwrap();
        }
        assert_eq!(said("mine"), format!("{root}/mine holds no run; the runs in {root} are adam, zoe"));
        assert!(place("zoe", dir.path()).check().is_ok());
    }

    #[test]
    fn a_run_without_its_history_is_neither_begun_anew_nor_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("mine");
        let check = |resume| RunPlace { resume, ..place("mine", dir.path()) }.check();
        for part in ["trajectories", "checkpoints", "weights"] {
            std::fs::create_dir_all(run.join(part)).unwrap();
        }
        for file in ["config.toml", "inputs.json", "run.db"] {
            std::fs::write(run.join(file), "").unwrap();
        }
        assert!(check(false).is_ok() && check(true).is_ok(), "what was killed while it began");
        std::fs::write(run.join("trajectories/t00001-g000.bin"), "x").unwrap();
        for is_empty in [true, false] {
            if !is_empty {
                std::fs::remove_file(run.join("run.db")).unwrap();
            }
            for resume in [true, false] {
                let error = check(resume).unwrap_err();
                assert!(error.code() == "GR0916" && error.to_string().contains("(trajectories)"), "{error}");
            }
        }
        std::fs::write(run.join("run.db"), "something").unwrap();
        assert!(check(true).is_ok());
    }

    #[test]
    fn a_summary_is_read_as_it_was_written() {
        for number in 0..1_000 {
            let draw = greenroom_core::Seed::new(0).child_numbered("summary", number).value();
            let value = Some(draw as f64 / u64::MAX as f64);
            let summary = RunSummary { wall_s: draw as f64 / 1e16, eval_after: value, ..RunSummary::default() };
            let text = serde_json::to_string(&summary).unwrap();
            assert_eq!(serde_json::from_str::<RunSummary>(&text).unwrap(), summary, "{text}");
        }
    }
}
