//! Two stacks and a wire between them: what segments that are made long and cut here are to others.

use std::collections::VecDeque;
use std::task::Poll;

use linerate_port::{AnyPort, Burst, Memory, MemoryPlan, Pool, PortUrl, Receive, Transmit, open};

use super::{Stack, memory_plan};
use crate::Nanos;
use crate::addressing::Addressing;
use crate::config::Config;
use crate::socket::SocketId;
use crate::wire::{ETHERNET_BYTES, ETHERTYPE_IPV4, ip, word};

/// A frame, when it was sent, and by which end.
type Sent = (Nanos, usize, Vec<u8>);

struct World {
    ends: [Stack; 2],
    /// The other ends of their cables.
    ports: [AnyPort; 2],
    pool: Pool,
    now: Nanos,
    flying: VecDeque<Sent>,
    /// Of a thousand frames so many are lost.
    loss: u32,
    random: fastrand::Rng,
    sent: Vec<Sent>,
    /// The numbers of what the first end says to have left.
    departures: Vec<u32>,
    /// Turns in which the first end wrote a packet that is longer than those that leave.
    longs: u32,
}

const DELAY: Nanos = 300_000;

/// Descriptors of which a turn leaves some.
const RING: u32 = 4_096;

impl World {
    /// Whose ports have so many descriptors, and whose segments are made one by one, or long where they can be.
    fn new(settings: &[&str], (ring, loss): (u32, u32), single: bool) -> Self {
        let mut config = Config::default();
        for setting in settings {
            config.apply(setting).unwrap();
        }
        let mtu = config.mtu;
        let url = |end: &str| format!("ring:{end},rxd={ring},txd={ring},mtu={mtu}").parse();
        let urls: [PortUrl; 4] =
            ["n,end=a", "n,end=b", "f,end=a", "f,end=b"].map(|end| url(end).unwrap());
        let plan = memory_plan(&config, &urls[0]).joined(memory_plan(&config, &urls[2]));
        let plan = MemoryPlan {
            frames: plan.frames + 20_000,
            huge: false,
            ..plan
        };
        let memory = Memory::new(plan).unwrap();
        let [near, near_port, far, far_port] =
            urls.map(|url| open(&url, &memory).unwrap().remove(0));
        let mut addresses = ["1", "2"].into_iter();
        let ends = [near, far].map(|port| {
            let host = addresses.next().unwrap();
            let own = Addressing::new(&[&format!("10.0.0.{host}/24"), &format!("fd00::{host}/64")]);
            let mut stack = Stack::new(port, &memory, &config, &own.unwrap()).unwrap();
            if single {
                stack.tcp.make_single();
            }
            stack
        });
        Self {
            ends,
            ports: [near_port, far_port],
            pool: memory.pool(),
            now: 1_000_000,
            flying: VecDeque::new(),
            loss,
            random: fastrand::Rng::with_seed(5),
            sent: Vec::new(),
            departures: Vec::new(),
            longs: 0,
        }
    }

    fn turn(&mut self) {
        let mtu = self.ends[0].mtu;
        self.ends[0].link.scratch[..6].fill(0);
        for end in &mut self.ends {
            end.turn(self.now);
        }
        let scratch = &self.ends[0].link.scratch;
        let bytes = match scratch[0] >> 4 {
            6 => ip::V6_BYTES + usize::from(word(scratch, 4)),
            _ => usize::from(word(scratch, 2)),
        };
        self.longs += u32::from(bytes > mtu);
        let departures = &mut self.departures;
        let missed = self.ends[0].departures(|departure| departures.push(departure.number));
        assert_eq!(missed, 0);
        for (from, port) in self.ports.iter_mut().enumerate() {
            let mut burst = Burst::new();
            while port.receive.receive(&mut self.pool, &mut burst) > 0 {
                for frame in burst.frames() {
                    let bytes = self.pool.memory().bytes(frame).to_vec();
                    assert!(bytes.len() <= ETHERNET_BYTES + mtu);
                    self.sent.push((self.now, from, bytes.clone()));
                    if self.random.u32(0..1_000) >= self.loss {
                        self.flying.push_back((self.now, from, bytes));
                    }
                }
                self.pool.free_all(&mut burst);
            }
        }
        self.now += 50_000;
        while let Some((_, from, bytes)) = self
            .flying
            .pop_front_if(|(sent, ..)| *sent + DELAY <= self.now)
        {
            let mut frame = self.pool.allocate().unwrap();
            frame.set_len(bytes.len() as u16);
            self.pool
                .memory()
                .bytes_mut(&mut frame)
                .copy_from_slice(&bytes);
            let mut burst = Burst::new();
            burst.push(frame).unwrap();
            let transmit = &mut self.ports[1 - from].transmit;
            assert_eq!(transmit.transmit(&mut self.pool, &mut burst), 1);
        }
    }

    fn connect(&mut self, to: &str) -> [SocketId; 2] {
        let [near, far] = &mut self.ends;
        let any = ([0, 0, 0, 0], 80).into();
        let listener = far.tcp_listen(any, 1).unwrap();
        let client = near.tcp_connect(to.parse().unwrap(), None).unwrap();
        loop {
            self.turn();
            if let Poll::Ready(server) = self.ends[1].tcp_accept(listener) {
                return [client, server.unwrap()];
            }
        }
    }
}

fn byte(place: usize) -> u8 {
    (place.wrapping_mul(2_654_435_761) >> 13) as u8
}

/// One end's side of a stream: writes what is left in pieces of some length, reads what came.
struct Side {
    socket: SocketId,
    goal: usize,
    written: usize,
    read: usize,
    ended: bool,
}

