//! Tasks with names: nothing runs anonymously, and a task that panics says so.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;
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
}
