//! Who may speak: an authority of one's own, the certificates it signs, and mutual TLS made from them.
//!
//! * [`Authority`] — makes and keeps the CA; signs a certificate per node and per person.
//! * [`Identity`] — one party's certificate, key and CA, checked when loaded; gives the TLS settings of both sides.
//! * [`PeerIdentity`], [`peer_of`] — who the other side is: its name and its [`CertificateRole`].
//! * [`Refusal`] — why a handshake failed, as a type and not as a text.
//!
//! Invariants: TLS 1.3 only; both sides always show a certificate of the same CA; a server is always a node; no session is
//! resumed, so that every connection checks the dates again; a key is never printed, and its file is its owner's alone.
//! The provider (ring) is named here and never taken from the process.
//!
//! A certificate holds its party's name as the DNS name `NAME.greenroom.internal` and its role as the URI
//! `greenroom:role/ROLE`. Pods change their addresses, names stay: who dials an address learns the name from the
//! certificate, or demands one with [`Identity::client_config_for`].

mod authority;
mod certificate;
mod error;
mod files;
mod identity;
mod refusal;
mod verify;

pub use authority::{Authority, IssueRequest};
pub use certificate::{CertificateRole, NAME_SUFFIX, PeerIdentity, check_name, name_problem, peer_of};
pub use error::{ERRORS, IdentityError};
pub use identity::{Identity, IdentityFiles};
pub use refusal::Refusal;
