//! The authority of one cluster: a CA certificate and its key in a directory, and the certificates it signs.
//!
//! Nothing is ever overwritten. A certificate begins an hour early, so that clocks may differ a little, and never outlives
//! its authority. On failure nothing is issued; a key that was already written is left for a person to remove.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use greenroom_core::Clock;
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::DnsName;
use time::OffsetDateTime;

use crate::certificate::{ROLE_PREFIX, dates};
use crate::{CertificateRole, IdentityError, IdentityFiles, NAME_SUFFIX, check_name, files};

const DAY_S: i64 = 86_400;
const EARLY_S: i64 = 3600;
const AUTHORITY_DAYS: i64 = 3650;
/// The longest that a certificate may be asked for, days.
const MAX_DAYS: u32 = 3650;

/// What a certificate is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssueRequest {
    /// The party's name; see [`check_name`].
    pub name: String,
    /// Host names and IP addresses to be named too, for tools that check them; may be empty.
    pub hosts: Vec<String>,
    /// What the party may do.
    pub role: CertificateRole,
    /// For how many days, 1 to 3650; cut short where the authority ends earlier.
    pub valid_days: u32,
}

/// A CA, able to sign.
pub struct Authority {
    certificate_path: PathBuf,
    certificate_pem: String,
    not_after_s: i64,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Authority").field("certificate", &self.certificate_path).finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a new authority: `ca.pem` and `ca.key` in `dir`, which is made if need be.
    ///
    /// Errors: [`IdentityError::Exists`] when one of the files is there; nothing is changed then.
    pub fn create(dir: &Path) -> Result<Self, IdentityError> {
        let (certificate_path, key_path) = places(dir);
        fs::create_dir_all(dir).map_err(|error| IdentityError::file(dir, &error))?;
        files::check_new(&[&certificate_path, &key_path])?;
        let now_s = now_s();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = (date(now_s - EARLY_S)?, date(now_s + AUTHORITY_DAYS * DAY_S)?);
        let key = KeyPair::generate().map_err(|error| IdentityError::unusable(&key_path, error))?;
        // each authority has a name of its own, so that a stranger's certificate is told from a forged one
        let mark: String = params.key_identifier(&key).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        params.distinguished_name = common_name(&format!("greenroom authority {mark}"));
        let certificate =
            params.self_signed(&key).map_err(|error| IdentityError::unusable(&certificate_path, error))?;
        files::write_key(&key_path, &key.serialize_pem())?;
        files::write_certificate(&certificate_path, &certificate.pem())?;
        Self::open(dir)
    }

    /// Opens the authority in `dir`, for signing.
    pub fn open(dir: &Path) -> Result<Self, IdentityError> {
        let (certificate_path, key_path) = places(dir);
        let certificate_pem = files::read(&certificate_path)?;
        let certificates = files::certificates(&certificate_path)?;
        let (_, not_after_s) =
            dates(&certificates[0]).map_err(|error| IdentityError::unusable(&certificate_path, error))?;
        // the parser's own words never hold the key
        let key =
            KeyPair::from_pem(&files::read(&key_path)?).map_err(|error| IdentityError::unusable(&key_path, error))?;
        let public = key.public_key_raw().to_vec();
        let issuer = Issuer::from_ca_cert_pem(&certificate_pem, key)
            .map_err(|error| IdentityError::unusable(&certificate_path, error))?;
        let signs = certificates[0].as_ref().windows(public.len()).any(|window| window == public);
        if !signs {
            return Err(IdentityError::KeyMismatch { certificate: certificate_path, key: key_path });
        }
        Ok(Self { certificate_path, certificate_pem, not_after_s, issuer })
    }

    /// The authority's own certificate: what every party must have, and what is no secret.
    pub fn certificate_path(&self) -> &Path {
        &self.certificate_path
    }

    /// Issues a certificate from now on. Writes `NAME.pem`, `NAME.key` and a copy of `ca.pem` into `into`, which is made
    /// if need be.
    ///
    /// Errors: [`IdentityError::Request`] for a name, host or duration that cannot be; [`IdentityError::Exists`] when
    /// certificate or key are there, or another authority's `ca.pem`.
    pub fn issue(&self, request: &IssueRequest, into: &Path) -> Result<IdentityFiles, IdentityError> {
        self.issue_from(request, now_s().max(0) as u64 * 1000, into)
    }

