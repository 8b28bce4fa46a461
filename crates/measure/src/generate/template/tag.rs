//! What each frame carries so that it can be told on arrival: its run, its flow, its number and when it
//! left.

/// Bits of the mark of a run, which begins every tag.
const MARK_BITS: u32 = 16;
/// Bytes of the longest tag.
const LONGEST: usize = 16;

/// How a tag is laid out: short frames have no room for all of it.
///
/// In network order, without gaps: the mark of the run (16 bits), the number of the frame within its
/// account, the account, and the time in nanoseconds since the run began. What does not fit is cut off
/// above, and found again on arrival: numbers and times are near those that are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes, always an even number: checksums sum words.
    pub bytes: usize,
    number_bits: u32,
    account_bits: u32,
    time_bits: u32,
}

/// The layouts, the longest first: 48 bits of time are three days.
pub const LAYOUTS: [Layout; 3] = [
    Layout {
        bytes: LONGEST,
        number_bits: 48,
        account_bits: 16,
        time_bits: 48,
    },
    // UDP behind a VLAN tag in a frame of 64 bytes: 18 minutes of delay, a number each for 10^12 frames.
    Layout {
        bytes: 14,
        number_bits: 40,
        account_bits: 16,
        time_bits: 40,
    },
    // Behind two tags: 4.3 seconds of delay, and numbers that come again after 16 million.
    Layout {
        bytes: 10,
        number_bits: 24,
        account_bits: 8,
        time_bits: 32,
    },
];

const _: () = {
    let mut at = 0;
    while at < LAYOUTS.len() {
        let Layout {
            bytes,
            number_bits,
            account_bits,
            time_bits,
        } = LAYOUTS[at];
        assert!(MARK_BITS + number_bits + account_bits + time_bits == 8 * bytes as u32);
        assert!(bytes % 2 == 0);
        at += 1;
    }
};

impl Layout {
    /// The longest that fits into so many bytes, and knows so many accounts.
    #[must_use]
    pub fn fitting(room: usize) -> Option<Self> {
        LAYOUTS.into_iter().find(|layout| layout.bytes <= room)
    }
}

/// The lowest bits of a number.
#[inline]
const fn low(value: u64, bits: u32) -> u64 {
    value & ((1 << bits) - 1)
}

/// The number nearest to `expected` that has these lowest bits.
#[inline]
fn nearest(lowest: u64, bits: u32, expected: u64) -> u64 {
    let span = 1u64 << bits;
    let same = expected & !(span - 1) | lowest;
    let half = span / 2;
    if same > expected.saturating_add(half) && same >= span {
        same - span
    } else if same.saturating_add(half) < expected {
        same + span
    } else {
        same
    }
}

/// A tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Drawn for each run, so that frames of an earlier one are not counted.
    pub mark: u16,
    /// Number of the frame within its account, from 0.
    pub number: u64,
    /// The flow, or the group of flows, that is accounted for together.
    pub account: u16,
    /// When it was handed over, since the run began.
    pub time_ns: u64,
}

impl Tag {
    /// Its bytes; those of the layout count, the rest is zero.
    #[inline]
    #[must_use]
    pub fn bytes(self, layout: Layout) -> [u8; LONGEST] {
        let mut all = u128::from(self.mark);
        for (value, bits) in [
            (self.number, layout.number_bits),
            (self.account.into(), layout.account_bits),
            (self.time_ns, layout.time_bits),
        ] {
            all = all << bits | u128::from(low(value, bits));
        }
        (all << (8 * (LONGEST - layout.bytes))).to_be_bytes()
    }

    /// Reads one that arrived at `now_ns` since the run began; its number has its lowest bits only, see
    /// [`Tag::near`]. None where there are fewer bytes.
    #[inline]
    #[must_use]
    pub fn read(bytes: &[u8], layout: Layout, now_ns: u64) -> Option<Self> {
        let bytes = bytes.get(..layout.bytes)?;
        let mut all = bytes
            .iter()
            .fold(0u128, |all, &byte| all << 8 | u128::from(byte));
        let mut part = |bits: u32| {
            let part = low(all as u64, bits);
            all >>= bits;
            part
        };
        let time = part(layout.time_bits);
        let (account, number) = (part(layout.account_bits), part(layout.number_bits));
        Some(Self {
            mark: part(MARK_BITS) as u16,
            number,
            account: account as u16,
            // A frame left before it came.
            time_ns: match layout.time_bits {
                48 => time,
                bits => now_ns.wrapping_sub(low(now_ns.wrapping_sub(time), bits)),
            },
        })
    }

