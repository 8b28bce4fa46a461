//! Rings of a socket's receive queue and of its transmit queue, each with the frames in flight
//! through them. A frame enters a ring only with its handle dropped, and a frame that leaves one
//! gets a handle only if it was in flight.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use super::frames_in_flight::Lent;
use super::xsk_ring::{Consumer, Producer, SharedSlots, SharedWord};
use super::xsk_socket::{Offsets, Places, RingSizes};
use crate::ring_cursor::Word;
use crate::sys::frame::Frame;
use crate::sys::frame_memory::Memory;

/// Entry of the receive and transmit rings (`struct xdp_desc`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Descriptor {
    /// Offset of the first byte in the memory.
    address: u64,
    /// Number of bytes.
    length: u32,
    /// Flags; none are used.
    options: u32,
}

/// Ring entry that is not a frame in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stray;

/// Fill and receive ring: free frames go in, and come back with received data.
#[derive(Debug)]
pub struct ReceiveRings {
    fill: Producer<SharedWord, SharedSlots<u64>>,
    receive: Consumer<SharedWord, SharedSlots<Descriptor>>,
    fill_flags: SharedWord,
    lent: Lent,
    #[expect(dead_code, reason = "kept mapped for the rings above")]
    mappings: [Mapping; 2],
}

impl ReceiveRings {
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        offsets: &Offsets,
        sizes: RingSizes,
        memory: &Memory,
    ) -> io::Result<Self> {
        const FILL: u64 = libc::XDP_UMEM_PGOFF_FILL_RING;
        const RECEIVE: u64 = libc::XDP_PGOFF_RX_RING as u64;
        let fill = Mapped::<u64>::new(socket, offsets.fill, sizes.fill, FILL)?;
        let receive = Mapped::<Descriptor>::new(socket, offsets.receive, sizes.receive, RECEIVE)?;
        Ok(Self {
            fill: Producer::new(fill.producer, fill.consumer, fill.slots, sizes.fill),
            receive: Consumer::new(receive.producer, receive.consumer, receive.slots),
            fill_flags: fill.flags,
            lent: Lent::new(memory),
            mappings: [fill.mapping, receive.mapping],
        })
    }

    /// Returns the number of frames that can be pushed now; reads the kernel's index.
    #[inline]
    pub fn room(&mut self) -> u32 {
        self.fill.room()
    }

    /// Number of frames that the fill ring is short of. Received frames that were not taken yet
    /// count as in the ring.
    #[inline]
    pub fn wanted(&self) -> u32 {
        self.fill.size().saturating_sub(self.lent.count())
    }

    /// Maximum number of frames in the fill ring.
    pub fn size(&self) -> u32 {
        self.fill.size()
    }

    /// Puts a frame into the fill ring; visible to the kernel after [`Self::show`].
    ///
    /// # Errors
    /// Returns the frame if the last [`Self::room`] is used up.
    #[inline]
    pub fn lend(&mut self, frame: Frame) -> Result<(), Frame> {
        lend(&mut self.lent, frame, |address, _| self.fill.push(address))
    }

    /// Makes all frames put in so far visible to the kernel.
    #[inline]
    pub fn show(&mut self) {
        self.fill.publish();
    }

    /// Number of received frames, possibly not up to date.
    #[inline]
    pub fn waiting(&mut self) -> u32 {
        self.receive.waiting()
    }

    /// Takes the next frame of those counted by the last [`Self::waiting`].
    #[inline]
    pub fn take(&mut self) -> Option<Result<Frame, Stray>> {
        let entry = self.receive.pop()?;
        Some(self.lent.take(entry.address, entry.length).ok_or(Stray))
    }

    /// Returns the ring entries of the frames taken to the kernel.
    #[inline]
    pub fn release(&mut self) {
        self.receive.release();
    }

    /// Returns true if the kernel must be woken to process the fill ring.
    #[inline]
    pub fn need_wakeup(&self) -> bool {
        self.fill_flags.acquire() & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Frames in flight only, for use after the socket is closed.
    pub fn into_lent(self) -> Lent {
        self.lent
    }
}

/// Transmit and completion ring: frames go in, and come back after their transmission.
#[derive(Debug)]
pub struct TransmitRings {
    transmit: Producer<SharedWord, SharedSlots<Descriptor>>,
    completion: Consumer<SharedWord, SharedSlots<u64>>,
    transmit_flags: SharedWord,
    lent: Lent,
    #[expect(dead_code, reason = "kept mapped for the rings above")]
    mappings: [Mapping; 2],
}

