//! Looking: each look asks the parts concerned and puts their answers into rows.

use std::collections::BTreeMap;

use futures::future::join_all;
use greenroom_cluster::{Member, SHELL};
use greenroom_core::Address;
use greenroom_messages::EngineId;
use greenroom_messages::engine::{EnginePoolMessage, EngineState, EngineStatus};
use greenroom_messages::node::{Drained, NodeMessage};
use greenroom_messages::rollout::RolloutManagerMessage;
use greenroom_messages::run::ConductorMessage;
use greenroom_messages::sandbox::SandboxPoolMessage;
use greenroom_messages::steer::{
    DeskRefusal, EngineSight, InspectSight, Look, NodeSight, PoolSight, Sight, StatusSight, WeightSight,
};
use greenroom_messages::trainer::TrainerMessage;
use greenroom_messages::weights::{PublisherStatus, WeightPublisherMessage};
use serde::Serialize;

use super::bottleneck::bottleneck;
use super::report::tail;
use super::{Desk, cannot};
use crate::node::load::Loads;
use crate::node::service;
use crate::shell::redact::redact;

/// What the names of sandbox pools begin with.
const POOLS: &str = "sandbox-pool/";
const DAY_MS: i64 = 86_400_000;
/// How much of a log goes into a bundle, bytes, and how many events.
const BUNDLE_LOG_BYTES: u64 = 256 << 10;
const BUNDLE_EVENTS: u32 = 1_000;

impl Desk {
    /// Looks at something.
    pub(super) async fn look(&self, look: Look) -> Result<Sight, DeskRefusal> {
        let now_ms = self.clock.now_ms();
        Ok(match look {
            Look::Status => Sight::Status(Box::new(self.status().await)),
            Look::Nodes => Sight::Nodes(self.nodes().await),
            Look::Actors => Sight::Actors(self.actors().await),
            Look::Engines => Sight::Engines(self.engines().await.map_err(cannot)?),
            Look::Pools => Sight::Pools(self.pools().await),
            // all that `status` counts as running: under way, and admitted
            Look::Rollouts { state: Some(state), older_than_ms } if state == "running" => {
                let mut rollouts = self.read(move |db| db.rollouts(None, older_than_ms, now_ms)).await?;
                rollouts.retain(|rollout| rollout.state != "queued");
                Sight::Rollouts(rollouts)
            }
            Look::Rollouts { state, older_than_ms } => {
                Sight::Rollouts(self.read(move |db| db.rollouts(state.as_deref(), older_than_ms, now_ms)).await?)
            }
            Look::Leases => Sight::Leases(self.read(move |db| db.leases(now_ms)).await?),
            Look::Weights => Sight::Weights(self.weights().await.map_err(cannot)?),
            Look::Settings => Sight::Settings(self.settings().await),
            Look::Checksums => Sight::Checksums(self.checksums().await),
            Look::Names => Sight::Names(self.names().await),
            Look::Events { after, limit } => Sight::Events(self.read(move |db| db.events(after, limit)).await?),
            Look::Inspect(service) => Sight::Inspect(self.inspect(&service).await?),
            Look::Why(rollout) => {
                let story = self.read(move |db| db.story(rollout, now_ms)).await?;
                if story.is_empty() {
                    return Err(cannot(format!("the run has no rollout {rollout}: `rollouts` lists them")));
                }
                Sight::Why(story)
            }
            Look::Sql(query) => Sight::Sql(self.read(move |db| db.ask(&query)).await?),
            Look::Bundle => Sight::Bundle(self.bundle().await),
        })
    }

