//! Memory whose pages are faulted in at allocation.
//!
//! The kernel maps a page when it is first written, and the allocator only reserves addresses.
//! Without this, buffers allocated at start would cause page faults while packets are measured.

use std::hint::black_box;
use std::mem::MaybeUninit;

/// Smallest page of Linux; a larger page is touched several times.
const PAGE_BYTES: usize = 4096;

/// Returns an empty vector with this capacity.
pub(crate) fn with_capacity<T>(count: usize) -> Vec<T> {
    let mut list = Vec::with_capacity(count);
    // `black_box` hides the slice from the compiler: it can neither drop the writes nor assume that
    // the memory is zero.
    let slots = black_box(list.spare_capacity_mut());
    let stride = PAGE_BYTES / size_of::<T>().clamp(1, PAGE_BYTES);
    for slot in slots.iter_mut().step_by(stride) {
        *slot = MaybeUninit::zeroed();
    }
    if let Some(last) = slots.last_mut() {
        *last = MaybeUninit::zeroed();
    }
    black_box(slots);
    list
}

/// Returns a vector of this many default values.
pub(crate) fn filled<T: Clone + Default>(count: usize) -> Vec<T> {
    let mut list = with_capacity(count);
    list.resize(count, T::default());
    list
}

#[cfg(test)]
mod tests {
    use linerate_sys::cpu::ThreadEvents;

    use super::*;

    /// Returns the page faults of the calling thread during `body`.
    fn count_page_faults(body: impl FnOnce()) -> u64 {
        let before = ThreadEvents::read().minor_faults;
        body();
        ThreadEvents::read().minor_faults - before
    }

    #[test]
    fn later_writes_cause_no_page_faults() {
        /// Far above the size from which an allocator maps each block separately.
        const BYTES: usize = 16 << 20;
        let mut bytes: Vec<u8> = filled(BYTES);
        assert_eq!(bytes.len(), BYTES);
        assert!(bytes.iter().all(|&byte| byte == 0));
        let mut numbers: Vec<[u64; 5]> = with_capacity(BYTES / size_of::<[u64; 5]>());
        assert!(numbers.is_empty());
        let byte_faults = count_page_faults(|| black_box(&mut bytes[..]).fill(1));
        let number_faults =
            count_page_faults(|| numbers.resize(black_box(numbers.capacity()), [1; 5]));
        // A few are the test's own; each vector has more than four thousand pages, or eight huge
        // ones.
        assert!(
            byte_faults < 4 && number_faults < 4,
            "{byte_faults} {number_faults}"
        );
    }

    #[test]
    fn any_element_size_has_its_capacity() {
        assert_eq!(with_capacity::<[u8; 5_000]>(3).capacity(), 3);
        assert_eq!(with_capacity::<u8>(0).capacity(), 0);
        assert_eq!(filled::<bool>(3), [false; 3]);
    }
}
