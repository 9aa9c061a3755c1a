//! `greenroom ctl VERB`: joins a run's cluster, does one verb of the shell, leaves.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use greenroom::cluster::IdentityFiles;
use greenroom::shell::{Done, Output, Request, Session, ShellError, Shown, Way, at_once, parse, printable};

use crate::cli::{Ctl, ShellWay};

pub(super) fn run(ctl: Ctl) -> anyhow::Result<ExitCode> {
    let request = match parse(&ctl.words) {
        Ok(request) => request,
        Err(error) => return told(&error),
    };
    if let Some(done) = at_once(&request, ctl.way.output) {
        return finished(done);
    }
    let way = way(&ctl.way)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime cannot start")?;
    let done = runtime.block_on(async {
        let session = match Session::join(&way, waits).await {
            Ok(session) => session,
            Err(error) => return error.downcast::<ShellError>().map(Err),
        };
        let done = perform(&session, &request, ctl.way.output).await;
        session.leave().await;
        Ok(done)
    })?;
    finished(done)
}

/// Does a verb; Ctrl-C ends what goes on for ever.
pub(super) async fn perform(session: &Session, request: &Request, usual: Output) -> Result<Done, ShellError> {
    let is_screen = std::io::stdout().is_terminal();
    let mut is_first = true;
    let mut show = |shown: Shown<'_>| {
        let text = as_written(shown, is_screen, std::mem::take(&mut is_first));
        let mut stdout = std::io::stdout();
        writeln!(stdout, "{text}").and_then(|()| stdout.flush()).is_ok()
    };
    tokio::select! {
        done = session.perform(request, usual, &mut show) => done,
        _ = tokio::signal::ctrl_c() => Ok(Done { text: String::new(), status: 0 }),
    }
}

/// A text that is one of several, as it is written. Only a screen can be cleared; elsewhere an empty line parts the looks.
fn as_written(shown: Shown<'_>, is_screen: bool, is_first: bool) -> String {
    match shown {
        Shown::Instead(text) if is_screen => format!("\x1b[2J\x1b[H{text}"),
        Shown::Instead(text) if !is_first => format!("\n{text}"),
        Shown::Instead(text) | Shown::After(text) => text.to_owned(),
    }
}

/// Tells what a shell waits for that does not get into the cluster at once.
pub(super) fn waits(text: &str) {
    eprintln!("{}", printable(text));
}

fn finished(done: Result<Done, ShellError>) -> anyhow::Result<ExitCode> {
    match done {
        Ok(done) => {
            if !done.text.is_empty() {
                super::print(&done.text)?;
            }
            Ok(ExitCode::from(done.status))
        }
        Err(error) => told(&error),
    }
}

fn told(error: &ShellError) -> anyhow::Result<ExitCode> {
    say(error);
    Ok(ExitCode::from(error.exit_status()))
}

/// Tells an error; what of it comes from strangers steers no terminal.
pub(super) fn say(error: &ShellError) {
    eprintln!("error: {}: {}", error.code(), printable(&error.to_string()));
}

/// The way into the cluster that the command line names.
pub(super) fn way(named: &ShellWay) -> anyhow::Result<Way> {
    anyhow::ensure!(
        !named.run.is_empty(),
        "GR0930: --run must be the run's name, as `run` in its nodes' files (or set GREENROOM_RUN)"
    );
    let tls = match (&named.tls_dir, &named.ca, &named.certificate, &named.key) {
        (Some(dir), ..) => Some(files_in(dir)?),
        (None, Some(ca), Some(certificate), Some(key)) => {
            Some(IdentityFiles { ca: ca.clone(), certificate: certificate.clone(), key: key.clone() })
        }
        _ => None,
    };
    Ok(Way { at: named.at.clone(), run: named.run.clone(), tls, cookie_file: named.cookie_file.clone() })
}

/// The one certificate in a directory, with its key and its authority.
fn files_in(dir: &Path) -> anyhow::Result<IdentityFiles> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("--tls-dir {}", dir.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let is_certificate = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "pem")
            && path.file_name().is_some_and(|name| name != "ca.pem")
    };
    let mut certificates: Vec<PathBuf> = paths.filter(is_certificate).collect();
    certificates.sort();
    let [certificate] = certificates.as_slice() else {
        anyhow::bail!(
            "GR0930: --tls-dir {} holds {} certificates beside ca.pem, and must hold one: name it with --ca, --certificate \
             and --key",
            dir.display(),
            certificates.len()
        );
    };
    Ok(IdentityFiles {
        ca: dir.join("ca.pem"),
        certificate: certificate.clone(),
        key: certificate.with_extension("key"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_screen_is_cleared() {
        assert_eq!(as_written(Shown::Instead("x"), true, true), "\x1b[2J\x1b[Hx");
        assert_eq!(as_written(Shown::Instead("x"), false, true), "x");
        assert_eq!(as_written(Shown::Instead("x"), false, false), "\nx");
        assert_eq!(as_written(Shown::After("x"), true, false), "x");
    }
}
