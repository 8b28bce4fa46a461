//! Receive queue of `packet:` ports.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::{HEADER_BYTES, fault, flaw, set_buffer, stopped};
use crate::checksum;
use crate::chunked_copy::copy;
use crate::counters::{Cause, QueueCounters};
use crate::error::PortError;
use crate::frame_pool::Pool;
use crate::port_url::{Onward, PortUrl};
use crate::queue::Receive;
use crate::sys::burst::{BURST_FRAMES, Burst};
use crate::sys::frame::Frame;
use crate::sys::frame_memory::Memory;
use crate::sys::interface_ioctl::Facts;
use crate::sys::packet::{
    Meta, MmsgReceive, PacketSocket, Promiscuous, ReceiveRing, ReceiveV2, ReceiveV3,
};

/// Bytes of a VLAN tag.
const TAG_BYTES: u16 = 4;

/// Receives frames from an interface.
pub struct PacketReceive {
    socket: PacketSocket,
    way: ReceiveWay,
    frame_bytes: u16,
    counters: Arc<QueueCounters>,
    port: String,
    stopped: Option<io::Error>,
    /// Keeps the interface in promiscuous mode as long as the queue exists.
    _promiscuous: Promiscuous,
}

enum ReceiveWay {
    Mmsg {
        call: MmsgReceive,
        /// Memory that the frames belong to.
        memory: Memory,
        /// Empty frames that the next call fills.
        waiting: Vec<Frame>,
    },
    V2(ReceiveV2),
    V3(ReceiveV3),
}

impl Drop for ReceiveWay {
    fn drop(&mut self) {
        if let Self::Mmsg {
            memory, waiting, ..
        } = self
        {
            memory.take_back(waiting.drain(..));
        }
    }
}

impl PacketReceive {
    /// Opens the queue; returns it with its number of descriptors.
    pub(super) fn open(
        url: &PortUrl,
        memory: &Memory,
        facts: &Facts,
        promiscuous: &Promiscuous,
        frame_bytes: u16,
        port: String,
    ) -> io::Result<(Self, u32)> {
        let socket = PacketSocket::open()?;
        // Without this option the port would receive the frames that it sends.
        socket.set_packet(libc::PACKET_IGNORE_OUTGOING, 1)?;
        let largest = usize::from(frame_bytes);
        let faster = match url.common().onward {
            Onward::Reader => None,
            Onward::Port => Some("2"),
            Onward::Counter => Some("3"),
        };
        let (way, descriptors) = match url.text("v").or(faster) {
            Some("2") => {
                let ring = ReceiveV2::new(&socket, largest, url.rxd())?;
                let descriptors = ring.descriptors();
                (ReceiveWay::V2(ring), descriptors)
            }
            Some("3") => {
                let ring = ReceiveV3::new(&socket, largest, url.rxd())?;
                let descriptors = ring.descriptors();
                (ReceiveWay::V3(ring), descriptors)
            }
            _ => {
                socket.set_packet(libc::PACKET_AUXDATA, 1)?;
                set_buffer(&socket, true, url.rxd())?;
                let way = ReceiveWay::Mmsg {
                    call: MmsgReceive::new(),
                    memory: memory.clone(),
                    waiting: Vec::with_capacity(BURST_FRAMES),
                };
                (way, url.rxd())
            }
        };
        socket.bind(facts, true)?;
        let queue = Self {
            socket,
            way,
            frame_bytes,
            counters: Arc::default(),
            port,
            stopped: None,
            _promiscuous: promiscuous.clone(),
        };
        Ok((queue, descriptors))
    }

    /// Shares the interface's frames with the other queues of a fanout group; returns the group.
    pub(super) fn join(&self, group: Option<u16>) -> io::Result<u16> {
        self.socket.join_fanout(group)
    }

    fn receive_calls(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        let ReceiveWay::Mmsg { call, waiting, .. } = &mut self.way else {
            return 0;
        };
        let room = burst.room();
        while waiting.len() < room
            && let Some(mut frame) = pool.allocate()
        {
            frame.set_len(self.frame_bytes);
            waiting.push(frame);
        }
        let usable = waiting.len().min(room);
        let count = match call.receive(&self.socket, pool.memory(), &mut waiting[..usable]) {
            Ok(count) => count,
            Err(error) => {
                self.stopped = self.stopped.take().or(fault(error));
                return 0;
            }
        };
        let (mut kept, mut bytes) = (0, 0);
        for (at, mut frame) in waiting.drain(..count).enumerate() {
            let meta = call.meta(at);
            if let Some(cause) = flaw(meta.length, self.frame_bytes) {
                self.counters.dropped(cause, 1);
                pool.free(frame);
                continue;
            }
            frame.set_len(meta.length as u16);
            finish(pool.memory(), &mut frame, &meta);
            bytes += u64::from(frame.len());
            kept += usize::from(burst.push(frame).is_ok());
        }
        self.counters.moved(kept, bytes);
        kept
    }
}

fn receive_ring(
    ring: &mut impl ReceiveRing,
    frame_bytes: u16,
    counters: &QueueCounters,
    pool: &mut Pool,
    burst: &mut Burst,
) -> usize {
    let (mut kept, mut bytes) = (0, 0);
    while !burst.is_full() {
        let Some((data, meta)) = ring.peek() else {
            break;
        };
        if let Some(cause) = flaw(meta.length.max(data.len()), frame_bytes) {
            counters.dropped(cause, 1);
            ring.release();
            continue;
        }
        // Without a free buffer the frame stays in the kernel's ring, until one is freed or the
        // ring is full.
        let Some(mut frame) = pool.allocate() else {
            break;
        };
        frame.set_len(data.len() as u16);
        copy(pool.memory().bytes_mut(&mut frame), data);
        ring.release();
        finish(pool.memory(), &mut frame, &meta);
        bytes += u64::from(frame.len());
        kept += usize::from(burst.push(frame).is_ok());
    }
    if kept > 0 {
        counters.moved(kept, bytes);
    }
    kept
}

/// Inserts the VLAN tag that the kernel removed, and completes a partial checksum.
fn finish(memory: &Memory, frame: &mut Frame, meta: &Meta) {
    if let Some(tag) = meta.vlan
        && usize::from(frame.len()) >= HEADER_BYTES
        && frame.offset() >= TAG_BYTES
    {
        frame.set_offset(frame.offset() - TAG_BYTES);
        frame.set_len(frame.len() + TAG_BYTES);
        let bytes = memory.bytes_mut(frame);
        bytes.copy_within(4..16, 0);
        bytes[12..16].copy_from_slice(&tag);
    }
    if meta.checksum_open {
        checksum::complete(memory.bytes_mut(frame));
    }
}

impl Receive for PacketReceive {
    fn receive(&mut self, pool: &mut Pool, burst: &mut Burst) -> usize {
        match &mut self.way {
            ReceiveWay::Mmsg { .. } => self.receive_calls(pool, burst),
            ReceiveWay::V2(ring) => {
                receive_ring(ring, self.frame_bytes, &self.counters, pool, burst)
            }
            ReceiveWay::V3(ring) => {
                receive_ring(ring, self.frame_bytes, &self.counters, pool, burst)
            }
        }
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        if let Ok(drops) = self.socket.take_drops() {
            self.counters.dropped(Cause::RingFull, drops);
        }
        let error = self.stopped.take();
        stopped(
            &self.port,
            error.or(self.socket.take_error().ok().flatten()),
        )
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}
