//! Memory region that holds the frames.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::{Range, RangeInclusive};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_queue::ArrayQueue;

use super::FrameRegionError;
use crate::frames::frame::Frame;
use crate::frames::frame_pool::{Batch, FramePool};
use crate::frames::prefetch;
use crate::frames::prefetch::CACHE_LINE_BYTES;

/// Default bytes in front of a frame, for headers that a port or a stack prepends.
const DEFAULT_HEADROOM_BYTES: u16 = 128;
/// Default number of frames: enough for two ports with full rings and a pool each.
const DEFAULT_FRAMES: u32 = 8192;
/// Default bytes of the largest frame: Ethernet header and one VLAN tag on top of an MTU of 1500.
const DEFAULT_FRAME_BYTES: u16 = 1518;
/// Permitted number of free frames that a thread caches: at least a burst, and at most as many as
/// DPDK's caches hold (`RTE_MEMPOOL_CACHE_MAX_SIZE`); otherwise one thread could hold all frames of
/// a small memory.
pub const CACHED_FRAMES_RANGE: RangeInclusive<u16> = 32..=512;
/// Default number of free frames that a thread caches: enough for two ports to take and return
/// whole bursts without access to the shared depot.
pub const DEFAULT_CACHED_FRAMES: u16 = 256;
/// Slots of the depot for batches that are not full: at worst one for each pool that was dropped.
const SHORT_BATCHES: usize = 64;
/// Batches that circulate without access to the rest of the depot. The depot is a queue: with it
/// alone, frames that drift between threads would cycle through the whole memory, and none would be
/// in a cache. Enough for the batches that two threads take and return between two accesses.
const RECENT_BATCHES: usize = 4;
/// Bytes of a huge page, to which mappings are rounded: the usual size on x86-64 and arm64.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Number and size of the frames of a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Number of slots, one frame each.
    pub frames: u32,
    /// Bytes of the largest frame.
    pub frame_bytes: u16,
    /// Bytes in front of a frame that a pool has just allocated.
    pub headroom: u16,
    /// Slots have 2048 B or the next power of two, as AF_XDP requires. Otherwise they have an odd
    /// number of cache lines, so that the headers of all frames do not map to the same few cache
    /// sets (measured with 2048 B: a third of the rate at which headers can be changed).
    pub power_of_two: bool,
    /// Tries huge pages first.
    pub huge_pages: bool,
    /// Free frames that a thread caches before it returns a batch to the depot, within
    /// [`CACHED_FRAMES_RANGE`].
    pub cached_frames: u16,
}

impl Default for MemoryPlan {
    fn default() -> Self {
        Self {
            frames: DEFAULT_FRAMES,
            frame_bytes: DEFAULT_FRAME_BYTES,
            headroom: DEFAULT_HEADROOM_BYTES,
            power_of_two: false,
            huge_pages: true,
            cached_frames: DEFAULT_CACHED_FRAMES,
        }
    }
}

impl MemoryPlan {
    /// Bytes from one slot to the next.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        let needed = usize::from(self.headroom) + usize::from(self.frame_bytes);
        if self.power_of_two {
            needed.next_power_of_two().max(2048)
        } else {
            // An odd number of lines uses all sets of a cache.
            (needed.div_ceil(CACHE_LINE_BYTES) | 1) * CACHE_LINE_BYTES
        }
    }

    /// Plan for a memory that serves both: the sum of the frames, and the larger of all other
    /// values.
    #[must_use]
    pub fn combine(self, other: Self) -> Self {
        Self {
            frames: self.frames.saturating_add(other.frames),
            frame_bytes: self.frame_bytes.max(other.frame_bytes),
            headroom: self.headroom.max(other.headroom),
            power_of_two: self.power_of_two || other.power_of_two,
            huge_pages: self.huge_pages && other.huge_pages,
            cached_frames: self.cached_frames.max(other.cached_frames),
        }
    }
}

/// Kind of pages that a memory consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Huge pages reserved by the administrator (`vm.nr_hugepages`).
    Huge,
    /// Ordinary pages; transparent huge pages were requested (`MADV_HUGEPAGE`).
    Ordinary,
}

/// Memory region of slots, shared by all ports of a run, so that a frame moves as a handle.
///
/// Cloning is cheap and returns the same memory, which exists until the last clone, pool and port
/// is dropped.
#[derive(Clone)]
pub struct FrameRegion {
    inner: Arc<RegionInner>,
}

