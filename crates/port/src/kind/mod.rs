//! The kinds of ports, one file each and one line in the table below.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::capabilities::Interface;
use crate::counters::QueueCounters;
use crate::error::PortError;
use crate::pool::Pool;
use crate::port::{Absence, AnyPort, Partner, Receive, Transmit};
use crate::sys::burst::Burst;
use crate::sys::memory::{Memory, MemoryPlan};
use crate::url::{Key, PortUrl};

#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod null;
pub mod packet;
pub mod pcap;
pub mod ring;
pub mod shm;
pub mod tap;
pub mod xdp;

/// What stands between a kind and its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Nothing.
    None,
    /// Something that must be there: an interface, a number.
    Needed(&'static str),
    /// All the rest, commas included; the kind reads it itself and there are no keys.
    Whole(&'static str),
}

/// A kind of port.
#[derive(Debug)]
pub struct Kind {
    /// What its URLs begin with.
    pub scheme: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// What its name is.
    pub name: Name,
    /// A URL of this kind.
    pub example: &'static str,
    /// Keys beside [`crate::COMMON_KEYS`].
    pub keys: &'static [Key],
    /// Descriptors of a ring unless asked for.
    pub descriptors: u32,
    /// Checks what the keys' own values do not tell, without looking at the machine.
    pub check: fn(&PortUrl) -> Result<(), PortError>,
    /// Changes the memory that the common keys ask for into what this port needs.
    pub memory: fn(&PortUrl, MemoryPlan) -> MemoryPlan,
    /// Opens it: a port for each queue.
    pub open: fn(&PortUrl, &Memory) -> Result<Vec<AnyPort>, PortError>,
}

/// The kind's code becomes part of the loop: for kinds whose burst costs a few nanoseconds.
struct Inlined;

/// The kind's code is called: for kinds whose burst costs far more than a call. Inlined, all of them
/// together would cost the fast ones their registers (measured: 2 to 8 % of the ring's rate).
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
        /// Every kind, in the order that help lists them.
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

/// Kinds that a build with a cargo feature has: their scheme and the feature.
pub(crate) const UNBUILT: &[(&str, &str)] = &[
    #[cfg(not(feature = "dpdk"))]
    ("dpdk", "dpdk"),
];

/// Nothing to check.
pub(crate) fn unchecked(_: &PortUrl) -> Result<(), PortError> {
    Ok(())
}

/// The memory that the common keys ask for.
pub(crate) fn usual_memory(_: &PortUrl, plan: MemoryPlan) -> MemoryPlan {
    plan
}

/// The memory for all of these ports together.
#[must_use]
pub fn memory_plan(urls: &[PortUrl]) -> MemoryPlan {
    urls.iter()
        .map(PortUrl::memory_plan)
        .reduce(MemoryPlan::joined)
        .unwrap_or_default()
}

/// Opens a port over this memory: one [`AnyPort`] for each of its queues.
///
/// Ports of one run share one memory, planned by [`memory_plan`], so that frames move between them as
/// handles.
///
/// # Errors
/// Why it cannot be opened, with what to do.
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

/// The queue's part of a port's name, where there is more than one.
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
    use crate::port::Port;

    #[test]
    fn examples_are_urls_of_their_kind() {
        for kind in KINDS {
            let url: PortUrl = kind.example.parse().unwrap();
            assert_eq!(url.kind().scheme, kind.scheme);
        }
    }

    /// The guide's table has every kind, and every key of it.
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
        for key in crate::url::COMMON_KEYS {
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
