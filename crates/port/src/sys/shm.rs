//! Two rings of slots in memory that two processes share.
//!
//! Nothing in it is trusted but once: the shape is read when the memory is taken over and kept here, and
//! positions and lengths are checked against it each time.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::fs::{MemfdFlags, SealFlags};

use crate::cursor::Indices;
use crate::sys::prefetch::{self, LINE};

/// First words of the memory; the last byte is the version of its shape.
const MAGIC: [u8; 8] = *b"linrt-s\x01";
/// Bytes before the first ring.
const HEADER_BYTES: usize = 128;
/// What mappings of huge pages are rounded to: the usual size on x86-64 and arm64.
const HUGE_PAGE: usize = 2 << 20;
/// The largest ring that is taken over, so that a peer cannot have us map anything.
const MOST_SLOTS: u32 = 1 << 17;

mod ends;

pub(crate) use ends::{SlotReceiver, SlotSender, ahead};

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
        // A pair of lines is kept apart: adjacent ones are fetched in pairs.
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
        // Of a large ring the kernel may join whole huge pages, where it is set up to.
        let round = match shape.bytes() > HUGE_PAGE / 2 {
            true => HUGE_PAGE,
            false => rustix::param::page_size(),
        };
        Self::create_with(shape, MemfdFlags::HUGETLB, HUGE_PAGE)
            .or_else(|_| Self::create_with(shape, MemfdFlags::empty(), round))
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
        let mut words = [0; mem::size_of::<Header>()];
        if rustix::io::pread(&file, &mut words, 0)? < words.len() {
            return Ok(None);
        }
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| words[at + byte]));
        let shape = Shape {
            capacity: word(mem::offset_of!(Header, capacity)),
            slot_bytes: word(mem::offset_of!(Header, slot_bytes)),
        };
        if words[..MAGIC.len()] != MAGIC || !shape.sound() || shape.bytes() > bytes {
            return Ok(None);
        }
        // No more than the rings need, whatever the file's length: all of it is touched.
        let bytes = bytes.min(shape.bytes().next_multiple_of(HUGE_PAGE));
        let base = map(&file, bytes)?;
        Ok(Some(Self {
            base,
            mapped: bytes,
            shape,
            file,
        }))
    }
}

