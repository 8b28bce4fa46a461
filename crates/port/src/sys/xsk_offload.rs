//! One question to an interface's driver: whether checksums are left to it.

use std::io;
use std::os::fd::AsRawFd;

use crate::sys::interface::{asking_socket, request};

/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// `ETHTOOL_GTXCSUM` of linux/ethtool.h.
const TX_CHECKSUMS: u32 = 0x16;

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
    let mut answer = Answer {
        command: TX_CHECKSUMS,
        value: 0,
    };
    let mut request = request(interface)?;
    request.ifr_ifru.ifru_data = (&raw mut answer).cast();
    let socket = asking_socket()?;
    // SAFETY: the request is an ifreq, and the answer it points to is as long as the command writes;
    // both live past the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer.value != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
