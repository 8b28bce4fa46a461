//! `dpdk:` is any DPDK device: `dpdk:net_ring0`, `dpdk:net_af_packet0,iface=eth0`,
//! `dpdk:0000:01:00.0`.
//!
//! Only with the cargo feature `dpdk`: it needs libdpdk, found by pkg-config (Debian: libdpdk-dev).
//! The text after the colon is passed to the EAL unchanged. A port has one receive and one transmit
//! queue. A frame is copied once on reception and once on transmission, except by mode `io` between
//! two such ports, which forwards DPDK's own buffers.

use std::io;
use std::sync::Arc;

use crate::capabilities::{Capabilities, Copies};
use crate::chunked_copy::copy;
use crate::counters::{Cause, QueueCounters};
use crate::error::PortError;
use crate::frame_pool::Pool;
use crate::interface_use::refused;
use crate::kinds::{Kind, Name, unchecked, usual_memory};
use crate::port_url::PortUrl;
use crate::queue::{AnyPort, Pair, Receive, Transmit};
use crate::sys::burst::{BURST_FRAMES, Burst};
use crate::sys::dpdk::{Device, Passed};
use crate::sys::frame_memory::Memory;

/// Description of the kind `dpdk:`.
pub const KIND: Kind = Kind {
    scheme: "dpdk",
    about: "a DPDK device, physical or virtual (feature dpdk)",
    name: Name::Whole("device as in EAL arguments"),
    example: "dpdk:net_ring0",
    keys: &[],
    descriptors: 1024,
    check: unchecked,
    memory: usual_memory,
    open,
};

/// Maximum number of polls per visit when frames are forwarded directly: it spreads the fixed cost
/// of a visit, and other streams of the thread wait for at most so many bursts.
const POLLS: u32 = 8;

/// Visits after which the device is checked for byte counters.
const ASKED_AFTER: u32 = 1024;

/// Visits of which the first poll of one reads the frame lengths, when lengths are sampled.
const WEIGHED_OF: u32 = 8;

/// Method of counting the bytes of directly forwarded frames. A device that counts bytes has the
/// lengths in its cache; on other devices, reading a length costs a cache miss, which is more than
/// forwarding the frame.
#[derive(Clone, Copy, Debug)]
enum Weighing {
    /// Reads all lengths; the device is checked after this many visits.
    Every(u32),
    /// Samples lengths; mean bytes of a frame times 65,536, and visits until the next sample.
    Some { mean: u64, visits: u32 },
}

/// Receives frames from a device.
pub struct DpdkReceive {
    device: Arc<Device>,
    weighing: Weighing,
    counters: Arc<QueueCounters>,
    dropped: [u64; 3],
}

/// Sends frames to a device.
pub struct DpdkTransmit {
    device: Arc<Device>,
    /// Longest frame that fits a buffer of the device, in bytes.
    longest: usize,
    counters: Arc<QueueCounters>,
}

fn open(url: &PortUrl, _: &Memory) -> Result<Vec<AnyPort>, PortError> {
    let failed = |source: io::Error| refused(url, "root", "start DPDK's device", source);
    let device = Device::open(url.name(), url.rxd(), url.mtu()).map_err(failed)?;
    let device = Arc::new(device);
    let mut capabilities = Capabilities {
        address: device.address,
        receive_descriptors: Some(device.descriptors.0.into()),
        transmit_descriptors: Some(device.descriptors.1.into()),
        copies: Copies::EachWay,
        ..Capabilities::plain(url.short(), url.frame_bytes())
    };
    capabilities
        .notes
        .push("mode io between two DPDK ports forwards DPDK's buffers without a copy; for a device without byte counters the bytes are estimated from one burst in 64".to_owned());
    let port = Pair {
        receive: DpdkReceive {
            device: Arc::clone(&device),
            weighing: Weighing::Every(ASKED_AFTER),
            counters: Arc::default(),
            dropped: [0; 3],
        },
        transmit: DpdkTransmit {
            device,
            longest: url.frame_bytes().into(),
            counters: Arc::default(),
        },
        capabilities,
    };
    Ok(vec![port.any()])
}

