//! Tag in each frame that identifies it on arrival: run, flow, frame number and send time.

/// Bits of the checksum at the start of each tag.
const CHECK_BITS: u32 = 16;
/// Length of the longest tag in bytes.
const MAX_TAG_BYTES: usize = 16;

/// Layout of a tag; short frames take a shorter one.
///
/// Fields in network order without gaps: a checksum over the whole tag (16 bits), the mark of the
/// run, the number of the frame within its flow group, the flow group, and the time in nanoseconds
/// since the start of the run. Numbers and times are truncated to their lowest bits. The receiver
/// restores them, because they are close to the expected values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagLayout {
    /// Length, always even, because checksums sum 16-bit words.
    pub bytes: usize,
    /// 0 in the shortest layout, where only the checksum, which includes the mark, identifies the
    /// run.
    mark_bits: u32,
    number_bits: u32,
    flow_group_bits: u32,
    time_bits: u32,
}

/// Layouts, the longest first. 40 bits of time are 18 minutes of delay; 40 bits of number are 10^12
/// frames.
pub const TAG_LAYOUTS: [TagLayout; 3] = [
    TagLayout {
        bytes: MAX_TAG_BYTES,
        mark_bits: 16,
        number_bits: 40,
        flow_group_bits: 16,
        time_bits: 40,
    },
    // UDP behind one VLAN tag in a frame of 64 bytes: 4.3 seconds of delay, and numbers repeat
    // after 4 * 10^9.
    TagLayout {
        bytes: 14,
        mark_bits: 16,
        number_bits: 32,
        flow_group_bits: 16,
        time_bits: 32,
    },
    // UDP behind two VLAN tags: numbers repeat after 16 million.
    TagLayout {
        bytes: 10,
        mark_bits: 0,
        number_bits: 24,
        flow_group_bits: 8,
        time_bits: 32,
    },
];

const _: () = {
    let mut at = 0;
    while at < TAG_LAYOUTS.len() {
        let TagLayout {
            bytes,
            mark_bits,
            number_bits,
            flow_group_bits,
            time_bits,
        } = TAG_LAYOUTS[at];
        let bits = CHECK_BITS + mark_bits + number_bits + flow_group_bits + time_bits;
        assert!(bits == 8 * bytes as u32);
        assert!(bytes % 2 == 0);
        at += 1;
    }
};

impl TagLayout {
    /// Length of the shortest layout.
    pub const MIN_BYTES: usize = TAG_LAYOUTS[TAG_LAYOUTS.len() - 1].bytes;

    /// Returns the bits of number, flow group and time.
    #[inline]
    const fn body_bits(self) -> u32 {
        self.number_bits + self.flow_group_bits + self.time_bits
    }

    /// Returns the longest layout of at most `available` bytes.
    #[must_use]
    pub fn fitting(available: usize) -> Option<Self> {
        TAG_LAYOUTS
            .into_iter()
            .find(|layout| layout.bytes <= available)
    }
}

/// Returns the lowest bits of a number.
#[inline]
const fn low_bits(value: u64, bits: u32) -> u64 {
    value & ((1 << bits) - 1)
}

/// Returns the checksum over number, flow group and time of a tag, and over the mark of its run.
///
/// Two folded multiplications (after "wyhash"): a table-driven CRC would take ten times as long per
/// frame. One in 65,536 changed tags passes.
#[inline]
const fn tag_checksum(body: u128, mark: u16) -> u64 {
    /// Odd numbers with well-mixed bits: fractions of the golden ratio and of the square root of 3.
    const MIX: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbb67_ae85_84ca_a73b];
    #[inline]
    const fn fold(left: u64, right: u64) -> u64 {
        let product = left as u128 * right as u128;
        product as u64 ^ (product >> 64) as u64
    }
    let high = (body >> 64) as u64 ^ (mark as u64) << 40;
    let low_product = fold(body as u64 ^ MIX[0], MIX[1]);
    fold(low_product ^ high, MIX[0]) >> (64 - CHECK_BITS)
}

/// Returns the number closest to `expected` that has the given lowest bits.
#[inline]
fn nearest(lowest: u64, bits: u32, expected: u64) -> u64 {
    let modulus = 1u64 << bits;
    let candidate = expected & !(modulus - 1) | lowest;
    let half = modulus / 2;
    if candidate > expected.saturating_add(half) && candidate >= modulus {
        candidate - modulus
    } else if candidate.saturating_add(half) < expected {
        candidate + modulus
    } else {
        candidate
    }
}

