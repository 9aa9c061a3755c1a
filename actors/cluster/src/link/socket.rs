//! TCP as this crate wants it: names resolved anew each time, dead peers noticed by the kernel, cut at will.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// Cuts a connection at once, whoever holds its stream.
#[derive(Clone)]
pub(crate) struct Cutter(Arc<OwnedFd>);

impl fmt::Debug for Cutter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Cutter")
    }
}

impl Cutter {
    fn of(stream: &TcpStream) -> io::Result<Self> {
        Ok(Self(Arc::new(stream.as_fd().try_clone_to_owned()?)))
    }

    /// Cuts; what was cut already stays so.
    pub(crate) fn cut(&self) {
        // not connected any more: that is what was wanted
        let _ = shutdown(&*self.0, Shutdown::Both);
    }
}

/// Sets what every connection has: no delay, keepalive, and a bound on unconfirmed bytes.
pub(crate) fn configure(stream: &TcpStream, user_timeout_ms: u64) -> io::Result<Cutter> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    sockopt::set_tcp_user_timeout(stream, u32::try_from(user_timeout_ms).unwrap_or(u32::MAX))?;
    Cutter::of(stream)
}

/// Connects to `HOST:PORT`, resolved now; every address it has is tried in turn.
pub(crate) async fn connect(address: &str, user_timeout_ms: u64) -> io::Result<(TcpStream, Cutter)> {
    let mut last = None;
    for address in tokio::net::lookup_host(address).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                let cutter = configure(&stream, user_timeout_ms)?;
                return Ok((stream, cutter));
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address")))
}

/// A connection's stream, in clear or encrypted.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// One half of a stream.
pub(crate) type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
/// The other half.
pub(crate) type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

impl Stream {
    /// Both halves; reading is buffered, because frames begin with a few bytes of length.
    pub(crate) fn into_halves(self) -> (ReadHalf, WriteHalf) {
        const BUFFER_BYTES: usize = 64 << 10;
        match self {
            Self::Plain(stream) => {
                let (read, write) = stream.into_split();
                (Box::new(tokio::io::BufReader::with_capacity(BUFFER_BYTES, read)), Box::new(write))
            }
            Self::Tls(stream) => {
                let (read, write) = tokio::io::split(*stream);
                (Box::new(tokio::io::BufReader::with_capacity(BUFFER_BYTES, read)), Box::new(write))
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}
