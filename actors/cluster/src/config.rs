//! What a node is told about itself and its cluster, and what is wrong with that.
//!
//! Every field has a default but the node's name. [`ClusterConfig::check`] reports all problems at once; a public bind
//! without both a cookie and TLS is one of them.

use std::net::IpAddr;
use std::path::PathBuf;

use greenroom_identity::IdentityFiles;
use serde::{Deserialize, Serialize};

use crate::ClusterError;

/// The role of a person or tool that joins to look and to steer; its node is never part of a gang.
pub const SHELL: &str = "shell";

/// The longest that anything may be waited for, in milliseconds: a year.
const LONGEST_MS: u64 = 365 * 24 * 3600 * 1000;

/// The longest that the kernel takes for a connection whose bytes nobody confirms, in milliseconds: 24 days.
const LONGEST_USER_TIMEOUT_MS: u64 = i32::MAX as u64;

/// The settings of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterConfig {
    /// The node's name, unique in the cluster; with TLS it is the name in the node's certificate.
    pub node: String,
    /// The cluster's (or run's) name: nodes of another one are refused.
    pub cluster: String,
    /// The roles this node plays, for gangs.
    pub roles: Vec<String>,
    /// `IP:PORT` to listen at; port 0 takes a free one. A shell does not listen.
    pub bind: String,
    /// `HOST:PORT` at which other nodes reach this one. Empty: the address that is listened at, with the machine's name
    /// where that is no address of its own.
    pub advertise: String,
    /// `HOST:PORT` of nodes to dial, resolved anew at each attempt. One that lives is enough: it names the others.
    pub seeds: Vec<String>,
    /// A file with the cluster's secret: 32 characters at least, the same for all nodes.
    pub cookie_file: Option<PathBuf>,
    /// Certificate, key and authority for mutual TLS.
    pub tls: Option<IdentityFiles>,
    /// Name and version of what the nodes say to each other: nodes of another one are refused.
    pub schema: String,
    /// The file in which the number of this node's last start is kept, so that a later one is larger whatever its clock says;
    /// none for who keeps nothing. Not a setting: a node's own.
    #[serde(skip)]
    pub incarnation_file: Option<PathBuf>,
    /// How often each node says that it lives, in milliseconds.
    pub heartbeat_ms: u64,
    /// After which silence a node is suspected, in milliseconds.
    pub suspect_ms: u64,
    /// After which silence a node is held for dead, in milliseconds.
    pub dead_ms: u64,
    /// How long a connection may take to be agreed upon, in milliseconds; also for each stage of it.
    pub handshake_ms: u64,
    /// The wait after a first failed attempt to dial, in milliseconds; doubled and jittered from then on.
    pub retry_first_ms: u64,
    /// The longest wait between attempts to dial, in milliseconds.
    pub retry_last_ms: u64,
    /// After how long the kernel gives up a connection whose bytes nobody confirms, in milliseconds.
    pub tcp_user_timeout_ms: u64,
    /// Messages larger than this go beside the control channel, in bytes.
    pub bulk_threshold_bytes: usize,
    /// How much may be under way beside the control channel per peer and direction, in bytes.
    pub bulk_in_flight_bytes: usize,
    /// How long the bytes of a message may take to be fetched from the sender's data plane, in milliseconds.
    pub bulk_deadline_ms: u64,
    /// How much may wait for a peer on the control channel, in bytes; more is refused.
    pub unacknowledged_bytes: usize,
    /// How many messages may wait for a peer; more are refused.
    pub unacknowledged_messages: usize,
    /// How many questions may be open at a peer; more are refused.
    pub open_questions: usize,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            node: String::new(),
            cluster: "greenroom".into(),
            roles: Vec::new(),
            bind: "127.0.0.1:4700".into(),
            advertise: String::new(),
            seeds: Vec::new(),
            cookie_file: None,
            tls: None,
            schema: concat!("greenroom/", env!("CARGO_PKG_VERSION")).into(),
            incarnation_file: None,
            heartbeat_ms: 1000,
            suspect_ms: 3000,
            dead_ms: 10_000,
            handshake_ms: 5000,
            retry_first_ms: 100,
            retry_last_ms: 5000,
            tcp_user_timeout_ms: 10_000,
            bulk_threshold_bytes: 256 << 10,
            bulk_in_flight_bytes: 256 << 20,
            bulk_deadline_ms: 600_000,
            unacknowledged_bytes: 64 << 20,
            unacknowledged_messages: 1 << 18,
            open_questions: 1 << 16,
        }
    }
}

