//! Bug-fixing tasks from real projects: a source distribution from PyPI becomes a git repository, small edits of its code
//! become bugs, and those that the project's own tests notice become tasks.
//!
//! A row is kept when some tests that pass on `main` fail with the edit, the same ones in two runs, while others go on to
//! pass; the fix is the edit undone. Test ids that are not the same in three runs with different hash seeds are left out.
//! Nothing of the project's code enters this repository: it is fetched when asked for. Deterministic for a seed, given the
//! same distribution, Python and pytest.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use greenroom_core::Seed;
use serde::Deserialize;
use serde_json::Value;

use super::MakeProgress;
use super::error::MakeError;
use super::instance::{Instance, Nursery, TestRun};
use super::process::{run, shell};
use super::python::{TestPython, last_line};
use super::repository::Repository;
use crate::grading::{LogParser, shell_quote};

/// Finds edits; run by the Python that runs the tests.
const MUTATIONS: &str = include_str!("mutations.py");
/// Longest time to fetch a distribution.
const FETCH_SECONDS: u32 = 300;
/// Edits tried for each wanted task.
const TRIES_PER_TASK: u32 = 12;
/// Tasks of one strategy in one project are at most this part of all, rounded up.
const STRATEGY_SHARE: u32 = 3;
/// What test runs leave behind, never part of a change.
const IGNORED: &str = "__pycache__/\n*.py[cod]\n.pytest_cache/\n*.egg-info/\n.coverage\n";

/// Stands in a folder that was made here.
const MARKER: &str = ".made-bugs";
/// Projects that are worked on at once.
const WORKERS: usize = 2;

/// A project on PyPI at one version, written `name==version`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name on PyPI.
    pub name: String,
    /// The version.
    pub version: String,
}

impl FromStr for Package {
    type Err = MakeError;

    fn from_str(text: &str) -> Result<Self, MakeError> {
        let is_plain = |part: &str| {
            !part.is_empty()
                && !part.starts_with(['-', '.'])
                && part.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.+!".contains(letter))
        };
        match text.split_once("==") {
            Some((name, version)) if is_plain(name) && is_plain(version) => {
                Ok(Self { name: name.to_owned(), version: version.to_owned() })
            }
            _ => Err(MakeError::Package {
                package: text.to_owned(),
                reason: "write a project as NAME==VERSION, such as toolz==1.2.0".to_owned(),
            }),
        }
    }
}

impl fmt::Display for Package {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}=={}", self.name, self.version)
    }
}

impl Package {
    fn failed(&self, reason: &str) -> MakeError {
        MakeError::Package { package: self.to_string(), reason: reason.to_owned() }
    }
}

/// Which tasks to make.
#[derive(Clone, Debug)]
pub struct BugsRequest {
    /// The projects.
    pub packages: Vec<Package>,
    /// At most this many tasks of each.
    pub tasks_per_package: u32,
    /// Decides which edits are tried, in which order.
    pub seed: Seed,
    /// A Python with pytest; without one, an environment with pytest is made in the folder.
    pub python: Option<PathBuf>,
}

/// Where made tasks are.
#[derive(Clone, Debug)]
pub struct BugsData {
    /// The tasks in the sample schema.
    pub tasks: PathBuf,
    /// The same in SWE-smith's columns.
    pub swesmith: PathBuf,
    /// Name of an image → the folder that a sandbox's work tree is a copy of.
    pub images: BTreeMap<String, PathBuf>,
    /// Number of tasks of each project.
    pub counts: BTreeMap<String, u32>,
    /// Projects that no task could be made of, with why and the remedy in one line.
    pub failed: BTreeMap<String, String>,
    /// Folders that the tests' Python is made of: sandboxes must see them under the same paths.
    pub python_paths: Vec<PathBuf>,
}

/// One project's image and instances.
struct Made {
    image: String,
    folder: PathBuf,
    instances: Vec<Instance>,
}

#[derive(Deserialize)]
struct Edit {
    file: String,
    function: String,
    strategy: String,
    text: String,
}

