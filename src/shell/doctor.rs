//! The doctor: judges what was looked at, as pure functions.
//!
//! Each finding names the part, what was seen and, where something is wrong, what to do. What could not be looked at is a
//! finding, too: silence is never health.

use greenroom_messages::steer::{ChecksumSight, EngineSight, NodeSight, PoolSight, StatusSight, WeightSight};
use serde::Serialize;

use super::words::bytes_words;

/// Clocks that differ by more than this make dates of different nodes misleading.
const DOUBTFUL_SKEW_MS: u64 = 500;
const ILL_SKEW_MS: u64 = 30_000;
/// Certificates that end sooner than this are to be renewed.
const DOUBTFUL_DAYS: i64 = 14;
/// Disks with less than this part free fill up soon.
const DOUBTFUL_FREE: f64 = 0.10;
const ILL_FREE_BYTES: u64 = 1 << 30;

/// How well something is; ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Health {
    Well,
    Doubtful,
    Ill,
}

impl Health {
    /// What a program that found this exits with.
    pub(super) fn exit_status(self) -> u8 {
        self as u8
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) health: Health,
    pub(super) part: String,
    pub(super) finding: String,
}

/// Everything that the doctor looked at; a reason where it could not.
pub(super) struct Looked {
    pub(super) status: Result<StatusSight, String>,
    pub(super) nodes: Result<Vec<NodeSight>, String>,
    pub(super) engines: Result<Vec<EngineSight>, String>,
    pub(super) pools: Result<Vec<PoolSight>, String>,
    pub(super) weights: Result<Vec<WeightSight>, String>,
    pub(super) checksums: Result<Vec<ChecksumSight>, String>,
}

fn finding(health: Health, part: impl Into<String>, finding: impl Into<String>) -> Finding {
    Finding { health, part: part.into(), finding: finding.into() }
}

/// All findings, the worst first.
pub(super) fn judge(looked: &Looked) -> Vec<Finding> {
    let mut findings = Vec::new();
    match &looked.status {
        Ok(status) => actors(status, &mut findings),
        Err(reason) => findings.push(finding(Health::Ill, "run", reason)),
    }
    match &looked.nodes {
        Ok(nodes) => nodes.iter().for_each(|seen| node(seen, &mut findings)),
        Err(reason) => findings.push(finding(Health::Ill, "nodes", reason)),
    }
    match &looked.engines {
        Ok(seen) => engines(seen, &mut findings),
        Err(reason) => findings.push(finding(Health::Ill, "engines", reason)),
    }
    match &looked.pools {
        Ok(pools) => sandboxes(pools, looked.nodes.as_deref().unwrap_or_default(), &mut findings),
        Err(reason) => findings.push(finding(Health::Ill, "sandboxes", reason)),
    }
    match &looked.weights {
        Ok(seen) => weights(seen, looked.nodes.as_deref().unwrap_or_default(), &mut findings),
        Err(reason) => findings.push(finding(Health::Ill, "weights", reason)),
    }
    match &looked.checksums {
        Ok(seen) => checksums(seen, &mut findings),
        Err(reason) => findings.push(finding(Health::Doubtful, "weight checksums", reason)),
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.health));
    findings
}

fn actors(status: &StatusSight, findings: &mut Vec<Finding>) {
    if status.bottleneck.starts_with("the run waits for nodes") {
        findings.push(finding(Health::Doubtful, "run", &status.bottleneck));
        return;
    }
    if status.unanswered.is_empty() {
        findings.push(finding(Health::Well, "actors", "conductor, rollout manager, engine pool and publisher answer"));
    }
    for reason in &status.unanswered {
        findings.push(finding(Health::Ill, "actors", format!("{reason}: see the log of its node")));
    }
    if status.rollouts_paused || status.training_paused {
        findings.push(finding(Health::Doubtful, "run", &status.bottleneck));
    }
}

