//! How engines are spoken to: deadlines, waits, credentials, the order of updates.
//!
//! Every value has a default that suits an engine on the local network. Unknown keys are errors. Credentials are named
//! by where they come from and never stand in the configuration itself, so that a dump of it is safe to show.

use serde::{Deserialize, Serialize};

use crate::{EngineConfigError, SecretSource, SglangVersion};

/// The settings of the fleet and of each proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// How long each kind of call may take.
    pub deadlines: CallDeadlines,
    /// How long requests in flight may go on before an update aborts them, in milliseconds.
    pub drain_ms: u64,
    /// How long aborted requests may take to answer before the engine is paused all the same, in milliseconds.
    pub abort_grace_ms: u64,
    /// The time between two looks at a serving engine, in milliseconds.
    pub probe_interval_ms: u64,
    /// The waits between attempts to reach a lost engine.
    pub backoff: Backoff,
    /// How often a failed load is tried again before the engine waits for another version.
    pub load_retries: u32,
    /// How long an update waits for an engine that cannot be reached (lost, or never seen) before it goes on without it,
    /// in milliseconds. A fleet of which no engine can be reached is waited for until the update's own time-out.
    pub lost_patience_ms: u64,
    /// After a load, compare a few numbers of the engine's weights with the file that was loaded, where the engine can
    /// tell them. Switch it off for an engine that quantises what it loads.
    pub spot_check: bool,
    /// An engine that holds requests and has made no token for this long is lost, in milliseconds; 0 switches that off.
    pub stall_ms: u64,
    /// Whether engines are updated together or one after another.
    pub update_order: UpdateOrder,
    /// Where the credentials come from.
    pub credentials: Credentials,
    /// The supported versions of SGLang.
    pub versions: VersionWindow,
    /// The largest answer that is read, in bytes.
    pub response_limit_bytes: u64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            deadlines: CallDeadlines::default(),
            drain_ms: 30_000,
            abort_grace_ms: 5_000,
            probe_interval_ms: 2_000,
            backoff: Backoff::default(),
            load_retries: 3,
            lost_patience_ms: 10_000,
            spot_check: true,
            stall_ms: 60_000,
            update_order: UpdateOrder::default(),
            credentials: Credentials::default(),
            versions: VersionWindow::default(),
            response_limit_bytes: 64 << 20,
        }
    }
}

impl EngineConfig {
    /// Why a text cannot be an engine's base address, with the remedy. Never with the address, which may hold a secret: an
    /// address is shown, logged and written into the run's history.
    pub fn url_problem(url: &str) -> Option<&'static str> {
        let parsed = reqwest::Url::parse(url).ok();
        let is_server = |url: &reqwest::Url| matches!(url.scheme(), "http" | "https") && url.port() != Some(0);
        let parsed = parsed.filter(|parsed| is_server(parsed) && parsed.host().is_some());
        let Some(parsed) = parsed else { return Some("write http://HOST:PORT") };
        let is_bare = parsed.username().is_empty()
            && parsed.password().is_none()
            && parsed.query().is_none()
            && parsed.fragment().is_none();
        (!is_bare).then_some(
            "it has a user, a query or a fragment, which everybody who looks at the run would see: write http://HOST:PORT; an \
             engine's key is read from where engine.client.credentials.api_key (and admin_key) of the run's configuration \
             says, such as api_key = { env = \"NAME\" } or { file = \"PATH\" }",
        )
    }

    /// Every problem of these settings, none if they can be used.
    pub fn problems(&self) -> Vec<EngineConfigError> {
        let mut problems = Vec::new();
        let times = [
            ("deadlines.info_ms", self.deadlines.info_ms),
            ("deadlines.probe_ms", self.deadlines.probe_ms),
            ("deadlines.pause_ms", self.deadlines.pause_ms),
            ("deadlines.load_ms", self.deadlines.load_ms),
            ("deadlines.abort_ms", self.deadlines.abort_ms),
            ("probe_interval_ms", self.probe_interval_ms),
            ("backoff.first_ms", self.backoff.first_ms),
            ("response_limit_bytes", self.response_limit_bytes),
        ];
        for (setting, value) in times {
            if value == 0 {
                problems.push(EngineConfigError::Value { setting, value: "0".into(), message: "must be at least 1" });
            }
        }
        for (setting, text) in [("versions.oldest", &self.versions.oldest), ("versions.newest", &self.versions.newest)]
        {
            if SglangVersion::parse(text).is_none() {
                let message = "must be a version such as 0.5.23";
                problems.push(EngineConfigError::Value { setting, value: text.clone(), message });
            }
        }
        problems
    }
}

/// The longest that a call may take, in milliseconds. A missed deadline makes the engine `Lost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CallDeadlines {
    /// Reading version, limits and weight label. A busy scheduler answers late.
    pub info_ms: u64,
    /// A look at a serving engine.
    pub probe_ms: u64,
    /// Pausing and going on.
    pub pause_ms: u64,
    /// Loading weights; an update's own time-out may be shorter.
    pub load_ms: u64,
    /// Aborting a request.
    pub abort_ms: u64,
}

impl Default for CallDeadlines {
    fn default() -> Self {
        Self { info_ms: 10_000, probe_ms: 5_000, pause_ms: 30_000, load_ms: 600_000, abort_ms: 5_000 }
    }
}

/// The waits between attempts: doubled each time, then scaled by a random factor from one half to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    /// The first wait, in milliseconds.
    pub first_ms: u64,
    /// The longest wait, in milliseconds.
    pub limit_ms: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first_ms: 200, limit_ms: 10_000 }
    }
}

/// In which order engines are updated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateOrder {
    /// All at once: shortest in time, no engine serves meanwhile.
    #[default]
    Parallel,
    /// One after another: the others go on serving.
    Rolling,
}

/// The credentials of the engines. A server may want one, the other, both or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Credentials {
    /// For generation and information.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretSource>,
    /// For weights, pause, abort and flush; where it is not given, `api_key` is used for these too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_key: Option<SecretSource>,
}

/// The versions of SGLang that are let in, both ends included; patch suffixes such as `.post1` are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VersionWindow {
    /// The oldest.
    pub oldest: String,
    /// The newest.
    pub newest: String,
}

impl Default for VersionWindow {
    fn default() -> Self {
        Self { oldest: "0.5.10".into(), newest: "0.5.23".into() }
    }
}

#[cfg(test)]
mod tests {
    use super::EngineConfig;

    #[test]
    fn an_address_with_a_secret_is_refused_without_repeating_it() {
        for good in ["http://h", "http://10.0.0.1:30000/", "https://engine.example:443/v1", "http://[::1]:30000"] {
            assert_eq!(EngineConfig::url_problem(good), None, "{good}");
        }
        for bad in [
            "http://bob:hunter2@h:1",
            "http://hunter2@h",
            "http://:hunter2@h",
            "https://h/v1?token=hunter2",
            "http://h#hunter2",
            "http:/\\bob:hunter2@h",
        ] {
            let problem = EngineConfig::url_problem(bad).unwrap();
            assert!(problem.contains("engine.client.credentials.api_key") && !problem.contains("hunter2"), "{bad}");
        }
        for bad in ["", "h:1", "ftp://h", "http://", "bob:hunter2@h"] {
            assert_eq!(EngineConfig::url_problem(bad), Some("write http://HOST:PORT"), "{bad}");
        }
    }
}
