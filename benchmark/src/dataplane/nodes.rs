//! Nodes of one authority, each with a store and a server, in a directory that goes with them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use greenroom_dataplane::{Client, DataplaneConfig, ObjectId, PeerAddress, Server, Store, StoreConfig, Transport};
use greenroom_identity::{Authority, CertificateRole, Identity, IssueRequest};
use tempfile::TempDir;

use super::shaped::Link;
use super::{RATE_MBIT, ROUND_TRIP_MS, shaped};

/// An authority and its nodes.
pub struct Nodes {
    dir: TempDir,
    authority: Authority,
    receiver: Identity,
}

/// Who has an object, and how it is reached.
pub struct Source {
    pub object: ObjectId,
    pub address: PeerAddress,
    /// Kept while it serves.
    _serving: Option<Server>,
}

/// A node that receives and passes on.
pub struct Relay {
    pub store: Store,
    pub address: PeerAddress,
    _serving: Server,
}

impl Nodes {
    pub fn new() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let authority = Authority::create(&dir.path().join("ca"))?;
        let receiver = issue(&authority, &dir, "receiver")?;
        Ok(Self { dir, authority, receiver })
    }

    pub fn client(&self, transport: Transport, round_trip_ms: Option<u32>) -> anyhow::Result<Client> {
        Ok(Client::new(&self.receiver, &config(transport, round_trip_ms))?)
    }

    /// A source whose object lies in memory, on TCP and UDP.
    pub async fn source_in_memory(&self, content: &Bytes) -> anyhow::Result<Source> {
        let (store, object) = in_memory(content)?;
        let identity = issue(&self.authority, &self.dir, "source")?;
        let server = Server::start(&identity, &store, loopback(), &config(Transport::Auto, None)).await?;
        let address = PeerAddress::node("source", server.local_addr());
        Ok(Source { object, address, _serving: Some(server) })
    }

    /// A source whose object lies in a directory.
    pub fn source_in_directory(&self, content: &Bytes) -> anyhow::Result<Source> {
        let (dir, file): (PathBuf, PathBuf) = (self.dir.path().join("shared"), self.dir.path().join("content"));
        std::fs::write(&file, content)?;
        let store = Store::open(&dir, StoreConfig::default())?;
        let object = store.put_file("object", &file)?;
        Ok(Source { object, address: PeerAddress::directory(dir), _serving: None })
    }

    /// A source that may send at the given rate only.
    pub async fn shaped_source(&self, content: &Bytes, transport: Transport) -> anyhow::Result<Source> {
        let (store, object) = in_memory(content)?;
        let (server, address) = self.shaped("source", &store, transport, ROUND_TRIP_MS, Link::default()).await?;
        Ok(Source { object, address, _serving: Some(server) })
    }

    /// The same by QUIC over a link that is long and loses some.
    pub async fn far_source(&self, content: &Bytes, round_trip_ms: u32, link: Link) -> anyhow::Result<Source> {
        let (store, object) = in_memory(content)?;
        let (server, address) = self.shaped("source", &store, Transport::Quic, round_trip_ms, link).await?;
        Ok(Source { object, address, _serving: Some(server) })
    }

    /// A receiver that passes on at the given rate only.
    pub async fn shaped_receiver(&self, number: usize, transport: Transport) -> anyhow::Result<Relay> {
        let store = Store::open(&self.dir.path().join(format!("store-{number}")), StoreConfig::default())?;
        let name = format!("relay-{number}");
        let (serving, address) = self.shaped(&name, &store, transport, ROUND_TRIP_MS, Link::default()).await?;
        Ok(Relay { store, address, _serving: serving })
    }

    async fn shaped(
        &self,
        name: &str,
        store: &Store,
        transport: Transport,
        round_trip_ms: u32,
        link: Link,
    ) -> anyhow::Result<(Server, PeerAddress)> {
        let identity = issue(&self.authority, &self.dir, name)?;
        let server = Server::start(&identity, store, loopback(), &config(transport, Some(round_trip_ms))).await?;
        let shaped = match transport {
            Transport::Quic => shaped::udp(server.local_addr(), RATE_MBIT, link).await?,
            _ => shaped::tcp(server.local_addr(), RATE_MBIT).await?,
        };
        Ok((server, PeerAddress::node(name, shaped)))
    }
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn in_memory(content: &Bytes) -> anyhow::Result<(Store, ObjectId)> {
    let store = Store::in_memory(StoreConfig::default())?;
    let object = store.put_bytes("object", content.clone(), Duration::MAX)?;
    Ok((store, object))
}

/// With a round trip the rate is the operator's, else QUIC finds it out.
fn config(transport: Transport, round_trip_ms: Option<u32>) -> DataplaneConfig {
    let rate_mbit = round_trip_ms.map(|_| RATE_MBIT);
    let usual = DataplaneConfig::default();
    let round_trip_ms = round_trip_ms.unwrap_or(usual.round_trip_ms);
    DataplaneConfig { transport, rate_mbit, round_trip_ms, ..usual }
}

fn issue(authority: &Authority, dir: &TempDir, name: &str) -> anyhow::Result<Identity> {
    let request = IssueRequest { name: name.to_owned(), hosts: Vec::new(), role: CertificateRole::Node, valid_days: 1 };
    Ok(Identity::load(&authority.issue(&request, &dir.path().join("certificates"))?)?)
}
