//! Versions of a publisher on another node: manifests by message, payloads by the data plane.
//!
//! Used by a WeightReceiver where there is no shared directory. Whatever arrives is checked as if it came from a disk: the
//! manifest against itself, the payload against the manifest. A payload comes from other receivers, who fetch it as well,
//! and from the publisher as the last resort; who they are is asked anew every so often, since they come and go, and at once
//! when the publisher was started again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::{Address, Deadline, Reply, ask, spawn_named};
use greenroom_messages::weights::{BulkHandle, BulkRelay, PayloadWanted, PublishedWeightsMessage, WeightFailure};
use greenroom_messages::{RunId, WeightVersion};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::carrier::{VersionSource, checked_payload};
use crate::{Link, Manifest, WeightsError};

/// How long the publisher's node may take to answer a question; bytes have their own deadline at the data plane.
const ANSWER_WAIT_MS: u64 = 60_000;
/// How long one payload may take on its way.
const FETCH_WAIT: Duration = Duration::from_secs(30 * 60);
/// How long the same holders are tried; then the publisher is asked who else has the payload by now.
const SAME_HOLDERS: Duration = Duration::from_secs(30);
/// How often it is looked whether the publisher was started again.
const LOOK: Duration = Duration::from_millis(100);
/// How often a fetch may fail for another reason than that time, and the pause after it.
const MOST_FAILURES: u32 = 3;
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// What is said of a question that the end of this process cuts short.
const ENDS: &str = "this node ends";

/// Fetches bytes by the data plane.
#[async_trait]
pub trait BulkFetch: Send + Sync {
    /// Where this node passes on what it fetches, if it does. Makes room for one object more; may block.
    fn relay(&self) -> Option<BulkRelay>;
    /// The bytes of a handle, whole; resumed where a try before broke off.
    async fn fetch(&self, handle: &BulkHandle, deadline: Deadline) -> Result<Vec<u8>, BulkFetchError>;
}

/// Bytes have not come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BulkFetchError {
    /// Not by the deadline; what has come stays.
    #[error("{0}")]
    Late(String),
    /// They will not come from these holders.
    #[error("{0}")]
    Failed(String),
}

/// See the module's page. Must be used from threads that may block, within a tokio runtime.
pub struct RemoteSource {
    published: Address<PublishedWeightsMessage>,
    fetch: Arc<dyn BulkFetch>,
    runtime: Handle,
}

impl RemoteSource {
    /// The versions behind `published`.
    pub fn new(published: Address<PublishedWeightsMessage>, fetch: Arc<dyn BulkFetch>, runtime: Handle) -> Self {
        Self { published, fetch, runtime }
    }

    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(Reply<Result<T, WeightFailure>>) -> PublishedWeightsMessage + Send + 'static,
    ) -> Result<T, WeightsError> {
        let remote = |reason: String| WeightsError::Remote { publisher: self.published.name().to_owned(), reason };
        let published = self.published.clone();
        let asked = async move { ask(&published, Deadline::after_ms(ANSWER_WAIT_MS), question).await };
        let answer = self.wait(asked).ok_or_else(|| remote(ENDS.to_owned()))?;
        answer.map_err(|error| remote(error.to_string()))?.map_err(|failure| remote(failure.to_string()))
    }

    /// Waits on this thread for work that the runtime does; `None` when the runtime ends, which drops the work. To poll it
    /// here would panic then.
    fn wait<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (done, waiting) = oneshot::channel();
        let there = self.runtime.enter();
        spawn_named("weights-fetching", async move {
            // nobody waits any more: nothing is lost
            let _ = done.send(work.await);
        });
        drop(there);
        waiting.blocking_recv().ok()
    }
}

impl VersionSource for RemoteSource {
    fn manifest(&self, version: &WeightVersion) -> Result<Manifest, WeightsError> {
        let bytes = self.ask({
            let version = version.clone();
            |reply| PublishedWeightsMessage::Manifest(version, reply)
        })?;
        Manifest::from_bytes(&bytes.0, version)
    }

