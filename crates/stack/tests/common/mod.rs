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

use linerate_packet::vnet::VNET_HEADER_BYTES;
use linerate_port::{AnyPort, PortUrl, RxQueue, TxQueue};
use linerate_stack::{
    SocketId, Stack, StackAddressing, StackConfig, StackError, TcpState, memory_plan,
};
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::{FrameRegion, MemoryPlan};
use linerate_sys::frames::frame_pool::FramePool;

pub const LOCAL: &str = "10.0.0.1";
pub const REMOTE: &str = "10.0.0.2";
pub const LOCAL_V6: &str = "fd00::1";
pub const REMOTE_V6: &str = "fd00::2";

/// Behaviour of the link. Probabilities in parts per million.
#[derive(Clone, Copy, Debug)]
pub struct LinkModel {
    pub loss: u32,
    pub duplicate: u32,
    /// Frames that are delayed by up to `shuffle_ns` more.
    pub reorder: u32,
    pub delay_ns: u64,
    pub shuffle_ns: u64,
    pub seed: u64,
}

impl LinkModel {
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
struct FramesInFlight {
    frames: VecDeque<(u64, Vec<u8>)>,
}

/// Filter called with a frame and the index of its sender; returns whether the frame is delivered.
pub type FrameFilter = Box<dyn FnMut(usize, &mut Vec<u8>) -> bool>;

/// Wire between two ports: it holds the other end of each port's ring.
pub struct SimulatedWire {
    ports: [AnyPort; 2],
    pool: FramePool,
    in_flight: [FramesInFlight; 2],
    link: LinkModel,
    random: fastrand::Rng,
    /// Called with each frame sent, and the index of its sender; may drop it.
    pub filter: FrameFilter,
    /// Frames were delivered to a stack that has not polled since.
    has_delivered: bool,
    /// At each end there is a device that offloads checksums and segmentation.
    has_devices: bool,
}

impl SimulatedWire {
    pub fn transfer(&mut self, now: u64) {
        let mut burst = Burst::new();
        for end in 0..2 {
            while self.ports[end].receive.receive(&mut self.pool, &mut burst) > 0 {
                let memory = self.pool.memory();
                let frames = burst.frames().iter().flat_map(|frame| {
                    let bytes = memory.bytes(frame);
                    match self.has_devices {
                        true => device::split_frame(bytes),
                        false => vec![bytes.to_vec()],
                    }
                });
                for mut bytes in frames.collect::<Vec<_>>() {
                    if !(self.filter)(end, &mut bytes) || self.chance(self.link.loss) {
                        continue;
                    }
                    let copies = 1 + usize::from(self.chance(self.link.duplicate));
                    for _ in 0..copies {
                        let extra_ns = if self.chance(self.link.reorder) {
                            self.random.u64(0..self.link.shuffle_ns.max(1))
                        } else {
                            0
                        };
                        let arrives_at = now + self.link.delay_ns + extra_ns;
                        let frames = &mut self.in_flight[end].frames;
                        let index =
                            frames.partition_point(|(other_end, _)| *other_end <= arrives_at);
                        frames.insert(index, (arrives_at, bytes.clone()));
                    }
                }
                self.pool.free_all(&mut burst);
            }
            let other_end = 1 - end;
            while let Some((arrives_at, _)) = self.in_flight[end].frames.front()
                && *arrives_at <= now
            {
                let (_, bytes) = self.in_flight[end].frames.pop_front().unwrap();
                self.deliver(other_end, &bytes);
                self.has_delivered = true;
            }
        }
    }

    /// Delivers a frame to a stack, as if it had arrived over the wire.
    pub fn deliver(&mut self, end: usize, bytes: &[u8]) {
        if self.has_devices {
            return self.deliver_raw(end, &device::with_vnet_header(bytes));
        }
        self.deliver_raw(end, bytes);
    }

    /// Delivers a frame that already has a vnet header.
    pub fn deliver_raw(&mut self, end: usize, bytes: &[u8]) {
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
        let transmit = &mut self.ports[end].transmit;
        transmit.transmit(&mut self.pool, &mut burst);
        transmit.drop_unsent(&mut self.pool, &mut burst);
    }

    fn chance(&mut self, parts: u32) -> bool {
        parts > 0 && self.random.u32(0..1_000_000) < parts
    }

    /// Returns when the next frame arrives.
    pub fn next_arrival(&self) -> Option<u64> {
        let first = |flight: &FramesInFlight| flight.frames.front().map(|(position, _)| *position);
        self.in_flight.iter().filter_map(first).min()
    }

