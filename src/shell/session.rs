//! A session: in the cluster as an actor that only dials, and every verb carried out once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use greenroom_cluster::{Cluster, ClusterConfig, IdentityFiles, MemberEvent, SHELL};
use greenroom_core::{Address, Deadline, ErrorPage, Faults, Reply, Seam, ask};
use greenroom_identity::{CertificateRole, Identity};
use greenroom_messages::steer::{DeskMessage, DeskRefusal, EventSight, Look, NamesSight, NodeSight, Sight, Steer};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::doctor::{self, Looked};
use super::output::{self, Output};
use super::verb::{Request, Verb};
use super::words::clock_words;
use super::{ShellError, bundle, reach, screen};
use crate::node::DESK;

/// How long the desk may take to be found.
const JOIN_WAIT: Duration = Duration::from_secs(15);
/// How much longer once a node has refused the shell: it hardly changes its mind.
const REFUSED_WAIT: Duration = Duration::from_secs(1);
/// After how long it is told what is waited for.
const SILENT_WAIT: Duration = Duration::from_secs(2);
/// How long it may take to answer.
const LOOK_WAIT_MS: u64 = 20_000;
/// How long a person may wait for a completion.
const NAMES_WAIT: Duration = Duration::from_millis(500);
/// How often it is asked for events that came.
const FOLLOW_PAUSE: Duration = Duration::from_millis(500);
/// How many events it is asked for at once while they are followed.
const FOLLOWED_AT_ONCE: u32 = 500;

/// How a shell gets into a cluster.
#[derive(Clone, Debug)]
pub struct Way {
    /// `HOST:PORT` of any node of the run.
    pub at: String,
    /// The run's name.
    pub run: String,
    /// The shell's certificate, where the cluster uses them.
    pub tls: Option<IdentityFiles>,
    /// The cluster's secret, where it has one.
    pub cookie_file: Option<PathBuf>,
}

/// What became of a verb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// To be shown.
    pub text: String,
    /// What a program that did this verb exits with.
    pub status: u8,
}

impl Done {
    fn well(text: String) -> Self {
        Self { text, status: 0 }
    }
}

/// A text that is one of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown<'a> {
    /// It comes after those before.
    After(&'a str),
    /// It stands in for the one before, where that can be taken away.
    Instead(&'a str),
}

/// Shows a text that is one of several; `false` when nobody reads any more.
pub type Show<'a> = dyn FnMut(Shown<'_>) -> bool + Send + 'a;

/// What needs no cluster: help and error codes, shown in the usual way unless the request says another. `None` for
/// everything else.
pub fn at_once(request: &Request, usual: Output) -> Option<Result<Done, ShellError>> {
    match &request.verb {
        Verb::Explain(code) => Some(explain(code.as_deref(), request.output.unwrap_or(usual)).map(Done::well)),
        Verb::Help(verb) => Some(super::help(verb.as_deref()).map(Done::well)),
        _ => None,
    }
}

/// A shell in a cluster.
#[derive(Debug)]
pub struct Session {
    cluster: Cluster,
    desk: Address<DeskMessage>,
    seam: Seam,
}

impl Session {
    /// Joins, and waits for the desk; where that takes long, `tell` gets one line that says what is waited for.
    ///
    /// # Errors
    /// Whatever is wrong with the files; [`ShellError::NoDesk`] with what the cluster said when none is reached in time.
    pub async fn join(way: &Way, tell: impl Fn(&str)) -> anyhow::Result<Self> {
        let seam = Seam::system(0, Faults::none());
        let party = match &way.tls {
            Some(files) => {
                let identity = Identity::load(files)?;
                let party = identity.party();
                if party.role == CertificateRole::Node {
                    return Err(ShellError::NodeCertificate { name: party.name.clone() }.into());
                }
                party.name.clone()
            }
            None => SHELL.to_owned(),
        };
        let config = ClusterConfig {
            // several shells of one person are several nodes
            node: format!("{party}-{}-{}", std::process::id(), seam.clock.now_ms() % 1_000_000),
            cluster: way.run.clone(),
            roles: vec![SHELL.to_owned()],
            seeds: vec![way.at.clone()],
            cookie_file: way.cookie_file.clone(),
            tls: way.tls.clone(),
            ..ClusterConfig::default()
        };
        reach::probe(way).await?;
        let cluster = Cluster::start(config, seam.clone()).await?;
        let session = Self { desk: cluster.anywhere(DESK), cluster, seam };
        match session.find_desk(way, tell).await {
            Ok(()) => Ok(session),
            Err(error) => {
                session.leave().await;
                Err(error.into())
            }
        }
    }

