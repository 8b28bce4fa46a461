//! Segments of TCP over IPv4, made of others.

pub const ETHERNET: usize = 14;
pub const IP: usize = 20;
pub const TCP: usize = 20;

pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

fn sum(bytes: &[u8]) -> u32 {
    let pairs = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    pairs.sum()
}

pub fn checksum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = sum(bytes) + start;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

pub fn is_tcp(frame: &[u8]) -> bool {
    frame[12..14] == [8, 0] && frame[ETHERNET + 9] == 6
}

fn long(frame: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(frame[at..at + 4].try_into().unwrap())
}

pub fn sequence(frame: &[u8]) -> u32 {
    long(frame, ETHERNET + IP + 4)
}

pub fn acknowledged(frame: &[u8]) -> u32 {
    long(frame, ETHERNET + IP + 8)
}

pub fn flags(frame: &[u8]) -> u8 {
    frame[ETHERNET + IP + 13]
}

/// A segment between the ends of the one in `frame`: headers without options, sums that are right.
pub fn like(frame: &[u8], sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = frame[..ETHERNET + IP + TCP].to_vec();
    bytes.extend_from_slice(payload);
    let total = (IP + TCP + payload.len()) as u16;
    bytes[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&total.to_be_bytes());
    let tcp = ETHERNET + IP;
    bytes[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes());
    bytes[tcp + 12] = 5 << 4;
    bytes[tcp + 13] = flags;
    sum_again(&mut bytes);
    bytes
}

/// Writes both checksums.
pub fn sum_again(bytes: &mut [u8]) {
    let ip = &mut bytes[ETHERNET..];
    ip[10..12].fill(0);
    let header = checksum(&ip[..IP], 0);
    ip[10..12].copy_from_slice(&header.to_be_bytes());
    let pseudo = sum(&ip[12..20]) + 6 + (ip.len() - IP) as u32;
    let tcp = &mut ip[IP..];
    tcp[16..18].fill(0);
    let whole = checksum(tcp, pseudo);
    tcp[16..18].copy_from_slice(&whole.to_be_bytes());
}
