//! What can be wrong with an authority's or a party's own files, with a stable code each.
//!
//! Each error names the file, what is wrong with it, and what to do. What can be wrong with the other side of a
//! connection is a [`Refusal`](crate::Refusal).

use std::path::{Path, PathBuf};

use greenroom_core::ErrorPage;

/// An error of one's own certificates, keys and requests.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file could not be read or written (GR1001).
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// A file does not hold what it should (GR1002).
    #[error("{path} is not usable: {reason}; write it again with `greenroom ca`")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A file is there already and is never overwritten (GR1003).
    #[error("{path} exists already and is not overwritten: choose another directory, or move it away")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A certificate cannot be issued as asked (GR1004).
    #[error("a certificate cannot be issued: {field} {reason}")]
    Request {
        /// Which part of the request.
        field: &'static str,
        /// What is wrong with it and what would be right.
        reason: String,
    },
    /// One's own certificate has expired (GR1005).
    #[error("{path} expired {ago_s} s ago: issue a new certificate with `greenroom ca issue`")]
    Expired {
        /// The certificate.
        path: PathBuf,
        /// Since when, seconds.
        ago_s: u64,
    },
    /// One's own certificate is not yet valid (GR1006).
    #[error("{path} becomes valid in {in_s} s: compare this machine's clock with the one it was issued on")]
    NotYetValid {
        /// The certificate.
        path: PathBuf,
        /// In how many seconds.
        in_s: u64,
    },
    /// The key is another certificate's (GR1007).
    #[error("{key} is not the key of {certificate}: name the .key file that was issued with it")]
    KeyMismatch {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
    },
    /// The certificate was not signed by this authority (GR1008).
    #[error("{certificate} was not signed by {ca}: use the ca.pem that was issued with it ({reason})")]
    Foreign {
        /// The certificate.
        certificate: PathBuf,
        /// The authority's certificate.
        ca: PathBuf,
        /// How that was noticed.
        reason: String,
    },
    /// A certificate names no party or no role of greenroom's (GR1009).
    #[error("the certificate is none of greenroom's: {reason}")]
    Nameless {
        /// What it lacks.
        reason: String,
    },
}

impl IdentityError {
    pub(crate) fn file(path: &Path, error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            return Self::Exists { path: path.to_owned() };
        }
        Self::File { path: path.to_owned(), reason: error.to_string() }
    }

    pub(crate) fn unusable(path: &Path, reason: impl ToString) -> Self {
        Self::Unusable { path: path.to_owned(), reason: reason.to_string() }
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::File { .. } => "GR1001",
            Self::Unusable { .. } => "GR1002",
            Self::Exists { .. } => "GR1003",
            Self::Request { .. } => "GR1004",
            Self::Expired { .. } => "GR1005",
            Self::NotYetValid { .. } => "GR1006",
            Self::KeyMismatch { .. } => "GR1007",
            Self::Foreign { .. } => "GR1008",
            Self::Nameless { .. } => "GR1009",
        }
    }
}

const fn page(code: &'static str, cause: &'static str, remedy: &'static str) -> ErrorPage {
    ErrorPage { code, cause, remedy }
}

/// The pages of this crate's codes.
pub const ERRORS: &[ErrorPage] = &[
    page(
        "GR1001",
        "a certificate or key could not be read or written",
        "the message names the file and the system's reason: often a wrong path, or a key that only its owner may read",
    ),
    page(
        "GR1002",
        "a certificate or key file does not hold PEM of the expected kind",
        "copy the file again from where `greenroom ca` wrote it; a certificate ends in .pem, its key in .key",
    ),
    page(
        "GR1003",
        "making an authority or a certificate would overwrite a file",
        "nothing was changed; an overwritten CA would cut off every node. Choose another directory, or move the file away",
    ),
    page(
        "GR1004",
        "a certificate was asked for with a name, host or duration that it cannot have",
        "the message names the field and what it may be",
    ),
    page(
        "GR1005",
        "a node's own certificate has expired",
        "issue a new one with `greenroom ca issue` and start the node again",
    ),
    page(
        "GR1006",
        "a node's own certificate is not yet valid",
        "set the clocks of this machine and of the one that issued it right; certificates begin one hour early",
    ),
    page(
        "GR1007",
        "a private key does not belong to the certificate it is used with",
        "name the certificate and the key that were issued together",
    ),
    page(
        "GR1008",
        "a node's own certificate was not signed by the authority it trusts",
        "use the ca.pem that lies beside the certificate; all nodes of a cluster need certificates of one authority",
    ),
    page(
        "GR1009",
        "a certificate does not say which party of a cluster it names, or in which role",
        "issue certificates with `greenroom ca issue`; others cannot be used here",
    ),
    page(
        "GR1020",
        "the other side's certificate was signed by another authority",
        "give all nodes certificates of one authority (`greenroom ca issue`); a stranger was kept out",
    ),
    page("GR1021", "the other side's certificate has expired", "issue it a new one with `greenroom ca issue`"),
    page(
        "GR1022",
        "the other side's certificate is not yet valid",
        "set the clocks of both machines right; certificates begin one hour early",
    ),
    page(
        "GR1023",
        "a certificate of another role was shown where a node's is needed",
        "give the node a certificate issued with the role `node`; operators and viewers only dial",
    ),
    page(
        "GR1024",
        "the other side showed no certificate",
        "let it join with a certificate of this cluster's authority",
    ),
    page(
        "GR1025",
        "the other side's certificate is damaged or names no party of a cluster",
        "issue it one with `greenroom ca issue`",
    ),
    page(
        "GR1026",
        "an address was answered by another node than the one that was called",
        "the address has moved to another pod: look it up again, or correct it in the configuration",
    ),
    page(
        "GR1027",
        "the other side refused this side's certificate",
        "the message names its alert: unknown CA (another authority), expired (see also its clock), or access denied",
    ),
    page(
        "GR1028",
        "the other side does not speak TLS 1.3 with a protocol that is spoken here",
        "set TLS on both sides or on neither, let all nodes run the same version, and check that the port is greenroom's",
    ),
];