    async fn find_desk(&self, way: &Way, tell: impl Fn(&str)) -> Result<(), ShellError> {
        let (begun, mut events) = (Instant::now(), self.cluster.events());
        let (mut until, mut is_told) = (begun + JOIN_WAIT, false);
        let mut heard = String::new();
        while !self.desk.is_bound() {
            if Instant::now() > until {
                let (run, at, waited_s) = (way.run.clone(), way.at.clone(), begun.elapsed().as_secs());
                let seen = reach::seen(way, &heard, &self.cluster.members());
                return Err(ShellError::NoDesk { run, at, waited_s, heard: seen });
            }
            while let Some(event) = events.try_recv() {
                if let MemberEvent::Refused { peer, reason } = event {
                    heard = format!("{peer} says: {reason}");
                    until = until.min(Instant::now() + REFUSED_WAIT);
                }
            }
            // one who was refused is told so in a moment
            if !is_told && heard.is_empty() && begun.elapsed() >= SILENT_WAIT {
                tell(&reach::waiting(way, &self.cluster.members()));
                is_told = true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Leaves the cluster.
    pub async fn leave(&self) {
        self.cluster.leave().await;
    }

    /// Carries a verb out. What comes bit by bit (events that are followed, what is watched) goes to `show` as it comes;
    /// both go on until nobody reads any more, or this future is dropped.
    ///
    /// # Errors
    /// [`ShellError`].
    pub async fn perform(&self, request: &Request, usual: Output, show: &mut Show<'_>) -> Result<Done, ShellError> {
        match &request.verb {
            Verb::Follow(first) => self.follow(*first, request.output.unwrap_or(usual), show).await,
            Verb::Watch(every, watched) => loop {
                let text = match self.once(watched, usual).await {
                    Ok(done) => done.text,
                    Err(error) => format!("error: {}: {error}", error.code()),
                };
                // what was shown before stands until there is something new
                if !show(Shown::Instead(&text)) {
                    return Ok(Done::well(String::new()));
                }
                tokio::time::sleep(*every).await;
            },
            _ => self.once(request, usual).await,
        }
    }

    /// A verb that ends by itself.
    async fn once(&self, request: &Request, usual: Output) -> Result<Done, ShellError> {
        let output = request.output.unwrap_or(usual);
        match &request.verb {
            Verb::Look(look) => Ok(Done::well(shown(&self.look(look.clone()).await?, output))),
            Verb::Steer(steer) => {
                let text = self.steer(steer.clone()).await?;
                if output == Output::Table {
                    return Ok(Done::well(output::printable(&text)));
                }
                let mut said = json!({ "verb": steer.to_string(), "done": text });
                if let (Steer::Checkpoint, Some(fields)) = (steer, said.as_object_mut()) {
                    fields.extend(self.newest_checkpoint().await?);
                }
                Ok(Done::well(output.show(&said)))
            }
            Verb::Tree => self.tree(output).await,
            Verb::Doctor => Ok(self.doctor(output).await),
            Verb::Bundle(path) => self.bundle(path).await,
            // what goes on for ever is never asked for here
            Verb::Explain(_) | Verb::Help(_) | Verb::Follow(_) | Verb::Watch(..) => {
                at_once(request, usual).unwrap_or_else(|| Err(unexpected()))
            }
        }
    }

    async fn question<T>(
        &self,
        message: impl FnOnce(Reply<Result<T, DeskRefusal>>) -> DeskMessage,
    ) -> Result<T, ShellError> {
        let answer = ask(&self.desk, Deadline::after_ms(LOOK_WAIT_MS), message).await;
        let answer = answer.map_err(|error| ShellError::Unanswered { reason: format!("{}: {error}", error.code()) })?;
        answer.map_err(|refusal| match refusal {
            DeskRefusal::NeedsOperator { .. } => ShellError::NeedsOperator { reason: refusal.to_string() },
            _ => ShellError::Refused { reason: refusal.to_string() },
        })
    }

    async fn look(&self, look: Look) -> Result<Sight, ShellError> {
        self.question(|reply| DeskMessage::Look(look, reply)).await
    }

    /// What can be named, for completion; nothing where the desk does not say so soon enough for who waits at a prompt.
    pub async fn names(&self) -> NamesSight {
        match tokio::time::timeout(NAMES_WAIT, self.look(Look::Names)).await {
            Ok(Ok(Sight::Names(names))) => names,
            _ => NamesSight::default(),
        }
    }

    async fn steer(&self, steer: Steer) -> Result<String, ShellError> {
        self.question(|reply| DeskMessage::Steer(steer, reply)).await
    }

    /// The newest checkpoint in fields: its step, when it was committed, the trainer's node and its path there. Without a
    /// trainer that is up, the path is below that node's `state_dir`.
    async fn newest_checkpoint(&self) -> Result<Map<String, Value>, ShellError> {
        let newest = "SELECT step, committed_ms, checkpoint AS path FROM steps ORDER BY step DESC LIMIT 1";
        let seen = output::value_of(&self.look(Look::Sql(newest.to_owned())).await?);
        let mut fields = seen.get(0).and_then(Value::as_object).cloned().unwrap_or_default();
        let Sight::Nodes(nodes) = self.look(Look::Nodes).await? else { return Err(unexpected()) };
        let plays = |node: &&NodeSight| node.pid.is_some() && node.roles.iter().any(|role| role == "trainer");
        let mut place = PathBuf::from("checkpoints");
        if let Some(trainer) = nodes.iter().find(plays) {
            fields.insert("node".to_owned(), trainer.node.clone().into());
            let report = output::value_of(&self.look(Look::Inspect(format!("node/{}", trainer.node))).await?);
            if let Some(state_dir) = report["state"]["state_dir"].as_str() {
                place = Path::new(state_dir).join(place);
            }
        }
        if let Some(path) = fields.get_mut("path") {
            *path = place.join(path.as_str().unwrap_or_default()).display().to_string().into();
        }
        Ok(fields)
    }

    async fn tree(&self, output: Output) -> Result<Done, ShellError> {
        let Sight::Nodes(nodes) = self.look(Look::Nodes).await? else { return Err(unexpected()) };
        let Sight::Actors(actors) = self.look(Look::Actors).await? else { return Err(unexpected()) };
        let text = match output {
            Output::Table => output::printable(&screen::tree(&nodes, &actors)),
            _ => output.show(&screen::tree_value(&nodes, &actors)),
        };
        Ok(Done::well(text))
    }

    async fn follow(&self, first: u32, output: Output, show: &mut Show<'_>) -> Result<Done, ShellError> {
        let (mut after, mut limit) = (None, first);
        loop {
            let Sight::Events(events) = self.look(Look::Events { after, limit }).await? else {
                return Err(unexpected());
            };
            for event in &events {
                if !show(Shown::After(&event_line(event, output))) {
                    return Ok(Done::well(String::new()));
                }
            }
            let newest = events.last().map(|event| event.seq);
            // a run without events yet is followed from its first one on
            after = newest.or(after).or(Some(0));
            limit = FOLLOWED_AT_ONCE;
            if events.len() < limit as usize {
                tokio::time::sleep(FOLLOW_PAUSE).await;
            }
        }
    }

    async fn doctor(&self, output: Output) -> Done {
        macro_rules! looked {
            ($look:expr, $kind:path) => {
                match self.look($look).await {
                    Ok($kind(seen)) => Ok(seen),
                    Ok(_) => Err(unexpected().to_string()),
                    Err(error) => Err(error.to_string()),
                }
            };
        }
        let looked = Looked {
            status: looked!(Look::Status, Sight::Status).map(|status| *status),
            nodes: looked!(Look::Nodes, Sight::Nodes),
            engines: looked!(Look::Engines, Sight::Engines),
            pools: looked!(Look::Pools, Sight::Pools),
            weights: looked!(Look::Weights, Sight::Weights),
            checksums: looked!(Look::Checksums, Sight::Checksums),
        };
        let findings = doctor::judge(&looked);
        let status = findings.iter().map(|finding| finding.health.exit_status()).max().unwrap_or(0);
        Done { text: output.show(&serde_json::to_value(&findings).unwrap_or_default()), status }
    }

    /// What the desk gives, and what can be seen, in one file.
    async fn bundle(&self, path: &Path) -> Result<Done, ShellError> {
        let Sight::Bundle(mut files) = self.look(Look::Bundle).await? else { return Err(unexpected()) };
        let looks = [
            ("status", Look::Status),
            ("nodes", Look::Nodes),
            ("actors", Look::Actors),
            ("engines", Look::Engines),
            ("pools", Look::Pools),
            ("rollouts", Look::Rollouts { state: None, older_than_ms: 0 }),
            ("leases", Look::Leases),
            ("weights", Look::Weights),
        ];
        for (name, look) in looks {
            let text = match self.look(look).await {
                Ok(sight) => Output::Json.show(&output::value_of(&sight)),
                Err(error) => error.to_string(),
            };
            files.push((format!("{name}.json"), super::redact::redact(&text)));
        }
        let doctor = self.doctor(Output::Table).await.text;
        files.push(("doctor.txt".to_owned(), super::redact::redact(&doctor)));
        let bytes = bundle::write(path, &files, self.seam.clock.now_ms())?;
        Ok(Done::well(format!("{} holds {} files, {bytes} bytes", path.display(), files.len())))
    }
}

fn unexpected() -> ShellError {
    ShellError::Unanswered { reason: "the desk answered something else than was asked".to_owned() }
}

/// A sight in the wanted shape.
fn shown(sight: &Sight, output: Output) -> String {
    match (sight, output) {
        (Sight::Status(status), Output::Table) => output::printable(&screen::status(status)),
        (Sight::Why(lines), Output::Table) => output::printable(&screen::story(lines)),
        (Sight::Events(events), Output::Table) => {
            events.iter().map(|event| event_line(event, output)).collect::<Vec<_>>().join("\n")
        }
        (Sight::Nodes(_), Output::Table) => {
            let mut value = output::value_of(sight);
            // too wide for a screen: `inspect` and the other outputs show them
            for row in value.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
                for long in ["services", "incarnation", "address", "pid", "disk_bytes"] {
                    row.shift_remove(long);
                }
            }
            output.show(&value)
        }
        (Sight::Sql(answer), Output::Table) if answer.more => {
            format!("{}\nthere are more rows than are shown", output.show(&output::value_of(sight)))
        }
        _ => output.show(&output::value_of(sight)),
    }
}

/// An event on one line; one JSON or YAML document each, where that is wanted.
fn event_line(event: &EventSight, output: Output) -> String {
    let value = output::value_of(&Sight::Events(vec![event.clone()]));
    let row = value.get(0).cloned().unwrap_or_default();
    match output {
        Output::Table => {
            let body = row.get("body").cloned().unwrap_or_default();
            let name = output::printable(&event.event);
            format!("{:>6} {} {name:<18} {}", event.seq, clock_words(event.at_ms), output::line(&body))
        }
        Output::Json => row.to_string(),
        Output::Yaml => format!("---\n{}", output.show(&row)),
    }
}

/// An error code's page; all codes without one.
fn explain(code: Option<&str>, output: Output) -> Result<String, ShellError> {
    let value = |page: &ErrorPage| json!({ "code": page.code, "cause": page.cause, "remedy": page.remedy });
    let Some(code) = code else {
        let pages = crate::explain::pages().into_iter();
        return Ok(match output {
            Output::Table => pages.map(|page| format!("{}  {}", page.code, page.cause)).collect::<Vec<_>>().join("\n"),
            _ => output.show(&pages.map(value).collect()),
        });
    };
    match (crate::explain::page(code), output) {
        (Some(page), Output::Table) => Ok(format!("{}\ncause:  {}\nremedy: {}", page.code, page.cause, page.remedy)),
        (Some(page), _) => Ok(output.show(&value(page))),
        (None, _) => Err(ShellError::Words { reason: format!("{code:?} is no error code; `explain` lists them all") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_is_values_for_programs() {
        let told = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            at_once(&crate::shell::parse(&words).unwrap(), Output::Json).unwrap().unwrap().text
        };
        let page: Value = serde_json::from_str(&told(&["explain", "GR0932"])).unwrap();
        assert!(page["code"] == "GR0932" && page["remedy"].as_str().unwrap().contains("role operator"), "{page}");
        let pages: Value = serde_json::from_str(&told(&["explain"])).unwrap();
        assert!(pages.as_array().unwrap().len() > 50);
        assert!(told(&["explain", "GR0932", "-o", "table"]).starts_with("GR0932\ncause:"), "what the verb says wins");
    }
}
