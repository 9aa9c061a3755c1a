//! Steering: written into the run's history first, then done.

use greenroom_cluster::Member;
use greenroom_core::spawn_blocking_named;
use greenroom_engine::EngineConfig;
use greenroom_identity::name_problem;
use greenroom_messages::EngineId;
use greenroom_messages::engine::{EnginePoolMessage, EngineSpec, EngineState, EngineStatus};
use greenroom_messages::node::NodeMessage;
use greenroom_messages::rollout::RolloutManagerMessage;
use greenroom_messages::run::{ConductorMessage, RunEvent, StopMode};
use greenroom_messages::steer::{DeskRefusal, Held, Steer};
use greenroom_run::{Database, RunError};

use super::looks::{is_of, is_shell};
use super::{Desk, cannot};
use crate::node::service;
use crate::shell::redact::redact;

/// Roles that a node may not be drained of.
const NOT_DRAINED: [&str; 2] = ["controller", "trainer"];
/// What is added where the last engines are drained.
const NO_STAND_IN: &str =
    "no other engine takes turns at present: the run waits until one does (`undrain` it, or `add-engine` another)";

impl Desk {
    /// Steers; says what was done.
    pub(super) async fn steer(&self, steer: Steer, by: String) -> Result<String, DeskRefusal> {
        if let Steer::AddEngine(spec) = &steer {
            // before it is written down: the address may hold a secret
            let problem = EngineConfig::url_problem(&spec.url)
                .map(|problem| format!("the URL of engine {} cannot be used: {problem}", spec.engine))
                .or_else(|| added_problem(spec, &self.cluster.members()));
            if let Some(problem) = problem {
                return Err(cannot(problem));
            }
        }
        let what = redact(&steer.to_string());
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
        let now_ms = self.clock.now_ms();
        self.write("event", move |database| database.record(&[(now_ms, event)])).await
    }

    async fn write(
        &self,
        what: &'static str,
        work: impl FnOnce(&Database) -> Result<(), RunError> + Send + 'static,
    ) -> Result<(), DeskRefusal> {
        let database = self.database.clone();
        let written = spawn_blocking_named(format!("desk-{what}"), move || work(&database)).await;
        let written = written.ok().flatten();
        let written = written.ok_or_else(|| cannot(format!("the {what} could not be written; see the log")))?;
        written.map_err(|error| cannot(format!("{}: {error}", error.code())))
    }

    async fn carry_out(&self, steer: Steer) -> Result<String, DeskRefusal> {
        match steer {
            Steer::Hold { what, held } => {
                let conductor = service::CONDUCTOR.anywhere(&self.cluster);
                let hold = |reply| ConductorMessage::Hold(what, held, reply);
                let told = self.part(conductor, hold).await;
                let told = told.map_err(|error| cannot(format!("{error}: has the run begun? See `status`")))?;
                told.map_err(cannot)?;
                let done = match (what, held) {
                    (Held::Rollouts, true) => "no rollout is admitted any more; those that run go on",
                    (Held::Rollouts, false) => "rollouts are admitted again",
                    (Held::Training, true) => "no optimizer step begins any more; one under way is finished",
                    (Held::Training, false) => "training goes on",
                };
                Ok(done.to_owned())
            }
            Steer::Drain { what, drained } => self.drain(&what, drained).await,
            Steer::AddEngine(spec) => self.add_engine(spec).await,
            Steer::RemoveEngine(engine) => self.remove_engine(engine).await,
            Steer::Set { key, value } => self.set(&key, &value).await,
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
            // answered before it comes here: whoever may look may ask it
            Steer::Checkpoint => self.checkpoint().await,
            Steer::Stop(mode) => {
                if mode == StopMode::AfterStep {
                    self.note_stop(true).await?;
                }
                if let Err(refusal) = self.tell_conductor(ConductorMessage::Stop(mode)) {
                    self.note_stop(false).await?;
                    return Err(refusal);
                }
                Ok(match mode {
                    StopMode::AfterStep => "the run stops after the step under way; it can be resumed".to_owned(),
                    StopMode::Now => "the run stops now; it can be resumed".to_owned(),
                })
            }
        }
    }

