//! Being told of finished steps, whatever becomes of the Conductor.

use std::time::Duration;

use greenroom_core::{Address, Deadline, ask, spawn_named};
use greenroom_messages::run::{ConductorMessage, StepFinished, Subscription};
use tokio_util::task::AbortOnDropHandle;

const ANSWER_WAIT_MS: u64 = 5_000;
/// How often a subscription is repeated: a Conductor that was started again knows none.
const REPEAT: Duration = Duration::from_secs(5);
/// The same while nobody answers.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// A subscription that lasts until this is dropped.
#[derive(Debug)]
#[must_use = "the subscription ends when this is dropped"]
pub struct Subscribed {
    _task: AbortOnDropHandle<Option<()>>,
}

/// Tells `to` of every step that is finished from now on. `subscriber` is a name of one's own: a later subscription of the
/// same name takes the place of this one.
pub fn subscribe(conductor: Address<ConductorMessage>, subscriber: &str, to: Address<StepFinished>) -> Subscribed {
    let subscriber = subscriber.to_owned();
    let name = format!("subscription of {subscriber}");
    let task = spawn_named(name, async move {
        loop {
            let subscription = Subscription { subscriber: subscriber.clone(), to: to.clone() };
            let question = |reply| ConductorMessage::Subscribe(subscription, reply);
            let answered = ask(&conductor, Deadline::after_ms(ANSWER_WAIT_MS), question).await.is_ok();
            tokio::time::sleep(if answered { REPEAT } else { TRY_AGAIN }).await;
        }
    });
    Subscribed { _task: AbortOnDropHandle::new(task) }
}