    fn payload(&self, manifest: &Manifest) -> Result<Vec<u8>, WeightsError> {
        let deadline = Deadline::after(FETCH_WAIT);
        let mut failures = 0;
        loop {
            let wanted = PayloadWanted { version: manifest.version.clone(), relay: self.fetch.relay() };
            let handle = self.ask(|reply| PublishedWeightsMessage::Payload(wanted, reply))?;
            let holders: Vec<String> = handle.holders.iter().map(ToString::to_string).collect();
            let holders = holders.join(", ");
            let same_holders = deadline.earlier(Deadline::after(SAME_HOLDERS));
            let (fetch, published) = (self.fetch.clone(), self.published.clone());
            let fetched = async move {
                tokio::select! {
                    biased;
                    fetched = fetch.fetch(&handle, same_holders) => fetched,
                    // it is elsewhere now, and may be the only one that has the payload
                    () = back(&published) => Err(BulkFetchError::Late("its publisher was started again".into())),
                }
            };
            let ends = || WeightsError::Remote { publisher: holders.clone(), reason: ENDS.to_owned() };
            let error = match self.wait(fetched).ok_or_else(ends)? {
                Ok(payload) => return checked_payload(manifest, payload, &format!("fetched from {holders}")),
                Err(error) => error,
            };
            tracing::warn!(version = %manifest.version, %holders, %error, "a payload has not come yet");
            failures += u32::from(matches!(error, BulkFetchError::Failed(_)));
            if failures >= MOST_FAILURES || deadline.has_passed() {
                return Err(WeightsError::Remote { publisher: holders, reason: error.to_string() });
            }
            if matches!(error, BulkFetchError::Failed(_)) {
                self.wait(tokio::time::sleep(FAILURE_PAUSE)).ok_or_else(ends)?;
            }
        }
    }

    fn links(&self, run: &RunId) -> Result<BTreeMap<WeightVersion, Link>, WeightsError> {
        let links = self.ask({
            let run = run.clone();
            |reply| PublishedWeightsMessage::Links(run, reply)
        })?;
        Ok(links.into_iter().map(|link| (link.version, Link { base: link.base, bytes: link.bytes })).collect())
    }
}

/// Resolves when this address has led nowhere and leads somewhere again.
async fn back<M: Send + 'static>(address: &Address<M>) {
    let mut was_away = false;
    loop {
        match address.is_bound() {
            true if was_away => return,
            true => {}
            false => was_away = true,
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fetches nothing, for ever.
    struct Never;

    #[async_trait]
    impl BulkFetch for Never {
        fn relay(&self) -> Option<BulkRelay> {
            None
        }

        async fn fetch(&self, _: &BulkHandle, _: Deadline) -> Result<Vec<u8>, BulkFetchError> {
            std::future::pending().await
        }
    }

    #[test]
    fn who_waits_while_the_process_ends_is_told_so() {
        let runtime = greenroom_core::runtime(1).unwrap();
        let published = Address::unbound("publisher");
        let source = RemoteSource::new(published, Arc::new(Never), runtime.handle().clone());
        let (begun, has_begun) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            let work = async move {
                begun.send(()).unwrap();
                loop {
                    tokio::time::sleep(LOOK).await;
                }
            };
            source.wait::<()>(work)
        });
        has_begun.recv().unwrap();
        runtime.shutdown_background();
        assert_eq!(waiting.join().unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_away_and_is_there_again_is_back() {
        let address = Address::of_function("publisher", |(): ()| Ok(()));
        let soon = Duration::from_secs(1);
        assert!(tokio::time::timeout(soon, back(&address)).await.is_err(), "it was there all the time");
        let returned = back(&address);
        tokio::pin!(returned);
        address.unbind();
        assert!(tokio::time::timeout(soon, &mut returned).await.is_err(), "it is away");
        address.rebind_function(|()| Ok(()));
        assert!(tokio::time::timeout(soon, returned).await.is_ok());
    }
}