/// Tag of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameTag {
    /// Random for each run, so that frames of an earlier run are not counted.
    pub mark: u16,
    /// Number of the frame within its flow group, from 0.
    pub number: u64,
    /// Index of the flow, or of the group of flows that are counted together.
    pub flow_group: u16,
    /// Send time since the start of the run.
    pub time_ns: u64,
}

impl FrameTag {
    /// Returns the bytes of the tag, padded with zeros beyond the length of the layout.
    #[inline]
    #[must_use]
    pub fn bytes(self, layout: TagLayout) -> [u8; MAX_TAG_BYTES] {
        let mut body = 0;
        for (value, bits) in [
            (self.number, layout.number_bits),
            (self.flow_group.into(), layout.flow_group_bits),
            (self.time_ns, layout.time_bits),
        ] {
            body = body << bits | u128::from(low_bits(value, bits));
        }
        let check = u128::from(tag_checksum(body, self.mark));
        let mark = u128::from(low_bits(self.mark.into(), layout.mark_bits));
        let all = (check << layout.mark_bits | mark) << layout.body_bits() | body;
        (all << (8 * (MAX_TAG_BYTES - layout.bytes))).to_be_bytes()
    }

    /// Reads the tag of a frame received at `now_ns` since the start of the run with this mark. The
    /// number has only its lowest bits, see [`FrameTag::with_number_near`]. Returns `None` for
    /// fewer bytes than the layout has.
    #[inline]
    fn parse(bytes: &[u8], layout: TagLayout, mark: u16, now_ns: u64) -> Option<TagReading> {
        let bytes = bytes.get(..layout.bytes)?;
        let mut all = bytes
            .iter()
            .fold(0u128, |all, &byte| all << 8 | u128::from(byte));
        let body = all & ((1 << layout.body_bits()) - 1);
        let mut part = |bits: u32| {
            let part = low_bits(all as u64, bits);
            all >>= bits;
            part
        };
        let time = part(layout.time_bits);
        let (flow_group, number) = (part(layout.flow_group_bits), part(layout.number_bits));
        let is_marked = part(layout.mark_bits) == low_bits(mark.into(), layout.mark_bits);
        Some(TagReading {
            tag: Self {
                mark,
                number,
                flow_group: flow_group as u16,
                // The send time precedes the receive time.
                time_ns: now_ns.wrapping_sub(low_bits(now_ns.wrapping_sub(time), layout.time_bits)),
            },
            is_marked,
            is_checksum_right: part(CHECK_BITS) == tag_checksum(body, mark),
        })
    }

    /// Returns the flow group of a tag that was just written, or `None` for fewer bytes than the
    /// layout has.
    #[must_use]
    pub fn flow_group_of(bytes: &[u8], layout: TagLayout) -> Option<u16> {
        Some(Self::parse(bytes, layout, 0, 0)?.tag.flow_group)
    }

    /// Restores the full number, which is close to `expected`.
    #[inline]
    #[must_use]
    pub fn with_number_near(self, layout: TagLayout, expected: u64) -> Self {
        Self {
            number: nearest(self.number, layout.number_bits, expected),
            ..self
        }
    }
}

/// Offsets by which devices move the tag: none, or one or two VLAN tags removed or inserted.
const VLAN_SHIFTS: [isize; 5] = [0, -4, 4, -8, 8];

/// Tag read at a possible location.
struct TagReading {
    tag: FrameTag,
    /// True if it has the mark of the run.
    is_marked: bool,
    /// True if the checksum is right for a tag of the run.
    is_checksum_right: bool,
}

/// Classification of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagMatch {
    /// A frame of the run, and the end offset of its tag.
    Tagged(FrameTag, usize),
    /// A frame of the run with a damaged tag.
    Damaged,
    /// No frame of the run.
    Unrelated,
}

