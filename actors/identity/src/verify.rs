//! What each side demands of the other's certificate.
//!
//! The chain, the dates and the purpose are webpki's work. On top of it a dialler demands the role `node` and, where it
//! knows whom it calls, the name; and both demand that a certificate names a party at all. Host names are not compared:
//! pods change their addresses.

use std::error::Error as StdError;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme};

use crate::certificate::parse;
use crate::{CertificateRole, NAME_SUFFIX, PeerIdentity};

/// A server's certificate gives it another role than node's.
#[derive(Debug, thiserror::Error)]
#[error("{0} is no node")]
pub(crate) struct Misplaced(pub PeerIdentity);

/// A server has another name than the one that was called.
#[derive(Debug, thiserror::Error)]
#[error("{found} is not {expected}")]
pub(crate) struct Misnamed {
    pub expected: String,
    pub found: String,
}

/// A dialler's demands.
#[derive(Debug)]
pub(crate) struct NodeVerifier {
    pub chain: Arc<WebPkiServerVerifier>,
    /// The name that must answer, if the dialler knows it.
    pub expected: Option<String>,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _address: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let peer = peer(end_entity)?;
        let own_name = ServerName::try_from(format!("{}{NAME_SUFFIX}", peer.name))
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        // the name is the certificate's own: webpki then checks chain, dates and purpose
        match self.chain.verify_server_cert(end_entity, intermediates, &own_name, ocsp_response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. },
            )) => return Err(other(Misplaced(peer))),
            checked => checked?,
        };
        if peer.role != CertificateRole::Node {
            return Err(other(Misplaced(peer)));
        }
        match &self.expected {
            Some(expected) if *expected != peer.name => {
                Err(other(Misnamed { expected: expected.clone(), found: peer.name }))
            }
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// A server's demands: a chain of this authority, and a party's name in whichever role.
#[derive(Debug)]
pub(crate) struct PartyVerifier {
    pub chain: Arc<dyn ClientCertVerifier>,
}

impl ClientCertVerifier for PartyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        peer(end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

fn peer(certificate: &CertificateDer<'_>) -> Result<PeerIdentity, Error> {
    parse(certificate).map(|contents| contents.peer).map_err(other)
}

fn other(reason: impl StdError + Send + Sync + 'static) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(reason))))
}
