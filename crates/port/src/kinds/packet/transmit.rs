//! Transmit queue of `packet:` ports.

use std::io;
use std::sync::Arc;

use super::{fault, flaw, set_buffer, stopped};
use crate::counters::{Cause, QueueCounters};
use crate::error::PortError;
use crate::frame_pool::Pool;
use crate::port_url::PortUrl;
use crate::queue::Transmit;
use crate::sys::burst::Burst;
use crate::sys::interface_ioctl::Facts;
use crate::sys::packet::{MmsgSend, PacketSocket, SendV2};

/// Sends frames on an interface.
pub struct PacketTransmit {
    socket: PacketSocket,
    way: TransmitWay,
    frame_bytes: u16,
    counters: Arc<QueueCounters>,
    port: String,
    stopped: Option<io::Error>,
}

enum TransmitWay {
    Mmsg(MmsgSend),
    Ring(SendV2),
}

impl PacketTransmit {
    /// Opens the queue; returns it with its number of descriptors.
    pub(super) fn open(
        url: &PortUrl,
        facts: &Facts,
        frame_bytes: u16,
        port: String,
    ) -> io::Result<(Self, u32)> {
        let socket = PacketSocket::open()?;
        if !url.flag("qdisc") {
            socket.set_packet(libc::PACKET_QDISC_BYPASS, 1)?;
        }
        set_buffer(&socket, false, url.txd())?;
        let (way, descriptors) = match url.text("v") {
            Some("2" | "3") => {
                let ring = SendV2::new(&socket, frame_bytes.into(), url.txd())?;
                let descriptors = ring.descriptors();
                (TransmitWay::Ring(ring), descriptors)
            }
            _ => (TransmitWay::Mmsg(MmsgSend::new()), url.txd()),
        };
        socket.bind(facts, false)?;
        let queue = Self {
            socket,
            way,
            frame_bytes,
            counters: Arc::default(),
            port,
            stopped: None,
        };
        Ok((queue, descriptors))
    }

    fn transmit_calls(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let TransmitWay::Mmsg(call) = &mut self.way else {
            return 0;
        };
        let mut taken = 0;
        while !burst.is_empty() {
            let cause = match call.send(&self.socket, pool.memory(), burst.frames()) {
                Ok(count) => {
                    self.counters.moved(count, pool.free_front(burst, count));
                    return taken + count;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EMSGSIZE) => Cause::TooLong,
                    Some(libc::EINVAL) => Cause::Bad,
                    _ => {
                        self.stopped = self.stopped.take().or(fault(error));
                        break;
                    }
                },
            };
            pool.free_front(burst, 1);
            self.counters.dropped(cause, 1);
            taken += 1;
        }
        taken
    }

    fn transmit_ring(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let TransmitWay::Ring(ring) = &mut self.way else {
            return 0;
        };
        let (mut sent, mut bytes) = (0, 0);
        let taken = burst.take_front(|frame| {
            if let Some(cause) = flaw(frame.len().into(), self.frame_bytes) {
                self.counters.dropped(cause, 1);
            } else if ring.put(pool.memory().bytes(&frame)) {
                sent += 1;
                bytes += u64::from(frame.len());
            } else {
                return Err(frame);
            }
            pool.free(frame);
            Ok(())
        });
        self.counters.moved(sent, bytes);
        self.kick();
        taken
    }

    fn kick(&mut self) {
        if let TransmitWay::Ring(ring) = &mut self.way
            && ring.waits()
            && let Err(error) = ring.kick(&self.socket)
        {
            self.stopped = self.stopped.take().or(fault(error));
        }
    }
}

impl Transmit for PacketTransmit {
    fn transmit(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        if burst.is_empty() {
            return 0;
        }
        match self.way {
            TransmitWay::Mmsg(_) => self.transmit_calls(pool, burst),
            TransmitWay::Ring(_) => self.transmit_ring(pool, burst),
        }
    }

    fn reclaim(&mut self, _: &mut Pool) -> usize {
        self.kick();
        0
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        let error = self.stopped.take();
        stopped(
            &self.port,
            error.or(self.socket.take_error().ok().flatten()),
        )
    }
}
