//! Two nodes, one that asks and one that answers, each a process of its own, on loopback.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use greenroom_cluster::{CertificateRole, ClusterConfig, IdentityFiles};
use greenroom_identity::{Authority, IssueRequest};
use serde_json::{Value, json};

use super::{ASKS, BULK, BULK_WINDOW, NOTES, Side};
use crate::peer::Peer;

const ASKER: &str = "asker";
const ANSWERER: &str = "answerer";

/// Starts this program again as a node.
pub fn node(config: Option<&ClusterConfig>) -> anyhow::Result<Peer> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("actors-node");
    if let Some(config) = config {
        command.arg("--config").arg(serde_json::to_string(config)?);
    }
    Peer::launch(command).context("a node does not start")
}

/// A number of an answer.
pub fn number(answer: &Value, key: &str) -> anyhow::Result<f64> {
    answer[key].as_f64().with_context(|| format!("the answer {answer} lacks {key}"))
}

/// The two nodes.
pub struct Pair {
    asker: Peer,
    answerer: Peer,
    /// Where the one that answers is reached by bare TCP.
    plain: String,
}

impl Pair {
    /// Starts both, with a cookie; with mutual TLS if so wanted. They have found each other.
    pub fn start(dir: &Path, with_tls: bool, heartbeat_ms: u64) -> anyhow::Result<Self> {
        std::fs::create_dir(dir)?;
        let cookie = dir.join("cookie");
        std::fs::write(&cookie, "c".repeat(64))?;
        std::fs::set_permissions(&cookie, PermissionsExt::from_mode(0o600))?;
        let authority = with_tls.then(|| Authority::create(&dir.join("ca"))).transpose()?;
        let config = |name: &str, seeds: Vec<String>| {
            anyhow::Ok(ClusterConfig {
                node: name.to_owned(),
                roles: vec![name.to_owned()],
                bind: "127.0.0.1:0".to_owned(),
                seeds,
                cookie_file: Some(cookie.clone()),
                tls: authority.as_ref().map(|authority| issue(authority, name, dir)).transpose()?,
                heartbeat_ms,
                ..ClusterConfig::default()
            })
        };
        let mut answerer = node(Some(&config(ANSWERER, Vec::new())?))?;
        let addresses = answerer.ask(&json!({ "do": "addresses" }))?;
        let text = |key: &str| addresses[key].as_str().map(str::to_owned).context("a node says where it is");
        let mut asker = node(Some(&config(ASKER, vec![text("cluster")?])?))?;
        asker.ask(&json!({ "do": "wait", "node": ANSWERER }))?;
        Ok(Self { asker, answerer, plain: text("plain")? })
    }

    /// Processor time of both, seconds.
    fn processor_s(&mut self) -> anyhow::Result<f64> {
        let request = json!({ "do": "processor" });
        let (asker, answerer) = (self.asker.ask(&request)?, self.answerer.ask(&request)?);
        Ok(number(&asker, "processor_s")? + number(&answerer, "processor_s")?)
    }

    /// One round of asks, messages and bulk, under the names that Ray's side has.
    pub fn measure(&mut self, side: &mut Side) -> anyhow::Result<()> {
        for (window, count, _) in ASKS {
            let before_s = self.processor_s()?;
            let asked = self.asker.ask(&json!({ "do": "ask", "node": ANSWERER, "count": count, "window": window }))?;
            let used_s = self.processor_s()? - before_s;
            side.add(format!("ask_{window}_p50_us"), number(&asked, "p50_us")?);
            side.add(format!("ask_{window}_p99_us"), number(&asked, "p99_us")?);
            side.add(format!("ask_{window}_processor_us"), used_s * 1e6 / *count as f64);
            side.add(format!("ask_{window}_per_s"), *count as f64 / number(&asked, "wall_s")?);
        }
        let noted = self.asker.ask(&json!({ "do": "note", "node": ANSWERER, "count": NOTES.0 }))?;
        side.add("notes_per_s".to_owned(), NOTES.0 as f64 / number(&noted, "wall_s")?);
        for (bytes, count, _) in BULK {
            let request =
                json!({ "do": "bulk", "node": ANSWERER, "bytes": bytes, "count": count, "window": BULK_WINDOW });
            let taken = self.asker.ask(&request)?;
            side.add(format!("bulk_{bytes}_mb_per_s"), (bytes * count) as f64 / number(&taken, "wall_s")? / 1e6);
        }
        Ok(())
    }

    /// One round by bare TCP between the same processes, and inside one of them.
    pub fn measure_floor(&mut self, pings: usize, bytes: usize, local: usize, side: &mut Side) -> anyhow::Result<()> {
        let before_s = self.processor_s()?;
        let pinged = self.asker.ask(&json!({ "do": "ping", "address": self.plain, "count": pings }))?;
        side.add("ping_processor_us".to_owned(), (self.processor_s()? - before_s) * 1e6 / pings as f64);
        side.add("ping_p50_us".to_owned(), number(&pinged, "p50_us")?);
        let streamed = self.asker.ask(&json!({ "do": "stream", "address": self.plain, "bytes": bytes }))?;
        side.add("stream_mb_per_s".to_owned(), bytes as f64 / number(&streamed, "wall_s")? / 1e6);
        let asked = self.asker.ask(&json!({ "do": "local", "count": local }))?;
        for who in ["actor", "channel"] {
            side.add(format!("{who}_p50_us"), number(&asked[who], "p50_us")?);
        }
        Ok(())
    }

    /// The heartbeats' round trips, ms, while so many messages of so many bytes go.
    pub fn beats(&mut self, bytes: usize, count: usize) -> anyhow::Result<Vec<f64>> {
        let request = json!({ "do": "beats", "node": ANSWERER, "bytes": bytes, "count": count, "window": BULK_WINDOW });
        let answer = self.asker.ask(&request)?;
        Ok(answer["round_trips_ms"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect())
    }

    /// Ends both.
    pub fn end(mut self) -> anyhow::Result<()> {
        self.asker.ask(&json!({ "do": "leave" }))?;
        self.answerer.ask(&json!({ "do": "leave" }))?;
        Ok(())
    }
}

fn issue(authority: &Authority, name: &str, dir: &Path) -> anyhow::Result<IdentityFiles> {
    let request = IssueRequest { name: name.to_owned(), hosts: Vec::new(), role: CertificateRole::Node, valid_days: 1 };
    Ok(authority.issue(&request, &dir.join(name))?)
}
