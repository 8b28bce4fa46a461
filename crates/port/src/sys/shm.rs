//! Two rings of slots in memory that two processes share.
//!
//! Its content is not trusted: the layout is read once when the memory is adopted and kept here;
//! positions and lengths are checked against it on each use.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::fs::{MemfdFlags, SealFlags};

use crate::ring_cursor::Indices;
use crate::sys::prefetch::{self, LINE};

/// First bytes of the memory; the last one is the version of the layout.
const MAGIC: [u8; 8] = *b"linrt-s\x01";
/// Bytes before the first ring.
const HEADER_BYTES: usize = 128;
/// Bytes of a huge page, to which mappings are rounded: the usual size on x86-64 and arm64.
const HUGE_PAGE: usize = 2 << 20;
/// Largest ring accepted, which limits the memory that a peer can make this process map.
const MOST_SLOTS: u32 = 1 << 17;

mod slot_ring;

pub(crate) use slot_ring::{SlotReceiver, SlotSender, ahead};

use slot_ring::Slotted;

#[repr(C)]
struct Header {
    magic: [u8; 8],
    capacity: u32,
    slot_bytes: u32,
}

/// Layout of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Frames per ring.
    pub capacity: u32,
    /// Bytes per slot.
    pub slot_bytes: u32,
}

impl Shape {
    /// Layout for frames of this size: an odd number of cache lines, so that slots spread over all
    /// sets of a cache.
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
        // Separated by two lines: adjacent ones are fetched in pairs.
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

/// Shared memory with two rings, one for each direction.
pub(crate) struct Region {
    base: NonNull<u8>,
    mapped: usize,
    shape: Shape,
    file: OwnedFd,
}

// SAFETY: a mapping that no thread owns; its content is accessed through atomics, and through slots
// that the rings give to one side at a time.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Creates the memory, in huge pages if available.
    pub(crate) fn create(shape: Shape) -> io::Result<Self> {
        // Transparent huge pages can back a large ring, where they are enabled.
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
        // Seals: neither side can shrink the memory under the other.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let base = map(&file, bytes)?;
        let header = Header {
            magic: MAGIC,
            capacity: shape.capacity,
            slot_bytes: shape.slot_bytes,
        };
        // SAFETY: the mapping is larger than a header, page aligned, and not shared yet.
        unsafe { base.cast::<Header>().write(header) };
        Ok(Self {
            base,
            mapped: bytes,
            shape,
            file,
        })
    }

    /// Maps memory that another process created. `None` if it is not such memory.
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
        // Not more than the rings need, whatever the file's length: all of it is touched.
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
    /// Layout of the memory.
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
        // SAFETY: the mapping made by `map`; pointers into it do not outlive `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

/// Maps a file, aligned to a huge page so that the kernel may use huge pages, and touches all of
/// it.
fn map(file: &OwnedFd, bytes: usize) -> io::Result<NonNull<u8>> {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let shared = |fixed| (libc::MAP_SHARED | fixed, file.as_raw_fd());
    // Files in huge pages are always aligned like that. A lack of such pages is detected by this
    // call, whose failure does no harm: a failed mapping over another one leaves a gap, which
    // another thread's mapping may fill at once.
    let anywhere = map_at(ptr::null_mut(), bytes, both, shared(0))?;
    if anywhere.as_ptr().align_offset(HUGE_PAGE) == 0 {
        return Ok(advised(anywhere, bytes));
    }
    // SAFETY: the mapping of above, which no other code uses.
    unsafe { libc::munmap(anywhere.as_ptr().cast(), bytes) };
    let room = bytes + HUGE_PAGE;
    let none = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    let start = map_at(ptr::null_mut(), room, libc::PROT_NONE, none)?;
    let skipped = start.as_ptr().align_offset(HUGE_PAGE);
    // SAFETY: less than a huge page into a mapping that is one longer than `bytes`.
    let base = unsafe { start.add(skipped) };
    let mapped = map_at(base.as_ptr().cast(), bytes, both, shared(libc::MAP_FIXED));
    let kept = bytes.next_multiple_of(rustix::param::page_size());
    // If that mapping failed, the range between is a gap that may already belong to another
    // mapping, or still reserved address space.
    if skipped > 0 {
        // SAFETY: the range before the file's mapping, which no other code uses.
        unsafe { libc::munmap(start.as_ptr().cast(), skipped) };
    }
    // SAFETY: the range behind it, up to the end of the reservation; a file in huge pages ends at
    // one.
    unsafe { libc::munmap(base.as_ptr().add(kept).cast(), room - skipped - kept) };
    mapped.map(|base| advised(base, bytes))
}

/// Requests huge pages, and touches all of a mapping of a file.
fn advised(base: NonNull<u8>, bytes: usize) -> NonNull<u8> {
    // Failures leave ordinary pages, which are touched on first use; that is valid too.
    for advice in [libc::MADV_HUGEPAGE, libc::MADV_POPULATE_WRITE] {
        // SAFETY: a mapping of a file, with this many bytes.
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
    // SAFETY: a new mapping at an address chosen by the kernel, or (`map`) over a reservation that
    // no other code uses.
    let base = unsafe { libc::mmap(at, bytes, access, flags, file, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Ring for one direction.
pub(crate) struct Lane {
    indices: NonNull<Indices>,
    lengths: NonNull<u32>,
    first: NonNull<u8>,
    shape: Shape,
    mask: usize,
    /// Keeps the memory mapped that the pointers refer to.
    _region: Arc<Region>,
}

// SAFETY: pointers into a region, which may be accessed from any thread as `Region` may.
unsafe impl Send for Lane {}

impl Lane {
    /// Ring `way` (0 or 1). Addresses of its parts are computed once, because each frame needs
    /// them.
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
        // SAFETY: aligned to four bytes, atomic, in a mapping that `self` keeps.
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
        // SAFETY: aligned to 128 bytes, in a mapping that `self` keeps; only atomics, for which
        // every bit pattern is valid.
        unsafe { self.indices.as_ref() }
    }

    #[inline]
    unsafe fn put(&self, slot: usize, frame: &[u8]) {
        assert!(
            frame.len() <= self.shape.slot_bytes as usize,
            "a frame longer than a slot"
        );
        let to = self.slot(slot);
        // SAFETY: the slot is within the mapping and long enough; the caller excludes the other
        // side. Our own frames never lie in this mapping.
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
        // SAFETY: the slot is within the mapping and long enough; the caller excludes the other
        // side. A peer that violates this corrupts the bytes, not the memory: they are copied
        // before use.
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
/// Like [`ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, count: usize) {
    /// Copies the first and the last `N` bytes of `N` to `2 * N` bytes; the two may overlap.
    ///
    /// # Safety
    /// Like [`ptr::copy_nonoverlapping`], and `count` is at least `N`.
    #[inline(always)]
    unsafe fn ends<const N: usize>(from: *const u8, to: *mut u8, count: usize) {
        // SAFETY: `count` bytes are readable, and `N` is not more.
        let first = unsafe { from.cast::<[u8; N]>().read_unaligned() };
        // SAFETY: as above; `N` bytes before the end.
        let last = unsafe { from.add(count - N).cast::<[u8; N]>().read_unaligned() };
        // SAFETY: `count` bytes are writable, and `N` is not more.
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
