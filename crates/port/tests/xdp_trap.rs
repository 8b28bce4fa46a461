//! Tests that the notes of AF_XDP ports on veth pairs are true.

#[path = "xdp/end.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod end;
#[path = "xdp/net.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod net;

use std::net::UdpSocket;
use std::process::Command;
use std::time::Instant;

use end::{End, PATIENCE};
use linerate_host::sys::socket::set_udp_segment;
use linerate_port::{Cause, Frame};
use net::{in_namespace, ip, memory, pair};

/// Payload of each of the four datagrams that the remote end's socket sends with one call.
const SEGMENT_BYTES: u16 = 1000;

/// Sum of all 16-bit words of a UDP datagram with its pseudo header: 0xffff if the checksum is
/// valid (RFC 768).
fn udp_sum(frame: &[u8]) -> u16 {
    let packet = &frame[14..];
    let length = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    let datagram = &packet[20..length];
    let word = |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    let mut sum: u32 = packet[12..20].chunks(2).map(word).sum();
    sum += 17 + datagram.len() as u32;
    sum += datagram.chunks(2).map(word).sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Sends four datagrams with one call from `vb`; returns the lengths received, and true if all
/// checksums are valid.
fn datagrams(near: &mut End) -> (Vec<u16>, bool) {
    let lost = near.received().all_dropped();
    let socket = UdpSocket::bind("192.0.2.2:9000").unwrap();
    set_udp_segment(&socket, SEGMENT_BYTES).unwrap();
    let payload = [0x5a; 4 * SEGMENT_BYTES as usize];
    socket.send_to(&payload, "192.0.2.1:9000").unwrap();
    let mut held = Vec::new();
    let end = Instant::now() + PATIENCE;
    while held.len() < 4 && near.received().all_dropped() == lost {
        near.take(&mut held);
        assert!(Instant::now() < end, "{held:?}");
    }
    let lengths = held.iter().map(Frame::len).collect();
    let right = held
        .iter()
        .all(|frame| udp_sum(near.memory.bytes(frame)) == 0xffff);
    near.free(held);
    (lengths, right)
}

#[test]
fn unfinished_checksums_and_large_segments_come_until_the_far_end_makes_them_itself() {
    in_namespace(|| {
        pair(1);
        ip("address add 192.0.2.2/24 dev vb");
        ip("neighbour add 192.0.2.1 lladdr 02:00:00:00:00:01 dev vb");
        let memory = memory(&["xdp:va"]);
        let whole = vec![42 + SEGMENT_BYTES; 4];
        {
            let Some(mut near) = End::open("xdp:va,mode=native", &memory) else {
                return;
            };
            assert!(near.has_note("may have partial checksums"));
            // The kernel segments large packets before a native program.
            assert_eq!(datagrams(&mut near), (whole.clone(), false));
        }
        {
            let mut near = End::open("xdp:va,mode=generic", &memory).unwrap();
            assert!(near.has_note("longer than a frame are lost"));
            assert!(datagrams(&mut near).0.is_empty());
            assert_eq!(near.received().dropped(Cause::TooLong), 1);
        }
        let off = Command::new("ethtool")
            .args(["-K", "vb", "tx", "off"])
            .output();
        let Ok(output) = off else {
            println!("skipped the rest: there is no `ethtool` (package of the same name)");
            return;
        };
        assert!(output.status.success(), "{output:?}");
        for mode in ["native", "generic"] {
            let mut near = End::open(&format!("xdp:va,mode={mode}"), &memory).unwrap();
            assert!(!near.has_note("partial checksums"), "{mode}");
            assert_eq!(datagrams(&mut near), (whole.clone(), true), "{mode}");
        }
    });
}

/// EtherType of a received frame with a datagram that VLAN 5 of the remote end sent.
fn type_of_tagged(near: &mut End) -> u16 {
    let socket = UdpSocket::bind("192.0.2.2:9000").unwrap();
    socket.send_to(b"of VLAN 5", "192.0.2.1:9000").unwrap();
    let end = Instant::now() + PATIENCE;
    loop {
        let mut held = Vec::new();
        near.take(&mut held);
        let mut kinds = held.iter().filter_map(|frame| {
            let bytes = near.memory.bytes(frame);
            let is_ours = bytes.ends_with(b"of VLAN 5");
            is_ours.then(|| u16::from_be_bytes([bytes[12], bytes[13]]))
        });
        let kind = kinds.next_back();
        near.free(held);
        if let Some(kind) = kind {
            return kind;
        }
        assert!(Instant::now() < end, "not received");
    }
}

#[test]
fn vlan_tags_come_once_the_far_end_puts_them_into_frames() {
    in_namespace(|| {
        pair(1);
        let words = "link add link vb name vlan5 type vlan id 5";
        let made = Command::new("ip").args(words.split(' ')).output().unwrap();
        if !made.status.success() {
            println!("skipped: no VLANs here: {made:?}");
            return;
        }
        ip("link set vlan5 up");
        ip("address add 192.0.2.2/24 dev vlan5");
        ip("neighbour add 192.0.2.1 lladdr 02:00:00:00:00:01 dev vlan5");
        let memory = memory(&["xdp:va"]);
        for mode in ["native", "generic"] {
            let Some(mut near) = End::open(&format!("xdp:va,mode={mode}"), &memory) else {
                return;
            };
            assert!(near.has_note("ethtool -K vb txvlan off"), "{mode}");
            assert_eq!(type_of_tagged(&mut near), 0x0800, "{mode}: its tag is gone");
        }
        let off = Command::new("ethtool")
            .args(["-K", "vb", "txvlan", "off"])
            .output();
        if !off.is_ok_and(|output| output.status.success()) {
            println!("skipped the rest: there is no `ethtool` (package of the same name)");
            return;
        }
        for mode in ["native", "generic"] {
            let mut near = End::open(&format!("xdp:va,mode={mode}"), &memory).unwrap();
            assert!(!near.has_note("VLAN tags"), "{mode}");
            assert_eq!(type_of_tagged(&mut near), 0x8100, "{mode}");
        }
    });
}
