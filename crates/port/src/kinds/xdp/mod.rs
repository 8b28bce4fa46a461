//! `xdp:` moves frames through AF_XDP: the kernel and this process share the frame memory and four
//! rings, and a small XDP program redirects the frames of each receive queue to the socket of that
//! queue.
//!
//! The program is a few BPF instructions that this crate contains as numbers, so no compiler is
//! needed. A BPF link keeps it on the interface while the process lives; after its end, also by
//! `kill -9`, the interface is unchanged. All frames that arrive on a queue with a socket are
//! received here, also ARP, and none of them reaches the kernel's own stack. Other queues are not
//! affected.

mod attachment;
mod device_request;
mod driver_quirks;
mod kernel_errors;
mod socket_queues;

use std::num::NonZero;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::capabilities::{BusyPoll, Capabilities, Copies, XdpBinding};
use crate::error::PortError;
use crate::interface_use;
use crate::kinds::{Kind, Name};
use crate::port_url::{ETHERNET_BYTES, Key, PortUrl, Value};
use crate::queue::{AnyPort, Pair};
use crate::sys::bpf::Hook;
use crate::sys::frame_memory::{Memory, MemoryPlan};
use crate::sys::interface_ioctl::Facts;
use crate::sys::interface_offloads;
use crate::sys::netlink_xdp::{self, Link};
use crate::sys::xsk_socket::{Copying, KERNEL_HEADROOM_BYTES, RingSizes, Statistics, XdpSocket};

use attachment::{Attachment, Mode};
pub use device_request::{DeviceWish, Steered};
use socket_queues::Shared;
pub use socket_queues::{XdpReceive, XdpTransmit};

/// Maximum time of one busy-polling call; its maximum number of frames is `busy=`.
const BUSY_POLL_MICROSECONDS: u32 = 20;
/// Attempts to bind a queue: it stays in use for some time after its last socket was closed,
/// because the kernel cleans up later. Tens of milliseconds were measured; the attempts take a
/// second.
const BIND_ATTEMPTS: u32 = 20;
const BIND_PAUSE: Duration = Duration::from_millis(50);

/// Description of the kind `xdp:`.
pub const KIND: Kind = Kind {
    scheme: "xdp",
    about: "an interface through AF_XDP: memory shared with the kernel, one socket per queue",
    name: Name::Needed("interface"),
    example: "xdp:eth1,q=0-1",
    keys: &[
        Key {
            name: "mode",
            value: Value::OneOf(&["auto", "native", "generic"]),
            about: "hook of the XDP program: in the driver (native) or behind it (generic); auto: native if that works",
        },
        Key {
            name: "q",
            value: Value::Queues,
            about: "receive queues to use, each with a socket of its own (0)",
        },
        Key {
            name: "zerocopy",
            value: Value::OneOf(&["auto", "yes", "no"]),
            about: "zero-copy: the device itself reads and writes the frame memory (auto: if it can)",
        },
        Key {
            name: "busy",
            value: Value::Number {
                min: 1,
                max: 65_535,
            },
            about: "busy polling: polls the device from this process, at most so many frames per call",
        },
        Key {
            name: "channels",
            value: Value::OneOf(&["keep", "set"]),
            about: "set: configures the device's number of queues to end with the last one in use here, and restores it afterwards (keep)",
        },
        Key {
            name: "rss",
            value: Value::OneOf(&["keep", "set"]),
            about: "set: spreads all received packets over the queues in use here, and restores the old setting afterwards (keep)",
        },
        Key {
            name: "steer",
            value: Value::Text("udp:7"),
            about: "flows that the device directs to the queues in use here, in turn, until the port is closed: udp:PORT, tcp:PORT, or of one IP version only (udp4:PORT), joined by +",
        },
        Key {
            name: "wakeup",
            value: Value::Flag,
            about: "the kernel signals when it must be woken, instead of a wake-up call each time (yes)",
        },
    ],
    // The usual number of other AF_XDP programs, so that results are comparable; costs 8 MiB per
    // queue.
    descriptors: 1024,
    check,
    memory,
    open,
};

/// Receive queues selected by a URL.
fn queues(url: &PortUrl) -> RangeInclusive<u32> {
    url.queues("q")
        .unwrap_or(0..=url.common().queues.unwrap_or(1) - 1)
}

