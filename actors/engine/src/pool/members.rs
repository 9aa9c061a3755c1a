//! The proxies of a fleet: started, restarted within their intensity, drained and forgotten; or joined, from hosts of their
//! own that supervise them.
//!
//! A proxy that fails takes nothing with it: its turns are answered as lost, its engine is `Lost` until a new proxy has
//! verified it and loaded the wanted weights again, and after too many failures it stays lost, which is said aloud.

use std::collections::BTreeMap;
use std::time::Duration;

use greenroom_core::{Address, RestartDecision, RestartIntensity, RestartPolicy};
use greenroom_messages::EngineId;
use greenroom_messages::engine::{EngineProxyMessage, EngineSpec, EngineState, EngineStatus};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef};

use super::actor::{EnginePoolArguments, EnginePoolInput};
use crate::{EngineConfigError, EngineProxy, EngineProxyArguments, EngineProxyInput};

/// A host that has not said for this long that its engine is there has lost it.
pub(super) const JOIN_LEASE_MS: u64 = 15_000;

/// One engine's proxy.
#[derive(Debug)]
pub(super) struct Member {
    pub address: Address<EngineProxyMessage>,
    pub spec: EngineSpec,
    pub kind: MemberKind,
}

/// Who supervises a proxy.
#[derive(Debug)]
pub(super) enum MemberKind {
    /// The fleet itself: the proxy is running or to be started again.
    Own(Box<OwnProxy>),
    /// A host elsewhere.
    Joined {
        /// When it was heard of last, by the clock; `None` when it turned out to be gone since.
        heard_ms: Option<u64>,
        /// How many changes of state its proxy has told.
        changes: u64,
        /// How often it was new here: tells the end of its present proxy from that of an earlier one.
        presence: u64,
    },
}

/// A proxy that the fleet supervises.
#[derive(Debug)]
pub(super) struct OwnProxy {
    running: Option<ActorRef<EngineProxyInput>>,
    arguments: EngineProxyArguments,
    intensity: RestartIntensity,
}

impl Member {
    /// The proxy, if it is the fleet's own and runs.
    pub fn running(self) -> Option<ActorRef<EngineProxyInput>> {
        match self.kind {
            MemberKind::Own(own) => own.running,
            MemberKind::Joined { .. } => None,
        }
    }
}

/// All of them, by name.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub by_engine: BTreeMap<EngineId, Member>,
}

/// What a status says before the proxy has said anything.
pub(super) fn first_status(spec: &EngineSpec, state: EngineState, trouble: Option<String>) -> EngineStatus {
    EngineStatus {
        engine: spec.engine.clone(),
        url: spec.url.clone(),
        state,
        version: None,
        in_flight: 0,
        max_in_flight: spec.max_in_flight,
        context_tokens: None,
        trouble,
    }
}

impl Members {
    /// The engine's place in the fleet; its proxy is not running yet.
    pub fn add(
        &mut self,
        spec: &EngineSpec,
        pool: &EnginePoolArguments,
        myself: &ActorRef<EnginePoolInput>,
    ) -> Result<(), EngineConfigError> {
        let arguments = EngineProxyArguments {
            spec: spec.clone(),
            api: (pool.api)(spec)?,
            config: pool.config.clone(),
            seam: pool.seam.clone(),
            run: pool.run.clone(),
            vocabulary_tokens: pool.vocabulary_tokens,
            journal: pool.journal.clone(),
            fleet: Address::adapted(myself),
            wanted: None,
            distrust: false,
            incarnation: 0,
        };
        let intensity = RestartIntensity::new(RestartPolicy::PATIENT);
        let own = OwnProxy { running: None, arguments, intensity };
        let address = Address::unbound(&format!("engine-proxy {}", spec.engine));
        let member = Member { address, spec: spec.clone(), kind: MemberKind::Own(Box::new(own)) };
        self.by_engine.insert(spec.engine.clone(), member);
        Ok(())
    }

    /// Takes an engine in whose host supervises its proxy. The number of its presence when it, or its host's present proxy, is
    /// new here.
    pub fn join(&mut self, spec: EngineSpec, address: Address<EngineProxyMessage>, now_ms: u64) -> Option<u64> {
        let (heard, changes, before) = match self.by_engine.get(&spec.engine).map(|member| &member.kind) {
            Some(MemberKind::Joined { heard_ms, changes, presence }) => (*heard_ms, *changes, *presence),
            Some(MemberKind::Own(_)) | None => (None, 0, 0),
        };
        let is_new = heard.is_none_or(|heard_ms| now_ms.saturating_sub(heard_ms) > JOIN_LEASE_MS);
        let presence = before + u64::from(is_new);
        let kind = MemberKind::Joined { heard_ms: Some(now_ms), changes, presence };
        // one address for as long as the engine is known: an update under way follows a host that comes back
        let known = self.by_engine.get(&spec.engine).map(|member| member.address.clone());
        let lasting = known.unwrap_or_else(|| Address::unbound(address.name()));
        lasting.rebind_function(move |message| address.cast(message).map_err(|_| ()));
        self.by_engine.insert(spec.engine.clone(), Member { address: lasting, spec, kind });
        is_new.then_some(presence)
    }

