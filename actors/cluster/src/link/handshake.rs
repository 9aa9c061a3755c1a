//! Leads both sides through the preamble, over TCP or TLS.
//!
//! Every stage ends at the handshake's deadline. Whatever goes wrong has a code, and is told to the peer as far as it may
//! know it; a stranger who does not speak as a node is told nothing.

use std::io;

use greenroom_core::Deadline;
use greenroom_identity::{Identity, PeerIdentity, Refusal};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::cookie::{Cookie, unguessable};
use super::preamble::{
    BUILD, Begin, Challenge, HEADER_BYTES, Header, Hello, Introduction, Kind, Nonce, PROTOCOL, Proving, Purpose,
    Refused, Welcome, decode, encode, message, printable,
};
use super::socket::Stream;

const ALPN: &[&[u8]] = &[b"greenroom/cluster"];
const CHANNEL_LABEL: &[u8] = b"EXPORTER-greenroom-preamble";

/// Why two sides did not come together.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The connection broke (no code: it is tried again).
    #[error("{0}")]
    Broken(String),
    /// Nobody listens there (no code: it is tried again).
    #[error("nobody listens there")]
    Unreachable,
    #[error("GR1205: {0}")]
    NoNode(String),
    #[error("GR1206: the peer's cookie is another one")]
    Cookie,
    // these are read on both sides, so they say whose view they are
    #[error(
        "GR1207: the refused node speaks protocol {theirs} ({build}), who refuses it protocol {PROTOCOL} ({BUILD})"
    )]
    Protocol { theirs: u16, build: String },
    #[error("GR1207: the refused node's schema is {theirs:?} ({build}), that of who refuses it {ours:?} ({BUILD})")]
    Schema { theirs: String, ours: String, build: String },
    #[error("GR1208: the refused node is of the run {theirs:?}, who refuses it of the run {ours:?}")]
    Cluster { theirs: String, ours: String },
    #[error("GR1209: a newer incarnation than {incarnation} of {node} is known: {by}")]
    Fenced { node: String, incarnation: u64, by: u64 },
    #[error("GR1210: {0}")]
    Certificate(String),
    #[error("{}: {refusal}", refusal.code())]
    Tls { refusal: Refusal },
    #[error("GR1215: {0}")]
    Duplicate(&'static str),
    #[error("GR1215: it is this very node")]
    Itself,
    /// The peer refused, and says why, with the code.
    #[error("{0}")]
    ByPeer(String),
    /// The peer knows a newer incarnation of this very node.
    #[error("GR1209: incarnation {by} of this node is in the cluster")]
    FencedByPeer { by: u64 },
}

impl Failure {
    pub(crate) fn of_io(error: &io::Error) -> Self {
        match Refusal::of_io(error) {
            Some(refusal) => Self::Tls { refusal },
            None if error.kind() == io::ErrorKind::ConnectionRefused => Self::Unreachable,
            None => Self::Broken(error.to_string()),
        }
    }

    /// What the peer is told before the connection is closed.
    fn told(&self) -> Option<Refused> {
        match self {
            Self::Broken(_)
            | Self::Unreachable
            | Self::NoNode(_)
            | Self::Tls { .. }
            | Self::ByPeer(_)
            | Self::FencedByPeer { .. } => None,
            Self::Duplicate(_) => Some(Refused::Duplicate),
            Self::Itself => Some(Refused::Itself),
            Self::Fenced { by, .. } => Some(Refused::Fenced { by: *by }),
            told => Some(Refused::For(told.to_string())),
        }
    }

    /// Whether people should hear of it: not of what happens whenever nodes come and go.
    pub(crate) fn is_worth_telling(&self) -> bool {
        !matches!(self, Self::Broken(_) | Self::Unreachable | Self::Duplicate(_) | Self::Itself)
    }
}

/// A connection on its way to being agreed upon.
pub(crate) struct Shaking {
    pub stream: Stream,
    /// Who the peer's certificate says it is.
    pub party: Option<PeerIdentity>,
    channel: [u8; 32],
    deadline: Deadline,
}

/// A peer that introduced itself and proved to know the cookie.
pub(crate) struct Introduced<T> {
    pub said: T,
    challenge: Nonce,
}

impl Shaking {
    /// The dialler's side of TLS, where there is an identity; `expected` is the node that must answer.
    pub(crate) async fn dialled(
        stream: TcpStream,
        identity: Option<&Identity>,
        expected: Option<&str>,
        deadline: Deadline,
    ) -> Result<Self, Failure> {
        let Some(identity) = identity else { return Ok(Self::plain(stream, deadline)) };
        let config = match expected {
            Some(node) => identity.client_config_for(node, ALPN),
            None => identity.client_config(ALPN),
        };
        let name =
            ServerName::try_from("node.greenroom.internal").map_err(|error| Failure::NoNode(error.to_string()))?;
        let connecting = TlsConnector::from(config).connect(name, stream);
        let stream = within(deadline, "the TLS handshake", connecting).await?;
        let (_, session) = stream.get_ref();
        let party = session.peer_certificates().map(greenroom_identity::peer_of);
        let channel = session.export_keying_material([0; 32], CHANNEL_LABEL, None);
        Self::encrypted(stream.into(), party, channel, deadline)
    }

