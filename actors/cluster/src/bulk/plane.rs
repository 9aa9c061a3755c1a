//! What is too large for a message, by the data plane of both nodes.
//!
//! The sender lays the bytes once into its store, as an object of their content, and its message says which and where; the
//! receiver fetches them from there. After a cut the fetch goes on where it was; each chunk is checked by its hash, and a
//! fetch has a deadline. On failure: a fetch that cannot be ended tells why to those who asked; the object is removed when
//! the receiver has it or has given it up, and when the line ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use greenroom_core::{Deadline, in_place};
use greenroom_dataplane::{Client, ObjectId, PeerAddress, Store};

/// By offering this service a node says that it fetches bytes by the data plane.
pub(crate) const SERVICE: &str = "data-plane";
/// The receiver gives up by its own deadline; this much later an object that it has not confirmed is forgotten here.
const GRACE: Duration = Duration::from_secs(60);

/// This node's data plane, as [`Cluster::carry_bulk`](crate::Cluster::carry_bulk) takes it.
#[derive(Clone)]
pub struct BulkPlane {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    client: Client,
    address: String,
    placed: AtomicU64,
}

/// Where the bytes of a message lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    pub object: ObjectId,
    /// `HOST:PORT` of the sender's data plane.
    pub address: &'a str,
}

/// Bytes in the store, for as long as this is held.
pub(crate) struct Placed {
    plane: BulkPlane,
    object: ObjectId,
    pub bytes: usize,
}

impl BulkPlane {
    /// A data plane that lays what it sends into `store`, whose server others reach at `address` (`HOST:PORT`), and fetches
    /// by `client`.
    pub fn new(store: Store, client: Client, address: String) -> Self {
        Self { inner: Arc::new(Inner { store, client, address, placed: AtomicU64::new(0) }) }
    }

    /// Lays bytes out to be fetched by one receiver.
    pub(crate) fn place(&self, bytes: Vec<u8>, deadline: Duration) -> Result<Placed, String> {
        let length = bytes.len();
        // the number makes each an object of its own, so that it can be removed when this receiver has it
        let number = self.inner.placed.fetch_add(1, Ordering::Relaxed);
        let name = format!("message {number}");
        let put = in_place(|| self.inner.store.put_bytes(&name, bytes.into(), deadline + GRACE));
        let object = put.map_err(|error| format!("{}: {error}", error.code()))?;
        Ok(Placed { plane: self.clone(), object, bytes: length })
    }

    /// Fetches what another node has laid out.
    pub(crate) async fn fetch(
        &self,
        node: &str,
        place: Place<'_>,
        bytes: u64,
        deadline: Deadline,
    ) -> Result<Bytes, String> {
        let holder = PeerAddress::node(node, place.address);
        let fetched = self.inner.client.fetch_bytes(place.object, &[holder], bytes, deadline).await;
        fetched.map_err(|error| format!("{}: {error}", error.code()))
    }
}

impl Placed {
    /// Where it lies.
    pub(crate) fn place(&self) -> Place<'_> {
        Place { object: self.object, address: &self.plane.inner.address }
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if let Err(error) = in_place(|| self.plane.inner.store.remove(self.object)) {
            tracing::warn!(%error, "a message's bytes are not removed");
        }
    }
}

impl std::fmt::Debug for Placed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} bytes as {}", self.bytes, self.object)
    }
}
