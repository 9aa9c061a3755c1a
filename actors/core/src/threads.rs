//! Which threads run what: few for the actors, many for work that fills them.
//!
//! A question between two nodes passes through about eight tasks. With several threads half of those steps wake another one,
//! which costs more than the step: one thread is twice as fast at them. What computes or blocks must then be done elsewhere:
//! by [`in_place`](crate::in_place), [`spawn_blocking_named`](crate::spawn_blocking_named), or on [`Threads`].

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::task::AbortOnDropHandle;

use crate::spawn_named;

/// How many threads the actors of a node share, if it is not told.
pub const ACTOR_THREADS: usize = 1;

/// Where these are all at work the actors wait for one, too.
const MOST_BLOCKING_THREADS: usize = 4096;

/// The runtime of a process whose actors share so many threads.
///
/// # Errors
/// When the system gives no threads or no means to wait for sockets.
pub fn runtime(actor_threads: usize) -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(actor_threads)
        .max_blocking_threads(MOST_BLOCKING_THREADS)
        .thread_name("actors")
        .enable_all()
        .build()
}

/// Threads beside those of the actors, one for each processor, for work that is neither short nor rare. Cheap to clone; they
/// end with the last clone, and what still runs on them then ends at its next wait.
#[derive(Clone, Debug)]
pub struct Threads {
    handle: Handle,
    _owned: Arc<Owned>,
}

#[derive(Debug)]
struct Owned(Option<Runtime>);

/// Who may be in the midst of a runtime cannot wait for the end of another one.
impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Threads {
    /// Starts them, by this name.
    ///
    /// # Errors
    /// As [`runtime`].
    pub fn start(name: &str) -> std::io::Result<Self> {
        let runtime = Builder::new_multi_thread().thread_name(name).enable_all().build()?;
        Ok(Self { handle: runtime.handle().clone(), _owned: Arc::new(Owned(Some(runtime))) })
    }

    /// Runs a future there; `None` when it panicked, which is logged by name. When what is returned is dropped, it ends.
    pub async fn run<T: Send + 'static>(
        &self,
        name: &str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let task = {
            let _there = self.handle.enter();
            spawn_named(name, future)
        };
        AbortOnDropHandle::new(task).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn work_runs_on_threads_of_its_own_and_ends_with_who_waits_for_it() {
        let actors = runtime(1).unwrap();
        let threads = Threads::start("bulk").unwrap();
        let (held, released) = tokio::sync::oneshot::channel::<()>();
        actors.block_on(async move {
            let name = threads.run("named", async { std::thread::current().name().map(str::to_owned) }).await;
            assert_eq!(name, Some(Some("bulk".to_owned())));
            assert_eq!(threads.run("broken", async { panic!("on purpose") }).await, None::<()>);
            let endless = threads.run("endless", async move {
                let _held = held;
                std::future::pending::<()>().await
            });
            assert!(tokio::time::timeout(Duration::from_millis(1), endless).await.is_err());
            assert!(released.await.is_err(), "who waited is gone, and with it the work");
            // the last one, in the midst of a runtime
            drop(threads);
        });
    }
}
