//! `dpdk:` is any DPDK device: `dpdk:net_ring0`, `dpdk:net_af_packet0,iface=eth0`,
//! `dpdk:0000:01:00.0`.
//!
//! Only with the cargo feature `dpdk`: it needs libdpdk, found by pkg-config (Debian: libdpdk-dev).
//! The text after the colon is passed to the EAL unchanged. A port has one receive and one transmit
//! queue. A frame is copied once on reception and once on transmission, except by mode `io` between
//! two such ports, which forwards DPDK's own buffers.

use std::io;
use std::sync::Arc;

use linerate_sys::dpdk::{DirectForwardCounts, DpdkDevice};
use linerate_sys::frames::burst::{BURST_FRAMES, Burst};
use linerate_sys::frames::chunked_copy::copy_in_chunks;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;

use crate::capabilities::{FrameCopy, PortCapabilities};
use crate::counters::{DropCause, QueueCounters};
use crate::error::PortError;
use crate::interface_use::open_error;
use crate::kinds::{NameRule, PortKind, common_memory_plan, no_check};
use crate::port_url::PortUrl;
use crate::queue::{AnyPort, PortQueues, RxQueue, TxQueue};

/// Description of the kind `dpdk:`.
pub const KIND: PortKind = PortKind {
    scheme: "dpdk",
    description: "a DPDK device, physical or virtual (feature dpdk)",
    name_rule: NameRule::RestOfUrl("device as in EAL arguments"),
    example: "dpdk:net_ring0",
    extra_keys: &[],
    descriptors: 1024,
    check: no_check,
    adapt_memory_plan: common_memory_plan,
    open,
};

/// Maximum number of polls per visit when frames are forwarded directly: it spreads the fixed cost
/// of a visit, and other streams of the thread wait for at most so many bursts.
const POLLS_PER_VISIT: u32 = 8;

/// Visits after which the device is checked for byte counters.
const BYTE_COUNT_CHECK_VISITS: u32 = 1024;

/// Visits of which the first poll of one reads the frame lengths, when lengths are sampled.
const SAMPLE_INTERVAL_VISITS: u32 = 8;

/// Method of counting the bytes of directly forwarded frames. A device that counts bytes has the
/// lengths in its cache; on other devices, reading a length costs a cache miss, which is more than
/// forwarding the frame.
#[derive(Clone, Copy, Debug)]
enum ByteCounting {
    /// Reads all lengths; the device is checked after this many visits.
    AllFrames(u32),
    /// Samples lengths; mean bytes of a frame times 65,536, and visits until the next sample.
    Sampled { mean: u64, visits: u32 },
}

/// Receives frames from a device.
pub struct DpdkReceive {
    device: Arc<DpdkDevice>,
    byte_counting: ByteCounting,
    counters: Arc<QueueCounters>,
    dropped: [u64; 3],
}

/// Sends frames to a device.
pub struct DpdkTransmit {
    device: Arc<DpdkDevice>,
    /// Longest frame that fits a buffer of the device, in bytes.
    max_frame_bytes: usize,
    counters: Arc<QueueCounters>,
}

fn open(url: &PortUrl, _: &FrameRegion) -> Result<Vec<AnyPort>, PortError> {
    let failed = |source: io::Error| open_error(url, "root", "start DPDK's device", source);
    let device = DpdkDevice::open(url.name(), url.rxd(), url.mtu()).map_err(failed)?;
    let device = Arc::new(device);
    let mut capabilities = PortCapabilities {
        address: device.address,
        receive_descriptors: Some(device.descriptors.0.into()),
        transmit_descriptors: Some(device.descriptors.1.into()),
        copies: FrameCopy::EachDirection,
        ..PortCapabilities::plain(url.short_name(), url.frame_bytes())
    };
    capabilities
        .notes
        .push("mode io between two DPDK ports forwards DPDK's buffers without a copy; for a device without byte counters the bytes are estimated from one burst in 64".to_owned());
    let port = PortQueues {
        receive: DpdkReceive {
            device: Arc::clone(&device),
            byte_counting: ByteCounting::AllFrames(BYTE_COUNT_CHECK_VISITS),
            counters: Arc::default(),
            dropped: [0; 3],
        },
        transmit: DpdkTransmit {
            device,
            max_frame_bytes: url.frame_bytes().into(),
            counters: Arc::default(),
        },
        capabilities,
    };
    Ok(vec![port.into_any()])
}

