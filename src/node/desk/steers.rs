//! Steering: written into the run's history first, then done.

use greenroom_core::spawn_blocking_named;
use greenroom_messages::EngineId;
use greenroom_messages::engine::{EnginePoolMessage, EngineSpec};
use greenroom_messages::rollout::RolloutManagerMessage;
use greenroom_messages::run::{ConductorMessage, RunEvent, StopMode};
use greenroom_messages::steer::{DeskRefusal, HOT_KEYS, Held, Steer};

use super::{Desk, cannot};
use crate::node::service;

/// How many rollouts `set rollout.max_running` may allow.
const MOST_RUNNING: u32 = 1_000_000;

impl Desk {
    /// Steers; says what was done.
    pub(super) async fn steer(&self, steer: Steer, by: String) -> Result<String, DeskRefusal> {
        let what = steer.to_string();
        self.record(RunEvent::Steered { by: by.clone(), what: what.clone() }).await?;
        tracing::info!(by, what, "steered");
        let done = self.carry_out(steer).await;
        if let Err(refusal) = &done {
            let text = format!("`{what}` of {by} was not done: {refusal}");
            // the refusal itself says more than a failure to write it down
            let _ = self.record(RunEvent::Note { source: "desk".to_owned(), text }).await;
        }
        done
    }

    /// Writes an event; the Journal is not there before the run begins, so that this is done here.
    async fn record(&self, event: RunEvent) -> Result<(), DeskRefusal> {
        let (database, now_ms) = (self.database.clone(), self.clock.now_ms());
        let written = spawn_blocking_named("desk-record", move || database.record(&[(now_ms, event)])).await;
        let written = written.ok().flatten().ok_or_else(|| cannot("the event could not be written; see the log"))?;
        written.map_err(|error| cannot(format!("{}: {error}", error.code())))
    }

    async fn carry_out(&self, steer: Steer) -> Result<String, DeskRefusal> {
        match steer {
            Steer::Hold { what: Held::Rollouts, held } => {
                self.tell_manager(RolloutManagerMessage::SetPaused(held))?;
                Ok(match held {
                    true => "no rollout is admitted any more; those that run go on".to_owned(),
                    false => "rollouts are admitted again".to_owned(),
                })
            }
            Steer::Hold { what: Held::Training, held } => {
                self.tell_conductor(ConductorMessage::SetTrainingPaused(held))?;
                Ok(match held {
                    true => "no optimizer step begins any more; one under way is finished".to_owned(),
                    false => "training goes on".to_owned(),
                })
            }
            Steer::Drain { engine, drained } => self.drain(engine, drained).await,
            Steer::AddEngine(spec) => self.add_engine(spec).await,
            Steer::RemoveEngine(engine) => self.remove_engine(engine).await,
            Steer::Set { key, value } => self.set(&key, &value),
            Steer::Cancel(rollout) => {
                let manager = service::ROLLOUT_MANAGER.anywhere(&self.cluster);
                let cancel = |reply| RolloutManagerMessage::CancelRollout(rollout, reply);
                match self.part(manager, cancel).await.map_err(cannot)? {
                    true => Ok(format!("{rollout} is cancelled")),
                    false => Err(cannot(format!("{rollout} neither waits nor runs: `rollouts` lists those that do"))),
                }
            }
            Steer::Publish => {
                self.tell_conductor(ConductorMessage::Republish)?;
                Ok("the present weights are brought to the engines again as soon as nothing generates".to_owned())
            }
            Steer::Checkpoint => Err(self.no_checkpoint()),
            Steer::Stop(mode) => {
                self.tell_conductor(ConductorMessage::Stop(mode))?;
                Ok(match mode {
                    StopMode::AfterStep => "the run stops after the step under way; it can be resumed".to_owned(),
                    StopMode::Now => "the run stops now; it can be resumed".to_owned(),
                })
            }
        }
    }

