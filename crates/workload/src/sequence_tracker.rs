//! Sequence numbers of received datagrams: loss, reordering, duplicates and delay variation.

use linerate_stats::transit_variation::TransitVariation;

/// Numbers back to which late datagrams and duplicates are distinguished. Older datagrams count as
/// late (64 Ki numbers are 0.2 s at 300,000 datagrams a second).
pub const SEQUENCE_WINDOW: u64 = 1 << 16;

/// Tracks the numbered datagrams of one flow; numbers start at 0.
#[derive(Clone, Debug)]
pub struct SequenceTracker {
    /// Highest received number plus 1.
    next_number: u64,
    received: u64,
    out_of_order: u64,
    duplicates: u64,
    /// Bit for each number of the last [`SEQUENCE_WINDOW`], set when it was received.
    received_bits: Box<[u64]>,
    variation: TransitVariation,
    /// First number that arrived, and its time.
    first_arrival: Option<(u64, u64)>,
    last_arrival_ns: u64,
    /// Last ranges of skipped numbers.
    skipped_ranges: [SkippedRange; SKIPPED_RANGES],
    skip_count: usize,
    max_extent: Option<u64>,
}

/// Numbers skipped by one arrival.
#[derive(Clone, Copy, Debug, Default)]
struct SkippedRange {
    from: u64,
    to: u64,
    arrival: u64,
}

/// Stored ranges; older ones are missing in the reordering extent.
const SKIPPED_RANGES: usize = 64;

impl Default for SequenceTracker {
    fn default() -> Self {
        Self::new()
    }
}

impl SequenceTracker {
    /// Creates an empty tracker; allocates all of its memory.
    #[must_use]
    pub fn new() -> Self {
        Self {
            next_number: 0,
            received: 0,
            out_of_order: 0,
            duplicates: 0,
            received_bits: vec![0; (SEQUENCE_WINDOW / 64) as usize].into_boxed_slice(),
            variation: TransitVariation::default(),
            first_arrival: None,
            last_arrival_ns: 0,
            skipped_ranges: [SkippedRange::default(); SKIPPED_RANGES],
            skip_count: 0,
            max_extent: None,
        }
    }

    #[inline]
    fn bit(number: u64) -> (usize, u64) {
        let slot = number % SEQUENCE_WINDOW;
        ((slot / 64) as usize, 1 << (slot % 64))
    }