impl DpdkReceive {
    /// Forwards received frames to `connect`, unread; returns the number received.
    fn forward_to(&mut self, to: &mut DpdkTransmit, most: usize) -> usize {
        let sized_polls = match self.byte_counting {
            ByteCounting::AllFrames(_) => POLLS_PER_VISIT,
            ByteCounting::Sampled { visits: 0, .. } => 1,
            ByteCounting::Sampled { .. } => 0,
        };
        let counts = self
            .device
            .forward_to(&to.device, most, POLLS_PER_VISIT, sized_polls);
        if counts.received == 0 {
            return 0;
        }
        let (received, sent) = (counts.received as usize, counts.sent as usize);
        let (received_bytes, sent_bytes) = self.count_bytes(&counts);
        self.counters.add_frames(received, received_bytes);
        to.counters.add_frames(sent, sent_bytes);
        if sent < received {
            to.counters
                .add_drops(DropCause::RingFull, (received - sent) as u64);
        }
        received
    }

    /// Bytes received and sent, read or estimated.
    #[inline]
    fn count_bytes(&mut self, counts: &DirectForwardCounts) -> (u64, u64) {
        match &mut self.byte_counting {
            ByteCounting::AllFrames(0) => {
                self.byte_counting = match self.device.counts_bytes() {
                    Some(false) => ByteCounting::Sampled {
                        mean: mean_frame_bytes(counts),
                        visits: SAMPLE_INTERVAL_VISITS,
                    },
                    _ => ByteCounting::AllFrames(u32::MAX),
                };
                (counts.received_bytes, counts.sent_bytes)
            }
            ByteCounting::AllFrames(visits) => {
                *visits -= 1;
                (counts.received_bytes, counts.sent_bytes)
            }
            ByteCounting::Sampled {
                mean: bytes,
                visits,
            } => {
                if counts.sized > 0 {
                    (*bytes, *visits) = (mean_frame_bytes(counts), SAMPLE_INTERVAL_VISITS);
                }
                *visits -= 1;
                let of = |frames: u32| (u64::from(frames) * *bytes) >> 16;
                (of(counts.received), of(counts.sent))
            }
        }
    }
}

/// Mean bytes of the frames whose lengths were read, times 65,536.
fn mean_frame_bytes(counts: &DirectForwardCounts) -> u64 {
    (counts.received_bytes << 16) / u64::from(counts.sized.max(1))
}

impl RxQueue for DpdkReceive {
    fn receive(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        let (mut received, mut bytes) = (0, 0);
        let max_bytes = usize::from(pool.memory().frame_bytes());
        let counters = &self.counters;
        self.device.receive(burst.remaining(), |frame| {
            let cause = match frame.len() {
                0 => DropCause::Invalid,
                length if length > max_bytes => DropCause::TooLong,
                length => match pool.allocate() {
                    None => DropCause::NoBuffer,
                    Some(mut slot) => {
                        slot.set_len(length as u16);
                        copy_in_chunks(pool.memory().bytes_mut(&mut slot), frame);
                        received += usize::from(burst.push(slot).is_ok());
                        bytes += length as u64;
                        return;
                    }
                },
            };
            counters.add_drops(cause, 1);
        });
        if received > 0 {
            self.counters.add_frames(received, bytes);
        }
        received
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        let dropped = self.device.read_drops();
        for ((cause, now), before) in [DropCause::RingFull, DropCause::Invalid, DropCause::NoBuffer]
            .into_iter()
            .zip(dropped)
            .zip(self.dropped)
        {
            if now > before {
                self.counters.add_drops(cause, now - before);
            }
        }
        self.dropped = dropped;
        Ok(())
    }

    #[inline]
    fn forward_direct<T: TxQueue>(&mut self, to: &mut T, most: usize) -> Option<usize> {
        Some(self.forward_to(to.as_dpdk()?, most))
    }
}

impl DpdkTransmit {
    /// Drops frames longer than a buffer of the device; returns their number.
    #[cold]
    fn drop_long_frames(&self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        let max_bytes = self.max_frame_bytes;
        let mut dropped = 0;
        burst.retain(
            |frame| usize::from(frame.len()) <= max_bytes,
            |frame| {
                pool.free(frame);
                dropped += 1;
            },
        );
        self.counters.add_drops(DropCause::TooLong, dropped as u64);
        dropped
    }
}

impl TxQueue for DpdkTransmit {
    fn transmit(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        let mut frames: [&[u8]; BURST_FRAMES] = [&[]; BURST_FRAMES];
        let (mut count, mut is_long) = (0, false);
        for (frame, bytes) in burst.frames().iter().zip(&mut frames) {
            *bytes = pool.memory().bytes(frame);
            is_long |= bytes.len() > self.max_frame_bytes;
            count += 1;
        }
        if is_long {
            return self.drop_long_frames(pool, burst) + self.transmit(pool, burst);
        }
        let sent = match count {
            0 => 0,
            count => self.device.transmit(&frames[..count]),
        };
        let bytes = frames[..sent].iter().map(|frame| frame.len() as u64).sum();
        if sent > 0 {
            pool.free_front(burst, sent);
            self.counters.add_frames(sent, bytes);
        }
        sent
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn as_dpdk(&mut self) -> Option<&mut DpdkTransmit> {
        Some(self)
    }
}
