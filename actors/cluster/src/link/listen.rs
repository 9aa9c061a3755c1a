//! Listening: each connection that comes is led through its handshake by a task of its own, within a bound.
//!
//! On failure: who is turned away hears why, as far as it may; a stranger costs one bounded task and one bounded buffer
//! until the handshake's deadline, and nobody else notices.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use greenroom_core::{Deadline, spawn_named};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::handshake::{Failure, Introduced, Shaking};
use super::preamble::{Hello, Purpose, Welcome};
use super::socket::{Cutter, configure};
use crate::bulk;
use crate::hub::Hub;

/// How many handshakes may be under way.
const HANDSHAKES: usize = 128;

/// Accepts connections until the node stops.
pub(crate) async fn listen(hub: Arc<Hub>, listener: TcpListener) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        let Ok(permit) = handshakes.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, from)) => {
                let hub = hub.clone();
                spawn_named("handshake", async move {
                    accept(&hub, stream, from, permit).await;
                });
            }
            Err(error) => {
                // out of descriptors, most likely: others must close before it goes on
                hub.report("listener", &format!("GR1204: {error}"));
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn accept(hub: &Arc<Hub>, stream: TcpStream, from: SocketAddr, permit: tokio::sync::OwnedSemaphorePermit) {
    let deadline = Deadline::after_ms(hub.config.handshake_ms);
    let failed = |failure: &Failure| hub.failed(&from.ip().to_string(), failure);
    let cutter = match configure(&stream, hub.config.tcp_user_timeout_ms) {
        Ok(cutter) => cutter,
        Err(error) => return failed(&Failure::of_io(&error)),
    };
    let mut shaking = match Shaking::accepted(stream, hub.identity.as_ref(), deadline).await {
        Ok(shaking) => shaking,
        Err(failure) => return failed(&failure),
    };
    let hello = match shaking.challenge(&hub.me, &hub.cookie).await {
        Ok(hello) => hello,
        Err(failure) => {
            shaking.turn_down(&failure).await;
            return failed(&failure);
        }
    };
    let node = hello.said.who.node.clone();
    let let_in = let_in(hub, shaking, hello, cutter, permit).await;
    if let Err(failure) = let_in {
        hub.failed(&node, &failure);
    }
}

/// Lets in who has introduced itself, and carries what it came for.
async fn let_in(
    hub: &Arc<Hub>,
    mut shaking: Shaking,
    hello: Introduced<Hello>,
    cutter: Cutter,
    permit: tokio::sync::OwnedSemaphorePermit,
) -> Result<(), Failure> {
    match agree(hub, &mut shaking, &hello, cutter.clone()).await {
        Ok(Purposed::Control(agreed)) => hub.carry(agreed, shaking.stream).await,
        Ok(Purposed::Bulk(line)) => {
            // it is no handshake any more
            drop(permit);
            let Some(connection) = line.connection() else { return Ok(()) };
            bulk::carry(line, shaking.stream, cutter, connection).await;
            Ok(())
        }
        Err(failure) => {
            shaking.turn_down(&failure).await;
            Err(failure)
        }
    }
}

enum Purposed {
    Control(crate::connections::Agreed),
    Bulk(Arc<crate::line::PeerLine>),
}

async fn agree(
    hub: &Arc<Hub>,
    shaking: &mut Shaking,
    hello: &Introduced<Hello>,
    cutter: Cutter,
) -> Result<Purposed, Failure> {
    let Hello { who, purpose, .. } = &hello.said;
    hub.admit(who, shaking.party.as_ref())?;
    let (line, ended) = hub.held(who);
    if let Purpose::Bulk { line } = purpose {
        hub.line_to(who, *line).ok_or(Failure::Duplicate("the line of this bulk has ended"))?;
    }
    let welcome = Welcome { who: hub.me.clone(), line, ended };
    let begin = shaking.welcome(hello, &welcome, &hub.cookie).await?;
    match purpose {
        Purpose::Control => {
            let agreed = hub.accepted(who, shaking.party.as_ref(), &begin, cutter)?;
            if let Err(failure) = shaking.agree().await {
                hub.lost(&agreed.line, agreed.connection, false);
                return Err(failure);
            }
            Ok(Purposed::Control(agreed))
        }
        Purpose::Bulk { line } => {
            let line = hub.line_to(who, *line).ok_or(Failure::Duplicate("the line of this bulk has ended"))?;
            shaking.agree().await?;
            Ok(Purposed::Bulk(line))
        }
    }
}
