//! Frames received by the user-space stack.

use std::cell::RefCell;
use std::task::Poll;

use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::{FrameRegion, MemoryPlan};
use linerate_port::{PortUrl, RxQueue, TxQueue, open};
use linerate_stack::{Stack, StackAddressing, StackConfig, memory_plan};

use crate::InputPieces;

/// Maximum number of replies to one frame: a reset, an unreachable port, neighbour solicitations;
/// an echo reply in fragments.
const MAX_REPLIES: usize = 150;
/// Maximum number of frames in socket queues and waiting for neighbours.
const MAX_HELD_FRAMES: usize = 2_000;

/// Maximum number of consecutive segments made from one.
const MAX_ROW_SEGMENTS: usize = 250;
/// Payload bytes of each: a full segment.
const SEGMENT_BYTES: usize = 1_400;
/// Bytes before a segment over IPv4 without options, and bytes of its header.
const HEADERS_BYTES: usize = 14 + 20;
const TCP_HEADER_BYTES: usize = 20;

/// Configuration of the stack, and whether frames come in rows.
struct StackScenario {
    window: &'static str,
    sends_rows: bool,
    memory_index: usize,
}

/// One frame per poll with an unscaled window, and rows of frames with a scaled window.
const SCENARIOS: [StackScenario; 2] = [
    StackScenario {
        window: "tcp.receive_window=32K",
        sends_rows: false,
        memory_index: 0,
    },
    StackScenario {
        window: "tcp.receive_window=256K",
        sends_rows: true,
        memory_index: 1,
    },
];

thread_local! {
    static MEMORY: RefCell<[Option<FrameRegion>; 2]> = const { RefCell::new([None, None]) };
}

fn config(scenario: &StackScenario) -> StackConfig {
    let mut config = StackConfig::profile("embedded-tuned").expect("it is shipped");
    for setting in ["ip.reassembly_buffers.bytes=65535", scenario.window] {
        config.apply(setting).expect("a good value");
    }
    if scenario.sends_rows {
        // A row is then received in one poll, before the window is advertised again.
        config.apply("rx_descriptors=512").expect("a good value");
    }
    config
}

/// User-space stack: each piece is a frame, first unchanged, then with valid checksums so that
/// later checks are reached. Nothing panics, no frame is lost, and no frame causes many replies.
pub fn stack(data: &[u8]) {
    for scenario in &SCENARIOS {
        run_scenario(scenario, data);
    }
}

