//! `ring:` keeps frames inside the process: a loopback, or a cable with two ends.
//!
//! `ring:0` is a loopback: its receive queue returns the frames given to its transmit queue, in
//! order. Two threads that each receive from one ring and send to another pass frames in a circle.
//! `ring:0,end=a` and `ring:0,end=b` are the two ends of a cable. Frames travel as handles, so both
//! ends share one memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;
use linerate_sys::frames::frame_ring::{FrameReceiver, FrameSender, new_frame_ring};

use crate::capabilities::PortCapabilities;
use crate::counters::QueueCounters;
use crate::error::PortError;
use crate::kinds::{NameRule, PortKind, common_memory_plan, no_check, queue_name};
use crate::port_url::{PortUrl, UrlKey, ValueKind};
use crate::queue::{AnyPort, PortQueues, RxQueue, TxQueue};

/// Description of the kind `ring:`.
pub const KIND: PortKind = PortKind {
    scheme: "ring",
    description: "a ring in memory: a loopback, or a cable with two ends",
    name_rule: NameRule::Required("ring"),
    example: "ring:0",
    extra_keys: &[UrlKey {
        name: "end",
        value_kind: ValueKind::OneOf(&["a", "b"]),
        description: "one end of a cable, instead of a loopback",
    }],
    // The default of DPDK's ring ports, so that results are comparable.
    descriptors: 1024,
    check: no_check,
    adapt_memory_plan: common_memory_plan,
    open,
};

/// Receive queue: takes frames from a ring.
pub struct RingReceive {
    ring: FrameReceiver,
    /// Memory that frames left in the ring return to when the port is closed.
    memory: FrameRegion,
    cable_end: Option<Arc<RingEnd>>,
    counters: Arc<QueueCounters>,
}

/// Transmit queue: puts frames into a ring.
pub struct RingTransmit {
    ring: FrameSender,
    cable_end: Option<Arc<RingEnd>>,
    counters: Arc<QueueCounters>,
}

/// End of a cable: its receive ring, its transmit ring, and the descriptors of each.
struct CableEnd {
    receiver: FrameReceiver,
    sender: FrameSender,
    capacity: u32,
}

/// Creates a cable: each end receives the frames sent by the other.
fn new_cable(capacity: u32) -> [CableEnd; 2] {
    let (to_b, from_a) = new_frame_ring(capacity);
    let (to_a, from_b) = new_frame_ring(capacity);
    let new_end = |(sender, receiver)| CableEnd {
        receiver,
        sender,
        capacity,
    };
    [(to_b, from_b), (to_a, from_a)].map(new_end)
}

/// End of a cable that is in use by a port. After the port has dropped both queues, the end returns
/// to the memory; opening it again continues with the same cable.
struct RingEnd {
    memory: FrameRegion,
    name: String,
    end_index: usize,
    capacity: u32,
    ring_halves: Mutex<(Option<FrameReceiver>, Option<FrameSender>)>,
}

