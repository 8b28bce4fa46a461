//! `shm:` connects two processes through shared memory: each receives the frames that the other
//! sends.
//!
//! One process has `role=server` and listens on a Unix socket in `$XDG_RUNTIME_DIR/linerate`. The
//! socket is a file, so network namespaces do not separate the two. The other process connects and
//! receives the memory. The order in which they start does not matter. Each side copies a frame
//! once, in or out.
//!
//! Either side may end at any time, also by `kill -9`. The other keeps the memory and continues.
//! The next peer receives the memory from it, with all frames inside. The frames that the ended
//! process was handling are lost: at most a burst.

mod peer_link;
mod rendezvous;

use std::sync::Arc;

use crate::capabilities::{Capabilities, Copies};
use crate::counters::{Cause, QueueCounters};
use crate::error::PortError;
use crate::frame_pool::Pool;
use crate::kinds::{Kind, Name, queue_name, usual_memory};
use crate::port_url::{Key, PortUrl, Value};
use crate::queue::{Absence, AnyPort, Pair, Partner, Receive, Transmit};
use crate::sys::burst::{BURST_FRAMES, Burst};
use crate::sys::frame::Frame;
use crate::sys::frame_memory::Memory;
use crate::sys::shm::{SlotReceiver, SlotSender, ahead};
use peer_link::{Idle, Link};

/// Bytes of a frame prefetched before its length is known: all of a short frame. The bench
/// `stack/echo/shm/found` shows the gain: one cache-line transfer between cores in each direction.
const FIRST_BYTES: usize = 128;

/// Description of the kind `shm:`.
pub const KIND: Kind = Kind {
    scheme: "shm",
    about: "another process, through shared memory",
    name: Name::Needed("rendezvous"),
    example: "shm:x,role=server",
    keys: &[Key {
        name: "role",
        value: Value::OneOf(&["server", "client"]),
        about: "listens for the other process, or connects to it (the default)",
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

/// Role of this process in the rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Server,
    Client,
}

impl Role {
    /// Index of the ring that this side sends to.
    fn sends(self) -> usize {
        match self {
            Self::Server => 0,
            Self::Client => 1,
        }
    }
}

/// Receive queue of frames from the other process.
pub struct ShmReceive {
    link: Arc<Link>,
    ring: Option<SlotReceiver>,
    idle: Idle,
    counters: Arc<QueueCounters>,
}

/// Transmit queue of frames to the other process.
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
        let rings = (capacity, url.frame_bytes());
        let link = Arc::new(Link::open(&name, url.short(), role, rings)?);
        let mut capabilities = Capabilities {
            copies: Copies::EachWay,
            receive_descriptors: Some(capacity),
            transmit_descriptors: Some(capacity),
            ..Capabilities::plain(queue_name(url, queue, queues), url.frame_bytes())
        };
        if role == Role::Client {
            capabilities.notes.push(
                "the number of descriptors is set by the side that created the memory".to_owned(),
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
        if self.idle.is_over(self.ring.is_none()) {
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
        // In parallel with the line of its length and not after it: a single frame then waits for
        // one line less.
        ring.fetch(0, FIRST_BYTES);
        let mut lengths = [0; BURST_FRAMES];
        let waiting = waiting.min(BURST_FRAMES as u32);
        let lengths = &mut lengths[..waiting as usize];
        for (length, at) in lengths.iter_mut().zip(0..) {
            *length = ring.length(at);
        }
        // The peer may have written any length.
        let most = usize::from(pool.memory().frame_bytes()).min(ring.slot_bytes());
        let is_sound = |length: &usize| (1..=most).contains(length);
        let sound = lengths.iter().take_while(|length| is_sound(length)).count();
        if sound == 0 {
            // One per poll: a correct peer sends none.
            let cause = match lengths[0] {
                0 => Cause::Bad,
                _ => Cause::TooLong,
            };
            self.counters.dropped(cause, 1);
            ring.give_back(1);
            return 0;
        }
        let lengths = &lengths[..sound];
        let held = burst.len();
        // Frames without a free buffer stay in the ring, until one is freed or the ring is full.
        let got = pool.allocate_burst(burst, sound);
        let ahead = ahead(lengths[0]) as usize;
        let fetch = |at: usize| {
            if let Some(&length) = lengths[..got].get(at) {
                ring.fetch(at as u32, length);
            }
        };
        (0..ahead).for_each(fetch);
        let mut bytes = 0;
        let frames = burst.frames_mut()[held..].iter_mut().zip(lengths);
        for (at, (frame, &length)) in frames.enumerate() {
            fetch(at + ahead);
            frame.set_len(length as u16);
            ring.read(at as u32, pool.memory().bytes_mut(frame));
            bytes += length as u64;
        }
        ring.give_back(got as u32);
        self.counters.moved(got, bytes);
        got
    }

    fn partner(&self) -> Option<Partner> {
        Some(self.link.partner())
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
        if self.idle.is_over(self.ring.is_none()) {
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
        if wanted == 0 {
            return 0;
        }
        if self.ring.is_none() {
            // The peer may have connected by now. Its first frames want a reply, which a loop that
            // does not retry would drop.
            self.look_around();
        }
        let room = self.ring.as_mut().map_or(0, |ring| ring.room(wanted));
        let Some(ring) = self.ring.as_mut().filter(|_| room > 0) else {
            self.look_around();
            return 0;
        };
        self.idle.reset();
        let most = ring.slot_bytes();
        let fits = |frame: &Frame| !frame.is_empty() && usize::from(frame.len()) <= most;
        let frames = &burst.frames()[..room as usize];
        let put = frames.iter().take_while(|frame| fits(frame)).count();
        let mut bytes = 0;
        for (at, frame) in (0..).zip(&frames[..put]) {
            ring.write(at, pool.memory().bytes(frame));
            bytes += u64::from(frame.len());
        }
        let too_long = put < frames.len();
        let taken = put + usize::from(too_long);
        match taken == burst.len() {
            true => pool.free_all(burst) as u64,
            false => pool.free_front(burst, taken),
        };
        let put = put as u32;
        ring.publish(put);
        if let Some(mean) = bytes.checked_div(u64::from(put)) {
            // The next burst is probably similar.
            let mean = mean as usize;
            ring.claim(ahead(mean), mean);
        }
        self.counters.moved(put as usize, bytes);
        if too_long {
            self.counters.dropped(Cause::TooLong, 1);
            return taken + self.transmit(pool, burst);
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