    async fn status(&self) -> StatusSight {
        let (run, rollouts, engines, publisher) = tokio::join!(
            self.part(service::CONDUCTOR.anywhere(&self.cluster), ConductorMessage::Status),
            self.part(service::ROLLOUT_MANAGER.anywhere(&self.cluster), RolloutManagerMessage::Status),
            self.part(service::ENGINE_POOL.anywhere(&self.cluster), EnginePoolMessage::Status),
            self.publisher(),
        );
        let (pools, states) = tokio::join!(self.pools(), self.read(|db| db.rollout_states()));
        let mut seen =
            StatusSight { run: self.node.run.clone(), steps: self.config.run.steps, ..StatusSight::default() };
        match run {
            Ok(run) => {
                (seen.step, seen.steps, seen.phase) = (run.step.0, run.steps, run.phase);
                (seen.groups_finished, seen.groups) = (run.groups_finished, run.groups);
                (seen.reward, seen.eval_before) = (run.reward, run.eval_before);
                (seen.rollouts_paused, seen.training_paused) = (run.rollouts_paused, run.training_paused);
            }
            Err(reason) => seen.unanswered.push(reason),
        }
        match rollouts {
            Ok(rollouts) => {
                (seen.rollouts_running, seen.rollouts_queued) = (rollouts.running, rollouts.queued);
                (seen.rollouts_ended, seen.rollouts_drained) = (rollouts.ended, rollouts.drained);
            }
            Err(reason) => seen.unanswered.push(reason),
        }
        seen.rollout_states = states.unwrap_or_default();
        let mut troubles = Vec::new();
        match engines {
            Ok(engines) => {
                let serves = |engine: &&EngineStatus| engine.state == EngineState::Serving;
                seen.engines = engines.len() as u32;
                seen.engines_serving = engines.iter().filter(serves).count() as u32;
                seen.turns_in_flight = engines.iter().map(|engine| engine.in_flight).sum();
                let away = engines.iter().filter(|engine| !serves(engine));
                troubles = away.map(|engine| format!("{}: {}", engine.engine, state_name(engine.state))).collect();
            }
            Err(reason) => seen.unanswered.push(reason),
        }
        let generating = seen.rollout_states.iter().find(|(state, _)| state == "generating");
        seen.turns_queued = generating.map_or(0, |(_, count)| count.saturating_sub(seen.turns_in_flight));
        (seen.leases, seen.boxes_warm) = (sum(&pools, |pool| pool.leased), sum(&pools, |pool| pool.warm));
        seen.claims_waiting = sum(&pools, |pool| pool.waiting);
        match publisher {
            Ok(publisher) => seen.weights = publisher.newest.map(|version| version.number),
            Err(reason) => seen.unanswered.push(reason),
        }
        let up = self.cluster.members();
        seen.nodes_up = up.iter().filter(|member| member.is_up() && !is_shell(member)).count() as u32;
        seen.bottleneck = bottleneck(&seen, &missing(&self.node.required(), &up), &troubles);
        seen
    }

    async fn publisher(&self) -> Result<PublisherStatus, String> {
        self.part(service::PUBLISHER.anywhere(&self.cluster), WeightPublisherMessage::Status).await
    }

    async fn nodes(&self) -> Vec<NodeSight> {
        let now_ms = self.clock.now_ms();
        let members = self.cluster.members();
        let manager = service::ROLLOUT_MANAGER.anywhere(&self.cluster);
        let trainer = service::TRAINER.anywhere(&self.cluster);
        let (engines, pools, rollouts, trainer) = tokio::join!(
            self.statuses(),
            self.pools(),
            self.part(manager, RolloutManagerMessage::Status),
            self.part(trainer, TrainerMessage::Status)
        );
        let engines = engines.unwrap_or_default();
        let (rollouts, trainer) = (rollouts.as_ref().ok(), trainer.as_ref().ok());
        let loads = Loads { engines: &engines, pools: &pools, rollouts, trainer };
        // shells that have left are of no interest any more
        let shown = members.into_iter().filter(|member| member.is_up() || !is_shell(member));
        let (engines, loads) = (&engines, &loads);
        let rows = shown.map(|member| async move {
            let report = match member.is_up() && !is_shell(&member) {
                true => {
                    let node = service::node_at(&self.cluster, &member.name);
                    self.part(node, |reply| NodeMessage::Report(0, reply)).await.ok()
                }
                false => None,
            };
            let is_me = member.name == self.node.cluster.node;
            let ends = report.as_ref().and_then(|report| report.certificate_ends_at_ms);
            NodeSight {
                state: state_name(member.state),
                heard_ago_ms: if is_me { 0 } else { now_ms.saturating_sub(member.last_heard_ms) },
                clock_skew_ms: if is_me { Some(0) } else { member.clock_skew_ms },
                round_trip_ms: member.round_trip_ms,
                certificate: member.certificate.map(|role| role.to_string()),
                certificate_days: ends.map(|ends| (ends as i64 - now_ms as i64).div_euclid(DAY_MS)),
                disk_free_bytes: report.as_ref().and_then(|report| report.disk_free_bytes),
                disk_bytes: report.as_ref().and_then(|report| report.disk_bytes),
                drained: report
                    .as_ref()
                    .and_then(|report| report.drained)
                    .map(|left| still_under_way(left, &member.name, engines)),
                pid: report.as_ref().map(|report| report.pid),
                load: if member.is_up() { loads.of(&member.name, &member.services) } else { String::new() },
                node: member.name,
                roles: member.roles,
                incarnation: member.incarnation,
                version: member.build,
                address: member.address,
                services: member.services,
            }
        });
        join_all(rows).await
    }

