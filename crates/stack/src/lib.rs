//! The stack in the box: TCP, UDP, ICMP, ARP and IP over a poll-mode port, in user space.
//!
//! A [`Stack`] owns a port and is owned by one thread. [`Stack::turn`] lets it work: it takes in a
//! burst, runs timers and sends; sockets are [`SocketId`]s, and payload goes through closures over the
//! stack's own buffers. No call blocks, reads a clock, takes a lock, or allocates once the stack is made.
//! How it is sized and behaves is a [`Config`], in the words of embedded stacks.
//!
//! ```
//! use std::task::Poll;
//! use linerate_port::{Memory, PortUrl, open};
//! use linerate_stack::{Addressing, Config, Stack, memory_plan};
//!
//! let config = Config::profile("embedded-tuned")?;
//! let (a, b): (PortUrl, PortUrl) = ("ring:x,end=a".parse()?, "ring:x,end=b".parse()?);
//! let plan = memory_plan(&config, &a).joined(memory_plan(&config, &b));
//! let memory = Memory::new(plan)?;
//! let stack = |url, address| {
//!     let port = open(url, &memory)?.remove(0);
//!     Stack::new(port, &memory, &config, &Addressing::new(&[address])?)
//! };
//! let (mut near, mut far) = (stack(&a, "10.0.0.1/24")?, stack(&b, "10.0.0.2/24")?);
//!
//! let server = far.udp_bind("0.0.0.0:7".parse().unwrap())?;
//! let client = near.udp_bind("0.0.0.0:0".parse().unwrap())?;
//! near.udp_connect(client, "10.0.0.2:7".parse().unwrap())?;
//! let sent = near.udp_send(client, None, 5, |payload| payload.copy_from_slice(b"hello"));
//! assert!(matches!(sent, Poll::Ready(Ok(5))));
//! // The first datagram waits until the far end's Ethernet address is known.
//! for now in 1..10 {
//!     near.turn(now * 1000);
//!     far.turn(now * 1000);
//! }
//! let got = far.udp_receive(server, |payload, meta| (payload.to_vec(), meta.from.port()));
//! assert!(matches!(got, Poll::Ready(Ok((payload, _))) if payload == b"hello"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The engine of TCP is smoltcp; all else is here. Nothing here measures, waits or starts a thread.

#![forbid(unsafe_code)]

// What tests of the whole crate and of one of its rooms share names it as the former do.
#[cfg(test)]
extern crate self as linerate_stack;

pub mod config;
pub use config::{Config, MemoryAccount, MemoryItem, PROFILES};

mod addressing;
pub use addressing::{Addressing, Network};

mod socket;
pub use socket::{Echo, Meta, SocketId, SocketKind, TcpState, Unreachable};

mod stack;
pub use stack::{Stack, Turn, memory_plan, port_url, ring_url};

mod counters;
pub use counters::Counters;

mod watch;
pub use watch::Departure;

mod error;
pub use error::StackError;

mod discovery;
mod icmp;
mod link;
mod neighbors;
mod numbers;
mod pages;
mod paths;
mod problem;
mod queue;
mod recent;
mod table;
mod tcp;
mod timers;
mod udp;
mod wire;

/// A time in nanoseconds, by whichever clock the caller reads.
pub type Nanos = u64;
