//! Poll-mode frame ports, and the memory that holds the frames.
//!
//! A [`Frame`] is a handle of eight bytes into one [`FrameRegion`]. A [`Burst`] holds up to 32
//! frames. A [`FramePool`] keeps the free frames of one thread. A port is a pair of queues,
//! [`RxQueue`] and [`TxQueue`], so that each can be polled by a thread of its own. Ports are named
//! by a [`PortUrl`] and opened by [`open`]. No call of a queue blocks, allocates or takes a lock.
//!
//! ```
//! use linerate_port::{Burst, FrameRegion, PortUrl, RxQueue, TxQueue, memory_plan, open};
//!
//! let urls = ["ring:0,rxd=64".parse::<PortUrl>()?, "null:size=60".parse()?];
//! let memory = FrameRegion::new(memory_plan(&urls))?;
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
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate does not decide what happens to a frame: forwarding, packet generation and protocol
//! stacks are in other crates. `unsafe` is in `sys` only.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub use linerate_sys::af_packet::PromiscuousMode;
pub use linerate_sys::frames::burst::{BURST_FRAMES, Burst};
pub use linerate_sys::frames::frame::Frame;
pub use linerate_sys::frames::frame_memory::{
    CACHED_FRAMES_RANGE, FrameRegion, MemoryPlan, PageKind,
};
pub use linerate_sys::frames::frame_pool::FramePool;

mod queue;
pub use queue::{AnyPort, OutageInterval, PeerState, Port, PortQueues, RxQueue, TxQueue};

mod capabilities;
pub use capabilities::{BusyPoll, FrameCopy, NetInterface, PortCapabilities, XdpBinding};

mod counters;
pub use counters::{DropCause, QueueCounters, QueueTotals, add_single_writer};

mod port_url;
pub use port_url::{COMMON_KEYS, CommonOptions, PortUrl, RxDestination, UrlKey, ValueKind};

pub mod kinds;
pub use kinds::tap::TapChanges;
pub use kinds::xdp::{DeviceRequest, SteeredFlow};
pub use kinds::{AnyReceive, AnyTransmit, memory_plan, open};

mod error;
pub use error::PortError;

mod run_error;
pub use run_error::FrameRunError;

pub mod caveats;
pub mod facts;

pub use linerate_sys::frames::chunked_copy::copy_in_chunks;

mod interface_use;
pub use interface_use::{has_carrier, interface_use, with_lower_devices};