fn run_scenario(scenario: &StackScenario, data: &[u8]) {
    let config = config(scenario);
    let urls: [PortUrl; 2] = ["a", "b"].map(|end| {
        format!("ring:fuzz,end={end},mtu=2000,rxd=512")
            .parse()
            .expect("a good URL")
    });
    let memory = MEMORY.with_borrow_mut(|memory| {
        let plan = memory_plan(&config, &urls[0]).combine(memory_plan(&config, &urls[1]));
        let plan = MemoryPlan {
            huge_pages: false,
            ..plan
        };
        memory[scenario.memory_index]
            .get_or_insert_with(|| FrameRegion::new(plan).expect("there is memory"))
            .clone()
    });
    let port = |url| open(url, &memory).expect("it can be opened").remove(0);
    let addressing = StackAddressing::new(&["10.0.0.1/24", "fd00::1/64"]).expect("good addresses");
    let mut stack =
        Stack::new(port(&urls[0]), &memory, &config, &addressing).expect("the ring will do");
    let mut peer = port(&urls[1]);
    let mut pool = memory.pool();
    let address = |text: &str| text.parse().expect("an address");
    let server = stack
        .udp_bind(address("0.0.0.0:7"))
        .expect("the port is free");
    let listener = stack
        .tcp_listen(address("0.0.0.0:7"), 4)
        .expect("the port is free");
    let mut connections = Vec::new();
    let mut now = 1_000;
    // End of the data in the stack's latest segment: an ACK for it is not dropped early.
    let mut acknowledged = 0u32;
    for piece in InputPieces(data).take(64) {
        let row_segments = match piece.last() {
            Some(&count) if scenario.sends_rows => 1 + usize::from(count) % MAX_ROW_SEGMENTS,
            _ => 1,
        };
        for with_checksums in [false, true] {
            let mut sent_frames = 0;
            for index in 0..row_segments {
                let mut bytes = piece[..piece.len().min(2_000)].to_vec();
                if with_checksums {
                    if scenario.sends_rows {
                        acknowledge(&mut bytes, acknowledged, index, row_segments);
                    }
                    fix_checksums(&mut bytes);
                }
                let Some(mut frame) = pool.allocate() else {
                    break;
                };
                frame.set_len(bytes.len() as u16);
                memory.bytes_mut(&mut frame).copy_from_slice(&bytes);
                let mut burst = Burst::new();
                burst.push(frame).expect("an empty burst has room");
                sent_frames += peer.transmit.transmit(&mut pool, &mut burst);
                peer.transmit.drop_unsent(&mut pool, &mut burst);
            }
            // Long enough for timeouts to expire now and then.
            now += 40_000_000;
            stack.poll(now);
            while let Poll::Ready(socket) = stack.tcp_accept(listener) {
                connections.push(socket.expect("the listener is open"));
            }
            // Sometimes the application does not read for a while.
            let reads = !scenario.sends_rows || piece.len().is_multiple_of(3);
            connections.retain(|&socket| {
                let received = match reads {
                    true => stack.tcp_receive(socket, |bytes| (bytes.len(), bytes.len())),
                    false => Poll::Pending,
                };
                let _ = stack.tcp_send(socket, |buffer| buffer.len().min(3_000));
                let is_over = matches!(received, Poll::Ready(Ok(0) | Err(_)));
                if is_over {
                    stack.close(socket).expect("it is open");
                }
                !is_over
            });
            if now % 3 == 0 {
                while stack.udp_receive(server, |_, _| ()).is_ready() {}
            }
            let mut replies = 0;
            let mut burst = Burst::new();
            while peer.receive.receive(&mut pool, &mut burst) > 0 {
                for frame in burst.frames() {
                    acknowledged = end_sequence(memory.bytes(frame)).unwrap_or(acknowledged);
                }
                replies += pool.free_all(&mut burst);
            }
            assert!(
                replies <= MAX_REPLIES * sent_frames.max(1),
                "{replies} answers"
            );
            let _ = stack.next_deadline();
        }
    }
    drop((stack, peer));
    let free: Vec<_> = std::iter::from_fn(|| pool.allocate()).collect();
    let missing = memory.frames() as usize - free.len();
    free.into_iter().for_each(|frame| pool.free(frame));
    assert!(
        missing == 0,
        "{missing} frames are lost, of {MAX_HELD_FRAMES} that may be held"
    );
}

fn is_segment(frame: &[u8]) -> bool {
    frame.len() >= HEADERS_BYTES + TCP_HEADER_BYTES
        && frame[12..14] == [8, 0]
        && frame[14] == 0x45
        && frame[23] == 6
}

fn read_u32(frame: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(frame[at..at + 4].try_into().expect("four bytes"))
}

/// Returns the sequence number after a segment of the stack.
fn end_sequence(frame: &[u8]) -> Option<u32> {
    const SYN: u8 = 0x02;
    const RST: u8 = 0x04;
    if !is_segment(frame) || frame[HEADERS_BYTES + 13] & RST != 0 {
        return None;
    }
    let head = usize::from(frame[HEADERS_BYTES + 12] >> 4) * 4;
    let payload = (frame.len() - HEADERS_BYTES).checked_sub(head)?;
    let syn = u32::from(frame[HEADERS_BYTES + 13] & SYN != 0);
    Some(read_u32(frame, HEADERS_BYTES + 4).wrapping_add(payload as u32 + syn))
}

/// Makes a segment acknowledge the stack's data, or slightly less, and part of a row of full ones.
fn acknowledge(frame: &mut Vec<u8>, acknowledged: u32, index: usize, row: usize) {
    const SYN: u8 = 0x02;
    if !is_segment(frame) || frame[HEADERS_BYTES + 13] & SYN != 0 {
        return;
    }
    let distance = read_u32(frame, HEADERS_BYTES + 8);
    let number = if distance.is_multiple_of(4) {
        acknowledged
    } else {
        acknowledged.wrapping_sub(distance % 5_000)
    };
    frame[HEADERS_BYTES + 8..HEADERS_BYTES + 12].copy_from_slice(&number.to_be_bytes());
    if row > 1 {
        frame.resize(
            HEADERS_BYTES + TCP_HEADER_BYTES + SEGMENT_BYTES,
            index as u8,
        );
        frame[HEADERS_BYTES + 12] = 5 << 4;
        frame[16..18]
            .copy_from_slice(&((20 + TCP_HEADER_BYTES + SEGMENT_BYTES) as u16).to_be_bytes());
        let sequence =
            read_u32(frame, HEADERS_BYTES + 4).wrapping_add((index * SEGMENT_BYTES) as u32);
        frame[HEADERS_BYTES + 4..HEADERS_BYTES + 8].copy_from_slice(&sequence.to_be_bytes());
    }
}

