//! How a message crosses to another process: with its reply ports and addresses, which stay usable at the other end.
//!
//! A [`Line`] leads to one other process. [`pack`] writes a message for it: each [`Reply`] in the message becomes the number
//! of a question whose answer the line awaits, each [`Address`] the number of a target that the line delivers to.
//! [`unpack`] puts the message together at the other end, with ports and addresses that lead back over the line. So a
//! message type needs nothing but serde's derives to be sent to an actor anywhere.
//!
//! Invariants: a port or address written anywhere else than to a line is an error, never a dangling number; bytes from a
//! line never make more memory be asked for than they could fill; a line that is lost concludes every awaited answer.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::reply::{Abandonment, Port};
use crate::{Address, Deadline, Reply, Unanswered, in_place};

/// The largest message that may be packed, in bytes.
pub const LARGEST_MESSAGE_BYTES: usize = 1 << 30;

/// Way to one other process; see the module's page. Implemented by the cluster, and by tests.
pub trait Line: Send + Sync {
    /// A question leaves on the message being packed. Gives its number, unique among the line's open questions.
    fn expect(&self, awaited: Box<dyn AwaitedAnswer>) -> u64;

    /// Question `number` arrived in the message being unpacked. Gives what shows that its asker has gone away.
    fn asked(&self, number: u64) -> Arc<Abandonment>;

    /// Sends the answer to question `number`; `None` says that the one asked dropped it.
    fn answer(&self, number: u64, answer: Option<Vec<u8>>);

    /// The message being packed holds an address: from now on messages may arrive for it. Gives its number.
    fn export(&self, target: Arc<dyn Target>) -> u64;

    /// Sends a packed message to the target that the other end exported as `number`. Why that failed is the line's to log.
    #[allow(clippy::result_unit_err)] // a sender acts on the failure alone, as at an `Address`
    fn send(&self, number: u64, message: Vec<u8>) -> Result<(), ()>;

    /// Nobody at this end holds the address of the other end's target `number` any more.
    fn release(&self, number: u64);
}

/// A question that has crossed a line and waits for its answer.
pub trait AwaitedAnswer: Send {
    /// The answer has arrived, or will not.
    fn conclude(self: Box<Self>, line: &Arc<dyn Line>, answer: Result<&[u8], Unanswered>);

    /// Whether the asker has gone away, so that the other end may be told.
    fn is_abandoned(&self) -> bool;
}

/// Somebody to whom packed messages can be delivered.
pub trait Target: Send + Sync {
    /// Puts a message together and delivers it; the error says why that cannot be.
    fn deliver(&self, line: &Arc<dyn Line>, message: &[u8]) -> Result<(), String>;

    /// The name of the address, for messages to people.
    fn name(&self) -> &str;
}

/// A message could not be packed or put together (GR0008).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} cannot cross the line: {reason}")]
pub struct WireError {
    /// The type concerned.
    pub what: &'static str,
    /// Why not.
    pub reason: String,
}

thread_local! {
    static LINES: RefCell<Vec<Arc<dyn Line>>> = const { RefCell::new(Vec::new()) };
}

/// Makes `line` the one that ports and addresses are written to or read from while `work` runs.
fn over<T>(line: &Arc<dyn Line>, work: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            LINES.with_borrow_mut(Vec::pop);
        }
    }
    LINES.with_borrow_mut(|lines| lines.push(line.clone()));
    let _leave = Leave;
    work()
}

fn current_line() -> Option<Arc<dyn Line>> {
    LINES.with_borrow(|lines| lines.last().cloned())
}

/// Writes a message, or an answer, for the other end of a line.
///
/// # Errors
/// [`WireError`] when the value cannot be written or is larger than [`LARGEST_MESSAGE_BYTES`]; its reply ports are then
/// answered as dropped.
pub fn pack<T: Serialize>(line: &Arc<dyn Line>, value: &T) -> Result<Vec<u8>, WireError> {
    let failed = |reason: String| WireError { what: std::any::type_name::<T>(), reason };
    let bytes = over(line, || bincode::serde::encode_to_vec(value, bincode::config::legacy()));
    let bytes = bytes.map_err(|error| failed(error.to_string()))?;
    if bytes.len() > LARGEST_MESSAGE_BYTES {
        return Err(failed(format!("{} bytes are more than {LARGEST_MESSAGE_BYTES}", bytes.len())));
    }
    Ok(bytes)
}

