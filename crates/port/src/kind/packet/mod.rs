//! `packet:` sends and receives on an interface of the kernel through AF_PACKET (packet(7)).
//!
//! Works with every driver and needs CAP_NET_RAW alone. The kernel's own stack still sees what arrives:
//! it answers for addresses that the interface has. Frames that others send on the interface are not
//! received, only what comes in.
//!
//! Three ways: calls that move many frames at once (`mmsg`: measured on veth it sends 17 % and receives 4 to
//! 8 % more than the rings), slots (`v=2`), and blocks to receive with slots to send (`v=3`; a block is handed
//! over within a millisecond, so not for round trips). Without `v=` frames are sent by calls, and received by
//! them too, but for two loops. One that sends them on gets slots: they carry a fifth more, because whoever
//! fills them copies the frame on its own core, and the loop saves a call. One that only counts them gets
//! blocks: between far cores they take 18 % more than calls, since the two share fewer lines of the caches,
//! and are level with them between near ones.

mod receive;
mod transmit;

use std::io;

use crate::capabilities::{Capabilities, Copies};
use crate::counters::Cause;
use crate::error::PortError;
use crate::interface::{self, refused};
use crate::kind::{Kind, Name, queue_name, unchecked};
use crate::port::{AnyPort, Pair};
use crate::sys::interface::Facts;
use crate::sys::memory::{Memory, MemoryPlan};
use crate::sys::netlink_xdp;
use crate::sys::packet::{PacketSocket, Promiscuous};
use crate::url::{ETHERNET_BYTES, Key, PortUrl, Value};
pub use receive::PacketReceive;
pub use transmit::PacketTransmit;

/// This kind's line.
pub const KIND: Kind = Kind {
    scheme: "packet",
    about: "an interface of the kernel, through AF_PACKET",
    name: Name::Needed("interface"),
    example: "packet:eth1,v=mmsg",
    keys: &[
        Key {
            name: "v",
            value: Value::OneOf(&["mmsg", "2", "3"]),
            about: "many frames a call, or rings of TPACKET_V2 or _V3; without it the faster one",
        },
        Key {
            name: "qdisc",
            value: Value::Flag,
            about: "sends through the interface's queueing discipline instead of past it",
        },
    ],
    descriptors: 1024,
    check: unchecked,
    memory: plan,
    open,
};

/// What one waiting frame costs a socket's buffer: the kernel counts a full page's half and its own
/// bookkeeping for a frame of 1500 bytes (`skb->truesize`).
const BUFFER_BYTES_PER_FRAME: u32 = 2304;
/// The shortest frame that has a source, a destination and a type.
const HEADER_BYTES: usize = 14;
/// Without `mtu=`, the interface's own decides how large frames are.
fn plan(url: &PortUrl, plan: MemoryPlan) -> MemoryPlan {
    let frame_bytes = match crate::sys::interface::facts(url.name()) {
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
    let facts = interface::take(url, false)?;
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
                action: "share the interface's frames among queues",
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
            "the interface takes frames of {own} bytes and this port {largest}: longer ones count as too long"
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

/// A buffer for this many frames; past the machine's limit where that is allowed, else up to it.
fn set_buffer(socket: &PacketSocket, receive: bool, frames: u32) -> io::Result<()> {
    // The kernel doubles what is asked for, to make room for its bookkeeping, which is counted here.
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

/// Why a frame of this length is no use.
fn flaw(length: usize, frame_bytes: u16) -> Option<Cause> {
    if length > usize::from(frame_bytes) {
        Some(Cause::TooLong)
    } else if length < HEADER_BYTES {
        Some(Cause::Bad)
    } else {
        None
    }
}

/// An error that will not pass by itself within the loop.
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
            "its interface went down or away".to_owned()
        }
        _ => format!("the kernel refused frames ({error})"),
    };
    Err(PortError::Stopped {
        port: port.to_owned(),
        why,
    })
}
