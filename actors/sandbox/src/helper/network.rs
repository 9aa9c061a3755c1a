//! The box's network: its own loopback, and nothing else.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, sendto, socket};

use super::SetupFailure;

/// Brings up `lo` of a fresh network namespace, so that tests may talk to servers of their own. One netlink message:
/// RTM_NEWLINK (16) with request and acknowledge flags (1 | 4), for interface 1, flag IFF_UP (1) changed (1).
pub(crate) fn raise_loopback() -> Result<(), SetupFailure> {
    let mut message = Vec::with_capacity(32);
    message.extend(32u32.to_ne_bytes()); // length of all
    message.extend(16u16.to_ne_bytes()); // RTM_NEWLINK
    message.extend(5u16.to_ne_bytes()); // NLM_F_REQUEST | NLM_F_ACK
    message.extend(1u32.to_ne_bytes()); // sequence number
    message.extend(0u32.to_ne_bytes()); // to the kernel
    message.extend([0u8, 0]); // AF_UNSPEC, padding
    message.extend(0u16.to_ne_bytes()); // type of device
    message.extend(1i32.to_ne_bytes()); // interface index: `lo` is always the first
    message.extend(1u32.to_ne_bytes()); // IFF_UP
    message.extend(1u32.to_ne_bytes()); // only that flag
    let failed = SetupFailure::at("loopback");
    let netlink = socket(AddressFamily::NETLINK, SocketType::RAW, None).map_err(&failed)?;
    sendto(&netlink, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).map_err(&failed)?;
    let mut answer = [0u8; 256];
    let (length, _) = recv(&netlink, &mut answer[..], RecvFlags::empty()).map_err(&failed)?;
    // NLMSG_ERROR carries a negative errno after its 16-byte header; 0 acknowledges.
    let code = answer.get(16..20).map(|word| i32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    match code {
        Some(0) if length >= 20 => Ok(()),
        other => Err(SetupFailure {
            stage: "loopback",
            detail: format!("the kernel answered {other:?}"),
            namespaces_refused: false,
            lasting: false,
        }),
    }
}
