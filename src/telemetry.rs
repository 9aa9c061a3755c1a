//! Logs: on stderr, warnings and worse unless asked for more. `GREENROOM_LOG` takes tracing's filter language.

use tracing_subscriber::EnvFilter;

/// Starts logging. `verbose` counts the `-v` given: 1 is info, 2 is debug, 3 is trace.
pub(crate) fn start(verbose: u8) {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = EnvFilter::try_from_env("GREENROOM_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
}
