//! What is too large for a line's control connection goes beside it, so that a message of megabytes delays neither a
//! heartbeat nor a question: by the data plane ([`plane`]) where both ends have one, else over a second connection of the
//! line, as with shells and without TLS.
//!
//! On failure: the second connection is made anew by whoever dialled it, and blobs that are not confirmed are sent again over
//! it from their beginning.

pub(crate) mod plane;
pub(crate) mod state;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter};

use crate::line::{Next, PeerLine};
use crate::link::socket::{Cutter, ReadHalf, Stream, WriteHalf};
use state::{CHUNK_BYTES, CHUNK_HEADER_BYTES, ChunkHeader};

/// Carries bulk in both directions until the connection breaks or its control connection is gone.
pub(crate) async fn carry(line: Arc<PeerLine>, stream: Stream, cutter: Cutter, control: u64) {
    let number = line.bulk_connected(cutter.clone());
    let (read, write) = stream.into_halves();
    tokio::select! {
        ended = receive(&line, read) => log(&line, &ended),
        ended = send(&line, write, number, control) => log(&line, &ended),
    }
    cutter.cut();
    // a wake-up that was meant for a later connection is handed on
    line.bulk_wake.notify_one();
}

fn log(line: &PeerLine, ended: &io::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(node = line.node(), %error, "a bulk connection has ended");
    }
}

async fn send(line: &PeerLine, write: WriteHalf, number: u64, control: u64) -> io::Result<()> {
    let mut write = BufWriter::with_capacity(CHUNK_BYTES + CHUNK_HEADER_BYTES, write);
    while line.connection() == Some(control) {
        match line.next_chunk(number) {
            Next::Chunk(chunk) => {
                write.write_all(&chunk.header()).await?;
                write.write_all(chunk.bytes()).await?;
            }
            Next::Nothing => {
                write.flush().await?;
                line.bulk_wake.notified().await;
            }
            Next::Superseded => return Ok(()),
        }
    }
    Ok(())
}

async fn receive(line: &PeerLine, mut read: ReadHalf) -> io::Result<()> {
    // who read the connection before this one has let go when it was cut
    let mut inbox = line.inbox.lock().await;
    let mut header = [0; CHUNK_HEADER_BYTES];
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        read.read_exact(&mut header).await?;
        let chunk = ChunkHeader::parse(&header);
        inbox.check(&chunk).map_err(io::Error::other)?;
        let bytes = &mut buffer[..chunk.length];
        read.read_exact(bytes).await?;
        if let Some((id, blob)) = inbox.chunk(&chunk, bytes) {
            line.blob_arrived(id, blob);
        }
    }
}
