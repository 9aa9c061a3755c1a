//! How QUIC sends to whom: windows, datagrams, congestion control.
//!
//! With a rate from the operator the window is fixed at 1.2 times rate × round trip: on a link with 1 % loss and 50 ms that
//! gave half of the link's rate, where cubic gave a hundredth. Without a rate it is BBR. Cubic, QUIC's usual choice, is
//! never used. Datagrams stay small enough that a batch of ten (GSO) fits into 64 KiB: a larger one is lost silently.

use std::any::Any;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{BbrConfig, Controller, ControllerFactory};
use quinn::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

use crate::{DataplaneConfig, DataplaneError};

/// A stream's and a connection's buffers on the receiving side, bytes: four times 1 Gbit/s × 30 ms.
const STREAM_WINDOW_BYTES: u32 = 16 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// A server reads questions only.
const QUESTION_WINDOW_BYTES: u32 = 64 << 10;
const IDLE_MS: u32 = 30_000;
const KEEP_ALIVE: Duration = Duration::from_secs(5);
const LEAST_WINDOW_BYTES: u64 = 64 << 10;

/// Addresses that share a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    address: IpAddr,
    prefix: u32,
}

impl FromStr for Network {
    type Err = DataplaneError;

    fn from_str(text: &str) -> Result<Self, DataplaneError> {
        let wrong = || DataplaneError::Config {
            key: "network",
            reason: format!("is {text:?}, and must be an address or a network such as 10.2.0.0/16"),
        };
        let (address, prefix) = text.split_once('/').map_or((text, None), |(one, two)| (one, Some(two)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(longest), str::parse).map_err(|_| wrong())?;
        if prefix <= longest { Ok(Self { address, prefix }) } else { Err(wrong()) }
    }
}

impl Network {
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, true),
            IpAddr::V6(v6) => (v6.to_bits(), false),
        };
        let ((own, own_v4), (other, other_v4)) = (bits(self.address), bits(address.to_canonical()));
        own_v4 == other_v4 && (own ^ other).checked_shr(128 - self.prefix).unwrap_or(0) == 0
    }
}

/// A window that the operator's rate gives and that losses do not change.
#[derive(Clone, Debug)]
struct FixedWindow {
    bytes: u64,
}

impl Controller for FixedWindow {
    fn on_congestion_event(&mut self, _now: Instant, _sent: Instant, _persistent: bool, _lost_bytes: u64) {}

    fn on_mtu_update(&mut self, _new_mtu: u16) {}

    fn window(&self) -> u64 {
        self.bytes
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.bytes
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl ControllerFactory for FixedWindow {
    fn build(self: Arc<Self>, _now: Instant, _current_mtu: u16) -> Box<dyn Controller> {
        Box::new(FixedWindow::clone(&self))
    }
}

/// 1.2 times rate × round trip, bytes.
fn window_bytes(rate_mbit: u32, round_trip_ms: u32) -> u64 {
    let product_bytes = u64::from(rate_mbit) * 1_000_000 / 8 * u64::from(round_trip_ms) / 1000;
    (product_bytes * 6 / 5).max(LEAST_WINDOW_BYTES)
}

/// What both sides have in common.
fn common(datagram_bytes: u16) -> TransportConfig {
    let mut transport = TransportConfig::default();
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(datagram_bytes);
    transport.mtu_discovery_config(Some(discovery));
    transport.initial_mtu(1200);
    transport.enable_segmentation_offload(true);
    transport.max_concurrent_uni_streams(VarInt::from_u32(0));
    transport.datagram_receive_buffer_size(None);
    transport.max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_MS))));
    transport
}

/// The transport of a fetching side.
pub(crate) fn receiving(config: &DataplaneConfig) -> Arc<TransportConfig> {
    let mut transport = common(config.datagram_bytes);
    transport.max_concurrent_bidi_streams(VarInt::from_u32(0));
    transport.stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES));
    transport.receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES));
    transport.keep_alive_interval(Some(KEEP_ALIVE));
    transport.congestion_controller_factory(Arc::new(BbrConfig::default()));
    Arc::new(transport)
}

