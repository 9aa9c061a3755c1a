//! Bare TCP between the same two processes: what any carrier of messages adds to.
//!
//! The first byte of a connection says what it is for: payloads sent back one by one, or a stream that is taken in.

use anyhow::{Context, ensure};
use greenroom_core::spawn_named;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::work::{Calls, PAYLOAD_BYTES};

const ECHO: u8 = b'e';
const STREAM: u8 = b's';
const BUFFER_BYTES: usize = 256 << 10;

/// Listens on loopback; gives the address.
pub async fn serve() -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    spawn_named("plain TCP", async move {
        while let Ok((stream, _)) = listener.accept().await {
            // a connection that breaks ends the measurement at its other end
            spawn_named("plain TCP connection", async move { drop(answer(stream).await) });
        }
    });
    Ok(address)
}

async fn answer(mut stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    if stream.read_u8().await? == ECHO {
        let mut payload = [0; PAYLOAD_BYTES];
        loop {
            stream.read_exact(&mut payload).await?;
            stream.write_all(&payload).await?;
        }
    }
    let mut left = stream.read_u64().await? as usize;
    let mut buffer = vec![0; BUFFER_BYTES];
    while left > 0 {
        let count = stream.read(&mut buffer).await?;
        ensure!(count > 0, "the stream has ended early");
        left = left.saturating_sub(count);
    }
    stream.write_u8(STREAM).await?;
    Ok(())
}

async fn connect(address: &str, what: u8) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await.with_context(|| format!("{address} cannot be reached"))?;
    stream.set_nodelay(true)?;
    stream.write_u8(what).await?;
    Ok(stream)
}

/// Round trips of the payload, one at a time.
pub async fn ping(address: &str, count: usize) -> anyhow::Result<Calls> {
    let mut stream = connect(address, ECHO).await?;
    let (mut payload, mut microseconds) = ([7; PAYLOAD_BYTES], Vec::with_capacity(count));
    let began = Instant::now();
    for _ in 0..count {
        let sent = Instant::now();
        stream.write_all(&payload).await?;
        stream.read_exact(&mut payload).await?;
        microseconds.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    Ok(Calls { microseconds, wall_s: began.elapsed().as_secs_f64() })
}

/// So many bytes one way, until the other end has them; gives the seconds.
pub async fn stream(address: &str, bytes: usize) -> anyhow::Result<f64> {
    let mut stream = connect(address, STREAM).await?;
    let buffer = vec![7; BUFFER_BYTES];
    let began = Instant::now();
    stream.write_u64(bytes as u64).await?;
    for _ in 0..bytes / BUFFER_BYTES {
        stream.write_all(&buffer).await?;
    }
    stream.read_u8().await?;
    Ok(began.elapsed().as_secs_f64())
}
