//! Ethtool queries to an interface's driver: offload of checksums and VLAN tags, carrier, number of
//! queues.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys::interface_ioctl::{asking_socket, request};

/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// `ETHTOOL_GTXCSUM` of linux/ethtool.h.
pub(crate) const TX_CHECKSUMS: u32 = 0x16;
/// `ETHTOOL_GTSO` of linux/ethtool.h.
pub(crate) const TCP_SEGMENTATION: u32 = 0x1e;

/// `ETHTOOL_GLINK` of linux/ethtool.h.
const LINK: u32 = 0x0a;

/// `ETHTOOL_GFLAGS` of linux/ethtool.h, and two flags: the device inserts tags, the device removes
/// tags.
const FLAGS: u32 = 0x25;
const TX_VLAN: u32 = 1 << 7;
const RX_VLAN: u32 = 1 << 8;

/// `ETHTOOL_GCHANNELS` of linux/ethtool.h.
const CHANNELS: u32 = 0x3c;
/// 32-bit words of `struct ethtool_channels`, the longest reply: command, four limits, four counts.
const ANSWER_WORDS: usize = 9;

/// Returns true if sockets leave transmit checksums to `interface`, in the calling thread's network
/// namespace (`ethtool -k`: `tx-checksumming`).
///
/// # Errors
/// `ENODEV` if there is no such interface, `EOPNOTSUPP` if it does not support the query.
pub(crate) fn leaves_checksums(interface: &str) -> io::Result<bool> {
    Ok(ask(&asking_socket()?, interface, TX_CHECKSUMS)? != 0)
}

/// Returns true if VLAN tags are left to `interface` on transmit, in the calling thread's network
/// namespace: until then they are not in the frame data (`ethtool -k`: `tx-vlan-offload`).
///
/// # Errors
/// Like [`leaves_checksums`].
pub(crate) fn leaves_tags(interface: &str) -> io::Result<bool> {
    Ok(ask(&asking_socket()?, interface, FLAGS)? & TX_VLAN != 0)
}

/// Returns true if the interface removes VLAN tags from received frames (`rx-vlan-offload`).
///
/// # Errors
/// Like [`leaves_checksums`].
pub(crate) fn takes_tags(interface: &str) -> io::Result<bool> {
    Ok(ask(&asking_socket()?, interface, FLAGS)? & RX_VLAN != 0)
}

/// Returns true if `interface`, in the socket's network namespace, has a carrier. Current at once;
/// the interface flags follow with a delay.
///
/// # Errors
/// Like [`leaves_checksums`].
pub(crate) fn has_carrier(socket: &OwnedFd, interface: &str) -> io::Result<bool> {
    Ok(ask(socket, interface, LINK)? != 0)
}

/// Returns true if a feature of `interface` is on, in the socket's network namespace; `command` is
/// the ethtool query of that feature.
///
/// # Errors
/// Like [`leaves_checksums`].
pub(crate) fn switch_of(socket: &OwnedFd, interface: &str, command: u32) -> io::Result<bool> {
    Ok(ask(socket, interface, command)? != 0)
}

/// Number of receive queues of `interface` in the calling thread's network namespace (`ethtool
/// -l`).
///
/// # Errors
/// `EOPNOTSUPP` if the driver does not report it.
pub(crate) fn receive_channels(interface: &str) -> io::Result<u32> {
    let answer = ask_words(&asking_socket()?, interface, CHANNELS)?;
    // Counts: receive, transmit, other, combined.
    Ok(answer[5].saturating_add(answer[8]))
}

/// Queries a `struct ethtool_value` (command and value); returns the value.
fn ask(socket: &OwnedFd, interface: &str, command: u32) -> io::Result<u32> {
    Ok(ask_words(socket, interface, command)?[1])
}

fn ask_words(socket: &OwnedFd, interface: &str, command: u32) -> io::Result<[u32; ANSWER_WORDS]> {
    let mut answer = [0; ANSWER_WORDS];
    answer[0] = command;
    let mut request = request(interface)?;
    request.ifr_ifru.ifru_data = answer.as_mut_ptr().cast();
    // SAFETY: the request is an ifreq, and no command of this file writes more than the length of
    // the reply it points to; both outlive the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_always_has_a_carrier() {
        let socket = asking_socket().unwrap();
        // No carrier while the interface is down, as in a new namespace.
        let up = crate::sys::interface_ioctl::facts("lo").unwrap().up;
        assert_eq!(has_carrier(&socket, "lo").unwrap(), up);
    }

    #[test]
    fn loopback_is_told_from_what_is_not_there() {
        // Loopback never computes checksums ([fixed] in `ethtool -k lo`).
        assert!(leaves_checksums("lo").unwrap());
        assert!(!takes_tags("lo").unwrap());
        for name in ["no-such-link", "longer-than-any-name"] {
            let error = leaves_checksums(name).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{name}");
        }
    }
}
