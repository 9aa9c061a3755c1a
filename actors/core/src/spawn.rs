//! Tasks with names: nothing runs anonymously, and a task that panics says so. Work that blocks leaves the actors their
//! threads, of which a node has few.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinHandle;

/// Runs a future as a task of its own. The handle gives `None` when the task panicked, which is also logged by name;
/// aborting the handle ends the task.
#[allow(clippy::disallowed_methods)] // the one place where tasks are spawned
pub fn spawn_named<F>(name: impl Into<String>, future: F) -> JoinHandle<Option<F::Output>>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let name = name.into();
    tokio::spawn(async move { AssertUnwindSafe(future).catch_unwind().await.map_err(|panic| log(&name, &*panic)).ok() })
}

/// Runs blocking work on tokio's blocking threads. The handle gives `None` when it panicked, which is also logged by name.
#[allow(clippy::disallowed_methods)] // the one place where blocking work is spawned
pub fn spawn_blocking_named<T>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<Option<T>>
where
    T: Send + 'static,
{
    let name = name.into();
    tokio::task::spawn_blocking(move || {
        std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|panic| log(&name, &*panic)).ok()
    })
}

/// Does what blocks or computes for a while here and now, while another thread goes on with what this one has to run: files,
/// tokens, a lock that may be held for long. In place where there is no other thread, as in the simulation. The thread of a
/// task is another one afterwards: a child process must not be bound to it.
///
/// # Panics
/// Within a `LocalSet` of a runtime of several threads, whose tasks cannot move.
#[allow(clippy::disallowed_methods)] // the one place where a thread is given up
pub fn in_place<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

fn log(task: &str, panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
    tracing::error!(task, panic = text, "a task panicked");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_in_a_task_is_heard_as_none() {
        assert_eq!(spawn_named("fine", async { 1 }).await.unwrap(), Some(1));
        assert_eq!(spawn_named("broken", async { panic!("on purpose") }).await.unwrap(), None::<()>);
        assert_eq!(spawn_blocking_named("broken", || panic!("on purpose")).await.unwrap(), None::<()>);
    }

    #[test]
    fn what_is_done_in_place_does_not_hold_up_the_one_thread_of_the_others() {
        assert_eq!(in_place(|| 1), 1, "outside of any runtime");
        let one = crate::runtime(1).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let asked =
            one.block_on(async {
                let other = spawn_named("other", async move {
                    tokio::task::yield_now().await;
                    sender.send(())
                });
                let waits = spawn_named("waits", async move {
                    in_place(|| receiver.recv_timeout(std::time::Duration::from_secs(20)))
                });
                drop(other.await);
                waits.await
            });
        assert_eq!(asked.unwrap(), Some(Ok(())), "the other task ran while this one waited for it");
    }

    #[tokio::test]
    async fn in_a_runtime_of_one_thread_it_is_done_at_once() {
        assert_eq!(in_place(|| 1), 1);
    }
}
