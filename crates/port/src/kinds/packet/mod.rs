//! `packet:` sends and receives on a kernel interface through AF_PACKET (packet(7)).
//!
//! Works with every driver and only needs CAP_NET_RAW. The kernel's own stack also receives all
//! frames, and replies for addresses of the interface. Only incoming frames are received, not those
//! that this host sends on the interface.
//!
//! There are three modes:
//! - `v=mmsg`: system calls that move many frames. Measured on veth, it sends 17 % and receives 4
//!   to 8 % more than the rings.
//! - `v=2`: rings of slots.
//! - `v=3`: a ring of blocks to receive, and of slots to send. A block is delivered after up to a
//!   millisecond, so it does not suit round trips.
//!
//! Without `v=` frames are sent by calls, and received by calls except in two kinds of loops. A
//! loop that forwards frames receives from slots, which carry a fifth more: the sending core fills
//! them and copies the frame, and the loop saves a call. A loop that only counts frames receives
//! from blocks: between distant cores they take 18 % more than calls, because the two share fewer
//! cache lines; between close cores both are equal.

mod receive;
mod transmit;

use std::io;

use linerate_packet::frame::ETHERNET_HEADER_BYTES;
use linerate_sys::af_packet::{PacketSocket, PromiscuousMode};
use linerate_sys::af_xdp::netlink_xdp;
use linerate_sys::frames::frame_memory::{FrameRegion, MemoryPlan};
use linerate_sys::interface_ioctl::LinkAttributes;

use crate::capabilities::{FrameCopy, PortCapabilities};
use crate::counters::DropCause;
use crate::error::PortError;
use crate::interface_use::{self, open_error};
use crate::kinds::{NameRule, PortKind, no_check, queue_name};
use crate::port_url::{FRAME_OVERHEAD_BYTES, PortUrl, UrlKey, ValueKind};
use crate::queue::{AnyPort, PortQueues};

pub use receive::PacketReceive;
pub use transmit::PacketTransmit;

/// Description of the kind `packet:`.
pub const KIND: PortKind = PortKind {
    scheme: "packet",
    description: "a kernel interface, through AF_PACKET",
    name_rule: NameRule::Required("interface"),
    example: "packet:eth1,v=mmsg",
    extra_keys: &[
        UrlKey {
            name: "v",
            value_kind: ValueKind::OneOf(&["mmsg", "2", "3"]),
            description: "many frames per call (mmsg), or rings of TPACKET_V2 or _V3; default: the faster one",
        },
        UrlKey {
            name: "qdisc",
            value_kind: ValueKind::Flag,
            description: "sends through the interface's queueing discipline instead of bypassing it",
        },
    ],
    descriptors: 1024,
    check: no_check,
    adapt_memory_plan,
    open,
};

/// Socket buffer bytes used by one waiting frame of 1500 bytes: the kernel counts half a page and
/// its own bookkeeping (`skb->truesize`).
const BUFFER_BYTES_PER_FRAME: u32 = 2304;
/// Errors of an interface that is down or was removed.
const INTERFACE_GONE: [i32; 3] = [libc::ENETDOWN, libc::ENODEV, libc::ENXIO];

/// Plans frames by the interface's MTU if the URL has no `mtu=`.
fn adapt_memory_plan(url: &PortUrl, plan: MemoryPlan) -> MemoryPlan {
    let frame_bytes = match linerate_sys::interface_ioctl::read_attributes(url.name()) {
        Ok(attributes) if url.common().mtu.is_none() => frame_bytes(&attributes),
        _ => plan.frame_bytes,
    };
    MemoryPlan {
        frame_bytes,
        ..plan
    }
}

fn frame_bytes(attributes: &LinkAttributes) -> u16 {
    u16::try_from(attributes.mtu)
        .unwrap_or(u16::MAX)
        .saturating_add(FRAME_OVERHEAD_BYTES)
}

