//! What each frame carries so that it can be told on arrival: its run, its flow, its number and when it
//! left.

/// Bits of the check that begins every tag.
const CHECK_BITS: u32 = 16;
/// Bytes of the longest tag.
const LONGEST: usize = 16;

/// How a tag is laid out: short frames have no room for all of it.
///
/// In network order, without gaps: a check over all of it (16 bits), the mark of the run, the number of the
/// frame within its account, the account, and the time in nanoseconds since the run began. What does not
/// fit is cut off above, and found again on arrival: numbers and times are near those that are expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes, always an even number: checksums sum words.
    pub bytes: usize,
    /// None in the shortest: there the check alone tells the run, which it sums too.
    mark_bits: u32,
    number_bits: u32,
    account_bits: u32,
    time_bits: u32,
}

/// The layouts, the longest first: 40 bits are 18 minutes of delay, and a number each for 10^12 frames.
pub const LAYOUTS: [Layout; 3] = [
    Layout {
        bytes: LONGEST,
        mark_bits: 16,
        number_bits: 40,
        account_bits: 16,
        time_bits: 40,
    },
    // UDP behind a VLAN tag in a frame of 64 bytes: 4.3 seconds of delay, and numbers that come again
    // after 4 * 10^9.
    Layout {
        bytes: 14,
        mark_bits: 16,
        number_bits: 32,
        account_bits: 16,
        time_bits: 32,
    },
    // Behind two tags: numbers that come again after 16 million.
    Layout {
        bytes: 10,
        mark_bits: 0,
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
            mark_bits,
            number_bits,
            account_bits,
            time_bits,
        } = LAYOUTS[at];
        let bits = CHECK_BITS + mark_bits + number_bits + account_bits + time_bits;
        assert!(bits == 8 * bytes as u32);
        assert!(bytes % 2 == 0);
        at += 1;
    }
};

impl Layout {
    /// Bytes of the shortest.
    pub const LEAST_BYTES: usize = LAYOUTS[LAYOUTS.len() - 1].bytes;

    /// Bits of number, account and time.
    #[inline]
    const fn body_bits(self) -> u32 {
        self.number_bits + self.account_bits + self.time_bits
    }

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

/// The check over a tag's number, account and time as they are laid out, and over the mark of its run.
///
/// Two multiplications, each folded (after "wyhash"): a table of a CRC would take ten times as long a frame.
/// One changed tag in 65,536 passes.
#[inline]
const fn check_of(body: u128, mark: u16) -> u64 {
    /// Odd numbers with their bits well mixed: the fractions of the golden ratio and of the root of 3.
    const MIX: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbb67_ae85_84ca_a73b];
    const fn fold(one: u64, other: u64) -> u64 {
        let product = one as u128 * other as u128;
        product as u64 ^ (product >> 64) as u64
    }
    let high = (body >> 64) as u64 ^ (mark as u64) << 40;
    let low = fold(body as u64 ^ MIX[0], MIX[1]);
    fold(low ^ high, MIX[0]) >> (64 - CHECK_BITS)
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
        let mut body = 0;
        for (value, bits) in [
            (self.number, layout.number_bits),
            (self.account.into(), layout.account_bits),
            (self.time_ns, layout.time_bits),
        ] {
            body = body << bits | u128::from(low(value, bits));
        }
        let check = u128::from(check_of(body, self.mark));
        let mark = u128::from(low(self.mark.into(), layout.mark_bits));
        let all = (check << layout.mark_bits | mark) << layout.body_bits() | body;
        (all << (8 * (LONGEST - layout.bytes))).to_be_bytes()
    }

    /// Reads what arrived at `now_ns` since the run with this mark began as one of its tags; its number has
    /// its lowest bits only, see [`Tag::near`]. None where there are fewer bytes.
    #[inline]
    fn read(bytes: &[u8], layout: Layout, mark: u16, now_ns: u64) -> Option<Read> {
        let bytes = bytes.get(..layout.bytes)?;
        let mut all = bytes
            .iter()
            .fold(0u128, |all, &byte| all << 8 | u128::from(byte));
        let body = all & ((1 << layout.body_bits()) - 1);
        let mut part = |bits: u32| {
            let part = low(all as u64, bits);
            all >>= bits;
            part
        };
        let time = part(layout.time_bits);
        let (account, number) = (part(layout.account_bits), part(layout.number_bits));
        let is_marked = part(layout.mark_bits) == low(mark.into(), layout.mark_bits);
        Some(Read {
            tag: Self {
                mark,
                number,
                account: account as u16,
                // A frame left before it came.
                time_ns: now_ns.wrapping_sub(low(now_ns.wrapping_sub(time), layout.time_bits)),
            },
            is_marked,
            passes: part(CHECK_BITS) == check_of(body, mark),
        })
    }

    /// The account of a tag that was just written; none where there are fewer bytes.
    #[must_use]
    pub fn account_in(bytes: &[u8], layout: Layout) -> Option<u16> {
        Some(Self::read(bytes, layout, 0, 0)?.tag.account)
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

/// What was read where a tag may be.
struct Read {
    tag: Tag,
    /// Whether it has the mark of the run.
    is_marked: bool,
    /// Whether the check holds for a tag of the run.
    passes: bool,
}

/// What a frame turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// One of the run's, and where the tag ends.
    Tagged(Tag, usize),
    /// One of the run's whose tag was changed on the way.
    Damaged,
    /// None of the run's.
    Foreign,
}

