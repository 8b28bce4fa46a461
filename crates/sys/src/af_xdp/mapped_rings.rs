//! Rings of a socket's receive queue and of its transmit queue, each with the frames in flight
//! through them. A frame enters a ring only with its handle dropped, and a frame that leaves one
//! gets a handle only if it was in flight.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use super::frames_in_flight::InFlightFrames;
use super::xsk_socket::{MmapOffsets, RingOffsets, RingSizes};
use crate::af_xdp::ring_ends::{KernelIndex, KernelSlots, RingConsumer, RingProducer};
use crate::frames::frame::Frame;
use crate::frames::frame_memory::FrameRegion;
use crate::frames::ring_cursor::SharedIndex;

/// Entry of the receive and transmit rings (`struct xdp_desc`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct XdpDescriptor {
    /// Offset of the first byte in the memory.
    address: u64,
    /// Number of bytes.
    length: u32,
    /// Flags; none are used.
    options: u32,
}

/// Ring entry that is not a frame in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleFrame;

/// Fill and receive ring: free frames go in, and come back with received data.
#[derive(Debug)]
pub struct ReceiveRings {
    fill: RingProducer<KernelIndex, KernelSlots<u64>>,
    receive: RingConsumer<KernelIndex, KernelSlots<XdpDescriptor>>,
    fill_flags: KernelIndex,
    in_flight: InFlightFrames,
    #[expect(dead_code, reason = "kept mapped for the rings above")]
    mappings: [RingMapping; 2],
}

impl ReceiveRings {
    pub fn map(
        socket: BorrowedFd<'_>,
        offsets: &MmapOffsets,
        sizes: RingSizes,
        memory: &FrameRegion,
    ) -> io::Result<Self> {
        const FILL: u64 = libc::XDP_UMEM_PGOFF_FILL_RING;
        const RECEIVE: u64 = libc::XDP_PGOFF_RX_RING as u64;
        let fill = MappedRing::<u64>::new(socket, offsets.fill, sizes.fill, FILL)?;
        let receive =
            MappedRing::<XdpDescriptor>::new(socket, offsets.receive, sizes.receive, RECEIVE)?;
        Ok(Self {
            fill: RingProducer::new(fill.producer, fill.consumer, fill.slots, sizes.fill),
            receive: RingConsumer::new(receive.producer, receive.consumer, receive.slots),
            fill_flags: fill.flags,
            in_flight: InFlightFrames::new(memory),
            mappings: [fill.mapping, receive.mapping],
        })
    }

    /// Returns the number of frames that can be pushed now; reads the kernel's index.
    #[inline]
    pub fn free_slots(&mut self) -> u32 {
        self.fill.free_slots()
    }

    /// Number of frames that the fill ring is short of. Received frames that were not taken yet
    /// count as in the ring.
    #[inline]
    pub fn missing(&self) -> u32 {
        self.fill.size().saturating_sub(self.in_flight.count())
    }

    /// Maximum number of frames in the fill ring.
    pub fn size(&self) -> u32 {
        self.fill.size()
    }

    /// Puts a frame into the fill ring; visible to the kernel after [`Self::publish`].
    ///
    /// # Errors
    /// Returns the frame if the last [`Self::free_slots`] is used up.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        push_in_flight(&mut self.in_flight, frame, |address, _| {
            self.fill.push(address)
        })
    }

    /// Makes all frames put in so far visible to the kernel.
    #[inline]
    pub fn publish(&mut self) {
        self.fill.publish();
    }

    /// Number of received frames, possibly not up to date.
    #[inline]
    pub fn available(&mut self) -> u32 {
        self.receive.available()
    }

    /// Takes the next frame of those counted by the last [`Self::available`].
    #[inline]
    pub fn pop(&mut self) -> Option<Result<Frame, StaleFrame>> {
        let entry = self.receive.pop()?;
        Some(
            self.in_flight
                .take_back(entry.address, entry.length)
                .ok_or(StaleFrame),
        )
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
    pub fn into_in_flight(self) -> InFlightFrames {
        self.in_flight
    }
}

/// Transmit and completion ring: frames go in, and come back after their transmission.
#[derive(Debug)]
pub struct TransmitRings {
    transmit: RingProducer<KernelIndex, KernelSlots<XdpDescriptor>>,
    completion: RingConsumer<KernelIndex, KernelSlots<u64>>,
    transmit_flags: KernelIndex,
    in_flight: InFlightFrames,
    #[expect(dead_code, reason = "kept mapped for the rings above")]
    mappings: [RingMapping; 2],
}

