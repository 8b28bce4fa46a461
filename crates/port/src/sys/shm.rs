//! Two rings of slots in memory that two processes share.
//!
//! Nothing in it is trusted but once: the shape is read when the memory is taken over and kept here, and
//! positions and lengths are checked against it each time.

use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::fs::{MemfdFlags, SealFlags};

use crate::cursor::Indices;

/// First words of the memory; the last byte is the version of its shape.
const MAGIC: [u8; 8] = *b"linrt-s\x01";
/// A cache line; a pair of them is kept apart, because adjacent lines are fetched in pairs.
const LINE: usize = 64;
/// Bytes before the first ring.
const HEADER_BYTES: usize = 128;
/// What mappings of huge pages are rounded to: the usual size on x86-64 and arm64.
const HUGE_PAGE: usize = 2 << 20;
/// The largest ring that is taken over, so that a peer cannot have us map anything.
const MOST_SLOTS: u32 = 1 << 17;

mod ends;

pub(crate) use ends::{SlotReceiver, SlotSender};

use ends::Slotted;

#[repr(C)]
struct Header {
    magic: [u8; 8],
    capacity: u32,
    slot_bytes: u32,
}

/// Where things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Frames of each ring.
    pub capacity: u32,
    /// Bytes of each slot.
    pub slot_bytes: u32,
}

impl Shape {
    /// Slots for frames of this size: an odd number of lines, so that they spread over the sets of a
    /// cache.
    pub(crate) fn new(capacity: u32, frame_bytes: u16) -> Self {
        let lines = usize::from(frame_bytes).div_ceil(LINE) | 1;
        Self {
            capacity,
            slot_bytes: (lines * LINE) as u32,
        }
    }

    fn slots(self) -> usize {
        (self.capacity as usize).next_power_of_two()
    }

    fn lengths_bytes(self) -> usize {
        (self.slots() * mem::size_of::<u32>()).next_multiple_of(2 * LINE)
    }

    fn ring_bytes(self) -> usize {
        let slots = self.slots() * self.slot_bytes as usize;
        mem::size_of::<Indices>() + self.lengths_bytes() + slots.next_multiple_of(2 * LINE)
    }

    fn bytes(self) -> usize {
        HEADER_BYTES + 2 * self.ring_bytes()
    }

    fn sound(self) -> bool {
        (1..=MOST_SLOTS).contains(&self.capacity)
            && (LINE as u32..=1 << 17).contains(&self.slot_bytes)
            && (self.slot_bytes as usize).is_multiple_of(LINE)
    }
}

/// Shared memory with two rings, one each way.
pub(crate) struct Region {
    base: NonNull<u8>,
    mapped: usize,
    shape: Shape,
    file: OwnedFd,
}

