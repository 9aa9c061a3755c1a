//! What can go wrong in a cluster, with stable codes.

use std::path::PathBuf;

use greenroom_core::ErrorPage;
use greenroom_identity::IdentityError;

use crate::gang::Missing;

/// A node could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The settings are wrong (GR1201).
    #[error("the cluster's settings are wrong: {}", problems.join("; "))]
    Config {
        /// Each problem with its key.
        problems: Vec<String>,
    },
    /// Others could reach the node, and nothing keeps them out (GR1202).
    #[error(
        "{bind} can be reached from other machines, and {missing} is not set: set cookie_file to a secret of 32 characters \
         and tls to files made by `greenroom ca`, or bind to 127.0.0.1"
    )]
    Unprotected {
        /// The address to listen at.
        bind: String,
        /// The settings that are missing.
        missing: &'static str,
    },
    /// The cookie cannot be used (GR1203).
    #[error("the cookie file {path} cannot be used: {reason}")]
    Cookie {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The address cannot be listened at (GR1204).
    #[error("cannot listen at {bind}: {reason}")]
    Bind {
        /// The address.
        bind: String,
        /// Why.
        reason: String,
    },
    /// The certificate cannot be used (its own code).
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The certificate is another node's, or does not allow the role (GR1210).
    #[error("this node's certificate does not fit: {reason}")]
    Certificate {
        /// Why.
        reason: String,
    },
    /// The actors of the cluster did not start (GR1212).
    #[error("the cluster's actors did not start: {reason}")]
    Start {
        /// Why.
        reason: String,
    },
}

impl ClusterError {
    /// The stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Config { .. } => "GR1201",
            Self::Unprotected { .. } => "GR1202",
            Self::Cookie { .. } => "GR1203",
            Self::Bind { .. } => "GR1204",
            Self::Identity(error) => error.code(),
            Self::Certificate { .. } => "GR1210",
            Self::Start { .. } => "GR1212",
        }
    }
}

/// A gang was not complete in time (GR1211).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cluster is not complete: {}", missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
pub struct GangError {
    /// What is missing.
    pub missing: Vec<Missing>,
}

/// The pages of this crate's codes.
pub const ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR1201",
        cause: "the settings of the cluster contradict each other or are no addresses, names or sizes",
        remedy: "each problem names its key and what would be right",
    },
    ErrorPage {
        code: "GR1202",
        cause: "a node would listen where other machines reach it, without a cookie, or without TLS",
        remedy: "set cookie_file (32 random characters, the same on all nodes) and tls (files made by `greenroom ca`), or bind to 127.0.0.1",
    },
    ErrorPage {
        code: "GR1203",
        cause: "the file with the cluster's secret cannot be read, is no regular file, is too short, or is readable by everybody",
        remedy: "write at least 32 random characters to it, for example from `openssl rand -hex 32`, and let only its owner read it",
    },
    ErrorPage {
        code: "GR1204",
        cause: "the address of the node cannot be listened at",
        remedy: "another process has the port, or the address is none of this machine's: choose another bind",
    },
    ErrorPage {
        code: "GR1205",
        cause: "who dialled or was dialled does not speak as a node does, or fell silent while a connection was agreed upon",
        remedy: "the message names the address: TLS is set on one side only, another program listens there, or something that scans ports came by; nothing was harmed",
    },
    ErrorPage {
        code: "GR1206",
        cause: "a peer does not know the cluster's secret, or knows another one",
        remedy: "give all nodes the same cookie_file",
    },
    ErrorPage {
        code: "GR1207",
        cause: "a peer was built from a version that says other things than this one",
        remedy: "the message names both versions: let all nodes run the same one",
    },
    ErrorPage {
        code: "GR1208",
        cause: "a node is of another run than the one it dialled, or that dialled it: a cluster has the name of its run",
        remedy: "the message names both: correct `run` in the node's file (`--run` of a shell), or `cluster.seeds`",
    },
    ErrorPage {
        code: "GR1209",
        cause: "a newer incarnation of the same node is in the cluster: the older one is fenced",
        remedy: "end the older process; two nodes must not have one name. A restarted node whose machine's clock is behind waits until the clock has caught up",
    },
    ErrorPage {
        code: "GR1210",
        cause: "a certificate is another node's than the one that shows it, or its role does not allow what was asked",
        remedy: "make one with `greenroom ca` for this node's name; operators and viewers join as a shell only",
    },
    ErrorPage {
        code: "GR1211",
        cause: "the nodes that play the required roles did not all join in time",
        remedy: "the message names what is missing and since when: look at those nodes' logs, and for refused peers in this one's",
    },
    ErrorPage {
        code: "GR1212",
        cause: "the actors that carry the cluster did not start",
        remedy: "the message holds the cause; usually the machine has no free port on 127.0.0.1",
    },
    ErrorPage {
        code: "GR1213",
        cause: "a node is held for dead, has left, or was restarted: what was under way to it is lost",
        remedy: "the message names node and cause; it joins again by itself when it can",
    },
    ErrorPage {
        code: "GR1214",
        cause: "more is under way to a node than is allowed, so a message was refused",
        remedy: "the node is slow or cut off; ask for less at once, or raise open_questions, unacknowledged_bytes or bulk_in_flight_bytes",
    },
    ErrorPage {
        code: "GR1215",
        cause: "a connection to this very node, or a second one to the same node, was given up",
        remedy: "nothing is wrong unless it repeats: then two nodes share an address",
    },
    ErrorPage {
        code: "GR1216",
        cause: "a message reached a node that does not offer the service it is for, or cannot read it",
        remedy: "the message names node and service; let all nodes run the same version",
    },
    ErrorPage {
        code: "GR1217",
        cause: "a node that was let in sent what no node sends",
        remedy: "let all nodes run the same version; if they do, it is a defect: keep the logs and report it",
    },
    ErrorPage {
        code: "GR1218",
        cause: "an operator or viewer asked a service that only nodes may ask",
        remedy: "use the verbs of the shell; what steers needs the certificate of an operator",
    },
    ErrorPage {
        code: "GR1219",
        cause: "a large message is lost, because its bytes could not be fetched from the sender's data plane",
        remedy: "the message names the address: let this node reach it (`dataplane.bind` and `advertise_host` of the sender); a slow link may need a longer `cluster.bulk_deadline_ms`",
    },
];
