//! The Python that runs the tests of projects: asked who it is before it is used, or made.
//!
//! Sandboxes must see it under the same path, so everything it is made of is told. What only one user's home adds to it does
//! not count: in a sandbox that is not there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::MakeError;
use super::process::run;

/// Tells of an interpreter what is asked of it.
const QUESTION: &str = "import importlib.util, json, os, site, sys\n\
    def where(name):\n\
    \x20   spec = importlib.util.find_spec(name)\n\
    \x20   return os.path.abspath(spec.origin) if spec and spec.origin else ''\n\
    home = site.getusersitepackages()\n\
    paths = [sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.realpath(sys.executable)), *sys.path]\n\
    paths = [os.path.abspath(path) for path in paths if os.path.isdir(path)]\n\
    pytest = where('pytest')\n\
    print(json.dumps({'program': sys.executable, 'version': list(sys.version_info[:2]), 'pip': where('pip') != '',\n\
    \x20   'pytest': pytest != '' and not pytest.startswith(home), 'paths': [path for path in paths if path != home]}))\n";
/// Longest time for an interpreter to answer.
const ANSWER_SECONDS: u32 = 60;
/// Longest time to install pytest.
const INSTALL_SECONDS: u32 = 300;
/// What is installed into a made environment; one version, so that the same tests are found everywhere.
const PYTEST: &str = "pytest==9.2.0";
/// The Python that stands for those that are not named.
const USUAL: &str = "python3";

/// An interpreter with pytest.
#[derive(Clone, Debug)]
pub(super) struct TestPython {
    /// Its path.
    pub(super) program: String,
    /// An interpreter with pip: itself, or the machine's.
    pub(super) with_pip: String,
    /// Folders that sandboxes must see; none is part of another.
    pub(super) paths: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Answer {
    program: String,
    version: (u32, u32),
    pip: bool,
    pytest: bool,
    paths: BTreeSet<PathBuf>,
}

impl TestPython {
    /// The named one, or else one that is made in `folder` from the machine's own.
    pub(super) fn find(named: Option<&Path>, folder: &Path) -> Result<Self, MakeError> {
        let Some(named) = named else { return Self::make(folder) };
        let answer = ask(named)?;
        if !answer.pytest {
            let remedy =
                "`-m pip install pytest` into it, or leave --python away to have an environment with pytest made";
            return Err(MakeError::python(named, format!("it has no pytest that a sandbox could see: {remedy}")));
        }
        let with_pip = if answer.pip { answer.program.clone() } else { with_pip(Path::new(USUAL))? };
        Ok(Self { program: answer.program, with_pip, paths: outermost(answer.paths) })
    }

    fn make(folder: &Path) -> Result<Self, MakeError> {
        let pip = with_pip(Path::new(USUAL))?;
        let place = folder.join("python");
        let program = place.join("bin/python");
        let (place, path) = (place.to_string_lossy(), program.to_string_lossy());
        // pip is the machine's, so that no ensurepip is needed
        must(&pip, &["-m", "venv", "--without-pip", &place], "a virtual environment cannot be made")?;
        let install = ["-m", "pip", "--python", &path, "install", "-q", "--no-warn-script-location", PYTEST];
        must(&pip, &install, "pip cannot install pytest")?;
        let answer = ask(&program)?;
        Ok(Self { program: answer.program, with_pip: pip, paths: outermost(answer.paths) })
    }
}

/// The path of an interpreter that has pip.
fn with_pip(python: &Path) -> Result<String, MakeError> {
    let answer = ask(python)?;
    match answer.pip {
        true => Ok(answer.program),
        false => {
            Err(MakeError::python(python, "it has no pip: install it (`-m ensurepip`, or the system's python3-pip)"))
        }
    }
}

fn ask(python: &Path) -> Result<Answer, MakeError> {
    let place = on_path(python);
    let words = [&*place.to_string_lossy(), "-B", "-c", QUESTION];
    let finished = run(Path::new("/"), &words, &[], ANSWER_SECONDS)?;
    let why_not = "it does not run as a Python: name one with --python";
    let answer: Answer = match finished.status {
        0 => serde_json::from_str(&finished.stdout).map_err(|_| MakeError::python(python, why_not))?,
        _ => return Err(MakeError::python(python, why_not)),
    };
    match answer.version >= (3, 9) {
        true => Ok(answer),
        false => Err(MakeError::python(python, "it is older than Python 3.9: name a newer one with --python")),
    }
}

/// A bare name is looked for where the caller's shell would, a path is made absolute.
fn on_path(python: &Path) -> PathBuf {
    if python.components().count() > 1 || python.is_absolute() {
        return std::path::absolute(python).unwrap_or_else(|_| python.to_owned());
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(python)).find(|path| path.is_file());
    found.unwrap_or_else(|| python.to_owned())
}

fn must(python: &str, words: &[&str], trouble: &str) -> Result<(), MakeError> {
    let all: Vec<&str> = [python].iter().chain(words).copied().collect();
    let finished = run(Path::new("/"), &all, &[], INSTALL_SECONDS)?;
    match finished.status {
        0 => Ok(()),
        _ => Err(MakeError::python(Path::new(python), format!("{trouble}: {}", last_line(&finished.stderr)))),
    }
}

/// The last line of a program's complaint.
pub(super) fn last_line(text: &str) -> &str {
    text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it does not say why")
}

fn outermost(paths: BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let mut kept: Vec<PathBuf> = Vec::new();
    // in order, a folder comes before what is in it
    for path in paths {
        if !kept.iter().any(|folder| path.starts_with(folder)) {
            kept.push(path);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_inside_of_others_are_left_out() {
        let paths = ["/opt/py/lib/site", "/opt/py", "/usr/lib/python3", "/opt/pyx"].map(PathBuf::from);
        let kept = outermost(paths.into_iter().collect());
        assert_eq!(kept, ["/opt/py", "/opt/pyx", "/usr/lib/python3"].map(PathBuf::from));
    }

    #[test]
    fn what_is_no_python_is_told_in_one_line_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        for wrong in ["/nonexistent/python", "/bin/true", "/bin/false", "no-such-python"] {
            let error = TestPython::find(Some(Path::new(wrong)), folder.path()).unwrap_err();
            let text = error.to_string();
            assert!(error.code() == "GR0335" && text.lines().count() == 1, "{text}");
            assert!(text.contains(wrong) && text.contains("--python"), "{text}");
        }
    }
}
