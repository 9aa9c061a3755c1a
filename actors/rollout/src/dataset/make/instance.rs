//! From a seeded bug to a checked instance of SWE-smith's shape.
//!
//! Checked when made: the tests of `main` all pass and have the same ids in two runs; with the bug some of them fail, the
//! same ones in two runs with different hash seeds, and some still pass; the fix restores the text whose tests pass. So
//! the fix earns 1 and doing nothing earns 0. A row that cannot promise this is an error, never a row.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::error::MakeError;
use super::process::run;
use super::repository::Repository;
use crate::grading::{LogParser, StatusMap, TestStatus};

/// Longest time for one run of a project's tests.
const TEST_SECONDS: u32 = 90;

/// How a project's tests are run and read.
#[derive(Clone, Debug)]
pub(super) struct TestRun {
    /// For bash.
    pub(super) command: String,
    /// Reads the output.
    pub(super) parser: LogParser,
}

impl TestRun {
    /// unittest, verbose.
    pub(super) fn unittest() -> Self {
        Self { command: "python3 -B -m unittest -v".to_owned(), parser: LogParser::UnittestSlugify }
    }

    /// Runs the tests; `None` when they did not end in time.
    pub(super) fn statuses(&self, folder: &Path, hash_seed: u32) -> Result<Option<StatusMap>, MakeError> {
        let script = format!("( {} ) 2>&1", self.command);
        let hash_seed = hash_seed.to_string();
        let finished = run(
            folder,
            &["bash", "-c", &script],
            &[("PYTHONHASHSEED", &hash_seed), ("PYTHONNOUSERSITE", "1")],
            TEST_SECONDS,
        )?;
        Ok((finished.status != 124).then(|| self.parser.parse(&finished.stdout)))
    }

    /// The tests that pass in every one of `runs` runs with different hash seeds.
    pub(super) fn stable_passes(&self, folder: &Path, runs: u32) -> Result<BTreeSet<String>, MakeError> {
        let mut stable: Option<BTreeSet<String>> = None;
        for hash_seed in 0..runs {
            let statuses = self.statuses(folder, hash_seed)?.unwrap_or_default();
            let passed = |(id, status): (&String, &TestStatus)| (*status == TestStatus::Passed).then(|| id.clone());
            let passes: BTreeSet<String> = statuses.iter().filter_map(passed).collect();
            stable =
                Some(stable.map_or_else(|| passes.clone(), |before| before.intersection(&passes).cloned().collect()));
        }
        Ok(stable.unwrap_or_default())
    }
}

/// A row in SWE-smith's shape; `patch` brings the bug in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(non_snake_case)]
pub struct Instance {
    /// `<owner>__<repo>.<commit8>.<strategy>__<hash8>`, also the name of the branch.
    pub instance_id: String,
    /// The bug as a difference.
    pub patch: String,
    /// Tests that the bug breaks.
    pub FAIL_TO_PASS: Vec<String>,
    /// Tests that must go on to pass.
    pub PASS_TO_PASS: Vec<String>,
    /// The sandbox image.
    pub image_name: String,
    /// `<mirror>/<owner>__<repo>.<commit8>`.
    pub repo: String,
    /// The commit of `main`.
    pub base_commit: String,
    /// What the agent is told.
    pub problem_statement: String,
    /// How the tests are run, for bash.
    pub test_cmd: String,
    /// Name of the parser of their output.
    pub log_parser: String,
}

/// A repository whose `main` passes its tests, ready for bugs.
#[derive(Debug)]
pub(super) struct Nursery {
    pub(super) repository: Repository,
    /// `<owner>__<repo>.<commit8>`.
    pub(super) name: String,
    pub(super) image: String,
    pub(super) tests: TestRun,
    pub(super) passes: BTreeSet<String>,
    base_commit: String,
}

/// What tests say about an edit.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) fail_to_pass: Vec<String>,
    pub(super) pass_to_pass: Vec<String>,
}

impl Nursery {
    /// Runs the tests of `main` and keeps those that pass in every run.
    pub(super) fn new(
        repository: Repository,
        owner: &str,
        repo: &str,
        tests: TestRun,
        runs: u32,
    ) -> Result<Self, MakeError> {
        let base_commit = repository.hash("main")?;
        let name = format!("{owner}__{repo}.{}", base_commit.get(..8).unwrap_or_default());
        let passes = tests.stable_passes(repository.folder(), runs)?;
        if passes.len() < 2 {
            return Err(MakeError::check(name, format!("`{}` passes fewer than two tests on main", tests.command)));
        }
        let image = repo.to_lowercase();
        Ok(Self { repository, name, image, tests, passes, base_commit })
    }

