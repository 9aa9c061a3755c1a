//! Every actor of the run: each node says what it supervises, and the fleet how its engines' proxies stand.

use futures::future::join_all;
use greenroom_cluster::Member;
use greenroom_messages::engine::EngineStatus;
use greenroom_messages::node::NodeMessage;
use greenroom_messages::run::ConductorMessage;
use greenroom_messages::steer::{ActorSight, Cell, NamesSight};

use super::Desk;
use super::looks::{is_shell, state_name};
use crate::node::service;

/// When each engine last went on in its life.
const ENGINES_MOVED: &str = "SELECT engine, at_ms FROM engines";
/// The rollouts that somebody may want to name.
const NEWEST_ROLLOUTS: &str = "SELECT rollout FROM rollouts ORDER BY ended_ms IS NOT NULL, issued_ms DESC LIMIT 500";

impl Desk {
    /// All of them, by node; a node that does not answer is a line of its own.
    pub(super) async fn actors(&self) -> Vec<ActorSight> {
        let members = self.cluster.members().into_iter().filter(|member| member.is_up() && !is_shell(member));
        let of_nodes = members.map(|member: Member| async move {
            let node = service::node_at(&self.cluster, &member.name);
            self.part(node, NodeMessage::Actors).await.unwrap_or_else(|reason| vec![silent(&member.name, reason)])
        });
        let (of_nodes, engines, moved, run) = tokio::join!(
            join_all(of_nodes),
            self.statuses(),
            self.read(|db| db.ask(ENGINES_MOVED)),
            self.part(service::CONDUCTOR.anywhere(&self.cluster), ConductorMessage::Status),
        );
        let mut actors: Vec<ActorSight> = of_nodes.into_iter().flatten().collect();
        let phase = run.map(|run| run.phase).unwrap_or_default();
        if let Some(conductor) = actors.iter_mut().find(|actor| actor.actor == "conductor" && actor.doing.is_empty()) {
            conductor.doing = phase;
        }
        let moved = moved.map(|answer| answer.rows).unwrap_or_default();
        let engines = engines.unwrap_or_default().into_iter();
        let proxies: Vec<_> = engines.map(|engine| self.proxy(engine, &moved, &actors)).collect();
        actors.extend(proxies);
        // below its supervisor's node, in the order in which nodes are listed; within a node as the node told it
        actors.sort_by(|one, other| one.node.cmp(&other.node));
        actors
    }

    /// What can be named, for completion.
    pub(super) async fn names(&self) -> NamesSight {
        let (engines, rollouts) = tokio::join!(self.statuses(), self.read(|db| db.ask(NEWEST_ROLLOUTS)));
        let text = |row: Vec<Cell>| match row.into_iter().next() {
            Some(Cell::Text(text)) => Some(text),
            _ => None,
        };
        let up = self.cluster.members().into_iter().filter(|member| member.is_up() && !is_shell(member));
        let mut names = NamesSight {
            engines: engines.unwrap_or_default().into_iter().map(|engine| engine.engine.to_string()).collect(),
            rollouts: rollouts.map(|answer| answer.rows.into_iter().filter_map(text).collect()).unwrap_or_default(),
            ..NamesSight::default()
        };
        for member in up {
            names.nodes.push(member.name);
            names.services.extend(member.services);
        }
        names.services.sort();
        names.services.dedup();
        names
    }

    /// An engine's proxy: below its host where it has one, else below the fleet, which runs on this node.
    fn proxy(&self, engine: EngineStatus, moved: &[Vec<Cell>], actors: &[ActorSight]) -> ActorSight {
        let moved_at_ms = moved.iter().find_map(|row| match row.as_slice() {
            [Cell::Text(name), Cell::Integer(at_ms)] if name == engine.engine.as_str() => u64::try_from(*at_ms).ok(),
            _ => None,
        });
        let now_ms = self.clock.now_ms();
        let host = format!("engine host {}", engine.engine);
        let found = actors.iter().find(|actor| actor.actor == host);
        let node = found.map_or_else(|| self.node.cluster.node.clone(), |host| host.node.clone());
        let version =
            engine.version.map_or_else(|| "no weights".to_owned(), |version| format!("weights {}", version.number));
        let mut doing = format!("{version}, {} of {} turns in flight", engine.in_flight, engine.max_in_flight);
        if let Some(trouble) = engine.trouble {
            doing.push_str(&format!("; {trouble}"));
        }
        ActorSight {
            node,
            actor: format!("engine proxy {}", engine.engine),
            under: if found.is_some() { host } else { "engine pool".to_owned() },
            state: state_name(engine.state),
            for_ms: moved_at_ms.map_or(0, |at_ms| now_ms.saturating_sub(at_ms)),
            restarts: None,
            doing,
        }
    }
}

fn silent(node: &str, reason: String) -> ActorSight {
    ActorSight {
        node: node.to_owned(),
        actor: format!("node/{node}"),
        under: String::new(),
        state: "silent".to_owned(),
        for_ms: 0,
        restarts: None,
        doing: reason,
    }
}
