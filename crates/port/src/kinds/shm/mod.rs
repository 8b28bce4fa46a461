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

use linerate_sys::frames::burst::{BURST_FRAMES, Burst};
use linerate_sys::frames::frame::Frame;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;
use linerate_sys::shm::{SlotReceiver, SlotSender, prefetch_distance};
use peer_link::{IdleTimer, PeerLink};

use crate::capabilities::{FrameCopy, PortCapabilities};
use crate::counters::{DropCause, QueueCounters};
use crate::error::PortError;
use crate::kinds::{NameRule, PortKind, common_memory_plan, queue_name};
use crate::port_url::{PortUrl, UrlKey, ValueKind};
use crate::queue::{AnyPort, OutageInterval, PeerState, PortQueues, RxQueue, TxQueue};

/// Bytes of a frame prefetched before its length is known: all of a short frame. The bench
/// `stack/echo/shm/found` shows the gain: one cache-line transfer between cores in each direction.
const PREFETCH_BYTES: usize = 128;

/// Description of the kind `shm:`.
pub const KIND: PortKind = PortKind {
    scheme: "shm",
    description: "another process, through shared memory",
    name_rule: NameRule::Required("rendezvous"),
    example: "shm:x,role=server",
    extra_keys: &[UrlKey {
        name: "role",
        value_kind: ValueKind::OneOf(&["server", "client"]),
        description: "listens for the other process, or connects to it (the default)",
    }],
    descriptors: 1024,
    check: |url| {
        let is_permitted = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if url.name().len() <= 48 && url.name().chars().all(is_permitted) {
            return Ok(());
        }
        let expected = "up to 48 letters, digits, `-`, `_` and `.`";
        Err(url.bad_value("name", url.name(), expected, "x"))
    },
    adapt_memory_plan: common_memory_plan,
    open,
};

/// Role of this process in the rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShmRole {
    Server,
    Client,
}

impl ShmRole {
    /// Index of the ring that this side sends to.
    fn transmit_ring(self) -> usize {
        match self {
            Self::Server => 0,
            Self::Client => 1,
        }
    }
}

/// Receive queue of frames from the other process.
pub struct ShmReceive {
    link: Arc<PeerLink>,
    ring: Option<SlotReceiver>,
    idle: IdleTimer,
    counters: Arc<QueueCounters>,
}

/// Transmit queue of frames to the other process.
pub struct ShmTransmit {
    link: Arc<PeerLink>,
    ring: Option<SlotSender>,
    idle: IdleTimer,
    counters: Arc<QueueCounters>,
}

fn open(url: &PortUrl, _: &FrameRegion) -> Result<Vec<AnyPort>, PortError> {
    let role = match url.text("role") {
        Some("server") => ShmRole::Server,
        _ => ShmRole::Client,
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
        let link = Arc::new(PeerLink::open(&name, url.short_name(), role, rings)?);
        let mut capabilities = PortCapabilities {
            copies: FrameCopy::EachDirection,
            receive_descriptors: Some(capacity),
            transmit_descriptors: Some(capacity),
            ..PortCapabilities::plain(queue_name(url, queue, queues), url.frame_bytes())
        };
        if role == ShmRole::Client {
            capabilities.notes.push(
                "the number of descriptors is set by the side that created the memory".to_owned(),
            );
        }
        ports.push(
            PortQueues {
                receive: ShmReceive {
                    link: Arc::clone(&link),
                    ring: None,
                    idle: IdleTimer::new(),
                    counters: Arc::default(),
                },
                transmit: ShmTransmit {
                    link,
                    ring: None,
                    idle: IdleTimer::new(),
                    counters: Arc::default(),
                },
                capabilities,
            }
            .into_any(),
        );
    }
    Ok(ports)
}

impl ShmReceive {
    #[cold]
    fn poll_peer(&mut self) {
        if self.idle.has_elapsed(self.ring.is_none()) {
            self.link.poll_peer();
        }
        if self.ring.is_none()
            && let Some(segment) = self.link.segment()
        {
            let ring_index = 1 - self.link.role().transmit_ring();
            self.ring = SlotReceiver::resume(segment, ring_index);
            if self.ring.is_none() {
                self.link.mark_corrupted();
            }
        }
    }
}

