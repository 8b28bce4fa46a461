//! The two halves of a socket: the rings of each direction together with the account of the frames that
//! are lent through them. What goes into a ring here is always a handle taken apart, and what comes out
//! is made a handle only by that account.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use super::xsk::{Offsets, Places, RingSizes};
use super::xsk_lent::Lent;
use super::xsk_ring::{Consumer, Producer, SharedSlots, SharedWord};
use crate::cursor::Word;
use crate::sys::frame::Frame;
use crate::sys::memory::Memory;

/// One frame in the receive or transmit ring (`struct xdp_desc`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Descriptor {
    /// Where its first byte is, counted from the start of the memory.
    address: u64,
    /// How many bytes it has.
    length: u32,
    /// Flags; none are used.
    options: u32,
}

/// Something in a ring that is no frame of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stray;

/// The receiving half: free frames go in, and come back with what arrived.
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

    /// How many frames can be lent now, from the kernel's own position.
    #[inline]
    pub fn room(&mut self) -> u32 {
        self.fill.room()
    }

    /// How many frames the kernel lacks of as many as the fill ring holds. Those that have arrived and were
    /// not taken count as the kernel's.
    #[inline]
    pub fn wanted(&self) -> u32 {
        self.fill.size().saturating_sub(self.lent.count())
    }

    /// How many frames can be lent at most.
    pub fn size(&self) -> u32 {
        self.fill.size()
    }

    /// Lends a frame for [`Self::show`] to hand over.
    ///
    /// # Errors
    /// Gives it back when the last [`Self::room`] is used up.
    #[inline]
    pub fn lend(&mut self, frame: Frame) -> Result<(), Frame> {
        lend(&mut self.lent, frame, |address, _| self.fill.push(address))
    }

    /// Hands what was lent to the kernel.
    #[inline]
    pub fn show(&mut self) {
        self.fill.publish();
    }

    /// How many frames have arrived, as far as known.
    #[inline]
    pub fn waiting(&mut self) -> u32 {
        self.receive.waiting()
    }

    /// The next frame among those that the last [`Self::waiting`] found.
    #[inline]
    pub fn take(&mut self) -> Option<Result<Frame, Stray>> {
        let entry = self.receive.pop()?;
        Some(self.lent.take(entry.address, entry.length).ok_or(Stray))
    }

    /// Gives the places of the frames taken back to the kernel.
    #[inline]
    pub fn release(&mut self) {
        self.receive.release();
    }

    /// The kernel sleeps until it is told that the fill ring has buffers.
    #[inline]
    pub fn need_wakeup(&self) -> bool {
        self.fill_flags.acquire() & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// The account alone, for when the socket will be closed.
    pub fn into_lent(self) -> Lent {
        self.lent
    }
}

/// The sending half: frames go in, and come back when they have left.
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

    /// How many frames can be put in now.
    #[inline]
    pub fn room(&mut self) -> u32 {
        self.transmit.room()
    }

    /// Puts a frame in for [`Self::show`] to hand over.
    ///
    /// # Errors
    /// Gives it back when the last [`Self::room`] is used up.
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

    /// Hands what was put in to the kernel.
    #[inline]
    pub fn show(&mut self) {
        self.transmit.publish();
    }

    /// What the kernel has of its memory.
    pub fn lent(&self) -> &Lent {
        &self.lent
    }

    /// Whether the kernel has left frames in the ring.
    #[inline]
    pub fn is_pending(&mut self) -> bool {
        self.transmit.pending() > 0
    }

    /// How many frames have left, as far as known.
    #[inline]
    pub fn waiting(&mut self) -> u32 {
        self.completion.waiting()
    }

    /// The next frame that has left, among those that the last [`Self::waiting`] found; without bytes.
    #[inline]
    pub fn take(&mut self) -> Option<Result<Frame, Stray>> {
        let address = self.completion.pop()?;
        Some(self.lent.take(address, 0).ok_or(Stray))
    }

    /// Gives the places of the frames taken back to the kernel.
    #[inline]
    pub fn release(&mut self) {
        self.completion.release();
    }

    /// The kernel sleeps until it is told that the transmit ring has frames.
    #[inline]
    pub fn need_wakeup(&self) -> bool {
        self.transmit_flags.acquire() & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// The account alone, for when the socket will be closed.
    pub fn into_lent(self) -> Lent {
        self.lent
    }
}

/// Takes a frame apart and pushes its place, or gives it back.
#[inline]
fn lend(lent: &mut Lent, frame: Frame, push: impl FnOnce(u64, u16) -> bool) -> Result<(), Frame> {
    let length = frame.len();
    let address = lent.lend(frame);
    if push(address, length) {
        return Ok(());
    }
    Err(lent
        .take(address, u32::from(length))
        .expect("what was lent a moment ago and not pushed is still lent"))
}

/// One ring as mapped.
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
        // SAFETY: a place within the mapping, which stays as long as the word: both halves keep it.
        let producer = unsafe { SharedWord::new(mapping.at::<AtomicU32>(places.producer, 1)) };
        // SAFETY: as above.
        let consumer = unsafe { SharedWord::new(mapping.at::<AtomicU32>(places.consumer, 1)) };
        // SAFETY: as above.
        let flags = unsafe { SharedWord::new(mapping.at::<AtomicU32>(places.flags, 1)) };
        let base = mapping.at::<T>(places.entries, size as usize);
        // SAFETY: all entries lie within the mapping, and every bit pattern is a number or a descriptor
        // made of numbers.
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
        // SAFETY: a new place is asked for, so nothing that exists is covered.
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

    /// The `count` values that lie `offset` bytes into the mapping.
    fn at<T>(&self, offset: u64, count: usize) -> NonNull<T> {
        let offset = usize::try_from(offset).expect("rings are smaller than the address space");
        assert!(
            offset + count * size_of::<T>() <= self.bytes && offset.is_multiple_of(align_of::<T>()),
            "the kernel places its words and entries within the ring"
        );
        // SAFETY: the offset was just checked to lie within the mapping.
        unsafe { self.base.add(offset) }.cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and what points into it is dropped with it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
