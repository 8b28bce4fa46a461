//! User-space network stack over a poll-mode port: TCP, UDP, ICMP, ARP, IPv4 and IPv6.
//!
//! A [`Stack`] owns a port and belongs to one thread. [`Stack::poll`] does its work: it receives a
//! burst, runs timers and sends. Sockets are [`SocketId`]s, and payload is read and written by
//! closures over the stack's own buffers. No call blocks, reads a clock, takes a lock or, once the
//! stack exists, allocates memory. A [`StackConfig`] sets sizes and behaviour, with the settings
//! that embedded stacks have.
//!
//! ```
//! use std::task::Poll;
//! use linerate_port::{FrameRegion, PortUrl, open};
//! use linerate_stack::{Stack, StackAddressing, StackConfig, memory_plan};
//!
//! let config = StackConfig::profile("embedded-tuned")?;
//! let (a, b): (PortUrl, PortUrl) = ("ring:x,end=a".parse()?, "ring:x,end=b".parse()?);
//! let plan = memory_plan(&config, &a).combine(memory_plan(&config, &b));
//! let memory = FrameRegion::new(plan)?;
//! let stack = |url, address| {
//!     let port = open(url, &memory)?.remove(0);
//!     Stack::new(port, &memory, &config, &StackAddressing::new(&[address])?)
//! };
//! let (mut host_a, mut host_b) = (stack(&a, "10.0.0.1/24")?, stack(&b, "10.0.0.2/24")?);
//!
//! let server = host_b.udp_bind("0.0.0.0:7".parse().unwrap())?;
//! let client = host_a.udp_bind("0.0.0.0:0".parse().unwrap())?;
//! host_a.udp_connect(client, "10.0.0.2:7".parse().unwrap())?;
//! let sent = host_a.udp_send(client, None, 5, |payload| payload.copy_from_slice(b"hello"));
//! assert!(matches!(sent, Poll::Ready(Ok(5))));
//! // The first datagram waits until ARP has resolved the server's Ethernet address.
//! for now in 1..10 {
//!     host_a.poll(now * 1000);
//!     host_b.poll(now * 1000);
//! }
//! let got = host_b.udp_receive(server, |payload, meta| (payload.to_vec(), meta.from.port()));
//! assert!(matches!(got, Poll::Ready(Ok((payload, _))) if payload == b"hello"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! smoltcp implements the TCP state machine; the rest is here. This crate never measures, waits or
//! starts a thread.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod path_mtu_cache;

// `tests/common` is shared by integration tests and unit tests, and names this crate as the former
// do.
#[cfg(test)]
extern crate self as linerate_stack;

pub mod config;
pub use config::{PROFILES, StackConfig};

mod addressing;
pub use addressing::{InterfaceAddress, StackAddressing};

mod socket;
pub use socket::{DatagramMeta, EchoResult, SocketId, SocketKind, TcpState, UnreachableReason};

mod stack;
pub use stack::{PollOutcome, Stack, memory_plan, port_url, ring_url};

mod budget;
pub use budget::{MemoryItem, MemoryUsage};

mod counters;
pub use counters::Counters;

mod stage_watch;
pub use stage_watch::FrameDeparture;

mod error;
pub use error::StackError;

mod icmp;
mod index_queue;
mod index_table;
mod ip_ids;
mod link;
mod neighbors;
mod parameter_problem;
mod prefault;
mod rate_limit;
mod recent_flows;
mod segmentation;
mod tcp;
mod timer_heap;
mod udp;
mod wire;

/// Time in nanoseconds, on the clock that the caller reads.
pub type Nanos = u64;
