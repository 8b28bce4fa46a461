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

use crate::frames::prefetch;
use crate::frames::prefetch::CACHE_LINE_BYTES;
use crate::frames::ring_cursor::RingIndices;

/// First bytes of the memory; the last one is the version of the layout.
const MAGIC: [u8; 8] = *b"linrt-s\x01";
/// Bytes before the first ring.
const HEADER_BYTES: usize = 128;
/// Bytes of a huge page, to which mappings are rounded: the usual size on x86-64 and arm64.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Type of the file system of files in huge pages (statfs(2)).
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

mod slot_ring;

use slot_ring::SlotRing;

pub use slot_ring::{SlotReceiver, SlotSender, prefetch_distance};

#[repr(C)]
struct SegmentHeader {
    magic: [u8; 8],
    capacity: u32,
    slot_bytes: u32,
}

/// Layout of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmLayout {
    /// Frames per ring.
    pub capacity: u32,
    /// Bytes per slot.
    pub slot_bytes: u32,
}

impl ShmLayout {
    /// Layout for frames of this size: an odd number of cache lines, so that slots spread over all
    /// sets of a cache.
    pub fn new(capacity: u32, frame_bytes: u16) -> Self {
        let lines = usize::from(frame_bytes).div_ceil(CACHE_LINE_BYTES) | 1;
        Self {
            capacity,
            slot_bytes: (lines * CACHE_LINE_BYTES) as u32,
        }
    }

    fn slots(self) -> usize {
        (self.capacity as usize).next_power_of_two()
    }

    fn lengths_bytes(self) -> usize {
        // Separated by two lines: adjacent ones are fetched in pairs.
        (self.slots() * mem::size_of::<u32>()).next_multiple_of(2 * CACHE_LINE_BYTES)
    }

    fn ring_bytes(self) -> usize {
        let slots = self.slots() * self.slot_bytes as usize;
        mem::size_of::<RingIndices>()
            + self.lengths_bytes()
            + slots.next_multiple_of(2 * CACHE_LINE_BYTES)
    }

    fn segment_bytes(self) -> usize {
        HEADER_BYTES + 2 * self.ring_bytes()
    }
}

/// Reason why memory of another process is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShmMismatch {
    /// It is no such memory, or of another version; or the other process could take it away.
    Unknown,
    /// It has slots of so many bytes, which differ from those expected.
    SlotBytes(u32),
    /// It has so many frames per ring: none, or more than accepted.
    Capacity(u32),
}

/// Shared memory with two rings, one for each direction.
pub struct ShmSegment {
    base: NonNull<u8>,
    mapped_bytes: usize,
    layout: ShmLayout,
    file: OwnedFd,
}

// SAFETY: a mapping that no thread owns; its content is accessed through atomics, and through slots
// that the rings give to one side at a time.
unsafe impl Send for ShmSegment {}
// SAFETY: as above.
unsafe impl Sync for ShmSegment {}

