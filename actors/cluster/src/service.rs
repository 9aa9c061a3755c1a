//! Services: what this node offers by name, and the addresses that follow a service wherever it is offered.
//!
//! An address given out here stays bound to the line of the node that offers the service, is unbound when that ends, and
//! bound again when the node, or another one, offers it anew. Invariant: an address never leads to a node that is held for
//! dead. On failure: a message to an unbound address is `Gone`, never lost silently.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use greenroom_core::Address;
use greenroom_core::wire::{Target, deliver_over, target_of};
use greenroom_identity::CertificateRole;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::line::PeerLine;

/// A node that is up, as services see it.
#[derive(Clone)]
pub(crate) struct Provider {
    pub node: String,
    pub incarnation: u64,
    pub services: Vec<String>,
    pub line: Arc<PeerLine>,
}

/// What this node offers, and which addresses follow services.
#[derive(Default)]
pub(crate) struct Services {
    offered: Mutex<BTreeMap<String, Offer>>,
    bindings: Mutex<BTreeMap<Follows, Arc<dyn Binding>>>,
}

/// What an address follows: a node or any, the service, and the type of its messages.
type Follows = (Option<String>, String, TypeId);

struct Offer {
    /// The `Address<M>` itself, for askers in this process.
    address: Box<dyn Any + Send + Sync>,
    target: Arc<dyn Target>,
    /// Tells a later offer of the same name from this one.
    number: u64,
    audience: Audience,
}

/// Who may send messages to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Nodes: whoever has the certificate of one; everybody where there is no TLS.
    Nodes,
    /// Operators and viewers as well; the service looks itself at who asks.
    Everybody,
}

/// An address that follows a service.
trait Binding: Send + Sync {
    fn follow(&self, here: Option<(&(dyn Any + Send + Sync), u64)>, there: Option<&Provider>);
    fn address(&self) -> Box<dyn Any>;
}

/// Where a followed address leads at present.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    Nowhere,
    Here(u64),
    /// The number of the line.
    There(u64),
}

struct Followed<M> {
    address: Address<M>,
    service: String,
    bound: Mutex<Bound>,
}

impl<M: Serialize + DeserializeOwned + Send + 'static> Binding for Followed<M> {
    fn follow(&self, here: Option<(&(dyn Any + Send + Sync), u64)>, there: Option<&Provider>) {
        let here = here.and_then(|(offer, number)| Some((offer.downcast_ref::<Address<M>>()?, number)));
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, line) = match (here, there) {
            (Some((_, number)), _) => (Bound::Here(number), None),
            (None, Some(provider)) => (Bound::There(provider.line.id()), Some(provider.line.clone())),
            (None, None) => (Bound::Nowhere, None),
        };
        if *bound == now {
            return;
        }
        *bound = now;
        if let Some((offer, _)) = here {
            let offer = offer.clone();
            self.address.rebind_function(move |message| offer.cast(message).map_err(|_| ()));
        } else if let Some(line) = line {
            let service = self.service.clone();
            let way = line.as_line();
            let send = move |message| line.send_to_service(&service, message);
            self.address.rebind_function(deliver_over(way, send));
        } else {
            self.address.unbind();
        }
    }

    fn address(&self) -> Box<dyn Any> {
        Box::new(self.address.clone())
    }
}

impl Services {
    /// Offers a service; an earlier one of the same name is replaced.
    pub(crate) fn offer<M: DeserializeOwned + Send + 'static>(
        &self,
        service: &str,
        address: &Address<M>,
        number: u64,
        audience: Audience,
    ) {
        let offer = Offer { address: Box::new(address.clone()), target: target_of(address), number, audience };
        self.offered.lock().unwrap_or_else(PoisonError::into_inner).insert(service.to_owned(), offer);
    }

    /// Offers a service no more. Says whether it was offered.
    pub(crate) fn withdraw(&self, service: &str) -> bool {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner).remove(service).is_some()
    }

    /// The names of what is offered here, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Where messages for a service offered here go, when they come from the bearer of this certificate; or why nowhere.
    pub(crate) fn target(
        &self,
        service: &str,
        certificate: Option<CertificateRole>,
    ) -> Result<Arc<dyn Target>, String> {
        let offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        let offer = offered.get(service).ok_or_else(|| format!("offers no service {service} (GR1216)"))?;
        match certificate.filter(|role| *role != CertificateRole::Node && offer.audience == Audience::Nodes) {
            Some(role) => Err(format!("lets no {role} ask {service} (GR1218)")),
            None => Ok(offer.target.clone()),
        }
    }

    /// The address that follows a service of a node, or of whichever node offers it.
    pub(crate) fn followed<M>(&self, node: Option<&str>, service: &str, me: &str, up: &[Provider]) -> Address<M>
    where
        M: Serialize + DeserializeOwned + Send + 'static,
    {
        let key = (node.map(str::to_owned), service.to_owned(), TypeId::of::<M>());
        let mut bindings = self.bindings.lock().unwrap_or_else(PoisonError::into_inner);
        let binding = bindings.entry(key.clone()).or_insert_with(|| {
            let name = node.map_or_else(|| service.to_owned(), |node| format!("{service}@{node}"));
            let address = Address::unbound(&name);
            Arc::new(Followed::<M> { address, service: service.to_owned(), bound: Mutex::new(Bound::Nowhere) })
        });
        self.refresh_one(&key.0, &key.1, &**binding, me, up);
        let address = binding.address().downcast::<Address<M>>().map(|address| *address);
        // the key holds the type, so the downcast cannot fail; an unbound address is an honest answer all the same
        address.unwrap_or_else(|_| Address::unbound(service))
    }

    /// What is up, or what is offered here, has changed.
    pub(crate) fn refresh(&self, me: &str, up: &[Provider]) {
        let bindings = self.bindings.lock().unwrap_or_else(PoisonError::into_inner);
        for ((node, service, _), binding) in &*bindings {
            self.refresh_one(node, service, &**binding, me, up);
        }
    }

    fn refresh_one(&self, node: &Option<String>, service: &String, binding: &dyn Binding, me: &str, up: &[Provider]) {
        let offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = |name: &str| node.as_deref().is_none_or(|node| node == name);
        let here = offered.get(service).filter(|_| wanted(me)).map(|offer| (&*offer.address, offer.number));
        let there = up.iter().filter(|provider| wanted(&provider.node) && provider.services.contains(service));
        // the newest incarnation is the one that was started last to offer it
        let there = there.max_by_key(|provider| provider.incarnation);
        binding.follow(here, there);
    }
}