/// Puts together what [`pack`] wrote at the other end of the line. Bytes that follow the value are an error.
///
/// # Errors
/// [`WireError`] when the bytes are no `T`.
pub fn unpack<T: DeserializeOwned>(line: &Arc<dyn Line>, bytes: &[u8]) -> Result<T, WireError> {
    const SMALL: usize = 1 << 16;
    const MIDDLE: usize = 1 << 22;
    let failed = |reason: String| WireError { what: std::any::type_name::<T>(), reason };
    // a limit is part of bincode's type: the smallest of three that the bytes fit in
    let legacy = bincode::config::legacy();
    let read = over(line, || {
        if bytes.len() <= SMALL {
            bincode::serde::decode_from_slice(bytes, legacy.with_limit::<SMALL>())
        } else if bytes.len() <= MIDDLE {
            bincode::serde::decode_from_slice(bytes, legacy.with_limit::<MIDDLE>())
        } else {
            in_place(|| bincode::serde::decode_from_slice(bytes, legacy.with_limit::<LARGEST_MESSAGE_BYTES>()))
        }
    });
    let (value, used) = read.map_err(|error| failed(error.to_string()))?;
    if used != bytes.len() {
        return Err(failed(format!("{} bytes follow the value", bytes.len() - used)));
    }
    Ok(value)
}

/// The target through which packed messages reach an address.
pub fn target_of<M: DeserializeOwned + Send + 'static>(address: &Address<M>) -> Arc<dyn Target> {
    Arc::new(AddressTarget(address.clone()))
}

struct AddressTarget<M>(Address<M>);

impl<M: DeserializeOwned + Send + 'static> Target for AddressTarget<M> {
    fn deliver(&self, line: &Arc<dyn Line>, message: &[u8]) -> Result<(), String> {
        let message = unpack::<M>(line, message).map_err(|error| error.to_string())?;
        self.0.cast(message).map_err(|gone| gone.to_string())
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}

/// Delivers the messages of an address over a line; `send` is told the packed message.
pub fn deliver_over<M: Serialize + Send + 'static>(
    line: Arc<dyn Line>,
    send: impl Fn(Vec<u8>) -> Result<(), ()> + Send + Sync + 'static,
) -> impl Fn(M) -> Result<(), ()> + Send + Sync + 'static {
    move |message| {
        let packed = pack(&line, &message).map_err(|error| tracing::error!(code = "GR0008", %error, "not sent"))?;
        send(packed)
    }
}

/// A target at the other end, released with the last clone of its address.
struct Imported {
    line: Arc<dyn Line>,
    number: u64,
}

impl Imported {
    fn send(&self, message: Vec<u8>) -> Result<(), ()> {
        self.line.send(self.number, message)
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        self.line.release(self.number);
    }
}

impl<M: DeserializeOwned + Send + 'static> Serialize for Address<M> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let line = current_line().ok_or_else(|| S::Error::custom("an address can only be written to a line"))?;
        (line.export(target_of(self)), self.name()).serialize(serializer)
    }
}

impl<'de, M: Serialize + Send + 'static> Deserialize<'de> for Address<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (number, name) = <(u64, String)>::deserialize(deserializer)?;
        let line = current_line().ok_or_else(|| D::Error::custom("an address can only be read from a line"))?;
        let imported = Imported { line: line.clone(), number };
        Ok(Self::of_function(&name, deliver_over(line, move |message| imported.send(message))))
    }
}

/// What a reply port is on the wire.
#[derive(Serialize, Deserialize)]
struct Question {
    number: u64,
    /// How long the asker still waits, in milliseconds.
    wait_ms: Option<u64>,
}

impl<T: DeserializeOwned + Send + 'static> Serialize for Reply<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let line = current_line().ok_or_else(|| S::Error::custom("a reply port can only be written to a line"))?;
        let port = self.take().ok_or_else(|| S::Error::custom("this reply port has been used"))?;
        let wait_ms = self.deadline().map(|deadline| deadline.remaining().as_millis() as u64);
        Question { number: line.expect(Box::new(port)), wait_ms }.serialize(serializer)
    }
}

