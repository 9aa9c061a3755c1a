//! How one actor reaches another.
//!
//! An [`Address`] is a typed, cloneable handle that hides where its target lives: a local actor, an actor whose own message
//! type wraps the published one, a test double, or a link that a simulation may cut. It stays valid when a supervisor
//! restarts the target: the supervisor calls [`Address::rebind`], and every clone sends to the new incarnation from then on.
//! On failure: sending to nobody gives [`Gone`], never a silent loss.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use ractor::{ActorRef, Message};

/// The target of an address is not there: never bound, stopped, or cut off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("actor {name} is not running")]
pub struct Gone {
    /// The name under which the address was made.
    pub name: String,
}

type Deliver<M> = Arc<dyn Fn(M) -> Result<(), ()> + Send + Sync>;

/// A typed handle to an actor; see the module's page.
pub struct Address<M> {
    name: Arc<str>,
    target: Arc<RwLock<Option<Deliver<M>>>>,
}

impl<M> Clone for Address<M> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), target: self.target.clone() }
    }
}

impl<M> fmt::Debug for Address<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Address({})", self.name)
    }
}

impl<M: Send + 'static> Address<M> {
    /// An address that leads nowhere yet: wiring hands it out first and [`rebind`](Self::rebind)s it when the actor runs.
    pub fn unbound(name: &str) -> Self {
        Self { name: name.into(), target: Arc::new(RwLock::new(None)) }
    }

    /// The address of a function: for tests, simulated links and adapters.
    pub fn of_function(name: &str, deliver: impl Fn(M) -> Result<(), ()> + Send + Sync + 'static) -> Self {
        let address = Self::unbound(name);
        address.rebind_function(deliver);
        address
    }

    /// The address of an actor whose message type is `M` itself.
    pub fn of(actor: &ActorRef<M>) -> Self
    where
        M: Message,
    {
        Self::adapted(actor)
    }

    /// The address of an actor whose own message type wraps the published `M`.
    pub fn adapted<Inner>(actor: &ActorRef<Inner>) -> Self
    where
        Inner: Message + From<M>,
    {
        let name = actor.get_name().unwrap_or_else(|| actor.get_id().to_string());
        let address = Self::unbound(&name);
        address.rebind(actor);
        address
    }

    /// Lets this address and all its clones lead to `actor` from now on.
    pub fn rebind<Inner>(&self, actor: &ActorRef<Inner>)
    where
        Inner: Message + From<M>,
    {
        let actor = actor.clone();
        self.rebind_function(move |message| actor.send_message(Inner::from(message)).map_err(|_| ()));
    }

    /// Lets this address and all its clones lead to a function from now on.
    pub fn rebind_function(&self, deliver: impl Fn(M) -> Result<(), ()> + Send + Sync + 'static) {
        let mut target = self.target.write().unwrap_or_else(PoisonError::into_inner);
        *target = Some(Arc::new(deliver));
    }

    /// Lets this address lead nowhere: sends fail with [`Gone`] until it is bound again.
    pub fn unbind(&self) {
        let mut target = self.target.write().unwrap_or_else(PoisonError::into_inner);
        *target = None;
    }

    /// Whether it leads anywhere at present.
    pub fn is_bound(&self) -> bool {
        self.target.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Sends a message that needs no answer. Delivery is at most once.
    pub fn cast(&self, message: M) -> Result<(), Gone> {
        let deliver = self.target.read().unwrap_or_else(PoisonError::into_inner).clone();
        let delivered = deliver.is_some_and(|deliver| deliver(message).is_ok());
        if delivered { Ok(()) } else { Err(Gone { name: self.name.to_string() }) }
    }

    /// The name under which the address was made; for messages to people.
    pub fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn every_clone_follows_a_rebind() {
        let first = Arc::new(AtomicU32::new(0));
        let second = Arc::new(AtomicU32::new(0));
        let address = Address::<u32>::unbound("target");
        let clone = address.clone();
        assert_eq!(clone.cast(1), Err(Gone { name: "target".into() }));
        for counter in [first.clone(), second.clone()] {
            address.rebind_function(move |value| {
                counter.fetch_add(value, Ordering::Relaxed);
                Ok(())
            });
            assert_eq!(clone.cast(7), Ok(()));
        }
        assert_eq!((first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)), (7, 7));
        assert!(clone.is_bound());
        address.unbind();
        assert!(!clone.is_bound() && clone.cast(1).is_err());
    }
}
