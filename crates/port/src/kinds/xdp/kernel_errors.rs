//! Port errors for errors of AF_XDP system calls.

use std::io;

use linerate_sys::af_xdp::netlink_xdp::XdpLinkInfo;
use linerate_sys::af_xdp::xsk_socket::{CopyPolicy, locked_memory_limit};
use linerate_sys::frames::frame_memory::FrameRegion;

use crate::error::PortError;
use crate::port_url::PortUrl;

/// Error of registering the frame memory.
pub(super) fn memory_error(port: &str, memory: &FrameRegion, source: io::Error) -> PortError {
    let port = port.to_owned();
    if source.raw_os_error() != Some(libc::ENOBUFS) {
        return PortError::Kernel {
            port,
            action: "register the frame memory",
            source,
        };
    }
    PortError::LockedMemory {
        port,
        needed: memory.slot_bytes() as u64 * u64::from(memory.frames()),
        limit: locked_memory_limit().map_or_else(
            || "less than that".to_owned(),
            |limit| format!("{limit} bytes"),
        ),
        source,
    }
}

/// Error of binding the socket to a queue.
pub(super) fn bind_error(
    url: &PortUrl,
    port: &str,
    queue: u32,
    copy_policy: CopyPolicy,
    link: &XdpLinkInfo,
    source: io::Error,
) -> PortError {
    let port = port.to_owned();
    match source.raw_os_error() {
        Some(libc::EBUSY) => PortError::InUse {
            remedy: format!(
                "another AF_XDP socket has queue {queue} of {}; select another one with `q=`, or find its owner with `ss --xdp --processes`",
                link.name
            ),
            port,
        },
        Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EINVAL)
            if copy_policy == CopyPolicy::ZeroCopy =>
        {
            PortError::MissingFeature {
                port,
                feature: "zero-copy for its driver",
                remedy: "leave out `zerocopy=yes`",
                source,
            }
        }
        Some(libc::EINVAL) => url.bad_value(
            "q",
            &queue.to_string(),
            format!(
                "a receive queue in use on {} (`ethtool -l {}`)",
                link.name, link.name
            ),
            "0",
        ),
        Some(libc::ENETDOWN) => PortError::InterfaceDown {
            interface: link.name.clone(),
        },
        Some(libc::ENODEV) => PortError::NoInterface {
            interface: link.name.clone(),
        },
        _ => PortError::Kernel {
            port,
            action: "bind the socket to the queue",
            source,
        },
    }
}

/// Error of creating an AF_XDP socket.
pub(super) fn socket_error(port: &str, source: io::Error) -> PortError {
    let port = port.to_owned();
    match source.raw_os_error() {
        Some(libc::EPERM) => PortError::NotPrivileged {
            port,
            privilege: "CAP_NET_RAW",
            source,
        },
        Some(libc::EAFNOSUPPORT) => PortError::MissingFeature {
            port,
            feature: "AF_XDP",
            remedy: "use a kernel with CONFIG_XDP_SOCKETS, or the port `packet:`",
            source,
        },
        _ => PortError::Kernel {
            port,
            action: "create an AF_XDP socket",
            source,
        },
    }
}

/// Error of enabling busy polling.
pub(super) fn busy_poll_error(port: &str, source: io::Error) -> PortError {
    let port = port.to_owned();
    match source.raw_os_error() {
        Some(libc::EPERM) => PortError::NotPrivileged {
            port,
            privilege: "CAP_NET_ADMIN for `busy=`",
            source,
        },
        Some(libc::ENOPROTOOPT) => PortError::MissingFeature {
            port,
            feature: "preferred busy polling (Linux 5.11)",
            remedy: "leave out `busy=`",
            source,
        },
        _ => PortError::Kernel {
            port,
            action: "enable busy polling",
            source,
        },
    }
}
