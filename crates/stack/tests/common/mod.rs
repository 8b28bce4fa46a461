//! Simulation of two stacks in simulated time, with a link that may lose, duplicate and reorder
//! frames.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod device;
pub mod packets;
pub mod router;
pub mod segments;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;

use linerate_port::vnet::VNET_HEADER_BYTES;
use linerate_port::{AnyPort, Burst, Memory, MemoryPlan, Pool, PortUrl, Receive, Transmit};
use linerate_stack::{Addressing, Config, SocketId, Stack, StackError, TcpState, memory_plan};

pub const NEAR: &str = "10.0.0.1";
pub const FAR: &str = "10.0.0.2";
pub const NEAR_V6: &str = "fd00::1";
pub const FAR_V6: &str = "fd00::2";

/// Behaviour of the link. Probabilities in parts per million.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub loss: u32,
    pub duplicate: u32,
    /// Frames that are delayed by up to `shuffle_ns` more.
    pub reorder: u32,
    pub delay_ns: u64,
    pub shuffle_ns: u64,
    pub seed: u64,
}

impl Link {
    pub const CLEAN: Self = Self {
        loss: 0,
        duplicate: 0,
        reorder: 0,
        delay_ns: 50_000,
        shuffle_ns: 0,
        seed: 1,
    };
}

/// Frames in flight in one direction.
struct Flight {
    frames: VecDeque<(u64, Vec<u8>)>,
}

/// Filter called with a frame and the index of its sender; returns whether the frame is delivered.
pub type Watch = Box<dyn FnMut(usize, &mut Vec<u8>) -> bool>;

/// Wire between two ports: it holds the other end of each port's ring.
pub struct Wire {
    ends: [AnyPort; 2],
    pool: Pool,
    flights: [Flight; 2],
    link: Link,
    random: fastrand::Rng,
    /// Called with each frame sent, and the index of its sender; may drop it.
    pub watch: Watch,
    /// Frames were delivered to a stack that has not polled since.
    came: bool,
    /// At each end there is a device that offloads checksums and segmentation.
    devices: bool,
}

impl Wire {
    pub fn carry(&mut self, now: u64) {
        let mut burst = Burst::new();
        for end in 0..2 {
            while self.ends[end].receive.receive(&mut self.pool, &mut burst) > 0 {
                let memory = self.pool.memory();
                let frames = burst.frames().iter().flat_map(|frame| {
                    let bytes = memory.bytes(frame);
                    match self.devices {
                        true => device::frames(bytes),
                        false => vec![bytes.to_vec()],
                    }
                });
                for mut bytes in frames.collect::<Vec<_>>() {
                    if !(self.watch)(end, &mut bytes) || self.chance(self.link.loss) {
                        continue;
                    }
                    let copies = 1 + usize::from(self.chance(self.link.duplicate));
                    for _ in 0..copies {
                        let more = if self.chance(self.link.reorder) {
                            self.random.u64(0..self.link.shuffle_ns.max(1))
                        } else {
                            0
                        };
                        let at = now + self.link.delay_ns + more;
                        let frames = &mut self.flights[end].frames;
                        let place = frames.partition_point(|(other, _)| *other <= at);
                        frames.insert(place, (at, bytes.clone()));
                    }
                }
                self.pool.free_all(&mut burst);
            }
            let other = 1 - end;
            while let Some((at, _)) = self.flights[end].frames.front()
                && *at <= now
            {
                let (_, bytes) = self.flights[end].frames.pop_front().unwrap();
                self.put(other, &bytes);
                self.came = true;
            }
        }
    }

    /// Delivers a frame to a stack, as if it had arrived over the wire.
    pub fn put(&mut self, end: usize, bytes: &[u8]) {
        if self.devices {
            return self.put_as_is(end, &device::closed(bytes));
        }
        self.put_as_is(end, bytes);
    }

    /// Delivers a frame that already has a vnet header.
    pub fn put_as_is(&mut self, end: usize, bytes: &[u8]) {
        let Some(mut frame) = self.pool.allocate() else {
            return;
        };
        frame.set_len(bytes.len() as u16);
        self.pool
            .memory()
            .bytes_mut(&mut frame)
            .copy_from_slice(bytes);
        let mut burst = Burst::new();
        burst.push(frame).unwrap();
        let transmit = &mut self.ends[end].transmit;
        transmit.transmit(&mut self.pool, &mut burst);
        transmit.refuse(&mut self.pool, &mut burst);
    }

    fn chance(&mut self, parts: u32) -> bool {
        parts > 0 && self.random.u32(0..1_000_000) < parts
    }

    /// Returns when the next frame arrives.
    pub fn next(&self) -> Option<u64> {
        let first = |flight: &Flight| flight.frames.front().map(|(at, _)| *at);
        self.flights.iter().filter_map(first).min()
    }