/// The transport of a serving side, towards one kind of destination.
fn sending(datagram_bytes: u16, rate_mbit: Option<u32>, round_trip_ms: u32) -> Arc<TransportConfig> {
    let mut transport = common(datagram_bytes);
    transport.max_concurrent_bidi_streams(VarInt::from_u32(16));
    transport.stream_receive_window(VarInt::from_u32(QUESTION_WINDOW_BYTES));
    transport.receive_window(VarInt::from_u32(16 * QUESTION_WINDOW_BYTES));
    transport.send_window(CONNECTION_WINDOW_BYTES.into());
    match rate_mbit {
        Some(rate_mbit) => {
            let bytes = window_bytes(rate_mbit, round_trip_ms);
            transport.initial_rtt(Duration::from_millis(round_trip_ms.into()));
            transport.send_window(bytes.saturating_mul(4).max(CONNECTION_WINDOW_BYTES.into()));
            transport.congestion_controller_factory(Arc::new(FixedWindow { bytes }));
        }
        None => {
            transport.congestion_controller_factory(Arc::new(BbrConfig::default()));
        }
    }
    Arc::new(transport)
}

/// The serving side's transports by destination.
#[derive(Debug)]
pub(crate) struct Links {
    usual: Arc<TransportConfig>,
    special: Vec<(Network, Arc<TransportConfig>)>,
}

impl Links {
    pub(crate) fn new(config: &DataplaneConfig) -> Result<Self, DataplaneError> {
        let usual = sending(config.datagram_bytes, config.rate_mbit, config.round_trip_ms);
        let special = config.destinations.iter().map(|link| {
            let transport = sending(config.datagram_bytes, link.rate_mbit, link.round_trip_ms);
            Ok((link.network.parse()?, transport))
        });
        Ok(Self { usual, special: special.collect::<Result<_, DataplaneError>>()? })
    }

    pub(crate) fn to(&self, address: IpAddr) -> Arc<TransportConfig> {
        let found = self.special.iter().find(|(network, _)| network.contains(address));
        found.map_or(&self.usual, |(_, transport)| transport).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DestinationLink;

    #[test]
    fn networks_hold_the_addresses_of_their_prefix() {
        let cases = [
            ("10.2.0.0/16", "10.2.255.1", true),
            ("10.2.0.0/16", "10.3.0.1", false),
            ("10.2.3.4", "10.2.3.4", true),
            ("10.2.3.4", "10.2.3.5", false),
            ("0.0.0.0/0", "1.2.3.4", true),
            ("0.0.0.0/0", "::1", false),
            ("10.0.0.0/8", "::ffff:10.1.1.1", true),
            ("fd00::/8", "fd12::1", true),
            ("fd00::/8", "fe12::1", false),
            ("::/0", "fe12::1", true),
        ];
        for (network, address, expected) in cases {
            let parsed: Network = network.parse().unwrap();
            assert_eq!(parsed.contains(address.parse().unwrap()), expected, "{network} {address}");
        }
        for wrong in ["", "10.0.0.0/", "10.0.0.0/33", "::/129", "host", "10.0.0.0/-1"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_window_follows_from_the_operators_rate_and_never_from_cubic() {
        assert_eq!(window_bytes(200, 50), 1_500_000);
        assert_eq!(window_bytes(1, 1), LEAST_WINDOW_BYTES);
        let far = DestinationLink { network: "10.0.0.0/8".into(), rate_mbit: Some(200), round_trip_ms: 50 };
        let config = DataplaneConfig { destinations: vec![far], ..DataplaneConfig::default() };
        let links = Links::new(&config).unwrap();
        let far = format!("{:?}", links.to("10.1.1.1".parse().unwrap()));
        let near = format!("{:?}", links.to("127.0.0.1".parse().unwrap()));
        assert!(far.contains("50ms") && !near.contains("50ms"), "{far}");
        let fixed = Arc::new(FixedWindow { bytes: 7 });
        assert_eq!(fixed.clone().build(tokio::time::Instant::now().into_std(), 1200).window(), 7);
    }
}