    /// Returns the next number in order.
    #[inline]
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.next_number
    }

    /// Records a datagram with this number.
    #[inline]
    pub fn record(&mut self, number: u64) {
        self.received += 1;
        let (word, mask) = Self::bit(number);
        if number == self.next_number {
            self.received_bits[word] |= mask;
            self.next_number = number.saturating_add(1);
            let (word, mask) = Self::bit(self.next_number);
            self.received_bits[word] &= !mask;
        } else if number > self.next_number {
            self.skip_to(number);
        } else if self.next_number - number >= SEQUENCE_WINDOW {
            self.out_of_order += 1;
        } else if self.received_bits[word] & mask != 0 {
            self.duplicates += 1;
        } else {
            self.received_bits[word] |= mask;
            self.out_of_order += 1;
            self.measure_extent(number);
        }
    }

    /// Marks a number as lost: if it arrives later, it counts as late.
    #[inline]
    #[cold]
    pub fn skip(&mut self, number: u64) {
        if number < self.next_number {
            return;
        }
        let cleared = (number - self.next_number).min(SEQUENCE_WINDOW - 1);
        for missing in number - cleared..=number.saturating_add(1) {
            let (word, mask) = Self::bit(missing);
            self.received_bits[word] &= !mask;
        }
        self.next_number = number.saturating_add(1);
    }

    /// Measures the distance, in arrivals, between a late datagram and the first one that overtook
    /// it.
    #[cold]
    fn measure_extent(&mut self, number: u64) {
        let range = self
            .skipped_ranges
            .iter()
            .find(|range| (range.from..range.to).contains(&number));
        if let Some(range) = range {
            let extent = self.received - range.arrival;
            self.max_extent = Some(
                self.max_extent
                    .map_or(extent, |largest| largest.max(extent)),
            );
        }
    }

    /// Records a number that skips others: clears those that leave the window, and marks this one.
    fn skip_to(&mut self, number: u64) {
        self.skipped_ranges[self.skip_count % SKIPPED_RANGES] = SkippedRange {
            from: self.next_number,
            to: number,
            arrival: self.received,
        };
        self.skip_count = self.skip_count.wrapping_add(1);
        // A number far beyond the sent ones is invalid; it can clear at most the window.
        let cleared = (number - self.next_number).min(SEQUENCE_WINDOW);
        for missing in number - cleared..=number {
            let (word, mask) = Self::bit(missing);
            self.received_bits[word] &= !mask;
        }
        let (word, mask) = Self::bit(number);
        self.received_bits[word] |= mask;
        self.next_number = number.saturating_add(1);
        let (word, mask) = Self::bit(self.next_number);
        self.received_bits[word] &= !mask;
    }

    /// Records the arrival time of a datagram.
    #[inline]
    pub fn record_arrival(&mut self, number: u64, arrived_ns: u64) {
        self.first_arrival.get_or_insert((number, arrived_ns));
        self.last_arrival_ns = arrived_ns;
    }

    /// Returns the time at which number 0 arrived, or would have at the rate of those that arrived;
    /// `None` before the first datagram.
    #[must_use]
    pub fn start_ns(&self) -> Option<u64> {
        let (first, first_ns) = self.first_arrival?;
        let later = self.next_number.saturating_sub(1).saturating_sub(first);
        let span_ns = u128::from(self.last_arrival_ns.saturating_sub(first_ns));
        let before_ns = span_ns * u128::from(first) / u128::from(later.max(1));
        Some(first_ns.saturating_sub(u64::try_from(before_ns).unwrap_or(u64::MAX)))
    }

    /// Records the sender's time of a datagram, after its number; a constant offset of the clocks
    /// cancels out. Returns the difference of its transit time from the one before, if known.
    #[inline]
    pub fn record_times(&mut self, number: u64, sent_ns: u64, arrived_ns: u64) -> Option<u64> {
        let is_newest = number.saturating_add(1) == self.next_number;
        self.variation.record(sent_ns, arrived_ns, is_newest)
    }

    /// Returns the number of received datagrams, including duplicates.
    #[inline]
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns the number of distinct datagrams.
    #[inline]
    #[must_use]
    pub fn unique(&self) -> u64 {
        self.received - self.duplicates
    }

    /// Returns how many numbers below the highest one are missing so far.
    #[inline]
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.next_number.saturating_sub(self.unique())
    }

    /// Returns the number of datagrams that arrived after one with a higher number.
    #[must_use]
    pub fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    /// Returns the reordering extent in arrivals (RFC 4737 section 4.2), the largest of all late
    /// datagrams; `None` without any.
    #[must_use]
    pub fn reordering_extent(&self) -> Option<u64> {
        self.max_extent
    }

    /// Returns the number of duplicates.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Returns the smoothed variation of the transit time; `None` before the second time, and if
    /// the sender's clock does not show it.
    #[must_use]
    pub fn ipdv_ns(&self) -> Option<f64> {
        self.variation.ipdv_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn tracker_after(numbers: &[u64]) -> SequenceTracker {
        let mut sequence = SequenceTracker::new();
        numbers.iter().for_each(|&number| sequence.record(number));
        sequence
    }

    #[test]
    fn skipped_numbers_count_as_late() {
        for skipped in [4, 70_000] {
            let mut sequence = tracker_after(&[0, 1, 2, 3]);
            sequence.skip(2);
            sequence.skip(skipped);
            sequence.record(skipped);
            sequence.record(skipped + 1);
            assert_eq!((sequence.out_of_order(), sequence.duplicates()), (1, 0));
            sequence.record(skipped);
            sequence.record(3);
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
            let sequence = tracker_after(numbers);
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
            // RFC 4737 section 4.2.2: position of the late datagram minus that of the overtaking
            // one.
            (&[0, 2, 1], Some(1)),
            (&[0, 2, 3, 4, 1], Some(3)),
            (&[1, 2, 3, 7, 4, 5, 6, 8, 9, 10], Some(3)),
            (&[0, 5, 6, 7, 3, 1], Some(4)),
            (&[0, 1, 1], None),
        ] {
            assert_eq!(
                tracker_after(numbers).reordering_extent(),
                extent,
                "{numbers:?}"
            );
        }
    }

    #[test]
    fn an_absurd_number_does_no_harm() {
        for numbers in [
            &[0, u64::MAX, 1][..],
            &[0, u64::MAX, u64::MAX],
            &[u64::MAX - 1, u64::MAX, u64::MAX, 0],
        ] {
            let sequence = tracker_after(numbers);
            assert_eq!(sequence.received(), numbers.len() as u64);
            // Skipped numbers stay missing, whatever arrives after.
            assert!(sequence.missing() > 1 << 60, "{numbers:?}");
        }
    }

    #[test]
    fn lost_datagrams_at_the_start_take_their_time() {
        for (numbers, start_ns) in [
            (&[][..], None),
            (&[0, 1, 2], Some(10_000)),
            // Numbers from 50 to 150 in 100 us.
            (&[50, 100, 150], Some(9_950)),
            (&[7], Some(10_000)),
            // Reordered at the start.
            (&[1, 0, 2], Some(9_900)),
        ] {
            let mut sequence = SequenceTracker::new();
            for (&number, arrived_ns) in numbers.iter().zip((10_000..).step_by(50)) {
                sequence.record(number);
                sequence.record_arrival(number, arrived_ns);
            }
            assert_eq!(sequence.start_ns(), start_ns, "{numbers:?}");
        }
        let mut sequence = tracker_after(&[u64::MAX]);
        sequence.record_arrival(u64::MAX, 5);
        assert_eq!(sequence.start_ns(), Some(5));
    }

    #[test]
    fn a_steady_flow_does_not_vary() {
        let ipdv_of = |extra_ns: fn(u64) -> u64| {
            let mut sequence = SequenceTracker::new();
            for number in 0..200 {
                let sent_ns = 1_000 + number * 1_000_003;
                sequence.record(number);
                sequence.record_times(number, sent_ns, sent_ns + 5_000_000 + extra_ns(number));
            }
            sequence.ipdv_ns().unwrap()
        };
        assert_eq!(ipdv_of(|_| 0), 0.0);
        // Alternating by 160 ns converges to 160.
        let ipdv = ipdv_of(|number| number % 2 * 160);
        assert!((159.0..=160.5).contains(&ipdv), "{ipdv}");
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(numbers in prop::collection::vec(0u64..3_000, 1..800)) {
            let sequence = tracker_after(&numbers);
            let distinct: HashSet<u64> = numbers.iter().copied().collect();
            let highest = numbers.iter().max().unwrap();
            prop_assert_eq!(sequence.unique(), distinct.len() as u64);
            prop_assert_eq!(sequence.missing(), highest + 1 - distinct.len() as u64);
            prop_assert_eq!(sequence.duplicates(), (numbers.len() - distinct.len()) as u64);
        }
    }
}