fn node(node: &NodeSight, findings: &mut Vec<Finding>) {
    if node.roles.iter().any(|role| role == "shell") {
        return;
    }
    let part = format!("node {}", node.node);
    let mut wrong = Vec::new();
    match node.state.as_str() {
        "alive" => {}
        "left" => wrong.push((Health::Doubtful, "it has left: start it again if the run needs it".to_owned())),
        "suspect" => wrong.push((Health::Doubtful, format!("it was last heard of {} ms ago", node.heard_ago_ms))),
        state => wrong.push((Health::Ill, format!("it is {state}: see whether its machine and process live"))),
    }
    if let Some(left) = &node.drained {
        wrong.push((Health::Doubtful, format!("it is drained ({left}): `undrain {}` gives it work again", node.node)));
    }
    if let Some(skew_ms) = node.clock_skew_ms {
        let off_ms = skew_ms.unsigned_abs();
        let health = if off_ms > ILL_SKEW_MS {
            Health::Ill
        } else if off_ms > DOUBTFUL_SKEW_MS {
            Health::Doubtful
        } else {
            Health::Well
        };
        if health != Health::Well {
            wrong.push((health, format!("its clock is {skew_ms} ms off the controller's: set it by NTP")));
        }
    }
    if let Some(days) = node.certificate_days.filter(|days| *days < DOUBTFUL_DAYS) {
        let health = if days < 1 { Health::Ill } else { Health::Doubtful };
        wrong.push((health, format!("its certificate ends in {days} days: `greenroom ca issue` makes another")));
    }
    if let (Some(free), Some(all)) = (node.disk_free_bytes, node.disk_bytes) {
        let part = free as f64 / (all as f64).max(1.0);
        let health = match () {
            () if free < ILL_FREE_BYTES => Health::Ill,
            () if part < DOUBTFUL_FREE => Health::Doubtful,
            () => Health::Well,
        };
        if health != Health::Well {
            let (free, all) = (bytes_words(free as f64), bytes_words(all as f64));
            wrong.push((health, format!("{free} of {all} are free where its state lies: make room")));
        }
    } else if node.state == "alive" {
        wrong.push((Health::Doubtful, "it did not say how its disk stands".to_owned()));
    }
    if wrong.is_empty() {
        let free = node.disk_free_bytes.map_or_else(String::new, |free| format!(", {} free", bytes_words(free as f64)));
        findings.push(finding(Health::Well, &part, format!("it is {}{free}", node.state)));
    }
    findings.extend(wrong.into_iter().map(|(health, text)| finding(health, &part, text)));
}

fn engines(engines: &[EngineSight], findings: &mut Vec<Finding>) {
    if engines.is_empty() {
        findings.push(finding(Health::Ill, "engines", "the fleet has none: see the nodes with the role engine"));
        return;
    }
    let is = |engine: &EngineSight, states: &[&str]| states.contains(&engine.state.as_str());
    let serving = engines.iter().filter(|engine| is(engine, &["serving"])).count();
    // every step ends with new weights: taking them is the job, as long as nothing is wrong with it
    let busy = |engine: &EngineSight| is(engine, &["syncing", "updating"]) && engine.trouble.is_none();
    let updating = engines.iter().filter(|engine| busy(engine)).count();
    for engine in engines.iter().filter(|engine| !is(engine, &["serving"]) && !busy(engine)) {
        let comes = is(engine, &["connecting", "verifying", "syncing", "updating", "draining"]);
        let health = if comes || serving + updating > 0 { Health::Doubtful } else { Health::Ill };
        let trouble = engine.trouble.as_deref().unwrap_or("no trouble reported");
        findings.push(finding(
            health,
            format!("engine {}", engine.engine),
            format!("it is {}: {trouble}", engine.state),
        ));
    }
    let updating_words = if updating > 0 { format!(", {updating} take new weights") } else { String::new() };
    let health = if serving + updating > 0 { Health::Well } else { Health::Doubtful };
    findings.push(finding(health, "engines", format!("{serving} of {} serve{updating_words}", engines.len())));
}

fn sandboxes(pools: &[PoolSight], nodes: &[NodeSight], findings: &mut Vec<Finding>) {
    let is_drained = |node: &NodeSight| node.drained.is_some() && node.roles.iter().any(|role| role == "sandbox");
    if pools.is_empty() && nodes.iter().any(is_drained) {
        findings.push(finding(
            Health::Doubtful,
            "sandboxes",
            "there is no pool while the node that has some is drained",
        ));
    } else if pools.is_empty() {
        findings.push(finding(Health::Ill, "sandboxes", "there is no pool: see the nodes with the role sandbox"));
    }
    for pool in pools {
        let part = format!("sandboxes {} on {}", pool.image, pool.node);
        findings.push(match &pool.trouble {
            Some(reason) => finding(Health::Ill, part, reason),
            None if pool.failed > 0 && pool.failed >= pool.created => {
                finding(Health::Ill, part, format!("{} creations failed, {} succeeded", pool.failed, pool.created))
            }
            None if pool.failed > 0 => finding(Health::Doubtful, part, format!("{} creations failed", pool.failed)),
            None => finding(Health::Well, part, format!("{} warm, {} leased", pool.warm, pool.leased)),
        });
    }
}

