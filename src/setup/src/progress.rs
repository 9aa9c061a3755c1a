//! What long work shows of itself: a bar on a terminal, a line every tenth otherwise.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// One line of talk.
pub(crate) fn say(text: &str) {
    eprintln!("greenroom: {text}");
}

/// The progress of work that is counted in bytes.
pub(crate) struct Progress {
    name: String,
    bar: Option<ProgressBar>,
    total_bytes: u64,
    told_tenths: u64,
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
        Self { name: name.to_owned(), bar, total_bytes, told_tenths: 0 }
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
        let tenths = bytes.saturating_mul(10).checked_div(self.total_bytes).unwrap_or(0);
        if tenths > self.told_tenths {
            self.told_tenths = tenths;
            let (done, whole) = (bytes / 1_000_000, self.total_bytes / 1_000_000);
            say(&format!("{}: {}% ({done} of {whole} MB)", self.name, tenths * 10));
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
