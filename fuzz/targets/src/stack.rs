//! Frames received by the user-space stack.

use std::cell::RefCell;
use std::task::Poll;

use linerate_port::{Burst, Memory, MemoryPlan, PortUrl, Receive, Transmit, open};
use linerate_stack::{Addressing, Config, Stack, memory_plan};

use crate::Pieces;

/// Maximum number of replies to one frame: a reset, an unreachable port, neighbour solicitations;
/// an echo reply in fragments.
const MOST_ANSWERS: usize = 150;
/// Maximum number of frames in socket queues and waiting for neighbours.
const MOST_HELD: usize = 2_000;

/// Maximum number of consecutive segments made from one.
const MOST_IN_A_ROW: usize = 250;
/// Payload bytes of each: a full segment.
const FULL: usize = 1_400;
/// Bytes before a segment over IPv4 without options, and bytes of its header.
const HEADS: usize = 14 + 20;
const TCP_HEAD: usize = 20;

/// Configuration of the stack, and whether frames come in rows.
struct Scene {
    window: &'static str,
    rows: bool,
    memory: usize,
}

/// One frame per poll with an unscaled window, and rows of frames with a scaled window.
const SCENES: [Scene; 2] = [
    Scene {
        window: "tcp.receive_window=32K",
        rows: false,
        memory: 0,
    },
    Scene {
        window: "tcp.receive_window=256K",
        rows: true,
        memory: 1,
    },
];

thread_local! {
    static MEMORY: RefCell<[Option<Memory>; 2]> = const { RefCell::new([None, None]) };
}

fn config(scene: &Scene) -> Config {
    let mut config = Config::profile("embedded-tuned").expect("it is shipped");
    for setting in ["ip.reassembly_buffers.bytes=65535", scene.window] {
        config.apply(setting).expect("a good value");
    }
    if scene.rows {
        // A row is then received in one poll, before the window is advertised again.
        config.apply("rx_descriptors=512").expect("a good value");
    }
    config
}

/// User-space stack: each piece is a frame, first unchanged, then with valid checksums so that
/// later checks are reached. Nothing panics, no frame is lost, and no frame causes many replies.
pub fn stack(data: &[u8]) {
    for scene in &SCENES {
        play(scene, data);
    }
}

fn play(scene: &Scene, data: &[u8]) {
    let config = config(scene);
    let urls: [PortUrl; 2] = ["a", "b"].map(|end| {
        format!("ring:fuzz,end={end},mtu=2000,rxd=512")
            .parse()
            .expect("a good URL")
    });
    let memory = MEMORY.with_borrow_mut(|memory| {
        let plan = memory_plan(&config, &urls[0]).joined(memory_plan(&config, &urls[1]));
        let plan = MemoryPlan {
            huge: false,
            ..plan
        };
        memory[scene.memory]
            .get_or_insert_with(|| Memory::new(plan).expect("there is memory"))
            .clone()
    });
    let port = |url| open(url, &memory).expect("it can be opened").remove(0);
    let own = Addressing::new(&["10.0.0.1/24", "fd00::1/64"]).expect("good addresses");
    let mut stack = Stack::new(port(&urls[0]), &memory, &config, &own).expect("the ring will do");
    let mut far = port(&urls[1]);
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
    let mut sent = 0u32;
    for piece in Pieces(data).take(64) {
        let row = match piece.last() {
            Some(&count) if scene.rows => 1 + usize::from(count) % MOST_IN_A_ROW,
            _ => 1,
        };
        for right in [false, true] {
            let mut came = 0;
            for place in 0..row {
                let mut bytes = piece[..piece.len().min(2_000)].to_vec();
                if right {
                    if scene.rows {
                        fit(&mut bytes, sent, place, row);
                    }
                    make_right(&mut bytes);
                }
                let Some(mut frame) = pool.allocate() else {
                    break;
                };
                frame.set_len(bytes.len() as u16);
                memory.bytes_mut(&mut frame).copy_from_slice(&bytes);
                let mut burst = Burst::new();
                burst.push(frame).expect("an empty burst has room");
                came += far.transmit.transmit(&mut pool, &mut burst);
                far.transmit.refuse(&mut pool, &mut burst);
            }
            // Long enough for timeouts to expire now and then.
            now += 40_000_000;
            stack.turn(now);
            while let Poll::Ready(socket) = stack.tcp_accept(listener) {
                connections.push(socket.expect("the listener is open"));
            }
            // Sometimes the application does not read for a while.
            let reads = !scene.rows || piece.len().is_multiple_of(3);
            connections.retain(|&socket| {
                let got = match reads {
                    true => stack.tcp_receive(socket, |bytes| (bytes.len(), bytes.len())),
                    false => Poll::Pending,
                };
                let _ = stack.tcp_send(socket, |room| room.len().min(3_000));
                let over = matches!(got, Poll::Ready(Ok(0) | Err(_)));
                if over {
                    stack.close(socket).expect("it is open");
                }
                !over
            });
            if now % 3 == 0 {
                while stack.udp_receive(server, |_, _| ()).is_ready() {}
            }
            let mut answers = 0;
            let mut burst = Burst::new();
            while far.receive.receive(&mut pool, &mut burst) > 0 {
                for frame in burst.frames() {
                    sent = behind(memory.bytes(frame)).unwrap_or(sent);
                }
                answers += pool.free_all(&mut burst);
            }
            assert!(answers <= MOST_ANSWERS * came.max(1), "{answers} answers");
            let _ = stack.next_deadline();
        }
    }
    drop((stack, far));
    let free: Vec<_> = std::iter::from_fn(|| pool.allocate()).collect();
    let missing = memory.frames() as usize - free.len();
    free.into_iter().for_each(|frame| pool.free(frame));
    assert!(
        missing == 0,
        "{missing} frames are lost, of {MOST_HELD} that may be held"
    );
}

