//! The Python of this machine: a program with pip, which fetches, unpacks and installs.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::progress::Progress;

/// A script's way of saying that trying again may help.
const TRY_AGAIN: i32 = 2;

/// An interpreter that was seen to work.
pub(crate) struct Python {
    program: &'static str,
}

/// How a script ended that reports its progress.
#[derive(Debug, PartialEq)]
pub(crate) enum ScriptEnd {
    Done,
    /// It did not come to its end, but may when tried again.
    TryAgain(String),
    /// It will not come to its end.
    Failed(String),
}

impl Python {
    /// The interpreter that PATH (thus an active virtual environment, too) names.
    pub(crate) fn find() -> Option<Self> {
        ["python3", "python"].into_iter().map(|program| Self { program }).find(|python| {
            let version = "import sys; sys.exit(sys.version_info < (3, 8))";
            python.command().args(["-c", version]).output().is_ok_and(|output| output.status.success())
        })
    }

    /// The interpreter, with pip.
    pub(crate) fn with_pip() -> anyhow::Result<Self> {
        let python = Self::find()
            .context("there is no python3 (3.8 or later) on PATH: install it, with pip (Debian: python3-pip)")?;
        let output = python.command().args(["-m", "pip", "--version"]).output().context("python3 does not start")?;
        if !output.status.success() {
            bail!("{} has no pip: install it (Debian: python3-pip)", python.program);
        }
        Ok(python)
    }

    /// A command of it. libtorch's folder must not be on its library path: a PyTorch of its own would load the wrong one.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command.env_remove("LD_LIBRARY_PATH").env_remove("PYTHONSAFEPATH").stdin(Stdio::null());
        command
    }

    /// pip, quiet but for its errors.
    pub(crate) fn pip(&self) -> Command {
        let mut command = self.command();
        command.args(["-m", "pip", "--disable-pip-version-check", "--no-input"]);
        command
    }

    /// What a script prints.
    pub(crate) fn output(&self, script: &str) -> Option<String> {
        let output = self.command().args(["-c", script]).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Runs a script that prints "total BYTES" and "at BYTES", and shows these.
    pub(crate) fn script<Word: AsRef<OsStr>>(
        &self,
        script: &str,
        arguments: impl IntoIterator<Item = Word>,
        progress: &mut Progress,
    ) -> anyhow::Result<ScriptEnd> {
        let mut command = self.command();
        command.args(["-c", script]).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("python3 does not start")?;
        if let Some(lines) = child.stdout.take() {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                match line.split_once(' ').and_then(|(word, count)| Some((word, count.parse().ok()?))) {
                    Some(("total", bytes)) => progress.total(bytes),
                    Some(("at", bytes)) => progress.at(bytes),
                    _ => {}
                }
            }
        }
        let mut talk = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            stderr.read_to_string(&mut talk).ok();
        }
        let status = child.wait().context("python3 cannot be waited for")?;
        let last_line = talk.trim().lines().last().unwrap_or("it does not say why").to_owned();
        Ok(match status.code() {
            Some(0) => ScriptEnd::Done,
            Some(TRY_AGAIN) => ScriptEnd::TryAgain(last_line),
            _ => ScriptEnd::Failed(last_line),
        })
    }
}
