//! Rings of slots of one size (`TPACKET_V2`): one to receive and one to send.

use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::socket::RingMap;
use super::{PacketMeta, PacketSocket, ReceiveRing};
use crate::frames::chunked_copy::copy_in_chunks;

/// Maximum bytes in front of a frame in a slot: both headers, their alignment, and space for the
/// kernel to align the network header (`TPACKET2_HDRLEN` and 16 in net/packet/af_packet.c).
const SLOT_HEADER_BYTES: usize = 96;
/// Offset of a frame to send in its slot: behind the header, aligned to 16 bytes.
const TRANSMIT_OFFSET: usize = mem::size_of::<libc::tpacket2_hdr>().next_multiple_of(16);

/// Layout of a ring: slots have a power of two, so that blocks have no gaps.
struct RingLayout {
    slot_bytes: usize,
    slots: usize,
    request: libc::tpacket_req,
}

impl RingLayout {
    fn new(frame_bytes: usize, descriptors: u32) -> Self {
        let page = rustix::param::page_size();
        let slot_bytes = (frame_bytes + SLOT_HEADER_BYTES).next_power_of_two();
        let block_bytes = slot_bytes.max(page);
        let blocks = (descriptors as usize).div_ceil(block_bytes / slot_bytes);
        let slots = blocks * (block_bytes / slot_bytes);
        Self {
            slot_bytes,
            slots,
            request: libc::tpacket_req {
                tp_block_size: block_bytes as libc::c_uint,
                tp_block_nr: blocks as libc::c_uint,
                tp_frame_size: slot_bytes as libc::c_uint,
                tp_frame_nr: slots as libc::c_uint,
            },
        }
    }

    fn map(&self, socket: &PacketSocket, option: i32) -> io::Result<RingMap> {
        let version = libc::tpacket_versions::TPACKET_V2 as i32;
        socket.set_packet_option(libc::PACKET_VERSION, version)?;
        socket.set_option(libc::SOL_PACKET, option, &self.request)?;
        RingMap::new(socket, self.slot_bytes * self.slots)
    }
}

struct SlotRingV2 {
    map: RingMap,
    slot_bytes: usize,
    slots: usize,
    next: usize,
}

impl SlotRingV2 {
    fn new(
        socket: &PacketSocket,
        option: i32,
        frame_bytes: usize,
        descriptors: u32,
    ) -> io::Result<Self> {
        let layout = RingLayout::new(frame_bytes, descriptors);
        Ok(Self {
            map: layout.map(socket, option)?,
            slot_bytes: layout.slot_bytes,
            slots: layout.slots,
            next: 0,
        })
    }

    fn offset(&self) -> usize {
        self.next * self.slot_bytes
    }

    fn header(&self) -> *mut libc::tpacket2_hdr {
        self.map.at(self.offset())
    }

    /// Status of the current slot, which determines if the kernel or this process owns it.
    fn status(&self) -> &AtomicU32 {
        // SAFETY: within the mapping, since `header` is.
        let status = unsafe { &raw mut (*self.header()).tp_status };
        // SAFETY: mapped and aligned (slots begin at multiples of 64), and accessed in no other
        // way.
        unsafe { AtomicU32::from_ptr(status) }
    }

    fn advance(&mut self) {
        self.next += 1;
        if self.next == self.slots {
            self.next = 0;
        }
    }
}

/// Receive ring, filled by the kernel.
pub struct ReceiveV2(SlotRingV2);

impl ReceiveV2 {
    /// Creates a ring for at least this many frames.
    pub fn new(socket: &PacketSocket, frame_bytes: usize, descriptors: u32) -> io::Result<Self> {
        SlotRingV2::new(socket, libc::PACKET_RX_RING, frame_bytes, descriptors).map(Self)
    }

    /// Number of frames that it holds.
    pub fn descriptors(&self) -> u32 {
        self.0.slots as u32
    }
}

impl ReceiveRing for ReceiveV2 {
    fn peek(&mut self) -> Option<(&[u8], PacketMeta)> {
        let status = self.0.status().load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: this process owns the slot while it has this status; the kernel wrote the header
        // before.
        let header = unsafe { ptr::read(self.0.header()) };
        let at = self.0.offset() + usize::from(header.tp_mac);
        let available = self.0.slot_bytes - usize::from(header.tp_mac).min(self.0.slot_bytes);
        let captured = (header.tp_snaplen as usize).min(available);
        // SAFETY: this process owns the slot until `release`.
        let bytes = unsafe { self.0.map.bytes(at, captured) };
        let meta = PacketMeta::new(
            header.tp_len as usize,
            status,
            header.tp_vlan_tci,
            header.tp_vlan_tpid,
        );
        Some((bytes, meta))
    }

    fn release(&mut self) {
        let kernel = libc::TP_STATUS_KERNEL;
        self.0.status().store(kernel, Ordering::Release);
        self.0.advance();
    }
}

/// Transmit ring, read by the kernel.
pub struct TransmitV2 {
    ring: SlotRingV2,
    /// Frames were put in since the last successful kick.
    has_pending: bool,
}

impl TransmitV2 {
    /// Creates a ring for at least this many frames.
    pub fn new(socket: &PacketSocket, frame_bytes: usize, descriptors: u32) -> io::Result<Self> {
        // With this option the kernel skips an invalid frame instead of stopping the ring.
        socket.set_packet_option(libc::PACKET_LOSS, 1)?;
        SlotRingV2::new(socket, libc::PACKET_TX_RING, frame_bytes, descriptors).map(|ring| Self {
            ring,
            has_pending: false,
        })
    }

    /// Number of frames that it holds.
    pub fn descriptors(&self) -> u32 {
        self.ring.slots as u32
    }

    /// Puts a frame into the next slot, if that is free and the frame fits.
    pub fn push(&mut self, frame: &[u8]) -> bool {
        let available = libc::TP_STATUS_AVAILABLE;
        if self.ring.status().load(Ordering::Acquire) != available
            || TRANSMIT_OFFSET + frame.len() > self.ring.slot_bytes
        {
            return false;
        }
        let at = self.ring.offset() + TRANSMIT_OFFSET;
        // SAFETY: this process owns the slot until it sets its status to a send request.
        let slot = unsafe { self.ring.map.bytes_mut(at, frame.len()) };
        copy_in_chunks(slot, frame);
        let header = self.ring.header();
        // SAFETY: as above.
        unsafe { (*header).tp_len = frame.len() as u32 };
        let request = libc::TP_STATUS_SEND_REQUEST;
        self.ring.status().store(request, Ordering::Release);
        self.ring.advance();
        self.has_pending = true;
        true
    }

    /// Returns true if frames were put in since the last successful kick.
    pub fn has_pending(&self) -> bool {
        self.has_pending
    }

    /// Makes the kernel send the frames in the ring.
    pub fn kick(&mut self, socket: &PacketSocket) -> io::Result<()> {
        socket.kick()?;
        self.has_pending = false;
        Ok(())
    }
}
