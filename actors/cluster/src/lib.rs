//! The cluster: nodes that form one runtime, and what `ractor_cluster` does not give, once for all.
//!
//! * [`Cluster`] — a node's membership: offer a service, follow one by an [`Address`](greenroom_core::Address) that survives
//!   restarts, see members and events, wait for a gang, leave.
//! * Connections (`link`) are dialled and accepted here: TCP that notices dead peers, mutual TLS, and a preamble in which
//!   both sides show versions, names, incarnations and that they know the cookie. `ractor_cluster` carries them from then on,
//!   and sees one actor per node, the NodeAgent (`agent`).
//! * A line (`line`) leads to one incarnation of another node and survives its connections: messages, answers and addresses
//!   cross in order and at most once; what is open is bounded, and fails as soon as the node is known dead.
//! * What is too large for a control message goes beside it (`bulk`): by the nodes' data plane where they have one.
//!
//! Invariants: nobody is let in who does not know the cookie, and have a certificate where TLS is on; nothing is allocated for
//! a stranger beyond 16 KiB, nor for a member beyond the stated bounds; of one name at most one incarnation acts; each
//! question ends; whatever a stranger sends disturbs nobody.

mod agent;
mod bulk;
mod cluster;
mod config;
mod connections;
mod error;
mod events;
mod gang;
mod hub;
mod incarnation;
mod line;
mod link;
mod member;
mod membership;
mod quiet;
mod service;
mod sessions;

pub use bulk::plane::BulkPlane;
pub use cluster::Cluster;
pub use config::{ClusterConfig, SHELL};
pub use error::{ClusterError, ERRORS, GangError};
pub use events::MemberEvents;
pub use gang::Missing;
pub use greenroom_identity::{CertificateRole, IdentityFiles};
pub use line::{Caller, caller};
pub use link::dial::Dialled;
pub use member::{Member, MemberEvent, MemberState};