impl RxQueue for ShmReceive {
    #[inline]
    fn receive(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        let max_frames = burst.remaining() as u32;
        let available = self
            .ring
            .as_mut()
            .map_or(0, |ring| ring.filled_slots(max_frames));
        let Some(ring) = self.ring.as_mut().filter(|_| available > 0) else {
            self.poll_peer();
            return 0;
        };
        self.idle.reset();
        // In parallel with the line of its length and not after it: a single frame then waits for
        // one line less.
        ring.prefetch_for_read(0, PREFETCH_BYTES);
        let mut lengths = [0; BURST_FRAMES];
        let available = available.min(BURST_FRAMES as u32);
        let lengths = &mut lengths[..available as usize];
        for (length, at) in lengths.iter_mut().zip(0..) {
            *length = ring.length(at);
        }
        // The peer may have written any length.
        let max_bytes = usize::from(pool.memory().frame_bytes()).min(ring.slot_bytes());
        let is_valid = |length: &usize| (1..=max_bytes).contains(length);
        let valid = lengths.iter().take_while(|length| is_valid(length)).count();
        if valid == 0 {
            // One per poll: a correct peer sends none.
            let cause = match lengths[0] {
                0 => DropCause::Invalid,
                _ => DropCause::TooLong,
            };
            self.counters.add_drops(cause, 1);
            ring.release_slots(1);
            return 0;
        }
        let lengths = &lengths[..valid];
        let before = burst.len();
        // Frames without a free buffer stay in the ring, until one is freed or the ring is full.
        let allocated = pool.allocate_burst(burst, valid);
        let distance = prefetch_distance(lengths[0]) as usize;
        let fetch = |at: usize| {
            if let Some(&length) = lengths[..allocated].get(at) {
                ring.prefetch_for_read(at as u32, length);
            }
        };
        (0..distance).for_each(fetch);
        let mut bytes = 0;
        let frames = burst.frames_mut()[before..].iter_mut().zip(lengths);
        for (at, (frame, &length)) in frames.enumerate() {
            fetch(at + distance);
            frame.set_len(length as u16);
            ring.read(at as u32, pool.memory().bytes_mut(frame));
            bytes += length as u64;
        }
        ring.release_slots(allocated as u32);
        self.counters.add_frames(allocated, bytes);
        allocated
    }

    fn peer_state(&self) -> Option<PeerState> {
        Some(self.link.peer_state())
    }

    fn peer_outages(&self) -> Vec<OutageInterval> {
        self.link.outages()
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        self.link.poll_peer();
        self.link.take_failure()
    }
}

impl ShmTransmit {
    #[cold]
    fn poll_peer(&mut self) {
        if self.idle.has_elapsed(self.ring.is_none()) {
            self.link.poll_peer();
        }
        if self.ring.is_none()
            && let Some(segment) = self.link.segment()
        {
            self.ring = SlotSender::resume(segment, self.link.role().transmit_ring());
            if self.ring.is_none() {
                self.link.mark_corrupted();
            }
        }
    }
}

impl TxQueue for ShmTransmit {
    #[inline]
    fn transmit(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        let max_frames = burst.len() as u32;
        if max_frames == 0 {
            return 0;
        }
        if self.ring.is_none() {
            // The peer may have connected by now. Its first frames need a reply, which a loop that
            // does not retry would drop.
            self.poll_peer();
        }
        let free = self
            .ring
            .as_mut()
            .map_or(0, |ring| ring.free_slots(max_frames));
        let Some(ring) = self.ring.as_mut().filter(|_| free > 0) else {
            self.poll_peer();
            return 0;
        };
        self.idle.reset();
        let max_bytes = ring.slot_bytes();
        let fits = |frame: &Frame| !frame.is_empty() && usize::from(frame.len()) <= max_bytes;
        let frames = &burst.frames()[..free as usize];
        let written = frames.iter().take_while(|frame| fits(frame)).count();
        let mut bytes = 0;
        for (at, frame) in (0..).zip(&frames[..written]) {
            ring.write(at, pool.memory().bytes(frame));
            bytes += u64::from(frame.len());
        }
        let too_long = written < frames.len();
        let taken = written + usize::from(too_long);
        match taken == burst.len() {
            true => pool.free_all(burst) as u64,
            false => pool.free_front(burst, taken),
        };
        let written = written as u32;
        ring.publish(written);
        if let Some(mean) = bytes.checked_div(u64::from(written)) {
            // The next burst is probably similar.
            let mean = mean as usize;
            ring.prefetch_for_write(prefetch_distance(mean), mean);
        }
        self.counters.add_frames(written as usize, bytes);
        if too_long {
            self.counters.add_drops(DropCause::TooLong, 1);
            return taken + self.transmit(pool, burst);
        }
        taken
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        self.link.poll_peer();
        self.link.take_failure()
    }
}
