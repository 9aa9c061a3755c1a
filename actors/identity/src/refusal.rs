//! Why a handshake failed, as a type.
//!
//! TLS 1.3 lets a client finish its handshake before the server has looked at the client's certificate: a client that is
//! refused hears of it with its first read, as [`Refusal::ByPeer`].

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

use crate::CertificateRole;
use crate::verify::{Misnamed, Misplaced};

/// Why two parties do not speak.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The peer's certificate is another authority's (GR1020).
    #[error("the peer's certificate was signed by another authority")]
    UnknownAuthority,
    /// The peer's certificate has expired (GR1021).
    #[error("the peer's certificate has expired")]
    Expired,
    /// The peer's certificate is not yet valid (GR1022).
    #[error("the peer's certificate is not yet valid")]
    NotYetValid,
    /// The peer serves without being a node (GR1023).
    #[error("the peer {name} serves with the certificate of a {role}, not of a node")]
    WrongRole {
        /// Its name.
        name: String,
        /// The role its certificate gives it.
        role: CertificateRole,
    },
    /// The peer showed no certificate (GR1024).
    #[error("the peer showed no certificate")]
    NoCertificate,
    /// The peer's certificate is damaged or none of greenroom's (GR1025).
    #[error("the peer's certificate cannot be used: {reason}")]
    Unusable {
        /// What is wrong.
        reason: String,
    },
    /// Another node answered than was called (GR1026).
    #[error("{found} answered where {expected} was called")]
    WrongName {
        /// Who was called.
        expected: String,
        /// Who answered.
        found: String,
    },
    /// The peer refused this side's certificate (GR1027).
    #[error("the peer refused this side's certificate: {alert}")]
    ByPeer {
        /// The alert it sent.
        alert: String,
    },
    /// The peer does not speak TLS 1.3 with a protocol known here (GR1028).
    #[error("the peer speaks another protocol (is TLS set on both sides?): {reason}")]
    Protocol {
        /// What came instead.
        reason: String,
    },
}

impl Refusal {
    /// The reason in an error of rustls.
    pub fn of_tls(error: &Error) -> Self {
        match error {
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::InvalidCertificate(error) => Self::of_certificate(error),
            Error::AlertReceived(alert) if is_about_certificates(*alert) => {
                Self::ByPeer { alert: format!("{alert:?}") }
            }
            other => Self::Protocol { reason: other.to_string() },
        }
    }

    /// The reason in an error of a TLS stream; `None` when the stream failed for another reason, such as a cut.
    pub fn of_io(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref::<Error>().map(Self::of_tls)
    }

    fn of_certificate(error: &CertificateError) -> Self {
        match error {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownAuthority,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYetValid,
            CertificateError::Other(other) => {
                if let Some(misplaced) = other.0.downcast_ref::<Misplaced>() {
                    return Self::WrongRole { name: misplaced.0.name.clone(), role: misplaced.0.role };
                }
                if let Some(Misnamed { expected, found }) = other.0.downcast_ref::<Misnamed>() {
                    return Self::WrongName { expected: expected.clone(), found: found.clone() };
                }
                Self::Unusable { reason: other.0.to_string() }
            }
            other => Self::Unusable { reason: other.to_string() },
        }
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownAuthority => "GR1020",
            Self::Expired => "GR1021",
            Self::NotYetValid => "GR1022",
            Self::WrongRole { .. } => "GR1023",
            Self::NoCertificate => "GR1024",
            Self::Unusable { .. } => "GR1025",
            Self::WrongName { .. } => "GR1026",
            Self::ByPeer { .. } => "GR1027",
            Self::Protocol { .. } => "GR1028",
        }
    }
}

/// Alerts by which a peer turns a certificate down.
fn is_about_certificates(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::CertificateRequired
            | AlertDescription::DecryptError
    )
}
