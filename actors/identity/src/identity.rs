//! One party's certificate, key and authority, and the TLS settings made from them.
//!
//! Everything that can be wrong with the files is found when they are loaded, so that making settings cannot fail later.
//! A certificate that expires while its node runs is refused by others from then on: watch [`Identity::expires_at_ms`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use greenroom_core::Clock;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{CertificateError, CipherSuite, ClientConfig, Error, InconsistentKeys, RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};

use crate::certificate::{dates, parse};
use crate::verify::{NodeVerifier, PartyVerifier};
use crate::{IdentityError, PeerIdentity, files};

/// Where a party's files lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityFiles {
    /// The authority's certificate; several may stand in the file while one replaces the other.
    pub ca: PathBuf,
    /// The party's certificate.
    pub certificate: PathBuf,
    /// The party's key.
    pub key: PathBuf,
}

/// One party, ready to speak. Cheap to clone.
#[derive(Clone)]
pub struct Identity {
    party: PeerIdentity,
    expires_at_ms: u64,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    chain: Arc<WebPkiServerVerifier>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Identity({})", self.party)
    }
}

impl Identity {
    /// Loads and checks a party's files as of now.
    ///
    /// Errors name the file, what is wrong with it and the remedy: not readable, not PEM, expired, not yet valid, another
    /// certificate's key, another authority's certificate, or none of greenroom's.
    pub fn load(files: &IdentityFiles) -> Result<Self, IdentityError> {
        Self::load_at(files, Clock::system().now_ms())
    }

    /// The same as of a given date, milliseconds since 1970. Handshakes use the system's date all the same.
    pub fn load_at(files: &IdentityFiles, now_ms: u64) -> Result<Self, IdentityError> {
        let mut roots = RootCertStore::empty();
        for certificate in files::certificates(&files.ca)? {
            roots.add(certificate).map_err(|error| IdentityError::unusable(&files.ca, error))?;
        }
        let roots = Arc::new(roots);
        let certificates = files::certificates(&files.certificate)?;
        let key = files::private_key(&files.key)?;
        let provider = provider();
        let unusable_ca = |error: rustls::server::VerifierBuilderError| IdentityError::unusable(&files.ca, error);
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        let clients = clients.build().map_err(unusable_ca)?;
        check_chain(files, &certificates, &*clients, now_ms)?;
        let contents = parse(&certificates[0]).map_err(|error| IdentityError::unusable(&files.certificate, error))?;
        let servers = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
        let chain = servers.build().map_err(unusable_ca)?;
        let configs = configs(&provider, certificates, key, clients, chain.clone());
        let (server, client) = configs.map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                IdentityError::KeyMismatch { certificate: files.certificate.clone(), key: files.key.clone() }
            }
            other => IdentityError::unusable(&files.key, other),
        })?;
        let expires_at_ms = contents.not_after_s.max(0) as u64 * 1000;
        Ok(Self { party: contents.peer, expires_at_ms, server: Arc::new(server), client: Arc::new(client), chain })
    }

    /// Who this is: the name and the role in its own certificate.
    pub fn party(&self) -> &PeerIdentity {
        &self.party
    }

    /// When its certificate ends, milliseconds since 1970.
    pub fn expires_at_ms(&self) -> u64 {
        self.expires_at_ms
    }

    /// The settings of a server: TLS 1.3, a client certificate of this authority is required, in whichever role (ask
    /// [`peer_of`](crate::peer_of) afterwards). `alpn` are the protocols spoken, the preferred one first.
    pub fn server_config(&self, alpn: &[&[u8]]) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.server);
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config)
    }

    /// The settings of a dialler that knows only an address: any node of this authority may answer. The server name that
    /// is given to the connection is sent, but not compared.
    pub fn client_config(&self, alpn: &[&[u8]]) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.client);
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        Arc::new(config)
    }

    /// The settings of a dialler that calls the node `name`: nobody else may answer.
    pub fn client_config_for(&self, name: &str, alpn: &[&[u8]]) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.client_config(alpn));
        let verifier = NodeVerifier { chain: self.chain.clone(), expected: Some(name.to_owned()) };
        config.dangerous().set_certificate_verifier(Arc::new(verifier));
        Arc::new(config)
    }
}

/// Ring, with the cipher first that costs least where the processor knows AES.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

/// Whether this authority signed the party's own certificate, and for now.
fn check_chain(
    files: &IdentityFiles,
    certificates: &[CertificateDer<'static>],
    verifier: &dyn ClientCertVerifier,
    now_ms: u64,
) -> Result<(), IdentityError> {
    let path = &files.certificate;
    let now = UnixTime::since_unix_epoch(Duration::from_millis(now_ms));
    let Err(error) = verifier.verify_client_cert(&certificates[0], &certificates[1..], now) else { return Ok(()) };
    let (not_before_s, not_after_s) = dates(&certificates[0]).map_err(|error| IdentityError::unusable(path, error))?;
    let now_s = (now_ms / 1000) as i64;
    Err(match error {
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            IdentityError::Expired { path: path.clone(), ago_s: now_s.saturating_sub(not_after_s).max(0) as u64 }
        }
        Error::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            IdentityError::NotYetValid { path: path.clone(), in_s: not_before_s.saturating_sub(now_s).max(0) as u64 }
        }
        Error::InvalidCertificate(CertificateError::BadEncoding) => IdentityError::unusable(path, "it is damaged"),
        other => IdentityError::Foreign { certificate: path.clone(), ca: files.ca.clone(), reason: other.to_string() },
    })
}

fn configs(
    provider: &Arc<CryptoProvider>,
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    clients: Arc<dyn ClientCertVerifier>,
    chain: Arc<WebPkiServerVerifier>,
) -> Result<(ServerConfig, ClientConfig), Error> {
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(PartyVerifier { chain: clients }))
        .with_single_cert(certificates.clone(), key.clone_key())?;
    server.ignore_client_order = true;
    // a resumed session would not look at the certificate again
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    let mut client = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(NodeVerifier { chain, expected: None }))
        .with_client_auth_cert(certificates, key)?;
    client.resumption = Resumption::disabled();
    Ok((server, client))
}
