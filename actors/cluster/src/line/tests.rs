//! Two ends of a line in one process: what crosses, what cannot, and what is left when something fails.

use std::sync::{Arc, Mutex, Weak};

use greenroom_core::wire::{Target, target_of};
use greenroom_core::{Address, AskError, Clock, Deadline, Reply, Seed, ask};
use rand::RngCore;
use serde::{Deserialize, Serialize};

use super::*;
use crate::line::frame::{Batch, BatchWriter};

#[derive(Debug, Serialize, Deserialize)]
enum Say {
    Double(u64, Reply<u64>),
    Hold(Reply<u64>),
    Who(Reply<Option<(String, bool)>>),
    Call(Address<Say>, Reply<u64>),
    Large(Vec<u64>, Reply<Vec<u64>>),
}

#[derive(Serialize, Deserialize)]
enum Other {
    Seventh([u8; 7]),
}

/// The owner of one end, who serves one target.
#[derive(Default)]
struct Stub {
    target: Mutex<Option<Arc<dyn Target>>>,
    broken: Mutex<Vec<String>>,
}

impl Owner for Stub {
    fn target(&self, _: &PeerLine, service: &str) -> Result<Arc<dyn Target>, String> {
        let target = self.target.lock().unwrap().clone().filter(|_| service == "echo");
        target.ok_or_else(|| format!("offers no service {service} (GR1216)"))
    }
    fn offers(&self, _: &PeerLine) {}
    fn leaving(&self, _: &PeerLine) {}
    fn measured(&self, _: &PeerLine, _: i64, _: Option<f64>) {}
    fn gossip(&self, _: Vec<(String, u64, String)>) {}
    fn gossip_for(&self, _: &PeerLine) -> Vec<(String, u64, String)> {
        Vec::new()
    }
    fn broken(&self, _: &PeerLine, reason: &str, _: bool) {
        self.broken.lock().unwrap().push(reason.to_owned());
    }
}

const LIMITS: LineLimits = LineLimits {
    bulk_threshold_bytes: 1024,
    bulk_in_flight_bytes: 64 << 10,
    bulk_deadline_ms: 60_000,
    unacknowledged_bytes: 1 << 20,
    unacknowledged_messages: 64,
    open_questions: 16,
};

type Wire = Arc<Mutex<Vec<Vec<u8>>>>;

struct Pair {
    here: Arc<PeerLine>,
    there: Arc<PeerLine>,
    owners: [Arc<Stub>; 2],
    wires: [Wire; 2],
}

impl Pair {
    fn new() -> Self {
        let owners = [Arc::<Stub>::default(), Arc::<Stub>::default()];
        let wires = [Wire::default(), Wire::default()];
        let end = |me: &str, node: &str, owner: &Arc<Stub>, wire: &Wire| {
            let ends = Ends {
                id: 1,
                me: me.into(),
                node: node.into(),
                incarnation: 1,
                certificate: Some(CertificateRole::Operator),
            };
            let owner: Weak<dyn Owner> = Arc::downgrade(&(owner.clone() as Arc<dyn Owner>));
            let line = PeerLine::new(ends, LIMITS, Clock::system(), owner);
            let wire = wire.clone();
            line.connected(
                1,
                Arc::new(move |batch| {
                    wire.lock().unwrap().push(batch);
                    true
                }),
            );
            line
        };
        let here = end("here", "there", &owners[0], &wires[0]);
        let there = end("there", "here", &owners[1], &wires[1]);
        Self { here, there, owners, wires }
    }

    fn serve(&self, held: &Held) {
        *self.owners[1].target.lock().unwrap() = Some(target_of(&echo(held)));
    }

