//! What can go wrong with an engine, with stable codes.

use greenroom_core::ErrorPage;
use greenroom_messages::EngineId;

/// Why a call to an engine has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// Nobody listens there; the call did not reach the engine (GR0401).
    #[error("{url} cannot be reached: {message}")]
    Unreachable {
        /// The engine's address.
        url: String,
        /// What the connection said.
        message: String,
    },
    /// The connection broke in the middle: the call's fate is unknown (GR0402).
    #[error("{call} to {url} lost its connection: {message}")]
    Lost {
        /// The call.
        call: &'static str,
        /// The engine's address.
        url: String,
        /// What the connection said.
        message: String,
    },
    /// The deadline passed: the call's fate is unknown (GR0403).
    #[error("{call} to {url} was not answered within {waited_ms} ms")]
    TimedOut {
        /// The call.
        call: &'static str,
        /// The engine's address.
        url: String,
        /// How long it was waited for.
        waited_ms: u64,
    },
    /// The credential is missing or wrong (GR0404).
    #[error("{url} does not accept the credential for {call} (status {status}): {message}")]
    Unauthorized {
        /// The call.
        call: &'static str,
        /// The engine's address.
        url: String,
        /// 401 or 403.
        status: u16,
        /// What the server said.
        message: String,
    },
    /// The server refused the call and would refuse it again (GR0405).
    #[error("{url} refused {call} with status {status}: {message}")]
    Refused {
        /// The call.
        call: &'static str,
        /// The engine's address.
        url: String,
        /// The HTTP status.
        status: u16,
        /// What the server said.
        message: String,
    },
    /// The server is starting, paused, overloaded or ending (GR0406).
    #[error("{url} is not available for {call} (status {status}): {message}")]
    Unavailable {
        /// The call.
        call: &'static str,
        /// The engine's address.
        url: String,
        /// The HTTP status.
        status: u16,
        /// What the server said.
        message: String,
    },
    /// The server has no such endpoint (GR0407).
    #[error("{url} has no {call}")]
    Missing {
        /// The call.
        call: &'static str,
        /// The engine's address.
        url: String,
    },
    /// The answer is not what the protocol promises, or larger than allowed (GR0408).
    #[error("the answer of {url} to {call} cannot be used: {message}")]
    Malformed {
        /// The call.
        call: &'static str,
        /// The engine's address.
        url: String,
        /// What is wrong with it.
        message: String,
    },
}

impl ApiError {
    /// The stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "GR0401",
            Self::Lost { .. } => "GR0402",
            Self::TimedOut { .. } => "GR0403",
            Self::Unauthorized { .. } => "GR0404",
            Self::Refused { .. } => "GR0405",
            Self::Unavailable { .. } => "GR0406",
            Self::Missing { .. } => "GR0407",
            Self::Malformed { .. } => "GR0408",
        }
    }

    /// Whether the engine itself is in doubt after this error, not only the call.
    pub fn engine_in_doubt(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Lost { .. } | Self::TimedOut { .. } | Self::Unavailable { .. })
    }
}

/// The configuration of the engines cannot be used (GR0410).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineConfigError {
    /// A credential's source gives nothing.
    #[error("the credential {source_name} cannot be read: {message}")]
    Credential {
        /// Where it should come from.
        source_name: String,
        /// What went wrong; never the credential itself.
        message: String,
    },
    /// A value makes no sense.
    #[error("engine setting {setting} is {value}: {message}")]
    Value {
        /// The setting's name.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        message: &'static str,
    },
    /// An engine's address cannot be used, or holds what may be a secret. It is not repeated.
    #[error(
        "the url of engine {engine} (engine.external.NAME.url of the run's configuration, or engines.NAME.url of a node's \
         file) cannot be used: {message}"
    )]
    Address {
        /// The engine.
        engine: EngineId,
        /// What is wrong with it, with the remedy.
        message: &'static str,
    },
    /// The HTTP client could not be made.
    #[error("the client of engine {url} cannot be made: {message}")]
    Client {
        /// The engine's address.
        url: String,
        /// What went wrong.
        message: String,
    },
}

impl EngineConfigError {
    /// The stable code of this error.
    pub fn code(&self) -> &'static str {
        "GR0410"
    }
}

const fn page(code: &'static str, cause: &'static str, remedy: &'static str) -> ErrorPage {
    ErrorPage { code, cause, remedy }
}

/// The pages of this crate's codes.
pub const ERRORS: &[ErrorPage] = &[
    page(
        "GR0401",
        "nobody listens at an engine's address",
        "check the address and that the engine runs; the proxy tries again by itself with growing waits",
    ),
    page(
        "GR0402",
        "an engine closed the connection in the middle of a call, usually because its process died",
        "read the engine's own log; the proxy reconnects, and loads the wanted weights before the engine serves again",
    ),
    page(
        "GR0403",
        "an engine did not answer a call before its deadline",
        "the message names the call: raise that deadline under [engine.deadlines] if the engine is only slow",
    ),
    page(
        "GR0404",
        "an engine does not accept the credential",
        "set credentials.api_key and credentials.admin_key: weight, pause and abort calls need the admin key where the server has one",
    ),
    page(
        "GR0405",
        "an engine refused a call",
        "the message holds the engine's words; the same call would be refused again",
    ),
    page("GR0406", "an engine is starting, paused or shutting down", "wait; if it stays so, read the engine's own log"),
    page(
        "GR0407",
        "an engine does not know an endpoint that is needed",
        "run a version of SGLang inside the supported window, with its Python frontend",
    ),
    page(
        "GR0408",
        "an engine's answer is not what its protocol promises",
        "check that the address is an SGLang engine of a supported version and not a proxy or router in front of one",
    ),
    page(
        "GR0410",
        "the configuration of the engines cannot be used",
        "the message names the setting; an address is http://HOST:PORT alone, and credentials are read from the environment variable or file that the configuration names",
    ),
];
