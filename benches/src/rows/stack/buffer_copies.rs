//! Lower limit for stacks with buffers: the bytes of a stream, copied and summed as often as two
//! stacks do.

use std::hint::black_box;

use linerate_port::checksum::Sum;
use linerate_port::copy;

use super::{BUFFER_BYTES, SLICE, over, shift};
use crate::error::Trouble;

/// Payload of a segment at an MTU of 1500.
const SEGMENT_BYTES: usize = 1460;
/// Distance between frames in the ring's memory.
const SLOT_BYTES: usize = 27 * 64;

/// Stream without a protocol.
///
/// Payload goes from the program into a socket's buffer, into frames with checksums, which are
/// verified,
/// into the other socket's buffer, and to the other program.
pub fn stream() -> Result<f64, Trouble> {
    let _shift = shift();
    let buffer = || vec![7u8; BUFFER_BYTES];
    let (source, mut sends, mut receives, mut sink) = (buffer(), buffer(), buffer(), buffer());
    let mut frames = vec![0u8; BUFFER_BYTES.div_ceil(SEGMENT_BYTES) * SLOT_BYTES];
    let (bytes, took) = over(SLICE, || {
        copy(&mut sends, black_box(&source));
        let segments = sends.chunks(SEGMENT_BYTES);
        for (frame, segment) in frames.chunks_mut(SLOT_BYTES).zip(segments) {
            let payload = &mut frame[..segment.len()];
            payload.copy_from_slice(segment);
            black_box(Sum::of(payload).folded());
        }
        let segments = receives.chunks_mut(SEGMENT_BYTES);
        for (frame, segment) in frames.chunks(SLOT_BYTES).zip(segments) {
            let payload = &frame[..segment.len()];
            black_box(Sum::of(payload).folded());
            segment.copy_from_slice(payload);
        }
        copy(&mut sink, black_box(&receives));
        Ok(sink.len())
    })?;
    black_box(&sink);
    Ok(bytes * 8.0 / took)
}
