//! Receive queue of `packet:` ports.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use linerate_packet::checksum;
use linerate_packet::frame::ETHERNET_HEADER_BYTES;
use linerate_sys::af_packet::{
    MmsgReceive, PacketMeta, PacketSocket, PromiscuousMode, ReceiveRing, ReceiveV2, ReceiveV3,
};
use linerate_sys::frames::burst::{BURST_FRAMES, Burst};
use linerate_sys::frames::chunked_copy::copy_in_chunks;
use linerate_sys::frames::frame::Frame;
use linerate_sys::frames::frame_memory::FrameRegion;
use linerate_sys::frames::frame_pool::FramePool;
use linerate_sys::interface_ioctl::LinkAttributes;

use super::{INTERFACE_GONE, length_error, permanent_error, set_buffer};
use crate::counters::{DropCause, QueueCounters};
use crate::error::PortError;
use crate::kinds::check_stopped;
use crate::port_url::{PortUrl, RxDestination};
use crate::queue::RxQueue;

/// Bytes of a VLAN tag.
const VLAN_TAG_BYTES: u16 = 4;

/// Receives frames from an interface.
pub struct PacketReceive {
    socket: PacketSocket,
    mode: PacketReceiveMode,
    frame_bytes: u16,
    counters: Arc<QueueCounters>,
    port: String,
    stop_error: Option<io::Error>,
    /// Keeps the interface in promiscuous mode as long as the queue exists.
    _promiscuous: PromiscuousMode,
}

enum PacketReceiveMode {
    Mmsg {
        mmsg: MmsgReceive,
        /// Memory that the frames belong to.
        memory: FrameRegion,
        /// Empty frames that the next call fills.
        spare: Vec<Frame>,
    },
    V2(ReceiveV2),
    V3(ReceiveV3),
}

impl Drop for PacketReceiveMode {
    fn drop(&mut self) {
        if let Self::Mmsg { memory, spare, .. } = self {
            memory.reclaim(spare.drain(..));
        }
    }
}

impl PacketReceive {
    /// Opens the queue; returns it with its number of descriptors.
    pub(super) fn open(
        url: &PortUrl,
        memory: &FrameRegion,
        attributes: &LinkAttributes,
        promiscuous: &PromiscuousMode,
        frame_bytes: u16,
        port: String,
    ) -> io::Result<(Self, u32)> {
        let socket = PacketSocket::open()?;
        // Without this option the port would receive the frames that it sends.
        socket.set_packet_option(libc::PACKET_IGNORE_OUTGOING, 1)?;
        let max_bytes = usize::from(frame_bytes);
        let default_mode = match url.common().rx_destination {
            RxDestination::Reader => None,
            RxDestination::Port => Some("2"),
            RxDestination::Counter => Some("3"),
        };
        let (mode, descriptors) = match url.text("v").or(default_mode) {
            Some("2") => {
                let ring = ReceiveV2::new(&socket, max_bytes, url.rxd())?;
                let descriptors = ring.descriptors();
                (PacketReceiveMode::V2(ring), descriptors)
            }
            Some("3") => {
                let ring = ReceiveV3::new(&socket, max_bytes, url.rxd())?;
                let descriptors = ring.descriptors();
                (PacketReceiveMode::V3(ring), descriptors)
            }
            _ => {
                socket.set_packet_option(libc::PACKET_AUXDATA, 1)?;
                set_buffer(&socket, true, url.rxd())?;
                let mode = PacketReceiveMode::Mmsg {
                    mmsg: MmsgReceive::default(),
                    memory: memory.clone(),
                    spare: Vec::with_capacity(BURST_FRAMES),
                };
                (mode, url.rxd())
            }
        };
        socket.bind(attributes, true)?;
        let queue = Self {
            socket,
            mode,
            frame_bytes,
            counters: Arc::default(),
            port,
            stop_error: None,
            _promiscuous: promiscuous.clone(),
        };
        Ok((queue, descriptors))
    }

    /// Shares the interface's frames with the other queues of a fanout group; returns the group.
    pub(super) fn join_fanout(&self, group: Option<u16>) -> io::Result<u16> {
        self.socket.join_fanout(group)
    }

