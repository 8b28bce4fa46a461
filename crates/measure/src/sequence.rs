//! What the numbers on arriving datagrams tell: missing, late and repeated ones, and how the time
//! between them varies.

/// How far back a late datagram is told from a repeated one. Datagrams older than this count as
/// late without a look (64 Ki numbers are 0.2 s at 300,000 datagrams a second).
pub const WINDOW: u64 = 1 << 16;

/// Accounts for numbered datagrams of one flow; numbers start at 0.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// One above the highest number seen.
    next: u64,
    received: u64,
    out_of_order: u64,
    duplicates: u64,
    /// One bit a number of the last [`WINDOW`], set when it was seen.
    seen: Box<[u64]>,
    last_transit_ns: Option<i64>,
    ipdv_ns: f64,
    /// The last times that numbers were skipped: the numbers, and the arrival that skipped them.
    jumps: [Jump; JUMPS],
    jumped: usize,
    extent: Option<u64>,
}

/// Numbers that were passed over by one arrival.
#[derive(Clone, Copy, Debug, Default)]
struct Jump {
    from: u64,
    to: u64,
    arrival: u64,
}

/// Skipped numbers that are remembered; the extent of reordering that is older is not told.
const JUMPS: usize = 64;

impl Default for Sequence {
    fn default() -> Self {
        Self::new()
    }
}

impl Sequence {
    /// Nothing seen yet. All memory is allocated here.
    #[must_use]
    pub fn new() -> Self {
        Self {
            next: 0,
            received: 0,
            out_of_order: 0,
            duplicates: 0,
            seen: vec![0; (WINDOW / 64) as usize].into_boxed_slice(),
            last_transit_ns: None,
            ipdv_ns: 0.0,
            jumps: [Jump::default(); JUMPS],
            jumped: 0,
            extent: None,
        }
    }

    #[inline]
    fn bit(number: u64) -> (usize, u64) {
        let slot = number % WINDOW;
        ((slot / 64) as usize, 1 << (slot % 64))
    }