    pub fn frames_in_flight(&self) -> usize {
        self.in_flight
            .iter()
            .map(|flight| flight.frames.len())
            .sum()
    }
}

/// Simulation of two stacks, `local` and `remote`, with a wire between them and a clock of its own.
pub struct TwoStackSim {
    pub local: Stack,
    pub remote: Stack,
    pub wire: SimulatedWire,
    pub now: u64,
}

pub fn config(settings: &[&str]) -> StackConfig {
    let mut config = StackConfig::default();
    for setting in settings {
        config.apply(setting).unwrap();
    }
    config
}

pub fn addressing(address: &str, address_v6: &str) -> StackAddressing {
    StackAddressing::new(&[&format!("{address}/24"), &format!("{address_v6}/64")]).unwrap()
}

/// Captured frames.
pub type CapturedFrames = Rc<RefCell<Vec<Vec<u8>>>>;

impl TwoStackSim {
    /// Captures the frames selected by `is_selected`, by index of the sender, from now on; none is
    /// dropped.
    pub fn capture(
        &mut self,
        is_selected: impl Fn(usize, &[u8]) -> bool + 'static,
    ) -> CapturedFrames {
        let captured = CapturedFrames::default();
        let frames = Rc::clone(&captured);
        self.wire.filter = Box::new(move |end, frame| {
            if is_selected(end, frame) {
                frames.borrow_mut().push(frame.clone());
            }
            true
        });
        captured
    }

    pub fn new(local: &StackConfig, remote: &StackConfig, link: LinkModel) -> Self {
        Self::with_remote_addressing(local, remote, link, &addressing(REMOTE, REMOTE_V6))
    }

    /// Creates a simulation with other addresses of the remote stack.
    pub fn with_remote_addressing(
        local: &StackConfig,
        remote: &StackConfig,
        link: LinkModel,
        remote_addressing: &StackAddressing,
    ) -> Self {
        let mtu = local.mtu.max(remote.mtu);
        Self::over_ports(local, remote, link, remote_addressing, (mtu, 4_096, 20_000))
    }

    /// Creates two equal stacks, each over a device that offloads checksums and segmentation.
    pub fn with_devices(settings: &[&str], link: LinkModel) -> Self {
        let mut config = config(settings);
        config.apply("checksum=offload").unwrap();
        let own = addressing(REMOTE, REMOTE_V6);
        Self::over_ports(&config, &config, link, &own, (65_000, 256, 1_000))
    }

