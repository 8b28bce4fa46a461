//! Memory whose pages are there before they are needed.
//!
//! The kernel gives a page when it is written for the first time, and the allocator only asks for room: what was
//! allocated up front would be faulted in by the packets that are measured.

use std::hint::black_box;
use std::mem::MaybeUninit;

/// The smallest page of Linux; larger ones are touched more than once.
const PAGE_BYTES: usize = 4096;

/// An empty list with room for so many.
pub(crate) fn room<T>(count: usize) -> Vec<T> {
    let mut list = Vec::with_capacity(count);
    // What has been out of the compiler's sight may have been looked at: no write to it can be left out, and it is not
    // known to be zero.
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

/// So many zeros, or what else a value begins with.
pub(crate) fn filled<T: Clone + Default>(count: usize) -> Vec<T> {
    let mut list = room(count);
    list.resize(count, T::default());
    list
}

#[cfg(test)]
mod tests {
    use linerate_host::sys::cpu::ThreadEvents;

    use super::*;

    /// Page faults of the calling thread meanwhile.
    fn faults(body: impl FnOnce()) -> u64 {
        let before = ThreadEvents::now().minor_faults;
        body();
        ThreadEvents::now().minor_faults - before
    }

    #[test]
    fn what_is_written_later_is_there_already() {
        /// Far above the size from which an allocator asks the kernel for each alone.
        const BYTES: usize = 16 << 20;
        let mut bytes: Vec<u8> = filled(BYTES);
        assert_eq!(bytes.len(), BYTES);
        assert!(bytes.iter().all(|&byte| byte == 0));
        let mut numbers: Vec<[u64; 5]> = room(BYTES / size_of::<[u64; 5]>());
        assert!(numbers.is_empty());
        let of_bytes = faults(|| black_box(&mut bytes[..]).fill(1));
        let of_numbers = faults(|| numbers.resize(black_box(numbers.capacity()), [1; 5]));
        // A few are the test's own; each had more than four thousand pages, or eight huge ones.
        assert!(of_bytes < 4 && of_numbers < 4, "{of_bytes} {of_numbers}");
    }

    #[test]
    fn sizes_of_every_kind_have_their_room() {
        assert_eq!(room::<[u8; 5_000]>(3).capacity(), 3);
        assert_eq!(room::<u8>(0).capacity(), 0);
        assert_eq!(filled::<bool>(3), [false; 3]);
    }
}
