//! A node's way out at a limited rate: all its connections share it, as they share a network card.
//!
//! For TCP a proxy passes on what the server sends no faster than the rate; for UDP there is a queue in front of it that
//! drops what does not fit, as a switch does.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use greenroom_core::{Seed, spawn_named};
use rand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, sleep_until};

const PIECE_BYTES: usize = 16 << 10;
/// 512 KiB at 1.4 KiB each.
const QUEUE_DATAGRAMS: usize = 370;
/// What may be sent late at once, because timers are only so exact.
const SLACK: Duration = Duration::from_millis(4);

/// Lets bytes through at a rate.
struct Gate {
    bytes_per_s: f64,
    free_at: Mutex<Instant>,
}

impl Gate {
    fn new(rate_mbit: u32) -> Arc<Self> {
        Arc::new(Self { bytes_per_s: f64::from(rate_mbit) * 1e6 / 8.0, free_at: Mutex::new(Instant::now()) })
    }

    /// Waits until these bytes have left.
    async fn pass(&self, bytes: usize) {
        let until = {
            let mut free_at = self.free_at.lock().await;
            let earliest = Instant::now().checked_sub(SLACK).unwrap_or(*free_at);
            *free_at = (*free_at).max(earliest) + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
            *free_at
        };
        if until > Instant::now() {
            sleep_until(until).await;
        }
    }
}

/// A limited way out of the TCP server at `to`.
pub async fn tcp(to: SocketAddr, rate_mbit: u32) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let gate = Gate::new(rate_mbit);
    spawn_named("shaper", async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(to).await else { continue };
            spawn_named("shaped", pass(client, server, gate.clone()));
        }
    });
    Ok(address)
}

async fn pass(client: TcpStream, server: TcpStream, gate: Arc<Gate>) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true)); // only slower otherwise
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let questions = spawn_named("shaped questions", async move {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await; // its end is the connection's
    });
    let mut piece = vec![0; PIECE_BYTES];
    while let Ok(bytes @ 1..) = from_server.read(&mut piece).await {
        gate.pass(bytes).await;
        if to_client.write_all(&piece[..bytes]).await.is_err() {
            break;
        }
    }
    questions.abort();
}

/// What a link does to datagrams, besides its rate.
#[derive(Clone, Copy, Default)]
pub struct Link {
    /// How long each way takes.
    pub delay: Duration,
    /// Of so many datagrams of the server one is lost, chosen by a seed; 0 for none.
    pub loses_one_of: u32,
}

/// A limited way out of the UDP server at `to`.
pub async fn udp(to: SocketAddr, rate_mbit: u32, link: Link) -> std::io::Result<SocketAddr> {
    let front = Arc::new(UdpSocket::bind("127.0.0.1:0").await?);
    let address = front.local_addr()?;
    let (queue, mut leaving) = mpsc::channel::<(Vec<u8>, SocketAddr)>(QUEUE_DATAGRAMS);
    let (gate, out) = (Gate::new(rate_mbit), delayed(front.clone(), link.delay));
    spawn_named("shaper", async move {
        let mut random = Seed::new(1).random();
        while let Some((datagram, client)) = leaving.recv().await {
            gate.pass(datagram.len()).await;
            if link.loses_one_of == 0 || !random.random_ratio(1, link.loses_one_of) {
                let _ = out.send((Instant::now() + link.delay, datagram, client)); // ends with the bench
            }
        }
    });
    spawn_named("shaper", async move {
        let mut backs = BTreeMap::new();
        let mut datagram = vec![0; 65_536];
        loop {
            let Ok((bytes, client)) = front.recv_from(&mut datagram).await else { continue };
            let back = match backs.entry(client) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    let Ok(back) = UdpSocket::bind("127.0.0.1:0").await.map(Arc::new) else { continue };
                    spawn_named("shaped", answers(back.clone(), client, queue.clone()));
                    place.insert(delayed(back, link.delay))
                }
            };
            let _ = back.send((Instant::now() + link.delay, datagram[..bytes].to_vec(), to)); // ends with the bench
        }
    });
    Ok(address)
}

type Delayed = mpsc::UnboundedSender<(Instant, Vec<u8>, SocketAddr)>;

/// A socket that sends each datagram when its time has come, in order.
fn delayed(socket: Arc<UdpSocket>, delay: Duration) -> Delayed {
    let (sender, mut waiting) = mpsc::unbounded_channel::<(Instant, Vec<u8>, SocketAddr)>();
    spawn_named("shaped delay", async move {
        while let Some((at, datagram, target)) = waiting.recv().await {
            if !delay.is_zero() && at > Instant::now() {
                sleep_until(at).await;
            }
            let _ = socket.send_to(&datagram, target).await; // a datagram may get lost
        }
    });
    sender
}

async fn answers(back: Arc<UdpSocket>, client: SocketAddr, queue: mpsc::Sender<(Vec<u8>, SocketAddr)>) {
    let mut datagram = vec![0; 65_536];
    loop {
        let Ok((bytes, _)) = back.recv_from(&mut datagram).await else { continue };
        // a full queue drops
        let _ = queue.try_send((datagram[..bytes].to_vec(), client));
    }
}