    pub(super) async fn statuses(&self) -> Result<Vec<EngineStatus>, String> {
        self.part(service::ENGINE_POOL.anywhere(&self.cluster), EnginePoolMessage::Status).await
    }

    async fn engines(&self) -> Result<Vec<EngineSight>, String> {
        let (engines, publisher) = tokio::join!(self.statuses(), self.publisher());
        let newest = publisher.ok().and_then(|publisher| publisher.newest).map(|version| version.number);
        let row = |engine: EngineStatus| EngineSight {
            state: state_name(engine.state),
            lag: behind(newest, engine.version.as_ref().map(|version| version.number)),
            version: engine.version.map(|version| version.number),
            in_flight: engine.in_flight,
            max_in_flight: engine.max_in_flight,
            context_tokens: engine.context_tokens,
            url: redact(&engine.url),
            trouble: engine.trouble,
            engine: engine.engine,
        };
        Ok(engines?.into_iter().map(row).collect())
    }

    async fn pools(&self) -> Vec<PoolSight> {
        let members = self.cluster.members().into_iter().filter(Member::is_up);
        let named = members.flat_map(|member| {
            let pools = member.services.into_iter().filter(|service| service.starts_with(POOLS));
            pools.map(|service| (member.name.clone(), service)).collect::<Vec<_>>()
        });
        let rows = named.map(|(node, service)| async move {
            let pool: Address<SandboxPoolMessage> = self.cluster.service(&node, &service);
            let image = service.trim_start_matches(POOLS).to_owned();
            match self.part(pool, SandboxPoolMessage::Status).await {
                Ok(status) => PoolSight {
                    node,
                    image,
                    warm: status.warm,
                    creating: status.creating,
                    leased: status.leased,
                    waiting: status.waiting,
                    created: status.created,
                    failed: status.failed,
                    trouble: None,
                },
                Err(reason) => PoolSight { node, image, trouble: Some(reason), ..PoolSight::default() },
            }
        });
        join_all(rows).await
    }

    async fn weights(&self) -> Result<Vec<WeightSight>, String> {
        let (publisher, engines) = tokio::join!(self.publisher(), self.statuses());
        let publisher = publisher?;
        let newest = publisher.newest.map(|version| version.number);
        let row = |kind: &str, holder: String, version: Option<u64>, state: String| WeightSight {
            kind: kind.to_owned(),
            holder,
            version,
            lag: behind(newest, version),
            state,
        };
        let mut rows = vec![row("publisher", "weight-publisher".to_owned(), newest, String::new())];
        for (receiver, version) in publisher.acknowledged {
            rows.push(row("receiver", receiver, Some(version.number), String::new()));
        }
        for engine in engines.unwrap_or_default() {
            let version = engine.version.map(|version| version.number);
            rows.push(row("engine", engine.engine.to_string(), version, state_name(engine.state)));
        }
        Ok(rows)
    }

    async fn inspect(&self, name: &str) -> Result<InspectSight, DeskRefusal> {
        let members = self.cluster.members().into_iter();
        let offers = members.filter(|member| member.is_up() && member.services.iter().any(|service| service == name));
        let nodes: Vec<String> = offers.map(|member| member.name).collect();
        let state = match name {
            "conductor" => json(self.part(service::CONDUCTOR.anywhere(&self.cluster), ConductorMessage::Status).await),
            "rollout-manager" => {
                let manager = service::ROLLOUT_MANAGER.anywhere(&self.cluster);
                json(self.part(manager, RolloutManagerMessage::Status).await)
            }
            "trainer" => json(self.part(service::TRAINER.anywhere(&self.cluster), TrainerMessage::Status).await),
            "weight-publisher" => json(self.publisher().await),
            "engine-pool" => json(self.statuses().await),
            _ if name.starts_with(POOLS) && !nodes.is_empty() => {
                let pools = self.pools().await.into_iter();
                json(Ok(pools.filter(|pool| name.ends_with(&pool.image)).collect::<Vec<_>>()))
            }
            _ if name.starts_with("node/") && !nodes.is_empty() => {
                let node = service::node_at(&self.cluster, name.trim_start_matches("node/"));
                json(self.part(node, |reply| NodeMessage::Report(2_048, reply)).await)
            }
            _ => return self.inspect_engine(name, nodes).await,
        };
        let state = state.map_err(cannot)?;
        Ok(InspectSight { service: name.to_owned(), nodes, state })
    }

