//! TCP segments over IPv4, built from others.

use super::packets::{self, ETHERNET, TCP, V4};

/// Offsets of the TCP header and of its payload in a frame, without options.
pub const AT: usize = ETHERNET + V4;
pub const PAYLOAD: usize = AT + 20;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

pub fn is_tcp(frame: &[u8]) -> bool {
    packets::is_v4(frame) && frame[ETHERNET + 9] == TCP
}

fn long(frame: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(frame[at..at + 4].try_into().unwrap())
}

pub fn sequence(frame: &[u8]) -> u32 {
    long(frame, AT + 4)
}

pub fn acknowledged(frame: &[u8]) -> u32 {
    long(frame, AT + 8)
}

pub fn flags(frame: &[u8]) -> u8 {
    frame[AT + 13]
}

/// Builds a segment with the addresses of the one in `frame`, without options, with correct
/// checksums.
pub fn like(frame: &[u8], sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = frame[..PAYLOAD].to_vec();
    bytes.extend_from_slice(payload);
    bytes[AT + 4..AT + 8].copy_from_slice(&sequence.to_be_bytes());
    bytes[AT + 12] = 5 << 4;
    bytes[AT + 13] = flags;
    packets::complete(&mut bytes);
    bytes
}
