//! TLS over TCP: dialling and accepting.

use std::sync::Arc;
use std::time::Duration;

use greenroom_identity::Identity;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::error::PeerFailure;
use crate::lane::cut;
use crate::{ALPN, PeerAddress};

/// The name that a dialler sends to say what it wants; who answers is checked by its certificate.
pub(crate) const ANY_NODE: &str = "bulk.greenroom.internal";

/// The TLS settings for dialling a peer.
pub(crate) fn client_settings(identity: &Identity, peer: &PeerAddress) -> Arc<rustls::ClientConfig> {
    match &peer.node {
        Some(name) => identity.client_config_for(name, &[ALPN]),
        None => identity.client_config(&[ALPN]),
    }
}

/// Connects and shakes hands.
pub(crate) async fn dial(
    identity: &Identity,
    peer: &PeerAddress,
    patience: Duration,
) -> Result<client::TlsStream<TcpStream>, PeerFailure> {
    let unreachable = |reason: String| PeerFailure::Unreachable(reason);
    let connect = async {
        let stream = TcpStream::connect(&peer.address).await.map_err(|error| unreachable(error.to_string()))?;
        stream.set_nodelay(true).map_err(|error| unreachable(error.to_string()))?;
        let name = ServerName::try_from(ANY_NODE).map_err(|error| unreachable(error.to_string()))?;
        let connector = TlsConnector::from(client_settings(identity, peer));
        connector.connect(name, stream).await.map_err(|error| cut(&error))
    };
    let connected = tokio::time::timeout(patience, connect).await;
    connected.map_err(|_| unreachable(format!("no answer by TCP within {} ms", patience.as_millis())))?
}

/// Shakes hands with somebody who dialled.
pub(crate) async fn accept(
    settings: &Arc<rustls::ServerConfig>,
    stream: TcpStream,
) -> std::io::Result<server::TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    TlsAcceptor::from(settings.clone()).accept(stream).await
}
