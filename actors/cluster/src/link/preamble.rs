//! What two nodes say to each other before a connection carries anything.
//!
//! ```text
//! dialler  -> acceptor  Greeting   its build: who listens knows at once that no TLS is coming, or another protocol
//! acceptor -> dialler   Challenge  a nonce; it does not wait for the greeting
//! dialler  -> acceptor  Hello      who it is, what the connection is for, and proof that it knows the cookie
//! acceptor -> dialler   Welcome    who it is, which line it holds, and its proof; or Refused
//! dialler  -> acceptor  Begin      which line goes on or begins; or Refused
//! acceptor -> dialler   Agreed     from now on the connection carries its line; or Refused
//! ```
//!
//! Each is a header (magic, protocol, kind, length) and a body of at most [`BODY_LIMIT_BYTES`]. The header, `Refused` and the
//! builds in `Greeting` and `Challenge` stay the same in all versions of the protocol, so that any two versions can tell each
//! other apart. The cookie is never sent: a proof is an HMAC-SHA256 over both nonces, the TLS channel and the body.

use hmac::{Hmac, Mac};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::cookie::Cookie;

/// The version of this protocol and of the frames that follow it.
pub(crate) const PROTOCOL: u16 = 1;
/// The version this was built from.
pub(crate) const BUILD: &str = concat!("greenroom ", env!("CARGO_PKG_VERSION"));
/// The most bytes of a body: no more is ever allocated for somebody who is not known yet.
pub(crate) const BODY_LIMIT_BYTES: usize = 16 << 10;
/// Magic, protocol, kind, length.
pub(crate) const HEADER_BYTES: usize = 4 + 2 + 1 + 4;
const MAGIC: [u8; 4] = *b"GRNM";
const PROOF_BYTES: usize = 32;

/// A number that is used once.
pub(crate) type Nonce = [u8; 32];

/// Which of the messages this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Challenge = 1,
    Hello = 2,
    Welcome = 3,
    Refused = 4,
    Begin = 5,
    Agreed = 6,
    Greeting = 7,
}

/// The first message by the one who was dialled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Challenge {
    pub nonce: Nonce,
    pub build: String,
}

/// Who a node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Introduction {
    pub build: String,
    pub schema: String,
    pub cluster: String,
    pub node: String,
    pub incarnation: u64,
    pub roles: Vec<String>,
    pub address: String,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Purpose {
    /// To carry a line.
    Control,
    /// To carry what is too large for a line's control channel.
    Bulk { line: u64 },
}

/// The dialler's introduction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub who: Introduction,
    pub purpose: Purpose,
    pub nonce: Nonce,
}

/// The answer of the one who was dialled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub who: Introduction,
    /// The line to the dialler that it holds.
    pub line: Option<u64>,
    /// The last line to the dialler that it ended.
    pub ended: Option<u64>,
}

/// The dialler's last word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// The number of this connection.
    pub connection: u64,
    /// The line it carries.
    pub line: u64,
    /// Whether the line begins with it, for all that the dialler knows.
    pub is_new: bool,
    /// The last connection between the two, which the dialler has lost.
    pub lost: Option<u64>,
}

/// Why a node does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// As the text says, which begins with a code.
    For(String),
    /// There is another connection, or will be at once: nothing to speak of.
    Duplicate,
    /// A newer incarnation of the same node is known.
    Fenced { by: u64 },
    /// Who dials is the node that it dialled.
    Itself,
}

impl Refused {
    /// The body: what to do, an incarnation, and a text.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (action, by, text) = match self {
            Self::For(text) => (0, 0, text.as_str()),
            Self::Duplicate => (1, 0, "GR1215: there is another connection"),
            Self::Fenced { by } => (2, *by, "GR1209: a newer incarnation of this node is in the cluster"),
            Self::Itself => (3, 0, "GR1215: it is this very node"),
        };
        let mut body = vec![action];
        body.extend_from_slice(&u64::to_be_bytes(by));
        body.extend(text.bytes().take(2048));
        body
    }

    pub(crate) fn decode(body: &[u8]) -> Self {
        let (action, rest) = body.split_first().unwrap_or((&0, &[]));
        let (by, text) = rest.split_first_chunk::<8>().unwrap_or((&[0; 8], rest));
        match action {
            1 => Self::Duplicate,
            2 => Self::Fenced { by: u64::from_be_bytes(*by) },
            3 => Self::Itself,
            _ => Self::For(printable(text)),
        }
    }
}

/// A stranger's text, fit for a log.
pub(crate) fn printable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars().take(500).map(|character| if character.is_control() { ' ' } else { character }).collect()
}

/// A header and its body.
pub(crate) fn message(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
    message.extend_from_slice(&MAGIC);
    message.extend_from_slice(&PROTOCOL.to_be_bytes());
    message.push(kind as u8);
    message.extend_from_slice(&(body.len() as u32).to_be_bytes());
    message.extend_from_slice(body);
    message
}

/// A header that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub protocol: u16,
    pub kind: Option<Kind>,
    pub length: usize,
}

impl Header {
    /// Whether the first bytes of a header may be a node's.
    pub(crate) fn may_begin_with(bytes: &[u8]) -> bool {
        bytes.iter().zip(&MAGIC).all(|(one, other)| one == other)
    }

    /// Reads a header; `None` when it is none of a node, or speaks of more than a body may hold.
    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let protocol = u16::from_be_bytes([bytes[4], bytes[5]]);
        let length = u32::from_be_bytes([bytes[7], bytes[8], bytes[9], bytes[10]]) as usize;
        let kind = match bytes[6] {
            1 => Some(Kind::Challenge),
            2 => Some(Kind::Hello),
            3 => Some(Kind::Welcome),
            4 => Some(Kind::Refused),
            5 => Some(Kind::Begin),
            6 => Some(Kind::Agreed),
            7 => Some(Kind::Greeting),
            _ => None,
        };
        (bytes[..4] == MAGIC && length <= BODY_LIMIT_BYTES).then_some(Self { protocol, kind, length })
    }
}

