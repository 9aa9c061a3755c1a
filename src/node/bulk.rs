//! The data plane as weights see it: a published payload is offered from memory-mapped chunks, and fetched whole.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::{Deadline, spawn_blocking_named};
use greenroom_dataplane::{Client, ObjectHandle, ObjectId, PeerAddress, Store};
use greenroom_messages::weights::{BulkHandle, BulkHolder};
use greenroom_weights::{BulkFetch, BulkOffer};

/// How long one payload may take on its way.
const FETCH_WAIT: Duration = Duration::from_secs(30 * 60);

/// Offers files out of this node's store.
pub(super) struct StoreOffer {
    pub(super) store: Store,
    pub(super) holder: BulkHolder,
}

#[async_trait]
impl BulkOffer for StoreOffer {
    async fn offer(&self, file: &Path) -> Result<BulkHandle, String> {
        let (store, file, holder) = (self.store.clone(), file.to_owned(), self.holder.clone());
        let put = spawn_blocking_named("bulk-offer", move || {
            let object = store.put_file("weights", &file).map_err(|error| error.to_string())?;
            let bytes = std::fs::metadata(&file).map_err(|error| error.to_string())?.len();
            Ok(BulkHandle { object: object.to_string(), bytes, holders: vec![holder] })
        });
        put.await.ok().flatten().unwrap_or_else(|| Err("the work panicked; see the log".to_owned()))
    }

    async fn withdraw(&self, handle: &BulkHandle) {
        let removed = handle.object.parse::<ObjectId>().map(|object| self.store.remove(object));
        if let Ok(Err(error)) = removed {
            tracing::warn!(%error, "a payload that is offered no more is not removed");
        }
    }
}

/// Fetches from other nodes' data planes.
pub(super) struct ClientFetch {
    pub(super) client: Arc<Client>,
}

#[async_trait]
impl BulkFetch for ClientFetch {
    async fn fetch(&self, handle: &BulkHandle) -> Result<Vec<u8>, String> {
        let object = handle.object.parse::<ObjectId>().map_err(|error| error.to_string())?;
        let holders = handle.holders.iter().map(|holder| PeerAddress::node(&holder.node, &holder.address)).collect();
        let handle = ObjectHandle { object, bytes: handle.bytes, holders };
        let fetched = self.client.fetch_handle(&handle, Deadline::after(FETCH_WAIT)).await;
        fetched.map(|bytes| bytes.to_vec()).map_err(|error| error.to_string())
    }
}
