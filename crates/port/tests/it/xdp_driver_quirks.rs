//! Tests that the notes of AF_XDP ports on veth pairs are true.

use std::net::UdpSocket;
use std::process::Command;
use std::time::Instant;

use crate::xdp::end::{TIMEOUT, TestPort};
use crate::xdp::net::{in_namespace, ip, memory, pair};
use linerate_port::DropCause;
use linerate_sys::frames::frame::Frame;
use linerate_sys::socket::enable_udp_gso;

/// Payload of each of the four datagrams that the remote end's socket sends with one call.
const SEGMENT_BYTES: u16 = 1000;

/// Sum of all 16-bit words of a UDP datagram with its pseudo header: 0xffff if the checksum is
/// valid (RFC 768).
fn udp_sum(frame: &[u8]) -> u16 {
    let packet = &frame[14..];
    let length = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    let datagram = &packet[20..length];
    let be_u16 = |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    let mut sum: u32 = packet[12..20].chunks(2).map(be_u16).sum();
    sum += 17 + datagram.len() as u32;
    sum += datagram.chunks(2).map(be_u16).sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Sends four datagrams with one call from `vb`; returns the lengths received, and true if all
/// checksums are valid.
fn datagrams(local: &mut TestPort) -> (Vec<u16>, bool) {
    let lost = local.received().total_drops();
    let socket = UdpSocket::bind("192.0.2.2:9000").unwrap();
    enable_udp_gso(&socket, SEGMENT_BYTES).unwrap();
    let payload = [0x5a; 4 * SEGMENT_BYTES as usize];
    socket.send_to(&payload, "192.0.2.1:9000").unwrap();
    let mut frames = Vec::new();
    let end = Instant::now() + TIMEOUT;
    while frames.len() < 4 && local.received().total_drops() == lost {
        local.receive_into(&mut frames);
        assert!(Instant::now() < end, "{frames:?}");
    }
    let lengths = frames.iter().map(Frame::len).collect();
    let right = frames
        .iter()
        .all(|frame| udp_sum(local.memory.bytes(frame)) == 0xffff);
    local.free(frames);
    (lengths, right)
}

#[test]
fn partial_checksums_and_large_segments_arrive_until_the_sender_completes_them() {
    in_namespace(|| {
        pair(1);
        ip("address add 192.0.2.2/24 dev vb");
        ip("neighbour add 192.0.2.1 lladdr 02:00:00:00:00:01 dev vb");
        let memory = memory(&["xdp:va"]);
        let expected = vec![42 + SEGMENT_BYTES; 4];
        {
            let Some(mut local) = TestPort::open("xdp:va,mode=native", &memory) else {
                return;
            };
            assert!(local.has_note("may have partial checksums"));
            // The kernel segments large packets before a native program.
            assert_eq!(datagrams(&mut local), (expected.clone(), false));
        }
        {
            let mut local = TestPort::open("xdp:va,mode=generic", &memory).unwrap();
            assert!(local.has_note("longer than a frame are lost"));
            assert!(datagrams(&mut local).0.is_empty());
            assert_eq!(local.received().drops_by(DropCause::TooLong), 1);
        }
        let off = Command::new("ethtool")
            .args(["-K", "vb", "tx", "off"])
            .output();
        let Ok(output) = off else {
            println!("skipped: the rest: there is no `ethtool` (package of the same name)");
            return;
        };
        assert!(output.status.success(), "{output:?}");
        for mode in ["native", "generic"] {
            let mut local = TestPort::open(&format!("xdp:va,mode={mode}"), &memory).unwrap();
            assert!(!local.has_note("partial checksums"), "{mode}");
            assert_eq!(datagrams(&mut local), (expected.clone(), true), "{mode}");
        }
    });
}

/// EtherType of a received frame with a datagram that VLAN 5 of the remote end sent.
fn type_of_tagged(local: &mut TestPort) -> u16 {
    let socket = UdpSocket::bind("192.0.2.2:9000").unwrap();
    socket.send_to(b"of VLAN 5", "192.0.2.1:9000").unwrap();
    let end = Instant::now() + TIMEOUT;
    loop {
        let mut frames = Vec::new();
        local.receive_into(&mut frames);
        let mut kinds = frames.iter().filter_map(|frame| {
            let bytes = local.memory.bytes(frame);
            let is_tagged_datagram = bytes.ends_with(b"of VLAN 5");
            is_tagged_datagram.then(|| u16::from_be_bytes([bytes[12], bytes[13]]))
        });
        let kind = kinds.next_back();
        local.free(frames);
        if let Some(kind) = kind {
            return kind;
        }
        assert!(Instant::now() < end, "not received");
    }
}

#[test]
fn vlan_tags_arrive_once_the_remote_end_puts_them_into_frames() {
    in_namespace(|| {
        pair(1);
        let args = "link add link vb name vlan5 type vlan id 5";
        let added = Command::new("ip").args(args.split(' ')).output().unwrap();
        if !added.status.success() {
            println!("skipped: no VLANs here: {added:?}");
            return;
        }
        ip("link set vlan5 up");
        ip("address add 192.0.2.2/24 dev vlan5");
        ip("neighbour add 192.0.2.1 lladdr 02:00:00:00:00:01 dev vlan5");
        let memory = memory(&["xdp:va"]);
        for mode in ["native", "generic"] {
            let Some(mut local) = TestPort::open(&format!("xdp:va,mode={mode}"), &memory) else {
                return;
            };
            assert!(local.has_note("ethtool -K vb txvlan off"), "{mode}");
            assert_eq!(
                type_of_tagged(&mut local),
                0x0800,
                "{mode}: its tag is gone"
            );
        }
        let off = Command::new("ethtool")
            .args(["-K", "vb", "txvlan", "off"])
            .output();
        if !off.is_ok_and(|output| output.status.success()) {
            println!("skipped: the rest: there is no `ethtool` (package of the same name)");
            return;
        }
        for mode in ["native", "generic"] {
            let mut local = TestPort::open(&format!("xdp:va,mode={mode}"), &memory).unwrap();
            assert!(!local.has_note("VLAN tags"), "{mode}");
            assert_eq!(type_of_tagged(&mut local), 0x8100, "{mode}");
        }
    });
}
