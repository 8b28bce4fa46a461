//! `shm:` connects two processes through shared memory: each receives the frames that the other
//! sends.
//!
//! One process has `role=server` and listens on a Unix socket in `$XDG_RUNTIME_DIR/linerate`. The
//! socket is a file, so network namespaces do not separate the two. The other process connects and
//! receives the memory. The order in which they start does not matter. Each side copies a frame
//! once, in or out.
//!
//! Either side may end at any time, also by `kill -9`. Each peer gets new memory, because one that
//! has left may still write into its own. The survivor moves the frames there that the ended
//! process has not taken. Those that it was handling are lost: at most a burst.

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

/// Frames of each ring, unless the server's `rxd` or `txd` sets them.
const DESCRIPTORS: u32 = 1024;

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
    descriptors: DESCRIPTORS,
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
    /// Peer to whom the ring belongs.
    generation: u32,
    /// Frames that may still be taken from the ring: limited once its peer was replaced.
    takeable: u64,
    idle: IdleTimer,
    counters: Arc<QueueCounters>,
}

/// Transmit queue of frames to the other process.
pub struct ShmTransmit {
    link: Arc<PeerLink>,
    ring: Option<SlotSender>,
    /// Peer to whom the ring belongs.
    generation: u32,
    idle: IdleTimer,
    counters: Arc<QueueCounters>,
}

fn open(url: &PortUrl, _: &FrameRegion) -> Result<Vec<AnyPort>, PortError> {
    let role = match url.text("role") {
        Some("server") => ShmRole::Server,
        _ => ShmRole::Client,
    };
    let requested = url.common().rxd.or(url.common().txd);
    let capacity = requested.unwrap_or(DESCRIPTORS);
    let queues = url.common().queues.unwrap_or(1);
    let mut ports = Vec::new();
    for queue in 0..queues {
        let name = match queue {
            0 => url.name().to_owned(),
            _ => format!("{}-q{queue}", url.name()),
        };
        let link = PeerLink::open(&name, url.short_name(), role, requested, url.frame_bytes())?;
        let link = Arc::new(link);
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
                    generation: 0,
                    takeable: u64::MAX,
                    idle: IdleTimer::new(),
                    counters: Arc::default(),
                },
                transmit: ShmTransmit {
                    link,
                    ring: None,
                    generation: 0,
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
    }

    /// Continues with the memory of a new peer, once the frames of the last one are taken.
    #[cold]
    fn follow_peer(&mut self) {
        if let Some(ring) = &mut self.ring {
            // That peer may still publish frames and withdraw them: never more than at first.
            let filled = u64::from(ring.filled_slots(ring.capacity()));
            self.takeable = self.takeable.min(filled);
            if self.takeable > 0 {
                return;
            }
        }
        if let Some((generation, segment)) = self.link.segment() {
            let ring_index = 1 - self.link.role().transmit_ring();
            self.ring = Some(SlotReceiver::new(segment, ring_index));
            (self.generation, self.takeable) = (generation, u64::MAX);
        }
    }
}

impl RxQueue for ShmReceive {
    #[inline]
    fn receive(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        if self.generation != self.link.generation() {
            self.follow_peer();
        }
        let max_frames = (burst.remaining() as u64).min(self.takeable) as u32;
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
            self.takeable -= 1;
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
        self.takeable -= allocated as u64;
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
        self.follow_peer();
    }

    /// Continues with the memory of a new peer, if there is one, and moves the frames there that the last one has
    /// not taken.
    #[cold]
    fn follow_peer(&mut self) {
        if self.generation != self.link.generation()
            && let Some((generation, segment)) = self.link.segment()
        {
            let mut ring = SlotSender::new(segment, self.link.role().transmit_ring());
            if let Some(last) = self.ring.take() {
                ring.take_over(last);
            }
            (self.ring, self.generation) = (Some(ring), generation);
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
        if self.generation != self.link.generation() {
            self.follow_peer();
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
        self.follow_peer();
        self.link.take_failure()
    }
}
