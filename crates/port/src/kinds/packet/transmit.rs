//! Transmit queue of `packet:` ports.

use std::io;
use std::sync::Arc;

use linerate_sys::af_packet::{MmsgTransmit, PacketSocket, TransmitV2};
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_pool::FramePool;
use linerate_sys::interface_ioctl::LinkAttributes;

use super::{INTERFACE_GONE, length_error, permanent_error, set_buffer};
use crate::counters::{DropCause, QueueCounters};
use crate::error::PortError;
use crate::kinds::check_stopped;
use crate::port_url::PortUrl;
use crate::queue::TxQueue;

/// Sends frames on an interface.
pub struct PacketTransmit {
    socket: PacketSocket,
    mode: PacketTransmitMode,
    frame_bytes: u16,
    counters: Arc<QueueCounters>,
    port: String,
    stop_error: Option<io::Error>,
}

enum PacketTransmitMode {
    Mmsg(MmsgTransmit),
    Ring(TransmitV2),
}

impl PacketTransmit {
    /// Opens the queue; returns it with its number of descriptors.
    pub(super) fn open(
        url: &PortUrl,
        attributes: &LinkAttributes,
        frame_bytes: u16,
        port: String,
    ) -> io::Result<(Self, u32)> {
        let socket = PacketSocket::open()?;
        if !url.parse_flag("qdisc") {
            socket.set_packet_option(libc::PACKET_QDISC_BYPASS, 1)?;
        }
        set_buffer(&socket, false, url.txd())?;
        let (mode, descriptors) = match url.text("v") {
            Some("2" | "3") => {
                let ring = TransmitV2::new(&socket, frame_bytes.into(), url.txd())?;
                let descriptors = ring.descriptors();
                (PacketTransmitMode::Ring(ring), descriptors)
            }
            _ => (PacketTransmitMode::Mmsg(MmsgTransmit::default()), url.txd()),
        };
        socket.bind(attributes, false)?;
        let queue = Self {
            socket,
            mode,
            frame_bytes,
            counters: Arc::default(),
            port,
            stop_error: None,
        };
        Ok((queue, descriptors))
    }

    fn transmit_calls(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        let PacketTransmitMode::Mmsg(mmsg) = &mut self.mode else {
            return 0;
        };
        let mut taken = 0;
        while !burst.is_empty() {
            let cause = match mmsg.send(&self.socket, pool.memory(), burst.frames()) {
                Ok(count) => {
                    self.counters
                        .add_frames(count, pool.free_front(burst, count));
                    return taken + count;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EMSGSIZE) => DropCause::TooLong,
                    Some(libc::EINVAL) => DropCause::Invalid,
                    _ => {
                        self.stop_error = self.stop_error.take().or(permanent_error(error));
                        break;
                    }
                },
            };
            pool.free_front(burst, 1);
            self.counters.add_drops(cause, 1);
            taken += 1;
        }
        taken
    }

    fn transmit_ring(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        let PacketTransmitMode::Ring(ring) = &mut self.mode else {
            return 0;
        };
        let (mut sent, mut bytes) = (0, 0);
        let taken = burst.take_front(|frame| {
            if let Some(cause) = length_error(frame.len().into(), self.frame_bytes) {
                self.counters.add_drops(cause, 1);
            } else if ring.push(pool.memory().bytes(&frame)) {
                sent += 1;
                bytes += u64::from(frame.len());
            } else {
                return Err(frame);
            }
            pool.free(frame);
            Ok(())
        });
        self.counters.add_frames(sent, bytes);
        self.kick();
        taken
    }

    fn kick(&mut self) {
        if let PacketTransmitMode::Ring(ring) = &mut self.mode
            && ring.has_pending()
            && let Err(error) = ring.kick(&self.socket)
        {
            self.stop_error = self.stop_error.take().or(permanent_error(error));
        }
    }
}

impl TxQueue for PacketTransmit {
    fn transmit(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        if burst.is_empty() {
            return 0;
        }
        match self.mode {
            PacketTransmitMode::Mmsg(_) => self.transmit_calls(pool, burst),
            PacketTransmitMode::Ring(_) => self.transmit_ring(pool, burst),
        }
    }

    fn reclaim(&mut self, _: &mut FramePool) -> usize {
        self.kick();
        0
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        let error = self.stop_error.take();
        check_stopped(
            &self.port,
            error.or(self.socket.take_error().ok().flatten()),
            &INTERFACE_GONE,
        )
    }
}
