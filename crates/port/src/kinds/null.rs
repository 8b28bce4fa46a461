//! `null:` produces frames without content on each poll, and discards all frames sent.
//!
//! Measures the cost of a loop without a port: the upper bound of all rates.

use std::sync::Arc;

use crate::capabilities::Capabilities;
use crate::counters::QueueCounters;
use crate::error::PortError;
use crate::frame_pool::Pool;
use crate::kinds::{Kind, Name, queue_name, unchecked, usual_memory};
use crate::port_url::{Key, PortUrl, Value};
use crate::queue::{AnyPort, Pair, Receive, Transmit};
use crate::sys::burst::Burst;
use crate::sys::frame_memory::Memory;

/// Shortest Ethernet frame without its FCS (IEEE 802.3).
const SHORTEST: u16 = 60;

/// Description of the kind `null:`.
pub const KIND: Kind = Kind {
    scheme: "null",
    about: "produces and discards frames without I/O: the cost of the loop alone",
    name: Name::None,
    example: "null:size=60",
    keys: &[
        Key {
            name: "size",
            value: Value::Number {
                min: 14,
                max: 65_518,
            },
            about: "bytes of the frames it produces (60)",
        },
        Key {
            name: "silent",
            value: Value::Flag,
            about: "produces no frames, only discards them",
        },
    ],
    descriptors: 32,
    check: |url| match url.number("size") {
        Some(size) if size > u32::from(url.frame_bytes()) => Err(url.bad_value(
            "size",
            &size.to_string(),
            format!("at most {}, the limit of the MTU", url.frame_bytes()),
            SHORTEST.to_string(),
        )),
        _ => unchecked(url),
    },
    memory: usual_memory,
    open,
};

/// Receive queue that produces frames; their bytes are those that the slots happen to hold.
pub struct NullReceive {
    size: u16,
    silent: bool,
    counters: Arc<QueueCounters>,
}

/// Transmit queue that discards frames.
pub struct NullTransmit {
    counters: Arc<QueueCounters>,
}

fn open(url: &PortUrl, _: &Memory) -> Result<Vec<AnyPort>, PortError> {
    let queues = url.common().queues.unwrap_or(1);
    let size = url.number("size").unwrap_or(SHORTEST.into());
    let ports = (0..queues).map(|queue| {
        Pair {
            receive: NullReceive {
                size: u16::try_from(size).unwrap_or(SHORTEST),
                silent: url.flag("silent"),
                counters: Arc::default(),
            },
            transmit: NullTransmit {
                counters: Arc::default(),
            },
            capabilities: Capabilities::plain(queue_name(url, queue, queues), url.frame_bytes()),
        }
        .any()
    });
    Ok(ports.collect())
}

impl Receive for NullReceive {
    #[inline]
    fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        if self.silent {
            return 0;
        }
        let before = burst.len();
        let count = pool.allocate_burst(burst, burst.room());
        for frame in &mut burst.frames_mut()[before..] {
            frame.set_len(self.size);
        }
        self.counters
            .moved(count, count as u64 * u64::from(self.size));
        count
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }
}

impl Transmit for NullTransmit {
    #[inline]
    fn transmit(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let bytes = burst.bytes();
        let count = pool.free_all(burst);
        self.counters.moved(count, bytes);
        count
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;
    use crate::sys::frame_memory::MemoryPlan;

    #[test]
    fn frames_come_and_go_without_a_loss() {
        let memory = Memory::new(MemoryPlan {
            frames: 64,
            ..MemoryPlan::default()
        })
        .unwrap();
        let url: PortUrl = "null:size=100".parse().unwrap();
        let mut port = kinds::open(&url, &memory).unwrap().remove(0);
        let mut pool = memory.pool();
        let mut burst = Burst::new();
        for _ in 0..10 {
            assert_eq!(port.receive.receive(&mut pool, &mut burst), 32);
            assert_eq!(port.transmit.transmit(&mut pool, &mut burst), 32);
        }
        let (received, sent) = (
            port.receive.counters().read(),
            port.transmit.counters().read(),
        );
        assert_eq!((received.frames, received.bytes), (320, 32_000));
        assert_eq!(received, sent);
    }

    #[test]
    fn a_silent_one_only_takes() {
        let memory = Memory::new(MemoryPlan::default()).unwrap();
        let url: PortUrl = "null:silent".parse().unwrap();
        let mut port = kinds::open(&url, &memory).unwrap().remove(0);
        let (mut pool, mut burst) = (memory.pool(), Burst::new());
        assert_eq!(port.receive.receive(&mut pool, &mut burst), 0);
        assert!("null:size=2000".parse::<PortUrl>().is_err());
    }
}
