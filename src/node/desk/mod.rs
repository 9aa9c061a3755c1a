//! The desk: the one service of the controller through which people look at a run and steer it.
//!
//! Whoever may look may ask it; steering needs the role operator, which is decided where the message arrives, by the
//! certificate of the line it came over. Each question is a task of its own, and there are at most so many at a time. The
//! desk holds nothing: what it says is what the parts say when they are asked, and a part that does not answer is named.
//! On failure: a part that is gone costs its lines, never the answer.

mod actors;
mod bottleneck;
mod checkpoint;
mod checksums;
mod looks;
mod report;
mod settings;
mod steers;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use greenroom_cluster::{Caller, CertificateRole, Cluster, caller};
use greenroom_core::{Address, AskError, Clock, Deadline, Reply, ask, spawn_blocking_named, spawn_named};
use greenroom_messages::steer::{DeskMessage, DeskRefusal, Sight, Steer};
use greenroom_run::{Database, DatabaseReader, RunError};
use tokio::sync::Semaphore;

use super::NodeConfig;
use crate::config::Config;
use crate::shell::redact::redact;

pub(super) use looks::state_name;
pub(super) use report::report;

/// The name of the service.
pub(crate) const DESK: &str = "desk";
/// How many questions are answered at a time.
const AT_A_TIME: u32 = 32;
/// How long a part has for its answer.
const PART_WAIT_MS: u64 = 3_000;

/// What the desk needs to know.
#[derive(Clone)]
pub(super) struct Desk {
    pub(super) cluster: Cluster,
    pub(super) node: NodeConfig,
    pub(super) config: Config,
    pub(super) database: Database,
    pub(super) reader: DatabaseReader,
    pub(super) run_dir: PathBuf,
    pub(super) clock: Clock,
}

/// Offers the desk to everybody in the cluster.
pub(super) fn serve(desk: Desk) {
    let cluster = desk.cluster.clone();
    let (desk, places) = (Arc::new(desk), Arc::new(Semaphore::new(AT_A_TIME as usize)));
    let address = Address::of_function(DESK, move |message| {
        // only here is it known who asks
        take(&desk, &places, message, caller());
        Ok(())
    });
    cluster.serve_everybody(DESK, &address);
}

fn take(desk: &Arc<Desk>, places: &Arc<Semaphore>, message: DeskMessage, caller: Option<Caller>) {
    let Ok(place) = places.clone().try_acquire_owned() else {
        let busy = DeskRefusal::Busy { limit: AT_A_TIME };
        match message {
            DeskMessage::Look(_, reply) => drop(reply.send(Err(busy))),
            DeskMessage::Steer(_, reply) => drop(reply.send(Err(busy))),
        }
        return;
    };
    let desk = desk.clone();
    match message {
        DeskMessage::Look(look, reply) => {
            spawn_named("desk-look", async move {
                answer(reply, desk.look(look)).await;
                drop(place);
            });
        }
        // asks where something is, and steers nothing
        DeskMessage::Steer(Steer::Checkpoint, reply) => {
            spawn_named("desk-checkpoint", async move {
                reply.send(desk.checkpoint().await);
                drop(place);
            });
        }
        DeskMessage::Steer(steer, reply) => {
            let by = match may_steer(caller.as_ref()) {
                Ok(by) => by,
                Err(refusal) => {
                    let steer = redact(&steer.to_string());
                    tracing::warn!(%refusal, steer, "steering was refused");
                    reply.send(Err(refusal));
                    return;
                }
            };
            spawn_named("desk-steer", async move {
                // what was begun is done, whether anybody still waits or not
                reply.send(desk.steer(steer, by).await);
                drop(place);
            });
        }
    }
}

/// Answers, unless nobody waits any more.
async fn answer(mut reply: Reply<Result<Sight, DeskRefusal>>, look: impl Future<Output = Result<Sight, DeskRefusal>>) {
    let seen = tokio::select! {
        biased;
        seen = look => seen,
        () = reply.abandoned() => return,
    };
    reply.send(seen);
}

/// Whether whoever sent a message may steer: who it is, in words, if so.
fn may_steer(caller: Option<&Caller>) -> Result<String, DeskRefusal> {
    let Some(caller) = caller else { return Ok("this node".to_owned()) };
    let who = caller.node.clone();
    match caller.certificate {
        Some(CertificateRole::Operator) => Ok(format!("operator {who}")),
        // without TLS a cluster is bound to this machine
        None => Ok(format!("{who} (without a certificate)")),
        Some(CertificateRole::Viewer) => Err(DeskRefusal::NeedsOperator { who, role: "a viewer".to_owned() }),
        Some(CertificateRole::Node) => Err(DeskRefusal::NeedsOperator { who, role: "a node".to_owned() }),
    }
}

impl Desk {
    /// Asks a part; why it did not answer, in words, otherwise.
    async fn part<M: Send + 'static, T>(
        &self,
        part: Address<M>,
        question: impl FnOnce(Reply<T>) -> M,
    ) -> Result<T, String> {
        let answer = ask(&part, Deadline::after(Duration::from_millis(PART_WAIT_MS)), question).await;
        answer.map_err(|error: AskError| error.to_string())
    }

    /// Looks into the database, where it does not hold up others.
    async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&DatabaseReader) -> Result<T, RunError> + Send + 'static,
    ) -> Result<T, DeskRefusal> {
        let reader = self.reader.clone();
        let looked = spawn_blocking_named("desk-database", move || look(&reader)).await;
        let looked = looked.ok().flatten().ok_or_else(|| cannot("the database could not be read; see the log"))?;
        looked.map_err(|error| cannot(format!("{}: {error}", error.code())))
    }
}

fn cannot(reason: impl Into<String>) -> DeskRefusal {
    DeskRefusal::Cannot { reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_operators_steer_where_there_are_certificates() {
        let caller = |certificate| Caller { node: "ada-1".to_owned(), certificate };
        let cases = [
            (Some(CertificateRole::Operator), true),
            (Some(CertificateRole::Viewer), false),
            (Some(CertificateRole::Node), false),
            (None, true),
        ];
        for (certificate, may) in cases {
            let allowed = may_steer(Some(&caller(certificate)));
            assert_eq!(allowed.is_ok(), may, "{certificate:?}: {allowed:?}");
            assert!(format!("{allowed:?}").contains("ada-1"), "who it was is told: {allowed:?}");
        }
        assert!(may_steer(None).is_ok());
    }
}