impl ClusterConfig {
    /// Whether this node is a shell: dials, is not dialled, serves no role.
    pub fn is_shell(&self) -> bool {
        self.roles.iter().any(|role| role == SHELL)
    }

    /// All that is wrong with these settings, each with its remedy.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(reason) = greenroom_identity::name_problem(&self.node) {
            problems.push(format!("node: {reason}"));
        }
        let too_long = |text: &str| text.is_empty() || text.len() > 200 || text.contains(char::is_control);
        for (key, text) in [("cluster", &self.cluster), ("schema", &self.schema)] {
            if too_long(text) {
                problems.push(format!("{key}: {text:?} is not 1 to 200 printable characters"));
            }
        }
        if self.roles.len() > 32 || self.roles.iter().any(|role| too_long(role)) {
            problems.push("roles: at most 32, each of 1 to 200 printable characters".into());
        }
        if self.bind.parse::<std::net::SocketAddr>().is_err() {
            problems.push(format!("bind: {:?} is no IP:PORT, such as 127.0.0.1:4700", self.bind));
        }
        let advertised = (!self.advertise.is_empty()).then_some(("advertise", &self.advertise));
        for (key, address) in self.seeds.iter().map(|seed| ("seeds", seed)).chain(advertised) {
            if let Err(problem) = check_address(address) {
                problems.push(format!("{key}: {problem}"));
            }
        }
        self.number_problems(&mut problems);
        problems
    }

    fn number_problems(&self, problems: &mut Vec<String>) {
        let durations = [
            ("heartbeat_ms", self.heartbeat_ms),
            ("suspect_ms", self.suspect_ms),
            ("dead_ms", self.dead_ms),
            ("handshake_ms", self.handshake_ms),
            ("retry_first_ms", self.retry_first_ms),
            ("retry_last_ms", self.retry_last_ms),
            ("bulk_deadline_ms", self.bulk_deadline_ms),
        ];
        for (key, ms) in durations.into_iter().filter(|(_, ms)| *ms > LONGEST_MS) {
            problems.push(format!("{key}: {ms} is more than {LONGEST_MS}, which is a year"));
        }
        if self.heartbeat_ms == 0 || self.heartbeat_ms >= self.suspect_ms || self.suspect_ms >= self.dead_ms {
            let (beat, suspect, dead) = (self.heartbeat_ms, self.suspect_ms, self.dead_ms);
            problems.push(format!(
                "heartbeat_ms: {beat} must be more than 0 and less than suspect_ms ({suspect}), and that less than dead_ms \
                 ({dead})"
            ));
        }
        if self.retry_first_ms == 0 || self.retry_first_ms > self.retry_last_ms {
            let (first, last) = (self.retry_first_ms, self.retry_last_ms);
            problems.push(format!("retry_first_ms: {first} must be more than 0 and at most retry_last_ms ({last})"));
        }
        if self.handshake_ms == 0 {
            problems.push("handshake_ms: at least 1".into());
        }
        if !(1..=LONGEST_USER_TIMEOUT_MS).contains(&self.tcp_user_timeout_ms) {
            let ms = self.tcp_user_timeout_ms;
            problems.push(format!("tcp_user_timeout_ms: {ms} is not 1 to {LONGEST_USER_TIMEOUT_MS}"));
        }
        if !(1024..=512 << 10).contains(&self.bulk_threshold_bytes) {
            problems.push("bulk_threshold_bytes: between 1024 and 524288".into());
        }
        let amounts =
            [("bulk_in_flight_bytes", self.bulk_in_flight_bytes), ("unacknowledged_bytes", self.unacknowledged_bytes)];
        for (key, _) in amounts.into_iter().filter(|(_, bytes)| *bytes < 1 << 20) {
            problems.push(format!("{key}: at least 1048576"));
        }
        if self.bulk_deadline_ms == 0 {
            problems.push("bulk_deadline_ms: at least 1".into());
        }
        let counts =
            [("unacknowledged_messages", self.unacknowledged_messages), ("open_questions", self.open_questions)];
        for (key, _) in counts.into_iter().filter(|(_, count)| *count == 0) {
            problems.push(format!("{key}: at least 1"));
        }
    }

    /// Whether other machines can reach the address that is listened at.
    pub fn is_public(&self) -> bool {
        let address = self.bind.parse::<std::net::SocketAddr>();
        !self.is_shell()
            && address.is_ok_and(|address| match address.ip() {
                IpAddr::V4(ip) => !ip.is_loopback(),
                IpAddr::V6(ip) => !ip.is_loopback(),
            })
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`ClusterError::Config`] with all problems; [`ClusterError::Unprotected`] for a public bind without cookie or TLS.
    pub fn check(&self) -> Result<(), ClusterError> {
        let problems = self.problems();
        if !problems.is_empty() {
            return Err(ClusterError::Config { problems });
        }
        let missing = match (self.cookie_file.is_some(), self.tls.is_some()) {
            (true, true) => return Ok(()),
            (false, true) => "cookie_file",
            (true, false) => "tls",
            (false, false) => "cookie_file and tls",
        };
        if self.is_public() {
            return Err(ClusterError::Unprotected { bind: self.bind.clone(), missing });
        }
        Ok(())
    }
}

