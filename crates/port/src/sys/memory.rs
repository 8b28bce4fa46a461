//! The memory that frames live in.

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

use crate::error::PortError;
use crate::pool::{Batch, Pool};
use crate::sys::frame::Frame;
use crate::sys::prefetch::{self, LINE};

/// Bytes in front of a frame's usual place, for headers that a port or a stack puts before it.
const HEADROOM: u16 = 128;
/// Frames of a memory unless asked for: as many as two ports with full rings and a pool each hold.
const FRAMES: u32 = 8192;
/// Ethernet header and one VLAN tag on top of an MTU of 1500.
const FRAME_BYTES: u16 = 1518;
/// Free frames that a thread may keep for itself: a burst at least, and as many as DPDK's caches hold at
/// most (`RTE_MEMPOOL_CACHE_MAX_SIZE`), or those of a small memory would all be with one thread.
pub const CACHED_FRAMES: RangeInclusive<u16> = 32..=512;
/// The same unless asked for: enough for two ports to take and return whole bursts without touching what
/// threads share.
pub(crate) const KEEP: u16 = 256;
/// Batches that are not full and still have a place in the depot: one for each pool that ended, at worst.
const SHORT_BATCHES: usize = 64;
/// Batches that go round without touching the rest of the depot, which is a queue: where frames drift from
/// one thread to another, every one of the memory would be used in turn, and none would be in a cache.
/// Enough for what two threads take and leave between two looks at each other.
const WARM_BATCHES: usize = 4;
/// The size of a huge page that mappings are rounded to: the usual one on x86-64 and arm64.
const HUGE_PAGE: usize = 2 << 20;

/// What a memory is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Slots, one frame each.
    pub frames: u32,
    /// Bytes of the largest frame.
    pub frame_bytes: u16,
    /// Bytes in front of a frame fresh from a pool.
    pub headroom: u16,
    /// Slots are 2048 B or the next power of two, as AF_XDP wants them. Else they are an odd number of
    /// cache lines, so that the headers of all frames do not fall into the same few sets of the cache
    /// (measured with 2048 B: a third of the rate at which headers can be changed).
    pub power_of_two: bool,
    /// Tries huge pages first.
    pub huge: bool,
    /// Free frames that a thread keeps before it gives a batch to the others, within [`CACHED_FRAMES`].
    pub cached_frames: u16,
}

impl Default for MemoryPlan {
    fn default() -> Self {
        Self {
            frames: FRAMES,
            frame_bytes: FRAME_BYTES,
            headroom: HEADROOM,
            power_of_two: false,
            huge: true,
            cached_frames: KEEP,
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
            // An odd number of lines walks through all sets of a cache.
            (needed.div_ceil(LINE) | 1) * LINE
        }
    }

    /// The larger of both in every respect, so that one memory serves both.
    #[must_use]
    pub fn joined(self, other: Self) -> Self {
        Self {
            frames: self.frames.saturating_add(other.frames),
            frame_bytes: self.frame_bytes.max(other.frame_bytes),
            headroom: self.headroom.max(other.headroom),
            power_of_two: self.power_of_two || other.power_of_two,
            huge: self.huge && other.huge,
            cached_frames: self.cached_frames.max(other.cached_frames),
        }
    }
}

/// Pages that a memory was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Huge pages that the administrator set aside (`vm.nr_hugepages`).
    Huge,
    /// Ordinary pages, which the kernel was asked to join where it can.
    Ordinary,
}

/// One region of slots that all ports of a run share, so that a frame moves as a handle.
///
/// Cloning is cheap and gives the same memory. It lives until the last clone, pool and port is gone.
#[derive(Clone)]
pub struct Memory {
    inner: Arc<Inner>,
}

/// One end of something with two, while nobody has it.
type Half = Option<Box<dyn Any + Send>>;