impl TransmitRings {
    pub fn map(
        socket: BorrowedFd<'_>,
        offsets: &MmapOffsets,
        sizes: RingSizes,
        memory: &FrameRegion,
    ) -> io::Result<Self> {
        const TRANSMIT: u64 = libc::XDP_PGOFF_TX_RING as u64;
        const COMPLETION: u64 = libc::XDP_UMEM_PGOFF_COMPLETION_RING;
        let transmit =
            MappedRing::<XdpDescriptor>::new(socket, offsets.transmit, sizes.transmit, TRANSMIT)?;
        let completion =
            MappedRing::<u64>::new(socket, offsets.completion, sizes.completion, COMPLETION)?;
        Ok(Self {
            transmit: RingProducer::new(
                transmit.producer,
                transmit.consumer,
                transmit.slots,
                sizes.transmit,
            ),
            completion: RingConsumer::new(
                completion.producer,
                completion.consumer,
                completion.slots,
            ),
            transmit_flags: transmit.flags,
            in_flight: InFlightFrames::new(memory),
            mappings: [transmit.mapping, completion.mapping],
        })
    }

    /// Returns the number of frames that can be put in now.
    #[inline]
    pub fn free_slots(&mut self) -> u32 {
        self.transmit.free_slots()
    }

    /// Puts a frame into the transmit ring; visible to the kernel after [`Self::publish`].
    ///
    /// # Errors
    /// Returns the frame if the last [`Self::free_slots`] is used up.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        let transmit = &mut self.transmit;
        push_in_flight(&mut self.in_flight, frame, |address, length| {
            transmit.push(XdpDescriptor {
                address,
                length: u32::from(length),
                options: 0,
            })
        })
    }

    /// Makes all frames put in so far visible to the kernel.
    #[inline]
    pub fn publish(&mut self) {
        self.transmit.publish();
    }

    /// Frames in flight.
    pub fn in_flight(&self) -> &InFlightFrames {
        &self.in_flight
    }

    /// Returns true if the kernel has left frames in the ring.
    #[inline]
    pub fn is_pending(&mut self) -> bool {
        self.transmit.pending() > 0
    }

    /// Number of frames whose transmission is complete, possibly not up to date.
    #[inline]
    pub fn available(&mut self) -> u32 {
        self.completion.available()
    }

    /// Takes the next completed frame of those counted by the last [`Self::available`]; its length
    /// is zero.
    #[inline]
    pub fn pop(&mut self) -> Option<Result<Frame, StaleFrame>> {
        let address = self.completion.pop()?;
        Some(self.in_flight.take_back(address, 0).ok_or(StaleFrame))
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
    pub fn into_in_flight(self) -> InFlightFrames {
        self.in_flight
    }
}

/// Drops a frame's handle and pushes its address, or returns the frame if the ring is full.
#[inline]
fn push_in_flight(
    in_flight: &mut InFlightFrames,
    frame: Frame,
    push: impl FnOnce(u64, u16) -> bool,
) -> Result<(), Frame> {
    let length = frame.len();
    let address = in_flight.give_to_kernel(frame);
    if push(address, length) {
        return Ok(());
    }
    Err(in_flight
        .take_back(address, u32::from(length))
        .expect("a frame that was not pushed is still in flight"))
}

/// Mapped ring.
struct MappedRing<T> {
    producer: KernelIndex,
    consumer: KernelIndex,
    flags: KernelIndex,
    slots: KernelSlots<T>,
    mapping: RingMapping,
}

impl<T: Copy> MappedRing<T> {
    fn new(
        socket: BorrowedFd<'_>,
        offsets: RingOffsets,
        size: u32,
        offset: u64,
    ) -> io::Result<Self> {
        let bytes = offsets.entries as usize + size as usize * size_of::<T>();
        let mapping = RingMapping::new(socket, bytes, offset)?;
        // SAFETY: an offset within the mapping, which outlives the index: both queues keep it.
        let producer = unsafe { KernelIndex::new(mapping.at::<AtomicU32>(offsets.producer, 1)) };
        // SAFETY: as above.
        let consumer = unsafe { KernelIndex::new(mapping.at::<AtomicU32>(offsets.consumer, 1)) };
        // SAFETY: as above.
        let flags = unsafe { KernelIndex::new(mapping.at::<AtomicU32>(offsets.flags, 1)) };
        let base = mapping.at::<T>(offsets.entries, size as usize);
        // SAFETY: all entries lie within the mapping, and every bit pattern is a valid integer or a
        // descriptor made of integers.
        let slots = unsafe { KernelSlots::new(base, size) };
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
struct RingMapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for RingMapping {}

impl RingMapping {
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

impl Drop for RingMapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapped range; all pointers into it are dropped with it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
