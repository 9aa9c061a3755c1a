//! Bug-fixing tasks from real projects: a source distribution from PyPI becomes a git repository, small edits of its code
//! become bugs, and those that the project's own tests notice become tasks.
//!
//! A row is kept when some tests that pass on `main` fail with the edit, the same ones in two runs, while others go on to
//! pass; the fix is the edit undone. Test ids that are not the same in three runs with different hash seeds are left out.
//! Nothing of the project's code enters this repository: it is fetched when asked for. Deterministic for a seed, given the
//! same distribution, Python and pytest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use greenroom_core::Seed;
use serde::Deserialize;
use serde_json::Value;

use super::MakeProgress;
use super::error::MakeError;
use super::instance::{Instance, Nursery, TestRun};
use super::process::{run, shell};
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
            _ => Err(MakeError::check(text, "write a project as name==version")),
        }
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
    /// A Python with pytest and pip; sandboxes must see it under the same path.
    pub python: PathBuf,
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
}

#[derive(Deserialize)]
struct Edit {
    file: String,
    function: String,
    strategy: String,
    text: String,
}

/// Makes tasks in `folder`, which must be empty or new.
///
/// # Errors
/// [`MakeError`]: no such distribution, a Python without pip or pytest, a project whose tests do not pass, or no task at all.
pub fn bugs(
    folder: &Path,
    request: &BugsRequest,
    progress: &(dyn Fn(MakeProgress) + Sync),
) -> Result<BugsData, MakeError> {
    let is_empty = std::fs::read_dir(folder).map(|mut entries| entries.next().is_none()).unwrap_or(true);
    if !is_empty {
        return Err(MakeError::file(folder, "is not empty"));
    }
    std::fs::create_dir_all(folder).map_err(|error| MakeError::file(folder, error))?;
    let total = request.packages.len() as u32;
    let mut data = BugsData {
        tasks: folder.join("tasks.jsonl"),
        swesmith: folder.join("swesmith.jsonl"),
        images: BTreeMap::new(),
        counts: BTreeMap::new(),
    };
    let mut instances = Vec::new();
    for (done, package) in (1..).zip(&request.packages) {
        let (image, place, made) = of_package(folder, package, request)?;
        progress(MakeProgress { done, total, what: format!("{}: {} tasks", package.name, made.len()) });
        data.images.insert(image, place);
        data.counts.insert(package.name.clone(), made.len() as u32);
        instances.extend(made);
    }
    if instances.is_empty() {
        return Err(MakeError::check("bugs", "no edit of any project was noticed by its tests"));
    }
    let samples: Vec<Value> = instances.iter().map(Instance::sample).collect();
    let rows: Result<Vec<Value>, _> = instances.iter().map(serde_json::to_value).collect();
    let rows = rows.map_err(|error| MakeError::check("bugs", error.to_string()))?;
    super::quickstart::write_rows(&data.tasks, &samples)?;
    super::quickstart::write_rows(&data.swesmith, &rows)?;
    Ok(data)
}

fn of_package(
    folder: &Path,
    package: &Package,
    request: &BugsRequest,
) -> Result<(String, PathBuf, Vec<Instance>), MakeError> {
    let python = request.python.to_string_lossy().into_owned();
    let image = package.name.to_lowercase();
    let place = folder.join("images").join(&image);
    let mut repository = unpack(folder, package, &python, &place)?;
    repository.commit(&format!("{} {}", package.name, package.version))?;
    let source = if place.join("src").is_dir() { "PYTHONPATH=src " } else { "" };
    let command =
        format!("{source}{} -B -m pytest --disable-warnings --color=no --tb=no --verbose", shell_quote(&python));
    let tests = TestRun { command, parser: LogParser::PytestVerbose };
    let mut nursery = Nursery::new(repository, "pypi", &image, tests, 3)?;
    let made = plant(&mut nursery, package, request, &python)?;
    let image = nursery.image.clone();
    Ok((image, nursery.repository.finish()?, made))
}

/// Fetches the source distribution and lays its files into a new repository.
fn unpack(folder: &Path, package: &Package, python: &str, place: &Path) -> Result<Repository, MakeError> {
    let sdists = folder.join("sdists").join(&package.name);
    std::fs::create_dir_all(&sdists).map_err(|error| MakeError::file(&sdists, error))?;
    let wanted = format!("{}=={}", package.name, package.version);
    let words = [python, "-m", "pip", "-q", "download", "--no-deps", "--no-binary", &package.name, &wanted, "-d", "."];
    let finished = run(&sdists, &words, &[], FETCH_SECONDS)?;
    if finished.status != 0 {
        let reason = format!("status {}: {}", finished.status, finished.stderr.trim_end());
        return Err(MakeError::Program { command: words.join(" "), reason });
    }
    let repository = Repository::create(place)?;
    let archive = shell(&sdists, "ls -1 *.tar.gz | head -n 1")?;
    let archive = sdists.join(archive.trim());
    let target = shell_quote(&place.to_string_lossy());
    let source = shell_quote(&archive.to_string_lossy());
    shell(&sdists, &format!("tar --no-same-owner --strip-components=1 -xzf {source} -C {target}"))?;
    let ignore = place.join(".gitignore");
    let before = std::fs::read_to_string(&ignore).unwrap_or_default();
    repository.write(".gitignore", &format!("{before}\n{IGNORED}"))?;
    Ok(repository)
}

/// Tries edits until there are enough tasks.
fn plant(
    nursery: &mut Nursery,
    package: &Package,
    request: &BugsRequest,
    python: &str,
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
        let edit: Edit = serde_json::from_str(line).map_err(|error| MakeError::check("mutations.py", error.to_string()))?;
        let is_frequent = strategies.get(&edit.strategy).is_some_and(|count| *count >= wanted.div_ceil(STRATEGY_SHARE));
        if is_frequent || functions.contains(&(edit.file.clone(), edit.function.clone())) {
            continue;
        }
        if let Some(instance) = try_edit(nursery, &edit)? {
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
