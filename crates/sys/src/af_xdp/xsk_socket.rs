//! AF_XDP sockets: UMEM registration, the four rings, binding to a queue, and the kernel's counters
//! (linux/if_xdp.h, Documentation/networking/af_xdp.rst).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::af_xdp::mapped_rings::{ReceiveRings, TransmitRings};
use crate::frames::frame_memory::FrameRegion;

/// Bytes in front of each received frame that the kernel uses itself (`XDP_PACKET_HEADROOM`).
pub const KERNEL_HEADROOM_BYTES: u32 = 256;

/// Number of entries of each ring, powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizes {
    /// Free buffers given to the kernel for reception.
    pub fill: u32,
    /// Buffers whose transmission is complete.
    pub completion: u32,
    /// Received frames.
    pub receive: u32,
    /// Frames to send.
    pub transmit: u32,
}

/// Counters of lost frames and rejected descriptors since the socket was created (`struct
/// xdp_statistics`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XskStatistics {
    /// Frames lost because they were too long for a buffer or, in copy mode, because no buffer was
    /// free.
    pub rx_dropped: u64,
    /// Buffers in the fill ring with an address outside the memory.
    pub rx_invalid: u64,
    /// Frames in the transmit ring that do not lie in one chunk.
    pub tx_invalid: u64,
    /// Frames lost because the receive ring was full; absent before Linux 5.9.
    pub rx_ring_full: Option<u64>,
    /// Times that the kernel needed a buffer and the fill ring was empty; absent before Linux 5.9.
    pub fill_ring_empty: Option<u64>,
    /// Times that the kernel looked for a frame to send and the ring was empty; absent before Linux
    /// 5.9.
    pub tx_ring_empty: Option<u64>,
}

/// Copy mode that a socket is bound with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyPolicy {
    /// Zero-copy if the driver supports it, otherwise copy mode.
    Either,
    /// Frames are copied between kernel buffers and ours.
    Copy,
    /// The device reads and writes our buffers.
    ZeroCopy,
}

/// An AF_XDP socket and the memory of its frames.
#[derive(Debug)]
pub struct XdpSocket {
    descriptor: OwnedFd,
    memory: FrameRegion,
}

/// Proof that a socket is closed, so the kernel no longer uses frames given to it.
#[derive(Debug)]
pub struct SocketClosed(());

#[cfg(test)]
impl SocketClosed {
    /// Proof without a socket.
    pub fn for_tests() -> Self {
        Self(())
    }
}