    pub fn in_flight(&self) -> usize {
        self.flights.iter().map(|flight| flight.frames.len()).sum()
    }
}

/// Simulation of two stacks, `near` and `far`, with a wire between them and a clock of its own.
pub struct World {
    pub near: Stack,
    pub far: Stack,
    pub wire: Wire,
    pub now: u64,
}

pub fn config(settings: &[&str]) -> Config {
    let mut config = Config::default();
    for setting in settings {
        config.apply(setting).unwrap();
    }
    config
}

pub fn addressing(address: &str, address_v6: &str) -> Addressing {
    Addressing::new(&[&format!("{address}/24"), &format!("{address_v6}/64")]).unwrap()
}

/// Captured frames.
pub type Frames = Rc<RefCell<Vec<Vec<u8>>>>;

impl World {
    /// Captures the frames selected by `is_meant`, by index of the sender, from now on; none is
    /// dropped.
    pub fn kept(&mut self, is_meant: impl Fn(usize, &[u8]) -> bool + 'static) -> Frames {
        let kept = Frames::default();
        let list = Rc::clone(&kept);
        self.wire.watch = Box::new(move |end, frame| {
            if is_meant(end, frame) {
                list.borrow_mut().push(frame.clone());
            }
            true
        });
        kept
    }

    pub fn new(near: &Config, far: &Config, link: Link) -> Self {
        Self::between(near, far, link, &addressing(FAR, FAR_V6))
    }

    /// Creates a simulation with other addresses of the remote stack.
    pub fn between(near: &Config, far: &Config, link: Link, far_own: &Addressing) -> Self {
        let mtu = near.mtu.max(far.mtu);
        Self::over(near, far, link, far_own, (mtu, 4_096, 20_000))
    }

    /// Creates two equal stacks, each over a device that offloads checksums and segmentation.
    pub fn with_devices(settings: &[&str], link: Link) -> Self {
        let mut config = config(settings);
        config.apply("checksum=offload").unwrap();
        let own = addressing(FAR, FAR_V6);
        Self::over(&config, &config, link, &own, (65_000, 256, 1_000))
    }

    /// Creates a simulation over ports with this MTU, number of descriptors, and number of spare
    /// frames. If the MTU exceeds that of the stacks, devices segment the packets.
    fn over(
        near: &Config,
        far: &Config,
        link: Link,
        far_own: &Addressing,
        (mtu, descriptors, frames): (u16, u32, u32),
    ) -> Self {
        let devices = mtu > near.mtu.max(far.mtu);
        let url = |text: &str| -> PortUrl {
            let keys = format!("mtu={mtu},rxd={descriptors},txd={descriptors}");
            format!("{text},{keys}").parse().unwrap()
        };
        let urls = [
            url("ring:n,end=a"),
            url("ring:n,end=b"),
            url("ring:f,end=a"),
            url("ring:f,end=b"),
        ];
        let plan = memory_plan(near, &urls[0]).joined(memory_plan(far, &urls[2]));
        let memory = Memory::new(MemoryPlan {
            frames: plan.frames + frames,
            huge: false,
            ..plan
        })
        .unwrap();
        let mut ports = urls
            .iter()
            .map(|url| linerate_port::open(url, &memory).unwrap().remove(0))
            .collect::<VecDeque<_>>();
        if devices {
            for port in &mut ports {
                port.capabilities.vnet_header = VNET_HEADER_BYTES as u8;
            }
        }
        let mut next = || ports.pop_front().unwrap();
        let near_stack = Stack::new(next(), &memory, near, &addressing(NEAR, NEAR_V6)).unwrap();
        let near_end = next();
        let far_stack = Stack::new(next(), &memory, far, far_own).unwrap();
        let far_end = next();
        Self {
            near: near_stack,
            far: far_stack,
            wire: Wire {
                ends: [near_end, far_end],
                pool: memory.pool(),
                flights: [0, 1].map(|_| Flight {
                    frames: VecDeque::new(),
                }),
                link,
                random: fastrand::Rng::with_seed(link.seed),
                watch: Box::new(|_, _| true),
                came: false,
                devices,
            },
            now: 1_000_000,
        }
    }

    /// Creates two equal stacks.
    pub fn alike(settings: &[&str], link: Link) -> Self {
        let config = config(settings);
        Self::new(&config, &config, link)
    }

    /// Creates two equal stacks over ports with this many descriptors.
    pub fn on_rings(settings: &[&str], link: Link, descriptors: u32) -> Self {
        let config = config(settings);
        let own = addressing(FAR, FAR_V6);
        let shape = (config.mtu, descriptors, 20_000);
        Self::over(&config, &config, link, &own, shape)
    }

    /// Drops the simulation and returns the number of frames that were not returned to the pool.
    pub fn lost_frames(self) -> usize {
        let Wire { ends, mut pool, .. } = self.wire;
        drop((self.near, self.far, ends));
        let home = std::iter::from_fn(|| pool.allocate()).count();
        pool.memory().frames() as usize - home
    }

