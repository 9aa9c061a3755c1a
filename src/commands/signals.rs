//! Ctrl-C and SIGTERM: the first asks for an end after the step under way, the second for one now.

use greenroom::messages::run::StopMode;
use greenroom::up::Talk;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

/// A signal within this time after another one is the same wish: a terminal and a parent process both pass a Ctrl-C on.
const ONE_WISH: std::time::Duration = std::time::Duration::from_millis(500);

/// What people hear at each of two wishes that end a run.
pub(super) const STOPPING: [&str; 2] = ["stopping after the step under way; once more to stop now", "stopping now"];
/// The same, where only this node leaves.
#[cfg(feature = "cluster")]
pub(super) const LEAVING: [&str; 2] =
    ["leaving: what is under way ends first, or is handed back; once more to leave now", "leaving now"];

/// Passes both wishes on, in a task that ends with its handle's abortion.
pub(super) fn pass_on(talk: Talk, stop: impl Fn(StopMode) + Send + 'static) -> std::io::Result<JoinHandle<Option<()>>> {
    pass_on_saying(STOPPING, talk, stop)
}

/// As [`pass_on`], with other words.
pub(super) fn pass_on_saying(
    words: [&'static str; 2],
    talk: Talk,
    stop: impl Fn(StopMode) + Send + 'static,
) -> std::io::Result<JoinHandle<Option<()>>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(greenroom::core::spawn_named("signals", async move {
        for (mode, words) in [StopMode::AfterStep, StopMode::Now].into_iter().zip(words) {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            talk(words);
            stop(mode);
            let mut same_wish = std::pin::pin!(tokio::time::sleep(ONE_WISH));
            loop {
                tokio::select! {
                    biased;
                    () = &mut same_wish => break,
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
            }
        }
    }))
}