/// Looks for the tag of a run in a frame that was sent with it at `place`.
///
/// A foreign frame is taken for one of the run's when its bytes happen to be the mark, the check, a known
/// account and a time that has been: of random bytes less than one frame in 10^9, with the shortest layout
/// one in 10^4. A changed tag is told by its mark, or by a check that holds with the mark put back; the
/// shortest layout has no mark, and there it is foreign.
#[inline]
#[must_use]
pub fn find(
    frame: &[u8],
    (place, layout): (usize, Layout),
    mark: u16,
    accounts: u16,
    now_ns: u64,
) -> Found {
    let read = |shift: isize| {
        let at = place.checked_add_signed(shift)?;
        Some((at, Tag::read(frame.get(at..)?, layout, mark, now_ns)?))
    };
    let is_known = |tag: &Tag| tag.account < accounts && tag.time_ns <= now_ns;
    for (at, read) in SHIFTS.into_iter().filter_map(read) {
        if read.passes && read.is_marked && is_known(&read.tag) {
            return Found::Tagged(read.tag, at + layout.bytes);
        }
    }
    let is_damaged = |read: &Read| match read.passes {
        true => !read.is_marked && is_known(&read.tag),
        false => layout.mark_bits > 0 && read.is_marked,
    };
    let mut places = SHIFTS.into_iter().filter_map(read);
    match places.any(|(_, read)| is_damaged(&read)) {
        true => Found::Damaged,
        false => Found::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Check, mark, number, account, time.
    #[test]
    fn a_tag_as_bytes() {
        let tag = Tag {
            mark: 0xabcd,
            number: 0x0102_0304_0506,
            account: 0x0708,
            time_ns: 0x1112_1314_1516,
        };
        let want = [
            0xab, 0xcd, 2, 3, 4, 5, 6, 7, 8, 0x12, 0x13, 0x14, 0x15, 0x16,
        ];
        assert_eq!(tag.bytes(LAYOUTS[0])[2..], want);
        let want = [4, 5, 6, 8, 0x13, 0x14, 0x15, 0x16];
        assert_eq!(tag.bytes(LAYOUTS[2])[2..10], want);
        for (room, bytes) in [(9, None), (10, Some(10)), (15, Some(14)), (99, Some(16))] {
            assert_eq!(Layout::fitting(room).map(|layout| layout.bytes), bytes);
        }
    }

    /// A bit that flips on the way is no other number: it would lift the highest one seen, and whatever
    /// follows would be late.
    #[test]
    fn no_flipped_bit_makes_another_tag() {
        for layout in LAYOUTS {
            let tag = Tag {
                mark: 0xbeef,
                number: 12_345,
                account: 1,
                time_ns: 1_000,
            };
            let frame = [&[0; 42][..], &tag.bytes(layout)[..layout.bytes]].concat();
            let find = |frame: &[u8]| find(frame, (42, layout), 0xbeef, 2, 2_000);
            assert_eq!(find(&frame), Found::Tagged(tag, 42 + layout.bytes));
            let want = match layout.mark_bits {
                0 => Found::Foreign,
                _ => Found::Damaged,
            };
            for bit in 0..8 * layout.bytes {
                let mut frame = frame.clone();
                frame[42 + bit / 8] ^= 1 << (bit % 8);
                assert_eq!(find(&frame), want, "bit {bit} of {layout:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_tag_is_found_where_it_was_put(
            mark: u16, number in 0u64..1 << 40, account in 0u16..256, time_ns in 0u64..1 << 39,
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
            // The number comes near the one expected: a few lost before it, or late.
            let expected = number.saturating_add_signed(off);
            let found = match found {
                Found::Tagged(found, _) => Some(found.near(layout, expected)),
                _ => None,
            };
            // Of random bytes before it one in 65,536 passes for a shortest tag.
            prop_assert!(found == Some(tag) || which == 2 && found.is_some(), "{found:?}");
        }

        #[test]
        fn no_frame_panics(
            frame in prop::collection::vec(any::<u8>(), 0..90), place in 0usize..100, which in 0usize..3,
            now: u64, expected: u64,
        ) {
            let layout = LAYOUTS[which];
            if let Found::Tagged(found, _) = find(&frame, (place, layout), 1, 1, now) {
                let _ = found.near(layout, expected);
            }
        }
    }
}