fn weights(weights: &[WeightSight], nodes: &[NodeSight], findings: &mut Vec<Finding>) {
    findings.push(finding(Health::Well, "weights", abreast(weights)));
    for holder in weights.iter().filter(|holder| holder.lag.is_some_and(|lag| lag > 1)) {
        let (lag, version) = (holder.lag.unwrap_or(0), holder.version.unwrap_or(0));
        let is_of = |node: &&NodeSight| holder.holder.split('/').next() == Some(node.node.as_str());
        let remedy = match nodes.iter().find(is_of).filter(|node| node.state != "alive") {
            Some(node) => format!("node {} is {}; it takes the newest when it is back", node.node, node.state),
            None if holder.state == "lost" => "it is lost, and takes the newest when it is reached again".to_owned(),
            None => "`publish` brings it there".to_owned(),
        };
        let text = format!("it has version {version}, {lag} behind the newest: {remedy}");
        findings.push(finding(Health::Doubtful, format!("{} {}", holder.kind, holder.holder), text));
    }
}

/// How many holders keep up. Those that hold nothing yet, or of which nobody knows how far they are, are no such.
fn abreast(weights: &[WeightSight]) -> String {
    if !weights.iter().any(|holder| holder.lag.is_some()) {
        return "nothing is published yet".to_owned();
    }
    let count = |is: fn(&WeightSight) -> bool| weights.iter().filter(|holder| is(holder)).count();
    let near = count(|holder| holder.lag.is_some_and(|lag| lag <= 1));
    let mut words = format!("{near} of {} are at most one version behind", weights.len());
    let rest = [
        (count(|holder| holder.version.is_none()), "hold nothing yet"),
        (count(|holder| holder.version.is_some() && holder.lag.is_none()), "hold a version of unknown age"),
    ];
    for (holders, what) in rest.into_iter().filter(|(holders, _)| *holders > 0) {
        words.push_str(&format!(", {holders} {what}"));
    }
    words
}