    fn receive_calls(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        let PacketReceiveMode::Mmsg { mmsg, spare, .. } = &mut self.mode else {
            return 0;
        };
        let capacity = burst.remaining();
        while spare.len() < capacity
            && let Some(mut frame) = pool.allocate()
        {
            frame.set_len(self.frame_bytes);
            spare.push(frame);
        }
        let usable = spare.len().min(capacity);
        let count = match mmsg.receive(&self.socket, pool.memory(), &mut spare[..usable]) {
            Ok(count) => count,
            Err(error) => {
                self.stop_error = self.stop_error.take().or(permanent_error(error));
                return 0;
            }
        };
        let (mut received, mut bytes) = (0, 0);
        for (at, mut frame) in spare.drain(..count).enumerate() {
            let meta = mmsg.meta(at);
            if let Some(cause) = length_error(meta.length, self.frame_bytes) {
                self.counters.add_drops(cause, 1);
                pool.free(frame);
                continue;
            }
            frame.set_len(meta.length as u16);
            restore_offloaded_fields(pool.memory(), &mut frame, &meta);
            bytes += u64::from(frame.len());
            received += usize::from(burst.push(frame).is_ok());
        }
        self.counters.add_frames(received, bytes);
        received
    }
}

fn receive_ring(
    ring: &mut impl ReceiveRing,
    frame_bytes: u16,
    counters: &QueueCounters,
    pool: &mut FramePool,
    burst: &mut Burst,
) -> usize {
    let (mut received, mut bytes) = (0, 0);
    while !burst.is_full() {
        let Some((data, meta)) = ring.peek() else {
            break;
        };
        if let Some(cause) = length_error(meta.length.max(data.len()), frame_bytes) {
            counters.add_drops(cause, 1);
            ring.release();
            continue;
        }
        // Without a free buffer the frame stays in the kernel's ring, until one is freed or the
        // ring is full.
        let Some(mut frame) = pool.allocate() else {
            break;
        };
        frame.set_len(data.len() as u16);
        copy_in_chunks(pool.memory().bytes_mut(&mut frame), data);
        ring.release();
        restore_offloaded_fields(pool.memory(), &mut frame, &meta);
        bytes += u64::from(frame.len());
        received += usize::from(burst.push(frame).is_ok());
    }
    if received > 0 {
        counters.add_frames(received, bytes);
    }
    received
}

/// Inserts the VLAN tag that the kernel removed, and completes a partial checksum.
fn restore_offloaded_fields(memory: &FrameRegion, frame: &mut Frame, meta: &PacketMeta) {
    if let Some(tag) = meta.vlan_tag
        && usize::from(frame.len()) >= ETHERNET_HEADER_BYTES
        && frame.offset() >= VLAN_TAG_BYTES
    {
        frame.set_offset(frame.offset() - VLAN_TAG_BYTES);
        frame.set_len(frame.len() + VLAN_TAG_BYTES);
        let bytes = memory.bytes_mut(frame);
        bytes.copy_within(4..16, 0);
        bytes[12..16].copy_from_slice(&tag);
    }
    if meta.partial_checksum {
        checksum::complete(memory.bytes_mut(frame));
    }
}

impl RxQueue for PacketReceive {
    fn receive(&mut self, pool: &mut FramePool, burst: &mut Burst) -> usize {
        match &mut self.mode {
            PacketReceiveMode::Mmsg { .. } => self.receive_calls(pool, burst),
            PacketReceiveMode::V2(ring) => {
                receive_ring(ring, self.frame_bytes, &self.counters, pool, burst)
            }
            PacketReceiveMode::V3(ring) => {
                receive_ring(ring, self.frame_bytes, &self.counters, pool, burst)
            }
        }
    }

    fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    fn refresh(&mut self) -> Result<(), PortError> {
        if let Ok(drops) = self.socket.take_drops() {
            self.counters.add_drops(DropCause::RingFull, drops);
        }
        let error = self.stop_error.take();
        check_stopped(
            &self.port,
            error.or(self.socket.take_error().ok().flatten()),
            &INTERFACE_GONE,
        )
    }

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}
