//! Connections between nodes: dialled, accepted, encrypted, introduced, and agreed upon.

pub(crate) mod agree;
pub(crate) mod cookie;
pub(crate) mod dial;
pub(crate) mod handshake;
pub(crate) mod listen;
pub(crate) mod preamble;
pub(crate) mod socket;