impl<'de, T: Serialize + Send + 'static> Deserialize<'de> for Reply<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Question { number, wait_ms } = Question::deserialize(deserializer)?;
        let line = current_line().ok_or_else(|| D::Error::custom("a reply port can only be read from a line"))?;
        let abandonment = line.asked(number);
        let answer = Box::new(move |answer: Option<T>| {
            let packed = answer.map(|answer| pack(&line, &answer));
            let packed = packed.transpose().unwrap_or_else(|error| {
                tracing::error!(code = "GR0008", %error, "an answer was not sent");
                None
            });
            line.answer(number, packed);
        });
        // a hostile wait must not overflow the clock
        let wait = wait_ms.map(|wait_ms| Duration::from_millis(wait_ms.min(u64::from(u32::MAX))));
        Ok(Self::across(answer, abandonment, wait.map(Deadline::after)))
    }
}

impl<T: DeserializeOwned + Send> AwaitedAnswer for Port<T> {
    fn conclude(self: Box<Self>, line: &Arc<dyn Line>, answer: Result<&[u8], Unanswered>) {
        let answer = answer.and_then(|bytes| unpack(line, bytes).map_err(|error| Unanswered::Lost(error.to_string())));
        // an asker that is gone does not mind
        let _ = (*self).answer(answer);
    }