    /// Polls both stacks once, at the present time.
    pub fn turn(&mut self) {
        self.near.turn(self.now);
        self.far.turn(self.now);
        self.wire.carry(self.now);
    }

    /// Advances the time to the next event, by a millisecond at most. A stack with delivered frames
    /// polls at once: it would otherwise wait for the next event, and the round trip would be
    /// longer than the link's.
    pub fn pass(&mut self) {
        if std::mem::take(&mut self.wire.came) {
            self.now += 1_000;
            return;
        }
        let next = [
            self.near.next_deadline(),
            self.far.next_deadline(),
            self.wire.next(),
        ];
        let next = next.into_iter().flatten().min();
        let next = next.unwrap_or(u64::MAX).max(self.now + 1_000);
        self.now = next.min(self.now + 1_000_000);
    }

    pub fn run(&mut self, turns: usize) {
        for _ in 0..turns {
            self.turn();
            self.pass();
        }
    }

    /// Runs until `done`, or panics when simulated `seconds` are over.
    pub fn until(&mut self, seconds: u64, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.now + seconds * 1_000_000_000;
        while !done(self) {
            assert!(
                self.now < end,
                "not within {seconds} s: {:#?}",
                self.near.counters().tcp
            );
            self.turn();
            self.pass();
        }
    }

    /// Runs until both stacks have announced their addresses and are idle.
    pub fn announced(mut self) -> Self {
        self.until(5, |world| {
            world.near.next_deadline().is_none() && world.far.next_deadline().is_none()
        });
        // The last announcements arrive.
        self.run(20);
        self
    }

    /// Establishes a connection from the local to the remote stack.
    pub fn connected(&mut self, port: u16) -> (SocketId, SocketId) {
        let listener = self.far.tcp_listen(any(port), 8).unwrap();
        let pair = self.connect_to(listener, at(FAR, port));
        self.far.close(listener).unwrap();
        pair
    }

    pub fn connect_to(&mut self, listener: SocketId, to: SocketAddr) -> (SocketId, SocketId) {
        let client = self.near.tcp_connect(to, None).unwrap();
        let mut server = None;
        self.until(20, |world| {
            if let Poll::Ready(accepted) = world.far.tcp_accept(listener) {
                server = Some(accepted.unwrap());
            }
            server.is_some() && world.near.tcp_state(client).unwrap() == TcpState::Established
        });
        (client, server.unwrap())
    }
}

pub fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

pub fn any(port: u16) -> SocketAddr {
    at("0.0.0.0", port)
}

/// Returns the byte at a position of a stream.
pub fn byte(place: usize) -> u8 {
    (place.wrapping_mul(2_654_435_761) >> 13) as u8
}

/// End of a bulk transfer: sends `send` bytes and checks those received.
pub struct Bulk {
    pub socket: SocketId,
    pub send: usize,
    /// Maximum number of bytes written in one step.
    pub most: usize,
    pub sent: usize,
    pub received: usize,
    pub ended: bool,
    finished: bool,
}

impl Bulk {
    pub fn new(socket: SocketId, send: usize) -> Self {
        Self {
            socket,
            send,
            most: usize::MAX,
            sent: 0,
            received: 0,
            ended: false,
            finished: false,
        }
    }

    /// Sends and receives as much as possible; finishes sending after the last byte.
    pub fn step(&mut self, stack: &mut Stack) {
        let end = self.send.min(self.sent.saturating_add(self.most));
        while self.sent < end {
            let (from, most) = (self.sent, end - self.sent);
            let sent = stack.tcp_send(self.socket, |room| {
                let room_bytes = room.len().min(most);
                for (number, place) in room[..room_bytes].iter_mut().enumerate() {
                    *place = byte(from + number);
                }
                room_bytes
            });
            match sent {
                Poll::Ready(sent) => self.sent += sent.unwrap(),
                Poll::Pending => break,
            }
        }
        if self.sent == self.send && !self.finished {
            stack.tcp_finish(self.socket).unwrap();
            self.finished = true;
        }
        while !self.ended {
            let from = self.received;
            let got = stack.tcp_receive(self.socket, |bytes| {
                let wrong = (0..bytes.len()).find(|&number| bytes[number] != byte(from + number));
                assert_eq!(wrong, None, "content differs behind {from}");
                (bytes.len(), bytes.len())
            });
            match got {
                Poll::Ready(Ok(0)) => self.ended = true,
                Poll::Ready(Ok(count)) => self.received += count,
                Poll::Ready(Err(error)) => panic!("{error} after {from}"),
                Poll::Pending => break,
            }
        }
    }
}

pub fn ready<T>(poll: Poll<Result<T, StackError>>) -> T {
    match poll {
        Poll::Ready(result) => result.unwrap(),
        Poll::Pending => panic!("nothing could be done"),
    }
}
