//! Port kinds: one file each, and one line each in the table below.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::{FrameRegion, MemoryPlan};
use linerate_sys::frames::frame_pool::FramePool;

use crate::capabilities::NetInterface;
use crate::counters::QueueCounters;
use crate::error::PortError;
use crate::port_url::{PortUrl, UrlKey};
use crate::queue::{AnyPort, OutageInterval, PeerState, RxQueue, TxQueue};

#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod null;
pub mod packet;
pub mod pcap;
pub mod ring;
pub mod shm;
pub mod tap;
pub mod xdp;

/// Name that a kind of port requires in its URLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// No name.
    None,
    /// A name of this sort: an interface, a number.
    Required(&'static str),
    /// The remaining URL, commas included. The kind parses it itself and there are no keys.
    RestOfUrl(&'static str),
}

/// Description of a kind of port.
#[derive(Debug)]
pub struct PortKind {
    /// Scheme of its URLs, without the colon.
    pub scheme: &'static str,
    /// Description in one line.
    pub description: &'static str,
    /// Sort of name that its URLs have.
    pub name_rule: NameRule,
    /// Example of a URL.
    pub example: &'static str,
    /// Keys in addition to [`crate::COMMON_KEYS`].
    pub extra_keys: &'static [UrlKey],
    /// Default number of descriptors of a ring.
    pub descriptors: u32,
    /// Checks relations between keys, without access to the machine.
    pub check: fn(&PortUrl) -> Result<(), PortError>,
    /// Adapts the memory plan of the common keys to the needs of this port.
    pub adapt_memory_plan: fn(&PortUrl, MemoryPlan) -> MemoryPlan,
    /// Opens the port: one element for each queue.
    pub open: fn(&PortUrl, &FrameRegion) -> Result<Vec<AnyPort>, PortError>,
}

/// Dispatch that inlines the kind's code into the loop: for kinds whose burst costs a few
/// nanoseconds.
struct InlinedDispatch;

/// Dispatch that calls the kind's code: for kinds whose burst costs far more than a call. Inlining
/// them all would leave the fast kinds fewer registers (measured: 2 to 8 % of the ring's rate).
struct CalledDispatch;

impl InlinedDispatch {
    #[inline(always)]
    fn receive(queue: &mut impl RxQueue, pool: &mut FramePool, burst: &mut Burst) -> usize {
        queue.receive(pool, burst)
    }

    #[inline(always)]
    fn transmit(queue: &mut impl TxQueue, pool: &mut FramePool, burst: &mut Burst) -> usize {
        queue.transmit(pool, burst)
    }
}

impl CalledDispatch {
    #[inline(never)]
    fn receive(queue: &mut impl RxQueue, pool: &mut FramePool, burst: &mut Burst) -> usize {
        queue.receive(pool, burst)
    }

    #[inline(never)]
    fn transmit(queue: &mut impl TxQueue, pool: &mut FramePool, burst: &mut Burst) -> usize {
        queue.transmit(pool, burst)
    }
}

macro_rules! kinds {
    ($($(#[$on:meta])* $variant:ident $module:ident::{$receive:ident, $transmit:ident} $dispatch:ident)*) => {
        /// Port kinds in the order of the help text.
        pub const KINDS: &[&PortKind] = &[$($(#[$on])* &$module::KIND),*];

        /// A receive queue of any kind.
        #[allow(missing_docs, reason = "each variant is a kind's own queue")]
        pub enum AnyReceive { $($(#[$on])* $variant($module::$receive)),* }

        /// A transmit queue of any kind.
        #[allow(missing_docs, reason = "each variant is a kind's own queue")]
        pub enum AnyTransmit { $($(#[$on])* $variant($module::$transmit)),* }

        impl RxQueue for AnyReceive {
            #[inline]
            fn receive(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
                match self { $($(#[$on])* Self::$variant(queue) => $dispatch::receive(queue, pool, burst)),* }
            }

            fn counters(&self) -> &Arc<QueueCounters> {
                match self { $($(#[$on])* Self::$variant(queue) => queue.counters()),* }
            }

            fn refresh(&mut self) -> Result<(), PortError> {
                match self { $($(#[$on])* Self::$variant(queue) => queue.refresh()),* }
            }

            fn is_exhausted(&self) -> bool {
                match self { $($(#[$on])* Self::$variant(queue) => queue.is_exhausted()),* }
            }

            fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
                match self { $($(#[$on])* Self::$variant(queue) => queue.wait_handle()),* }
            }

            fn peer_state(&self) -> Option<PeerState> {
                match self { $($(#[$on])* Self::$variant(queue) => queue.peer_state()),* }
            }

            fn peer_outages(&self) -> Vec<OutageInterval> {
                match self { $($(#[$on])* Self::$variant(queue) => queue.peer_outages()),* }
            }

            #[inline]
            fn forward_direct<T: TxQueue>(&mut self, to: &mut T, max_frames: usize) -> Option<usize> {
                match self { $($(#[$on])* Self::$variant(queue) => queue.forward_direct(to, max_frames)),* }
            }
        }

        impl TxQueue for AnyTransmit {
            #[inline]
            fn transmit(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
                match self { $($(#[$on])* Self::$variant(queue) => $dispatch::transmit(queue, pool, burst)),* }
            }

            #[inline]
            fn reclaim(&mut self, pool: &mut FramePool) -> usize {
                match self { $($(#[$on])* Self::$variant(queue) => queue.reclaim(pool)),* }
            }

            fn counters(&self) -> &Arc<QueueCounters> {
                match self { $($(#[$on])* Self::$variant(queue) => queue.counters()),* }
            }

            fn refresh(&mut self) -> Result<(), PortError> {
                match self { $($(#[$on])* Self::$variant(queue) => queue.refresh()),* }
            }

            #[cfg(feature = "dpdk")]
            fn as_dpdk(&mut self) -> Option<&mut dpdk::DpdkTransmit> {
                match self { $($(#[$on])* Self::$variant(queue) => queue.as_dpdk()),* }
            }
        }

        $(
            $(#[$on])*
            impl From<$module::$receive> for AnyReceive {
                fn from(queue: $module::$receive) -> Self {
                    Self::$variant(queue)
                }
            }

            $(#[$on])*
            impl From<$module::$transmit> for AnyTransmit {
                fn from(queue: $module::$transmit) -> Self {
                    Self::$variant(queue)
                }
            }
        )*
    };
}

kinds! {
    Null null::{NullReceive, NullTransmit} InlinedDispatch
    Ring ring::{RingReceive, RingTransmit} InlinedDispatch
    Shm shm::{ShmReceive, ShmTransmit} CalledDispatch
    Packet packet::{PacketReceive, PacketTransmit} CalledDispatch
    Xdp xdp::{XdpReceive, XdpTransmit} CalledDispatch
    Tap tap::{TapReceive, TapTransmit} CalledDispatch
    Pcap pcap::{PcapReceive, PcapTransmit} CalledDispatch
    #[cfg(feature = "dpdk")]
    Dpdk dpdk::{DpdkReceive, DpdkTransmit} CalledDispatch
}

/// Kinds that this build lacks: their scheme, and the cargo feature that adds them.
pub(crate) const UNBUILT_SCHEMES: &[(&str, &str)] = &[
    #[cfg(not(feature = "dpdk"))]
    ("dpdk", "dpdk"),
];

/// Accepts any URL.
pub(crate) fn no_check(_: &PortUrl) -> Result<(), PortError> {
    Ok(())
}

/// Returns the plan of the common keys unchanged.
pub(crate) fn common_memory_plan(_: &PortUrl, plan: MemoryPlan) -> MemoryPlan {
    plan
}

/// Memory plan for all of these ports together.
#[must_use]
pub fn memory_plan(urls: &[PortUrl]) -> MemoryPlan {
    urls.iter()
        .map(PortUrl::memory_plan)
        .reduce(MemoryPlan::combine)
        .unwrap_or_default()
}

/// Opens a port over `memory`: one [`AnyPort`] for each of its queues.
///
/// Ports of one run share one memory, planned by [`memory_plan`], so that frames move between them
/// as handles.
///
/// # Errors
/// The reason why the port cannot be opened, with the next step.
pub fn open(url: &PortUrl, memory: &FrameRegion) -> Result<Vec<AnyPort>, PortError> {
    let needed = url.memory_plan();
    let fits = needed.frame_bytes <= memory.frame_bytes()
        && (!needed.power_of_two || memory.slot_bytes().is_power_of_two());
    if !fits {
        return Err(PortError::MemoryTooSmall {
            port: url.short_name(),
            needed: needed.slot_bytes(),
            has: memory.slot_bytes(),
        });
    }
    let mut ports = (url.kind().open)(url, memory)?;
    if let Some(name) = url.interface() {
        for port in &mut ports {
            port.capabilities.interface = NetInterface::from_name(name);
        }
    }
    Ok(ports)
}

/// Returns the error that stopped a queue, if there is one; those of `gone` occur when the interface
/// is down or was removed.
pub(crate) fn check_stopped(
    port: &str,
    error: Option<io::Error>,
    gone: &[i32],
) -> Result<(), PortError> {
    let Some(error) = error else { return Ok(()) };
    let reason = match error.raw_os_error() {
        Some(number) if gone.contains(&number) => {
            "its interface went down or was removed".to_owned()
        }
        _ => format!("the kernel rejected frames ({error})"),
    };
    Err(PortError::Stopped {
        port: port.to_owned(),
        reason,
    })
}

/// Name of a port, with the queue if there are several.
pub(crate) fn queue_name(url: &PortUrl, queue: u32, queues: u32) -> String {
    if queues > 1 {
        format!("{} queue {queue}", url.short_name())
    } else {
        url.short_name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Port;

    #[test]
    fn examples_are_urls_of_their_kind() {
        for kind in KINDS {
            let url: PortUrl = kind.example.parse().unwrap();
            assert_eq!(url.kind().scheme, kind.scheme);
        }
    }

    /// The table in the guide has all kinds, and all their keys.
    #[test]
    fn the_guide_lists_every_key() {
        const GUIDE: &str = include_str!("../../../../docs/GUIDE.md");
        let has = |text: &str, key: &str| {
            text.contains(&format!("`{key}`")) || text.contains(&format!("`{key}="))
        };
        for kind in KINDS {
            let begin = format!("| `{}:", kind.scheme);
            let row = GUIDE.lines().find(|line| line.starts_with(&begin));
            let row = row.unwrap_or_else(|| panic!("no row of {}", kind.scheme));
            // A row with a link has its keys in a table of its own.
            let row = if row.contains("](#") { GUIDE } else { row };
            for key in kind.extra_keys {
                assert!(has(row, key.name), "{} of {}", key.name, kind.scheme);
            }
        }
        for key in crate::port_url::COMMON_KEYS {
            assert!(has(GUIDE, key.name), "{}", key.name);
        }
    }

    #[test]
    fn a_memory_that_is_too_small_is_named() {
        let memory = FrameRegion::new(MemoryPlan::default()).unwrap();
        let url: PortUrl = "ring:0,mtu=9000".parse().unwrap();
        let error = open(&url, &memory).map(|_| ()).unwrap_err();
        assert!(matches!(error, PortError::MemoryTooSmall { .. }));
        let memory = FrameRegion::new(memory_plan(std::slice::from_ref(&url))).unwrap();
        let ports = open(&url, &memory).unwrap();
        assert_eq!(ports[0].capabilities().frame_bytes, 9018);
    }
}
