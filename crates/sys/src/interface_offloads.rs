//! Ethtool queries to an interface's driver: offload of checksums and VLAN tags, carrier, number of
//! queues.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::ethtool_features::ethtool_ioctl;
use crate::interface_ioctl::ioctl_socket;

/// `ETHTOOL_GTXCSUM` of linux/ethtool.h.
pub const GET_TX_CHECKSUMS: u32 = 0x16;
/// `ETHTOOL_GTSO` of linux/ethtool.h.
pub const GET_TSO: u32 = 0x1e;

/// `ETHTOOL_GLINK` of linux/ethtool.h.
const GET_LINK: u32 = 0x0a;

/// `ETHTOOL_GFLAGS` of linux/ethtool.h, and two flags: the device inserts tags, the device removes
/// tags.
const GET_FLAGS: u32 = 0x25;
const FLAG_TX_VLAN: u32 = 1 << 7;
const FLAG_RX_VLAN: u32 = 1 << 8;

/// `ETHTOOL_GCHANNELS` of linux/ethtool.h.
const GET_CHANNELS: u32 = 0x3c;
/// 32-bit words of `struct ethtool_channels`, the longest reply: command, four limits, four counts.
const REPLY_WORDS: usize = 9;

/// Returns true if sockets leave transmit checksums to `interface`, in the calling thread's network
/// namespace (`ethtool -k`: `tx-checksumming`).
///
/// # Errors
/// `ENODEV` if there is no such interface, `EOPNOTSUPP` if it does not support the query.
pub fn offloads_tx_checksums(interface: &str) -> io::Result<bool> {
    Ok(query_value(&ioctl_socket()?, interface, GET_TX_CHECKSUMS)? != 0)
}

/// Returns true if VLAN tags are left to `interface` on transmit, in the calling thread's network
/// namespace: until then they are not in the frame data (`ethtool -k`: `tx-vlan-offload`).
///
/// # Errors
/// Like [`offloads_tx_checksums`].
pub fn offloads_tx_vlan(interface: &str) -> io::Result<bool> {
    Ok(query_value(&ioctl_socket()?, interface, GET_FLAGS)? & FLAG_TX_VLAN != 0)
}

/// Returns true if the interface removes VLAN tags from received frames (`rx-vlan-offload`).
///
/// # Errors
/// Like [`offloads_tx_checksums`].
pub fn strips_rx_vlan(interface: &str) -> io::Result<bool> {
    Ok(query_value(&ioctl_socket()?, interface, GET_FLAGS)? & FLAG_RX_VLAN != 0)
}

/// Returns true if `interface`, in the socket's network namespace, has a carrier. Current at once;
/// the interface flags follow with a delay.
///
/// # Errors
/// Like [`offloads_tx_checksums`].
pub fn has_carrier(socket: &OwnedFd, interface: &str) -> io::Result<bool> {
    Ok(query_value(socket, interface, GET_LINK)? != 0)
}

/// Returns true if a feature of `interface` is on, in the socket's network namespace; `command` is
/// the ethtool query of that feature.
///
/// # Errors
/// Like [`offloads_tx_checksums`].
pub fn is_feature_on(socket: &OwnedFd, interface: &str, command: u32) -> io::Result<bool> {
    Ok(query_value(socket, interface, command)? != 0)
}

/// Number of receive queues of `interface` in the calling thread's network namespace (`ethtool
/// -l`).
///
/// # Errors
/// `EOPNOTSUPP` if the driver does not report it.
pub fn count_receive_channels(interface: &str) -> io::Result<u32> {
    let reply = query(&ioctl_socket()?, interface, GET_CHANNELS)?;
    // Counts: receive, transmit, other, combined.
    Ok(reply[5].saturating_add(reply[8]))
}

/// Queries a `struct ethtool_value` (command and value); returns the value.
fn query_value(socket: &OwnedFd, interface: &str, command: u32) -> io::Result<u32> {
    Ok(query(socket, interface, command)?[1])
}

fn query(socket: &OwnedFd, interface: &str, command: u32) -> io::Result<[u32; REPLY_WORDS]> {
    let mut reply = [0; REPLY_WORDS];
    reply[0] = command;
    // No command of this file writes more than the length of the reply.
    ethtool_ioctl(socket.as_fd(), interface, &mut reply)?;
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_always_has_a_carrier() {
        let socket = ioctl_socket().unwrap();
        // No carrier while the interface is down, as in a new namespace.
        let up = crate::interface_ioctl::read_attributes("lo").unwrap().up;
        assert_eq!(has_carrier(&socket, "lo").unwrap(), up);
    }

    #[test]
    fn loopback_and_missing_interfaces_are_distinguished() {
        // Loopback never computes checksums ([fixed] in `ethtool -k lo`).
        assert!(offloads_tx_checksums("lo").unwrap());
        assert!(!strips_rx_vlan("lo").unwrap());
        for name in ["no-such-link", "longer-than-any-name"] {
            let error = offloads_tx_checksums(name).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{name}");
        }
    }
}