struct Inner {
    base: NonNull<u8>,
    mapped: usize,
    first: u32,
    frames: u32,
    slot_bytes: usize,
    headroom: u16,
    pages: Pages,
    cached_frames: u16,
    depot: ArrayQueue<Batch>,
    /// What was left there last, and is taken first.
    warm: ArrayQueue<Batch>,
    /// Things of two ends, by name: those ends that no port has (see [`Memory::take_half`]).
    halves: Mutex<HashMap<String, [Half; 2]>>,
}

// SAFETY: `base` is a mapping that no thread owns; its bytes are reached through handles alone, each of
// which exists once (see `Frame`).
unsafe impl Send for Inner {}
// SAFETY: as above; all other fields are Sync.
unsafe impl Sync for Inner {}

/// The next number that no slot of this process has had.
static NEXT: AtomicU32 = AtomicU32::new(0);

impl Memory {
    /// Maps and touches the memory, so that nothing is faulted in later.
    ///
    /// # Errors
    /// [`PortError::BadMemoryPlan`] when the sizes cannot be; [`PortError::NoMemory`] when the kernel
    /// gives none.
    pub fn new(plan: MemoryPlan) -> Result<Self, PortError> {
        let refused = |why| PortError::BadMemoryPlan { why };
        if plan.frames == 0 {
            return Err(refused("it has no frames"));
        }
        if plan.frame_bytes < 60 {
            return Err(refused("its frames are shorter than Ethernet's 60 bytes"));
        }
        let slot_bytes = plan.slot_bytes();
        let bytes = usize::try_from(plan.frames)
            .ok()
            .and_then(|frames| frames.checked_mul(slot_bytes))
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| refused("it is larger than the address space"))?;
        let first = NEXT
            .fetch_update(Relaxed, Relaxed, |next| next.checked_add(plan.frames))
            .map_err(|_| refused("this process has had four thousand million frames already"))?;
        let (base, mapped, pages) =
            map(bytes, plan.huge).map_err(|source| PortError::NoMemory { bytes, source })?;
        let depot = ArrayQueue::new(plan.frames as usize / Batch::FULL + SHORT_BATCHES);
        let memory = Self {
            inner: Arc::new(Inner {
                base,
                mapped,
                first,
                frames: plan.frames,
                slot_bytes,
                headroom: plan.headroom,
                pages,
                cached_frames: plan
                    .cached_frames
                    .clamp(*CACHED_FRAMES.start(), *CACHED_FRAMES.end()),
                depot,
                warm: ArrayQueue::new(WARM_BATCHES),
                halves: Mutex::new(HashMap::new()),
            }),
        };
        let mut batch = Batch::default();
        for index in (first..first + plan.frames).rev() {
            // SAFETY: `NEXT` gave these numbers to this memory alone, and each is used once.
            let frame = unsafe { Frame::from_parts(index, 0, plan.headroom) };
            if let Err(frame) = batch.push(frame) {
                memory.put_batch(std::mem::take(&mut batch));
                batch.push(frame).expect("an empty batch has room");
            }
        }
        memory.put_batch(batch);
        Ok(memory)
    }

    /// A pool for one thread; frames come to it as it needs them.
    #[must_use]
    pub fn pool(&self) -> Pool {
        Pool::new(self.clone())
    }

    /// Slots in all.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.inner.frames
    }

    /// Bytes from one slot to the next.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.inner.slot_bytes
    }

    /// Bytes in front of a frame fresh from a pool.
    #[must_use]
    pub fn headroom(&self) -> u16 {
        self.inner.headroom
    }

    /// Bytes of the largest frame that fits behind the headroom.
    #[must_use]
    pub fn frame_bytes(&self) -> u16 {
        let room = self.inner.slot_bytes - usize::from(self.inner.headroom);
        u16::try_from(room).unwrap_or(u16::MAX)
    }

    /// Free frames that a thread keeps before it gives a batch to the others.
    #[must_use]
    pub fn cached_frames(&self) -> u16 {
        self.inner.cached_frames
    }

    /// Bytes mapped, for the account of what a configuration costs.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        self.inner.mapped
    }

    /// Pages it was given.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.inner.pages
    }

    /// The NUMA node that its first page lies on; none where the kernel does not tell.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        /// The node of a page instead of the policy, and of the page at an address (`numaif.h`).
        const NODE_OF_ADDRESS: libc::c_ulong = 1 | 2;
        let mut node: libc::c_int = -1;
        // SAFETY: the kernel writes one int to `node`, takes no mask, and only looks the address up.
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

    /// Whether both are the same memory, so that handles of one are handles of the other.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Which of the [`Memory::frames`] it is, from 0: the same for as long as the memory lives.
    ///
    /// # Panics
    /// When the frame is of another memory.
    #[inline]
    #[must_use]
    pub fn number(&self, frame: &Frame) -> usize {
        let number = frame.index().wrapping_sub(self.inner.first);
        assert!(number < self.inner.frames, "a frame of another memory");
        number as usize
    }

    /// Where the frame's bytes lie, counted from the start of the region.
    ///
    /// # Panics
    /// When the frame is of another memory, or was set to reach beyond its slot.
    #[inline]
    #[must_use]
    pub fn span(&self, frame: &Frame) -> Range<usize> {
        let number = self.number(frame);
        let end = usize::from(frame.offset()) + usize::from(frame.len());
        assert!(end <= self.inner.slot_bytes, "a frame longer than its slot");
        let slot = number * self.inner.slot_bytes;
        slot + usize::from(frame.offset())..slot + end
    }

    /// The frame's bytes.
    ///
    /// # Panics
    /// As [`Memory::span`].
    #[inline]
    #[must_use]
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        let span = self.span(frame);
        // SAFETY: `span` lies within the mapping.
        let start = unsafe { self.inner.base.add(span.start) };
        // SAFETY: mapped and filled by the kernel with zeros; the handle exists once and is borrowed, so
        // nobody changes these bytes meanwhile.
        unsafe { slice::from_raw_parts(start.as_ptr(), span.len()) }
    }

    /// The frame's bytes, to change.
    ///
    /// # Panics
    /// As [`Memory::span`].
    #[inline]
    #[must_use]
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let span = self.span(frame);
        // SAFETY: `span` lies within the mapping.
        let start = unsafe { self.inner.base.add(span.start) };
        // SAFETY: as in `bytes`; the handle exists once and is borrowed mutably, so nobody else sees
        // these bytes meanwhile.
        unsafe { slice::from_raw_parts_mut(start.as_ptr(), span.len()) }
    }

    /// Asks for the lines with the frame's headers, which another core wrote: they come while whoever reads them has
    /// something else to do.
    #[inline]
    pub(crate) fn fetch_head(&self, frame: &Frame) {
        const HEAD_BYTES: usize = 2 * LINE;
        let bytes = usize::from(frame.len()).min(HEAD_BYTES);
        prefetch::all_to_read(self.pointer(frame).cast_const(), bytes);
    }

    /// Where the frame's bytes begin, for the kernel.
    ///
    /// # Panics
    /// As [`Memory::span`].
    #[inline]
    pub(crate) fn pointer(&self, frame: &Frame) -> *mut u8 {
        let span = self.span(frame);
        // SAFETY: `span` lies within the mapping.
        unsafe { self.inner.base.add(span.start) }.as_ptr()
    }

    /// The whole region, for the kernel: where it begins and its bytes. The slots are at its start.
    #[allow(
        dead_code,
        reason = "ports that give their memory to the kernel use it"
    )]
    pub(crate) fn region(&self) -> (NonNull<u8>, usize) {
        (self.inner.base, self.inner.mapped)
    }

    /// Number of the first slot: a frame's place in the region is its index less this.
    #[allow(
        dead_code,
        reason = "ports that give their memory to the kernel use it"
    )]
    pub(crate) fn first_index(&self) -> u32 {
        self.inner.first
    }

    /// A batch of free frames, when there is one.
    pub(crate) fn take_batch(&self) -> Option<Batch> {
        self.inner.warm.pop().or_else(|| self.inner.depot.pop())
    }

    /// Leaves a batch for whoever runs out.
    pub(crate) fn put_batch(&self, batch: Batch) {
        // The depot has room for all frames in full batches, and pools give it no others while a full
        // one can be made; a pool that ends may leave a short one, which is lost when there is no room.
        if let Err(batch) = self.inner.warm.push(batch) {
            drop(self.inner.depot.push(batch));
        }
    }

    /// Takes frames back from a queue that ends. Not for the path.
    pub(crate) fn take_back(&self, frames: impl IntoIterator<Item = Frame>) {
        let mut pool = self.pool();
        for frame in frames {
            pool.free(frame);
        }
    }

    fn halves(&self) -> MutexGuard<'_, HashMap<String, [Half; 2]>> {
        let halves = self.inner.halves.lock();
        halves.unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives half `which` (0 or 1) of what has this name; whoever comes first makes both. None while somebody has
    /// it.
    ///
    /// So two ports find each other through the memory that they have to share. Not for the path.
    pub(crate) fn take_half<T: Send + 'static>(
        &self,
        name: &str,
        which: usize,
        make: impl FnOnce() -> [T; 2],
    ) -> Option<T> {
        let mut halves = self.halves();
        let both = halves
            .entry(name.to_owned())
            .or_insert_with(|| make().map(|half| Some(Box::new(half) as Box<dyn Any + Send>)));
        let half = both[which & 1].take()?;
        half.downcast::<T>().ok().map(|half| *half)
    }

    /// Leaves a half for whoever comes next in its place. Once nobody has either, both come back for good.
    pub(crate) fn leave_half<T: Send + 'static>(
        &self,
        name: &str,
        which: usize,
        half: T,
    ) -> Option<[T; 2]> {
        let mut halves = self.halves();
        let both = halves.get_mut(name)?;
        both[which & 1] = Some(Box::new(half));
        if both.iter().any(Option::is_none) {
            return None;
        }
        let whole = |half: Half| half?.downcast::<T>().ok().map(|half| *half);
        let [first, second] = halves.remove(name)?.map(whole);
        Some([first?, second?])
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("frames", &self.inner.frames)
            .field("slot_bytes", &self.inner.slot_bytes)
            .field("pages", &self.inner.pages)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `map`, and no handle is used without an `Inner`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

/// Maps at least `bytes`, in huge pages where that is wanted and there are any.
fn map(bytes: usize, huge: bool) -> io::Result<(NonNull<u8>, usize, Pages)> {
    let rounded = bytes.next_multiple_of(HUGE_PAGE);
    if huge && let Ok(base) = map_with(rounded, libc::MAP_HUGETLB | libc::MAP_POPULATE) {
        return Ok((base, rounded, Pages::Huge));
    }
    let base = map_with(rounded, 0)?;
    if huge {
        // SAFETY: the mapping of the line above. A refusal leaves ordinary pages, which is fine.
        unsafe { libc::madvise(base.as_ptr().cast(), rounded, libc::MADV_HUGEPAGE) };
    }
    // Touched page by page after the advice: MAP_POPULATE would have come before it.
    for at in (0..bytes).step_by(4096) {
        // SAFETY: `at` is below `bytes`, so within the mapping.
        let byte = unsafe { base.add(at) };
        // SAFETY: writable memory that nobody else knows yet.
        unsafe { ptr::write_volatile(byte.as_ptr(), 0) };
    }
    Ok((base, rounded, Pages::Ordinary))
}

fn map_with(bytes: usize, flags: libc::c_int) -> io::Result<NonNull<u8>> {
    // SAFETY: a new private anonymous mapping, wherever the kernel wants it.
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
