//! `shm:` joins two processes by memory: what one sends, the other receives.
//!
//! One says `role=server` and waits at a socket in `$XDG_RUNTIME_DIR/linerate`, which is a file and so
//! reaches across network namespaces; the other comes to it and gets the memory. In which order they
//! start does not matter. Each side copies a frame once, in or out.
//!
//! Either side may end at any time, by `kill -9` too. The other keeps the memory and goes on; whoever
//! comes next in the place of the dead gets the memory from the survivor, with all frames in it. What the
//! dead one had in its hands is lost: at most a burst.

mod link;
mod rendezvous;

use std::sync::Arc;

use crate::capabilities::{Capabilities, Copies};
use crate::counters::{Cause, QueueCounters};
use crate::error::PortError;
use crate::kind::{Kind, Name, queue_name, usual_memory};
use crate::pool::Pool;
use crate::port::{Absence, AnyPort, Pair, Receive, Transmit};
use crate::sys::burst::Burst;
use crate::sys::memory::Memory;
use crate::sys::shm::{Shape, SlotReceiver, SlotSender};
use crate::url::{Key, PortUrl, Value};
use link::{Idle, Link};

/// This kind's line.
pub const KIND: Kind = Kind {
    scheme: "shm",
    about: "another process, through memory that both share",
    name: Name::Needed("rendezvous"),
    example: "shm:x,role=server",
    keys: &[Key {
        name: "role",
        value: Value::OneOf(&["server", "client"]),
        about: "waits for the other, or comes to it (the default)",
    }],
    descriptors: 1024,
    check: |url| {
        let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if url.name().len() <= 48 && url.name().chars().all(known) {
            return Ok(());
        }
        let wanted = "up to 48 letters, digits, `-`, `_` and `.`";
        Err(url.bad_value("name", url.name(), wanted, "x"))
    },
    memory: usual_memory,
    open,
};

/// Which side of the meeting a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Server,
    Client,
}

impl Role {
    /// The ring that this side sends into.
    fn sends(self) -> usize {
        match self {
            Self::Server => 0,
            Self::Client => 1,
        }
    }
}

/// Receives what the other process sends.
pub struct ShmReceive {
    link: Arc<Link>,
    ring: Option<SlotReceiver>,
    idle: Idle,
    counters: Arc<QueueCounters>,
}

/// Sends to the other process.
pub struct ShmTransmit {
    link: Arc<Link>,
    ring: Option<SlotSender>,
    idle: Idle,
    counters: Arc<QueueCounters>,
}

fn open(url: &PortUrl, _: &Memory) -> Result<Vec<AnyPort>, PortError> {
    let role = match url.text("role") {
        Some("server") => Role::Server,
        _ => Role::Client,
    };
    let capacity = url.common().rxd.or(url.common().txd).unwrap_or(url.rxd());
    let queues = url.common().queues.unwrap_or(1);
    let mut ports = Vec::new();
    for queue in 0..queues {
        let name = match queue {
            0 => url.name().to_owned(),
            _ => format!("{}-q{queue}", url.name()),
        };
        let shape = Shape::new(capacity, url.frame_bytes());
        let link = Arc::new(Link::open(&name, url.short(), role, shape)?);
        let mut capabilities = Capabilities {
            copies: Copies::EachWay,
            receive_descriptors: Some(capacity),
            transmit_descriptors: Some(capacity),
            ..Capabilities::plain(queue_name(url, queue, queues), url.frame_bytes())
        };
        if role == Role::Client {
            capabilities.notes.push(
                "the number of descriptors is that of whoever of the two made the memory"
                    .to_owned(),
            );
        }
        ports.push(
            Pair {
                receive: ShmReceive {
                    link: Arc::clone(&link),
                    ring: None,
                    idle: Idle::new(),
                    counters: Arc::default(),
                },
                transmit: ShmTransmit {
                    link,
                    ring: None,
                    idle: Idle::new(),
                    counters: Arc::default(),
                },
                capabilities,
            }
            .any(),
        );
    }
    Ok(ports)
}

impl ShmReceive {
    #[cold]
    fn look_around(&mut self) {
        if self.idle.is_over() {
            self.link.tend();
        }
        if self.ring.is_none()
            && let Some(region) = self.link.region()
        {
            let way = 1 - self.link.role().sends();
            self.ring = SlotReceiver::resume(region, way);
            if self.ring.is_none() {
                self.link.spoilt();
            }
        }
    }
}

impl Receive for ShmReceive {
    #[inline]
    fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let wanted = burst.room() as u32;
        let waiting = self.ring.as_mut().map_or(0, |ring| ring.filled(wanted));
        let Some(ring) = self.ring.as_mut().filter(|_| waiting > 0) else {
            self.look_around();
            return 0;
        };
        self.idle.reset();
        let memory_bytes = usize::from(pool.memory().frame_bytes());
        let (mut kept, mut bytes, mut taken) = (0, 0, 0);
        while taken < waiting {
            let length = ring.length(taken);
            if length > memory_bytes || length == 0 {
                let cause = if length == 0 {
                    Cause::Bad
                } else {
                    Cause::TooLong
                };
                self.counters.dropped(cause, 1);
                taken += 1;
                continue;
            }
            // Without a free frame the ring keeps it, until one comes or the ring is full.
            let Some(mut frame) = pool.allocate() else {
                break;
            };
            frame.set_len(length as u16);
            ring.read(taken, pool.memory().bytes_mut(&mut frame));
            bytes += length as u64;
            kept += usize::from(burst.push(frame).is_ok());
            taken += 1;
        }
        ring.give_back(taken);
        self.counters.moved(kept, bytes);
        kept
    }

    fn is_joined(&self) -> Option<bool> {
        Some(self.link.region().is_some())
    }

    fn absences(&self) -> Vec<Absence> {
        self.link.absences()
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        self.link.tend();
        self.link.trouble()
    }
}

impl ShmTransmit {
    #[cold]
    fn look_around(&mut self) {
        if self.idle.is_over() {
            self.link.tend();
        }
        if self.ring.is_none()
            && let Some(region) = self.link.region()
        {
            self.ring = SlotSender::resume(region, self.link.role().sends());
            if self.ring.is_none() {
                self.link.spoilt();
            }
        }
    }
}

impl Transmit for ShmTransmit {
    #[inline]
    fn transmit(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let wanted = burst.len() as u32;
        if self.ring.is_none() {
            // The other one may be there by now: its first frames want an answer, and a loop that does
            // not try again would drop it.
            self.look_around();
        }
        let room = self.ring.as_mut().map_or(0, |ring| ring.room(wanted));
        let Some(ring) = self.ring.as_mut().filter(|_| room > 0) else {
            self.look_around();
            return 0;
        };
        self.idle.reset();
        let most = ring.slot_bytes();
        let (mut put, mut bytes, mut too_long) = (0, 0, 0);
        let taken = burst.take_front(|frame| {
            if usize::from(frame.len()) > most || frame.is_empty() {
                too_long += 1;
            } else if put < room {
                ring.write(put, pool.memory().bytes(&frame));
                put += 1;
                bytes += u64::from(frame.len());
            } else {
                return Err(frame);
            }
            pool.free(frame);
            Ok(())
        });
        ring.publish(put);
        self.counters.moved(put as usize, bytes);
        if too_long > 0 {
            self.counters.dropped(Cause::TooLong, too_long);
        }
        taken
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        self.link.tend();
        self.link.trouble()
    }
}
