//! Lower limit for stacks with buffers: the bytes of a stream, copied and summed as often as two
//! stacks do.

use std::hint::black_box;

use linerate_packet::checksum::UnfoldedSum;
use linerate_sys::frames::chunked_copy::copy_in_chunks;

use super::{BUFFER_BYTES, SLICE_TIME, repeat_for, shift_allocations};
use crate::error::BenchError;

/// Payload of a segment at an MTU of 1500.
const SEGMENT_BYTES: usize = 1460;
/// Distance between frames in the ring's memory.
const SLOT_BYTES: usize = 27 * 64;

/// Stream without a protocol.
///
/// Payload goes from the program into a socket's buffer, into frames with checksums, which are
/// verified, into the other socket's buffer, and to the other program.
pub fn measure_copies() -> Result<f64, BenchError> {
    let _shift = shift_allocations();
    let buffer = || vec![7u8; BUFFER_BYTES];
    let (source, mut send_buffer, mut receive_buffer, mut sink) =
        (buffer(), buffer(), buffer(), buffer());
    let mut frames = vec![0u8; BUFFER_BYTES.div_ceil(SEGMENT_BYTES) * SLOT_BYTES];
    let (bytes, elapsed_ns) = repeat_for(SLICE_TIME, || {
        copy_in_chunks(&mut send_buffer, black_box(&source));
        let segments = send_buffer.chunks(SEGMENT_BYTES);
        for (frame, segment) in frames.chunks_mut(SLOT_BYTES).zip(segments) {
            let payload = &mut frame[..segment.len()];
            payload.copy_from_slice(segment);
            black_box(UnfoldedSum::from_bytes(payload).to_u16());
        }
        let segments = receive_buffer.chunks_mut(SEGMENT_BYTES);
        for (frame, segment) in frames.chunks(SLOT_BYTES).zip(segments) {
            let payload = &frame[..segment.len()];
            black_box(UnfoldedSum::from_bytes(payload).to_u16());
            segment.copy_from_slice(payload);
        }
        copy_in_chunks(&mut sink, black_box(&receive_buffer));
        Ok(sink.len())
    })?;
    black_box(&sink);
    Ok(bytes * 8.0 / elapsed_ns)
}
