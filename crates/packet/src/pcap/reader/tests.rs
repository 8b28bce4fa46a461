use super::*;
use proptest::prelude::*;

/// Time, bytes, original length.
type OwnedRecord = (Option<u64>, Vec<u8>, u32);

fn all(bytes: &[u8]) -> Result<Vec<OwnedRecord>, CaptureError> {
    let mut reader = CaptureReader::new(bytes)?;
    let mut records = Vec::new();
    while let Some(record) = reader.read()? {
        records.push((record.time_ns, record.bytes.to_vec(), record.length));
    }
    Ok(records)
}

fn encode_u32s(big: bool, values: &[u32]) -> Vec<u8> {
    let bytes = |value: &u32| {
        if big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        }
    };
    values.iter().flat_map(bytes).collect()
}

#[test]
fn pcap_in_both_orders_and_resolutions() {
    for big in [false, true] {
        for (magic, fraction) in [(0xa1b2_c3d4, 250), (0xa1b2_3c4d, 250_000)] {
            // Version 2.4 is two 16-bit numbers, which the reader ignores.
            let mut file = encode_u32s(big, &[magic, 0, 0, 0, 65_535, 1]);
            file.extend(encode_u32s(big, &[7, fraction, 3, 60]));
            file.extend(b"abc");
            let expected = (Some(7_000_250_000), b"abc".to_vec(), 60);
            assert_eq!(all(&file).unwrap(), [expected], "{big} {magic:x}");
        }
    }
}

fn u16_pair(big: bool, one: u16, two: u16) -> u32 {
    if big {
        u32::from(one) << 16 | u32::from(two)
    } else {
        u32::from(two) << 16 | u32::from(one)
    }
}

fn section(big: bool) -> Vec<u8> {
    encode_u32s(
        big,
        &[
            SECTION_BLOCK,
            28,
            BYTE_ORDER_MAGIC,
            u16_pair(big, 1, 0),
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
        let first = |one: u16| u16_pair(big, one, 0);
        // An interface in microseconds, one that is not Ethernet, one in 2^-10 s with an offset of
        // 5 s.
        file.extend(encode_u32s(big, &[INTERFACE_BLOCK, 20, first(1), 0, 20]));
        file.extend(encode_u32s(big, &[INTERFACE_BLOCK, 20, first(113), 0, 20]));
        file.extend(encode_u32s(
            big,
            &[INTERFACE_BLOCK, 44, first(1), 2, u16_pair(big, 9, 1)],
        ));
        file.extend([0x8a, 0, 0, 0]);
        let offset = if big { [0, 5] } else { [5, 0] };
        file.extend(encode_u32s(
            big,
            &[u16_pair(big, 14, 8), offset[0], offset[1], 0, 44],
        ));
        // A block of an unknown type.
        file.extend(encode_u32s(big, &[0xbad, 16, 1, 16]));
        for (interface, units) in [(0, 3_000_000), (1, 0), (2, 512)] {
            file.extend(encode_u32s(
                big,
                &[ENHANCED_PACKET_BLOCK, 36, interface, 0, units, 2, 60],
            ));
            file.extend(b"ab\0\0");
            file.extend(encode_u32s(big, &[36]));
        }
        file.extend(encode_u32s(big, &[SIMPLE_PACKET_BLOCK, 20, 4]));
        file.extend(b"wxyz");
        file.extend(encode_u32s(big, &[20]));
    }
    let one = [
        (Some(3_000_000_000), b"ab".to_vec(), 60),
        (Some(5_500_000_000), b"ab".to_vec(), 60),
        (None, b"wxyz".to_vec(), 4),
    ];
    assert_eq!(all(&file).unwrap(), [one.clone(), one].concat());
}

#[test]
fn errors_name_the_damage() {
    let text = |file: &[u8]| all(file).unwrap_err().to_string();
    assert!(text(b"").contains("not a capture file"));
    assert!(text(b"hello, world").contains("not a capture file"));
    let raw = encode_u32s(false, &[0xa1b2_c3d4, 0, 0, 0, 0, 101]);
    assert!(text(&raw).contains("link type is 101"));
    let mut truncated = encode_u32s(false, &[0xa1b2_c3d4, 0, 0, 0, 0, 1, 0, 0, 9, 9]);
    truncated.extend(b"short");
    assert_eq!(
        text(&truncated),
        "it is damaged at byte 24: the last frame is cut off"
    );
    let orphan = [
        section(false),
        encode_u32s(false, &[SIMPLE_PACKET_BLOCK, 16, 0, 16]),
    ]
    .concat();
    assert!(text(&orphan).contains("damaged at byte 28: a frame of no interface"));
}

/// A reader that returns at most a given number of bytes per call.
struct SlowReader<'a>(&'a [u8], usize);

impl Read for SlowReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.1.min(buffer.len());
        (&mut self.0).take(count as u64).read(buffer)
    }
}

#[test]
fn records_may_straddle_reads() {
    let mut file = encode_u32s(false, &[0xa1b2_c3d4, 0, 0, 0, 0, 1]);
    for size in 0..2000u32 {
        file.extend(encode_u32s(false, &[size, 0, size, size]));
        file.extend(vec![size as u8; size as usize]);
    }
    for step in [7, 4096, 1 << 20] {
        let mut reader = CaptureReader::new(SlowReader(&file, step)).unwrap();
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
            0 => encode_u32s(false, &[0xa1b2_c3d4, 0, 0, 0, 0, 1, 0, 0, 4, 4, 77]),
            1 => [
                section(false),
                encode_u32s(false, &[INTERFACE_BLOCK, 32, 1, 0, 0x0001_0009, 6, 0, 32]),
                encode_u32s(false, &[ENHANCED_PACKET_BLOCK, 36, 0, 0, 9, 4, 4, 77, 36]),
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