    /// Runs the tests on the work tree twice. `None` when it breaks nothing or everything, or not the same in both runs.
    pub(super) fn verdict(&self) -> Result<Option<Verdict>, MakeError> {
        let folder = self.repository.folder();
        let Some(first) = self.tests.statuses(folder, 0)? else { return Ok(None) };
        let broken = |status: Option<&TestStatus>| matches!(status, Some(TestStatus::Failed | TestStatus::Error));
        let fail_to_pass: Vec<String> = self.passes.iter().filter(|id| broken(first.get(*id))).cloned().collect();
        let holds = |id: &&String| first.get(*id) == Some(&TestStatus::Passed);
        let pass_to_pass: Vec<String> = self.passes.iter().filter(holds).cloned().collect();
        if fail_to_pass.is_empty() || pass_to_pass.is_empty() {
            return Ok(None);
        }
        let Some(second) = self.tests.statuses(folder, 5)? else { return Ok(None) };
        let is_same = fail_to_pass.iter().all(|id| broken(second.get(id)))
            && pass_to_pass.iter().all(|id| second.get(id) == Some(&TestStatus::Passed));
        Ok(is_same.then_some(Verdict { fail_to_pass, pass_to_pass }))
    }

    /// Commits the work tree as an instance.
    pub(super) fn keep(&mut self, verdict: Verdict, strategy: &str, statement: &str) -> Result<Instance, MakeError> {
        let patch = self.repository.difference()?;
        let digest = format!("{:x}", Sha256::digest(patch.as_bytes()));
        let instance_id = format!("{}.{strategy}__{}", self.name, digest.get(..8).unwrap_or_default());
        let hidden = test_files(self.repository.folder(), &verdict.fail_to_pass);
        if hidden.is_empty() {
            return Err(MakeError::check(instance_id, "no file holds its failing tests"));
        }
        self.repository.branch(&instance_id, &hidden)?;
        Ok(Instance {
            instance_id,
            patch,
            FAIL_TO_PASS: verdict.fail_to_pass,
            PASS_TO_PASS: verdict.pass_to_pass,
            image_name: self.image.clone(),
            repo: format!("greenroom/{}", self.name),
            base_commit: self.base_commit.clone(),
            problem_statement: statement.to_owned(),
            test_cmd: self.tests.command.clone(),
            log_parser: self.tests.parser.name().to_owned(),
        })
    }
}

/// The files that hold tests, from pytest's or unittest's ids.
fn test_files(folder: &Path, ids: &[String]) -> BTreeSet<String> {
    let file_of = |id: &String| {
        if let Some((file, _)) = id.split_once("::") {
            return Some(file.to_owned());
        }
        let dotted = id.strip_suffix(')')?.rsplit_once('(')?.1;
        let parts: Vec<&str> = dotted.split('.').collect();
        let candidates = (1..=parts.len()).rev().map(|count| format!("{}.py", parts[..count].join("/")));
        candidates.into_iter().find(|path| folder.join(path).is_file())
    };
    ids.iter().filter_map(file_of).filter(|path| folder.join(path).is_file()).collect()
}

impl Instance {
    /// The command that makes a sandbox ready: the work tree of the instance. What of the history the agent must not find
    /// is withheld by the rollout.
    pub fn setup_cmd(&self) -> String {
        format!("git checkout -q -f {}", self.instance_id)
    }

    /// The row in the sample schema.
    pub fn sample(&self) -> Value {
        json!({
            "text": self.problem_statement,
            "label": self.instance_id,
            "metadata": {
                "instance_id": self.instance_id,
                "task": self.problem_statement,
                "repo": self.repo,
                "base_commit": self.base_commit,
                "image": self.image_name,
                "pool": self.image_name,
                "files": {},
                "setup_cmd": self.setup_cmd(),
                "eval_kind": "swesmith",
                "test_cmd": self.test_cmd,
                "log_parser": self.log_parser,
                "FAIL_TO_PASS": self.FAIL_TO_PASS,
                "PASS_TO_PASS": self.PASS_TO_PASS,
                "bug_patch": self.patch,
            },
        })
    }
}
