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

use crate::capabilities::{Capabilities, Copies};
use crate::counters::Cause;
use crate::error::PortError;
use crate::interface_use::{self, refused};
use crate::kinds::{Kind, Name, queue_name, unchecked};
use crate::port_url::{ETHERNET_BYTES, Key, PortUrl, Value};
use crate::queue::{AnyPort, Pair};
use crate::sys::frame_memory::{Memory, MemoryPlan};
use crate::sys::interface_ioctl::Facts;
use crate::sys::netlink_xdp;
use crate::sys::packet::{PacketSocket, Promiscuous};
pub use receive::PacketReceive;
pub use transmit::PacketTransmit;

/// Description of the kind `packet:`.
pub const KIND: Kind = Kind {
    scheme: "packet",
    about: "a kernel interface, through AF_PACKET",
    name: Name::Needed("interface"),
    example: "packet:eth1,v=mmsg",
    keys: &[
        Key {
            name: "v",
            value: Value::OneOf(&["mmsg", "2", "3"]),
            about: "many frames per call (mmsg), or rings of TPACKET_V2 or _V3; default: the faster one",
        },
        Key {
            name: "qdisc",
            value: Value::Flag,
            about: "sends through the interface's queueing discipline instead of bypassing it",
        },
    ],
    descriptors: 1024,
    check: unchecked,
    memory: plan,
    open,
};

/// Socket buffer bytes used by one waiting frame of 1500 bytes: the kernel counts half a page and
/// its own bookkeeping (`skb->truesize`).
const BUFFER_BYTES_PER_FRAME: u32 = 2304;
/// Bytes of an Ethernet header: the shortest frame.
const HEADER_BYTES: usize = 14;
/// Plans frames by the interface's MTU if the URL has no `mtu=`.
fn plan(url: &PortUrl, plan: MemoryPlan) -> MemoryPlan {
    let frame_bytes = match crate::sys::interface_ioctl::facts(url.name()) {
        Ok(facts) if url.common().mtu.is_none() => frame_bytes(&facts),
        _ => plan.frame_bytes,
    };
    MemoryPlan {
        frame_bytes,
        ..plan
    }
}

fn frame_bytes(facts: &Facts) -> u16 {
    u16::try_from(facts.mtu)
        .unwrap_or(u16::MAX)
        .saturating_add(ETHERNET_BYTES)
}

fn open(url: &PortUrl, memory: &Memory) -> Result<Vec<AnyPort>, PortError> {
    let facts = interface_use::take(url, false)?;
    let promiscuous = Promiscuous::on(&facts)
        .map_err(|source| refused(url, "CAP_NET_RAW", "open a packet socket", source))?;
    let queues = url.common().queues.unwrap_or(1);
    let mut group = None;
    let mut ports = Vec::new();
    for queue in 0..queues {
        let name = queue_name(url, queue, queues);
        let port = open_queue(url, memory, (&facts, &promiscuous), name)
            .map_err(|source| refused(url, "CAP_NET_RAW", "open a packet socket", source))?;
        if queues > 1 {
            let joined = port.receive.join(group);
            let joined = joined.map_err(|source| PortError::Kernel {
                port: url.short(),
                action: "distribute the interface's frames over the queues",
                source,
            })?;
            group = Some(joined);
        }
        ports.push(port.any());
    }
    Ok(ports)
}

fn open_queue(
    url: &PortUrl,
    memory: &Memory,
    (facts, promiscuous): (&Facts, &Promiscuous),
    name: String,
) -> io::Result<Pair<PacketReceive, PacketTransmit>> {
    let own = frame_bytes(facts);
    let wanted = url.common().mtu.map_or(own, |_| url.frame_bytes());
    let largest = own.min(wanted).min(memory.frame_bytes());
    let mut capabilities = Capabilities {
        address: facts.address,
        copies: Copies::EachWay,
        completes_checksums: true,
        promiscuous: Some(promiscuous.clone()),
        far_interface: netlink_xdp::link(url.name())
            .ok()
            .and_then(|link| Some(link.far_end()?.name)),
        ..Capabilities::plain(name.clone(), largest)
    };
    if largest < own {
        capabilities.notes.push(format!(
            "the interface accepts frames of {own} bytes and this port {largest}: longer ones count as too long"
        ));
    }
    capabilities.notes.push(
        "a sender on this machine that leaves segmentation to a device sends frames longer than the MTU, \
         which count as too long: `ethtool -K IF tso off gso off` at the sender"
            .to_owned(),
    );

    let (receive, descriptors) =
        PacketReceive::open(url, memory, facts, promiscuous, largest, name.clone())?;
    capabilities.receive_descriptors = Some(descriptors);
    let (transmit, descriptors) = PacketTransmit::open(url, facts, largest, name)?;
    capabilities.transmit_descriptors = Some(descriptors);
    Ok(Pair {
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
    if socket.set(libc::SOL_SOCKET, forced, bytes).is_ok() {
        return Ok(());
    }
    socket.set(libc::SOL_SOCKET, plain, bytes)
}

/// Reason to drop a frame of this length; none if it is valid.
fn flaw(length: usize, frame_bytes: u16) -> Option<Cause> {
    if length > usize::from(frame_bytes) {
        Some(Cause::TooLong)
    } else if length < HEADER_BYTES {
        Some(Cause::Bad)
    } else {
        None
    }
}

/// Returns the error unless it is transient.
fn fault(error: io::Error) -> Option<io::Error> {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM) => None,
        _ => Some(error),
    }
}

fn stopped(port: &str, error: Option<io::Error>) -> Result<(), PortError> {
    let Some(error) = error else { return Ok(()) };
    let why = match error.raw_os_error() {
        Some(libc::ENETDOWN | libc::ENODEV | libc::ENXIO) => {
            "its interface went down or was removed".to_owned()
        }
        _ => format!("the kernel rejected frames ({error})"),
    };
    Err(PortError::Stopped {
        port: port.to_owned(),
        why,
    })
}