fn check(url: &PortUrl) -> Result<(), PortError> {
    device_request::check_flows(url)?;
    for (key, value) in [("rxd", url.common().rxd), ("txd", url.common().txd)] {
        if let Some(value) = value
            && !value.is_power_of_two()
        {
            return Err(url.bad_value(
                key,
                &value.to_string(),
                "a power of two, as AF_XDP's rings need it",
                value.next_power_of_two().to_string(),
            ));
        }
    }
    let range = queues(url);
    let count = range.end() - range.start() + 1;
    if let Some(asked) = url.common().queues
        && asked != count
    {
        return Err(url.bad_value(
            "queues",
            &asked.to_string(),
            format!("as many as `q=` selects, {count}"),
            count.to_string(),
        ));
    }
    if url.text("zerocopy") == Some("yes") && url.text("mode") == Some("generic") {
        return Err(url.bad_value(
            "zerocopy",
            "yes",
            "possible with `mode=generic`, where the kernel always copies",
            "no",
        ));
    }
    Ok(())
}

/// Plans twice the buffers of each ring: on receive, one ring of buffers waits for frames while
/// another is processed; on transmit, one ring of frames waits while another is being sent.
fn memory(url: &PortUrl, plan: MemoryPlan) -> MemoryPlan {
    let range = queues(url);
    let count = range.end() - range.start() + 1;
    let each = plan.frames / url.common().queues.unwrap_or(1) + url.rxd() + url.txd();
    MemoryPlan {
        frames: each.saturating_mul(count),
        headroom: plan.headroom.max(KERNEL_HEADROOM_BYTES as u16),
        power_of_two: true,
        ..plan
    }
}

fn open(url: &PortUrl, memory: &Memory) -> Result<Vec<AnyPort>, PortError> {
    let (facts, link) = find(url)?;
    let range = queues(url);
    if *range.end() >= link.rx_queues {
        let last = link.rx_queues.saturating_sub(1);
        let key = if url.text("q").is_some() {
            "q"
        } else {
            "queues"
        };
        return Err(url.bad_value(
            key,
            &format!("{}-{}", range.start(), range.end()),
            format!("among the receive queues of {}, 0 to {last}", link.name),
            last.to_string(),
        ));
    }
    let in_use = interface_offloads::receive_channels(&link.name).ok();
    device_request::check(url, in_use)?;
    fits_a_page(url, memory)?;
    let mode = match url.text("mode") {
        Some("native") => Mode::Native,
        Some("generic") => Mode::Generic,
        _ => Mode::Auto,
    };
    let attachment = Arc::new(Attachment::new(url, &facts, &link, mode)?);
    let place = Place {
        address: facts.address,
        far: link.far_end(),
        link,
        in_use,
        attachment,
    };
    range
        .map(|queue| open_queue(url, memory, &place, queue))
        .collect()
}

/// Looks up the interface; fails if it is down or in use for something else.
fn find(url: &PortUrl) -> Result<(Facts, Link), PortError> {
    let facts = interface_use::take(url, true)?;
    let link = netlink_xdp::link(url.name()).map_err(|source| PortError::Kernel {
        port: url.short(),
        action: "describe the interface",
        source,
    })?;
    Ok((facts, link))
}

fn fits_a_page(url: &PortUrl, memory: &Memory) -> Result<(), PortError> {
    let page = rustix::param::page_size();
    if memory.slot_bytes() <= page {
        return Ok(());
    }
    let most = page - usize::from(memory.headroom()) - usize::from(ETHERNET_BYTES);
    Err(url.bad_value(
        "mtu",
        &url.mtu().to_string(),
        format!("at most {most} on all ports that share the memory, because AF_XDP frames must fit in a page"),
        most.to_string(),
    ))
}

/// Properties shared by all queues of an interface.
struct Place {
    address: Option<[u8; 6]>,
    link: Link,
    /// Receive queues in use, if the driver reports them.
    in_use: Option<u32>,
    far: Option<Link>,
    attachment: Arc<Attachment>,
}

