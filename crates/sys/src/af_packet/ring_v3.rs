//! Receive ring of blocks that hold as many frames as fit (`TPACKET_V3`).
//!
//! At high rates it costs less per frame than slots. A block is delivered when it is full or after
//! a millisecond, so it does not suit round trips.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::socket::RingMap;
use super::{PacketMeta, PacketSocket, ReceiveRing};

/// Bytes of a block: small enough that several exist with a few hundred descriptors.
const BLOCK_BYTES: usize = 64 * 1024;
/// Bytes that a frame needs in a block in addition to its data: header, addresses, alignment.
const FRAME_HEADER_BYTES: usize = 96;
/// Milliseconds after which a block is delivered although it is not full; the minimum.
const BLOCK_TIMEOUT_MS: u32 = 1;

/// Receive ring of blocks, filled by the kernel.
pub struct ReceiveV3 {
    map: RingMap,
    block_bytes: usize,
    blocks: usize,
    /// Block that is being read or waited for.
    current_block: usize,
    /// Offset of the next frame's header in the mapping.
    next_header: usize,
    frames_left: u32,
    descriptors: u32,
}

impl ReceiveV3 {
    /// Creates a ring for at least this many frames of maximum length.
    pub fn new(socket: &PacketSocket, frame_bytes: usize, descriptors: u32) -> io::Result<Self> {
        let slot = (frame_bytes + FRAME_HEADER_BYTES).next_power_of_two();
        let block_bytes = BLOCK_BYTES.max(slot).max(rustix::param::page_size());
        // One block is always being filled or read, so a single one would hold nothing.
        let blocks = (descriptors as usize).div_ceil(block_bytes / slot).max(2);
        let frames = blocks * (block_bytes / slot);
        let request = libc::tpacket_req3 {
            tp_block_size: block_bytes as libc::c_uint,
            tp_block_nr: blocks as libc::c_uint,
            tp_frame_size: slot as libc::c_uint,
            tp_frame_nr: frames as libc::c_uint,
            tp_retire_blk_tov: BLOCK_TIMEOUT_MS,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        let version = libc::tpacket_versions::TPACKET_V3 as i32;
        socket.set_packet_option(libc::PACKET_VERSION, version)?;
        socket.set_option(libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        Ok(Self {
            map: RingMap::new(socket, block_bytes * blocks)?,
            block_bytes,
            blocks,
            current_block: 0,
            next_header: 0,
            frames_left: 0,
            descriptors: frames as u32,
        })
    }

    /// Number of frames of maximum length that it holds.
    pub fn descriptors(&self) -> u32 {
        self.descriptors
    }
}

impl ReceiveRing for ReceiveV3 {
    fn peek(&mut self) -> Option<(&[u8], PacketMeta)> {
        if self.frames_left == 0 {
            self.open_block()?;
        }
        let header: *const libc::tpacket3_hdr = self.map.at(self.next_header);
        // SAFETY: within the mapping; this process owns the block until its last frame is released,
        // and the kernel wrote its headers before.
        let header = unsafe { ptr::read(header) };
        let at = self.next_header + usize::from(header.tp_mac);
        // SAFETY: as above; `bytes` checks that the frame ends within the mapping.
        let bytes = unsafe { self.map.bytes(at, header.tp_snaplen as usize) };
        let meta = PacketMeta::new(
            header.tp_len as usize,
            header.tp_status,
            header.hv1.tp_vlan_tci as u16,
            header.hv1.tp_vlan_tpid,
        );
        Some((bytes, meta))
    }

    fn release(&mut self) {
        let header: *const libc::tpacket3_hdr = self.map.at(self.next_header);
        // SAFETY: as in `peek`.
        let step = unsafe { (*header).tp_next_offset };
        self.next_header += step as usize;
        self.frames_left -= 1;
        if self.frames_left == 0 {
            self.close_block();
        }
    }
}

impl ReceiveV3 {
    fn open_block(&mut self) -> Option<()> {
        loop {
            let user = libc::TP_STATUS_USER;
            if self.status().load(Ordering::Acquire) & user == 0 {
                return None;
            }
            // SAFETY: within the mapping; this process owns the block, and the kernel wrote its
            // header before.
            let header = unsafe { &raw const (*self.block_descriptor()).hdr.bh1 };
            // SAFETY: as above.
            let header = unsafe { ptr::read(header) };
            if header.num_pkts > 0 {
                self.frames_left = header.num_pkts;
                self.next_header =
                    self.current_block * self.block_bytes + header.offset_to_first_pkt as usize;
                return Some(());
            }
            self.close_block();
        }
    }

    fn close_block(&mut self) {
        let kernel = libc::TP_STATUS_KERNEL;
        self.status().store(kernel, Ordering::Release);
        self.current_block += 1;
        if self.current_block == self.blocks {
            self.current_block = 0;
        }
    }

    fn block_descriptor(&self) -> *mut libc::tpacket_block_desc {
        self.map.at(self.current_block * self.block_bytes)
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: within the mapping, since `block_descriptor` is.
        let status = unsafe { &raw mut (*self.block_descriptor()).hdr.bh1.block_status };
        // SAFETY: mapped and aligned (blocks begin at pages), and accessed in no other way.
        unsafe { AtomicU32::from_ptr(status) }
    }
}