/// End of a cable while no port has it open.
type UnclaimedEnd = Option<Box<dyn Any + Send>>;

struct RegionInner {
    base: NonNull<u8>,
    mapped_bytes: usize,
    first_index: u32,
    frames: u32,
    slot_bytes: usize,
    headroom: u16,
    page_kind: PageKind,
    cached_frames: u16,
    depot: ArrayQueue<Batch>,
    /// Batches returned last; taken first.
    recent: ArrayQueue<Batch>,
    /// Cables by name: the ends that no port has open (see [`FrameRegion::claim_end`]).
    unclaimed_ends: Mutex<HashMap<String, [UnclaimedEnd; 2]>>,
}

// SAFETY: `base` is a mapping that no thread owns; its bytes are accessed through handles only,
// each of which exists once (see `Frame`).
unsafe impl Send for RegionInner {}
// SAFETY: as above; all other fields are Sync.
unsafe impl Sync for RegionInner {}

/// First slot index that this process has not used yet.
static NEXT_INDEX: AtomicU32 = AtomicU32::new(0);

impl FrameRegion {
    /// Maps the memory and touches all pages, so that no page fault occurs later.
    ///
    /// # Errors
    /// [`FrameRegionError::BadPlan`] if the sizes are invalid; [`FrameRegionError::NoMemory`] if the
    /// kernel cannot provide the memory.
    pub fn new(plan: MemoryPlan) -> Result<Self, FrameRegionError> {
        let bad_plan = |why| FrameRegionError::BadPlan { reason: why };
        if plan.frames == 0 {
            return Err(bad_plan("it has no frames"));
        }
        if plan.frame_bytes < 60 {
            return Err(bad_plan("its frames are shorter than Ethernet's 60 bytes"));
        }
        let slot_bytes = plan.slot_bytes();
        let bytes = usize::try_from(plan.frames)
            .ok()
            .and_then(|frames| frames.checked_mul(slot_bytes))
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| bad_plan("it is larger than the address space"))?;
        let first_index = NEXT_INDEX
            .fetch_update(Relaxed, Relaxed, |next| next.checked_add(plan.frames))
            .map_err(|_| bad_plan("this process has already used four billion frames"))?;
        let (base, mapped_bytes, page_kind) = map_frames(bytes, plan.huge_pages)
            .map_err(|source| FrameRegionError::NoMemory { bytes, source })?;
        let depot = ArrayQueue::new(plan.frames as usize / Batch::FULL_FRAMES + SHORT_BATCHES);
        let memory = Self {
            inner: Arc::new(RegionInner {
                base,
                mapped_bytes,
                first_index,
                frames: plan.frames,
                slot_bytes,
                headroom: plan.headroom,
                page_kind,
                cached_frames: plan
                    .cached_frames
                    .clamp(*CACHED_FRAMES_RANGE.start(), *CACHED_FRAMES_RANGE.end()),
                depot,
                recent: ArrayQueue::new(RECENT_BATCHES),
                unclaimed_ends: Mutex::new(HashMap::new()),
            }),
        };
        let mut batch = Batch::default();
        for index in (first_index..first_index + plan.frames).rev() {
            // SAFETY: `NEXT_INDEX` gave these indices to this memory only, and each is used once.
            let frame = unsafe { Frame::from_parts(index, 0, plan.headroom) };
            if let Err(frame) = batch.push(frame) {
                memory.put_batch(std::mem::take(&mut batch));
                batch.push(frame).expect("an empty batch has room");
            }
        }
        memory.put_batch(batch);
        Ok(memory)
    }

    /// Creates a pool for one thread; it takes frames from the memory as needed.
    #[must_use]
    pub fn pool(&self) -> FramePool {
        FramePool::new(self.clone())
    }

    /// Total number of slots.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.inner.frames
    }

    /// Bytes from one slot to the next.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.inner.slot_bytes
    }

    /// Bytes in front of a frame that a pool has just allocated.
    #[must_use]
    pub fn headroom(&self) -> u16 {
        self.inner.headroom
    }

    /// Bytes of the largest frame that fits behind the headroom.
    #[must_use]
    pub fn frame_bytes(&self) -> u16 {
        let available = self.inner.slot_bytes - usize::from(self.inner.headroom);
        u16::try_from(available).unwrap_or(u16::MAX)
    }

    /// Free frames that a thread caches before it returns a batch to the depot.
    #[must_use]
    pub fn cached_frames(&self) -> u16 {
        self.inner.cached_frames
    }

    /// Bytes mapped, for the memory usage of a configuration.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.inner.mapped_bytes
    }

    /// Kind of pages that the kernel provided.
    #[must_use]
    pub fn page_kind(&self) -> PageKind {
        self.inner.page_kind
    }

    /// NUMA node of the first page; none if the kernel does not report it.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        /// `MPOL_F_NODE | MPOL_F_ADDR` of numaif.h: the node of the page at an address.
        const NODE_OF_ADDRESS: libc::c_ulong = 1 | 2;
        let mut node: libc::c_int = -1;
        // SAFETY: the kernel writes one int to `node`, takes no mask, and only looks up the
        // address.
        let done = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut node,
                ptr::null_mut::<libc::c_ulong>(),
                0 as libc::c_ulong,
                self.inner.base.as_ptr(),
                NODE_OF_ADDRESS,
            )
        };
        (done == 0).then(|| u32::try_from(node).ok()).flatten()
    }

    /// Returns true if both are the same memory, so that handles are valid for both.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Number of the frame's slot, from 0 to [`FrameRegion::frames`] - 1; constant while the memory
    /// exists.
    ///
    /// # Panics
    /// If the frame belongs to another memory.
    #[inline]
    #[must_use]
    pub fn slot_number(&self, frame: &Frame) -> usize {
        let slot_number = frame.index().wrapping_sub(self.inner.first_index);
        assert!(slot_number < self.inner.frames, "a frame of another memory");
        slot_number as usize
    }

    /// Range of the frame's bytes, relative to the start of the region.
    ///
    /// # Panics
    /// If the frame belongs to another memory, or its length and offset exceed its slot.
    #[inline]
    #[must_use]
    pub fn byte_range(&self, frame: &Frame) -> Range<usize> {
        let slot_number = self.slot_number(frame);
        let end = usize::from(frame.offset()) + usize::from(frame.len());
        assert!(end <= self.inner.slot_bytes, "a frame longer than its slot");
        let slot = slot_number * self.inner.slot_bytes;
        slot + usize::from(frame.offset())..slot + end
    }

    /// Bytes of the frame.
    ///
    /// # Panics
    /// Like [`FrameRegion::byte_range`].
    #[inline]
    #[must_use]
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        let range = self.byte_range(frame);
        // SAFETY: `byte_range` lies within the mapping.
        let start = unsafe { self.inner.base.add(range.start) };
        // SAFETY: mapped and filled with zeros by the kernel; the handle exists once and is
        // borrowed, so these bytes do not change meanwhile.
        unsafe { slice::from_raw_parts(start.as_ptr(), range.len()) }
    }

    /// Bytes of the frame, mutable.
    ///
    /// # Panics
    /// Like [`FrameRegion::byte_range`].
    #[inline]
    #[must_use]
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let range = self.byte_range(frame);
        // SAFETY: `byte_range` lies within the mapping.
        let start = unsafe { self.inner.base.add(range.start) };
        // SAFETY: as in `bytes`; the handle exists once and is borrowed mutably, so there is no
        // other access to these bytes meanwhile.
        unsafe { slice::from_raw_parts_mut(start.as_ptr(), range.len()) }
    }

    /// Prefetches the cache lines with the frame's headers, which another core wrote, so that they
    /// arrive while the caller does other work.
    #[inline]
    pub fn prefetch_headers(&self, frame: &Frame) {
        const HEAD_BYTES: usize = 2 * CACHE_LINE_BYTES;
        let bytes = usize::from(frame.len()).min(HEAD_BYTES);
        prefetch::range_for_read(self.data_pointer(frame).cast_const(), bytes);
    }

    /// Address of the frame's first byte, for the kernel.
    ///
    /// # Panics
    /// Like [`FrameRegion::byte_range`].
    #[inline]
    pub fn data_pointer(&self, frame: &Frame) -> *mut u8 {
        let range = self.byte_range(frame);
        // SAFETY: `byte_range` lies within the mapping.
        unsafe { self.inner.base.add(range.start) }.as_ptr()
    }

    /// Start and bytes of the whole mapping, for the kernel. The slots are at its start.
    #[allow(
        dead_code,
        reason = "ports that give their memory to the kernel use it"
    )]
    pub fn mapping(&self) -> (NonNull<u8>, usize) {
        (self.inner.base, self.inner.mapped_bytes)
    }

    /// Index of the first slot; a frame's slot number is its index minus this.
    #[allow(
        dead_code,
        reason = "ports that give their memory to the kernel use it"
    )]
    pub fn first_index(&self) -> u32 {
        self.inner.first_index
    }

    /// Takes a batch of free frames, if there is one.
    pub fn take_batch(&self) -> Option<Batch> {
        self.inner.recent.pop().or_else(|| self.inner.depot.pop())
    }

    /// Returns a batch to the depot.
    pub fn put_batch(&self, batch: Batch) {
        // The depot has slots for all frames in full batches, and pools return only full ones while
        // they can; a dropped pool may return a short one, which is lost if the depot is full.
        if let Err(batch) = self.inner.recent.push(batch) {
            drop(self.inner.depot.push(batch));
        }
    }

    /// Frees frames of a queue that is dropped. Not for the data path.
    pub fn reclaim(&self, frames: impl IntoIterator<Item = Frame>) {
        let mut pool = self.pool();
        for frame in frames {
            pool.free(frame);
        }
    }

    fn unclaimed_ends(&self) -> MutexGuard<'_, HashMap<String, [UnclaimedEnd; 2]>> {
        let ends = self.inner.unclaimed_ends.lock();
        ends.unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes end `index` (0 or 1) of the cable `name`, which is created by `make` if it does not
    /// exist. None if the end is in use.
    ///
    /// Two ports connect to each other through the memory that they share. Not for the data path.
    pub fn claim_end<T: Send + 'static>(
        &self,
        name: &str,
        index: usize,
        make: impl FnOnce() -> [T; 2],
    ) -> Option<T> {
        let mut ends = self.unclaimed_ends();
        let pair = ends
            .entry(name.to_owned())
            .or_insert_with(|| make().map(|end| Some(Box::new(end) as Box<dyn Any + Send>)));
        let end = pair[index & 1].take()?;
        end.downcast::<T>().ok().map(|end| *end)
    }

    /// Returns an end to the cable. If both ends are returned, removes the cable and returns its
    /// ends.
    pub fn release_end<T: Send + 'static>(
        &self,
        name: &str,
        index: usize,
        end: T,
    ) -> Option<[T; 2]> {
        let mut ends = self.unclaimed_ends();
        let pair = ends.get_mut(name)?;
        pair[index & 1] = Some(Box::new(end));
        if pair.iter().any(Option::is_none) {
            return None;
        }
        let downcast = |end: UnclaimedEnd| end?.downcast::<T>().ok().map(|end| *end);
        let [first, second] = ends.remove(name)?.map(downcast);
        Some([first?, second?])
    }
}