fn open(url: &PortUrl, memory: &FrameRegion) -> Result<Vec<AnyPort>, PortError> {
    let attributes = interface_use::check_usable(url, false)?;
    let promiscuous = PromiscuousMode::enable(&attributes)
        .map_err(|source| open_error(url, "CAP_NET_RAW", "open a packet socket", source))?;
    let queues = url.common().queues.unwrap_or(1);
    let mut group = None;
    let mut ports = Vec::new();
    for queue in 0..queues {
        let name = queue_name(url, queue, queues);
        let port = open_queue(url, memory, (&attributes, &promiscuous), name)
            .map_err(|source| open_error(url, "CAP_NET_RAW", "open a packet socket", source))?;
        if queues > 1 {
            let joined = port.receive.join_fanout(group);
            let joined = joined.map_err(|source| PortError::Kernel {
                port: url.short_name(),
                action: "distribute the interface's frames over the queues",
                source,
            })?;
            group = Some(joined);
        }
        ports.push(port.into_any());
    }
    Ok(ports)
}

fn open_queue(
    url: &PortUrl,
    memory: &FrameRegion,
    (attributes, promiscuous): (&LinkAttributes, &PromiscuousMode),
    name: String,
) -> io::Result<PortQueues<PacketReceive, PacketTransmit>> {
    let interface_bytes = frame_bytes(attributes);
    let requested_bytes = url
        .common()
        .mtu
        .map_or(interface_bytes, |_| url.frame_bytes());
    let max_bytes = interface_bytes
        .min(requested_bytes)
        .min(memory.frame_bytes());
    let mut capabilities = PortCapabilities {
        address: attributes.address,
        copies: FrameCopy::EachDirection,
        completes_checksums: true,
        promiscuous: Some(promiscuous.clone()),
        peer_interface: netlink_xdp::link_by_name(url.name())
            .ok()
            .and_then(|link| Some(link.veth_peer()?.name)),
        ..PortCapabilities::plain(name.clone(), max_bytes)
    };
    if max_bytes < interface_bytes {
        capabilities.notes.push(format!(
            "the interface accepts frames of {interface_bytes} bytes and this port {max_bytes}: longer ones count as too long"
        ));
    }
    capabilities.notes.push(
        "a sender on this machine that leaves segmentation to a device sends frames longer than the MTU, \
         which count as too long: `ethtool -K IF tso off gso off` at the sender"
            .to_owned(),
    );

    let (receive, descriptors) = PacketReceive::open(
        url,
        memory,
        attributes,
        promiscuous,
        max_bytes,
        name.clone(),
    )?;
    capabilities.receive_descriptors = Some(descriptors);
    let (transmit, descriptors) = PacketTransmit::open(url, attributes, max_bytes, name)?;
    capabilities.transmit_descriptors = Some(descriptors);
    Ok(PortQueues {
        receive,
        transmit,
        capabilities,
    })
}

/// Sets the socket buffer for this many frames; above the system limit if permitted, otherwise up
/// to it.
fn set_buffer(socket: &PacketSocket, receive: bool, frames: u32) -> io::Result<()> {
    // The kernel doubles the value for its bookkeeping, which is included here.
    let bytes =
        i32::try_from(frames.saturating_mul(BUFFER_BYTES_PER_FRAME) / 2).unwrap_or(i32::MAX);
    let (forced, plain) = if receive {
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)
    } else {
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)
    };
    if socket.set_int(libc::SOL_SOCKET, forced, bytes).is_ok() {
        return Ok(());
    }
    socket.set_int(libc::SOL_SOCKET, plain, bytes)
}

/// Reason to drop a frame of this length; none if it is valid.
fn length_error(length: usize, frame_bytes: u16) -> Option<DropCause> {
    if length > usize::from(frame_bytes) {
        Some(DropCause::TooLong)
    } else if length < ETHERNET_HEADER_BYTES {
        Some(DropCause::Invalid)
    } else {
        None
    }
}

/// Returns the error unless it is transient.
fn permanent_error(error: io::Error) -> Option<io::Error> {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM) => None,
        _ => Some(error),
    }
}
