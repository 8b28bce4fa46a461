//! Floods of requests leave a share of the transmit ring to local sockets.

use std::net::Ipv6Addr;
use std::task::Poll;

use crate::common::packets::{self, UDP, fragment, packet, ping};
use crate::common::router::packet_too_big;
use crate::common::segments::{self, ACK, RST, SYN, TCP_OFFSET};
use crate::common::{
    BulkTransfer, LOCAL, LOCAL_V6, LinkModel, REMOTE, REMOTE_V6, TwoStackSim, any_address, config,
    expect_ready, socket_address,
};
use linerate_stack::Counters;

/// Request that any host may send.
struct FloodRequest {
    name: &'static str,
    frame: Vec<u8>,
    /// Minimum number of replies, to 64 requests in each of [`POLLS`].
    min_replies: u64,
}

const POLLS: u64 = 200;

/// Burst limit of ICMP errors.
const ERROR_BURST: u64 = 50;

/// Returns echo requests, address requests, rejected SYNs, and packets that cause errors.
fn flood_requests(sim: &mut TwoStackSim) -> Vec<FloodRequest> {
    let captured = sim.capture(|end, _| end == 0);
    let client = sim.local.udp_bind(any_address(0)).unwrap();
    for address in [REMOTE, REMOTE_V6] {
        expect_ready(
            sim.local
                .udp_send(client, Some(socket_address(address, 7)), 1, |_| ()),
        );
    }
    sim.run(20);
    let rejected = sim
        .local
        .tcp_connect(socket_address(REMOTE, 9), None)
        .unwrap();
    sim.run(20);
    sim.local.close(rejected).unwrap();
    sim.local.close(client).unwrap();
    sim.wire.filter = Box::new(|_, _| true);
    let captured = captured.borrow();
    let find = |is_match: &dyn Fn(&[u8]) -> bool| {
        captured
            .iter()
            .find(|frame| is_match(frame))
            .unwrap()
            .clone()
    };
    let arp = find(&|frame| frame[12..14] == [8, 6] && frame[38..42] == [10, 0, 0, 2]);
    let to: Ipv6Addr = REMOTE_V6.parse().unwrap();
    let solicitation = find(&|frame| {
        frame[12..14] == [0x86, 0xdd] && frame[54] == 135 && frame[62..78] == to.octets()
    });
    let syn = find(&|frame| segments::is_tcp(frame) && segments::flags(frame) == SYN);
    let [unknown_segment, resets] =
        [ACK, RST].map(|flags| segments::segment_like(&syn, 1, flags, b"?"));
    let ethernet = sim.remote.ethernet_address();
    let (v4, v6) = ((LOCAL, REMOTE), (LOCAL_V6, REMOTE_V6));
    // To a port without a socket.
    let closed_port = packets::datagram(0xc001, 8_080, b"?");
    let [closed_port_v4, closed_port_v6] =
        [v4, v6].map(|addresses| packet(ethernet, addresses, UDP, &closed_port));
    // With an unknown option that must be reported.
    let mut option = closed_port_v6.clone();
    packets::insert_headers(&mut option, 60, &[UDP, 0, 0x9e, 4, 1, 2, 3, 4]);
    let requests = [
        ("echo", ping(ethernet, v4, 56), POLLS),
        ("echo of IPv6", ping(ethernet, v6, 56), POLLS),
        ("ARP", arp, POLLS),
        ("discovery", solicitation, POLLS),
        ("rejected SYNs", syn, POLLS),
        ("segments without connection", unknown_segment, POLLS),
        ("resets", resets, 0),
        ("closed port", closed_port_v4, ERROR_BURST),
        ("closed port, IPv6", closed_port_v6, ERROR_BURST),
        ("options", option, ERROR_BURST),
    ];
    let make_request = |(name, frame, replies)| FloodRequest {
        name,
        frame,
        min_replies: replies,
    };
    requests.map(make_request).into()
}

const SETTINGS: [&str; 2] = ["tx_descriptors=8", "rx_descriptors=64"];

#[test]
fn a_flood_of_requests_leaves_frames_to_datagrams() {
    let mut sim = TwoStackSim::symmetric(&SETTINGS, LinkModel::CLEAN);
    let server = sim.remote.udp_bind(any_address(7)).unwrap();
    // Received there, and not answered.
    sim.local.udp_bind(any_address(7)).unwrap();
    for FloodRequest {
        name,
        frame,
        min_replies,
    } in flood_requests(&mut sim)
    {
        // Refills the limit of errors.
        sim.run(100);
        let before = sim.remote.counters();
        let mut sent = 0;
        for _ in 0..POLLS {
            for _ in 0..64 {
                sim.wire.deliver(1, &frame);
            }
            sim.poll();
            for _ in 0..4 {
                let to = Some(socket_address(LOCAL, 7));
                let sent_datagram = sim.remote.udp_send(server, to, 10, |space| space.fill(1));
                sent += u64::from(sent_datagram.is_ready());
            }
            sim.advance();
        }
        assert_eq!(sent, 4 * POLLS, "{name}");
        // Frames that found no descriptor because of neighbour messages.
        sim.run(5);
        let Counters {
            link, icmp, tcp, ..
        } = sim.remote.counters().since(&before);
        assert_eq!(link.out_ring_full, 0, "{name}");
        // Requests are still answered, and those that are not are counted.
        let errors = icmp.out_port_unreachables + icmp.out_parameter_problems;
        let other_replies = icmp.out_echo_replies + tcp.out_resets + link.out_neighbor_replies;
        let limited = link.out_answers_limited + icmp.out_limited;
        let (replies, expected_total) = (
            errors + other_replies,
            if min_replies > 0 { 64 * POLLS } else { 0 },
        );
        assert_eq!(replies + limited, expected_total, "{name}");
        assert!(replies >= min_replies, "{name}: {replies}");
    }
}

