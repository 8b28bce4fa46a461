use super::*;
use proptest::prelude::*;

/// Time, bytes, original length.
type Owned = (Option<u64>, Vec<u8>, u32);

fn all(bytes: &[u8]) -> Result<Vec<Owned>, CaptureError> {
    let mut reader = CaptureReader::new(bytes)?;
    let mut records = Vec::new();
    while let Some(record) = reader.read()? {
        records.push((record.time_ns, record.bytes.to_vec(), record.length));
    }
    Ok(records)
}

fn words(big: bool, words: &[u32]) -> Vec<u8> {
    let bytes = |word: &u32| {
        if big {
            word.to_be_bytes()
        } else {
            word.to_le_bytes()
        }
    };
    words.iter().flat_map(bytes).collect()
}

#[test]
fn pcap_in_both_orders_and_resolutions() {
    for big in [false, true] {
        for (magic, fraction) in [(0xa1b2_c3d4, 250), (0xa1b2_3c4d, 250_000)] {
            // Version 2.4 is two 16-bit numbers, which the reader ignores.
            let mut file = words(big, &[magic, 0, 0, 0, 65_535, 1]);
            file.extend(words(big, &[7, fraction, 3, 60]));
            file.extend(b"abc");
            let want = (Some(7_000_250_000), b"abc".to_vec(), 60);
            assert_eq!(all(&file).unwrap(), [want], "{big} {magic:x}");
        }
    }
}

fn half_pair(big: bool, one: u16, two: u16) -> u32 {
    if big {
        u32::from(one) << 16 | u32::from(two)
    } else {
        u32::from(two) << 16 | u32::from(one)
    }
}

fn section(big: bool) -> Vec<u8> {
    words(
        big,
        &[
            SECTION,
            28,
            ORDER,
            half_pair(big, 1, 0),
            u32::MAX,
            u32::MAX,
            28,
        ],
    )
}

#[test]
fn pcapng_in_both_orders() {
    let mut file = Vec::new();
    // Two sections of different order in one file.
    for big in [false, true] {
        file.extend(section(big));
        let first = |one: u16| half_pair(big, one, 0);
        // An interface in microseconds, one that is not Ethernet, one in 2^-10 s with an offset of
        // 5 s.
        file.extend(words(big, &[INTERFACE, 20, first(1), 0, 20]));
        file.extend(words(big, &[INTERFACE, 20, first(113), 0, 20]));
        file.extend(words(
            big,
            &[INTERFACE, 44, first(1), 2, half_pair(big, 9, 1)],
        ));
        file.extend([0x8a, 0, 0, 0]);
        let offset = if big { [0, 5] } else { [5, 0] };
        file.extend(words(
            big,
            &[half_pair(big, 14, 8), offset[0], offset[1], 0, 44],
        ));
        // A block of an unknown type.
        file.extend(words(big, &[0xbad, 16, 1, 16]));
        for (interface, units) in [(0, 3_000_000), (1, 0), (2, 512)] {
            file.extend(words(
                big,
                &[ENHANCED_PACKET, 36, interface, 0, units, 2, 60],
            ));
            file.extend(b"ab\0\0");
            file.extend(words(big, &[36]));
        }
        file.extend(words(big, &[SIMPLE_PACKET, 20, 4]));
        file.extend(b"wxyz");
        file.extend(words(big, &[20]));
    }
    let one = [
        (Some(3_000_000_000), b"ab".to_vec(), 60),
        (Some(5_500_000_000), b"ab".to_vec(), 60),
        (None, b"wxyz".to_vec(), 4),
    ];
    assert_eq!(all(&file).unwrap(), [one.clone(), one].concat());
}

#[test]
fn what_is_wrong_is_told() {
    let text = |file: &[u8]| all(file).unwrap_err().to_string();
    assert!(text(b"").contains("not a capture file"));
    assert!(text(b"hello, world").contains("not a capture file"));
    let raw = words(false, &[0xa1b2_c3d4, 0, 0, 0, 0, 101]);
    assert!(text(&raw).contains("link type is 101"));
    let mut cut = words(false, &[0xa1b2_c3d4, 0, 0, 0, 0, 1, 0, 0, 9, 9]);
    cut.extend(b"short");
    assert_eq!(
        text(&cut),
        "it is damaged at byte 24: the last frame is cut off"
    );
    let orphan = [section(false), words(false, &[SIMPLE_PACKET, 16, 0, 16])].concat();
    assert!(text(&orphan).contains("damaged at byte 28: a frame of no interface"));
}

/// A reader that returns at most a given number of bytes per call.
struct Drip<'a>(&'a [u8], usize);

impl Read for Drip<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.1.min(buffer.len());
        (&mut self.0).take(count as u64).read(buffer)
    }
}

#[test]
fn records_may_straddle_reads() {
    let mut file = words(false, &[0xa1b2_c3d4, 0, 0, 0, 0, 1]);
    for size in 0..2000u32 {
        file.extend(words(false, &[size, 0, size, size]));
        file.extend(vec![size as u8; size as usize]);
    }
    for step in [7, 4096, 1 << 20] {
        let mut reader = CaptureReader::new(Drip(&file, step)).unwrap();
        for size in 0..2000 {
            let record = reader.read().unwrap().unwrap();
            assert_eq!((record.length, record.bytes.len()), (size, size as usize));
            assert!(record.bytes.iter().all(|&byte| byte == size as u8));
        }
        assert!(reader.read().unwrap().is_none());
    }
}

proptest! {
    #[test]
    fn no_file_panics(
        start in 0usize..3,
        changes in prop::collection::vec((0usize..120, any::<u8>()), 0..6),
        tail in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut file = match start {
            0 => words(false, &[0xa1b2_c3d4, 0, 0, 0, 0, 1, 0, 0, 4, 4, 77]),
            1 => [
                section(false),
                words(false, &[INTERFACE, 32, 1, 0, 0x0001_0009, 6, 0, 32]),
                words(false, &[ENHANCED_PACKET, 36, 0, 0, 9, 4, 4, 77, 36]),
            ]
            .concat(),
            _ => Vec::new(),
        };
        for (at, byte) in changes {
            if let Some(place) = file.get_mut(at) {
                *place = byte;
            }
        }
        file.extend(tail);
        let _ = all(&file);
    }
}
