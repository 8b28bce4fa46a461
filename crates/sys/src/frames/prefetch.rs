//! Cache prefetches. Without them, the cache misses of a burst that another core wrote occur one
//! after another; prefetched together they overlap.

/// Bytes of a cache line on common machines; a wrong value only affects speed.
pub const CACHE_LINE_BYTES: usize = 64;

/// Prefetches all lines of a range that another core wrote.
#[inline(always)]
pub fn range_for_read(from: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(CACHE_LINE_BYTES) {
        line_for_read(from.wrapping_add(at));
    }
}

/// Prefetches a line that another core wrote.
#[inline(always)]
fn line_for_read(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: has no visible effect on the program, and any address is permitted.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches a line that another core read, for writing.
#[inline(always)]
pub fn line_for_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: has no visible effect on the program, and any address is permitted.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