/// Sets the Ethernet address of the stack and valid checksums, as far as there are headers.
fn fix_checksums(frame: &mut [u8]) {
    if frame.len() < 14 + 20 {
        return;
    }
    frame[..6].copy_from_slice(&[0x02, 0x6c, 10, 0, 0, 1]);
    if frame[12..14] == [8, 0] {
        let header = usize::from(frame[14] & 0xf) * 4;
        if header >= 20 && frame.len() >= 14 + header {
            let bytes = &mut frame[14..14 + header];
            bytes[10..12].fill(0);
            let sum = !linerate_packet::checksum::sum(bytes);
            bytes[10..12].copy_from_slice(&sum.to_ne_bytes());
        }
    }
    linerate_packet::checksum::complete(frame);
}

/// Returns frames of an exchange: an ARP request, a datagram, a connection, fragments.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let ethernet = |kind: [u8; 2]| {
        let mut frame = vec![0x02, 0x6c, 10, 0, 0, 1, 0x02, 0x6c, 10, 0, 0, 2];
        frame.extend(kind);
        frame
    };
    let packet = |protocol: u8, fragment_offset: [u8; 2], body: &[u8]| {
        let mut frame = ethernet([8, 0]);
        frame.extend([
            0x45,
            0,
            0,
            (20 + body.len()) as u8,
            0,
            9,
            fragment_offset[0],
            fragment_offset[1],
            64,
            protocol,
        ]);
        frame.extend([0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
        frame.extend(body);
        frame
    };
    let mut arp = ethernet([8, 6]);
    arp.extend([0, 1, 8, 0, 6, 4, 0, 1, 0x02, 0x6c, 10, 0, 0, 2, 10, 0, 0, 2]);
    arp.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    let udp = [0x13, 0x88, 0, 7, 0, 12, 0, 0, b'p', b'i', b'n', b'g'];
    let closed = [0x13, 0x88, 0, 9, 0, 8, 0, 0];
    // With window scaling, which the stack accepts.
    let syn = [
        0x13, 0x88, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0x70, 0x02, 0xff, 0xff, 0, 0, 0, 0, 2, 4, 5,
        0xb4, 1, 3, 3, 7,
    ];
    let reset = [
        0x13, 0x88, 0, 7, 0, 0, 0, 2, 0, 0, 0, 0, 0x50, 0x04, 0, 0, 0, 0, 0, 0,
    ];
    let ack = [
        0x13, 0x88, 0, 7, 0, 0, 0, 2, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0,
    ];
    let payload = [
        0x13, 0x88, 0, 7, 0, 0, 0, 2, 0, 0, 0, 0, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0, b'p', 200,
    ];
    let mut too_long = vec![3, 4, 0, 0, 0, 0, 2, 88];
    too_long.extend([
        0x45, 0, 5, 220, 0, 9, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ]);
    too_long.extend([0, 7, 0x13, 0x88, 0, 0, 0, 1]);
    let echo = [8, 0, 0xf7, 0xff, 0, 0, 0, 0];
    let mut solicitation = ethernet([0x86, 0xdd]);
    solicitation.extend([0x60, 0, 0, 0, 0, 32, 58, 255, 0xfd]);
    solicitation.extend([0; 14]);
    solicitation.extend([2, 0xfd]);
    solicitation.extend([0; 14]);
    solicitation.extend([1, 135, 0, 0, 0, 0, 0, 0, 0, 0xfd]);
    solicitation.extend([0; 14]);
    solicitation.extend([1, 1, 1, 0x02, 0x6c, 10, 0, 0, 2]);
    vec![
        arp,
        packet(17, [0, 0], &udp),
        packet(17, [0, 0], &closed),
        packet(6, [0, 0], &syn),
        packet(6, [0, 0], &payload),
        packet(6, [0, 0], &ack),
        packet(1, [0, 0], &too_long),
        packet(6, [0, 0], &reset),
        packet(1, [0, 0], &echo),
        packet(17, [0x20, 0], &[1; 24]),
        packet(17, [0, 3], &[1; 9]),
        solicitation,
    ]
}
