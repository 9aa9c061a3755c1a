//! Plain TCP: bytes from memory to memory, without a name, a check or a secret.

use anyhow::ensure;
use bytes::Bytes;
use greenroom_core::spawn_named;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PIECE_BYTES: usize = 256 << 10;

/// Carries the content over loopback into a buffer of its own.
pub async fn carry(content: &Bytes) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let bytes = content.clone();
    let sending = spawn_named("plain sender", async move {
        let (mut stream, _) = listener.accept().await?;
        for piece in bytes.chunks(PIECE_BYTES) {
            stream.write_all(piece).await?;
        }
        stream.shutdown().await
    });
    let mut stream = TcpStream::connect(address).await?;
    let mut received = Vec::with_capacity(content.len());
    while stream.read_buf(&mut received).await? > 0 {}
    ensure!(received.len() == content.len() && sending.await?.is_some_and(|sent| sent.is_ok()), "plain TCP lost bytes");
    Ok(())
}
