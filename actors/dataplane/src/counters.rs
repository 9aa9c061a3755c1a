//! What a server has done so far, for metrics and tests.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a server has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerCounts {
    /// Connections whose handshake succeeded.
    pub connections: u64,
    /// Connections turned away because there were too many.
    pub turned_away: u64,
    /// Connections whose handshake failed, or whose certificate is no node's.
    pub refused: u64,
    /// Connections ended because what came was no frame of the protocol.
    pub malformed: u64,
    /// Connections ended because the peer did not read or write for too long.
    pub stalled: u64,
    /// Chunks sent.
    pub chunks: u64,
    /// Bytes of chunks and manifests sent.
    pub bytes: u64,
    /// Questions for what was not there in time.
    pub absent: u64,
    /// Chunks whose bytes on the disk had changed; they count as missing from then on.
    pub damaged: u64,
}

macro_rules! counters {
    ($($field:ident),*) => {
        /// The counters themselves.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub $field: AtomicU64),*
        }

        impl Counters {
            pub(crate) fn counts(&self) -> ServerCounts {
                ServerCounts { $($field: self.$field.load(Ordering::Relaxed)),* }
            }
        }
    };
}

counters!(connections, turned_away, refused, malformed, stalled, chunks, bytes, absent, damaged);

/// Counts one, or so many.
pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}
