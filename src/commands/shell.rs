//! `greenroom shell`: joins a run's cluster and does verbs, line by line, until it is told to end.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use greenroom::shell::{Session, ShellError, parse, split};
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{CompletionType, Config, Editor, Helper, Highlighter, Hinter, Validator};

use super::completion::{Names, candidates};
use super::ctl::{perform, way};
use crate::cli::ShellWay;

/// The file with what was typed, in the home directory.
const HISTORY: &str = ".greenroom_history";

pub(super) fn run(named: &ShellWay) -> anyhow::Result<ExitCode> {
    let way = way(named)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime cannot start")?;
    let session = match runtime.block_on(Session::join(&way)) {
        Ok(session) => Arc::new(session),
        Err(error) => {
            let error = error.downcast::<ShellError>()?;
            anyhow::bail!("{}: {error}", error.code());
        }
    };
    let (asked, handle) = (session.clone(), runtime.handle().clone());
    let mut editor = editor(Names::new(move || handle.block_on(asked.names())))?;
    let history = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(HISTORY));
    if let Some(history) = &history {
        // there is none at first
        let _ = editor.load_history(history);
    }
    eprintln!("in the cluster of run {}; `help` lists the verbs, Ctrl-D ends", way.run);
    let prompt = format!("{}> ", way.run);
    loop {
        let line = match editor.readline(&prompt) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error.into()),
        };
        let line = line.trim();
        if matches!(line, "exit" | "quit") {
            break;
        }
        if line.is_empty() {
            continue;
        }
        // a line that is not remembered is still done
        let _ = editor.add_history_entry(line);
        let request = split(line).map_err(|reason| ShellError::Words { reason }).and_then(|words| parse(&words));
        let done = request.and_then(|request| runtime.block_on(perform(&session, &request, named.output)));
        match done {
            Ok(done) if done.text.is_empty() => {}
            Ok(done) => drop(super::print(&done.text)?),
            Err(error) => eprintln!("error: {}: {error}", error.code()),
        }
    }
    if let Some(history) = &history {
        let _ = editor.save_history(history);
    }
    runtime.block_on(session.leave());
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    Ok(ExitCode::SUCCESS)
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