    /// The accepting side of TLS, where there is an identity.
    pub(crate) async fn accepted(
        stream: TcpStream,
        identity: Option<&Identity>,
        deadline: Deadline,
    ) -> Result<Self, Failure> {
        let Some(identity) = identity else { return Ok(Self::plain(stream, deadline)) };
        let accepting = TlsAcceptor::from(identity.server_config(ALPN)).accept(stream);
        let stream = within(deadline, "the TLS handshake", accepting).await?;
        let (_, session) = stream.get_ref();
        let party = session.peer_certificates().map(greenroom_identity::peer_of);
        let channel = session.export_keying_material([0; 32], CHANNEL_LABEL, None);
        Self::encrypted(stream.into(), party, channel, deadline)
    }

    fn plain(stream: TcpStream, deadline: Deadline) -> Self {
        Self { stream: Stream::Plain(stream), party: None, channel: [0; 32], deadline }
    }

    fn encrypted(
        stream: tokio_rustls::TlsStream<TcpStream>,
        party: Option<Result<PeerIdentity, greenroom_identity::IdentityError>>,
        channel: Result<[u8; 32], rustls::Error>,
        deadline: Deadline,
    ) -> Result<Self, Failure> {
        let party = party.ok_or(Failure::Tls { refusal: Refusal::NoCertificate })?;
        let party = party.map_err(|error| Failure::Certificate(error.to_string()))?;
        let channel = channel.map_err(|error| Failure::Broken(error.to_string()))?;
        Ok(Self { stream: Stream::Tls(Box::new(stream)), party: Some(party), channel, deadline })
    }

    /// The dialler introduces itself and hears who was dialled.
    pub(crate) async fn introduce(
        &mut self,
        who: &Introduction,
        purpose: Purpose,
        cookie: &Cookie,
    ) -> Result<Introduced<Welcome>, Failure> {
        self.write(Kind::Greeting, BUILD.as_bytes()).await?;
        let body = self.read(Kind::Challenge).await?;
        let Challenge { nonce: challenge, .. } = decode(&body).ok_or_else(|| no_node("its challenge is none"))?;
        let nonce: Nonce = unguessable().map_err(|error| Failure::Broken(error.to_string()))?;
        let hello = Hello { who: who.clone(), purpose, nonce };
        let channel = self.channel;
        let proving = Proving { side: "dialler", challenge: &challenge, hello: None, channel: &channel };
        self.write(Kind::Hello, &proving.sign(cookie, encode(&hello))).await?;
        let signed = self.read(Kind::Welcome).await?;
        let proving = Proving { side: "acceptor", hello: Some(&nonce), ..proving };
        let body = proving.verify(cookie, &signed).ok_or(Failure::Cookie)?;
        let said: Welcome = decode(body).ok_or_else(|| no_node("its welcome is none"))?;
        check(who, &said.who)?;
        Ok(Introduced { said, challenge })
    }

    /// The accepting side challenges, and hears who dials.
    pub(crate) async fn challenge(
        &mut self,
        who: &Introduction,
        cookie: &Cookie,
    ) -> Result<Introduced<Hello>, Failure> {
        let challenge: Nonce = unguessable().map_err(|error| Failure::Broken(error.to_string()))?;
        let said = Challenge { nonce: challenge, build: BUILD.into() };
        self.write(Kind::Challenge, &encode(&said)).await?;
        self.read(Kind::Greeting).await?;
        let signed = self.read(Kind::Hello).await?;
        let channel = self.channel;
        let proving = Proving { side: "dialler", challenge: &challenge, hello: None, channel: &channel };
        let body = proving.verify(cookie, &signed).ok_or(Failure::Cookie)?;
        let said: Hello = decode(body).ok_or_else(|| no_node("its introduction is none"))?;
        check(who, &said.who)?;
        Ok(Introduced { said, challenge })
    }

    /// The accepting side lets the dialler in, and hears what begins.
    pub(crate) async fn welcome(
        &mut self,
        hello: &Introduced<Hello>,
        welcome: &Welcome,
        cookie: &Cookie,
    ) -> Result<Begin, Failure> {
        let channel = self.channel;
        let nonce = Some(&hello.said.nonce);
        let proving = Proving { side: "acceptor", challenge: &hello.challenge, hello: nonce, channel: &channel };
        self.write(Kind::Welcome, &proving.sign(cookie, encode(welcome))).await?;
        let body = self.read(Kind::Begin).await?;
        decode(&body).ok_or_else(|| no_node("its last word is none"))
    }