impl Side {
    fn step(&mut self, stack: &mut Stack, most: usize) {
        let before = self.written;
        while self.written < self.goal && self.written - before < most {
            let from = self.written;
            let wanted = (self.goal - from).min(most);
            let Poll::Ready(wrote) = stack.tcp_send(self.socket, |room| {
                let bytes = room.len().min(wanted);
                for (place, value) in room[..bytes].iter_mut().enumerate() {
                    *value = byte(from + place);
                }
                bytes
            }) else {
                break;
            };
            self.written += wrote.unwrap();
            if self.written == self.goal {
                stack.tcp_finish(self.socket).unwrap();
            }
        }
        while !self.ended
            && let Poll::Ready(got) = stack.tcp_receive(self.socket, |bytes| {
                for (place, value) in bytes.iter().enumerate() {
                    assert_eq!(*value, byte(self.read + place));
                }
                (bytes.len(), bytes.len())
            })
        {
            let got = got.unwrap();
            self.read += got;
            self.ended = got == 0;
        }
    }
}

/// What a stream each way was to others.
#[derive(PartialEq, Eq)]
struct Carried {
    sent: Vec<Sent>,
    departures: Vec<u32>,
    /// Of the first end.
    counters: String,
}

/// Carries one, and counts how often the first end made a long segment.
fn carry(to: &str, settings: &[&str], wire: (u32, u32), single: bool) -> (Carried, u32) {
    let mut world = World::new(settings, wire, single);
    world.ends[0].watch_stages(|| 7, 1_000);
    let mut goal = [500_000, 50_000].into_iter();
    let sockets = world.connect(to);
    let mut sides = sockets.map(|socket| Side {
        socket,
        goal: goal.next().unwrap(),
        written: 0,
        read: 0,
        ended: false,
    });
    let mut writes = fastrand::Rng::with_seed(3);
    let until = world.now + 120_000_000_000;
    while !sides.iter().all(|side| side.ended) {
        assert!(
            world.now < until,
            "{settings:?}, {wire:?}: {:?}",
            world.ends[0].counters().tcp
        );
        for (side, end) in sides.iter_mut().zip(&mut world.ends) {
            side.step(end, writes.usize(1..60_000));
        }
        world.turn();
    }
    let [near, far] = &sides;
    assert_eq!((near.read, far.read), (far.goal, near.goal));
    let counters = world.ends[0].counters();
    assert_eq!(counters.link.out_ring_full, 0);
    let carried = Carried {
        sent: world.sent,
        departures: world.departures,
        counters: format!("{:?}", counters.tcp),
    };
    (carried, world.longs)
}

const V4: &str = "10.0.0.2:80";

/// Of a segment over IPv4 in a frame.
fn payload(frame: &[u8]) -> usize {
    let packet = &frame[ETHERNET_BYTES..];
    let head = usize::from(word(packet, ip::V4_BYTES + 12) >> 12) * 4;
    usize::from(word(packet, 2)) - ip::V4_BYTES - head
}

#[test]
fn on_the_wire_long_segments_are_what_single_ones_are() {
    for settings in [
        &[][..],
        &["tcp.congestion_control=none"],
        &["tcp.congestion_control=reno", "tcp.nagle=off"],
        &["tcp.send_buffer=64K", "tcp.receive_window=64K"],
        &[
            "tcp.send_buffer=30000",
            "tcp.receive_window=99991",
            "tcp.congestion_control=none",
        ],
        &["tcp.psh=always", "tcp.delayed_ack=off"],
        &["tcp.psh=never", "mtu=576", "tcp.send_buffer=100000"],
        &["mtu=3000", "ip.tos=8"],
        &["tcp.mss=1000", "tcp.nagle=off"],
        &["tx_descriptors=13", "rx_descriptors=50"],
        &["checksum=offload", "tcp.congestion_control=none"],
    ] {
        for loss in [0, 10, 50] {
            let (long, made) = carry(V4, settings, (RING, loss), false);
            let (single, never) = carry(V4, settings, (RING, loss), true);
            let case = format!("{settings:?}, loss {loss}");
            assert_eq!(never, 0, "{case}");
            assert!(made > 2 || loss > 0, "{case}: {made}");
            let mut pairs = long.sent.iter().zip(&single.sent);
            let differs = pairs.position(|(one, other)| one != other);
            let frames = (long.sent.len(), single.sent.len());
            assert_eq!((differs, frames.0), (None, frames.1), "{case}");
            assert_eq!(long.counters, single.counters, "{case}");
            assert!(long.departures == single.departures, "{case}");
            let payloads = single.sent.iter().filter(|(_, from, frame)| {
                *from == 0 && word(frame, 12) == ETHERTYPE_IPV4 && payload(frame) > 0
            });
            assert_eq!(long.departures.len(), payloads.count(), "{case}");
        }
    }
}

/// What finds no place waits, or is made later.
#[test]
fn a_short_ring_loses_no_piece() {
    for (ring, makes) in [(4, false), (64, true)] {
        let (_, made) = carry(V4, &["tx_descriptors=200"], (ring, 0), false);
        assert_eq!(made > 0, makes, "{ring}: {made}");
    }
}

/// Where the engine makes none, or they are the port's to cut.
#[test]
fn where_single_segments_are_called_for_none_is_long() {
    for (to, settings) in [
        ("[fd00::2]:80", &[][..]),
        (V4, &["tx_descriptors=7"]),
        (V4, &["tcp.send_buffer=16K"]),
        (V4, &["tcp.receive_window=8K"]),
        (V4, &["mtu=9000"]),
    ] {
        assert_eq!(
            carry(to, settings, (RING, 0), false).1,
            0,
            "{to} {settings:?}"
        );
    }
}
