//! `dpdk:` is any device of DPDK: `dpdk:net_ring0`, `dpdk:net_af_packet0,iface=eth0`, `dpdk:0000:01:00.0`.
//!
//! With the cargo feature `dpdk` only: it needs libdpdk, found by pkg-config (Debian: libdpdk-dev). What
//! is behind the colon goes to the EAL as it is. One queue each way; a frame is copied once on its way
//! in and once on its way out, except by mode `io` between two such ports, which hands DPDK's own
//! buffers on.

use std::io;
use std::sync::Arc;

use crate::capabilities::{Capabilities, Copies};
use crate::counters::{Cause, QueueCounters};
use crate::error::PortError;
use crate::interface::refused;
use crate::kind::{Kind, Name, unchecked, usual_memory};
use crate::pool::Pool;
use crate::port::{AnyPort, Pair, Receive, Transmit};
use crate::sys::burst::{BURST_FRAMES, Burst};
use crate::sys::dpdk::Device;
use crate::sys::memory::Memory;
use crate::url::PortUrl;

/// This kind's line.
pub const KIND: Kind = Kind {
    scheme: "dpdk",
    about: "a device of DPDK, physical or virtual (feature dpdk)",
    name: Name::Whole("a device as the EAL knows it"),
    example: "dpdk:net_ring0",
    keys: &[],
    descriptors: 1024,
    check: unchecked,
    memory: usual_memory,
    open,
};

/// Receives from a device.
pub struct DpdkReceive {
    device: Arc<Device>,
    counters: Arc<QueueCounters>,
    dropped: [u64; 3],
}

/// Sends to a device.
pub struct DpdkTransmit {
    device: Arc<Device>,
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
        .push("mode io between two DPDK ports hands DPDK's buffers on, without a copy".to_owned());
    let port = Pair {
        receive: DpdkReceive {
            device: Arc::clone(&device),
            counters: Arc::default(),
            dropped: [0; 3],
        },
        transmit: DpdkTransmit {
            device,
            counters: Arc::default(),
        },
        capabilities,
    };
    Ok(vec![port.any()])
}

impl DpdkReceive {
    /// One poll whose frames leave by `to`, unread; returns how many came.
    fn hand_over(&mut self, to: &mut DpdkTransmit, most: usize) -> usize {
        let (came, left) = self.device.pass(&to.device, most);
        if came.0 > 0 {
            self.counters.moved(came.0, came.1);
            to.counters.moved(left.0, left.1);
            if left.0 < came.0 {
                to.counters
                    .dropped(Cause::RingFull, (came.0 - left.0) as u64);
            }
        }
        came.0
    }
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
                        pool.memory().bytes_mut(&mut slot).copy_from_slice(frame);
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

impl Transmit for DpdkTransmit {
    fn transmit(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let mut frames: [&[u8]; BURST_FRAMES] = [&[]; BURST_FRAMES];
        let mut count = 0;
        for (frame, bytes) in burst.frames().iter().zip(&mut frames) {
            *bytes = pool.memory().bytes(frame);
            count += 1;
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
