//! Asks for cache lines before they are needed. Waiting for one at a time, a burst of short frames takes as
//! long as all of its lines need to come from the other core; asked for together they come together.

/// Bytes of a cache line on the machines at hand; only speed depends on it.
pub(super) const LINE: usize = 64;

/// The lines of so many bytes that the other side wrote.
#[inline(always)]
pub(super) fn all_to_read(from: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(LINE) {
        to_read(from.wrapping_add(at));
    }
}

/// A line that the other side wrote.
#[inline(always)]
fn to_read(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: changes nothing that a program sees, and any address may be named.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// A line that the other side read, to be written here.
#[inline(always)]
pub(super) fn to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: changes nothing that a program sees, and any address may be named.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
