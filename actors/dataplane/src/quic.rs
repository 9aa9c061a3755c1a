//! QUIC: endpoints, dialling, and what its errors mean.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use greenroom_identity::{Identity, Refusal};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ConnectError, Connection, ConnectionError, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig,
};
use rustls::pki_types::CertificateDer;

use crate::error::PeerFailure;
use crate::tls::{ANY_NODE, client_settings};
use crate::{ALPN, DataplaneConfig, PeerAddress, link};

/// What is asked of the system for each UDP socket, bytes; it may give less.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// QUIC carries TLS alerts as errors from here on.
const CRYPTO_ERRORS: u64 = 0x100;

/// The sockets of a dialling side, one per family of addresses, made when first used.
pub(crate) struct Dialler {
    transport: Arc<TransportConfig>,
    endpoints: Mutex<[Option<Endpoint>; 2]>,
}

impl Dialler {
    pub(crate) fn new(config: &DataplaneConfig) -> Self {
        Self { transport: link::receiving(config), endpoints: Mutex::default() }
    }

    fn endpoint(&self, to: SocketAddr) -> std::io::Result<Endpoint> {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        let family = usize::from(to.is_ipv6());
        if let Some(endpoint) = &endpoints[family] {
            return Ok(endpoint.clone());
        }
        let any = if to.is_ipv6() { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        let socket = socket(SocketAddr::new(any, 0))?;
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime))?;
        endpoints[family] = Some(endpoint.clone());
        Ok(endpoint)
    }

    /// Connects and shakes hands.
    pub(crate) async fn dial(
        &self,
        identity: &Identity,
        peer: &PeerAddress,
        patience: Duration,
    ) -> Result<Connection, PeerFailure> {
        let unreachable = |reason: String| PeerFailure::Unreachable(reason);
        let settings = QuicClientConfig::try_from(client_settings(identity, peer));
        let settings = settings.map_err(|error| unreachable(error.to_string()))?;
        let mut config = quinn::ClientConfig::new(Arc::new(settings));
        config.transport_config(self.transport.clone());
        let connect = async {
            let mut found =
                tokio::net::lookup_host(&peer.address).await.map_err(|error| unreachable(error.to_string()))?;
            let to = found.next().ok_or_else(|| unreachable("its name has no address".to_owned()))?;
            let endpoint = self.endpoint(to).map_err(|error| unreachable(error.to_string()))?;
            let connecting = endpoint.connect_with(config, to, ANY_NODE);
            let connecting = connecting.map_err(|error: ConnectError| unreachable(error.to_string()))?;
            connecting.await.map_err(|error| failure(&error))
        };
        let connected = tokio::time::timeout(patience, connect).await;
        connected.map_err(|_| unreachable(no_answer(patience)))?
    }

    /// Tells all peers that this side is going.
    pub(crate) fn close(&self) {
        for endpoint in self.endpoints.lock().unwrap_or_else(PoisonError::into_inner).iter().flatten() {
            endpoint.close(0_u32.into(), b"done");
        }
    }
}

pub(crate) fn no_answer(patience: Duration) -> String {
    format!("no answer by QUIC within {} ms (is UDP blocked?)", patience.as_millis())
}

fn socket(at: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind(at)?;
    // larger buffers lose less; where the system does not grant them, QUIC sends again what was lost
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SOCKET_BUFFER_BYTES);
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER_BYTES);
    Ok(socket)
}

/// The settings of a serving side towards one kind of destination.
pub(crate) fn server_settings(
    identity: &Identity,
    transport: Arc<TransportConfig>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let settings = QuicServerConfig::try_from(identity.server_config(&[ALPN]));
    let settings = settings.map_err(|error| rustls::Error::General(error.to_string()))?;
    let mut config = ServerConfig::with_crypto(Arc::new(settings));
    config.transport_config(transport);
    Ok(Arc::new(config))
}

/// A serving side's endpoint.
pub(crate) fn listen(at: SocketAddr, settings: Arc<ServerConfig>) -> std::io::Result<Endpoint> {
    let settings = ServerConfig::clone(&settings);
    Endpoint::new(EndpointConfig::default(), Some(settings), socket(at)?, Arc::new(TokioRuntime))
}

/// The certificates that the other side showed.
pub(crate) fn certificates(connection: &Connection) -> Vec<CertificateDer<'static>> {
    let shown = connection.peer_identity().and_then(|shown| shown.downcast::<Vec<CertificateDer<'static>>>().ok());
    shown.map(|shown| *shown).unwrap_or_default()
}

/// What an error of a connection means.
pub(crate) fn failure(error: &ConnectionError) -> PeerFailure {
    let refusal = match error {
        ConnectionError::TransportError(error) => refusal_by_us(error.code.into(), &error.reason),
        ConnectionError::ConnectionClosed(close) => alert(close.error_code.into())
            .map(|alert| Refusal::ByPeer { alert: format!("{:?}", rustls::AlertDescription::from(alert)) }),
        _ => None,
    };
    refusal.map_or_else(|| PeerFailure::Cut(error.to_string()), PeerFailure::Refused)
}

fn alert(code: u64) -> Option<u8> {
    code.checked_sub(CRYPTO_ERRORS).and_then(|alert| u8::try_from(alert).ok())
}

/// QUIC hands on the alert and the text of what this side's verifier said, not the error itself.
fn refusal_by_us(code: u64, reason: &str) -> Option<Refusal> {
    let reason = reason.to_owned();
    Some(match rustls::AlertDescription::from(alert(code)?) {
        rustls::AlertDescription::UnknownCA | rustls::AlertDescription::DecryptError => Refusal::UnknownAuthority,
        rustls::AlertDescription::CertificateExpired if reason.contains("not valid yet") => Refusal::NotYetValid,
        rustls::AlertDescription::CertificateExpired => Refusal::Expired,
        rustls::AlertDescription::CertificateRequired => Refusal::NoCertificate,
        rustls::AlertDescription::CertificateUnknown
        | rustls::AlertDescription::BadCertificate
        | rustls::AlertDescription::UnsupportedCertificate => Refusal::Unusable { reason },
        _ => Refusal::Protocol { reason },
    })
}
