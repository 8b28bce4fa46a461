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

use attachment::{AttachMode, ProgramAttachment};
use linerate_sys::af_xdp::bpf::XdpHook;
use linerate_sys::af_xdp::netlink_xdp;
use linerate_sys::af_xdp::netlink_xdp::XdpLinkInfo;
use linerate_sys::af_xdp::xsk_socket::{
    CopyPolicy, KERNEL_HEADROOM_BYTES, RingSizes, XdpSocket, XskStatistics,
};
use linerate_sys::frames::frame_memory::{FrameRegion, MemoryPlan};
use linerate_sys::interface_ioctl::LinkAttributes;
use linerate_sys::interface_offloads;
use socket_queues::SharedSocket;

use crate::capabilities::{BusyPoll, FrameCopy, PortCapabilities, XdpBinding};
use crate::error::PortError;
use crate::interface_use;
use crate::kinds::{NameRule, PortKind};
use crate::port_url::{FRAME_OVERHEAD_BYTES, PortUrl, UrlKey, ValueKind};
use crate::queue::{AnyPort, PortQueues};

pub use device_request::{DeviceRequest, SteeredFlow};
pub use socket_queues::{XdpReceive, XdpTransmit};

/// Maximum time of one busy-polling call; its maximum number of frames is `busy=`.
const BUSY_POLL_MICROSECONDS: u32 = 20;
/// Attempts to bind a queue: it stays in use for some time after its last socket was closed,
/// because the kernel cleans up later. Tens of milliseconds were measured; the attempts take a
/// second.
const BIND_ATTEMPTS: u32 = 20;
const BIND_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Description of the kind `xdp:`.
pub const KIND: PortKind = PortKind {
    scheme: "xdp",
    description: "an interface through AF_XDP: memory shared with the kernel, one socket per queue",
    name_rule: NameRule::Required("interface"),
    example: "xdp:eth1,q=0-1",
    extra_keys: &[
        UrlKey {
            name: "mode",
            value_kind: ValueKind::OneOf(&["auto", "native", "generic"]),
            description: "hook of the XDP program: in the driver (native) or behind it (generic); auto: native if that works",
        },
        UrlKey {
            name: "q",
            value_kind: ValueKind::Queues,
            description: "receive queues to use, each with a socket of its own (0)",
        },
        UrlKey {
            name: "zerocopy",
            value_kind: ValueKind::OneOf(&["auto", "yes", "no"]),
            description: "zero-copy: the device itself reads and writes the frame memory (auto: if it can)",
        },
        UrlKey {
            name: "busy",
            value_kind: ValueKind::Number {
                min: 1,
                max: 65_535,
            },
            description: "busy polling: polls the device from this process, at most so many frames per call",
        },
        UrlKey {
            name: "channels",
            value_kind: ValueKind::OneOf(&["keep", "set"]),
            description: "set: configures the device's number of queues to end with the last one in use here, and restores it afterwards (keep)",
        },
        UrlKey {
            name: "rss",
            value_kind: ValueKind::OneOf(&["keep", "set"]),
            description: "set: spreads all received packets over the queues in use here, and restores the old setting afterwards (keep)",
        },
        UrlKey {
            name: "steer",
            value_kind: ValueKind::Text("udp:7"),
            description: "flows that the device directs to the queues in use here, in turn, until the port is closed: udp:PORT, tcp:PORT, or of one IP version only (udp4:PORT), joined by +",
        },
        UrlKey {
            name: "wakeup",
            value_kind: ValueKind::Flag,
            description: "the kernel signals when it must be woken, instead of a wake-up call each time (yes)",
        },
    ],
    // The usual number of other AF_XDP programs, so that results are comparable; costs 8 MiB per
    // queue.
    descriptors: 1024,
    check,
    adapt_memory_plan,
    open,
};