    fn tell_conductor(&self, message: ConductorMessage) -> Result<(), DeskRefusal> {
        let told = service::CONDUCTOR.anywhere(&self.cluster).cast(message);
        told.map_err(|gone| cannot(format!("{gone}: has the run begun, and does it still run? See `status`")))
    }

    fn tell_manager(&self, message: RolloutManagerMessage) -> Result<(), DeskRefusal> {
        let told = service::ROLLOUT_MANAGER.anywhere(&self.cluster).cast(message);
        told.map_err(|gone| cannot(format!("{gone}: is a node with the role rollout up? See `nodes`")))
    }

    async fn drain(&self, engine: EngineId, drained: bool) -> Result<String, DeskRefusal> {
        let pool = service::ENGINE_POOL.anywhere(&self.cluster);
        let set = |reply| EnginePoolMessage::SetDrained(engine.clone(), drained, reply);
        self.part(pool, set).await.map_err(cannot)?.map_err(|failure| cannot(failure.message))?;
        Ok(match drained {
            true => format!("{engine} is given no more turns; `engines` shows when it is idle"),
            false => format!("{engine} is given turns again"),
        })
    }

    async fn add_engine(&self, spec: EngineSpec) -> Result<String, DeskRefusal> {
        let pool = service::ENGINE_POOL.anywhere(&self.cluster);
        let (name, url) = (spec.engine.clone(), spec.url.clone());
        let add = |reply| EnginePoolMessage::Add(spec, reply);
        self.part(pool, add).await.map_err(cannot)?.map_err(|failure| cannot(failure.message))?;
        Ok(format!("{name} at {url} belongs to the fleet; it serves when it has the weights"))
    }

    async fn remove_engine(&self, engine: EngineId) -> Result<String, DeskRefusal> {
        if let Some((node, _)) = engine.as_str().split_once('/')
            && self.cluster.members().iter().any(|member| member.is_up() && member.name == node)
        {
            return Err(cannot(format!(
                "node {node} looks after {engine} and would bring it back: `drain {engine}`, or end that node"
            )));
        }
        let pool = service::ENGINE_POOL.anywhere(&self.cluster);
        let engines = self.part(pool.clone(), EnginePoolMessage::Status).await.map_err(cannot)?;
        if !engines.iter().any(|status| status.engine == engine) {
            return Err(cannot(format!("there is no engine {engine}: `engines` lists them")));
        }
        // it is drained first, which takes longer than anybody should wait here
        let remove = |reply| EnginePoolMessage::Remove(engine.clone(), reply);
        match self.part(pool, remove).await {
            Ok(removed) => removed.map_err(|failure| cannot(failure.message))?,
            Err(_) => return Ok(format!("{engine} is being drained, and is forgotten then")),
        }
        Ok(format!("{engine} has left the fleet"))
    }

    fn set(&self, key: &str, value: &str) -> Result<String, DeskRefusal> {
        let hot = HOT_KEYS.join(", ");
        if key != "rollout.max_running" {
            return Err(cannot(format!(
                "{key} cannot be changed while a run goes on: it is read when the run begins, and a resumed run must be \
                 the same; what can be changed: {hot}"
            )));
        }
        let number = value.parse::<u32>().ok().filter(|number| (1..=MOST_RUNNING).contains(number));
        let number =
            number.ok_or_else(|| cannot(format!("{key} is {value:?}: write a number of 1 to {MOST_RUNNING}")))?;
        self.tell_manager(RolloutManagerMessage::SetMaxRunning(number))?;
        let configured = self.config.rollout.max_running;
        Ok(format!("at most {number} rollouts run; the next start of their node takes {configured} again"))
    }

    fn no_checkpoint(&self) -> DeskRefusal {
        let steps = self.database.committed_steps().unwrap_or_default();
        let last = steps
            .last()
            .map_or_else(|| "none is there yet".to_owned(), |step| format!("the last is {}", step.checkpoint));
        cannot(format!("every step ends with a checkpoint, and one between steps would hold nothing more: {last}"))
    }
}
