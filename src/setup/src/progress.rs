//! What long work shows of itself: a bar on a terminal, otherwise a line every quarter of what is worth it.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// One line of talk.
pub(crate) fn say(text: &str) {
    eprintln!("greenroom: {text}");
}

/// Below this, lines would come faster than they are read.
const WORTH_LINES_BYTES: u64 = 64 << 20;

/// The progress of work that is counted in bytes.
pub(crate) struct Progress {
    name: String,
    bar: Option<ProgressBar>,
    total_bytes: u64,
    told_quarters: u64,
}

impl Progress {
    /// Progress of `name`. Without a known total, zero, nothing but the name is shown.
    pub(crate) fn new(name: &str, total_bytes: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(total_bytes), ProgressDrawTarget::stderr());
            let form = "greenroom: {msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            bar.set_style(ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(name.to_owned());
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        if bar.is_none() {
            say(name);
        }
        Self { name: name.to_owned(), bar, total_bytes, told_quarters: 0 }
    }

    /// The total has become known.
    pub(crate) fn total(&mut self, bytes: u64) {
        self.total_bytes = bytes;
        if let Some(bar) = &self.bar {
            bar.set_length(bytes);
        }
    }

    /// So much is done.
    pub(crate) fn at(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
            return;
        }
        let quarters = bytes.saturating_mul(4).checked_div(self.total_bytes).unwrap_or(0);
        if quarters > self.told_quarters && self.total_bytes >= WORTH_LINES_BYTES {
            self.told_quarters = quarters;
            let (done, whole) = (bytes / 1_000_000, self.total_bytes / 1_000_000);
            say(&format!("{}: {}% ({done} of {whole} MB)", self.name, quarters * 25));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
