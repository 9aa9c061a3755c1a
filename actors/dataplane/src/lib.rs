//! Bulk bytes by content: weights, trajectories, whatever is too large for an actor's mailbox.
//!
//! * [`Manifest`], [`ObjectId`], [`ChunkId`] — an object is a list of chunks, each named by its blake3; the object's own
//!   id is the blake3 of that list, so that who knows the id can check every byte, whoever it came from.
//! * [`Store`] — objects in a directory or in memory, whole or still arriving; every read is checked.
//! * [`Server`] — serves a store over QUIC and TLS/TCP on one port number; a chunk that is still arriving is waited for,
//!   so that a receiver is a relay while it receives (cut-through).
//! * [`Client`] — fetches what is missing from a list of peers, by QUIC, TLS/TCP or from a shared directory: resumes after
//!   a cut, goes on with the next peer, comes back to the first.
//! * [`chain`] — who asks whom, so that sending to many takes as long as sending to one.
//!
//! Invariants: nothing is handed out that does not have its promised hash; no frame allocates more than its limit; a
//! malformed peer is disconnected and counted, and disturbs nobody else; every wait has a deadline; both sides of a
//! connection are nodes of one authority.

mod chain;
mod client;
mod config;
mod counters;
mod directory;
mod entry;
mod error;
mod fetch;
mod lane;
mod link;
mod manifest;
mod peer;
mod plan;
mod presence;
mod quic;
mod server;
mod session;
mod store;
mod tls;
mod wire;

pub use chain::chain;
pub use client::Client;
pub use config::{DataplaneConfig, DestinationLink, Transport};
pub use counters::ServerCounts;
pub use error::{DataplaneError, ERRORS};
pub use fetch::{FetchOptions, FetchReport, Progress};
pub use manifest::{ChunkId, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, Manifest, ObjectId, chunk_bytes_for};
pub use peer::{ObjectHandle, PeerAddress};
pub use server::Server;
pub use session::serve;
pub use store::{Holding, Store, StoreConfig};
pub use wire::{MAX_FRAME_BYTES, Request, WireError};

/// The protocol's name in TLS; its number changes when the frames do, and then nodes of both versions refuse each other.
pub const ALPN: &[u8] = b"greenroom-bulk/1";