    /// The dialler's last word, and the other side's agreement.
    pub(crate) async fn begin(&mut self, begin: &Begin) -> Result<(), Failure> {
        self.write(Kind::Begin, &encode(begin)).await?;
        self.read(Kind::Agreed).await.map(drop)
    }

    /// The accepting side agrees.
    pub(crate) async fn agree(&mut self) -> Result<(), Failure> {
        self.write(Kind::Agreed, &[]).await
    }

    /// Tells the peer why there will be no connection, as far as it may know.
    pub(crate) async fn turn_down(&mut self, failure: &Failure) {
        if let Some(refused) = failure.told() {
            // it has gone if it does not hear
            let _ = self.write(Kind::Refused, &refused.encode()).await;
            let _ = within(self.deadline, "closing", self.stream.shutdown()).await;
        }
    }

    async fn write(&mut self, kind: Kind, body: &[u8]) -> Result<(), Failure> {
        let message = message(kind, body);
        within(self.deadline, "sending", self.stream.write_all(&message)).await?;
        within(self.deadline, "sending", self.stream.flush()).await
    }

    async fn read(&mut self, kind: Kind) -> Result<Vec<u8>, Failure> {
        let stage = match kind {
            Kind::Challenge => "its challenge",
            Kind::Greeting => "its greeting",
            Kind::Hello => "its introduction",
            Kind::Welcome | Kind::Refused => "its welcome",
            Kind::Begin => "its last word",
            Kind::Agreed => "its agreement",
        };
        let header = self.read_header(stage).await?;
        let mut body = vec![0; header.length];
        within(self.deadline, stage, self.stream.read_exact(&mut body)).await?;
        if header.kind == Some(Kind::Refused) {
            return Err(match Refused::decode(&body) {
                Refused::For(text) => Failure::ByPeer(text),
                Refused::Duplicate => Failure::Duplicate("the peer has another connection"),
                Refused::Fenced { by } => Failure::FencedByPeer { by },
                Refused::Itself => Failure::Itself,
            });
        }
        if header.protocol != PROTOCOL {
            return Err(Failure::Protocol { theirs: header.protocol, build: build_in(&body) });
        }
        if header.kind != Some(kind) {
            return Err(no_node("it says something out of turn"));
        }
        Ok(body)
    }

    /// Reads a header, but no further than its first foreign byte: a TLS alert, for one, is shorter than a header.
    async fn read_header(&mut self, stage: &str) -> Result<Header, Failure> {
        let foreign = || no_node("it does not speak as a node does (is TLS set on both sides?)");
        let (mut header, mut filled) = ([0; HEADER_BYTES], 0);
        while filled < HEADER_BYTES {
            let read = within(self.deadline, stage, self.stream.read(&mut header[filled..])).await?;
            if read == 0 {
                return Err(Failure::Broken(format!("it closed the connection during {stage}")));
            }
            filled += read;
            if !Header::may_begin_with(&header[..filled]) {
                return Err(foreign());
            }
        }
        Header::parse(&header).ok_or_else(foreign)
    }
}

fn no_node(what: &str) -> Failure {
    Failure::NoNode(what.to_owned())
}

/// The build in another protocol's challenge or introduction, as far as it can be found.
fn build_in(body: &[u8]) -> String {
    let at = body.windows(10).position(|window| window == b"greenroom ");
    let text = at.map_or(&[][..], |at| &body[at..body.len().min(at + 24)]);
    let text = text.split(|byte| *byte < b' ').next().unwrap_or_default();
    if text.is_empty() { "of an unknown build".into() } else { printable(text) }
}

/// Whether two nodes belong together.
fn check(me: &Introduction, peer: &Introduction) -> Result<(), Failure> {
    if peer.cluster != me.cluster {
        return Err(Failure::Cluster { theirs: printable(peer.cluster.as_bytes()), ours: me.cluster.clone() });
    }
    if peer.schema != me.schema {
        let (theirs, build) = (printable(peer.schema.as_bytes()), printable(peer.build.as_bytes()));
        return Err(Failure::Schema { theirs, ours: me.schema.clone(), build });
    }
    if let Err(error) = greenroom_identity::check_name(&peer.node) {
        return Err(Failure::NoNode(error.to_string()));
    }
    if peer.node == me.node {
        return Err(match peer.incarnation.cmp(&me.incarnation) {
            std::cmp::Ordering::Equal => Failure::Itself,
            std::cmp::Ordering::Less => {
                Failure::Fenced { node: peer.node.clone(), incarnation: peer.incarnation, by: me.incarnation }
            }
            std::cmp::Ordering::Greater => Failure::FencedByPeer { by: peer.incarnation },
        });
    }
    Ok(())
}

async fn within<T>(deadline: Deadline, stage: &str, work: impl Future<Output = io::Result<T>>) -> Result<T, Failure> {
    match tokio::time::timeout_at(deadline.instant(), work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(Failure::of_io(&error)),
        Err(_) => Err(Failure::NoNode(format!("it fell silent during {stage}"))),
    }
}