/// Receive queues selected by a URL.
fn queue_range(url: &PortUrl) -> RangeInclusive<u32> {
    url.parse_queues("q")
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
    let range = queue_range(url);
    let count = range.end() - range.start() + 1;
    if let Some(requested) = url.common().queues
        && requested != count
    {
        return Err(url.bad_value(
            "queues",
            &requested.to_string(),
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
fn adapt_memory_plan(url: &PortUrl, plan: MemoryPlan) -> MemoryPlan {
    let range = queue_range(url);
    let count = range.end() - range.start() + 1;
    let frames_per_queue = plan.frames / url.common().queues.unwrap_or(1) + url.rxd() + url.txd();
    MemoryPlan {
        frames: frames_per_queue.saturating_mul(count),
        headroom: plan.headroom.max(KERNEL_HEADROOM_BYTES as u16),
        power_of_two: true,
        ..plan
    }
}

fn open(url: &PortUrl, memory: &FrameRegion) -> Result<Vec<AnyPort>, PortError> {
    let (attributes, link) = find_interface(url)?;
    let range = queue_range(url);
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
    let queues_in_use = interface_offloads::count_receive_channels(&link.name).ok();
    device_request::check_channels(url, queues_in_use)?;
    check_slot_fits_page(url, memory)?;
    let mode = match url.text("mode") {
        Some("native") => AttachMode::Native,
        Some("generic") => AttachMode::Generic,
        _ => AttachMode::Auto,
    };
    let attachment = Arc::new(ProgramAttachment::new(url, &attributes, &link, mode)?);
    let context = InterfaceContext {
        address: attributes.address,
        peer: link.veth_peer(),
        link,
        queues_in_use,
        attachment,
    };
    range
        .map(|queue| open_queue(url, memory, &context, queue))
        .collect()
}

/// Looks up the interface; fails if it is down or in use for something else.
fn find_interface(url: &PortUrl) -> Result<(LinkAttributes, XdpLinkInfo), PortError> {
    let attributes = interface_use::check_usable(url, true)?;
    let link = netlink_xdp::link_by_name(url.name()).map_err(|source| PortError::Kernel {
        port: url.short_name(),
        action: "describe the interface",
        source,
    })?;
    Ok((attributes, link))
}

fn check_slot_fits_page(url: &PortUrl, memory: &FrameRegion) -> Result<(), PortError> {
    let page = rustix::param::page_size();
    if memory.slot_bytes() <= page {
        return Ok(());
    }
    let max_mtu = page - usize::from(memory.headroom()) - usize::from(FRAME_OVERHEAD_BYTES);
    Err(url.bad_value(
        "mtu",
        &url.mtu().to_string(),
        format!("at most {max_mtu} on all ports that share the memory, because AF_XDP frames must fit in a page"),
        max_mtu.to_string(),
    ))
}

/// Properties shared by all queues of an interface.
struct InterfaceContext {
    address: Option<[u8; 6]>,
    link: XdpLinkInfo,
    /// Receive queues in use, if the driver reports them.
    queues_in_use: Option<u32>,
    peer: Option<XdpLinkInfo>,
    attachment: Arc<ProgramAttachment>,
}

/// Opens one socket on one queue.
fn open_queue(
    url: &PortUrl,
    memory: &FrameRegion,
    context: &InterfaceContext,
    queue: u32,
) -> Result<AnyPort, PortError> {
    let InterfaceContext {
        link,
        peer,
        attachment,
        ..
    } = context;
    let peer = peer.as_ref();
    let range = queue_range(url);
    let port = if range.start() == range.end() {
        url.short_name()
    } else {
        format!("{} queue {queue}", url.short_name())
    };
    let failed = |action| {
        let port = port.clone();
        move |source| PortError::Kernel {
            port,
            action,
            source,
        }
    };
    let socket =
        XdpSocket::new(memory).map_err(|source| kernel_errors::socket_error(&port, source))?;
    socket
        .register_memory()
        .map_err(|source| kernel_errors::memory_error(&port, memory, source))?;
    let (incoming, outgoing) = socket
        .map_rings(RingSizes {
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
            .map_err(|source| kernel_errors::busy_poll_error(&port, source))?;
    }
    bind(url, &socket, link, attachment.hook(), queue, &port)?;
    let zero_copy = socket
        .is_zero_copy()
        .map_err(failed("report how the socket is bound"))?;
    let napi = budget.map(|_| Arc::new(AtomicU32::new(socket.napi_id().unwrap_or(0))));
    let busy_poll = budget.zip(napi.clone());
    let max_received_bytes = memory.slot_bytes() - KERNEL_HEADROOM_BYTES as usize;
    let max_sent_bytes =
        (link.mtu as usize + usize::from(FRAME_OVERHEAD_BYTES)).min(memory.slot_bytes());
    let max_sent_bytes = u16::try_from(max_sent_bytes).unwrap_or(u16::MAX);

    // An interface in another namespace cannot be queried.
    let visible_peer = peer.filter(|_| link.peer_namespace.is_none());
    let mut notes = vec![attachment.note().to_owned()];
    notes.extend(driver_quirks::notes(&driver_quirks::QuirkContext {
        link,
        queues: range.clone(),
        queues_in_use: context.queues_in_use,
        peer,
        peer_offloads_checksums: visible_peer
            .and_then(|peer| interface_offloads::offloads_tx_checksums(&peer.name).ok()),
        tags_out_of_band: match link.kind.as_deref() {
            Some("veth") => {
                visible_peer.and_then(|peer| interface_offloads::offloads_tx_vlan(&peer.name).ok())
            }
            _ => interface_offloads::strips_rx_vlan(&link.name).ok(),
        },
        hook: attachment.hook(),
        zero_copy,
        max_received_bytes,
    }));
    let capabilities = PortCapabilities {
        address: context.address,
        receive_descriptors: Some(url.rxd()),
        transmit_descriptors: Some(url.txd()),
        copies: if zero_copy {
            FrameCopy::None
        } else {
            FrameCopy::InKernel
        },
        unmarked_partial_checksums: link.kind.as_deref() == Some("veth"),
        peer_interface: peer.map(|peer| peer.name.clone()),
        promiscuous: Some(attachment.promiscuous().clone()),
        xdp: Some(XdpBinding {
            native: attachment.hook() == XdpHook::Native,
            zero_copy,
            // A kernel without this flag rejects it.
            need_wakeup: need_wakeup(url),
            busy_poll: busy_poll.map(|(budget, napi)| BusyPoll::new(budget, napi)),
        }),
        notes,
        ..PortCapabilities::plain(
            port.clone(),
            url.frame_bytes()
                .min(max_sent_bytes)
                .min(u16::try_from(max_received_bytes).unwrap_or(u16::MAX)),
        )
    };
    let shared = Arc::new(SharedSocket {
        port: port.clone(),
        socket: Some(socket),
        attachment: Arc::clone(attachment),
        zero_copy,
        in_flight: Mutex::default(),
    });
    let mut receive = XdpReceive {
        shared: Arc::clone(&shared),
        rings: Some(Box::new(incoming)),
        napi_id: napi,
        counters: Arc::default(),
        last_statistics: XskStatistics::default(),
    };
    // Before the first frame can arrive: without buffers it would be lost.
    receive.refill(&mut memory.pool());
    shared
        .receive_from_queue(queue)
        .map_err(failed("redirect the queue's frames to the socket"))?;
    Ok(PortQueues {
        receive,
        transmit: XdpTransmit {
            shared,
            rings: Some(Box::new(outgoing)),
            max_frame_bytes: max_sent_bytes,
            counters: Arc::default(),
            last_statistics: XskStatistics::default(),
            wake_error: None,
        },
        capabilities,
    }
    .into_any())
}

/// Returns true if the kernel shall signal when it must be woken.
fn need_wakeup(url: &PortUrl) -> bool {
    url.text("wakeup").is_none_or(|text| text != "no")
}

/// Binds the socket; retries while the queue's last user is being cleaned up.
fn bind(
    url: &PortUrl,
    socket: &XdpSocket,
    link: &XdpLinkInfo,
    hook: XdpHook,
    queue: u32,
    port: &str,
) -> Result<(), PortError> {
    let copy_policy = match (url.text("zerocopy"), hook) {
        (Some("yes"), _) => CopyPolicy::ZeroCopy,
        // Trying zero-copy would take the queue away from the generic hook, which then receives
        // nothing.
        (Some("no"), _) | (_, XdpHook::Generic) => CopyPolicy::Copy,
        _ => CopyPolicy::Either,
    };
    let need_wakeup = need_wakeup(url);
    let mut attempt = NonZero::<u32>::MIN;
    let source = loop {
        match socket.bind(link.index, queue, copy_policy, need_wakeup) {
            Ok(()) => return Ok(()),
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && attempt.get() < BIND_ATTEMPTS =>
            {
                attempt = attempt.saturating_add(1);
                thread::sleep(BIND_RETRY_INTERVAL);
            }
            Err(error) => break error,
        }
    };
    Err(kernel_errors::bind_error(
        url,
        port,
        queue,
        copy_policy,
        link,
        source,
    ))
}

#[cfg(test)]
mod tests;
