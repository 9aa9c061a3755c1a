//! Logs: on stderr, warnings and worse unless asked for more; in a run's own file, everything from info on.
//!
//! `GREENROOM_LOG` takes tracing's filter language, for stderr.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

/// The carrier of a cluster's messages warns of every session that ends and of every slow answer: the cluster itself says
/// what of that matters. Its own words are for who asks for `debug`.
const CARRIER: &str = ",ractor_cluster=error";

/// Where a run's log goes, once the run has a directory; nowhere before.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogFile(Arc<Mutex<Option<File>>>);

impl LogFile {
    /// Writes what follows into this file, after what it holds.
    pub(crate) fn open(&self, path: &Path) -> anyhow::Result<()> {
        let file = File::options().create(true).append(true).open(path).with_context(|| path.display().to_string())?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
        Ok(())
    }
}

impl Write for LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(file) => file.write(line),
            None => Ok(line.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Starts logging. `verbose` counts the `-v` given: 1 is info, 2 is debug, 3 is trace. Without any, warnings are told, but
/// for a command whose every trouble is in its answer.
pub(crate) fn start(verbose: u8, tells_all: bool) -> LogFile {
    let least = if tells_all { "error" } else { "warn" };
    let level = [least, "info", "debug", "trace"][usize::from(verbose.min(3))];
    let quiet = if verbose < 2 { CARRIER } else { "" };
    let told = greenroom::core::TOLD;
    let for_people = EnvFilter::try_from_env("GREENROOM_LOG")
        .unwrap_or_else(|_| EnvFilter::new(format!("{level}{quiet},{told}=off")));
    let log_file = LogFile::default();
    let to_stderr = fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .with_filter(for_people);
    let to_file = fmt::layer()
        .with_writer(log_file.clone())
        .with_ansi(false)
        .with_filter(EnvFilter::new(format!("info{CARRIER}")));
    tracing_subscriber::registry().with(to_stderr).with(to_file).init();
    log_file
}