/// What hosts and engines hold, against what was published. An engine that takes new weights is compared the next time.
fn checksums(seen: &[ChecksumSight], findings: &mut Vec<Finding>) {
    let mut same = 0;
    let mut not_compared = Vec::new();
    for holder in seen {
        let name = format!("{} {}", holder.kind, holder.holder);
        match holder.found.as_str() {
            "same" => same += 1,
            "different" => {
                let version = holder.version.map_or_else(String::new, |version| format!(" {version}"));
                let text = format!(
                    "it does not hold weights{version} as they were published: {}. `drain` it; what was generated by it since \
                     is in doubt",
                    holder.detail
                );
                findings.push(finding(Health::Ill, name, text));
            }
            _ => not_compared.push(format!("{name} was not compared ({})", holder.detail)),
        }
    }
    let rest = if not_compared.is_empty() { String::new() } else { format!("; {}", not_compared.join("; ")) };
    findings.push(finding(Health::Well, "weight checksums", format!("{same} holders hold what was published{rest}")));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> Looked {
        Looked {
            status: Ok(StatusSight::default()),
            nodes: Ok(vec![NodeSight {
                node: "a".into(),
                state: "alive".into(),
                clock_skew_ms: Some(2),
                certificate_days: Some(364),
                disk_free_bytes: Some(50 << 30),
                disk_bytes: Some(100 << 30),
                ..NodeSight::default()
            }]),
            engines: Ok(vec![engine("serving")]),
            pools: Ok(vec![PoolSight { image: "graph".into(), created: 3, ..PoolSight::default() }]),
            weights: Ok(Vec::new()),
            checksums: Ok(vec![checksum("same", ""), checksum("not_compared", "it is updating")]),
        }
    }

    fn engine(state: &str) -> EngineSight {
        EngineSight {
            engine: greenroom_messages::EngineId::new("a/0"),
            state: state.into(),
            version: Some(3),
            lag: Some(0),
            in_flight: 0,
            max_in_flight: 1,
            context_tokens: None,
            url: String::new(),
            trouble: None,
        }
    }

    fn checksum(found: &str, detail: &str) -> ChecksumSight {
        ChecksumSight {
            kind: "engine".into(),
            holder: "a/0".into(),
            version: Some(3),
            found: found.into(),
            detail: detail.into(),
        }
    }

    fn with_node(change: impl FnOnce(&mut NodeSight)) -> Looked {
        let mut looked = healthy();
        change(&mut looked.nodes.as_mut().unwrap()[0]);
        looked
    }

    #[test]
    fn who_holds_nothing_is_not_counted_as_keeping_up() {
        let holder = |version, lag| WeightSight {
            kind: "engine".into(),
            holder: "a/0".into(),
            version,
            lag,
            state: "serving".into(),
        };
        let said = |holders: Vec<WeightSight>| {
            let findings = judge(&Looked { weights: Ok(holders), ..healthy() });
            findings.into_iter().find(|finding| finding.part == "weights").unwrap().finding
        };
        assert_eq!(said(vec![holder(None, None); 3]), "nothing is published yet");
        assert_eq!(said(vec![holder(Some(3), Some(0)); 2]), "2 of 2 are at most one version behind");
        let some = vec![holder(Some(3), Some(0)), holder(None, None), holder(Some(1), Some(2))];
        assert_eq!(said(some), "1 of 3 are at most one version behind, 1 hold nothing yet");
    }

    #[test]
    fn what_is_wrong_is_found_and_what_is_well_is_said() {
        let lagging = |state: &str| {
            let (kind, holder, state) = ("engine".into(), "a/0".into(), state.into());
            Ok(vec![WeightSight { kind, holder, version: Some(1), lag: Some(3), state }])
        };
        let gone = with_node(|node| node.state = "dead".into());
        let unanswered = StatusSight { unanswered: vec!["trainer is not running".into()], ..StatusSight::default() };
        let failing = PoolSight { created: 0, failed: 4, ..PoolSight::default() };
        let stuck = EngineSight { trouble: Some("no such file".into()), ..engine("updating") };
        let without_boxes = with_node(|node| {
            node.drained = Some("idle".into());
            node.roles = vec!["sandbox".into()];
        });
        let other = checksum("different", "value 2 of model.norm.weight is 1 at the engine and 2 in the file");
        let cases = [
            (healthy(), Health::Well, "1 of 1 serve"),
            (
                healthy(),
                Health::Well,
                "1 holders hold what was published; engine a/0 was not compared (it is updating)",
            ),
            (Looked { checksums: Ok(vec![other]), ..healthy() }, Health::Ill, "value 2 of model.norm.weight"),
            (with_node(|node| node.drained = Some("2 leases".into())), Health::Doubtful, "it is drained (2 leases)"),
            (Looked { pools: Ok(Vec::new()), ..healthy() }, Health::Ill, "there is no pool: see"),
            (Looked { pools: Ok(Vec::new()), ..without_boxes }, Health::Doubtful, "there is no pool while"),
            (with_node(|node| node.state = "dead".into()), Health::Ill, "it is dead"),
            (with_node(|node| node.clock_skew_ms = Some(-900)), Health::Doubtful, "-900 ms off"),
            (with_node(|node| node.clock_skew_ms = Some(60_000)), Health::Ill, "60000 ms off"),
            (with_node(|node| node.certificate_days = Some(3)), Health::Doubtful, "ends in 3 days"),
            (with_node(|node| node.disk_free_bytes = Some(5 << 30)), Health::Doubtful, "5.0 GiB of 100.0 GiB"),
            (with_node(|node| node.disk_free_bytes = Some(5 << 20)), Health::Ill, "5.0 MiB of 100.0 GiB"),
            (with_node(|node| node.disk_bytes = None), Health::Doubtful, "did not say how its disk stands"),
            (Looked { engines: Ok(vec![engine("lost")]), ..healthy() }, Health::Ill, "it is lost"),
            (Looked { engines: Ok(vec![engine("serving"), engine("lost")]), ..healthy() }, Health::Doubtful, "1 of 2"),
            (Looked { engines: Ok(vec![engine("updating")]), ..healthy() }, Health::Well, "0 of 1 serve, 1 take new"),
            (Looked { engines: Ok(vec![engine("draining")]), ..healthy() }, Health::Doubtful, "it is draining"),
            (Looked { engines: Ok(vec![stuck]), ..healthy() }, Health::Doubtful, "no such file"),
            (Looked { pools: Ok(vec![failing]), ..healthy() }, Health::Ill, "4 creations failed"),
            (
                Looked { weights: lagging("serving"), ..healthy() },
                Health::Doubtful,
                "3 behind the newest: `publish` brings it there",
            ),
            (Looked { weights: lagging("lost"), ..healthy() }, Health::Doubtful, "when it is reached again"),
            (Looked { weights: lagging("serving"), ..gone }, Health::Ill, "node a is dead; it takes the newest"),
            (Looked { status: Ok(unanswered), ..healthy() }, Health::Ill, "trainer is not running"),
            (Looked { engines: Err("engine-pool is not running".into()), ..healthy() }, Health::Ill, "engine-pool"),
        ];
        for (looked, worst, expected) in cases {
            let findings = judge(&looked);
            let text = format!("{findings:?}");
            assert_eq!(findings[0].health, worst, "{text}");
            assert!(text.contains(expected), "{text}\nshould say {expected}");
        }
    }
}