    /// The same, from a given date on, milliseconds since 1970.
    pub fn issue_from(
        &self,
        request: &IssueRequest,
        from_ms: u64,
        into: &Path,
    ) -> Result<IdentityFiles, IdentityError> {
        let params = self.params(request, (from_ms / 1000) as i64)?;
        fs::create_dir_all(into).map_err(|error| IdentityError::file(into, &error))?;
        let place = |extension: &str| into.join(format!("{}.{extension}", request.name));
        let issued = IdentityFiles { ca: into.join("ca.pem"), certificate: place("pem"), key: place("key") };
        files::check_new(&[&issued.certificate, &issued.key])?;
        self.copy_certificate(&issued.ca)?;
        let key = KeyPair::generate().map_err(|error| IdentityError::unusable(&issued.key, error))?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(|error| IdentityError::unusable(&issued.certificate, error))?;
        files::write_key(&issued.key, &key.serialize_pem())?;
        files::write_certificate(&issued.certificate, &certificate.pem())?;
        Ok(issued)
    }

    /// Lays the authority's certificate at `path`; the same one may lie there already.
    fn copy_certificate(&self, path: &Path) -> Result<(), IdentityError> {
        match files::write_certificate(path, &self.certificate_pem) {
            Err(IdentityError::Exists { .. }) if files::read(path)? == self.certificate_pem => Ok(()),
            written => written,
        }
    }

    fn params(&self, request: &IssueRequest, from_s: i64) -> Result<CertificateParams, IdentityError> {
        check_name(&request.name)?;
        if request.name == "ca" {
            return Err(wrong("name", "cannot be \"ca\": its files are the authority's".to_owned()));
        }
        if !(1..=MAX_DAYS).contains(&request.valid_days) {
            return Err(wrong("valid_days", format!("{} is not within 1 to {MAX_DAYS}", request.valid_days)));
        }
        let until_s = (from_s + i64::from(request.valid_days) * DAY_S).min(self.not_after_s);
        if until_s <= from_s {
            return Err(wrong("valid_days", "begins after the authority's own end: make a new authority".to_owned()));
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&request.name);
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match request.role {
            CertificateRole::Node => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            CertificateRole::Operator | CertificateRole::Viewer => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        (params.not_before, params.not_after) = (date(from_s - EARLY_S)?, date(until_s)?);
        params.subject_alt_names = vec![
            SanType::DnsName(ascii("name", &format!("{}{NAME_SUFFIX}", request.name))?),
            SanType::URI(ascii("role", &format!("{ROLE_PREFIX}{}", request.role))?),
        ];
        for host in &request.hosts {
            params.subject_alt_names.push(host_name(host)?);
        }
        Ok(params)
    }
}

fn places(dir: &Path) -> (PathBuf, PathBuf) {
    (dir.join("ca.pem"), dir.join("ca.key"))
}

fn host_name(host: &str) -> Result<SanType, IdentityError> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    if host.ends_with(NAME_SUFFIX) {
        return Err(wrong(
            "host",
            format!("{host:?} would name a second party: names end in {NAME_SUFFIX}, hosts do not"),
        ));
    }
    DnsName::try_from(host).map_err(|_| wrong("host", format!("{host:?} is no IP address and no DNS name")))?;
    Ok(SanType::DnsName(ascii("host", host)?))
}

fn ascii(field: &'static str, text: &str) -> Result<Ia5String, IdentityError> {
    Ia5String::try_from(text).map_err(|_| wrong(field, format!("{text:?} is not ASCII")))
}

fn wrong(field: &'static str, reason: String) -> IdentityError {
    IdentityError::Request { field, reason }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    // RFC 5280 allows 64 characters here; the whole name is an alternative name
    names.push(DnType::CommonName, name.chars().take(64).collect::<String>());
    names
}

fn now_s() -> i64 {
    (Clock::system().now_ms() / 1000) as i64
}

fn date(seconds: i64) -> Result<OffsetDateTime, IdentityError> {
    OffsetDateTime::from_unix_timestamp(seconds).map_err(|error| wrong("valid_days", error.to_string()))
}