impl RingEnd {
    fn ring_halves(&self) -> MutexGuard<'_, (Option<FrameReceiver>, Option<FrameSender>)> {
        self.ring_halves
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RingEnd {
    fn drop(&mut self) {
        let halves = std::mem::take(&mut *self.ring_halves());
        let (Some(receiver), Some(sender)) = halves else {
            return;
        };
        let end = CableEnd {
            receiver,
            sender,
            capacity: self.capacity,
        };
        // Both ends are closed: the frames left in the cable return to the memory.
        let unclaimed = self.memory.release_end(&self.name, self.end_index, end);
        for mut end in unclaimed.into_iter().flatten() {
            drain(&mut end.receiver, &self.memory);
        }
    }
}

fn drain(ring: &mut FrameReceiver, memory: &FrameRegion) {
    let mut burst = Burst::new();
    while ring.pop(&mut burst).0 > 0 {
        memory.reclaim(std::iter::from_fn(|| burst.pop()));
    }
}

fn open(url: &PortUrl, memory: &FrameRegion) -> Result<Vec<AnyPort>, PortError> {
    let count = url.common().queues.unwrap_or(1);
    // A loopback has one ring, so one number applies to both queues.
    let requested = url.common().rxd.or(url.common().txd).unwrap_or(url.rxd());
    let mut ports = Vec::new();
    for queue in 0..count {
        let (receiver, sender, cable_end) = match url.text("end") {
            None => {
                let (sender, receiver) = new_frame_ring(requested);
                (receiver, sender, None)
            }
            Some(letter) => {
                let (name, end_index) = (
                    format!("ring:{}:{queue}", url.name()),
                    usize::from(letter == "b"),
                );
                let end = memory.claim_end(&name, end_index, || new_cable(requested));
                let end = end.ok_or_else(|| PortError::InUse {
                    port: format!("{},end={letter}", url.short_name()),
                    remedy: "open the other end, or give this cable another name".to_owned(),
                })?;
                let cable_end = RingEnd {
                    memory: memory.clone(),
                    name,
                    end_index,
                    capacity: end.capacity,
                    ring_halves: Mutex::default(),
                };
                (end.receiver, end.sender, Some(Arc::new(cable_end)))
            }
        };
        // The port that opened the first end determined the descriptors of the cable.
        let capacity = cable_end
            .as_ref()
            .map_or(requested, |cable_end| cable_end.capacity);
        let mut capabilities =
            PortCapabilities::plain(queue_name(url, queue, count), url.frame_bytes());
        capabilities.receive_descriptors = Some(capacity);
        capabilities.transmit_descriptors = Some(capacity);
        ports.push(
            PortQueues {
                receive: RingReceive {
                    ring: receiver,
                    memory: memory.clone(),
                    cable_end: cable_end.clone(),
                    counters: Arc::default(),
                },
                transmit: RingTransmit {
                    ring: sender,
                    cable_end,
                    counters: Arc::default(),
                },
                capabilities,
            }
            .into_any(),
        );
    }
    Ok(ports)
}

/// Placeholder for a ring that was moved out.
fn placeholder_ring() -> (FrameSender, FrameReceiver) {
    new_frame_ring(1)
}

impl Drop for RingReceive {
    fn drop(&mut self) {
        match &self.cable_end {
            // Frames stay in the ring, for the next port that opens this end.
            Some(plug) => {
                plug.ring_halves().0 = Some(std::mem::replace(&mut self.ring, placeholder_ring().1))
            }
            None => drain(&mut self.ring, &self.memory),
        }
    }
}

impl Drop for RingTransmit {
    fn drop(&mut self) {
        if let Some(plug) = &self.cable_end {
            plug.ring_halves().1 = Some(std::mem::replace(&mut self.ring, placeholder_ring().0));
        }
    }
}

impl RxQueue for RingReceive {
    #[inline(always)]
    fn receive(&mut self, _: &mut FramePool, burst: &mut Burst) -> usize {
        let (count, bytes) = self.ring.pop(burst);
        if count > 0 {
            self.counters.add_frames(count, bytes);
        }
        count
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }
}

impl TxQueue for RingTransmit {
    #[inline(always)]
    fn transmit(&mut self, _: &mut FramePool, burst: &mut Burst) -> usize {
        let (count, bytes) = self.ring.push(burst);
        if count > 0 {
            self.counters.add_frames(count, bytes);
        }
        count
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use linerate_sys::frames::frame_memory::MemoryPlan;

    use super::*;
    use crate::counters::DropCause;
    use crate::kinds;

    fn memory() -> FrameRegion {
        FrameRegion::new(MemoryPlan::default()).unwrap()
    }

    fn port(text: &str, memory: &FrameRegion) -> AnyPort {
        let url: PortUrl = text.parse().unwrap();
        kinds::open(&url, memory).unwrap().remove(0)
    }

    fn send(port: &mut AnyPort, pool: &mut FramePool, payload: &[u8]) {
        let mut burst = Burst::new();
        let mut frame = pool.allocate().unwrap();
        frame.set_len(payload.len() as u16);
        pool.memory().bytes_mut(&mut frame).copy_from_slice(payload);
        burst.push(frame).unwrap();
        assert_eq!(port.transmit.transmit(pool, &mut burst), 1);
    }

    fn receive(port: &mut AnyPort, pool: &mut FramePool) -> Vec<Vec<u8>> {
        let mut burst = Burst::new();
        port.receive.receive(pool, &mut burst);
        let frames = burst.frames().iter();
        let bytes = frames.map(|frame| pool.memory().bytes(frame).to_vec());
        let bytes = bytes.collect();
        pool.free_all(&mut burst);
        bytes
    }

    #[test]
    fn a_loop_gives_back_what_it_took() {
        let memory = memory();
        let (mut pool, mut port) = (memory.pool(), port("ring:0", &memory));
        send(&mut port, &mut pool, b"one");
        send(&mut port, &mut pool, b"two");
        assert_eq!(receive(&mut port, &mut pool), [b"one", b"two"]);
        assert_eq!(
            port.transmit.counters().read(),
            port.receive.counters().read()
        );
        assert_eq!(port.receive.counters().read().bytes, 6);
    }

    #[test]
    fn a_cable_has_two_ends() {
        let memory = memory();
        let mut pool = memory.pool();
        let mut a = port("ring:x,end=a", &memory);
        let mut b = port("ring:x,end=b", &memory);
        send(&mut a, &mut pool, b"to b");
        send(&mut b, &mut pool, b"to a");
        assert_eq!(receive(&mut a, &mut pool), [b"to a"]);
        assert_eq!(receive(&mut b, &mut pool), [b"to b"]);
        let url: PortUrl = "ring:x,end=a".parse().unwrap();
        assert!(matches!(
            kinds::open(&url, &memory).map(|_| ()),
            Err(PortError::InUse { .. })
        ));
    }

    /// An end that is closed and opened again belongs to the same cable, for either end and any
    /// order.
    #[test]
    fn an_end_may_be_opened_again() {
        let memory = memory();
        let mut pool = memory.pool();
        // The other end has not been opened yet.
        drop(port("ring:x,end=b,rxd=64", &memory));
        let mut ends = ["a", "b"].map(|end| port(&format!("ring:x,end={end}"), &memory));
        for index in [0, 1, 1, 0] {
            let (own_payload, peer_payload) = ([b'a' + index as u8], [b'b' - index as u8]);
            send(&mut ends[1 - index], &mut pool, &peer_payload);
            // Frames inside stay; counters start at zero, and the descriptors are those of the
            // cable.
            let closed = std::mem::replace(&mut ends[index], port("null:", &memory));
            drop(closed.transmit);
            drop(closed.receive);
            send(&mut ends[1 - index], &mut pool, &peer_payload);
            let end = own_payload.map(char::from)[0];
            ends[index] = port(&format!("ring:x,end={end},rxd=16"), &memory);
            assert_eq!(ends[index].capabilities.receive_descriptors, Some(1024));
            send(&mut ends[index], &mut pool, &own_payload);
            assert_eq!(
                receive(&mut ends[index], &mut pool),
                [peer_payload, peer_payload]
            );
            assert_eq!(receive(&mut ends[1 - index], &mut pool), [own_payload]);
            assert_eq!(ends[index].receive.counters().read().frames, 2);
        }
        // Closing both ends removes the cable and frees its frames.
        for end in &mut ends {
            send(end, &mut pool, b"stays inside");
        }
        drop(ends);
        let all = std::iter::from_fn(|| pool.allocate()).count();
        assert_eq!(all, memory.frames() as usize);
        let index = port("ring:x,end=a,rxd=32", &memory);
        assert_eq!(index.capabilities.receive_descriptors, Some(32));
    }

    /// A thread fills and sends frames, another checks and frees them; the frames return to the
    /// first.
    #[test]
    fn frames_drift_between_threads_and_return() {
        const FRAMES: u64 = 100_000;
        let memory = FrameRegion::new(MemoryPlan {
            frames: 700,
            ..MemoryPlan::default()
        })
        .unwrap();
        let mut port = port("ring:0,rxd=50", &memory);
        std::thread::scope(|scope| {
            let (mut transmit, shared) = (port.transmit, memory.clone());
            scope.spawn(move || {
                let (mut pool, mut burst, mut next) = (shared.pool(), Burst::new(), 0);
                while next < FRAMES || !burst.is_empty() {
                    let max_frames = usize::try_from(FRAMES - next).unwrap().min(7);
                    let before = burst.len();
                    let fresh = pool.allocate_burst(&mut burst, max_frames);
                    for frame in &mut burst.frames_mut()[before..] {
                        frame.set_len(64);
                        let bytes = shared.bytes_mut(frame);
                        bytes.as_chunks_mut::<8>().0.fill(next.to_ne_bytes());
                        next += 1;
                    }
                    if transmit.transmit(&mut pool, &mut burst) == 0 || fresh == 0 {
                        std::thread::yield_now();
                    }
                }
            });
            let (mut pool, mut burst, mut expected) = (memory.pool(), Burst::new(), 0u64);
            while expected < FRAMES {
                if port.receive.receive(&mut pool, &mut burst) == 0 {
                    std::thread::yield_now();
                }
                for frame in burst.frames() {
                    let (words, _) = memory.bytes(frame).as_chunks::<8>();
                    assert_eq!(words, [expected.to_ne_bytes(); 8]);
                    expected += 1;
                }
                pool.free_all(&mut burst);
            }
        });
        let mut pool = memory.pool();
        assert_eq!(std::iter::from_fn(|| pool.allocate()).count(), 700);
    }

    #[test]
    fn a_port_that_ends_leaves_its_frames() {
        let memory = memory();
        let mut pool = memory.pool();
        let mut port = port("ring:0", &memory);
        for _ in 0..1000 {
            send(&mut port, &mut pool, b"stays inside");
        }
        drop(port);
        let all = std::iter::from_fn(|| pool.allocate()).count();
        assert_eq!(all, memory.frames() as usize);
    }

    #[test]
    fn a_full_ring_leaves_the_rest_to_the_caller() {
        let memory = memory();
        let (mut pool, mut port) = (memory.pool(), port("ring:0,rxd=18", &memory));
        let mut burst = Burst::new();
        pool.allocate_burst(&mut burst, 32);
        assert_eq!(port.transmit.transmit(&mut pool, &mut burst), 18);
        assert_eq!(burst.len(), 14);
        assert_eq!(port.transmit.drop_unsent(&mut pool, &mut burst), 14);
        let sent = port.transmit.counters().read();
        assert_eq!((sent.frames, sent.drops_by(DropCause::RingFull)), (18, 14));
    }
}