/// Opens one socket on one queue.
fn open_queue(
    url: &PortUrl,
    memory: &Memory,
    place: &Place,
    queue: u32,
) -> Result<AnyPort, PortError> {
    let Place {
        link,
        far,
        attachment,
        ..
    } = place;
    let far = far.as_ref();
    let range = queues(url);
    let port = if range.start() == range.end() {
        url.short()
    } else {
        format!("{} queue {queue}", url.short())
    };
    let failed = |action| {
        let port = port.clone();
        move |source| PortError::Kernel {
            port,
            action,
            source,
        }
    };
    let socket = XdpSocket::new(memory).map_err(|source| kernel_errors::socket(&port, source))?;
    socket
        .register_memory()
        .map_err(|source| kernel_errors::memory(&port, memory, source))?;
    let (incoming, outgoing) = socket
        .rings(RingSizes {
            // Twice the size, so that a slow reader appears as a full ring and not as a lack of
            // buffers.
            fill: 2 * url.rxd(),
            completion: url.txd(),
            receive: url.rxd(),
            transmit: url.txd(),
        })
        .map_err(failed("create the rings"))?;
    let budget = url.number("busy");
    if let Some(budget) = budget {
        socket
            .prefer_busy_poll(BUSY_POLL_MICROSECONDS, budget)
            .map_err(|source| kernel_errors::busy_poll(&port, source))?;
    }
    bind(url, &socket, link, attachment.hook(), queue, &port)?;
    let zero_copy = socket
        .is_zero_copy()
        .map_err(failed("report how the socket is bound"))?;
    let napi = budget.map(|_| Arc::new(AtomicU32::new(socket.napi().unwrap_or(0))));
    let busy_poll = budget.zip(napi.clone());
    let longest_received = memory.slot_bytes() - KERNEL_HEADROOM_BYTES as usize;
    let longest_sent = (link.mtu as usize + usize::from(ETHERNET_BYTES)).min(memory.slot_bytes());
    let longest_sent = u16::try_from(longest_sent).unwrap_or(u16::MAX);

    // An interface in another namespace cannot be queried.
    let seen = far.filter(|_| link.peer_namespace.is_none());
    let mut notes = vec![attachment.note().to_owned()];
    notes.extend(driver_quirks::notes(&driver_quirks::Situation {
        link,
        queues: range.clone(),
        in_use: place.in_use,
        far,
        far_leaves_checksums: seen
            .and_then(|far| interface_offloads::leaves_checksums(&far.name).ok()),
        tags_apart: match link.kind.as_deref() {
            Some("veth") => seen.and_then(|far| interface_offloads::leaves_tags(&far.name).ok()),
            _ => interface_offloads::takes_tags(&link.name).ok(),
        },
        hook: attachment.hook(),
        zero_copy,
        longest_received,
    }));
    let capabilities = Capabilities {
        address: place.address,
        receive_descriptors: Some(url.rxd()),
        transmit_descriptors: Some(url.txd()),
        copies: if zero_copy {
            Copies::None
        } else {
            Copies::InKernel
        },
        leaves_checksums: link.kind.as_deref() == Some("veth"),
        far_interface: far.map(|far| far.name.clone()),
        promiscuous: Some(attachment.promiscuous().clone()),
        xdp: Some(XdpBinding {
            native: attachment.hook() == Hook::Native,
            zero_copy,
            // A kernel without this flag rejects it.
            need_wakeup: need_wakeup(url),
            busy_poll: busy_poll.map(|(budget, napi)| BusyPoll::new(budget, napi)),
        }),
        notes,
        ..Capabilities::plain(
            port.clone(),
            url.frame_bytes()
                .min(longest_sent)
                .min(u16::try_from(longest_received).unwrap_or(u16::MAX)),
        )
    };
    let shared = Arc::new(Shared {
        port: port.clone(),
        socket: Some(socket),
        attachment: Arc::clone(attachment),
        zero_copy,
        left: Mutex::default(),
    });
    let mut receive = XdpReceive {
        shared: Arc::clone(&shared),
        rings: Some(Box::new(incoming)),
        napi,
        counters: Arc::default(),
        seen: Statistics::default(),
    };
    // Before the first frame can arrive: without buffers it would be lost.
    receive.refill(&mut memory.pool());
    shared
        .feed(queue)
        .map_err(failed("redirect the queue's frames to the socket"))?;
    Ok(Pair {
        receive,
        transmit: XdpTransmit {
            shared,
            rings: Some(Box::new(outgoing)),
            longest: longest_sent,
            counters: Arc::default(),
            seen: Statistics::default(),
            failed: None,
        },
        capabilities,
    }
    .any())
}

/// Returns true if the kernel shall signal when it must be woken.
fn need_wakeup(url: &PortUrl) -> bool {
    url.text("wakeup").is_none_or(|text| text != "no")
}

/// Binds the socket; retries while the queue's last user is being cleaned up.
fn bind(
    url: &PortUrl,
    socket: &XdpSocket,
    link: &Link,
    hook: Hook,
    queue: u32,
    port: &str,
) -> Result<(), PortError> {
    let copying = match (url.text("zerocopy"), hook) {
        (Some("yes"), _) => Copying::ZeroCopy,
        // Trying zero-copy would take the queue away from the generic hook, which then receives
        // nothing.
        (Some("no"), _) | (_, Hook::Generic) => Copying::Copy,
        _ => Copying::Either,
    };
    let need_wakeup = need_wakeup(url);
    let mut attempt = NonZero::<u32>::MIN;
    let source = loop {
        match socket.bind(link.index, queue, copying, need_wakeup) {
            Ok(()) => return Ok(()),
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && attempt.get() < BIND_ATTEMPTS =>
            {
                attempt = attempt.saturating_add(1);
                thread::sleep(BIND_PAUSE);
            }
            Err(error) => break error,
        }
    };
    Err(kernel_errors::bind(url, port, queue, copying, link, source))
}

#[cfg(test)]
mod tests;