impl ShmSegment {
    /// Creates the memory.
    ///
    /// Never in reserved huge pages: no seal that lets the other process write keeps it from
    /// removing pages. An ordinary page is then replaced by an empty one; a reserved one may be
    /// used by others meanwhile, and the next access ends this process (SIGBUS).
    pub fn create(layout: ShmLayout) -> io::Result<Self> {
        // Transparent huge pages can back a large ring, where they are enabled.
        let round = match layout.segment_bytes() > HUGE_PAGE_BYTES / 2 {
            true => HUGE_PAGE_BYTES,
            false => rustix::param::page_size(),
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("linerate-shm", flags)?;
        let bytes = layout.segment_bytes().next_multiple_of(round);
        rustix::fs::ftruncate(&file, bytes as u64)?;
        // Seals: neither side can shrink the memory under the other.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let base = map_aligned(&file, bytes)?;
        let header = SegmentHeader {
            magic: MAGIC,
            capacity: layout.capacity,
            slot_bytes: layout.slot_bytes,
        };
        // SAFETY: the mapping is larger than a header, page aligned, and not shared yet.
        unsafe { base.cast::<SegmentHeader>().write(header) };
        Ok(Self {
            base,
            mapped_bytes: bytes,
            layout,
            file,
        })
    }

    /// Maps memory that another process created, for slots of `slot_bytes` and at most
    /// `max_capacity` frames per ring. Everything is compared before memory is mapped and touched.
    pub fn adopt(
        file: OwnedFd,
        slot_bytes: u32,
        max_capacity: u32,
    ) -> io::Result<Result<Self, ShmMismatch>> {
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        let bytes = usize::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        let in_huge_pages = rustix::fs::fstatfs(&file)?.f_type as i64 == HUGETLBFS_MAGIC;
        let is_stable = seals.contains(SealFlags::SHRINK) && !in_huge_pages;
        if !is_stable || bytes < HEADER_BYTES {
            return Ok(Err(ShmMismatch::Unknown));
        }
        let mut header = [0; mem::size_of::<SegmentHeader>()];
        let read = rustix::io::pread(&file, &mut header, 0)?;
        if read < header.len() || header[..MAGIC.len()] != MAGIC {
            return Ok(Err(ShmMismatch::Unknown));
        }
        let field = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        let layout = ShmLayout {
            capacity: field(mem::offset_of!(SegmentHeader, capacity)),
            slot_bytes: field(mem::offset_of!(SegmentHeader, slot_bytes)),
        };
        if layout.slot_bytes != slot_bytes {
            return Ok(Err(ShmMismatch::SlotBytes(layout.slot_bytes)));
        }
        if !(1..=max_capacity).contains(&layout.capacity) {
            return Ok(Err(ShmMismatch::Capacity(layout.capacity)));
        }
        if layout.segment_bytes() > bytes {
            return Ok(Err(ShmMismatch::Unknown));
        }
        // Not more than the rings need, whatever the file's length: all of it is touched.
        let bytes = bytes.min(layout.segment_bytes().next_multiple_of(HUGE_PAGE_BYTES));
        let base = map_aligned(&file, bytes)?;
        Ok(Ok(Self {
            base,
            mapped_bytes: bytes,
            layout,
            file,
        }))
    }
}

impl ShmSegment {
    /// Layout of the memory.
    pub fn layout(&self) -> ShmLayout {
        self.layout
    }
}

impl AsFd for ShmSegment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for ShmSegment {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `map_aligned`; pointers into it do not outlive `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
    }
}

/// Maps a file, aligned to a huge page so that the kernel may use huge pages, and touches all of
/// it.
fn map_aligned(file: &OwnedFd, bytes: usize) -> io::Result<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let file_mapping = |fixed| (libc::MAP_SHARED | fixed, file.as_raw_fd());
    // Files in huge pages are always aligned like that. A lack of such pages is detected by this
    // call, whose failure does no harm: a failed mapping over another one leaves a gap, which
    // another thread's mapping may fill at once.
    let anywhere = map_at(ptr::null_mut(), bytes, access, file_mapping(0))?;
    if anywhere.as_ptr().align_offset(HUGE_PAGE_BYTES) == 0 {
        return Ok(populate(anywhere, bytes));
    }
    // SAFETY: the mapping of above, which no other code uses.
    unsafe { libc::munmap(anywhere.as_ptr().cast(), bytes) };
    let reserved = bytes + HUGE_PAGE_BYTES;
    let none = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    let start = map_at(ptr::null_mut(), reserved, libc::PROT_NONE, none)?;
    let skipped = start.as_ptr().align_offset(HUGE_PAGE_BYTES);
    // SAFETY: less than a huge page into a mapping that is one longer than `bytes`.
    let base = unsafe { start.add(skipped) };
    let mapped = map_at(
        base.as_ptr().cast(),
        bytes,
        access,
        file_mapping(libc::MAP_FIXED),
    );
    let file_bytes = bytes.next_multiple_of(rustix::param::page_size());
    // If that mapping failed, the range between is a gap that may already belong to another
    // mapping, or still reserved address space.
    if skipped > 0 {
        // SAFETY: the range before the file's mapping, which no other code uses.
        unsafe { libc::munmap(start.as_ptr().cast(), skipped) };
    }
    // SAFETY: the range behind it, up to the end of the reservation; a file in huge pages ends at
    // one.
    unsafe {
        libc::munmap(
            base.as_ptr().add(file_bytes).cast(),
            reserved - skipped - file_bytes,
        )
    };
    mapped.map(|base| populate(base, bytes))
}

/// Requests huge pages, and touches all of a mapping of a file.
fn populate(base: NonNull<u8>, bytes: usize) -> NonNull<u8> {
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
    // SAFETY: a new mapping at an address chosen by the kernel, or (`map_aligned`) over a
    // reservation that no other code uses.
    let base = unsafe { libc::mmap(at, bytes, access, flags, file, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Ring for one direction.
pub struct ShmRing {
    indices: NonNull<RingIndices>,
    lengths: NonNull<u32>,
    first_slot: NonNull<u8>,
    layout: ShmLayout,
    mask: usize,
    /// Keeps the memory mapped that the pointers refer to.
    _segment: Arc<ShmSegment>,
}

// SAFETY: pointers into a region, which may be accessed from any thread as `ShmSegment` may.
unsafe impl Send for ShmRing {}

impl ShmRing {
    /// Ring `ring_index` (0 or 1). Addresses of its parts are computed once, because each frame
    /// needs them.
    fn new(segment: Arc<ShmSegment>, ring_index: usize) -> Self {
        let layout = segment.layout;
        let at = HEADER_BYTES + (ring_index & 1) * layout.ring_bytes();
        let lengths = at + mem::size_of::<RingIndices>();
        let first = lengths + layout.lengths_bytes();
        // SAFETY: within the mapping, as `layout` was checked against its size.
        let part = |at: usize| unsafe { segment.base.add(at) };
        Self {
            indices: part(at).cast(),
            lengths: part(lengths).cast(),
            first_slot: part(first),
            layout,
            mask: layout.slots() - 1,
            _segment: segment,
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
        let at = (slot & self.mask) * self.layout.slot_bytes as usize;
        // SAFETY: within the mapping, since the slot is masked to the number of slots.
        unsafe { self.first_slot.add(at) }.as_ptr()
    }
}

impl SlotRing for ShmRing {
    type Index = AtomicU32;

    #[inline]
    fn layout(&self) -> ShmLayout {
        self.layout
    }

    #[inline]
    fn indices(&self) -> &RingIndices {
        // SAFETY: aligned to 128 bytes, in a mapping that `self` keeps; only atomics, for which
        // every bit pattern is valid.
        unsafe { self.indices.as_ref() }
    }

    #[inline]
    unsafe fn write_slot(&self, slot: usize, frame: &[u8]) {
        assert!(
            frame.len() <= self.layout.slot_bytes as usize,
            "a frame longer than a slot"
        );
        let to = self.slot(slot);
        // SAFETY: the slot is within the mapping and long enough; the caller excludes the other
        // side. Our own frames never lie in this mapping.
        unsafe { copy_frame(frame.as_ptr(), to, frame.len()) };
        self.length_of(slot).store(frame.len() as u32, Relaxed);
    }

    #[inline]
    fn length(&self, slot: usize) -> usize {
        self.length_of(slot).load(Relaxed) as usize
    }

    #[inline]
    unsafe fn read_slot(&self, slot: usize, frame: &mut [u8]) {
        let max_bytes = self.layout.slot_bytes as usize;
        assert!(frame.len() <= max_bytes, "a frame longer than a slot");
        let from = self.slot(slot);
        // SAFETY: the slot is within the mapping and long enough; the caller excludes the other
        // side. A peer that violates this corrupts the bytes, not the memory: they are copied
        // before use.
        unsafe { copy_frame(from, frame.as_mut_ptr(), frame.len()) };
    }

    #[inline]
    fn prefetch_for_read(&self, slot: usize, bytes: usize) {
        let from = self.slot(slot);
        prefetch::range_for_read(from, bytes.min(self.layout.slot_bytes as usize));
    }

    #[inline]
    fn prefetch_for_write(&self, slot: usize, bytes: usize) {
        prefetch::line_for_write(self.length_of(slot).as_ptr().cast());
        let to = self.slot(slot);
        for at in (0..bytes.min(self.layout.slot_bytes as usize)).step_by(CACHE_LINE_BYTES) {
            prefetch::line_for_write(to.wrapping_add(at));
        }
    }
}

/// Copies a frame; short ones without a call, which would cost as much as the copy.
///
/// # Safety
/// Like [`ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn copy_frame(from: *const u8, to: *mut u8, count: usize) {
    /// Copies the first and the last `N` bytes of `N` to `2 * N` bytes; the two may overlap.
    ///
    /// # Safety
    /// Like [`ptr::copy_nonoverlapping`], and `count` is at least `N`.
    #[inline(always)]
    unsafe fn copy_overlapping<const N: usize>(from: *const u8, to: *mut u8, count: usize) {
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
        32..=64 => unsafe { copy_overlapping::<32>(from, to, count) },
        // SAFETY: as above.
        65..=128 => unsafe { copy_overlapping::<64>(from, to, count) },
        // SAFETY: the caller's promise.
        _ => unsafe { ptr::copy_nonoverlapping(from, to, count) },
    }
}

#[cfg(test)]
mod tests;