/// Searches the tag of a run in a frame that was sent with it at `offset`.
///
/// An unrelated frame counts as a frame of the run if its bytes match the mark, the checksum, a
/// valid flow group and a time in the past. Of random bytes, fewer than one frame in 10^9 match,
/// with the shortest layout one in 10^4. A damaged tag is recognised by its mark, or by a checksum
/// that is right once the mark is restored. The shortest layout has no mark, so damaged tags in it
/// count as unrelated.
#[inline]
#[must_use]
pub fn find_tag(
    frame: &[u8],
    (offset, layout): (usize, TagLayout),
    mark: u16,
    flow_groups: u16,
    now_ns: u64,
) -> TagMatch {
    let reading_at = |shift: isize| {
        let at = offset.checked_add_signed(shift)?;
        Some((at, FrameTag::parse(frame.get(at..)?, layout, mark, now_ns)?))
    };
    let is_plausible = |tag: &FrameTag| tag.flow_group < flow_groups && tag.time_ns <= now_ns;
    for (at, reading_at) in VLAN_SHIFTS.into_iter().filter_map(reading_at) {
        if reading_at.is_checksum_right && reading_at.is_marked && is_plausible(&reading_at.tag) {
            return TagMatch::Tagged(reading_at.tag, at + layout.bytes);
        }
    }
    let is_damaged = |reading_at: &TagReading| match reading_at.is_checksum_right {
        true => !reading_at.is_marked && is_plausible(&reading_at.tag),
        false => layout.mark_bits > 0 && reading_at.is_marked,
    };
    let mut readings = VLAN_SHIFTS.into_iter().filter_map(reading_at);
    match readings.any(|(_, reading_at)| is_damaged(&reading_at)) {
        true => TagMatch::Damaged,
        false => TagMatch::Unrelated,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Fields: checksum, mark, number, flow group, time.
    #[test]
    fn a_tag_as_bytes() {
        let tag = FrameTag {
            mark: 0xabcd,
            number: 0x0102_0304_0506,
            flow_group: 0x0708,
            time_ns: 0x1112_1314_1516,
        };
        let expected = [
            0xab, 0xcd, 2, 3, 4, 5, 6, 7, 8, 0x12, 0x13, 0x14, 0x15, 0x16,
        ];
        assert_eq!(tag.bytes(TAG_LAYOUTS[0])[2..], expected);
        let expected = [4, 5, 6, 8, 0x13, 0x14, 0x15, 0x16];
        assert_eq!(tag.bytes(TAG_LAYOUTS[2])[2..10], expected);
        for (available, bytes) in [(9, None), (10, Some(10)), (15, Some(14)), (99, Some(16))] {
            assert_eq!(
                TagLayout::fitting(available).map(|layout| layout.bytes),
                bytes
            );
        }
    }

    /// A flipped bit must not yield another number: it would raise the highest number received, and
    /// all frames after it would count as late.
    #[test]
    fn no_flipped_bit_makes_another_tag() {
        for layout in TAG_LAYOUTS {
            let tag = FrameTag {
                mark: 0xbeef,
                number: 12_345,
                flow_group: 1,
                time_ns: 1_000,
            };
            let frame = [&[0; 42][..], &tag.bytes(layout)[..layout.bytes]].concat();
            let find = |frame: &[u8]| find_tag(frame, (42, layout), 0xbeef, 2, 2_000);
            assert_eq!(find(&frame), TagMatch::Tagged(tag, 42 + layout.bytes));
            let expected = match layout.mark_bits {
                0 => TagMatch::Unrelated,
                _ => TagMatch::Damaged,
            };
            for bit in 0..8 * layout.bytes {
                let mut frame = frame.clone();
                frame[42 + bit / 8] ^= 1 << (bit % 8);
                assert_eq!(find(&frame), expected, "bit {bit} of {layout:?}");
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
            let layout = TAG_LAYOUTS[index];
            let tag = FrameTag { mark, number, flow_group, time_ns };
            let at = 42usize.checked_add_signed(VLAN_SHIFTS[shift]).unwrap();
            let mut frame = content;
            frame[at..at + layout.bytes].copy_from_slice(&tag.bytes(layout)[..layout.bytes]);
            let now = time_ns + delay;
            let found = find_tag(&frame, (42, layout), mark, 300, now);
            // The number is close to the expected one: a few frames were lost before it, or it is
            // late.
            let expected = number.saturating_add_signed(off);
            let found = match found {
                TagMatch::Tagged(found, _) => Some(found.with_number_near(layout, expected)),
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
            let layout = TAG_LAYOUTS[index];
            if let TagMatch::Tagged(found, _) = find_tag(&frame, (place, layout), 1, 1, now) {
                let _ = found.with_number_near(layout, expected);
            }
        }
    }
}
