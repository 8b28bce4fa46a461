//! Tag in each frame that identifies it on arrival: run, flow, frame number and send time.

/// Bits of the checksum at the start of each tag.
const CHECK_BITS: u32 = 16;
/// Length of the longest tag in bytes.
const LONGEST: usize = 16;

/// Layout of a tag; short frames take a shorter one.
///
/// Fields in network order without gaps: a checksum over the whole tag (16 bits), the mark of the
/// run, the number of the frame within its flow group, the flow group, and the time in nanoseconds
/// since the start of the run. Numbers and times are truncated to their lowest bits. The receiver
/// restores them, because they are close to the expected values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Length, always even, because checksums sum 16-bit words.
    pub bytes: usize,
    /// 0 in the shortest layout, where only the checksum, which includes the mark, identifies the
    /// run.
    mark_bits: u32,
    number_bits: u32,
    account_bits: u32,
    time_bits: u32,
}

/// Layouts, the longest first. 40 bits of time are 18 minutes of delay; 40 bits of number are 10^12
/// frames.
pub const LAYOUTS: [Layout; 3] = [
    Layout {
        bytes: LONGEST,
        mark_bits: 16,
        number_bits: 40,
        account_bits: 16,
        time_bits: 40,
    },
    // UDP behind one VLAN tag in a frame of 64 bytes: 4.3 seconds of delay, and numbers repeat
    // after 4 * 10^9.
    Layout {
        bytes: 14,
        mark_bits: 16,
        number_bits: 32,
        account_bits: 16,
        time_bits: 32,
    },
    // UDP behind two VLAN tags: numbers repeat after 16 million.
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
    /// Length of the shortest layout.
    pub const LEAST_BYTES: usize = LAYOUTS[LAYOUTS.len() - 1].bytes;

    /// Returns the bits of number, flow group and time.
    #[inline]
    const fn body_bits(self) -> u32 {
        self.number_bits + self.account_bits + self.time_bits
    }

    /// Returns the longest layout of at most `room` bytes.
    #[must_use]
    pub fn fitting(room: usize) -> Option<Self> {
        LAYOUTS.into_iter().find(|layout| layout.bytes <= room)
    }
}

/// Returns the lowest bits of a number.
#[inline]
const fn low(value: u64, bits: u32) -> u64 {
    value & ((1 << bits) - 1)
}

/// Returns the checksum over number, flow group and time of a tag, and over the mark of its run.
///
/// Two folded multiplications (after "wyhash"): a table-driven CRC would take ten times as long per
/// frame. One in 65,536 changed tags passes.
#[inline]
const fn check_of(body: u128, mark: u16) -> u64 {
    /// Odd numbers with well-mixed bits: fractions of the golden ratio and of the square root of 3.
    const MIX: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbb67_ae85_84ca_a73b];
    const fn fold(one: u64, other: u64) -> u64 {
        let product = one as u128 * other as u128;
        product as u64 ^ (product >> 64) as u64
    }
    let high = (body >> 64) as u64 ^ (mark as u64) << 40;
    let low = fold(body as u64 ^ MIX[0], MIX[1]);
    fold(low ^ high, MIX[0]) >> (64 - CHECK_BITS)
}

/// Returns the number closest to `expected` that has the given lowest bits.
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

/// Tag of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Random for each run, so that frames of an earlier run are not counted.
    pub mark: u16,
    /// Number of the frame within its flow group, from 0.
    pub number: u64,
    /// Index of the flow, or of the group of flows that are counted together.
    pub account: u16,
    /// Send time since the start of the run.
    pub time_ns: u64,
}

impl Tag {
    /// Returns the bytes of the tag, padded with zeros beyond the length of the layout.
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

    /// Reads the tag of a frame received at `now_ns` since the start of the run with this mark. The
    /// number has only its lowest bits, see [`Tag::near`]. Returns `None` for fewer bytes than the
    /// layout has.
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
                // The send time precedes the receive time.
                time_ns: now_ns.wrapping_sub(low(now_ns.wrapping_sub(time), layout.time_bits)),
            },
            is_marked,
            passes: part(CHECK_BITS) == check_of(body, mark),
        })
    }

    /// Returns the flow group of a tag that was just written, or `None` for fewer bytes than the
    /// layout has.
    #[must_use]
    pub fn account_in(bytes: &[u8], layout: Layout) -> Option<u16> {
        Some(Self::read(bytes, layout, 0, 0)?.tag.account)
    }

    /// Restores the full number, which is close to `expected`.
    #[inline]
    #[must_use]
    pub fn near(self, layout: Layout, expected: u64) -> Self {
        Self {
            number: nearest(self.number, layout.number_bits, expected),
            ..self
        }
    }
}

/// Offsets by which devices move the tag: none, or one or two VLAN tags removed or inserted.
const SHIFTS: [isize; 5] = [0, -4, 4, -8, 8];

/// Tag read at a possible location.
struct Read {
    tag: Tag,
    /// True if it has the mark of the run.
    is_marked: bool,
    /// True if the checksum is right for a tag of the run.
    passes: bool,
}

/// Classification of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A frame of the run, and the end offset of its tag.
    Tagged(Tag, usize),
    /// A frame of the run with a damaged tag.
    Damaged,
    /// No frame of the run.
    Foreign,
}

/// Searches the tag of a run in a frame that was sent with it at `place`.
///
/// An unrelated frame counts as a frame of the run if its bytes match the mark, the checksum, a
/// valid flow group and a time in the past. Of random bytes, fewer than one frame in 10^9 match,
/// with the shortest layout one in 10^4. A damaged tag is recognised by its mark, or by a checksum
/// that is right once the mark is restored. The shortest layout has no mark, so damaged tags in it
/// count as unrelated.
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

    /// Fields: checksum, mark, number, flow group, time.
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

    /// A flipped bit must not yield another number: it would raise the highest number received, and
    /// all frames after it would count as late.
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
            mark: u16, number in 0u64..1 << 40, flow_group in 0u16..256, time_ns in 0u64..1 << 39,
            delay in 0u64..4_000_000_000, shift in 0usize..5, index in 0usize..3, off in -1000i64..1000,
            content in prop::collection::vec(any::<u8>(), 80),
        ) {
            let layout = LAYOUTS[index];
            let tag = Tag { mark, number, account: flow_group, time_ns };
            let at = 42usize.checked_add_signed(SHIFTS[shift]).unwrap();
            let mut frame = content;
            frame[at..at + layout.bytes].copy_from_slice(&tag.bytes(layout)[..layout.bytes]);
            let now = time_ns + delay;
            let found = find(&frame, (42, layout), mark, 300, now);
            // The number is close to the expected one: a few frames were lost before it, or it is
            // late.
            let expected = number.saturating_add_signed(off);
            let found = match found {
                Found::Tagged(found, _) => Some(found.near(layout, expected)),
                _ => None,
            };
            // Of random bytes before the tag, one in 65,536 matches the shortest layout.
            prop_assert!(found == Some(tag) || index == 2 && found.is_some(), "{found:?}");
        }

        #[test]
        fn no_frame_panics(
            frame in prop::collection::vec(any::<u8>(), 0..90), place in 0usize..100, index in 0usize..3,
            now: u64, expected: u64,
        ) {
            let layout = LAYOUTS[index];
            if let Found::Tagged(found, _) = find(&frame, (place, layout), 1, 1, now) {
                let _ = found.near(layout, expected);
            }
        }
    }
}