    /// A Conductor that is started again must know of it.
    async fn note_stop(&self, told: bool) -> Result<(), DeskRefusal> {
        self.write("stop", move |database| database.note_stop(told)).await
    }

    fn tell_conductor(&self, message: ConductorMessage) -> Result<(), DeskRefusal> {
        let told = service::CONDUCTOR.anywhere(&self.cluster).cast(message);
        told.map_err(|gone| cannot(format!("{gone}: has the run begun, and does it still run? See `status`")))
    }

    /// An engine of this name, or else a node.
    async fn drain(&self, what: &str, drained: bool) -> Result<String, DeskRefusal> {
        let engines = self.statuses().await.map_err(cannot);
        let is_it = |engine: &EngineId| engine.as_str() == what;
        if let Ok(engines) = &engines
            && engines.iter().any(|engine| is_it(&engine.engine))
        {
            let done = self.drain_engine(EngineId::new(what), drained).await?;
            return Ok(match drained && nobody_stands_in(engines, is_it) {
                true => format!("{done}; {NO_STAND_IN}"),
                false => done,
            });
        }
        let members = self.cluster.members().into_iter().filter(|member| !is_shell(member));
        let (found, others): (Vec<Member>, Vec<Member>) = members.partition(|member| member.name == what);
        let Some(node) = found.into_iter().next() else {
            let mut names: Vec<String> = others.into_iter().map(|member| member.name).collect();
            names.extend(engines.unwrap_or_default().into_iter().map(|engine| engine.engine.to_string()));
            return Err(cannot(format!("there is no engine and no node {what}; there are: {}", names.join(", "))));
        };
        self.drain_node(&node, drained, engines?).await
    }

    async fn drain_node(
        &self,
        node: &Member,
        drained: bool,
        engines: Vec<EngineStatus>,
    ) -> Result<String, DeskRefusal> {
        let name = &node.name;
        if let Some(role) = node.roles.iter().find(|role| NOT_DRAINED.contains(&role.as_str())) {
            return Err(cannot(format!(
                "node {name} has the role {role}, of which a run has one that nobody stands in for: drain what else it \
                 runs by its name (`engines`), or `stop --after-step` the run"
            )));
        }
        if !node.is_up() {
            return Err(cannot(format!("node {name} is not up: nothing is sent there anyway")));
        }
        let set = |reply| NodeMessage::SetDrained(drained, reply);
        let told = self.part(service::node_at(&self.cluster, name), set).await.map_err(cannot)?;
        let mut words = vec![told.map_err(cannot)?];
        for engine in engines.iter().filter(|engine| is_of(name, &engine.engine)) {
            if let Err(refusal) = self.drain_engine(engine.engine.clone(), drained).await {
                words.push(refusal.to_string());
            }
        }
        if drained && nobody_stands_in(&engines, |engine| is_of(name, engine)) {
            words.push(NO_STAND_IN.to_owned());
        }
        words.retain(|word| !word.is_empty());
        let more = if words.is_empty() { String::new() } else { format!("; {}", words.join("; ")) };
        Ok(match drained {
            true => format!("{name} is given no new work; `nodes` shows what is still under way there{more}"),
            false => format!("{name} is given work again{more}"),
        })
    }

