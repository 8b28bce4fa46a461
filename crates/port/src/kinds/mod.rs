//! Port kinds: one file each, and one line each in the table below.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::capabilities::Interface;
use crate::counters::QueueCounters;
use crate::error::PortError;
use crate::frame_pool::Pool;
use crate::port_url::{Key, PortUrl};
use crate::queue::{Absence, AnyPort, Partner, Receive, Transmit};
use crate::sys::burst::Burst;
use crate::sys::frame_memory::{Memory, MemoryPlan};

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
pub enum Name {
    /// No name.
    None,
    /// A name of this sort: an interface, a number.
    Needed(&'static str),
    /// The remaining URL, commas included. The kind parses it itself and there are no keys.
    Whole(&'static str),
}

/// Description of a kind of port.
#[derive(Debug)]
pub struct Kind {
    /// Scheme of its URLs, without the colon.
    pub scheme: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// Sort of name that its URLs have.
    pub name: Name,
    /// Example of a URL.
    pub example: &'static str,
    /// Keys in addition to [`crate::COMMON_KEYS`].
    pub keys: &'static [Key],
    /// Default number of descriptors of a ring.
    pub descriptors: u32,
    /// Checks relations between keys, without access to the machine.
    pub check: fn(&PortUrl) -> Result<(), PortError>,
    /// Adapts the memory plan of the common keys to the needs of this port.
    pub memory: fn(&PortUrl, MemoryPlan) -> MemoryPlan,
    /// Opens the port: one element for each queue.
    pub open: fn(&PortUrl, &Memory) -> Result<Vec<AnyPort>, PortError>,
}

/// Dispatch that inlines the kind's code into the loop: for kinds whose burst costs a few
/// nanoseconds.
struct Inlined;

/// Dispatch that calls the kind's code: for kinds whose burst costs far more than a call. Inlining
/// them all would leave the fast kinds fewer registers (measured: 2 to 8 % of the ring's rate).
struct Called;

impl Inlined {
    #[inline(always)]
    fn receive(queue: &mut impl Receive, pool: &mut Pool, burst: &mut Burst) -> usize {
        queue.receive(pool, burst)
    }

    #[inline(always)]
    fn transmit(queue: &mut impl Transmit, pool: &mut Pool, burst: &mut Burst) -> usize {
        queue.transmit(pool, burst)
    }
}

impl Called {
    #[inline(never)]
    fn receive(queue: &mut impl Receive, pool: &mut Pool, burst: &mut Burst) -> usize {
        queue.receive(pool, burst)
    }

    #[inline(never)]
    fn transmit(queue: &mut impl Transmit, pool: &mut Pool, burst: &mut Burst) -> usize {
        queue.transmit(pool, burst)
    }
}

macro_rules! kinds {
    ($($(#[$on:meta])* $variant:ident $module:ident::{$receive:ident, $transmit:ident} $way:ident)*) => {
        /// Port kinds in the order of the help text.
        pub const KINDS: &[&Kind] = &[$($(#[$on])* &$module::KIND),*];

        /// A receive queue of any kind.
        #[allow(missing_docs, reason = "each variant is a kind's own queue")]
        pub enum AnyReceive { $($(#[$on])* $variant($module::$receive)),* }

        /// A transmit queue of any kind.
        #[allow(missing_docs, reason = "each variant is a kind's own queue")]
        pub enum AnyTransmit { $($(#[$on])* $variant($module::$transmit)),* }

        impl Receive for AnyReceive {
            #[inline]
            fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
                match self { $($(#[$on])* Self::$variant(queue) => $way::receive(queue, pool, burst)),* }
            }

            fn counters(&self) -> &Arc<QueueCounters> {
                match self { $($(#[$on])* Self::$variant(queue) => queue.counters()),* }
            }

            fn refresh(&mut self) -> Result<(), PortError> {
                match self { $($(#[$on])* Self::$variant(queue) => queue.refresh()),* }
            }

            fn ended(&self) -> bool {
                match self { $($(#[$on])* Self::$variant(queue) => queue.ended()),* }
            }

            fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
                match self { $($(#[$on])* Self::$variant(queue) => queue.wait_handle()),* }
            }

            fn partner(&self) -> Option<Partner> {
                match self { $($(#[$on])* Self::$variant(queue) => queue.partner()),* }
            }

            fn absences(&self) -> Vec<Absence> {
                match self { $($(#[$on])* Self::$variant(queue) => queue.absences()),* }
            }

            #[inline]
            fn pass<T: Transmit>(&mut self, to: &mut T, most: usize) -> Option<usize> {
                match self { $($(#[$on])* Self::$variant(queue) => queue.pass(to, most)),* }
            }
        }

        impl Transmit for AnyTransmit {
            #[inline]
            fn transmit(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
                match self { $($(#[$on])* Self::$variant(queue) => $way::transmit(queue, pool, burst)),* }
            }

            #[inline]
            fn reclaim(&mut self, pool: &mut Pool) -> usize {
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
    Null null::{NullReceive, NullTransmit} Inlined
    Ring ring::{RingReceive, RingTransmit} Inlined
    Shm shm::{ShmReceive, ShmTransmit} Called
    Packet packet::{PacketReceive, PacketTransmit} Called
    Xdp xdp::{XdpReceive, XdpTransmit} Called
    Tap tap::{TapReceive, TapTransmit} Called
    Pcap pcap::{PcapReceive, PcapTransmit} Called
    #[cfg(feature = "dpdk")]
    Dpdk dpdk::{DpdkReceive, DpdkTransmit} Called
}

/// Kinds that this build lacks: their scheme, and the cargo feature that adds them.
pub(crate) const UNBUILT: &[(&str, &str)] = &[
    #[cfg(not(feature = "dpdk"))]
    ("dpdk", "dpdk"),
];

/// Accepts any URL.
pub(crate) fn unchecked(_: &PortUrl) -> Result<(), PortError> {
    Ok(())
}

/// Returns the plan of the common keys unchanged.
pub(crate) fn usual_memory(_: &PortUrl, plan: MemoryPlan) -> MemoryPlan {
    plan
}

/// Memory plan for all of these ports together.
#[must_use]
pub fn memory_plan(urls: &[PortUrl]) -> MemoryPlan {
    urls.iter()
        .map(PortUrl::memory_plan)
        .reduce(MemoryPlan::joined)
        .unwrap_or_default()
}

/// Opens a port over `memory`: one [`AnyPort`] for each of its queues.
///
/// Ports of one run share one memory, planned by [`memory_plan`], so that frames move between them
/// as handles.
///
/// # Errors
/// The reason why the port cannot be opened, with the next step.
pub fn open(url: &PortUrl, memory: &Memory) -> Result<Vec<AnyPort>, PortError> {
    let needed = url.memory_plan();
    let fits = needed.frame_bytes <= memory.frame_bytes()
        && (!needed.power_of_two || memory.slot_bytes().is_power_of_two());
    if !fits {
        return Err(PortError::MemoryTooSmall {
            port: url.short(),
            needed: needed.slot_bytes(),
            has: memory.slot_bytes(),
        });
    }
    let mut ports = (url.kind().open)(url, memory)?;
    if let Some(name) = url.interface() {
        for port in &mut ports {
            port.capabilities.interface = Interface::named(name);
        }
    }
    Ok(ports)
}

/// Name of a port, with the queue if there are several.
pub(crate) fn queue_name(url: &PortUrl, queue: u32, queues: u32) -> String {
    if queues > 1 {
        format!("{} queue {queue}", url.short())
    } else {
        url.short()
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
    fn the_guide_knows_every_key() {
        const GUIDE: &str = include_str!("../../../../docs/GUIDE.md");
        let has = |text: &str, key: &str| {
            text.contains(&format!("`{key}`")) || text.contains(&format!("`{key}="))
        };
        for kind in KINDS {
            let begin = format!("| `{}:", kind.scheme);
            let row = GUIDE.lines().find(|line| line.starts_with(&begin));
            let row = row.unwrap_or_else(|| panic!("no row of {}", kind.scheme));
            for key in kind.keys {
                assert!(has(row, key.name), "{} of {}", key.name, kind.scheme);
            }
        }
        for key in crate::port_url::COMMON_KEYS {
            assert!(has(GUIDE, key.name), "{}", key.name);
        }
    }

    #[test]
    fn a_memory_that_is_too_small_is_named() {
        let memory = Memory::new(MemoryPlan::default()).unwrap();
        let url: PortUrl = "ring:0,mtu=9000".parse().unwrap();
        let refused = open(&url, &memory).map(|_| ()).unwrap_err();
        assert!(matches!(refused, PortError::MemoryTooSmall { .. }));
        let memory = Memory::new(memory_plan(std::slice::from_ref(&url))).unwrap();
        let ports = open(&url, &memory).unwrap();
        assert_eq!(ports[0].capabilities().frame_bytes, 9018);
    }
}
