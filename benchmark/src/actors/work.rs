//! The actor that is asked, and who asks it: the same messages as Ray's actor takes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use greenroom_core::{Address, Deadline, Reply, ask, spawn_named};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// What each ask and each message carries, bytes.
pub const PAYLOAD_BYTES: usize = 200;
/// Far more than any measurement takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many messages go one way before others may run.
const BREATH: u64 = 64;

/// Bytes as one slab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(#[serde(with = "serde_bytes")] Vec<u8>);

/// What the actor does.
#[derive(Debug, Serialize, Deserialize)]
pub enum Work {
    /// Sends the bytes back.
    Echo(Bytes, Reply<Bytes>),
    /// Answers the length.
    Take(Bytes, Reply<u64>),
    /// Is counted.
    Note(Bytes),
    /// How many notes have come since this was last asked.
    TakenNotes(Reply<u64>),
}

greenroom_core::local_message!(Work);

/// The actor; its state counts notes.
pub struct Worker;

impl Actor for Worker {
    type Msg = Work;
    type State = u64;
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Work>, (): ()) -> Result<u64, ActorProcessingErr> {
        Ok(0)
    }

    async fn handle(&self, _: ActorRef<Work>, work: Work, notes: &mut u64) -> Result<(), ActorProcessingErr> {
        match work {
            Work::Echo(bytes, reply) => drop(reply.send(bytes)),
            Work::Take(bytes, reply) => drop(reply.send(bytes.0.len() as u64)),
            Work::Note(_) => *notes += 1,
            Work::TakenNotes(reply) => drop(reply.send(std::mem::take(notes))),
        }
        Ok(())
    }
}

/// How long each of some calls took, and all of them.
pub struct Calls {
    /// Of each call.
    pub microseconds: Vec<f64>,
    /// From the first question to the last answer.
    pub wall_s: f64,
}

/// Makes `count` calls, `window` at a time.
async fn windowed<F, Fut>(count: usize, window: usize, call: F) -> anyhow::Result<Calls>
where
    F: Fn() -> Fut + Clone + Send + 'static,
    Fut: Future<Output = anyhow::Result<()>> + Send,
{
    let began = Instant::now();
    let mut askers = Vec::new();
    for _ in 0..window {
        let call = call.clone();
        askers.push(spawn_named("asker", async move {
            let mut microseconds = Vec::with_capacity(count / window);
            for _ in 0..count / window {
                let asked = Instant::now();
                call().await?;
                microseconds.push(asked.elapsed().as_secs_f64() * 1e6);
            }
            anyhow::Ok(microseconds)
        }));
    }
    let mut microseconds = Vec::with_capacity(count);
    for asker in askers {
        microseconds.extend(asker.await?.context("an asker panicked")??);
    }
    Ok(Calls { microseconds, wall_s: began.elapsed().as_secs_f64() })
}

/// Asks for the payload back.
pub async fn echo(worker: &Address<Work>, count: usize, window: usize) -> anyhow::Result<Calls> {
    let worker = worker.clone();
    let call = move || {
        let worker = worker.clone();
        async move {
            let sent = Bytes(vec![7; PAYLOAD_BYTES]);
            let back = ask(&worker, Deadline::after(PATIENCE), |reply| Work::Echo(sent, reply)).await?;
            ensure!(back.0.len() == PAYLOAD_BYTES, "{} bytes came back", back.0.len());
            Ok(())
        }
    };
    windowed(count, window, call).await
}

/// Gives messages of `bytes` bytes.
pub async fn take(worker: &Address<Work>, bytes: usize, count: usize, window: usize) -> anyhow::Result<Calls> {
    let (worker, content) = (worker.clone(), Arc::new(Bytes(vec![7; bytes])));
    let call = move || {
        let (worker, sent) = (worker.clone(), Bytes::clone(&content));
        async move {
            let taken = ask(&worker, Deadline::after(PATIENCE), |reply| Work::Take(sent, reply)).await?;
            ensure!(taken == bytes as u64, "{taken} bytes arrived of {bytes}");
            Ok(())
        }
    };
    windowed(count, window, call).await
}

/// Sends messages that nobody answers, as fast as the line takes them; all have arrived in the end. Gives the seconds.
pub async fn note(worker: &Address<Work>, count: u64) -> anyhow::Result<f64> {
    let began = Instant::now();
    for number in 1..=count {
        // a line that is full says so; nothing is lost
        while worker.cast(Work::Note(Bytes(vec![7; PAYLOAD_BYTES]))).is_err() {
            ensure!(began.elapsed() < PATIENCE, "the line stays full");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if number % BREATH == 0 {
            tokio::task::yield_now().await;
        }
    }
    let taken = ask(worker, Deadline::after(PATIENCE), Work::TakenNotes).await?;
    ensure!(taken == count, "{taken} of {count} messages arrived");
    Ok(began.elapsed().as_secs_f64())
}

/// The same question and answer by bare channels to a task: what an actor adds to.
pub async fn channel(count: usize) -> anyhow::Result<Calls> {
    let (sender, mut receiver) = mpsc::unbounded_channel::<(Bytes, oneshot::Sender<Bytes>)>();
    let task = spawn_named("channel", async move {
        while let Some((bytes, reply)) = receiver.recv().await {
            // whoever asks waits
            let _ = reply.send(bytes);
        }
    });
    let call = move || {
        let sender = sender.clone();
        async move {
            let (reply, answer) = oneshot::channel();
            sender.send((Bytes(vec![7; PAYLOAD_BYTES]), reply)).ok().context("the task has ended")?;
            ensure!(answer.await?.0.len() == PAYLOAD_BYTES, "other bytes came back");
            Ok(())
        }
    };
    let calls = windowed(count, 1, call).await;
    task.abort();
    calls
}