impl Region {
    /// Where things are in it.
    pub(crate) fn shape(&self) -> Shape {
        self.shape
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

/// Maps a file at a boundary of huge pages, so that the kernel may use some where it was asked to, and touches
/// all of it.
fn map(file: &OwnedFd, bytes: usize) -> io::Result<NonNull<u8>> {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let shared = |fixed| (libc::MAP_SHARED | fixed, file.as_raw_fd());
    // Files in huge pages lie at such a boundary by themselves. That there are too few such pages is seen here, where
    // a refusal takes nothing away: a mapping over another one that is refused leaves a gap, which another
    // thread's may be in at once.
    let anywhere = map_at(ptr::null_mut(), bytes, both, shared(0))?;
    if anywhere.as_ptr().align_offset(HUGE_PAGE) == 0 {
        return Ok(advised(anywhere, bytes));
    }
    // SAFETY: the mapping of above, which nobody knows.
    unsafe { libc::munmap(anywhere.as_ptr().cast(), bytes) };
    let room = bytes + HUGE_PAGE;
    let none = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    let start = map_at(ptr::null_mut(), room, libc::PROT_NONE, none)?;
    let skipped = start.as_ptr().align_offset(HUGE_PAGE);
    // SAFETY: less than a huge page into a mapping that is one longer than `bytes`.
    let base = unsafe { start.add(skipped) };
    let mapped = map_at(base.as_ptr().cast(), bytes, both, shared(libc::MAP_FIXED));
    let kept = bytes.next_multiple_of(rustix::param::page_size());
    // Where it was refused, what lies between is a gap that may be another's already, or room without memory.
    if skipped > 0 {
        // SAFETY: what lies before the file's mapping, which nobody knows.
        unsafe { libc::munmap(start.as_ptr().cast(), skipped) };
    }
    // SAFETY: what lies behind it, up to the end of the reservation; a file in huge pages ends at one.
    unsafe { libc::munmap(base.as_ptr().add(kept).cast(), room - skipped - kept) };
    mapped.map(|base| advised(base, bytes))
}

/// Asks for huge pages, and touches all of a mapping of a file.
fn advised(base: NonNull<u8>, bytes: usize) -> NonNull<u8> {
    // Refusals leave ordinary pages, which are touched when they are used: that is fine.
    for advice in [libc::MADV_HUGEPAGE, libc::MADV_POPULATE_WRITE] {
        // SAFETY: a mapping of a file, of so many bytes.
        unsafe { libc::madvise(base.as_ptr().cast(), bytes, advice) };
    }
    base
}

fn map_at(
    at: *mut libc::c_void,
    bytes: usize,
    access: libc::c_int,
    (flags, file): (libc::c_int, libc::c_int),
) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping, wherever the kernel wants it, or (`map`) over a reservation that nobody else
    // knows.
    let base = unsafe { libc::mmap(at, bytes, access, flags, file, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// One of the two rings.
pub(crate) struct Lane {
    indices: NonNull<Indices>,
    lengths: NonNull<u32>,
    first: NonNull<u8>,
    shape: Shape,
    mask: usize,
    /// Keeps what the pointers lead to.
    _region: Arc<Region>,
}

// SAFETY: pointers into a region, which may be reached from any thread as `Region` may.
unsafe impl Send for Lane {}

impl Lane {
    /// Ring `way` (0 or 1). Where its parts lie is worked out once: a frame would pay for it each time.
    fn new(region: Arc<Region>, way: usize) -> Self {
        let shape = region.shape;
        let at = HEADER_BYTES + (way & 1) * shape.ring_bytes();
        let lengths = at + mem::size_of::<Indices>();
        let first = lengths + shape.lengths_bytes();
        // SAFETY: within the mapping, as `shape` was checked against its size.
        let part = |at: usize| unsafe { region.base.add(at) };
        Self {
            indices: part(at).cast(),
            lengths: part(lengths).cast(),
            first: part(first),
            shape,
            mask: shape.slots() - 1,
            _region: region,
        }
    }

    #[inline]
    fn length_of(&self, slot: usize) -> &AtomicU32 {
        // SAFETY: within the mapping, since the slot is masked to the number of slots.
        let at = unsafe { self.lengths.add(slot & self.mask) };
        // SAFETY: aligned to four bytes, an atomic, in a mapping that `self` keeps.
        unsafe { at.cast::<AtomicU32>().as_ref() }
    }

    #[inline]
    fn slot(&self, slot: usize) -> *mut u8 {
        let at = (slot & self.mask) * self.shape.slot_bytes as usize;
        // SAFETY: within the mapping, since the slot is masked to the number of slots.
        unsafe { self.first.add(at) }.as_ptr()
    }
}

impl Slotted for Lane {
    type Word = AtomicU32;

    #[inline]
    fn shape(&self) -> Shape {
        self.shape
    }

    #[inline]
    fn indices(&self) -> &Indices {
        // SAFETY: aligned to 128 bytes, in a mapping that `self` keeps; atomics alone, for which every
        // pattern of bits is valid.
        unsafe { self.indices.as_ref() }
    }

    #[inline]
    unsafe fn put(&self, slot: usize, frame: &[u8]) {
        assert!(
            frame.len() <= self.shape.slot_bytes as usize,
            "a frame longer than a slot"
        );
        let to = self.slot(slot);
        // SAFETY: the slot is within the mapping and long enough; the caller keeps the other side away.
        // Our own frames never lie in this mapping.
        unsafe { copy(frame.as_ptr(), to, frame.len()) };
        self.length_of(slot).store(frame.len() as u32, Relaxed);
    }

    #[inline]
    fn length(&self, slot: usize) -> usize {
        self.length_of(slot).load(Relaxed) as usize
    }

    #[inline]
    unsafe fn get(&self, slot: usize, frame: &mut [u8]) {
        let most = self.shape.slot_bytes as usize;
        assert!(frame.len() <= most, "a frame longer than a slot");
        let from = self.slot(slot);
        // SAFETY: the slot is within the mapping and long enough; the caller keeps the other side away. A
        // peer that does not keep to that spoils the bytes, not the memory: they are copied before they
        // are looked at.
        unsafe { copy(from, frame.as_mut_ptr(), frame.len()) };
    }

    #[inline]
    fn fetch(&self, slot: usize, bytes: usize) {
        let from = self.slot(slot);
        prefetch::all_to_read(from, bytes.min(self.shape.slot_bytes as usize));
    }

    #[inline]
    fn claim(&self, slot: usize, bytes: usize) {
        prefetch::to_write(self.length_of(slot).as_ptr().cast());
        let to = self.slot(slot);
        for at in (0..bytes.min(self.shape.slot_bytes as usize)).step_by(LINE) {
            prefetch::to_write(to.wrapping_add(at));
        }
    }
}

/// Copies a frame; short ones without a call, which would cost as much as the copy.
///
/// # Safety
/// As [`ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, count: usize) {
    /// The first and the last bytes of a piece that is as long as `N` to `2 * N`: they may overlap.
    ///
    /// # Safety
    /// As [`ptr::copy_nonoverlapping`], and `count` is at least `N`.
    #[inline(always)]
    unsafe fn ends<const N: usize>(from: *const u8, to: *mut u8, count: usize) {
        // SAFETY: `count` bytes are readable, and `N` is no more.
        let first = unsafe { from.cast::<[u8; N]>().read_unaligned() };
        // SAFETY: as above; `N` bytes before the end.
        let last = unsafe { from.add(count - N).cast::<[u8; N]>().read_unaligned() };
        // SAFETY: `count` bytes are writable, and `N` is no more.
        unsafe { to.cast::<[u8; N]>().write_unaligned(first) };
        // SAFETY: as above.
        unsafe { to.add(count - N).cast::<[u8; N]>().write_unaligned(last) };
    }
    match count {
        // SAFETY: the caller's promise, and the range of this arm.
        32..=64 => unsafe { ends::<32>(from, to, count) },
        // SAFETY: as above.
        65..=128 => unsafe { ends::<64>(from, to, count) },
        // SAFETY: the caller's promise.
        _ => unsafe { ptr::copy_nonoverlapping(from, to, count) },
    }
}

#[cfg(test)]
mod tests;