/// SYNs, each reset as soon as it may have been answered.
#[test]
fn a_syn_flood_leaves_frames_to_datagrams() {
    let settings = [&SETTINGS[..], &["sockets.tcp=64"]].concat();
    let mut sim = TwoStackSim::symmetric(&settings, LinkModel::CLEAN);
    let mut syn = flood_requests(&mut sim).swap_remove(4).frame;
    syn[TCP_OFFSET + 2..TCP_OFFSET + 4].copy_from_slice(&80u16.to_be_bytes());
    let server = sim.remote.udp_bind(any_address(7)).unwrap();
    sim.local.udp_bind(any_address(7)).unwrap();
    sim.remote.tcp_listen(any_address(80), 64).unwrap();
    let (mut sent, mut syns) = (0, Vec::<Vec<u8>>::new());
    let before = sim.remote.counters();
    for poll in 0..POLLS as u16 {
        let number = segments::sequence(&syn);
        let resets = syns
            .iter()
            .map(|frame| segments::segment_like(frame, number + 1, RST, &[]));
        let resets: Vec<Vec<u8>> = resets.collect();
        let from = |port: u16| {
            let mut frame = syn.clone();
            frame[TCP_OFFSET..TCP_OFFSET + 2]
                .copy_from_slice(&(1_000 + 24 * poll + port).to_be_bytes());
            packets::complete(&mut frame);
            frame
        };
        syns = (0..24).map(from).collect();
        for frame in resets.iter().chain(&syns) {
            sim.wire.deliver(1, frame);
        }
        sim.poll();
        for _ in 0..4 {
            let to = Some(socket_address(LOCAL, 7));
            let sent_datagram = sim.remote.udp_send(server, to, 10, |space| space.fill(1));
            sent += u64::from(sent_datagram.is_ready());
        }
        sim.advance();
    }
    assert_eq!(sent, 4 * POLLS);
    let since = sim.remote.counters().since(&before).tcp;
    assert!(since.passive_opens > 20 * POLLS, "{since:#?}");
    assert!(since.out_segments >= POLLS, "{since:#?}");
}

/// A flooded service that does not reply or read leaves space to another service.
#[test]
fn a_flood_of_datagrams_leaves_frames_to_other_sockets() {
    for sends_replies in [false, true] {
        let mut sim = TwoStackSim::symmetric(&SETTINGS, LinkModel::CLEAN);
        let _ = flood_requests(&mut sim);
        let [flooded, quiet] = [9, 7].map(|port| sim.remote.udp_bind(any_address(port)).unwrap());
        let client = sim.local.udp_bind(any_address(0)).unwrap();
        sim.local
            .udp_connect(client, socket_address(REMOTE, 7))
            .unwrap();
        let ethernet = sim.remote.ethernet_address();
        let datagram = packets::datagram(0xc001, 9, &[7; 20]);
        let flood = packet(ethernet, (LOCAL, REMOTE), UDP, &datagram);
        let mut got = 0;
        for poll in 0..3 * POLLS {
            // Some descriptors are left for packets of the local stack.
            for _ in 0..48 {
                sim.wire.deliver(1, &flood);
            }
            if poll < POLLS {
                expect_ready(sim.local.udp_send(client, None, 10, |space| space.fill(1)));
            }
            sim.poll();
            for socket in [quiet, flooded] {
                while (socket == quiet || sends_replies) && sim.remote.udp_can_send() {
                    let Poll::Ready(from) = sim.remote.udp_receive(socket, |_, meta| meta.from)
                    else {
                        break;
                    };
                    expect_ready(
                        sim.remote
                            .udp_send(socket, from.ok(), 10, |space| space.fill(2)),
                    );
                }
            }
            while sim.local.udp_receive(client, |_, _| ()).is_ready() {
                got += 1;
            }
            sim.advance();
        }
        assert_eq!(got, POLLS, "it answers: {sends_replies}");
        assert!(sim.remote.counters().udp.receive_queue_full > POLLS);
    }
}