impl fmt::Debug for FrameRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("frames", &self.inner.frames)
            .field("slot_bytes", &self.inner.slot_bytes)
            .field("pages", &self.inner.page_kind)
            .finish_non_exhaustive()
    }
}

impl Drop for RegionInner {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made by `map_frames`, and no handle is used without a
        // `RegionInner`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
    }
}

/// Maps at least `bytes`, in huge pages if requested and available.
fn map_frames(bytes: usize, huge_pages: bool) -> io::Result<(NonNull<u8>, usize, PageKind)> {
    let rounded = bytes.next_multiple_of(HUGE_PAGE_BYTES);
    if huge_pages && let Ok(base) = map_anonymous(rounded, libc::MAP_HUGETLB | libc::MAP_POPULATE) {
        return Ok((base, rounded, PageKind::Huge));
    }
    let base = map_anonymous(rounded, 0)?;
    if huge_pages {
        // SAFETY: the mapping of the line above. A failure leaves ordinary pages, which is valid
        // too.
        unsafe { libc::madvise(base.as_ptr().cast(), rounded, libc::MADV_HUGEPAGE) };
    }
    // Touched page by page after the advice: MAP_POPULATE would have taken effect before it.
    for at in (0..bytes).step_by(4096) {
        // SAFETY: `at` is below `bytes`, so within the mapping.
        let byte = unsafe { base.add(at) };
        // SAFETY: writable memory that no other code uses yet.
        unsafe { ptr::write_volatile(byte.as_ptr(), 0) };
    }
    Ok((base, rounded, PageKind::Ordinary))
}

fn map_anonymous(bytes: usize, flags: libc::c_int) -> io::Result<NonNull<u8>> {
    // SAFETY: a new private anonymous mapping at an address chosen by the kernel.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

#[cfg(test)]
mod tests;
