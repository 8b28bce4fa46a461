//! Many frames per call: recvmmsg(2) and sendmmsg(2), directly into and from the frame memory.

use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;

use super::{PacketMeta, PacketSocket};
use crate::frames::burst::BURST_FRAMES;
use crate::frames::frame::Frame;
use crate::frames::frame_memory::FrameRegion;

/// 64-bit words of a buffer for one control message with a `tpacket_auxdata`, aligned as the kernel
/// requires.
const CONTROL_WORDS: usize = 8;

struct MessageVectors {
    headers: [libc::mmsghdr; BURST_FRAMES],
    buffers: [libc::iovec; BURST_FRAMES],
    control: [[u64; CONTROL_WORDS]; BURST_FRAMES],
}

// SAFETY: the pointers inside are set before each call, and refer to memory that no thread owns.
unsafe impl Send for MessageVectors {}

impl MessageVectors {
    fn new() -> Box<Self> {
        // SAFETY: arrays of plain C structures, for which all zeros are valid.
        Box::new(unsafe { mem::zeroed() })
    }

    /// Sets the first headers to these frames; returns their number.
    fn point_at(&mut self, memory: &FrameRegion, frames: &[Frame], control: bool) -> usize {
        let count = frames.len().min(BURST_FRAMES);
        for (at, frame) in frames[..count].iter().enumerate() {
            self.buffers[at] = libc::iovec {
                iov_base: memory.data_pointer(frame).cast(),
                iov_len: frame.len().into(),
            };
            let header = &mut self.headers[at].msg_hdr;
            header.msg_iov = &raw mut self.buffers[at];
            header.msg_iovlen = 1;
            if control {
                header.msg_control = self.control[at].as_mut_ptr().cast();
                header.msg_controllen = mem::size_of_val(&self.control[at]) as _;
            }
        }
        count
    }
}

/// Receives frames by recvmmsg(2).
pub struct MmsgReceive(Box<MessageVectors>);

impl Default for MmsgReceive {
    fn default() -> Self {
        Self(MessageVectors::new())
    }
}

impl MmsgReceive {
    /// Fills frames from the front of `frames`, each up to its length; returns their number.
    pub fn receive(
        &mut self,
        socket: &PacketSocket,
        memory: &FrameRegion,
        frames: &mut [Frame],
    ) -> io::Result<usize> {
        let count = self.0.point_at(memory, frames, true);
        // SAFETY: the first `count` headers refer to one buffer each, which lies in a frame that
        // `frames` borrows mutably, and to a control buffer of the given size.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.0.headers.as_mut_ptr(),
                count as libc::c_uint,
                (libc::MSG_DONTWAIT | libc::MSG_TRUNC) as _,
                ptr::null_mut(),
            )
        };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    /// Metadata of the frame with this index of the last call.
    pub fn meta(&self, at: usize) -> PacketMeta {
        let header = &self.0.headers[at];
        let length = header.msg_len as usize;
        // SAFETY: the kernel filled the control buffer up to `msg_controllen`.
        let control = unsafe { libc::CMSG_FIRSTHDR(&raw const header.msg_hdr) };
        if control.is_null() {
            return PacketMeta {
                length,
                ..PacketMeta::default()
            };
        }
        // SAFETY: not null, so a complete header.
        let (level, kind) = unsafe { ((*control).cmsg_level, (*control).cmsg_type) };
        if (level, kind) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
            return PacketMeta {
                length,
                ..PacketMeta::default()
            };
        }
        // SAFETY: not null.
        let data = unsafe { libc::CMSG_DATA(control) }.cast::<libc::tpacket_auxdata>();
        // SAFETY: a message of this type has one such structure, at any alignment.
        let aux = unsafe { data.read_unaligned() };
        PacketMeta::new(length, aux.tp_status, aux.tp_vlan_tci, aux.tp_vlan_tpid)
    }
}

/// Sends frames by sendmmsg(2).
pub struct MmsgTransmit(Box<MessageVectors>);

impl Default for MmsgTransmit {
    fn default() -> Self {
        Self(MessageVectors::new())
    }
}

impl MmsgTransmit {
    /// Sends frames from the front of `frames`; returns the number that the kernel has taken and
    /// copied. An error is that of the first frame.
    pub fn send(
        &mut self,
        socket: &PacketSocket,
        memory: &FrameRegion,
        frames: &[Frame],
    ) -> io::Result<usize> {
        let count = self.0.point_at(memory, frames, false);
        // SAFETY: the first `count` headers refer to one buffer each, which lies in a frame that
        // `frames` borrows; the kernel only reads.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.0.headers.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT as _,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}
