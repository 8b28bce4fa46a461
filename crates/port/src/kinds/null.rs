//! `null:` produces frames without content on each poll, and discards all frames sent.
//!
//! Measures the cost of a loop without a port: the upper bound of all rates.

use std::sync::Arc;

use linerate_packet::frame::MIN_FRAME_BYTES;
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

use crate::capabilities::PortCapabilities;
use crate::counters::QueueCounters;
use crate::error::PortError;
use crate::kinds::{NameRule, PortKind, common_memory_plan, no_check, queue_name};
use crate::port_url::{PortUrl, UrlKey, ValueKind};
use crate::queue::{AnyPort, PortQueues, RxQueue, TxQueue};

/// Length of the frames if the URL has no `size=`.
const DEFAULT_FRAME_BYTES: u16 = MIN_FRAME_BYTES as u16;

/// Description of the kind `null:`.
pub const KIND: PortKind = PortKind {
    scheme: "null",
    description: "produces and discards frames without I/O: the cost of the loop alone",
    name_rule: NameRule::None,
    example: "null:size=60",
    extra_keys: &[
        UrlKey {
            name: "size",
            value_kind: ValueKind::Number {
                min: 14,
                max: 65_518,
            },
            description: "bytes of the frames it produces (60)",
        },
        UrlKey {
            name: "silent",
            value_kind: ValueKind::Flag,
            description: "produces no frames, only discards them",
        },
    ],
    descriptors: 32,
    check: |url| match url.number("size") {
        Some(size) if size > u32::from(url.frame_bytes()) => Err(url.bad_value(
            "size",
            &size.to_string(),
            format!("at most {}, the limit of the MTU", url.frame_bytes()),
            DEFAULT_FRAME_BYTES.to_string(),
        )),
        _ => no_check(url),
    },
    adapt_memory_plan: common_memory_plan,
    open,
};

/// Receive queue that produces frames; their bytes are those that the slots happen to hold.
pub struct NullReceive {
    frame_bytes: u16,
    silent: bool,
    counters: Arc<QueueCounters>,
}

/// Transmit queue that discards frames.
pub struct NullTransmit {
    counters: Arc<QueueCounters>,
}

fn open(url: &PortUrl, _: &FrameRegion) -> Result<Vec<AnyPort>, PortError> {
    let queues = url.common().queues.unwrap_or(1);
    let frame_bytes = url.number("size").unwrap_or(DEFAULT_FRAME_BYTES.into());
    let ports = (0..queues).map(|queue| {
        PortQueues {
            receive: NullReceive {
                frame_bytes: u16::try_from(frame_bytes).unwrap_or(DEFAULT_FRAME_BYTES),
                silent: url.parse_flag("silent"),
                counters: Arc::default(),
            },
            transmit: NullTransmit {
                counters: Arc::default(),
            },
            capabilities: PortCapabilities::plain(
                queue_name(url, queue, queues),
                url.frame_bytes(),
            ),
        }
        .into_any()
    });
    Ok(ports.collect())
}

impl RxQueue for NullReceive {
    #[inline]
    fn receive(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        if self.silent {
            return 0;
        }
        let before = burst.len();
        let count = pool.allocate_burst(burst, burst.remaining());
        for frame in &mut burst.frames_mut()[before..] {
            frame.set_len(self.frame_bytes);
        }
        self.counters
            .add_frames(count, count as u64 * u64::from(self.frame_bytes));
        count
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }
}

impl TxQueue for NullTransmit {
    #[inline]
    fn transmit(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        let bytes = burst.bytes();
        let count = pool.free_all(burst);
        self.counters.add_frames(count, bytes);
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
    use crate::kinds;

    #[test]
    fn frames_come_and_go_without_a_loss() {
        let memory = FrameRegion::new(MemoryPlan {
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
    fn a_silent_port_receives_nothing() {
        let memory = FrameRegion::new(MemoryPlan::default()).unwrap();
        let url: PortUrl = "null:silent".parse().unwrap();
        let mut port = kinds::open(&url, &memory).unwrap().remove(0);
        let (mut pool, mut burst) = (memory.pool(), Burst::new());
        assert_eq!(port.receive.receive(&mut pool, &mut burst), 0);
        assert!("null:size=2000".parse::<PortUrl>().is_err());
    }
}