    /// The name is no service that can be asked: an engine's, perhaps.
    async fn inspect_engine(&self, name: &str, nodes: Vec<String>) -> Result<InspectSight, DeskRefusal> {
        let engines = self.statuses().await.unwrap_or_default();
        if let Some(engine) = engines.iter().find(|engine| engine.engine.as_str() == name) {
            let nodes = name.split_once('/').map(|(node, _)| node.to_owned()).into_iter().collect();
            let state = json(Ok(engine)).map_err(cannot)?;
            return Ok(InspectSight { service: name.to_owned(), nodes, state });
        }
        if !nodes.is_empty() {
            return Ok(InspectSight { service: name.to_owned(), nodes, state: "{}".to_owned() });
        }
        let up = self.cluster.members().into_iter().filter(Member::is_up);
        let mut known: Vec<String> = up.flat_map(|member| member.services).collect();
        known.extend(engines.iter().map(|engine| engine.engine.to_string()));
        known.sort();
        known.dedup();
        Err(cannot(format!("nothing is called {name:?}; there are: {}", known.join(", "))))
    }

    /// What the controller alone can give for a bundle; shells add what they see.
    async fn bundle(&self) -> Vec<(String, String)> {
        let mut files = Vec::new();
        let config = toml::to_string_pretty(&self.config).unwrap_or_else(|error| error.to_string());
        files.push(("config.toml".to_owned(), redact(&config)));
        let node = toml::to_string_pretty(&self.node).unwrap_or_else(|error| error.to_string());
        files.push(("node.toml".to_owned(), redact(&node)));
        let events = self.read(|db| db.events(None, BUNDLE_EVENTS)).await;
        let events = match events {
            Ok(events) => {
                let line = |event: &greenroom_messages::steer::EventSight| {
                    format!("{{\"seq\":{},\"at_ms\":{},\"body\":{}}}\n", event.seq, event.at_ms, event.body)
                };
                events.iter().map(line).collect::<String>()
            }
            Err(refusal) => format!("{refusal}\n"),
        };
        files.push(("events.jsonl".to_owned(), redact(&events)));
        files.push(("metrics.jsonl".to_owned(), redact(&tail(&self.run_dir.join("metrics.jsonl"), BUNDLE_LOG_BYTES))));
        let members = self.cluster.members().into_iter().filter(|member| member.is_up() && !is_shell(member));
        let logs = members.map(|member| async move {
            let node = service::node_at(&self.cluster, &member.name);
            let report = self.part(node, |reply| NodeMessage::Report(BUNDLE_LOG_BYTES, reply)).await;
            (
                format!("logs/{}.log", member.name),
                report.map_or_else(|reason| format!("{reason}\n"), |report| report.log),
            )
        });
        files.extend(join_all(logs).await);
        files
    }
}

pub(super) fn is_shell(member: &Member) -> bool {
    member.roles.iter().any(|role| role == SHELL)
}

/// The roles that too few nodes play.
fn missing(required: &[(String, usize)], members: &[Member]) -> Vec<String> {
    let mut playing: BTreeMap<&str, usize> = BTreeMap::new();
    for role in members.iter().filter(|member| member.is_up()).flat_map(|member| &member.roles) {
        *playing.entry(role).or_default() += 1;
    }
    let short = required.iter().filter_map(|(role, wanted)| {
        let there = playing.get(role.as_str()).copied().unwrap_or(0);
        (there < *wanted).then(|| format!("{there} of {wanted} with the role {role} are up"))
    });
    short.collect()
}

fn behind(newest: Option<u64>, version: Option<u64>) -> Option<u64> {
    Some(newest?.saturating_sub(version?))
}

fn sum(pools: &[PoolSight], count: impl Fn(&PoolSight) -> u32) -> u32 {
    pools.iter().map(count).sum()
}

/// What is under way on a node that is drained, in words.
fn still_under_way(left: Drained, node: &str, engines: &[EngineStatus]) -> String {
    let here = engines.iter().filter(|engine| is_of(node, &engine.engine));
    let turns: u32 = here.map(|engine| engine.in_flight).sum();
    let parts = [(left.leases, "leases"), (left.rollouts, "rollouts"), (turns, "turns")];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    let words = parts.collect::<Vec<_>>().join(", ");
    if words.is_empty() { "idle".to_owned() } else { words }
}

/// Whether an engine is one of this node's.
pub(super) fn is_of(node: &str, engine: &EngineId) -> bool {
    engine.as_str().split_once('/').is_some_and(|(owner, _)| owner == node)
}

/// The name that serde gives a unit variant.
pub(in crate::node) fn state_name(state: impl Serialize) -> String {
    match serde_json::to_value(state) {
        Ok(serde_json::Value::String(name)) => name,
        _ => "unknown".to_owned(),
    }
}

fn json<T: Serialize>(state: Result<T, String>) -> Result<String, String> {
    serde_json::to_string(&state?).map_err(|error| error.to_string())
}
