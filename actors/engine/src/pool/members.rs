//! The proxies of a fleet: started, restarted within their intensity, drained and forgotten.
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

/// One engine's proxy, running or to be started again.
#[derive(Debug)]
pub(super) struct Member {
    pub address: Address<EngineProxyMessage>,
    pub running: Option<ActorRef<EngineProxyInput>>,
    arguments: EngineProxyArguments,
    intensity: RestartIntensity,
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
        let member = Member {
            address: Address::unbound(&format!("engine-proxy {}", spec.engine)),
            running: None,
            arguments,
            intensity: RestartIntensity::new(RestartPolicy::PATIENT),
        };
        self.by_engine.insert(spec.engine.clone(), member);
        Ok(())
    }

    pub fn spec(&self, engine: &EngineId) -> Option<&EngineSpec> {
        self.by_engine.get(engine).map(|member| &member.arguments.spec)
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
        let Some(member) = self.by_engine.get_mut(engine).filter(|member| member.running.is_none()) else {
            return Ok(());
        };
        member.arguments.wanted = wanted;
        let arguments = member.arguments.clone();
        let (proxy, _) = Actor::spawn_linked(None, EngineProxy, arguments, myself.get_cell()).await?;
        // The one after this one cannot know what this one was in the middle of.
        member.arguments.distrust = true;
        member.arguments.incarnation += 1;
        member.address.rebind(&proxy);
        member.running = Some(proxy);
        Ok(())
    }

    /// The engine whose proxy this was; it is not running any more.
    pub fn ended(&mut self, actor: ActorId) -> Option<EngineId> {
        let mut members = self.by_engine.iter_mut();
        let (engine, member) =
            members.find(|(_, member)| member.running.as_ref().is_some_and(|proxy| proxy.get_id() == actor))?;
        member.running = None;
        member.address.unbind();
        Some(engine.clone())
    }

    /// Decides on a restart after a failure; `false` means that there will be none.
    pub fn restart_later(&mut self, engine: &EngineId, now_ms: u64, myself: &ActorRef<EnginePoolInput>) -> bool {
        let Some(member) = self.by_engine.get_mut(engine) else { return false };
        match member.intensity.on_failure(now_ms) {
            RestartDecision::RestartAfterMs(wait_ms) => {
                let engine = engine.clone();
                myself.send_after(Duration::from_millis(wait_ms), move || EnginePoolInput::Restart(engine));
                true
            }
            RestartDecision::GiveUp => false,
        }
    }
}