    async fn drain_engine(&self, engine: EngineId, drained: bool) -> Result<String, DeskRefusal> {
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
}

/// Why an engine cannot be added so, with the remedy. `drain` and `inspect` take nodes and engines by their names alone.
fn added_problem(spec: &EngineSpec, members: &[Member]) -> Option<String> {
    let (name, url) = (spec.engine.as_str(), &spec.url);
    if let Some(reason) = name_problem(name) {
        return Some(format!(
            "an engine cannot have that name: {reason}; such as add-engine big http://10.0.0.7:30000"
        ));
    }
    if members.iter().any(|member| !is_shell(member) && member.name == name) {
        return Some(format!("{name} is the name of a node of the run: give the engine another one"));
    }
    let place = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let is_host = |host: &str| !host.is_empty() && !host.contains(['/', '\\']) && !host.contains(char::is_whitespace);
    let is_place = place.and_then(|place| place.trim_end_matches('/').rsplit_once(':')).is_some_and(|(host, port)| {
        is_host(host)
            && port.bytes().all(|byte| byte.is_ascii_digit())
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    (!is_place)
        .then(|| format!("{url:?} is not the URL of engine {name}: write http://HOST:PORT, with its port and no path"))
}

/// Whether some engines are drained and no other one serves, or is about to.
fn nobody_stands_in(engines: &[EngineStatus], is_drained: impl Fn(&EngineId) -> bool) -> bool {
    use EngineState::{Serving, Syncing, Updating, Verifying};
    let (drained, others): (Vec<_>, Vec<_>) = engines.iter().partition(|engine| is_drained(&engine.engine));
    let may_serve = |engine: &&EngineStatus| matches!(engine.state, Serving | Updating | Syncing | Verifying);
    !drained.is_empty() && !others.iter().any(may_serve)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::sample;

    #[test]
    fn an_engine_is_added_under_a_name_of_its_own_at_a_host_and_port() {
        let member = sample::member("gpu-0", &["engine"]);
        let problem = |name: &str, url: &str| {
            let spec = EngineSpec { engine: EngineId::new(name), url: url.to_owned(), max_in_flight: 1 };
            added_problem(&spec, std::slice::from_ref(&member))
        };
        for url in ["http://10.0.0.7:30000", "http://h:1/", "https://h.example:443", "http://[::1]:80"] {
            assert_eq!(problem("big", url), None, "{url}");
        }
        let cases = [
            ("Big one", "http://h:1", "\"Big one\" is not 1 to "),
            ("gpu-0/embedded-0", "http://h:1", "\"gpu-0/embedded-0\" is not 1 to "),
            ("", "http://h:1", "cannot have that name"),
            ("gpu-0", "http://h:1", "gpu-0 is the name of a node"),
            ("big", "http://h", "\"http://h\" is not the URL of engine big: write http://HOST:PORT"),
            ("big", "http://h:1/v1", "no path"),
            ("big", "http://h/x:1", "no path"),
            ("big", " http://h:1", "write http://HOST:PORT"),
            ("big", "http://[::1]", "with its port"),
            ("big", "http://h:0", "with its port"),
        ];
        for (name, url, expected) in cases {
            let said = problem(name, url).unwrap();
            assert!(said.contains(expected), "{name} {url}: {said}");
        }
    }

    #[test]
    fn it_is_said_when_the_last_engines_are_drained() {
        let engine = |name: &str, state| EngineStatus {
            engine: EngineId::new(name),
            url: "http://h:1".to_owned(),
            state,
            version: None,
            in_flight: 0,
            max_in_flight: 1,
            context_tokens: None,
            trouble: None,
        };
        let (one, two) = (engine("a/1", EngineState::Serving), engine("b/1", EngineState::Serving));
        let is_one = |engine: &EngineId| is_of("a", engine);
        assert!(nobody_stands_in(std::slice::from_ref(&one), is_one));
        assert!(!nobody_stands_in(&[one.clone(), two], is_one));
        assert!(nobody_stands_in(&[one.clone(), engine("b/1", EngineState::Draining)], is_one));
        assert!(nobody_stands_in(&[one.clone(), engine("b/1", EngineState::Lost)], is_one));
        assert!(nobody_stands_in(&[one, engine("b/1", EngineState::Connecting)], is_one), "one that was never reached");
        assert!(!nobody_stands_in(&[], is_one), "nothing was drained");
    }
}