fn is_segment(frame: &[u8]) -> bool {
    frame.len() >= HEADS + TCP_HEAD
        && frame[12..14] == [8, 0]
        && frame[14] == 0x45
        && frame[23] == 6
}

fn long(frame: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(frame[at..at + 4].try_into().expect("four bytes"))
}

/// Returns the sequence number after a segment of the stack.
fn behind(frame: &[u8]) -> Option<u32> {
    const SYN: u8 = 0x02;
    const RST: u8 = 0x04;
    if !is_segment(frame) || frame[HEADS + 13] & RST != 0 {
        return None;
    }
    let head = usize::from(frame[HEADS + 12] >> 4) * 4;
    let payload = (frame.len() - HEADS).checked_sub(head)?;
    let syn = u32::from(frame[HEADS + 13] & SYN != 0);
    Some(long(frame, HEADS + 4).wrapping_add(payload as u32 + syn))
}

/// Makes a segment acknowledge the stack's data, or slightly less, and part of a row of full ones.
fn fit(frame: &mut Vec<u8>, sent: u32, place: usize, row: usize) {
    const SYN: u8 = 0x02;
    if !is_segment(frame) || frame[HEADS + 13] & SYN != 0 {
        return;
    }
    let asked = long(frame, HEADS + 8);
    let number = if asked.is_multiple_of(4) {
        sent
    } else {
        sent.wrapping_sub(asked % 5_000)
    };
    frame[HEADS + 8..HEADS + 12].copy_from_slice(&number.to_be_bytes());
    if row > 1 {
        frame.resize(HEADS + TCP_HEAD + FULL, place as u8);
        frame[HEADS + 12] = 5 << 4;
        frame[16..18].copy_from_slice(&((20 + TCP_HEAD + FULL) as u16).to_be_bytes());
        let sequence = long(frame, HEADS + 4).wrapping_add((place * FULL) as u32);
        frame[HEADS + 4..HEADS + 8].copy_from_slice(&sequence.to_be_bytes());
    }
}

/// Sets the Ethernet address of the stack and valid checksums, as far as there are headers.
fn make_right(frame: &mut [u8]) {
    if frame.len() < 14 + 20 {
        return;
    }
    frame[..6].copy_from_slice(&[0x02, 0x6c, 10, 0, 0, 1]);
    if frame[12..14] == [8, 0] {
        let header = usize::from(frame[14] & 0xf) * 4;
        if header >= 20 && frame.len() >= 14 + header {
            let bytes = &mut frame[14..14 + header];
            bytes[10..12].fill(0);
            let sum = !linerate_port::checksum::sum(bytes);
            bytes[10..12].copy_from_slice(&sum.to_ne_bytes());
        }
    }
    linerate_port::checksum::complete(frame);
}

/// Returns frames of an exchange: an ARP request, a datagram, a connection, fragments.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let ethernet = |kind: [u8; 2]| {
        let mut frame = vec![0x02, 0x6c, 10, 0, 0, 1, 0x02, 0x6c, 10, 0, 0, 2];
        frame.extend(kind);
        frame
    };
    let packet = |protocol: u8, place: [u8; 2], body: &[u8]| {
        let mut frame = ethernet([8, 0]);
        frame.extend([
            0x45,
            0,
            0,
            (20 + body.len()) as u8,
            0,
            9,
            place[0],
            place[1],
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
    let agreed = [
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
        packet(6, [0, 0], &agreed),
        packet(1, [0, 0], &too_long),
        packet(6, [0, 0], &reset),
        packet(1, [0, 0], &echo),
        packet(17, [0x20, 0], &[1; 24]),
        packet(17, [0, 3], &[1; 9]),
        solicitation,
    ]
}
