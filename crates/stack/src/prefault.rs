//! Memory whose pages are faulted in at allocation.
//!
//! The kernel maps a page when it is first written, and the allocator only reserves addresses.
//! Without this, buffers allocated at start would cause page faults while packets are measured.

use std::hint::black_box;
use std::mem::MaybeUninit;

/// Smallest page of Linux; a larger page is touched several times.
const PAGE_BYTES: usize = 4096;

/// Returns an empty vector with this capacity.
pub(crate) fn room<T>(count: usize) -> Vec<T> {
    let mut list = Vec::with_capacity(count);
    // `black_box` hides the slice from the compiler: it can neither drop the writes nor assume that
    // the memory is zero.
    let places = black_box(list.spare_capacity_mut());
    let stride = PAGE_BYTES / size_of::<T>().clamp(1, PAGE_BYTES);
    for place in places.iter_mut().step_by(stride) {
        *place = MaybeUninit::zeroed();
    }
    if let Some(last) = places.last_mut() {
        *last = MaybeUninit::zeroed();
    }
    black_box(places);
    list
}

/// Returns a vector of this many default values.
pub(crate) fn filled<T: Clone + Default>(count: usize) -> Vec<T> {
    let mut list = room(count);
    list.resize(count, T::default());
    list
}

#[cfg(test)]
mod tests {
    use linerate_host::sys::cpu::ThreadEvents;

    use super::*;

    /// Returns the page faults of the calling thread during `body`.
    fn faults(body: impl FnOnce()) -> u64 {
        let before = ThreadEvents::now().minor_faults;
        body();
        ThreadEvents::now().minor_faults - before
    }

    #[test]
    fn what_is_written_later_is_there_already() {
        /// Far above the size from which an allocator maps each block separately.
        const BYTES: usize = 16 << 20;
        let mut bytes: Vec<u8> = filled(BYTES);
        assert_eq!(bytes.len(), BYTES);
        assert!(bytes.iter().all(|&byte| byte == 0));
        let mut numbers: Vec<[u64; 5]> = room(BYTES / size_of::<[u64; 5]>());
        assert!(numbers.is_empty());
        let of_bytes = faults(|| black_box(&mut bytes[..]).fill(1));
        let of_numbers = faults(|| numbers.resize(black_box(numbers.capacity()), [1; 5]));
        // A few are the test's own; each vector has more than four thousand pages, or eight huge
        // ones.
        assert!(of_bytes < 4 && of_numbers < 4, "{of_bytes} {of_numbers}");
    }

    #[test]
    fn sizes_of_every_kind_have_their_room() {
        assert_eq!(room::<[u8; 5_000]>(3).capacity(), 3);
        assert_eq!(room::<u8>(0).capacity(), 0);
        assert_eq!(filled::<bool>(3), [false; 3]);
    }
}