/// The bytes of a body.
pub(crate) fn encode<T: Serialize>(body: &T) -> Vec<u8> {
    // these types hold nothing that cannot be written; an empty body is refused at the other end
    bincode::serde::encode_to_vec(body, bincode::config::legacy()).unwrap_or_default()
}

/// Reads a body, all of it.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Option<T> {
    let config = bincode::config::legacy().with_limit::<BODY_LIMIT_BYTES>();
    let (value, read) = bincode::serde::decode_from_slice(body, config).ok()?;
    (read == body.len()).then_some(value)
}

/// What a proof is about, besides the body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proving<'a> {
    /// Who proves.
    pub side: &'static str,
    pub challenge: &'a Nonce,
    /// The dialler's nonce, where it is the other one that proves.
    pub hello: Option<&'a Nonce>,
    /// What binds this to the TLS channel; zeros without TLS.
    pub channel: &'a [u8; 32],
}

impl Proving<'_> {
    fn mac(&self, cookie: &Cookie, body: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(cookie.secret()).ok()?;
        mac.update(self.side.as_bytes());
        mac.update(&PROTOCOL.to_be_bytes());
        mac.update(self.challenge);
        mac.update(self.hello.unwrap_or(&[0; 32]));
        mac.update(self.channel);
        mac.update(body);
        Some(mac)
    }

    /// The body with the proof behind it.
    pub(crate) fn sign(&self, cookie: &Cookie, mut body: Vec<u8>) -> Vec<u8> {
        if let Some(mac) = self.mac(cookie, &body) {
            body.extend_from_slice(&mac.finalize().into_bytes());
        }
        body
    }

    /// The body before a good proof; compared in constant time.
    pub(crate) fn verify<'b>(&self, cookie: &Cookie, signed: &'b [u8]) -> Option<&'b [u8]> {
        let (body, proof) = signed.split_at_checked(signed.len().checked_sub(PROOF_BYTES)?)?;
        self.mac(cookie, body)?.verify_slice(proof).ok()?;
        Some(body)
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::Seed;
    use rand::RngCore;

    use super::*;

    fn introduction() -> Introduction {
        Introduction {
            build: BUILD.into(),
            schema: "s".into(),
            cluster: "c".into(),
            node: "n".into(),
            incarnation: 7,
            roles: vec!["engine".into()],
            address: "h:1".into(),
        }
    }

    #[test]
    fn a_proof_holds_for_its_cookie_its_channel_its_nonces_its_side_and_its_body_only() {
        let cookie = Cookie::of_secret(b"0123456789abcdef0123456789abcdef");
        let (challenge, hello, channel) = ([1; 32], [2; 32], [3; 32]);
        let proving = Proving { side: "dialler", challenge: &challenge, hello: Some(&hello), channel: &channel };
        let signed = proving.sign(&cookie, encode(&introduction()));
        let body = proving.verify(&cookie, &signed).unwrap();
        assert_eq!(decode::<Introduction>(body), Some(introduction()));
        let other = Cookie::of_secret(b"1123456789abcdef0123456789abcdef");
        assert!(proving.verify(&other, &signed).is_none());
        let zeros = [0; 32];
        for changed in [
            Proving { side: "acceptor", ..proving },
            Proving { challenge: &zeros, ..proving },
            Proving { hello: None, ..proving },
            Proving { channel: &zeros, ..proving },
        ] {
            assert!(changed.verify(&cookie, &signed).is_none(), "{changed:?}");
        }
        for at in 0..signed.len() {
            let mut damaged = signed.clone();
            damaged[at] ^= 1;
            assert!(proving.verify(&cookie, &damaged).is_none(), "byte {at}");
        }
        assert!(proving.verify(&cookie, &signed[..31]).is_none());
    }

    #[test]
    fn refusals_read_back_and_strangers_texts_are_made_printable() {
        for refused in
            [Refused::For("GR1206: no".into()), Refused::Duplicate, Refused::Fenced { by: 9 }, Refused::Itself]
        {
            assert_eq!(Refused::decode(&refused.encode()), refused);
        }
        assert_eq!(Refused::decode(b""), Refused::For(String::new()));
        assert_eq!(Refused::decode(b"\0\0\0\0\0\0\0\0\0a\nb\x1b[0m\xff"), Refused::For("a b [0m\u{fffd}".into()));
    }

    /// Garbage is an error, never a panic nor a large allocation.
    fn garbage(cases: usize, seed: u64) {
        let mut random = Seed::new(seed).random();
        for case in 0..cases {
            let mut header = [0; HEADER_BYTES];
            random.fill_bytes(&mut header);
            if case % 2 == 0 {
                header[..4].copy_from_slice(&MAGIC);
            }
            if let Some(header) = Header::parse(&header) {
                assert!(header.length <= BODY_LIMIT_BYTES);
            }
            let mut body = encode(&Hello { who: introduction(), purpose: Purpose::Control, nonce: [0; 32] });
            for _ in 0..1 + case % 5 {
                let at = random.next_u32() as usize % body.len();
                body[at] = random.next_u32() as u8;
            }
            let _ = decode::<Hello>(&body);
            let _ = decode::<Welcome>(&body);
            let _ = decode::<Begin>(&body);
            let _ = decode::<Challenge>(&body);
        }
        assert!(decode::<Introduction>(&u64::MAX.to_le_bytes()).is_none());
    }

    #[test]
    fn a_million_garbled_headers_and_bodies_do_no_harm() {
        garbage(1_000_000, 5);
    }
}
