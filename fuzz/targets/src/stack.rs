//! Frames that come to our own stack.

use std::cell::RefCell;
use std::task::Poll;

use linerate_port::{Burst, Memory, MemoryPlan, PortUrl, Receive, Transmit, open};
use linerate_stack::{Addressing, Config, Stack, memory_plan};

use crate::Pieces;

/// Answers to one frame at most: a reset, an unreachable port, neighbours asked; an echo in fragments.
const MOST_ANSWERS: usize = 150;
/// Frames that wait in queues of sockets and for neighbours.
const MOST_HELD: usize = 2_000;

thread_local! {
    static MEMORY: RefCell<Option<Memory>> = const { RefCell::new(None) };
}

fn config() -> Config {
    let mut config = Config::profile("embedded-tuned").expect("it is shipped");
    config
        .apply("ip.reassembly_buffers.bytes=65535")
        .expect("a good value");
    config
}

/// Each piece is a frame: first as it is, then with its sums made right, so that what lies behind them is
/// reached. Nothing panics, nothing is lost, and no frame is answered by many.
pub fn stack(data: &[u8]) {
    let config = config();
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
        memory
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
    for piece in Pieces(data).take(64) {
        for right in [false, true] {
            let length = piece.len().min(2_000);
            let mut frame = pool.allocate().expect("nothing is lost");
            frame.set_len(length as u16);
            let bytes = memory.bytes_mut(&mut frame);
            bytes.copy_from_slice(&piece[..length]);
            if right {
                make_right(bytes);
            }
            let mut burst = Burst::new();
            burst.push(frame).expect("an empty burst has room");
            far.transmit.transmit(&mut pool, &mut burst);
            assert!(burst.is_empty());
            // Long enough that what waits is given up now and then.
            now += 40_000_000;
            stack.turn(now);
            while let Poll::Ready(socket) = stack.tcp_accept(listener) {
                connections.push(socket.expect("the listener is open"));
            }
            connections.retain(|&socket| {
                let got = stack.tcp_receive(socket, |bytes| (bytes.len(), bytes.len()));
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
            while far.receive.receive(&mut pool, &mut burst) > 0 {
                answers += pool.free_all(&mut burst);
            }
            assert!(answers <= MOST_ANSWERS, "{answers} answers");
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

/// Makes the Ethernet address ours and the checksums right, as far as there are headers.
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

/// Frames of a conversation: who has the address, a question, a connection, fragments.
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
    let syn = [
        0x13, 0x88, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0x60, 0x02, 0xff, 0xff, 0, 0, 0, 0, 2, 4, 5, 0xb4,
    ];
    let reset = [
        0x13, 0x88, 0, 7, 0, 0, 0, 2, 0, 0, 0, 0, 0x50, 0x04, 0, 0, 0, 0, 0, 0,
    ];
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
        packet(6, [0, 0], &reset),
        packet(1, [0, 0], &echo),
        packet(17, [0x20, 0], &[1; 24]),
        packet(17, [0, 3], &[1; 9]),
        solicitation,
    ]
}
