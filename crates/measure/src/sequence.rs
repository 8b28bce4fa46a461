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
}

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
        }
    }

    #[inline]
    fn bit(number: u64) -> (usize, u64) {
        let slot = number % WINDOW;
        ((slot / 64) as usize, 1 << (slot % 64))
    }

    /// Takes a datagram that carries `number`.
    #[inline]
    pub fn take(&mut self, number: u64) {
        self.received += 1;
        let (word, mask) = Self::bit(number);
        if number == self.next {
            self.seen[word] |= mask;
            self.next += 1;
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
        }
    }

    /// Numbers were skipped: forget those that leave the window, mark this one.
    fn jump(&mut self, number: u64) {
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
    fn a_number_out_of_this_world_does_no_harm() {
        let sequence = after(&[0, u64::MAX, 1]);
        assert_eq!(sequence.received(), 3);
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