    /// Lets everything arrive, bulk included, until nothing moves.
    fn settle(&self) {
        loop {
            let mut moved = false;
            for (from, to, wire) in
                [(&self.here, &self.there, &self.wires[0]), (&self.there, &self.here, &self.wires[1])]
            {
                from.tell_abandoned();
                from.pump();
                let batches = std::mem::take(&mut *wire.lock().unwrap());
                for batch in batches {
                    moved = true;
                    to.receive(Batch::parse(&batch).unwrap());
                }
                while let Next::Chunk(chunk) = from.next_chunk(0) {
                    moved = true;
                    let header = crate::bulk::state::ChunkHeader::parse(&chunk.header());
                    let mut inbox = to.inbox.try_lock().unwrap();
                    inbox.check(&header).unwrap();
                    let blob = inbox.chunk(&header, chunk.bytes());
                    drop(inbox);
                    if let Some((id, blob)) = blob {
                        to.blob_arrived(id, blob);
                    }
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn address<M: Serialize + Send + 'static>(&self, service: &'static str) -> Address<M> {
        let here = self.here.clone();
        let send = move |message| here.send_to_service(service, message);
        Address::of_function(service, greenroom_core::wire::deliver_over(self.here.as_line(), send))
    }

    async fn ask<M: Serialize + Send + 'static, T>(
        &self,
        service: &'static str,
        question: impl FnOnce(Reply<T>) -> M,
    ) -> Result<T, AskError> {
        let address = self.address(service);
        let asking = ask(&address, Deadline::after_ms(5000), question);
        let settling = async {
            for _ in 0..10 {
                self.settle();
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(biased; asking, settling).0
    }
}

type Held = Arc<Mutex<Vec<Reply<u64>>>>;

fn echo(held: &Held) -> Address<Say> {
    let held = held.clone();
    Address::of_function("echo", move |say| {
        match say {
            Say::Double(number, reply) => drop(reply.send(2 * number)),
            Say::Who(reply) => drop(
                reply.send(caller().map(|caller| (caller.node, caller.certificate == Some(CertificateRole::Operator)))),
            ),
            Say::Hold(reply) => held.lock().unwrap().push(reply),
            // whom the address leads to answers in its place
            Say::Call(address, reply) => address.cast(Say::Double(21, reply)).map_err(|_| ())?,
            Say::Large(numbers, reply) => drop(reply.send(numbers)),
        }
        Ok(())
    })
}

fn lost(asked: &Result<impl std::fmt::Debug, AskError>) -> &str {
    match asked {
        Err(AskError::Lost { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn questions_addresses_and_bulk_cross_and_leave_nothing_behind() {
    let (pair, held) = (Pair::new(), Held::default());
    pair.serve(&held);
    assert_eq!(pair.ask("echo", |reply| Say::Double(4, reply)).await, Ok(8));
    assert_eq!(pair.ask("echo", Say::Who).await, Ok(Some(("here".into(), true))), "who is asked knows who asks");
    assert_eq!(caller(), None);
    let local = echo(&held);
    assert_eq!(pair.ask("echo", |reply| Say::Call(local, reply)).await, Ok(42), "a reply port goes there and back");
    let numbers: Vec<u64> = (0..1000).collect();
    assert_eq!(pair.ask("echo", |reply| Say::Large(numbers.clone(), reply)).await, Ok(numbers));
    pair.settle();
    for line in [&pair.here, &pair.there] {
        let state = line.lock();
        assert!(state.awaited.is_empty() && state.asked.is_empty() && state.exported.is_empty(), "{}", line.me);
        assert_eq!(state.outbox.kept_bytes(), 0);
    }
    assert!(pair.owners.iter().all(|owner| owner.broken.lock().unwrap().is_empty()));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_delivered_says_why_to_its_asker() {
    let (pair, held) = (Pair::new(), Held::default());
    let nobody = pair.ask("nobody", |reply| Say::Double(1, reply)).await;
    assert_eq!(lost(&nobody), "node there: there offers no service nobody (GR1216)");
    pair.serve(&held);
    let unreadable = pair.ask("echo", |reply: Reply<u64>| (77_u32, reply)).await;
    assert!(lost(&unreadable).contains("echo at there (GR1216)"), "{unreadable:?}");
    let other = pair.address::<Other>("echo");
    assert_eq!(other.cast(Other::Seventh([7; 7])), Ok(()), "what asks nothing is lost with a word in the log");
    pair.settle();
    let exported = pair.ask("nobody", |reply: Reply<u64>| Say::Call(echo(&held), reply)).await;
    assert!(exported.is_err());
    assert!(pair.here.lock().exported.is_empty(), "what was exported with it is let go");
}

#[tokio::test(start_paused = true)]
async fn more_than_may_be_open_or_wait_is_refused_with_the_reason() {
    let (pair, held) = (Pair::new(), Held::default());
    pair.serve(&held);
    let address = pair.address::<Say>("echo");
    let mut answers = Vec::new();
    for _ in 0..LIMITS.open_questions {
        let (reply, answer) = Reply::channel();
        address.cast(Say::Hold(reply)).unwrap();
        answers.push(answer);
    }
    let refused = pair.ask("echo", |reply| Say::Double(1, reply)).await;
    assert_eq!(lost(&refused), "node there (GR1214): 17 questions are open there");
    pair.settle();
    held.lock().unwrap().drain(..).for_each(|reply| assert!(reply.send(5)));
    pair.settle();
    assert!(answers.iter_mut().all(|answer| answer.try_recv() == Some(Ok(5))));
    let huge = pair.ask("echo", |reply| Say::Large(vec![0; 10_000], reply)).await;
    assert!(lost(&huge).contains("0 bytes are under way to it"), "{huge:?}");
    pair.here.disconnected(1);
    let notes = pair.address::<u64>("echo");
    let accepted = (0..1000).take_while(|number| notes.cast(*number).is_ok()).count();
    assert!((32..=64).contains(&accepted), "{accepted} messages wait for a node that is cut off");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_line_ends_every_question_once() {
    let (pair, held) = (Pair::new(), Held::default());
    pair.serve(&held);
    let address = pair.address::<Say>("echo");
    let (reply, mut answer) = Reply::channel();
    address.cast(Say::Hold(reply)).unwrap();
    let (dropped, _) = Reply::channel();
    address.cast(Say::Hold(dropped)).unwrap();
    pair.settle();
    let mut held: Vec<_> = held.lock().unwrap().drain(..).collect();
    assert!(held[1].is_abandoned() && !held[0].is_abandoned(), "whose asker has gone away is told");
    pair.here.end("it was seen no more");
    pair.there.end("it was seen no more");
    let reason = "node there (GR1213): it was seen no more".to_owned();
    assert_eq!(answer.try_recv(), Some(Err(Unanswered::Lost(reason))));
    assert!(held[0].is_abandoned(), "who was asked learns that nobody waits");
    assert!(!held.remove(0).send(1));
    let (reply, mut late) = Reply::channel();
    assert_eq!(address.cast(Say::Hold(reply)), Ok(()), "the question itself says why");
    assert!(matches!(late.try_recv(), Some(Err(Unanswered::Lost(_)))));
    assert!(pair.address::<Other>("echo").cast(Other::Seventh([0; 7])).is_err());
}

fn garble(bytes: &mut [u8], random: &mut greenroom_core::Random) {
    for _ in 0..=random.next_u32() % 3 {
        let at = random.next_u32() as usize % bytes.len();
        bytes[at] = random.next_u32() as u8;
    }
}

/// Whatever comes on a line is either taken or reported; nothing panics and no other line minds.
fn garbage(cases: usize, seed: u64) {
    let mut random = Seed::new(seed).random();
    let mut pair = Pair::new();
    let held = Held::default();
    for case in 0..cases {
        if case % 1000 == 0 {
            pair = Pair::new();
            pair.serve(&held);
            for _ in 0..3 {
                let (reply, _) = Reply::channel();
                pair.address::<Say>("echo").cast(Say::Hold(reply)).unwrap();
            }
            pair.here.pump();
        }
        let mut batch = pair.wires[0].lock().unwrap().first().cloned().unwrap();
        let frames = std::iter::from_fn({
            let mut real = Batch::parse(&batch).unwrap();
            move || real.next().map(|frame| frame.unwrap().1.to_vec())
        });
        let mut frame = frames.last().unwrap();
        match case % 3 {
            // a real batch with some bytes changed
            0 => garble(&mut batch, &mut random),
            // a signal is taken whatever came before: frames of random bytes, and real ones with some bytes changed
            kind => {
                if kind == 1 {
                    frame = vec![0; 1 + (random.next_u32() % 100) as usize];
                    random.fill_bytes(&mut frame);
                    frame[0] %= 14;
                } else {
                    garble(&mut frame, &mut random);
                }
                let mut writer = BatchWriter::new(1, 0);
                writer.push(frame::SIGNAL, &frame);
                batch = writer.finish();
            }
        }
        if let Ok(batch) = Batch::parse(&batch) {
            pair.there.receive(batch);
        }
        held.lock().unwrap().clear();
        pair.owners[1].broken.lock().unwrap().clear();
    }
}

#[tokio::test(start_paused = true)]
async fn a_million_garbled_batches_do_no_harm() {
    garbage(1_000_000, 4);
}
