//! Questions to an interface's driver: whether checksums and VLAN tags are left to it, whether it has a carrier, and how
//! many of its queues are in use.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys::interface::{asking_socket, request};

/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// `ETHTOOL_GTXCSUM` of linux/ethtool.h.
pub(crate) const TX_CHECKSUMS: u32 = 0x16;
/// `ETHTOOL_GTSO` of linux/ethtool.h.
pub(crate) const TCP_SEGMENTATION: u32 = 0x1e;

/// `ETHTOOL_GLINK` of linux/ethtool.h.
const LINK: u32 = 0x0a;

/// `ETHTOOL_GFLAGS` of linux/ethtool.h, and two of them: tags are left to the device, and taken out by it.
const FLAGS: u32 = 0x25;
const TX_VLAN: u32 = 1 << 7;
const RX_VLAN: u32 = 1 << 8;

/// `ETHTOOL_GCHANNELS` of linux/ethtool.h.
const CHANNELS: u32 = 0x3c;
/// Words of `struct ethtool_channels`, the longest answer: command, four limits, four counts.
const ANSWER_WORDS: usize = 9;

/// Whether sockets leave the checksums of what they send to `interface`, of the calling thread's
/// network namespace (`ethtool -k`: `tx-checksumming`).
///
/// # Errors
/// `ENODEV` where there is no such interface, `EOPNOTSUPP` where it cannot be asked.
pub(crate) fn leaves_checksums(interface: &str) -> io::Result<bool> {
    Ok(ask(&asking_socket()?, interface, TX_CHECKSUMS)? != 0)
}

/// Whether VLAN tags of what is sent are left to `interface`, of the calling thread's network namespace, and stand
/// beside the frame until then (`ethtool -k`: `tx-vlan-offload`).
///
/// # Errors
/// As [`leaves_checksums`].
pub(crate) fn leaves_tags(interface: &str) -> io::Result<bool> {
    Ok(ask(&asking_socket()?, interface, FLAGS)? & TX_VLAN != 0)
}

/// Whether it takes VLAN tags out of what arrives (`rx-vlan-offload`).
///
/// # Errors
/// As [`leaves_checksums`].
pub(crate) fn takes_tags(interface: &str) -> io::Result<bool> {
    Ok(ask(&asking_socket()?, interface, FLAGS)? & RX_VLAN != 0)
}

/// Whether `interface`, of the network namespace that the socket is of, has a carrier: at once, where its
/// flags follow a while later.
///
/// # Errors
/// As [`leaves_checksums`].
pub(crate) fn has_carrier(socket: &OwnedFd, interface: &str) -> io::Result<bool> {
    Ok(ask(socket, interface, LINK)? != 0)
}

/// Whether a switch of `interface`, by the number of the question, is on, in the network namespace that the socket
/// is of.
///
/// # Errors
/// As [`leaves_checksums`].
pub(crate) fn switch_of(socket: &OwnedFd, interface: &str, command: u32) -> io::Result<bool> {
    Ok(ask(socket, interface, command)? != 0)
}

/// Queues of `interface`, of the calling thread's network namespace, that receive (`ethtool -l`).
///
/// # Errors
/// `EOPNOTSUPP` where the driver does not tell.
pub(crate) fn receive_channels(interface: &str) -> io::Result<u32> {
    let answer = ask_words(&asking_socket()?, interface, CHANNELS)?;
    // Counts: to receive, to send, of other kinds, for both ways.
    Ok(answer[5].saturating_add(answer[8]))
}

/// Asks for a `struct ethtool_value`: command and value.
fn ask(socket: &OwnedFd, interface: &str, command: u32) -> io::Result<u32> {
    Ok(ask_words(socket, interface, command)?[1])
}

fn ask_words(socket: &OwnedFd, interface: &str, command: u32) -> io::Result<[u32; ANSWER_WORDS]> {
    let mut answer = [0; ANSWER_WORDS];
    answer[0] = command;
    let mut request = request(interface)?;
    request.ifr_ifru.ifru_data = answer.as_mut_ptr().cast();
    // SAFETY: the request is an ifreq, and no command of this file writes more than the answer it points to
    // is long; both live past the call.
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
        // Where it is down, as in a new namespace, nothing has one.
        let up = crate::sys::interface::facts("lo").unwrap().up;
        assert_eq!(has_carrier(&socket, "lo").unwrap(), up);
    }

    #[test]
    fn loopback_is_told_from_what_is_not_there() {
        // Loopback computes no checksums, for good ([fixed] in `ethtool -k lo`).
        assert!(leaves_checksums("lo").unwrap());
        assert!(!takes_tags("lo").unwrap());
        for name in ["no-such-link", "longer-than-any-name"] {
            let error = leaves_checksums(name).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{name}");
        }
    }
}
