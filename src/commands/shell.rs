//! `greenroom shell`: joins a run's cluster and does verbs, line by line, until it is told to end.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use greenroom::shell::{Done, Session, ShellError, parse, split};
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{CompletionType, Config, Editor, Helper, Highlighter, Hinter, Validator};

use super::completion::{Names, candidates};
use super::ctl::{perform, say, waits, way};
use crate::cli::ShellWay;

/// The file with what was typed, in the home directory.
const HISTORY: &str = ".greenroom_history";

pub(super) fn run(named: &ShellWay) -> anyhow::Result<ExitCode> {
    let way = way(named)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime cannot start")?;
    let session = match runtime.block_on(Session::join(&way, waits)) {
        Ok(session) => Arc::new(session),
        Err(error) => {
            let error = error.downcast::<ShellError>()?;
            anyhow::bail!("{}: {error}", error.code());
        }
    };
    eprintln!("in the cluster of run {}; `help` lists the verbs, Ctrl-D ends", way.run);
    let do_line = |line: &str| {
        let request = split(line).map_err(|reason| ShellError::Words { reason }).and_then(|words| parse(&words));
        request.and_then(|request| runtime.block_on(perform(&session, &request, named.output)))
    };
    let status = if std::io::stdin().is_terminal() {
        let (asked, handle) = (session.clone(), runtime.handle().clone());
        let names = Names::new(move || handle.block_on(asked.names()));
        from_person(names, &way.run, do_line).map(|()| 0)
    } else {
        from_pipe(std::io::stdin().lock(), do_line)
    };
    runtime.block_on(session.leave());
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    Ok(ExitCode::from(status?))
}

/// Does what a person types, with a history.
fn from_person(
    names: Names,
    run: &str,
    mut do_line: impl FnMut(&str) -> Result<Done, ShellError>,
) -> anyhow::Result<()> {
    let mut editor = editor(names)?;
    let history = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(HISTORY));
    if let Some(history) = &history {
        // there is none at first
        let _ = editor.load_history(history);
    }
    let prompt = format!("{run}> ");
    loop {
        let line = match editor.readline(&prompt) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error.into()),
        };
        let line = line.trim();
        if is_end(line) {
            break;
        }
        if is_nothing(line) {
            continue;
        }
        // a line that is not remembered is still done
        let _ = editor.add_history_entry(line);
        tell(do_line(line))?;
    }
    if let Some(history) = &history {
        let _ = editor.save_history(history);
    }
    Ok(())
}

/// Does the lines of a program, each whatever became of those before; gives the status of the last one that failed, 0 if
/// none did.
fn from_pipe(mut lines: impl BufRead, mut do_line: impl FnMut(&str) -> Result<Done, ShellError>) -> anyhow::Result<u8> {
    let mut status = 0;
    loop {
        let mut bytes = Vec::new();
        if lines.read_until(b'\n', &mut bytes)? == 0 {
            return Ok(status);
        }
        let done = match std::str::from_utf8(&bytes).map(str::trim) {
            Ok(line) if is_nothing(line) => continue,
            Ok(line) if is_end(line) => return Ok(status),
            Ok(line) => do_line(line),
            Err(error) => Err(ShellError::Words {
                reason: format!("a line is not UTF-8 from its byte {} on, and was not done", error.valid_up_to() + 1),
            }),
        };
        match tell(done)? {
            0 => {}
            failed => status = failed,
        }
    }
}

/// Nothing, or a comment: scripts have such lines.
fn is_nothing(line: &str) -> bool {
    line.is_empty() || line.starts_with('#')
}

fn is_end(line: &str) -> bool {
    matches!(line, "exit" | "quit")
}

/// Shows what became of a verb; gives its status.
fn tell(done: Result<Done, ShellError>) -> anyhow::Result<u8> {
    match done {
        Ok(done) => {
            if !done.text.is_empty() {
                super::print(&done.text)?;
            }
            Ok(done.status)
        }
        Err(error) => {
            say(&error);
            Ok(error.exit_status())
        }
    }
}

fn editor(names: Names) -> anyhow::Result<Editor<Words, DefaultHistory>> {
    let config = Config::builder().completion_type(CompletionType::List).max_history_size(1_000)?.build();
    let mut editor = Editor::with_config(config)?;
    editor.set_helper(Some(Words(names)));
    Ok(editor)
}

/// Completes verbs and what may follow them.
#[derive(Helper, Highlighter, Hinter, Validator)]
struct Words(Names);

impl Completer for Words {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &rustyline::Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &line[..at];
        let begins = before.rfind(char::is_whitespace).map_or(0, |blank| blank + 1);
        let found = candidates(&before[..begins], &before[begins..], &self.0);
        let pairs = found.into_iter().map(|word| Pair { replacement: format!("{word} "), display: word });
        Ok((begins, pairs.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_program_are_all_done_and_the_last_failure_counts() {
        let mut seen = Vec::new();
        let mut of = |lines: &[u8]| {
            let done = |line: &str| {
                seen.push(line.to_owned());
                match line {
                    "viewer" => Err(ShellError::NeedsOperator { reason: "x".to_owned() }),
                    "ill" => Ok(Done { text: String::new(), status: 2 }),
                    _ => Ok(Done { text: String::new(), status: 0 }),
                }
            };
            from_pipe(lines, done).unwrap()
        };
        assert_eq!(of(b"well\n\n  # viewer\n#!/bin/x\nwell"), 0);
        assert_eq!(of(b"viewer\nwell\n"), 5);
        assert_eq!(of(b"viewer\nill\nquit\nviewer\n"), 2);
        assert_eq!(of(b"a\xff\nafter\n"), 2, "no line: refused as a verb that is none");
        assert_eq!(seen, ["well", "well", "viewer", "well", "viewer", "ill", "after"]);
    }
}
