//! The settings of the data plane, and what they may be.

use serde::{Deserialize, Serialize};

use crate::DataplaneError;
use crate::link::Network;

/// How bytes travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// A peer's directory where the object is found in it; else QUIC; else, where UDP does not get through, TLS over TCP.
    #[default]
    Auto,
    /// QUIC only: for wide-area and lossy links, since its congestion control is ours to choose.
    Quic,
    /// TLS over TCP only: least processor time within a data centre.
    Tls,
    /// The peers' directories only.
    Directory,
}

/// What is known of the link to some addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DestinationLink {
    /// The addresses, such as `10.2.0.0/16`; the first entry that fits counts.
    pub network: String,
    /// The rate that QUIC may send with there, Mbit/s; without it BBR finds out.
    pub rate_mbit: Option<u32>,
    /// The round trip time there, ms; with the rate it gives the window.
    pub round_trip_ms: u32,
}

/// The settings of servers and clients. A server chooses how it sends, so links are set where the bytes come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataplaneConfig {
    /// How bytes travel.
    pub transport: Transport,
    /// How many streams a fetch uses, 1 to 16. Over TLS/TCP each is a connection; over QUIC all share one.
    pub streams: u32,
    /// How many chunks each stream asks for ahead, 1 to 64.
    pub window_chunks: u32,
    /// How long connecting may take, ms.
    pub connect_timeout_ms: u64,
    /// With `auto`: how long QUIC may take to answer before TLS/TCP is used, ms.
    pub quic_answer_ms: u64,
    /// How long a peer may be silent in the middle of a transfer, ms.
    pub stall_timeout_ms: u64,
    /// A peer that gives less than this for as long as it might be silent is left for the next one, if another may be asked,
    /// KiB a second; 0 leaves none for that.
    pub slow_kib_per_s: u32,
    /// How long a peer is asked to wait for a chunk that it is still receiving, ms; at most 10 000.
    pub chunk_wait_ms: u32,
    /// How many connections a server has at a time.
    pub max_connections: u32,
    /// The largest QUIC datagram, bytes, 1200 to 6500: larger ones leave in batches above 64 KiB, which are lost silently.
    pub datagram_bytes: u16,
    /// What is known of the links to other addresses than those of `destinations`; see [`DestinationLink::rate_mbit`].
    pub rate_mbit: Option<u32>,
    /// See [`DestinationLink::round_trip_ms`].
    pub round_trip_ms: u32,
    /// Links to some addresses.
    pub destinations: Vec<DestinationLink>,
}

impl Default for DataplaneConfig {
    fn default() -> Self {
        Self {
            transport: Transport::Auto,
            streams: 2,
            window_chunks: 8,
            connect_timeout_ms: 3000,
            quic_answer_ms: 1500,
            stall_timeout_ms: 5000,
            slow_kib_per_s: 1024,
            chunk_wait_ms: 2000,
            max_connections: 64,
            datagram_bytes: 1452,
            rate_mbit: None,
            round_trip_ms: 50,
            destinations: Vec::new(),
        }
    }
}

/// The longest that a server waits for a chunk, whatever it is asked, ms.
pub(crate) const MAX_WAIT_MS: u32 = 10_000;

impl DataplaneConfig {
    /// Whether these settings can be; the error names the first that cannot.
    pub fn check(&self) -> Result<(), DataplaneError> {
        let within = |key: &'static str, value: u64, from: u64, to: u64| {
            if (from..=to).contains(&value) {
                return Ok(());
            }
            Err(DataplaneError::Config { key, reason: format!("is {value}, and must be {from} to {to}") })
        };
        within("streams", self.streams.into(), 1, 16)?;
        within("window_chunks", self.window_chunks.into(), 1, 64)?;
        within("connect_timeout_ms", self.connect_timeout_ms, 1, 600_000)?;
        within("quic_answer_ms", self.quic_answer_ms, 1, 600_000)?;
        within("stall_timeout_ms", self.stall_timeout_ms, 1, 600_000)?;
        within("slow_kib_per_s", self.slow_kib_per_s.into(), 0, 1 << 20)?;
        within("chunk_wait_ms", self.chunk_wait_ms.into(), 0, MAX_WAIT_MS.into())?;
        within("max_connections", self.max_connections.into(), 1, 65_536)?;
        within("datagram_bytes", self.datagram_bytes.into(), 1200, 6500)?;
        let own = std::iter::once((self.rate_mbit, self.round_trip_ms));
        let links = self.destinations.iter().map(|link| (link.rate_mbit, link.round_trip_ms));
        for (rate_mbit, round_trip_ms) in own.chain(links) {
            within("rate_mbit", rate_mbit.unwrap_or(1).into(), 1, 400_000)?;
            within("round_trip_ms", round_trip_ms.into(), 1, 10_000)?;
        }
        self.destinations.iter().try_for_each(|link| link.network.parse::<Network>().map(|_| ()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_be_are_named() {
        let good = DataplaneConfig::default();
        good.check().unwrap();
        let link = |network: &str| DestinationLink { network: network.into(), rate_mbit: Some(100), round_trip_ms: 10 };
        let cases = [
            ("streams", DataplaneConfig { streams: 0, ..good.clone() }),
            ("window_chunks", DataplaneConfig { window_chunks: 65, ..good.clone() }),
            ("datagram_bytes", DataplaneConfig { datagram_bytes: 9000, ..good.clone() }),
            ("rate_mbit", DataplaneConfig { rate_mbit: Some(0), ..good.clone() }),
            ("chunk_wait_ms", DataplaneConfig { chunk_wait_ms: 10_001, ..good.clone() }),
            ("network", DataplaneConfig { destinations: vec![link("10.0.0.0/33")], ..good.clone() }),
        ];
        for (key, config) in cases {
            match config.check() {
                Err(DataplaneError::Config { key: found, .. }) => assert_eq!(found, key),
                other => panic!("{key}: {other:?}"),
            }
        }
        let text = serde_json::to_string(&good).unwrap();
        assert_eq!(serde_json::from_str::<DataplaneConfig>(&text).unwrap(), good);
        assert!(serde_json::from_str::<DataplaneConfig>(r#"{"steams": 1}"#).is_err());
    }
}