    /// The number that comes next when nothing is lost.
    #[inline]
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.next
    }

    /// Takes a datagram that carries `number`.
    #[inline]
    pub fn take(&mut self, number: u64) {
        self.received += 1;
        let (word, mask) = Self::bit(number);
        if number == self.next {
            self.seen[word] |= mask;
            self.next = number.saturating_add(1);
            let (word, mask) = Self::bit(self.next);
            self.seen[word] &= !mask;
        } else if number > self.next {
            self.jump(number);
        } else if self.next - number >= WINDOW {
            self.out_of_order += 1;
        } else if self.seen[word] & mask != 0 {
            self.duplicates += 1;
        } else {
            self.seen[word] |= mask;
            self.out_of_order += 1;
            self.measure_extent(number);
        }
    }

    /// A number is not waited for any more: should it come, it comes late.
    #[cold]
    pub fn give_up(&mut self, number: u64) {
        if number < self.next {
            return;
        }
        let cleared = (number - self.next).min(WINDOW - 1);
        for missing in number - cleared..=number.saturating_add(1) {
            let (word, mask) = Self::bit(missing);
            self.seen[word] &= !mask;
        }
        self.next = number.saturating_add(1);
    }

    /// How far a late datagram came behind the first one that overtook it: that is the one which
    /// skipped its number.
    #[cold]
    fn measure_extent(&mut self, number: u64) {
        let jump = self
            .jumps
            .iter()
            .find(|jump| (jump.from..jump.to).contains(&number));
        if let Some(jump) = jump {
            let extent = self.received - jump.arrival;
            self.extent = Some(self.extent.map_or(extent, |most| most.max(extent)));
        }
    }

    /// Numbers were skipped: forget those that leave the window, mark this one.
    fn jump(&mut self, number: u64) {
        self.jumps[self.jumped % JUMPS] = Jump {
            from: self.next,
            to: number,
            arrival: self.received,
        };
        self.jumped = self.jumped.wrapping_add(1);
        // A number far beyond anything sent is a stray or a lie; the window is all it can clear.
        let cleared = (number - self.next).min(WINDOW);
        for missing in number - cleared..=number {
            let (word, mask) = Self::bit(missing);
            self.seen[word] &= !mask;
        }
        let (word, mask) = Self::bit(number);
        self.seen[word] |= mask;
        self.next = number.saturating_add(1);
        let (word, mask) = Self::bit(self.next);
        self.seen[word] &= !mask;
    }

    /// Takes the time that a datagram spent between the sender's clock and ours; any constant
    /// offset between the clocks cancels.
    ///
    /// Formula: J += (|D| - J) / 16, RFC 3550 section 6.4.1.
    #[inline]
    pub fn take_transit(&mut self, transit_ns: i64) {
        if let Some(last) = self.last_transit_ns {
            let difference = transit_ns.wrapping_sub(last).unsigned_abs() as f64;
            self.ipdv_ns += (difference - self.ipdv_ns) / 16.0;
        }
        self.last_transit_ns = Some(transit_ns);
    }

    /// Datagrams taken, duplicates included.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Different datagrams taken.
    #[inline]
    #[must_use]
    pub fn unique(&self) -> u64 {
        self.received - self.duplicates
    }

    /// Numbers below the highest one seen that have not been seen (yet).
    #[inline]
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.next.saturating_sub(self.unique())
    }

    /// Datagrams that came after one with a higher number.
    #[must_use]
    pub fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    /// The largest number of arrivals by which a late datagram came behind the first one that overtook
    /// it (RFC 4737 section 4.2); `None` when none came late.
    #[must_use]
    pub fn reordering_extent(&self) -> Option<u64> {
        self.extent
    }

    /// Datagrams that came again.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Smoothed variation of the transit time; `None` before the second datagram.
    #[must_use]
    pub fn ipdv_ns(&self) -> Option<f64> {
        (self.received > 1 && self.last_transit_ns.is_some()).then_some(self.ipdv_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn after(numbers: &[u64]) -> Sequence {
        let mut sequence = Sequence::new();
        numbers.iter().for_each(|&number| sequence.take(number));
        sequence
    }

    #[test]
    fn what_was_given_up_comes_late() {
        for given_up in [4, 70_000] {
            let mut sequence = after(&[0, 1, 2, 3]);
            sequence.give_up(2);
            sequence.give_up(given_up);
            sequence.take(given_up);
            sequence.take(given_up + 1);
            assert_eq!((sequence.out_of_order(), sequence.duplicates()), (1, 0));
            sequence.take(given_up);
            sequence.take(3);
            assert_eq!(sequence.duplicates() + sequence.out_of_order(), 3);
        }
    }

    #[test]
    fn order_loss_and_repeats() {
        for (numbers, missing, out_of_order, duplicates) in [
            (&[0, 1, 2, 3][..], 0, 0, 0),
            (&[0, 2, 3], 1, 0, 0),
            (&[0, 2, 1, 3], 0, 1, 0),
            (&[0, 1, 1, 2], 0, 0, 1),
            (&[5], 5, 0, 0),
            (&[0, 100_000, 1], 99_998, 1, 0),
            (&[0, 70_000, 69_999, 69_999], 69_998, 1, 1),
        ] {
            let sequence = after(numbers);
            assert_eq!(
                (
                    sequence.missing(),
                    sequence.out_of_order(),
                    sequence.duplicates()
                ),
                (missing, out_of_order, duplicates),
                "{numbers:?}"
            );
        }
    }

    #[test]
    fn the_extent_of_reordering_counts_arrivals() {
        for (numbers, extent) in [
            (&[0, 1, 2][..], None),
            // RFC 4737 section 4.2.2: the position of the late one less that of the overtaker.
            (&[0, 2, 1], Some(1)),
            (&[0, 2, 3, 4, 1], Some(3)),
            (&[1, 2, 3, 7, 4, 5, 6, 8, 9, 10], Some(3)),
            (&[0, 5, 6, 7, 3, 1], Some(4)),
            (&[0, 1, 1], None),
        ] {
            assert_eq!(after(numbers).reordering_extent(), extent, "{numbers:?}");
        }
    }

    #[test]
    fn a_number_out_of_this_world_does_no_harm() {
        for numbers in [
            &[0, u64::MAX, 1][..],
            &[0, u64::MAX, u64::MAX],
            &[u64::MAX - 1, u64::MAX, u64::MAX, 0],
        ] {
            let sequence = after(numbers);
            assert_eq!(sequence.received(), numbers.len() as u64);
            // What was skipped stays missing, whatever comes after.
            assert!(sequence.missing() > 1 << 60, "{numbers:?}");
        }
    }

    #[test]
    fn a_steady_flow_does_not_vary() {
        let mut sequence = after(&[0, 1, 2]);
        for _ in 0..10 {
            sequence.take_transit(5_000_000);
        }
        assert_eq!(sequence.ipdv_ns(), Some(0.0));
        // Alternating by 160 ns settles towards 160.
        let mut sequence = after(&[0, 1, 2]);
        for step in 0..200 {
            sequence.take_transit(if step % 2 == 0 { 0 } else { 160 });
        }
        let ipdv = sequence.ipdv_ns().unwrap();
        assert!((159.0..=160.5).contains(&ipdv), "{ipdv}");
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(numbers in prop::collection::vec(0u64..3_000, 1..800)) {
            let sequence = after(&numbers);
            let distinct: HashSet<u64> = numbers.iter().copied().collect();
            let highest = numbers.iter().max().unwrap();
            prop_assert_eq!(sequence.unique(), distinct.len() as u64);
            prop_assert_eq!(sequence.missing(), highest + 1 - distinct.len() as u64);
            prop_assert_eq!(sequence.duplicates(), (numbers.len() - distinct.len()) as u64);
        }
    }
}