    fn is_abandoned(&self) -> bool {
        Self::is_abandoned(self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, Weak};

    use super::*;
    use crate::{AskError, ask};

    /// One end of a line whose other end is in the same process: what is sent here arrives there at once.
    #[derive(Default)]
    struct End {
        table: Mutex<Table>,
        far: Mutex<Weak<End>>,
        myself: Mutex<Weak<End>>,
    }

    #[derive(Default)]
    struct Table {
        next: u64,
        awaited: BTreeMap<u64, Box<dyn AwaitedAnswer>>,
        asked: BTreeMap<u64, Arc<Abandonment>>,
        exported: BTreeMap<u64, Arc<dyn Target>>,
    }

    impl End {
        fn pair() -> (Arc<Self>, Arc<Self>) {
            let (one, other) = (Arc::<Self>::default(), Arc::<Self>::default());
            for (end, far) in [(&one, &other), (&other, &one)] {
                *end.far.lock().unwrap() = Arc::downgrade(far);
                *end.myself.lock().unwrap() = Arc::downgrade(end);
            }
            (one, other)
        }

        fn far(&self) -> Arc<Self> {
            self.far.lock().unwrap().upgrade().unwrap()
        }

        fn line(&self) -> Arc<dyn Line> {
            self.myself.lock().unwrap().upgrade().unwrap()
        }

        fn lose(&self) {
            let awaited = std::mem::take(&mut self.table.lock().unwrap().awaited);
            for awaited in awaited.into_values() {
                awaited.conclude(&self.line(), Err(Unanswered::Lost("cut".into())));
            }
            self.table.lock().unwrap().exported.clear();
        }
    }

    impl Line for End {
        fn expect(&self, awaited: Box<dyn AwaitedAnswer>) -> u64 {
            let mut table = self.table.lock().unwrap();
            table.next += 1;
            let number = table.next;
            table.awaited.insert(number, awaited);
            number
        }
        fn asked(&self, number: u64) -> Arc<Abandonment> {
            self.table.lock().unwrap().asked.entry(number).or_default().clone()
        }
        fn answer(&self, number: u64, answer: Option<Vec<u8>>) {
            let far = self.far();
            let awaited = far.table.lock().unwrap().awaited.remove(&number);
            if let Some(awaited) = awaited {
                awaited.conclude(&far.line(), answer.as_deref().ok_or(Unanswered::Dropped));
            }
        }
        fn export(&self, target: Arc<dyn Target>) -> u64 {
            let mut table = self.table.lock().unwrap();
            table.next += 1;
            let number = table.next;
            table.exported.insert(number, target);
            number
        }
        fn send(&self, number: u64, message: Vec<u8>) -> Result<(), ()> {
            let far = self.far();
            let target = far.table.lock().unwrap().exported.get(&number).cloned().ok_or(())?;
            target.deliver(&far.line(), &message).map_err(|_| ())
        }
        fn release(&self, number: u64) {
            let released = self.far().table.lock().unwrap().exported.remove(&number);
            drop(released);
        }
    }

    #[derive(Debug, Serialize, Deserialize)]
    enum Counter {
        Add(u32, Reply<u32>),
        Ignore(Reply<u32>),
        Hold(Reply<u32>),
        Open(Reply<Address<Counter>>),
    }

    type Held = Arc<Mutex<Vec<Reply<u32>>>>;

    fn counter(held: &Held) -> Address<Counter> {
        let (sum, held) = (Arc::new(Mutex::new(0)), held.clone());
        Address::of_function("counter", move |message| {
            match message {
                Counter::Add(more, reply) => {
                    let mut sum = sum.lock().unwrap();
                    *sum += more;
                    reply.send(*sum);
                }
                Counter::Ignore(_) => {}
                Counter::Hold(reply) => held.lock().unwrap().push(reply),
                Counter::Open(reply) => drop(reply.send(counter(&held))),
            }
            Ok(())
        })
    }

    /// The counter as seen over the line.
    fn across(here: &Arc<End>, there: &Arc<End>, held: &Held) -> Address<Counter> {
        let packed = pack(&there.line(), &counter(held)).unwrap();
        unpack(&here.line(), &packed).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn questions_answers_and_addresses_cross_a_line() {
        let (here, there) = End::pair();
        let held = Held::default();
        let far = across(&here, &there, &held);
        let deadline = || Deadline::after_ms(100);
        assert_eq!(ask(&far, deadline(), |reply| Counter::Add(3, reply)).await, Ok(3));
        assert_eq!(ask(&far, deadline(), |reply| Counter::Add(4, reply)).await, Ok(7));
        let name = || "counter".to_owned();
        assert_eq!(ask(&far, deadline(), Counter::Ignore).await, Err(AskError::Dropped { name: name() }));
        let another = ask(&far, deadline(), Counter::Open).await.unwrap();
        assert_eq!(ask(&another, deadline(), |reply| Counter::Add(1, reply)).await, Ok(1), "an address in an answer");
        let exported = || there.table.lock().unwrap().exported.len();
        assert_eq!(exported(), 2);
        drop(another);
        assert_eq!(exported(), 1, "the last clone of an imported address releases its target");
    }

    #[tokio::test(start_paused = true)]
    async fn a_far_port_knows_its_deadline_and_that_its_asker_left() {
        let (here, there) = End::pair();
        let held = Held::default();
        let far = across(&here, &there, &held);
        let asked = ask(&far, Deadline::after_ms(100), Counter::Hold).await;
        assert_eq!(asked, Err(AskError::TimedOut { name: "counter".into(), waited_ms: 100 }));
        assert!(here.table.lock().unwrap().awaited.values().all(|awaited| awaited.is_abandoned()));
        let mut reply = held.lock().unwrap().pop().unwrap();
        assert!(reply.deadline().is_some_and(|deadline| deadline.has_passed()));
        assert!(!reply.is_abandoned());
        there.table.lock().unwrap().asked.values().for_each(|asked| asked.abandon());
        reply.abandoned().await;
        assert!(reply.is_abandoned() && !reply.send(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_line_concludes_every_question() {
        let (here, there) = End::pair();
        let held = Held::default();
        let far = across(&here, &there, &held);
        let asking = ask(&far, Deadline::after_ms(60_000), Counter::Hold);
        let lost = async { here.lose() };
        let (asked, ()) = tokio::join!(biased; asking, lost);
        assert_eq!(asked, Err(AskError::Lost { name: "counter".into(), reason: "cut".into() }));
        there.lose();
        assert!(ask(&far, Deadline::after_ms(1), Counter::Hold).await.is_err(), "targets of a lost line are gone");
    }

    #[test]
    fn a_port_written_elsewhere_and_damaged_bytes_are_errors() {
        let (reply, _answer) = Reply::<u32>::channel();
        assert!(serde_json::to_string(&Counter::Ignore(reply)).is_err());
        let (here, there) = End::pair();
        let (reply, _answer) = Reply::<u32>::channel();
        let packed = pack(&there.line(), &Counter::Add(1, reply)).unwrap();
        for cut in 0..packed.len() {
            assert!(unpack::<Counter>(&here.line(), &packed[..cut]).is_err(), "cut at {cut}");
        }
        let longer = [packed.as_slice(), &[0]].concat();
        assert!(unpack::<Counter>(&here.line(), &longer).is_err());
        let hostile = u64::MAX.to_le_bytes();
        assert!(unpack::<Vec<u8>>(&here.line(), &hostile).is_err(), "2^64 bytes must not be allocated");
    }
}