impl TransmitRings {
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        offsets: &Offsets,
        sizes: RingSizes,
        memory: &Memory,
    ) -> io::Result<Self> {
        const TRANSMIT: u64 = libc::XDP_PGOFF_TX_RING as u64;
        const COMPLETION: u64 = libc::XDP_UMEM_PGOFF_COMPLETION_RING;
        let transmit =
            Mapped::<Descriptor>::new(socket, offsets.transmit, sizes.transmit, TRANSMIT)?;
        let completion =
            Mapped::<u64>::new(socket, offsets.completion, sizes.completion, COMPLETION)?;
        Ok(Self {
            transmit: Producer::new(
                transmit.producer,
                transmit.consumer,
                transmit.slots,
                sizes.transmit,
            ),
            completion: Consumer::new(completion.producer, completion.consumer, completion.slots),
            transmit_flags: transmit.flags,
            lent: Lent::new(memory),
            mappings: [transmit.mapping, completion.mapping],
        })
    }

    /// Returns the number of frames that can be put in now.
    #[inline]
    pub fn room(&mut self) -> u32 {
        self.transmit.room()
    }

    /// Puts a frame into the transmit ring; visible to the kernel after [`Self::show`].
    ///
    /// # Errors
    /// Returns the frame if the last [`Self::room`] is used up.
    #[inline]
    pub fn put(&mut self, frame: Frame) -> Result<(), Frame> {
        let transmit = &mut self.transmit;
        lend(&mut self.lent, frame, |address, length| {
            transmit.push(Descriptor {
                address,
                length: u32::from(length),
                options: 0,
            })
        })
    }

    /// Makes all frames put in so far visible to the kernel.
    #[inline]
    pub fn show(&mut self) {
        self.transmit.publish();
    }

    /// Frames in flight.
    pub fn lent(&self) -> &Lent {
        &self.lent
    }

    /// Returns true if the kernel has left frames in the ring.
    #[inline]
    pub fn is_pending(&mut self) -> bool {
        self.transmit.pending() > 0
    }

    /// Number of frames whose transmission is complete, possibly not up to date.
    #[inline]
    pub fn waiting(&mut self) -> u32 {
        self.completion.waiting()
    }

    /// Takes the next completed frame of those counted by the last [`Self::waiting`]; its length is
    /// zero.
    #[inline]
    pub fn take(&mut self) -> Option<Result<Frame, Stray>> {
        let address = self.completion.pop()?;
        Some(self.lent.take(address, 0).ok_or(Stray))
    }

    /// Returns the ring entries of the frames taken to the kernel.
    #[inline]
    pub fn release(&mut self) {
        self.completion.release();
    }

    /// Returns true if the kernel must be woken to process the transmit ring.
    #[inline]
    pub fn need_wakeup(&self) -> bool {
        self.transmit_flags.acquire() & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Frames in flight only, for use after the socket is closed.
    pub fn into_lent(self) -> Lent {
        self.lent
    }
}

/// Drops a frame's handle and pushes its address, or returns the frame if the ring is full.
#[inline]
fn lend(lent: &mut Lent, frame: Frame, push: impl FnOnce(u64, u16) -> bool) -> Result<(), Frame> {
    let length = frame.len();
    let address = lent.lend(frame);
    if push(address, length) {
        return Ok(());
    }
    Err(lent
        .take(address, u32::from(length))
        .expect("a frame that was not pushed is still in flight"))
}

/// Mapped ring.
struct Mapped<T> {
    producer: SharedWord,
    consumer: SharedWord,
    flags: SharedWord,
    slots: SharedSlots<T>,
    mapping: Mapping,
}

impl<T: Copy> Mapped<T> {
    fn new(socket: BorrowedFd<'_>, places: Places, size: u32, offset: u64) -> io::Result<Self> {
        let bytes = places.entries as usize + size as usize * size_of::<T>();
        let mapping = Mapping::new(socket, bytes, offset)?;
        // SAFETY: an offset within the mapping, which outlives the index: both queues keep it.
        let producer = unsafe { SharedWord::new(mapping.at::<AtomicU32>(places.producer, 1)) };
        // SAFETY: as above.
        let consumer = unsafe { SharedWord::new(mapping.at::<AtomicU32>(places.consumer, 1)) };
        // SAFETY: as above.
        let flags = unsafe { SharedWord::new(mapping.at::<AtomicU32>(places.flags, 1)) };
        let base = mapping.at::<T>(places.entries, size as usize);
        // SAFETY: all entries lie within the mapping, and every bit pattern is a valid integer or a
        // descriptor made of integers.
        let slots = unsafe { SharedSlots::new(base, size) };
        Ok(Self {
            producer,
            consumer,
            flags,
            slots,
            mapping,
        })
    }
}

/// Pages shared with the kernel, unmapped on drop.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(socket: BorrowedFd<'_>, bytes: usize, offset: u64) -> io::Result<Self> {
        let offset = libc::off64_t::try_from(offset)
            .map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
        // SAFETY: the kernel chooses a new address, so no existing mapping is covered.
        let base = unsafe {
            libc::mmap64(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                socket.as_raw_fd(),
                offset,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes })
    }

    /// Address of `count` values, `offset` bytes into the mapping.
    fn at<T>(&self, offset: u64, count: usize) -> NonNull<T> {
        let offset = usize::try_from(offset).expect("rings are smaller than the address space");
        assert!(
            offset + count * size_of::<T>() <= self.bytes && offset.is_multiple_of(align_of::<T>()),
            "the kernel places its indices and entries within the ring"
        );
        // SAFETY: the offset was just checked to lie within the mapping.
        unsafe { self.base.add(offset) }.cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapped range; all pointers into it are dropped with it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