// SAFETY: a mapping that no thread owns; what is inside is reached through atomics, and through slots
// that the rings hand to one side at a time.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// New memory, in huge pages where there are any.
    pub(crate) fn create(shape: Shape) -> io::Result<Self> {
        Self::create_with(shape, MemfdFlags::HUGETLB, HUGE_PAGE)
            .or_else(|_| Self::create_with(shape, MemfdFlags::empty(), rustix::param::page_size()))
    }

    fn create_with(shape: Shape, pages: MemfdFlags, round: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages;
        let file = rustix::fs::memfd_create("linerate-shm", flags)?;
        let bytes = shape.bytes().next_multiple_of(round);
        rustix::fs::ftruncate(&file, bytes as u64)?;
        // Neither side can pull the memory away under the other.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let base = map(&file, bytes)?;
        let header = Header {
            magic: MAGIC,
            capacity: shape.capacity,
            slot_bytes: shape.slot_bytes,
        };
        // SAFETY: the mapping is larger than a header, aligned to a page, and nobody else knows it yet.
        unsafe { base.cast::<Header>().write(header) };
        Ok(Self {
            base,
            mapped: bytes,
            shape,
            file,
        })
    }

    /// Takes over memory that another process made. `None` when it is not such memory.
    pub(crate) fn adopt(file: OwnedFd) -> io::Result<Option<Self>> {
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        let bytes = usize::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        if !seals.contains(SealFlags::SHRINK) || bytes < HEADER_BYTES {
            return Ok(None);
        }
        let base = map(&file, bytes)?;
        let mut region = Self {
            base,
            mapped: bytes,
            shape: Shape {
                capacity: 1,
                slot_bytes: LINE as u32,
            },
            file,
        };
        // SAFETY: the mapping is larger than a header and aligned to a page; every pattern of bits is
        // valid, and the copy is what is looked at from here on.
        let header = unsafe { ptr::read_volatile(base.as_ptr().cast::<Header>()) };
        let shape = Shape {
            capacity: header.capacity,
            slot_bytes: header.slot_bytes,
        };
        if header.magic != MAGIC || !shape.sound() || shape.bytes() > bytes {
            return Ok(None);
        }
        region.shape = shape;
        Ok(Some(region))
    }

    /// Where ring `way` (0 or 1) begins.
    fn ring_at(&self, way: usize) -> usize {
        HEADER_BYTES + way * self.shape.ring_bytes()
    }

    #[inline]
    fn indices(&self, way: usize) -> &Indices {
        // SAFETY: within the mapping, as `shape` was checked against its size.
        let at = unsafe { self.base.add(self.ring_at(way)) };
        // SAFETY: aligned to 128 bytes; atomics alone, for which every pattern of bits is valid.
        unsafe { at.cast::<Indices>().as_ref() }
    }

    #[inline]
    fn length(&self, way: usize, slot: usize) -> &AtomicU32 {
        debug_assert!(slot < self.shape.slots());
        let at = self.ring_at(way) + mem::size_of::<Indices>() + slot * mem::size_of::<u32>();
        // SAFETY: within the mapping, since `slot` is masked to the number of slots.
        let at = unsafe { self.base.add(at) };
        // SAFETY: aligned to four bytes, an atomic.
        unsafe { at.cast::<AtomicU32>().as_ref() }
    }

    #[inline]
    fn slot(&self, way: usize, slot: usize) -> *mut u8 {
        debug_assert!(slot < self.shape.slots());
        let at = self.ring_at(way)
            + mem::size_of::<Indices>()
            + self.shape.lengths_bytes()
            + slot * self.shape.slot_bytes as usize;
        // SAFETY: within the mapping, since `slot` is masked to the number of slots.
        unsafe { self.base.as_ptr().add(at) }
    }
}

impl AsFd for Region {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`; pointers into it do not outlive `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

fn map(file: &OwnedFd, bytes: usize) -> io::Result<NonNull<u8>> {
    use std::os::fd::AsRawFd;
    // SAFETY: a new mapping, wherever the kernel wants it.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            file.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// One of the two rings.
pub(crate) struct Lane {
    region: Arc<Region>,
    way: usize,
}

impl Slotted for Lane {
    type Word = AtomicU32;

    #[inline]
    fn shape(&self) -> Shape {
        self.region.shape
    }

    #[inline]
    fn indices(&self) -> &Indices {
        self.region.indices(self.way)
    }

    #[inline]
    unsafe fn put(&self, slot: usize, frame: &[u8]) {
        assert!(
            frame.len() <= self.region.shape.slot_bytes as usize,
            "a frame longer than a slot"
        );
        let to = self.region.slot(self.way, slot);
        // SAFETY: the slot is within the mapping and long enough; the caller keeps the other side away.
        // Our own frames never lie in this mapping.
        unsafe { ptr::copy_nonoverlapping(frame.as_ptr(), to, frame.len()) };
        let length = self.region.length(self.way, slot);
        length.store(frame.len() as u32, Relaxed);
    }

    #[inline]
    fn length(&self, slot: usize) -> usize {
        self.region.length(self.way, slot).load(Relaxed) as usize
    }

    #[inline]
    unsafe fn get(&self, slot: usize, frame: &mut [u8]) {
        let most = self.region.shape.slot_bytes as usize;
        assert!(frame.len() <= most, "a frame longer than a slot");
        let from = self.region.slot(self.way, slot);
        // SAFETY: the slot is within the mapping and long enough; the caller keeps the other side away. A
        // peer that does not keep to that spoils the bytes, not the memory: they are copied before they
        // are looked at.
        unsafe { ptr::copy_nonoverlapping(from, frame.as_mut_ptr(), frame.len()) };
    }
}

#[cfg(test)]
mod tests;