/// Makes tasks in `folder`; what was made there before is made anew. `progress` is called from several threads.
///
/// # Errors
/// [`MakeError`]: a Python without pip or pytest, a folder that holds other things, or no task at all. A project that cannot
/// be used does not end the work: it is told in [`BugsData::failed`].
pub fn bugs(
    folder: &Path,
    request: &BugsRequest,
    progress: &(dyn Fn(MakeProgress) + Sync),
) -> Result<BugsData, MakeError> {
    super::quickstart::prepare(folder, MARKER)?;
    let folder = &std::path::absolute(folder).map_err(|error| MakeError::file(folder, error))?;
    let total = request.packages.len() as u32 * (request.tasks_per_package + 1) + 1;
    let done = AtomicU32::new(0);
    let step = |parts: u32, what: String| {
        progress(MakeProgress { done: done.fetch_add(parts, Ordering::Relaxed) + parts, total, what });
    };
    let python = TestPython::find(request.python.as_deref(), folder)?;
    step(1, "python".to_owned());
    let mut data = BugsData {
        tasks: folder.join("tasks.jsonl"),
        swesmith: folder.join("swesmith.jsonl"),
        images: BTreeMap::new(),
        counts: BTreeMap::new(),
        failed: BTreeMap::new(),
        python_paths: python.paths.clone(),
    };
    let (mut instances, mut first_failure) = (Vec::new(), None);
    for (package, made) in request.packages.iter().zip(all(folder, request, &python, &step)) {
        match made {
            Ok(made) => {
                data.images.insert(made.image, made.folder);
                data.counts.insert(package.to_string(), made.instances.len() as u32);
                instances.extend(made.instances);
            }
            Err(error @ MakeError::Package { .. }) => {
                data.failed.insert(package.to_string(), error.to_string());
                first_failure.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    if instances.is_empty() {
        let unnoticed =
            || MakeError::check("bugs", "no edit was noticed by the tests: try another seed or other projects");
        return Err(first_failure.unwrap_or_else(unnoticed));
    }
    let samples: Vec<Value> = instances.iter().map(Instance::sample).collect();
    let rows: Result<Vec<Value>, _> = instances.iter().map(serde_json::to_value).collect();
    let rows = rows.map_err(|error| MakeError::check("bugs", error.to_string()))?;
    super::quickstart::write_rows(&data.tasks, &samples)?;
    super::quickstart::write_rows(&data.swesmith, &rows)?;
    Ok(data)
}

/// All projects, two at a time; the results are in the order of the request.
fn all(
    folder: &Path,
    request: &BugsRequest,
    python: &TestPython,
    step: &(dyn Fn(u32, String) + Sync),
) -> Vec<Result<Made, MakeError>> {
    let of_worker = |first: usize| {
        let packages = request.packages.iter().enumerate().skip(first).step_by(WORKERS);
        packages
            .map(|(number, package)| (number, of_package(folder, package, request, python, step)))
            .collect::<Vec<_>>()
    };
    let mut made: Vec<(usize, Result<Made, MakeError>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|first| scope.spawn(move || of_worker(first))).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect()
    });
    made.sort_by_key(|(number, _)| *number);
    made.into_iter().map(|(_, made)| made).collect()
}

fn of_package(
    folder: &Path,
    package: &Package,
    request: &BugsRequest,
    python: &TestPython,
    step: &(dyn Fn(u32, String) + Sync),
) -> Result<Made, MakeError> {
    let image = package.name.to_lowercase();
    let place = folder.join("images").join(&image);
    let mut repository = unpack(folder, package, &python.with_pip, &place)?;
    repository.commit(&format!("{} {}", package.name, package.version))?;
    let source = if place.join("src").is_dir() { "PYTHONPATH=src " } else { "" };
    let program = shell_quote(&python.program);
    let command = format!("{source}{program} -B -m pytest --disable-warnings --color=no --tb=no --verbose");
    let tests = TestRun { command, parser: LogParser::PytestVerbose };
    let mut nursery = Nursery::new(repository, "pypi", &image, tests, 3).map_err(|error| match error {
        MakeError::Check { .. } => package.failed(
            "fewer than two of its tests pass: take a version whose source distribution brings tests that need only pytest",
        ),
        other => other,
    })?;
    step(1, format!("{package}: {} tests pass", nursery.passes.len()));
    let planted = AtomicU32::new(0);
    let made = plant(&mut nursery, package, request, &python.program, &|what| {
        planted.fetch_add(1, Ordering::Relaxed);
        step(1, what);
    })?;
    let missing = request.tasks_per_package - planted.into_inner().min(request.tasks_per_package);
    step(missing, format!("{package}: {} tasks", made.len()));
    let image = nursery.image.clone();
    Ok(Made { image, folder: nursery.repository.finish()?, instances: made })
}

/// Fetches the source distribution and lays its files into a new repository.
fn unpack(folder: &Path, package: &Package, python: &str, place: &Path) -> Result<Repository, MakeError> {
    let sdists = folder.join("sdists").join(&package.name);
    std::fs::create_dir_all(&sdists).map_err(|error| MakeError::file(&sdists, error))?;
    let wanted = package.to_string();
    let words = [python, "-m", "pip", "-q", "download", "--no-deps", "--no-binary", &package.name, &wanted, "-d", "."];
    let finished = run(&sdists, &words, &[], FETCH_SECONDS)?;
    if finished.status != 0 {
        return Err(package.failed(&why_not_fetched(&finished.stderr)));
    }
    let archive = shell(&sdists, "ls -1 | grep -m 1 '[.]tar[.]gz$' || :")?;
    if archive.trim().is_empty() {
        return Err(package.failed("its source distribution is no .tar.gz: take another version"));
    }
    let repository = Repository::create(place)?;
    let archive = sdists.join(archive.trim());
    let target = shell_quote(&place.to_string_lossy());
    let source = shell_quote(&archive.to_string_lossy());
    shell(&sdists, &format!("tar --no-same-owner --strip-components=1 -xzf {source} -C {target}"))?;
    let ignore = place.join(".gitignore");
    let before = std::fs::read_to_string(&ignore).unwrap_or_default();
    repository.write(".gitignore", &format!("{before}\n{IGNORED}"))?;
    Ok(repository)
}

/// What pip's complaint comes to.
fn why_not_fetched(complaint: &str) -> String {
    if complaint.contains("No matching distribution found") {
        return "the package index has no source distribution of it: see `pip index versions` for others".to_owned();
    }
    let error =
        complaint.lines().map(str::trim).find(|line| line.starts_with("ERROR:")).unwrap_or(last_line(complaint));
    format!(
        "pip cannot fetch it ({}): see whether the package index can be reached",
        error.trim_start_matches("ERROR: ")
    )
}

/// Tries edits until there are enough tasks.
fn plant(
    nursery: &mut Nursery,
    package: &Package,
    request: &BugsRequest,
    python: &str,
    step: &dyn Fn(String),
) -> Result<Vec<Instance>, MakeError> {
    let wanted = request.tasks_per_package;
    let seed = (request.seed.child(&package.name).value() >> 1).to_string();
    let (place, limit) = (nursery.repository.folder().to_owned(), (wanted * TRIES_PER_TASK).to_string());
    let found = run(&place, &[python, "-B", "-c", MUTATIONS, ".", &seed, &limit], &[], FETCH_SECONDS)?;
    if found.status != 0 {
        return Err(MakeError::Program { command: "mutations.py".to_owned(), reason: found.stderr });
    }
    let mut made = Vec::new();
    let mut functions = BTreeSet::new();
    let mut strategies: BTreeMap<String, u32> = BTreeMap::new();
    for line in found.stdout.lines() {
        if made.len() as u32 >= wanted {
            break;
        }
        let edit: Edit =
            serde_json::from_str(line).map_err(|error| MakeError::check("mutations.py", error.to_string()))?;
        let is_frequent = strategies.get(&edit.strategy).is_some_and(|count| *count >= wanted.div_ceil(STRATEGY_SHARE));
        if is_frequent || functions.contains(&(edit.file.clone(), edit.function.clone())) {
            continue;
        }
        if let Some(instance) = try_edit(nursery, &edit)? {
            step(format!("{package}: {} in {}", edit.strategy, edit.function));
            functions.insert((edit.file, edit.function));
            *strategies.entry(edit.strategy).or_default() += 1;
            made.push(instance);
        }
    }
    Ok(made)
}

fn try_edit(nursery: &mut Nursery, edit: &Edit) -> Result<Option<Instance>, MakeError> {
    nursery.repository.write(&edit.file, &edit.text)?;
    let most_broken = (nursery.passes.len() / 4).max(6);
    match nursery.verdict()? {
        Some(verdict) if verdict.fail_to_pass.len() <= most_broken => {
            let statement = format!(
                "Since the last change `{}` in {} gives wrong results for some inputs. Find the mistake and mend it.",
                edit.function, edit.file
            );
            nursery.keep(verdict, &edit.strategy, &statement).map(Some)
        }
        _ => {
            nursery.repository.git(&["checkout", "-q", "-f", "main"])?;
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_is_written_with_its_version() {
        let package: Package = "toolz==1.2.0".parse().unwrap();
        assert_eq!((package.name.as_str(), package.version.as_str()), ("toolz", "1.2.0"));
        for wrong in ["toolz", "==1", "toolz==", "--index-url==1", "a b==1", "../x==1"] {
            assert!(wrong.parse::<Package>().is_err(), "{wrong}");
        }
    }
}