    /// Creates a simulation over ports with this MTU, number of descriptors, and number of spare
    /// frames. If the MTU exceeds that of the stacks, devices segment the packets.
    fn over_ports(
        local: &StackConfig,
        remote: &StackConfig,
        link: LinkModel,
        remote_addressing: &StackAddressing,
        (mtu, descriptors, frames): (u16, u32, u32),
    ) -> Self {
        let devices = mtu > local.mtu.max(remote.mtu);
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
        let plan = memory_plan(local, &urls[0]).combine(memory_plan(remote, &urls[2]));
        let memory = FrameRegion::new(MemoryPlan {
            frames: plan.frames + frames,
            huge_pages: false,
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
        let local_stack = Stack::new(next(), &memory, local, &addressing(LOCAL, LOCAL_V6)).unwrap();
        let local_wire_end = next();
        let remote_stack = Stack::new(next(), &memory, remote, remote_addressing).unwrap();
        let remote_wire_end = next();
        Self {
            local: local_stack,
            remote: remote_stack,
            wire: SimulatedWire {
                ports: [local_wire_end, remote_wire_end],
                pool: memory.pool(),
                in_flight: [0, 1].map(|_| FramesInFlight {
                    frames: VecDeque::new(),
                }),
                link,
                random: fastrand::Rng::with_seed(link.seed),
                filter: Box::new(|_, _| true),
                has_delivered: false,
                has_devices: devices,
            },
            now: 1_000_000,
        }
    }

    /// Creates two equal stacks.
    pub fn symmetric(settings: &[&str], link: LinkModel) -> Self {
        let config = config(settings);
        Self::new(&config, &config, link)
    }

    /// Creates two equal stacks over ports with this many descriptors.
    pub fn with_descriptors(settings: &[&str], link: LinkModel, descriptors: u32) -> Self {
        let config = config(settings);
        let own = addressing(REMOTE, REMOTE_V6);
        let ring_shape = (config.mtu, descriptors, 20_000);
        Self::over_ports(&config, &config, link, &own, ring_shape)
    }

    /// Drops the simulation and returns the number of frames that were not returned to the pool.
    pub fn leaked_frames(self) -> usize {
        let SimulatedWire {
            ports: addresses,
            mut pool,
            ..
        } = self.wire;
        drop((self.local, self.remote, addresses));
        let free_frames = std::iter::from_fn(|| pool.allocate()).count();
        pool.memory().frames() as usize - free_frames
    }

    /// Polls both stacks once, at the present time.
    pub fn poll(&mut self) {
        self.local.poll(self.now);
        self.remote.poll(self.now);
        self.wire.transfer(self.now);
    }

    /// Advances the time to the next event, by a millisecond at most. A stack with delivered frames
    /// polls at once: it would otherwise wait for the next event, and the round trip would be
    /// longer than the link's.
    pub fn advance(&mut self) {
        if std::mem::take(&mut self.wire.has_delivered) {
            self.now += 1_000;
            return;
        }
        let next = [
            self.local.next_deadline(),
            self.remote.next_deadline(),
            self.wire.next_arrival(),
        ];
        let next = next.into_iter().flatten().min();
        let next = next.unwrap_or(u64::MAX).max(self.now + 1_000);
        self.now = next.min(self.now + 1_000_000);
    }

    pub fn run(&mut self, polls: usize) {
        for _ in 0..polls {
            self.poll();
            self.advance();
        }
    }

    /// Runs until `done`, or panics when simulated `seconds` are over.
    pub fn run_until(&mut self, seconds: u64, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.now + seconds * 1_000_000_000;
        while !done(self) {
            assert!(
                self.now < end,
                "not within {seconds} s: {:#?}",
                self.local.counters().tcp
            );
            self.poll();
            self.advance();
        }
    }

    /// Runs until both stacks have announced their addresses and are idle.
    pub fn after_announcements(mut self) -> Self {
        self.run_until(5, |sim| {
            sim.local.next_deadline().is_none() && sim.remote.next_deadline().is_none()
        });
        // The last announcements arrive.
        self.run(20);
        self
    }

    /// Establishes a connection from the local to the remote stack.
    pub fn connect(&mut self, port: u16) -> (SocketId, SocketId) {
        let listener = self.remote.tcp_listen(any_address(port), 8).unwrap();
        let pair = self.connect_to(listener, socket_address(REMOTE, port));
        self.remote.close(listener).unwrap();
        pair
    }

    pub fn connect_to(&mut self, listener: SocketId, to: SocketAddr) -> (SocketId, SocketId) {
        let client = self.local.tcp_connect(to, None).unwrap();
        let mut server = None;
        self.run_until(20, |sim| {
            if let Poll::Ready(accepted) = sim.remote.tcp_accept(listener) {
                server = Some(accepted.unwrap());
            }
            server.is_some() && sim.local.tcp_state(client).unwrap() == TcpState::Established
        });
        (client, server.unwrap())
    }
}

pub fn socket_address(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

pub fn any_address(port: u16) -> SocketAddr {
    socket_address("0.0.0.0", port)
}

/// Returns the byte at a position of a stream.
pub fn pattern_byte(position: usize) -> u8 {
    (position.wrapping_mul(2_654_435_761) >> 13) as u8
}

/// End of a bulk transfer: sends `send` bytes and checks those received.
pub struct BulkTransfer {
    pub socket: SocketId,
    pub send: usize,
    /// Maximum number of bytes written in one step.
    pub max_write: usize,
    pub sent: usize,
    pub received: usize,
    pub has_received_end: bool,
    has_finished: bool,
}

impl BulkTransfer {
    pub fn new(socket: SocketId, send: usize) -> Self {
        Self {
            socket,
            send,
            max_write: usize::MAX,
            sent: 0,
            received: 0,
            has_received_end: false,
            has_finished: false,
        }
    }

    /// Sends and receives as much as possible; finishes sending after the last byte.
    pub fn step(&mut self, stack: &mut Stack) {
        let end = self.send.min(self.sent.saturating_add(self.max_write));
        while self.sent < end {
            let (from, limit) = (self.sent, end - self.sent);
            let sent = stack.tcp_send(self.socket, |space| {
                let space_bytes = space.len().min(limit);
                for (number, slot) in space[..space_bytes].iter_mut().enumerate() {
                    *slot = pattern_byte(from + number);
                }
                space_bytes
            });
            match sent {
                Poll::Ready(sent) => self.sent += sent.unwrap(),
                Poll::Pending => break,
            }
        }
        if self.sent == self.send && !self.has_finished {
            stack.tcp_finish(self.socket).unwrap();
            self.has_finished = true;
        }
        while !self.has_received_end {
            let from = self.received;
            let got = stack.tcp_receive(self.socket, |bytes| {
                let wrong =
                    (0..bytes.len()).find(|&number| bytes[number] != pattern_byte(from + number));
                assert_eq!(wrong, None, "content differs behind {from}");
                (bytes.len(), bytes.len())
            });
            match got {
                Poll::Ready(Ok(0)) => self.has_received_end = true,
                Poll::Ready(Ok(count)) => self.received += count,
                Poll::Ready(Err(error)) => panic!("{error} after {from}"),
                Poll::Pending => break,
            }
        }
    }
}

pub fn expect_ready<T>(poll: Poll<Result<T, StackError>>) -> T {
    match poll {
        Poll::Ready(result) => result.unwrap(),
        Poll::Pending => panic!("nothing could be done"),
    }
}
