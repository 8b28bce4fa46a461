//! Questions to an interface's driver: whether checksums are left to it, and whether it has a carrier.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys::interface::{asking_socket, request};

/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// `ETHTOOL_GTXCSUM` of linux/ethtool.h.
const TX_CHECKSUMS: u32 = 0x16;

/// `ETHTOOL_GLINK` of linux/ethtool.h.
const LINK: u32 = 0x0a;

/// `struct ethtool_value`.
#[repr(C)]
struct Answer {
    command: u32,
    value: u32,
}

/// Whether sockets leave the checksums of what they send to `interface`, of the calling thread's
/// network namespace (`ethtool -k`: `tx-checksumming`).
///
/// # Errors
/// `ENODEV` where there is no such interface, `EOPNOTSUPP` where it cannot be asked.
pub(crate) fn leaves_checksums(interface: &str) -> io::Result<bool> {
    Ok(ask(&asking_socket()?, interface, TX_CHECKSUMS)? != 0)
}

/// Whether `interface`, of the network namespace that the socket is of, has a carrier: at once, where its
/// flags follow a while later.
///
/// # Errors
/// As [`leaves_checksums`].
pub(crate) fn has_carrier(socket: &OwnedFd, interface: &str) -> io::Result<bool> {
    Ok(ask(socket, interface, LINK)? != 0)
}

fn ask(socket: &OwnedFd, interface: &str, command: u32) -> io::Result<u32> {
    let mut answer = Answer { command, value: 0 };
    let mut request = request(interface)?;
    request.ifr_ifru.ifru_data = (&raw mut answer).cast();
    // SAFETY: the request is an ifreq, and the answer it points to is as long as the command writes;
    // both live past the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer.value)
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
        for name in ["no-such-link", "longer-than-any-name"] {
            let error = leaves_checksums(name).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{name}");
        }
    }
}