    /// The same with all of its number, which is near `expected`.
    #[inline]
    #[must_use]
    pub fn near(self, layout: Layout, expected: u64) -> Self {
        Self {
            number: nearest(self.number, layout.number_bits, expected),
            ..self
        }
    }
}

/// How far a device may have moved the tag: none, one VLAN tag taken away or put in, or two.
const SHIFTS: [isize; 5] = [0, -4, 4, -8, 8];

/// Finds the tag of a run in a frame that was sent with it at `place`.
///
/// A foreign frame is taken for one of the run's when its bytes happen to be the mark, a known account
/// and a time that has been: of random bytes less than one frame in 10^9, with the shorter layouts less
/// than one in 10^4.
#[inline]
#[must_use]
pub fn find(
    frame: &[u8],
    (place, layout): (usize, Layout),
    mark: u16,
    accounts: u16,
    now_ns: u64,
) -> Option<Tag> {
    SHIFTS.iter().find_map(|&shift| {
        let at = place.checked_add_signed(shift)?;
        let tag = Tag::read(frame.get(at..)?, layout, now_ns)?;
        (tag.mark == mark && tag.account < accounts && tag.time_ns <= now_ns).then_some(tag)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One as it was always written: mark, number, account, time.
    #[test]
    fn a_tag_as_bytes() {
        let tag = Tag {
            mark: 0xabcd,
            number: 0x0102_0304_0506,
            account: 0x0708,
            time_ns: 0x1112_1314_1516,
        };
        let want = [
            0xab, 0xcd, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16,
        ];
        assert_eq!(tag.bytes(LAYOUTS[0]), want);
        let want = [0xab, 0xcd, 4, 5, 6, 8, 0x13, 0x14, 0x15, 0x16];
        assert_eq!(tag.bytes(LAYOUTS[2])[..10], want);
        for (room, bytes) in [(9, None), (10, Some(10)), (15, Some(14)), (99, Some(16))] {
            assert_eq!(Layout::fitting(room).map(|layout| layout.bytes), bytes);
        }
    }

    proptest! {
        #[test]
        fn a_tag_is_found_where_it_was_put(
            mark: u16, number in 0u64..1 << 48, account in 0u16..256, time_ns in 0u64..1 << 47,
            delay in 0u64..4_000_000_000, shift in 0usize..5, which in 0usize..3, off in -1000i64..1000,
            content in prop::collection::vec(any::<u8>(), 80),
        ) {
            let layout = LAYOUTS[which];
            let tag = Tag { mark, number, account, time_ns };
            let at = 42usize.checked_add_signed(SHIFTS[shift]).unwrap();
            let mut frame = content;
            frame[at..at + layout.bytes].copy_from_slice(&tag.bytes(layout)[..layout.bytes]);
            let now = time_ns + delay;
            let found = find(&frame, (42, layout), mark, 300, now);
            let earlier = SHIFTS[..shift].iter().any(|shift| {
                let at = 42usize.checked_add_signed(*shift).unwrap();
                frame[at..at + 2] == mark.to_be_bytes()
            });
            // The number comes near the one expected: a few lost before it, or late.
            let expected = number.saturating_add_signed(off);
            let found = found.map(|found| found.near(layout, expected));
            prop_assert!(found == Some(tag) || earlier, "{found:?}");
        }

        #[test]
        fn no_frame_panics(
            frame in prop::collection::vec(any::<u8>(), 0..90), place in 0usize..100, which in 0usize..3,
            now: u64, expected: u64,
        ) {
            let layout = LAYOUTS[which];
            let found = find(&frame, (place, layout), 1, 1, now);
            let _ = found.map(|found| found.near(layout, expected));
        }
    }
}
