//! Poll-mode frame ports, and the memory that holds the frames.
//!
//! A [`Frame`] is a handle of eight bytes into one [`Memory`]. A [`Burst`] holds up to 32 frames. A
//! [`Pool`] keeps the free frames of one thread. A port is a pair of queues, [`Receive`] and
//! [`Transmit`], so that each can be polled by a thread of its own. Ports are named by a
//! [`PortUrl`] and opened by [`open`]. No call of a queue blocks, allocates or takes a lock.
//!
//! ```
//! use linerate_port::{Burst, Memory, PortUrl, Receive, Transmit, memory_plan, open};
//!
//! let urls = ["ring:0,rxd=64".parse::<PortUrl>()?, "null:size=60".parse()?];
//! let memory = Memory::new(memory_plan(&urls))?;
//! let mut ring = open(&urls[0], &memory)?.remove(0);
//! let mut null = open(&urls[1], &memory)?.remove(0);
//!
//! let mut pool = memory.pool();
//! let mut burst = Burst::new();
//! null.receive.receive(&mut pool, &mut burst);
//! for frame in burst.frames_mut() {
//!     memory.bytes_mut(frame)[..6].fill(0xff);
//! }
//! ring.transmit.transmit(&mut pool, &mut burst);
//! ring.receive.receive(&mut pool, &mut burst);
//! assert_eq!(burst.len(), 32);
//! assert_eq!(ring.receive.counters().read().bytes, 32 * 60);
//! pool.free_all(&mut burst);
//! # Ok::<(), linerate_port::PortError>(())
//! ```
//!
//! This crate does not decide what happens to a frame: forwarding, packet generation and protocol
//! stacks are in other crates. `unsafe` is in `sys` only.
#![warn(missing_docs)]

mod sys;

pub use sys::burst::{BURST_FRAMES, Burst};
pub use sys::frame::Frame;
pub use sys::memory::{CACHED_FRAMES, Memory, MemoryPlan, Pages};
pub use sys::packet::Promiscuous;

mod pool;
pub use pool::Pool;

mod port;
pub use port::{Absence, AnyPort, Pair, Partner, Port, Receive, Transmit};

mod capabilities;
pub use capabilities::{BusyPoll, Capabilities, Copies, Interface, XdpBinding};

mod counters;
pub use counters::{Cause, QueueCounters, QueueTotals};

mod url;
pub use url::{COMMON_KEYS, Common, Key, Onward, PortUrl, Value};

pub mod kind;
pub use kind::tap::FoundTap;
pub use kind::xdp::{DeviceWish, Steered};
pub use kind::{AnyReceive, AnyTransmit, memory_plan, open};

mod error;
pub use error::PortError;

pub mod checksum;
mod copy;
pub use copy::copy;
pub mod pcap;
pub mod vnet;

mod interface;
pub use interface::{has_carrier, in_use, with_lower};

mod cursor;