impl DpdkReceive {
    /// Forwards received frames to `to`, unread; returns the number received.
    fn hand_over(&mut self, to: &mut DpdkTransmit, most: usize) -> usize {
        let weigh = match self.weighing {
            Weighing::Every(_) => POLLS,
            Weighing::Some { visits: 0, .. } => 1,
            Weighing::Some { .. } => 0,
        };
        let passed = self.device.pass(&to.device, most, POLLS, weigh);
        if passed.came == 0 {
            return 0;
        }
        let (came, left) = (passed.came as usize, passed.left as usize);
        let (came_bytes, left_bytes) = self.weighed(&passed);
        self.counters.moved(came, came_bytes);
        to.counters.moved(left, left_bytes);
        if left < came {
            to.counters.dropped(Cause::RingFull, (came - left) as u64);
        }
        came
    }

    /// Bytes received and sent, read or estimated.
    #[inline]
    fn weighed(&mut self, passed: &Passed) -> (u64, u64) {
        match &mut self.weighing {
            Weighing::Every(0) => {
                self.weighing = match self.device.counts_bytes() {
                    Some(false) => Weighing::Some {
                        mean: mean(passed),
                        visits: WEIGHED_OF,
                    },
                    _ => Weighing::Every(u32::MAX),
                };
                (passed.came_bytes, passed.left_bytes)
            }
            Weighing::Every(visits) => {
                *visits -= 1;
                (passed.came_bytes, passed.left_bytes)
            }
            Weighing::Some {
                mean: bytes,
                visits,
            } => {
                if passed.weighed > 0 {
                    (*bytes, *visits) = (mean(passed), WEIGHED_OF);
                }
                *visits -= 1;
                let of = |frames: u32| (u64::from(frames) * *bytes) >> 16;
                (of(passed.came), of(passed.left))
            }
        }
    }
}

/// Mean bytes of the frames whose lengths were read, times 65,536.
fn mean(passed: &Passed) -> u64 {
    (passed.came_bytes << 16) / u64::from(passed.weighed.max(1))
}

impl Receive for DpdkReceive {
    fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let (mut kept, mut bytes) = (0, 0);
        let most = usize::from(pool.memory().frame_bytes());
        let counters = &self.counters;
        self.device.receive(burst.room(), |frame| {
            let cause = match frame.len() {
                0 => Cause::Bad,
                length if length > most => Cause::TooLong,
                length => match pool.allocate() {
                    None => Cause::NoBuffer,
                    Some(mut slot) => {
                        slot.set_len(length as u16);
                        copy(pool.memory().bytes_mut(&mut slot), frame);
                        kept += usize::from(burst.push(slot).is_ok());
                        bytes += length as u64;
                        return;
                    }
                },
            };
            counters.dropped(cause, 1);
        });
        if kept > 0 {
            self.counters.moved(kept, bytes);
        }
        kept
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        let dropped = self.device.dropped();
        for ((cause, now), before) in [Cause::RingFull, Cause::Bad, Cause::NoBuffer]
            .into_iter()
            .zip(dropped)
            .zip(self.dropped)
        {
            if now > before {
                self.counters.dropped(cause, now - before);
            }
        }
        self.dropped = dropped;
        Ok(())
    }

    #[inline]
    fn pass<T: Transmit>(&mut self, to: &mut T, most: usize) -> Option<usize> {
        Some(self.hand_over(to.as_dpdk()?, most))
    }
}

impl DpdkTransmit {
    /// Drops frames longer than a buffer of the device; returns their number.
    #[cold]
    fn refuse_long(&self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let longest = self.longest;
        let mut refused = 0;
        burst.retain(
            |frame| usize::from(frame.len()) <= longest,
            |frame| {
                pool.free(frame);
                refused += 1;
            },
        );
        self.counters.dropped(Cause::TooLong, refused as u64);
        refused
    }
}

impl Transmit for DpdkTransmit {
    fn transmit(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let mut frames: [&[u8]; BURST_FRAMES] = [&[]; BURST_FRAMES];
        let (mut count, mut is_long) = (0, false);
        for (frame, bytes) in burst.frames().iter().zip(&mut frames) {
            *bytes = pool.memory().bytes(frame);
            is_long |= bytes.len() > self.longest;
            count += 1;
        }
        if is_long {
            return self.refuse_long(pool, burst) + self.transmit(pool, burst);
        }
        let sent = match count {
            0 => 0,
            count => self.device.transmit(&frames[..count]),
        };
        let bytes = frames[..sent].iter().map(|frame| frame.len() as u64).sum();
        if sent > 0 {
            pool.free_front(burst, sent);
            self.counters.moved(sent, bytes);
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
