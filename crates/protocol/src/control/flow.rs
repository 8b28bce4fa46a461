//! First bytes of a data flow, and header of linerate's UDP payloads.
//!
//! ```text
//! opening, client to server     01 'l' 'r' c0 ff 'd' 'a' 't' | token, 16 bytes
//! reply, server to client       01 'l' 'r' c0 ff 'a' 'n' 's' | token, 16 bytes     (UDP only)
//! UDP payload, 16 bytes or more u64 sequence | u64 send time in ns | filler        (big-endian)
//! ```
//!
//! On TCP the opening is the first 24 bytes of the connection; it has no reply and does not count
//! as payload. On UDP it is a datagram of its own. The client repeats it until the reply arrives;
//! the server replies to every copy. The reply is no larger than the opening, so the server is no
//! amplifier. A late copy cannot be mistaken for payload: the magic number as a sequence number
//! would be 10^17.

use super::magic::{DATA_MAGIC, REPLY_MAGIC};
use super::token::{FlowToken, TOKEN_BYTES};

/// Bytes of an opening and of its reply.
pub const OPENING_BYTES: usize = 24;

const _: () = assert!(DATA_MAGIC.len() + TOKEN_BYTES == OPENING_BYTES);
const _: () = assert!(REPLY_MAGIC.len() == DATA_MAGIC.len());

/// Returns the first bytes that the client sends on a data flow.
#[must_use]
pub fn opening(token: FlowToken) -> [u8; OPENING_BYTES] {
    prefix_magic(DATA_MAGIC, token)
}

/// Returns the server's reply to the opening of a UDP flow.
#[must_use]
pub fn reply(token: FlowToken) -> [u8; OPENING_BYTES] {
    prefix_magic(REPLY_MAGIC, token)
}

fn prefix_magic(magic: [u8; 8], token: FlowToken) -> [u8; OPENING_BYTES] {
    let mut bytes = [0; OPENING_BYTES];
    bytes[..magic.len()].copy_from_slice(&magic);
    bytes[magic.len()..].copy_from_slice(&token.0);
    bytes
}

/// Returns the token of an opening of exactly [`OPENING_BYTES`] bytes: a datagram or the start of a
/// stream.
#[must_use]
pub fn read_opening(bytes: &[u8]) -> Option<FlowToken> {
    strip_magic(DATA_MAGIC, bytes)
}

/// Returns the token of a reply: a datagram of exactly [`OPENING_BYTES`] bytes.
#[must_use]
pub fn read_reply(bytes: &[u8]) -> Option<FlowToken> {
    strip_magic(REPLY_MAGIC, bytes)
}

fn strip_magic(magic: [u8; 8], bytes: &[u8]) -> Option<FlowToken> {
    bytes.strip_prefix(&magic)?.try_into().ok().map(FlowToken)
}

/// Bytes of a [`PayloadHeader`]; a smaller payload has none and is only counted.
pub const HEADER_BYTES: usize = 16;

/// Header of a UDP payload of linerate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadHeader {
    /// Number of the datagram within its flow and direction, from 0.
    pub sequence: u64,
    /// Time when it was passed to the kernel, in nanoseconds of the sender's monotonic clock.
    pub sent_ns: u64,
}

/// Writes the header over the first [`HEADER_BYTES`] of a payload; a smaller one is unchanged.
#[inline]
pub fn write_header(payload: &mut [u8], sequence: u64, sent_ns: u64) {
    if let Some(header) = payload.first_chunk_mut::<HEADER_BYTES>() {
        header[..8].copy_from_slice(&sequence.to_be_bytes());
        header[8..].copy_from_slice(&sent_ns.to_be_bytes());
    }
}

/// Reads the header of a payload; `None` if it is too small.
#[inline]
#[must_use]
pub fn read_header(payload: &[u8]) -> Option<PayloadHeader> {
    let (sequence, rest) = payload.split_first_chunk()?;
    let sent_ns = rest.first_chunk()?;
    Some(PayloadHeader {
        sequence: u64::from_be_bytes(*sequence),
        sent_ns: u64::from_be_bytes(*sent_ns),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOKEN: FlowToken = FlowToken(*b"0123456789abcdef");

    #[test]
    fn openings_do_not_drift() {
        assert_eq!(&opening(TOKEN), b"\x01lr\xC0\xFFdat0123456789abcdef");
        assert_eq!(&reply(TOKEN), b"\x01lr\xC0\xFFans0123456789abcdef");
    }

    #[test]
    fn an_opening_is_no_reply_and_has_its_size() {
        assert_eq!(read_opening(&opening(TOKEN)), Some(TOKEN));
        assert_eq!(read_reply(&reply(TOKEN)), Some(TOKEN));
        assert_eq!(read_reply(&opening(TOKEN)), None);
        assert_eq!(read_opening(&reply(TOKEN)), None);
        assert_eq!(read_opening(&opening(TOKEN)[..23]), None);
        assert_eq!(read_opening(&[&opening(TOKEN)[..], b"x"].concat()), None);
    }

    #[test]
    fn headers_are_big_endian_and_leave_the_rest_alone() {
        let mut payload = [0xee; 20];
        write_header(&mut payload, 0x0102_0304_0506_0708, 9);
        assert_eq!(
            payload,
            [
                1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 9, 0xee, 0xee, 0xee, 0xee
            ]
        );
        let mut small = [0xee; 15];
        write_header(&mut small, 1, 2);
        assert_eq!(small, [0xee; 15]);
        assert_eq!(read_header(&small), None);
    }

    proptest! {
        #[test]
        fn headers_read_as_written(sequence: u64, sent_ns: u64, size in HEADER_BYTES..100) {
            let mut payload = vec![0; size];
            write_header(&mut payload, sequence, sent_ns);
            prop_assert_eq!(read_header(&payload), Some(PayloadHeader { sequence, sent_ns }));
        }

        #[test]
        fn tokens_read_as_written(bytes: [u8; 16]) {
            prop_assert_eq!(read_opening(&opening(FlowToken(bytes))), Some(FlowToken(bytes)));
            prop_assert_eq!(read_reply(&reply(FlowToken(bytes))), Some(FlowToken(bytes)));
        }
    }
}