fn check_address(address: &str) -> Result<(), String> {
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(port)) if port != 0 && address.len() <= 300 => Ok(()),
        _ => Err(format!("{address:?} is no HOST:PORT, such as trainer-0.group:4700")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> ClusterConfig {
        ClusterConfig { node: "a".into(), ..ClusterConfig::default() }
    }

    #[test]
    fn a_public_bind_without_cookie_and_tls_is_refused() {
        let files = IdentityFiles { ca: "ca".into(), certificate: "c".into(), key: "k".into() };
        let cases = [
            ("127.0.0.1:0", false, false, true),
            ("[::1]:0", false, false, true),
            ("0.0.0.0:4700", false, false, false),
            ("0.0.0.0:4700", true, false, false),
            ("10.1.2.3:4700", false, true, false),
            ("[::]:4700", true, true, true),
        ];
        for (bind, cookie, tls, fine) in cases {
            let cookie_file = cookie.then(|| "cookie".into());
            let tls = tls.then(|| files.clone());
            let config = ClusterConfig { bind: bind.into(), cookie_file, tls, ..good() };
            let checked = config.check();
            assert_eq!(checked.is_ok(), fine, "{bind}: {checked:?}");
            assert!(fine || matches!(checked, Err(ClusterError::Unprotected { .. })));
        }
    }

    #[test]
    fn every_problem_is_named_with_its_key() {
        assert_eq!(good().problems(), Vec::<String>::new());
        let bad = ClusterConfig {
            node: "A b".into(),
            cluster: String::new(),
            bind: "here".into(),
            seeds: vec!["x".into(), "y:0".into(), ":1".into()],
            heartbeat_ms: 5000,
            bulk_threshold_bytes: 1,
            open_questions: 0,
            ..good()
        };
        let problems = bad.problems().join("\n");
        for key in ["node:", "cluster:", "bind:", "\"x\"", "\"y:0\"", "\":1\"", "heartbeat_ms", "bulk_thr", "open_q"] {
            assert!(problems.contains(key), "{key} in {problems}");
        }
        assert!(!problems.contains("certificate"), "{problems}");
        let bad = ClusterConfig { tcp_user_timeout_ms: 1 << 31, retry_first_ms: 0, heartbeat_ms: 0, ..good() };
        let expected = [
            "heartbeat_ms: 0 must be more than 0 and less than suspect_ms (3000), and that less than dead_ms (10000)",
            "retry_first_ms: 0 must be more than 0 and at most retry_last_ms (5000)",
            "tcp_user_timeout_ms: 2147483648 is not 1 to 2147483647",
        ];
        assert_eq!(bad.problems(), expected);
        let for_ever = ClusterConfig { dead_ms: 9 << 60, handshake_ms: u64::MAX, bulk_deadline_ms: 1 << 40, ..good() };
        let problems = for_ever.problems();
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems.iter().all(|problem| problem.ends_with("which is a year")), "{problems:?}");
    }
}