    /// Whether a joined engine is here, in this presence.
    pub fn is_present(&self, engine: &EngineId, number: u64) -> bool {
        let kind = self.by_engine.get(engine).map(|member| &member.kind);
        matches!(kind, Some(MemberKind::Joined { heard_ms: Some(_), presence, .. }) if *presence == number)
    }

    /// The host of this engine is gone: its next word counts as its first. `false` where the fleet supervises the proxy.
    pub fn forget_join(&mut self, engine: &EngineId) -> bool {
        match self.by_engine.get_mut(engine).map(|member| &mut member.kind) {
            Some(MemberKind::Joined { heard_ms, .. }) => {
                *heard_ms = None;
                true
            }
            _ => false,
        }
    }

    /// A joined engine's proxy told a change of its state.
    pub fn note_change(&mut self, engine: &EngineId) {
        if let Some(MemberKind::Joined { changes, .. }) = self.by_engine.get_mut(engine).map(|member| &mut member.kind)
        {
            *changes += 1;
        }
    }

    /// How many changes a joined engine's proxy has told; `None` for others.
    pub fn changes(&self, engine: &EngineId) -> Option<u64> {
        match self.by_engine.get(engine)?.kind {
            MemberKind::Joined { changes, .. } => Some(changes),
            MemberKind::Own(_) => None,
        }
    }

    /// Whether the fleet supervises this engine's proxy itself.
    pub fn is_own(&self, engine: &EngineId) -> bool {
        self.by_engine.get(engine).is_some_and(|member| matches!(member.kind, MemberKind::Own(_)))
    }

    /// The engines whose hosts have been silent for too long.
    pub fn silent(&self, now_ms: u64) -> Vec<EngineId> {
        let is_silent = |member: &Member| match member.kind {
            MemberKind::Joined { heard_ms, .. } => {
                heard_ms.is_some_and(|heard_ms| now_ms.saturating_sub(heard_ms) > JOIN_LEASE_MS)
            }
            MemberKind::Own(_) => false,
        };
        let silent = self.by_engine.iter().filter(|(_, member)| is_silent(member));
        silent.map(|(engine, _)| engine.clone()).collect()
    }

    fn own(&mut self, engine: &EngineId) -> Option<(&mut OwnProxy, &Address<EngineProxyMessage>)> {
        let member = self.by_engine.get_mut(engine)?;
        match &mut member.kind {
            MemberKind::Own(own) => Some((own, &member.address)),
            MemberKind::Joined { .. } => None,
        }
    }

    pub fn spec(&self, engine: &EngineId) -> Option<&EngineSpec> {
        self.by_engine.get(engine).map(|member| &member.spec)
    }

    pub fn addresses(&self) -> Vec<(EngineId, Address<EngineProxyMessage>)> {
        self.by_engine.iter().map(|(engine, member)| (engine.clone(), member.address.clone())).collect()
    }

    /// Starts an engine's proxy, unless it runs. What the fleet wants is `wanted`.
    pub async fn start(
        &mut self,
        engine: &EngineId,
        wanted: Option<greenroom_messages::engine::UpdateWeights>,
        myself: &ActorRef<EnginePoolInput>,
    ) -> Result<(), ActorProcessingErr> {
        let Some((own, address)) = self.own(engine).filter(|(own, _)| own.running.is_none()) else {
            return Ok(());
        };
        own.arguments.wanted = wanted;
        let arguments = own.arguments.clone();
        let (proxy, _) = Actor::spawn_linked(None, EngineProxy, arguments, myself.get_cell()).await?;
        // The one after this one cannot know what this one was in the middle of.
        own.arguments.distrust = true;
        own.arguments.incarnation += 1;
        address.rebind(&proxy);
        own.running = Some(proxy);
        Ok(())
    }

    /// The engine whose proxy this was; it is not running any more.
    pub fn ended(&mut self, actor: ActorId) -> Option<EngineId> {
        let is_it = |member: &Member| match &member.kind {
            MemberKind::Own(own) => own.running.as_ref().is_some_and(|proxy| proxy.get_id() == actor),
            MemberKind::Joined { .. } => false,
        };
        let engine = self.by_engine.iter().find(|(_, member)| is_it(member)).map(|(engine, _)| engine.clone())?;
        let (own, address) = self.own(&engine)?;
        own.running = None;
        address.unbind();
        Some(engine)
    }

    /// Decides on a restart after a failure; `false` means that there will be none.
    pub fn restart_later(&mut self, engine: &EngineId, now_ms: u64, myself: &ActorRef<EnginePoolInput>) -> bool {
        let Some((own, _)) = self.own(engine) else { return false };
        match own.intensity.on_failure(now_ms) {
            RestartDecision::RestartAfterMs(wait_ms) => {
                let engine = engine.clone();
                myself.send_after(Duration::from_millis(wait_ms), move || EnginePoolInput::Restart(engine));
                true
            }
            RestartDecision::GiveUp => false,
        }
    }
}
