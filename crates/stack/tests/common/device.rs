//! Device with checksum and segmentation offload.

use linerate_packet::checksum::UnfoldedSum;
use linerate_packet::vnet::{Segmentation, VNET_HEADER_BYTES, VnetHeader};

const ETHERNET: usize = 14;
const FIN_PSH: u8 = 0x09;

/// Prepends the vnet header of a received frame with complete checksum.
pub fn with_vnet_header(frame: &[u8]) -> Vec<u8> {
    [&VnetHeader::default().to_bytes(), frame].concat()
}

/// Returns the frames that the device makes of one.
pub fn split_frame(bytes: &[u8]) -> Vec<Vec<u8>> {
    let header = VnetHeader::parse(bytes).expect("a header in front");
    let frame = &bytes[VNET_HEADER_BYTES..];
    if !header.needs_checksum {
        return vec![frame.to_vec()];
    }
    let start = usize::from(header.checksum_start);
    if header.segmentation == Segmentation::None {
        let mut complete = frame.to_vec();
        let checksum = !UnfoldedSum::from_bytes(&complete[start..]).to_u16();
        let field = start + usize::from(header.checksum_offset);
        complete[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
        return vec![complete];
    }
    let v4 = header.segmentation == Segmentation::TcpV4;
    let head = start + usize::from(frame[start + 12] >> 4) * 4;
    assert_eq!(usize::from(header.header_bytes), head);
    assert_eq!(start, ETHERNET + if v4 { 20 } else { 40 });
    assert!(frame.len() - head > header.segment_bytes.into());
    let each = usize::from(header.segment_bytes);
    let payloads = frame[head..].chunks(each).enumerate();
    let count = (frame.len() - head).div_ceil(each);
    let make_segment = |(number, payload): (usize, &[u8])| {
        let mut make_segment = [&frame[..head], payload].concat();
        let (ip, tcp) = make_segment[ETHERNET..].split_at_mut(start - ETHERNET);
        let length = tcp.len() as u16;
        let addresses = if v4 {
            ip[2..4].copy_from_slice(&(20 + length).to_be_bytes());
            ip[10..12].fill(0);
            let checksum = !UnfoldedSum::from_bytes(ip).to_u16();
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            &ip[12..20]
        } else {
            ip[4..6].copy_from_slice(&length.to_be_bytes());
            &ip[8..40]
        };
        let pseudo = UnfoldedSum::from_bytes(addresses)
            + UnfoldedSum::from_u16(6)
            + UnfoldedSum::from_u16(length);
        let sequence = u32::from_be_bytes(tcp[4..8].try_into().unwrap());
        let sequence = sequence.wrapping_add((number * each) as u32);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        if number + 1 < count {
            tcp[13] &= !FIN_PSH;
        }
        tcp[16..18].fill(0);
        let checksum = !(pseudo + UnfoldedSum::from_bytes(tcp)).to_u16();
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        make_segment
    };
    payloads.map(make_segment).collect()
}