#[test]
fn a_flood_of_requests_leaves_frames_to_streams() {
    let mut sim = TwoStackSim::symmetric(&SETTINGS, LinkModel::CLEAN);
    for FloodRequest { name, frame, .. } in flood_requests(&mut sim) {
        let (client, server) = sim.connect(80);
        let (mut local, mut remote) = (
            BulkTransfer::new(client, 20_000),
            BulkTransfer::new(server, 50_000),
        );
        let mut polls = 0;
        while !(local.has_received_end && remote.has_received_end) {
            polls += 1;
            assert!(polls < 5_000, "{name}: {} of 50,000 B", local.received);
            // Some descriptors are left for packets of the local stack.
            for _ in 0..48 {
                sim.wire.deliver(1, &frame);
            }
            local.step(&mut sim.local);
            remote.step(&mut sim.remote);
            sim.poll();
            sim.advance();
        }
        sim.local.close(client).unwrap();
        sim.remote.close(server).unwrap();
        sim.run(50);
    }
}

/// No fragmented reply begins right when the last one has left: datagrams are sent after each. A
/// reply is charged as many fragments as the path requires.
#[test]
fn long_echo_replies_use_their_share() {
    for (tx, frames_per_poll) in [("tx_descriptors=1", 1), ("tx_descriptors=4", 4)] {
        for narrow in [false, true] {
            let remote = config(&[tx, "rx_descriptors=64"]);
            let mut sim = TwoStackSim::new(&config(&[]), &remote, LinkModel::CLEAN);
            let _ = flood_requests(&mut sim);
            let server = sim.remote.udp_bind(any_address(7)).unwrap();
            let ethernet = sim.remote.ethernet_address();
            let request = match narrow {
                // Longer than any packet, so that its reply is fragmented as well.
                false => ping(ethernet, (LOCAL, REMOTE), 3_000),
                // Its reply is a single packet, and too long for a router.
                true => ping(ethernet, (LOCAL_V6, REMOTE_V6), 1_400),
            };
            if narrow {
                let reply_frames = sim.capture(|end, frame| end == 1 && frame.len() > 1_400);
                sim.wire.deliver(1, &request);
                sim.run(30);
                let message = packet_too_big(&reply_frames.take()[0], 1_280);
                sim.wire.deliver(1, &message);
                sim.run(30);
                assert_eq!(sim.remote.counters().ip.path_mtu_reported, 1);
            }
            let before = sim.remote.counters().icmp.out_echo_replies;
            let mut sent = 0;
            for poll in 0..300 {
                match narrow {
                    false => {
                        for bytes in [0..1_480, 1_480..2_960, 2_960..3_008] {
                            sim.wire.deliver(1, &fragment(&request, poll, bytes));
                        }
                    }
                    true => sim.wire.deliver(1, &request),
                }
                sim.poll();
                let to = Some(socket_address(LOCAL, 7));
                while sim
                    .remote
                    .udp_send(server, to, 10, |space| space.fill(1))
                    .is_ready()
                {
                    sent += 1;
                }
                sim.advance();
            }
            let echoes = sim.remote.counters().icmp.out_echo_replies - before;
            let name = format!("{tx}, narrow {narrow}: {sent} datagrams, {echoes} echoes");
            assert!(sent >= 300 * frames_per_poll / 2 - 10, "{name}");
            assert!(echoes > 20, "{name}");
        }
    }
}

/// Long requests that cannot be answered at all take no share from others.
#[test]
fn unsent_replies_use_no_share() {
    let remote = config(&[
        "tx_descriptors=4",
        "rx_descriptors=64",
        "ip.fragmentation=off",
    ]);
    let mut sim = TwoStackSim::new(&config(&[]), &remote, LinkModel::CLEAN);
    let _ = flood_requests(&mut sim);
    let ethernet = sim.remote.ethernet_address();
    let [long_request, short_request] =
        [3_000, 56].map(|bytes| ping(ethernet, (LOCAL, REMOTE), bytes));
    let before = sim.remote.counters();
    for poll in 0..100 {
        for bytes in [0..1_480, 1_480..2_960, 2_960..3_008] {
            sim.wire.deliver(1, &fragment(&long_request, poll, bytes));
        }
        sim.wire.deliver(1, &short_request);
        sim.poll();
        sim.advance();
    }
    let since = sim.remote.counters().since(&before);
    let replies = (since.icmp.out_echo_replies, since.link.out_answers_limited);
    assert_eq!(replies, (100, 0));
    assert_eq!(since.ip.fragmented_fails, 100);
}

/// Echo requests from hosts that do not exist: their replies wait for ARP, in places that others
/// need.
#[test]
fn replies_to_absent_hosts_leave_queue_slots_to_datagrams() {
    let mut sim = TwoStackSim::symmetric(&[], LinkModel::CLEAN).after_announcements();
    let server = sim.remote.udp_bind(any_address(7)).unwrap();
    for host in 100..180 {
        let from = format!("10.0.0.{host}");
        let request = ping(sim.remote.ethernet_address(), (&from, REMOTE), 56);
        sim.wire.deliver(1, &request);
    }
    sim.poll();
    // No request was sent for this address yet.
    let receiver = sim.local.udp_bind(any_address(7)).unwrap();
    for _ in 0..20 {
        expect_ready(
            sim.remote
                .udp_send(server, Some(socket_address(LOCAL, 7)), 10, |_| ()),
        );
    }
    sim.run(20);
    assert_eq!(sim.local.udp_queued(receiver).unwrap(), 20);
}