impl XdpSocket {
    /// Creates a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_RAW`, `EAFNOSUPPORT` if the kernel has no AF_XDP.
    pub fn new(memory: &FrameRegion) -> io::Result<Self> {
        // SAFETY: no pointer is passed.
        let raw = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            // SAFETY: the kernel has just created this descriptor, and it has no other owner.
            descriptor: unsafe { OwnedFd::from_raw_fd(raw) },
            memory: memory.clone(),
        })
    }

    /// Registers the memory as the socket's UMEM, one chunk for each slot.
    ///
    /// The kernel pins its pages, and writes only to slots in flight.
    ///
    /// # Errors
    /// `ENOBUFS` if it exceeds `RLIMIT_MEMLOCK` and `CAP_IPC_LOCK` is missing, `EINVAL` for slots
    /// that are not a power of two from 2048 bytes to a page.
    pub fn register_memory(&self) -> io::Result<()> {
        let (base, mapped) = self.memory.mapping();
        let slot_bytes = self.memory.slot_bytes();
        let bytes = self.memory.frames() as usize * slot_bytes;
        debug_assert!(bytes <= mapped);
        let memory = libc::xdp_umem_reg {
            addr: base.as_ptr().expose_provenance() as u64,
            len: bytes as u64,
            chunk_size: u32::try_from(slot_bytes).map_err(|_| io::ErrorKind::InvalidInput)?,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        self.set_option(libc::SOL_XDP, libc::XDP_UMEM_REG, &memory)
    }

    /// Closes the socket. None with zero-copy: the device may write to the frames for some time
    /// after.
    pub fn close(self) -> Option<SocketClosed> {
        let copies = self.is_zero_copy().is_ok_and(|zero_copy| !zero_copy);
        drop(self.descriptor);
        copies.then_some(SocketClosed(()))
    }

    /// Creates the four rings and maps them.
    ///
    /// # Errors
    /// `EINVAL` for sizes that are not powers of two, `Unsupported` before Linux 5.4.
    pub fn map_rings(&self, sizes: RingSizes) -> io::Result<(ReceiveRings, TransmitRings)> {
        for (option, size) in [
            (libc::XDP_UMEM_FILL_RING, sizes.fill),
            (libc::XDP_UMEM_COMPLETION_RING, sizes.completion),
            (libc::XDP_RX_RING, sizes.receive),
            (libc::XDP_TX_RING, sizes.transmit),
        ] {
            self.set_option(libc::SOL_XDP, option, &size)?;
        }
        let mut offsets = MmapOffsets::default();
        let bytes = self.get_option(libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, &mut offsets)?;
        if bytes != size_of::<MmapOffsets>() {
            // The shorter reply lacks the offsets of the need-wakeup flags.
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok((
            ReceiveRings::map(self.descriptor.as_fd(), &offsets, sizes, &self.memory)?,
            TransmitRings::map(self.descriptor.as_fd(), &offsets, sizes, &self.memory)?,
        ))
    }

    /// Binds the socket to one queue of an interface; from then on frames can flow.
    ///
    /// # Errors
    /// `EBUSY` if another socket has the queue (also for some time after it was closed),
    /// `EOPNOTSUPP` or `EPROTONOSUPPORT` if zero-copy is requested and the driver does not support
    /// it, `EINVAL` for a queue that the interface does not have, `ENODEV`, `ENETDOWN`.
    pub fn bind(
        &self,
        interface: u32,
        queue: u32,
        copy_policy: CopyPolicy,
        need_wakeup: bool,
    ) -> io::Result<()> {
        let mut flags = match copy_policy {
            CopyPolicy::Either => 0,
            CopyPolicy::Copy => libc::XDP_COPY,
            CopyPolicy::ZeroCopy => libc::XDP_ZEROCOPY,
        };
        if need_wakeup {
            flags |= libc::XDP_USE_NEED_WAKEUP;
        }
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: interface,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        // SAFETY: the address has the given length and outlives the call.
        let result = unsafe {
            libc::bind(
                self.raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Returns true if the device reads and writes our buffers itself.
    ///
    /// # Errors
    /// Any error of getsockopt(2).
    pub fn is_zero_copy(&self) -> io::Result<bool> {
        let mut flags = 0_u32;
        self.get_option(libc::SOL_XDP, libc::XDP_OPTIONS, &mut flags)?;
        Ok(flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// Reads the kernel's counters.
    ///
    /// # Errors
    /// Any error of getsockopt(2).
    pub fn statistics(&self) -> io::Result<XskStatistics> {
        let mut values = [0_u64; 6];
        let available =
            self.get_option(libc::SOL_XDP, libc::XDP_STATISTICS, &mut values)? / size_of::<u64>();
        let optional = |at: usize| (at < available).then_some(values[at]);
        Ok(XskStatistics {
            rx_dropped: values[0],
            rx_invalid: values[1],
            tx_invalid: values[2],
            rx_ring_full: optional(3),
            fill_ring_empty: optional(4),
            tx_ring_empty: optional(5),
        })
    }

    /// Enables preferred busy polling: calls on this socket drive the device for up to
    /// `microseconds` without interrupts, at most `budget` frames per call.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`, `ENOPROTOOPT` before Linux 5.11.
    pub fn prefer_busy_poll(&self, microseconds: u32, budget: u32) -> io::Result<()> {
        for (option, value) in [
            (libc::SO_PREFER_BUSY_POLL, 1),
            (libc::SO_BUSY_POLL, microseconds),
            (libc::SO_BUSY_POLL_BUDGET, budget),
        ] {
            self.set_option(libc::SOL_SOCKET, option, &value)?;
        }
        Ok(())
    }

    /// NAPI id of the driver queue that feeds this socket; 0 if the kernel has none, in which case
    /// busy polling has no effect.
    ///
    /// # Errors
    /// Any error of getsockopt(2).
    pub fn napi_id(&self) -> io::Result<u32> {
        let mut id = 0_u32;
        self.get_option(libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID, &mut id)?;
        Ok(id)
    }

    /// Makes the kernel process the transmit ring. Does not block.
    ///
    /// # Errors
    /// `EAGAIN`, `EBUSY` and `ENOBUFS`: frames are left, call again later; `ENETDOWN`: the
    /// interface is down.
    #[inline]
    pub fn wake_transmit(&self) -> io::Result<()> {
        send(&self.descriptor, &[], SendFlags::DONTWAIT)?;
        Ok(())
    }

    /// Makes the kernel process the fill ring, and drive the device if busy polling is on. Does not
    /// block.
    ///
    /// # Errors
    /// Like [`Self::wake_transmit`].
    #[inline]
    pub fn wake_receive(&self) -> io::Result<()> {
        recv(&self.descriptor, &mut [0; 0], RecvFlags::DONTWAIT)?;
        Ok(())
    }

    fn raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    fn set_option<T: Copy>(
        &self,
        level: libc::c_int,
        option: libc::c_int,
        value: &T,
    ) -> io::Result<()> {
        // SAFETY: `value` has the given length and outlives the call.
        let result = unsafe {
            libc::setsockopt(
                self.raw_fd(),
                level,
                option,
                std::ptr::from_ref(value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Reads an option made of integers; returns the number of bytes that the kernel wrote.
    fn get_option<T: PlainIntegers>(
        &self,
        level: libc::c_int,
        option: libc::c_int,
        value: &mut T,
    ) -> io::Result<usize> {
        let mut bytes = size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes to `value`, for which every bit pattern
        // is valid.
        let result = unsafe {
            libc::getsockopt(
                self.raw_fd(),
                level,
                option,
                std::ptr::from_mut(value).cast(),
                &raw mut bytes,
            )
        };
        if result == 0 {
            Ok(bytes as usize)
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Types made of integers only, without padding: the kernel may write any bytes into them.
trait PlainIntegers: Copy {}

impl PlainIntegers for u32 {}
impl PlainIntegers for [u64; 6] {}
impl PlainIntegers for MmapOffsets {}

/// `struct xdp_ring_offset`: offsets of a ring's indices and entries in its mapping.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct RingOffsets {
    pub producer: u64,
    pub consumer: u64,
    pub entries: u64,
    pub flags: u64,
}

/// `struct xdp_mmap_offsets`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct MmapOffsets {
    pub receive: RingOffsets,
    pub transmit: RingOffsets,
    pub fill: RingOffsets,
    pub completion: RingOffsets,
}

/// Maximum number of bytes that this user may lock (`RLIMIT_MEMLOCK`); `None` for no limit.
#[must_use]
pub fn locked_memory_limit() -> Option<u64> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: the kernel writes one rlimit.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, limit.as_mut_ptr()) };
    if result != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so the value is initialized.
    let current = unsafe { limit.assume_init() }.rlim_cur;
    #[allow(
        clippy::unnecessary_cast,
        reason = "rlim_t has 32 bits on some machines"
    )]
    (current != libc::RLIM_INFINITY).then_some(current as u64)
}
