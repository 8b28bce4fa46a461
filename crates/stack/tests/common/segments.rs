//! TCP segments over IPv4, built from others.

use super::packets::{self, ETHERNET_BYTES, TCP, V4_BYTES};

/// Offsets of the TCP header and of its payload in a frame, without options.
pub const TCP_OFFSET: usize = ETHERNET_BYTES + V4_BYTES;
pub const PAYLOAD_OFFSET: usize = TCP_OFFSET + 20;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

pub fn is_tcp(frame: &[u8]) -> bool {
    packets::is_v4(frame) && frame[ETHERNET_BYTES + 9] == TCP
}

fn read_u32(frame: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes(frame[offset..offset + 4].try_into().unwrap())
}

pub fn sequence(frame: &[u8]) -> u32 {
    read_u32(frame, TCP_OFFSET + 4)
}

pub fn acknowledgement_number(frame: &[u8]) -> u32 {
    read_u32(frame, TCP_OFFSET + 8)
}

pub fn flags(frame: &[u8]) -> u8 {
    frame[TCP_OFFSET + 13]
}

/// Builds a segment with the addresses of the one in `frame`, without options, with correct
/// checksums.
pub fn segment_like(frame: &[u8], sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = frame[..PAYLOAD_OFFSET].to_vec();
    bytes.extend_from_slice(payload);
    bytes[TCP_OFFSET + 4..TCP_OFFSET + 8].copy_from_slice(&sequence.to_be_bytes());
    bytes[TCP_OFFSET + 12] = 5 << 4;
    bytes[TCP_OFFSET + 13] = flags;
    packets::complete(&mut bytes);
    bytes
}
