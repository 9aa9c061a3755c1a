//! What a certificate says of its party: a name and a role.
//!
//! The name is a DNS name below [`NAME_SUFFIX`], the role a URI; both are subject alternative names, which every TLS tool
//! shows. A certificate that lacks one of them, or has two, names nobody.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::IdentityError;

/// What follows a party's name in its certificate's DNS name.
pub const NAME_SUFFIX: &str = ".greenroom.internal";
/// What precedes the role in its URI.
pub(crate) const ROLE_PREFIX: &str = "greenroom:role/";
/// The longest name; with its suffix it stays below the 253 characters of a DNS name.
const MAX_NAME_BYTES: usize = 200;

/// What a certificate lets its party do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CertificateRole {
    /// A member of the cluster: serves and dials.
    Node,
    /// A person or tool that looks and steers: dials only.
    Operator,
    /// A person or tool that looks: dials only.
    Viewer,
}

impl CertificateRole {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Node, Self::Operator, Self::Viewer];

    /// Its name in certificates and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Operator => "operator",
            Self::Viewer => "viewer",
        }
    }
}

impl fmt::Display for CertificateRole {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for CertificateRole {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or_else(|| IdentityError::Request {
            field: "role",
            reason: format!("{text:?} is none of node, operator, viewer"),
        })
    }
}

/// The other side of a connection, as its certificate names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PeerIdentity {
    /// Its name, without the suffix.
    pub name: String,
    /// Its role.
    pub role: CertificateRole,
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.name, self.role)
    }
}

/// Whose certificates these are: the party of the first one. The chain itself was checked by the handshake.
///
/// Errors: [`IdentityError::Nameless`] when there is none, or when it names no party or no role.
pub fn peer_of(certificates: &[CertificateDer<'_>]) -> Result<PeerIdentity, IdentityError> {
    let first = certificates.first().ok_or_else(|| nameless("no certificate was shown"))?;
    parse(first).map(|contents| contents.peer)
}

/// Checks a name for nodes and people: 1 to 200 of a-z, 0-9, `-`, `_` and `.`, each part between dots beginning and
/// ending with a letter or digit and at most 63 long.
pub fn check_name(name: &str) -> Result<(), IdentityError> {
    name_problem(name).map_or(Ok(()), |reason| Err(IdentityError::Request { field: "name", reason }))
}

/// What is wrong with a name, by the same rule; for names that no certificate is asked for.
pub fn name_problem(name: &str) -> Option<String> {
    let part_is_fine = |part: &str| {
        let ends = [part.bytes().next(), part.bytes().last()];
        let ends_fine =
            ends.iter().all(|end| end.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()));
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        part.len() <= 63 && ends_fine && part.bytes().all(allowed)
    };
    let is_fine = name.len() <= MAX_NAME_BYTES && name.split('.').all(part_is_fine);
    (!is_fine).then(|| {
        format!(
            "{name:?} is not 1 to {MAX_NAME_BYTES} of a-z 0-9 - _ ., each part from letter or digit to letter or digit"
        )
    })
}

/// What is read from a certificate.
#[derive(Debug)]
pub(crate) struct Contents {
    pub peer: PeerIdentity,
    pub not_after_s: i64,
}

/// The dates of a certificate, seconds since 1970: its beginning and its end.
pub(crate) fn dates(certificate: &CertificateDer<'_>) -> Result<(i64, i64), IdentityError> {
    let parsed = x509(certificate)?;
    Ok((parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp()))
}

/// Reads name, role and end of a certificate.
pub(crate) fn parse(certificate: &CertificateDer<'_>) -> Result<Contents, IdentityError> {
    let parsed = x509(certificate)?;
    let alternatives = parsed.subject_alternative_name().map_err(|error| nameless(&error.to_string()))?;
    let alternatives = alternatives.map(|found| found.value.general_names.as_slice()).unwrap_or_default();
    let name = the_only(alternatives, "name", |general| match general {
        GeneralName::DNSName(name) => name.strip_suffix(NAME_SUFFIX),
        _ => None,
    })?;
    let role = the_only(alternatives, "role", |general| match general {
        GeneralName::URI(uri) => uri.strip_prefix(ROLE_PREFIX),
        _ => None,
    })?;
    check_name(name).map_err(|error| nameless(&error.to_string()))?;
    let role = role.parse().map_err(|error: IdentityError| nameless(&error.to_string()))?;
    let not_after_s = parsed.validity().not_after.timestamp();
    Ok(Contents { peer: PeerIdentity { name: name.to_owned(), role }, not_after_s })
}

fn x509<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, IdentityError> {
    let (_, parsed) = X509Certificate::from_der(certificate.as_ref()).map_err(|error| nameless(&error.to_string()))?;
    Ok(parsed)
}

fn the_only<'a>(
    alternatives: &'a [GeneralName<'a>],
    what: &str,
    select: impl Fn(&'a GeneralName<'a>) -> Option<&'a str>,
) -> Result<&'a str, IdentityError> {
    let mut found = alternatives.iter().filter_map(select);
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(nameless(&format!("it has no {what}"))),
        (Some(_), Some(_)) => Err(nameless(&format!("it has more than one {what}"))),
    }
}

fn nameless(reason: &str) -> IdentityError {
    IdentityError::Nameless { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_names_in_small_letters() {
        for good in ["a", "engine-0", "trainer-0.group.ns", "a_b", "0", &"a".repeat(63)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        let long = ["a".repeat(64), "a.".repeat(100) + "ab"];
        for bad in ["", ".", "a.", ".a", "a..b", "-a", "a-", "A", "ä", "a b", "a/b", "a\0", "*", &long[0], &long[1]] {
            assert_eq!(check_name(bad).map_err(|error| error.code()), Err("GR1004"), "{bad}");
        }
    }

    #[test]
    fn garbage_names_nobody() {
        for garbage in [vec![], vec![0x30], vec![0x30, 0x82, 0xff, 0xff], vec![0; 4096]] {
            let code = peer_of(&[CertificateDer::from(garbage)]).map_err(|error| error.code());
            assert_eq!(code, Err("GR1009"));
        }
        assert_eq!(peer_of(&[]).map_err(|error| error.code()), Err("GR1009"));
        for role in CertificateRole::ALL {
            assert_eq!(role.as_str().parse(), Ok(role));
        }
        assert!("root".parse::<CertificateRole>().is_err());
    }
}
