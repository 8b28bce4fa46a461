//! `shm:` ports between real processes, some of which are killed.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{memory, numbered, receive, send};
use linerate_port::{AnyPort, DropCause, PeerState, Port, PortError, PortUrl, RxQueue};
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::{FrameRegion, MemoryPlan};
use linerate_sys::frames::frame_pool::FramePool;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Variable with the directory of the rendezvous; each test has its own.
const RUNTIME_DIR: &str = "XDG_RUNTIME_DIR";
/// Variable with the port that a child opens to send all frames back.
const ECHO_URL: &str = "LINERATE_TEST_ECHO";

/// Malicious peer that follows the handshake.
struct Forger {
    connection: OwnedFd,
}

/// Kinds of messages.
const HELLO: u8 = 1;
const JOINED: u8 = 2;
const INCOMPATIBLE: u8 = 4;

/// Memory that a forger writes into, with slots of 1600 bytes.
struct ForgedMemory {
    file: OwnedFd,
    slots: u64,
}

impl Forger {
    fn socket() -> OwnedFd {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    fn path(dir: &Path) -> SocketAddrUnix {
        SocketAddrUnix::new(dir.join("linerate/shm-x.sock")).unwrap()
    }

    /// Connects to the server `shm:x` without sending anything.
    fn connect(dir: &Path) -> Self {
        let connection = Self::socket();
        net::connect(&connection, &Self::path(dir)).unwrap();
        Self { connection }
    }

    /// Listens in place of the server of `shm:x`.
    fn listen(dir: &Path) -> OwnedFd {
        std::fs::create_dir_all(dir.join("linerate")).unwrap();
        let _ = std::fs::remove_file(dir.join("linerate/shm-x.sock"));
        let listener = Self::socket();
        net::bind(&listener, &Self::path(dir)).unwrap();
        net::listen(&listener, 8).unwrap();
        listener
    }

    fn accept(listener: &OwnedFd) -> Option<Self> {
        let connection = net::accept(listener).ok()?;
        Some(Self { connection })
    }

    /// Sends a message of a kind, with a file and frames of 1518 bytes.
    fn send(&self, kind: u8, file: Option<BorrowedFd<'_>>) {
        let mut message = *b"linrt-m\x01\0\0\0\0\0\0\0\0";
        message[8] = kind;
        message[10..12].copy_from_slice(&1518u16.to_ne_bytes());
        let files: Vec<_> = file.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)));
        }
        let buffers = [IoSlice::new(&message)];
        net::sendmsg(
            &self.connection,
            &buffers,
            &mut ancillary,
            SendFlags::empty(),
        )
        .unwrap();
    }

    /// Message of the victim, if there is one: its kind and file.
    fn reply(&self) -> Option<(u8, Option<OwnedFd>)> {
        let mut reply = [0; 16];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [IoSliceMut::new(&mut reply)];
        let flags = RecvFlags::DONTWAIT;
        net::recvmsg(&self.connection, &mut buffers, &mut ancillary, flags).ok()?;
        let mut files = ancillary.drain().filter_map(|part| match part {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let file = files.next();
        Some((reply[8], file))
    }

    /// Joins a server that is polled meanwhile, and returns its memory.
    fn join(&self, server: &mut AnyPort) -> ForgedMemory {
        self.send(HELLO, None);
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            server.refresh().unwrap();
            if let Some((kind, file)) = self.reply() {
                assert_eq!(kind, JOINED);
                return ForgedMemory::of_server(file.expect("memory"));
            }
            assert!(Instant::now() < deadline, "no reply");
        }
    }
}

impl ForgedMemory {
    /// Creates memory with this header in a file of 4 MiB.
    fn create(capacity: u32, slot_bytes: u32) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("forged", flags).unwrap();
        rustix::fs::ftruncate(&file, 4 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let header = [
            &b"linrt-s\x01"[..],
            &capacity.to_ne_bytes(),
            &slot_bytes.to_ne_bytes(),
        ];
        rustix::io::pwrite(&file, &header.concat(), 0).unwrap();
        file
    }

    fn of_server(file: OwnedFd) -> Self {
        let mut header = [0; 16];
        rustix::io::pread(&file, &mut header, 0).unwrap();
        let field = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(field(12), 1600);
        let slots = u64::from(field(8).next_power_of_two());
        Self { file, slots }
    }

    /// Offset of a ring: 0 is the server's, 1 the client's. Its positions come first, on lines of
    /// their own: the sender's, then the receiver's.
    fn ring(&self, ring_index: u64) -> u64 {
        let lengths_bytes = (self.slots * 4).next_multiple_of(128);
        128 + ring_index * (256 + lengths_bytes + (self.slots * 1600).next_multiple_of(128))
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        rustix::io::pwrite(&self.file, bytes, at).unwrap();
    }

    /// Publishes frames of these lengths as the client, which may exceed the slots.
    fn publish(&self, lengths: &[u32]) {
        let written: Vec<u8> = lengths.iter().flat_map(|n| n.to_ne_bytes()).collect();
        self.write(self.ring(1) + 256, &written);
        self.write(self.ring(1), &(lengths.len() as u32).to_ne_bytes());
    }

    /// Writes all positions of both rings.
    fn spoil(&self, position: u32) {
        for at in [0, 128] {
            for ring_index in 0..2 {
                self.write(self.ring(ring_index) + at, &position.to_ne_bytes());
            }
        }
    }
}

/// A length that exceeds the slot is an error of the peer, and only costs that frame.
#[test]
fn lengths_beyond_a_slot_are_dropped() {
    in_own_dir("shm::lengths_beyond_a_slot_are_dropped", |dir| {
        // The memory's frames are longer than those of this port, as another port requires.
        let memory = FrameRegion::new(MemoryPlan {
            frames: 512,
            frame_bytes: 9018,
            ..MemoryPlan::default()
        });
        let memory = memory.unwrap();
        let mut pool = memory.pool();
        let mut server = crate::common::open("shm:x,role=server,mtu=1500", &memory);
        let forger = Forger::connect(dir);
        let shared = forger.join(&mut server);
        shared.publish(&[60, 1600, 1601, 9018, 9019, u32::MAX, 0, 61]);
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut received = Vec::new();
        let mut burst = Burst::new();
        while received.len() < 3 {
            server.receive(&mut pool, &mut burst);
            received.extend(burst.frames().iter().map(|frame| frame.len()));
            pool.free_all(&mut burst);
            assert!(Instant::now() < deadline, "{received:?} came");
        }
        assert_eq!(received, [60, 1600, 61]);
        let counted = server.receive.counters().read();
        let drops = (
            counted.drops_by(DropCause::TooLong),
            counted.drops_by(DropCause::Invalid),
        );
        assert_eq!(drops, (4, 1));
    });
}

/// Positions that a peer has spoiled concern it alone, also when it keeps the memory.
#[test]
fn spoiled_memory_does_not_outlive_its_peer() {
    in_own_dir("shm::spoiled_memory_does_not_outlive_its_peer", |dir| {
        let memory = memory(512);
        let mut pool = memory.pool();
        let mut server = crate::common::open("shm:x,role=server,mtu=1500", &memory);
        let mut kept = Vec::new();
        // The last position looks like that of a full ring.
        for position in [0x8000_0000, 7, u32::MAX, 0_u32.wrapping_sub(1024)] {
            let forger = Forger::connect(dir);
            let shared = forger.join(&mut server);
            shared.spoil(position);
            let mut burst = Burst::new();
            for _ in 0..100 {
                server.receive(&mut pool, &mut burst);
                pool.free_all(&mut burst);
                server.refresh().unwrap();
            }
            drop(forger);
            kept.push(shared);
        }
        let mut client = crate::common::open("shm:x,mtu=1500", &memory);
        let deadline = Instant::now() + Duration::from_secs(10);
        for number in 0..3000 {
            let frame = [numbered(number, 60)];
            if number % 100 == 0 {
                kept.iter().for_each(|shared| shared.spoil(number));
            }
            while client.receive.peer_state() != Some(PeerState::Connected) {
                server.refresh().unwrap();
                client.refresh().unwrap();
                assert!(Instant::now() < deadline, "not connected");
            }
            send(&mut client, &mut pool, &frame);
            assert_eq!(receive(&mut server, &mut pool, 1), frame, "to the server");
            send(&mut server, &mut pool, &frame);
            assert_eq!(receive(&mut client, &mut pool, 1), frame, "to the client");
        }
    });
}

/// A process that speaks no protocol of ours does not stop the server's port.
#[test]
fn nonsense_does_not_stop_a_server() {
    in_own_dir("shm::nonsense_does_not_stop_a_server", |dir| {
        let mut server = crate::common::open("shm:x,role=server", &memory(256));
        let file = std::fs::File::open("/dev/null").unwrap();
        for kind in [0, JOINED, INCOMPATIBLE, 77, u8::MAX] {
            let forger = Forger::connect(dir);
            forger.send(kind, Some(file.as_fd()));
            let deadline = Instant::now() + Duration::from_secs(10);
            let (reply, _) = loop {
                server.refresh().unwrap();
                if let Some(reply) = forger.reply() {
                    break reply;
                }
                assert!(Instant::now() < deadline, "{kind}: no reply");
            };
            assert_eq!(reply, INCOMPATIBLE, "{kind}");
        }
        // Memory of the client is not used, whatever it is.
        let forger = Forger::connect(dir);
        forger.send(HELLO, Some(file.as_fd()));
        forger.join(&mut server);
    });
}

/// Returns the error of a client whose server passes this file.
fn error_with_memory(dir: &Path, url: &str, file: BorrowedFd<'_>) -> PortError {
    let listener = Forger::listen(dir);
    let mut client = crate::common::open(url, &memory(256));
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut forger = None;
    loop {
        if forger.is_none() {
            forger = Forger::accept(&listener);
            if let Some(forger) = &forger {
                forger.send(JOINED, Some(file));
            }
        }
        if let Err(error) = client.refresh() {
            assert_eq!(client.receive.peer_state(), Some(PeerState::NeverConnected));
            return error;
        }
        assert!(Instant::now() < deadline, "not rejected");
    }
}

/// Memory for frames of another length, or for more frames than requested, is rejected before any
/// of it is touched.
#[test]
fn other_memory_is_rejected_untouched() {
    in_own_dir("shm::other_memory_is_rejected_untouched", |dir| {
        for (url, capacity, slot_bytes, names) in [
            ("shm:x,mtu=1500", 64, 64, ["64", "1600"]),
            ("shm:x,mtu=1500", 64, 1728, ["1728", "1600"]),
            ("shm:x,mtu=1500", 1 << 17, 1600, ["rxd=131072", "4096"]),
            ("shm:x,mtu=1500,rxd=8192", 8193, 1600, ["rxd=8193", "8192"]),
            ("shm:x,mtu=1500", 0, 1600, ["rxd=0", "4096"]),
        ] {
            let file = ForgedMemory::create(capacity, slot_bytes);
            let failure = error_with_memory(dir, url, file.as_fd());
            let text = failure.to_string();
            assert!(matches!(failure, PortError::PeerMismatch { .. }), "{text}");
            assert!(names.iter().all(|name| text.contains(name)), "{text}");
            let blocks = rustix::fs::fstat(&file).unwrap().st_blocks;
            assert!(blocks <= 8, "{blocks} blocks of 512 B");
        }
    });
}

/// A server handles one client at a time: one that sends nothing, like a stopped program, blocks
/// others only for a moment.
#[test]
fn a_silent_client_does_not_block_others() {
    in_own_dir("shm::a_silent_client_does_not_block_others", |dir| {
        let memory = memory(256);
        let (mut pool, mut burst) = (memory.pool(), Burst::new());
        let mut server = crate::common::open("shm:x,role=server", &memory);
        let _silent = Forger::connect(dir);
        // The server accepts this one first.
        server.receive.receive(&mut pool, &mut burst);
        let mut client = crate::common::open("shm:x", &memory);
        let deadline = Instant::now() + Duration::from_secs(60);
        while client.receive.peer_state() != Some(PeerState::Connected) {
            assert!(Instant::now() < deadline, "not connected");
            for port in [&mut server, &mut client] {
                port.receive.receive(&mut pool, &mut burst);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// The error of a failed system call is kept, and not that of a later one.
#[test]
fn kernel_errors_keep_their_cause() {
    in_own_dir("shm::kernel_errors_keep_their_cause", |dir| {
        // Not memory, and so without seals: EINVAL (fcntl(2), F_GET_SEALS).
        let file = std::fs::File::open("/dev/null").unwrap();
        let failure = error_with_memory(dir, "shm:x", file.as_fd());
        let PortError::Kernel { source, .. } = &failure else {
            panic!("{failure}");
        };
        assert_eq!(source.kind(), std::io::ErrorKind::InvalidInput, "{source}");
    });
}

/// Not a test: the code of a child process.
#[test]
fn child() {
    let Ok(url) = std::env::var(ECHO_URL) else {
        return;
    };
    let memory = memory(256);
    let mut pool = memory.pool();
    let mut port = crate::common::open(&url, &memory);
    let mut burst = Burst::new();
    loop {
        if port.receive(&mut pool, &mut burst) == 0 {
            std::thread::yield_now();
        }
        while !burst.is_empty() {
            if port.transmit(&mut pool, &mut burst) == 0 {
                std::thread::yield_now();
            }
        }
    }
}

struct Echo(Child);

impl Echo {
    fn start(dir: &Path, url: &str) -> Self {
        let executable = std::env::current_exe().unwrap();
        let child = Command::new(executable)
            .args(["--exact", "shm::child", "--nocapture"])
            .env(RUNTIME_DIR, dir)
            .env(ECHO_URL, url)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// `kill -9`.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a test again in a process of its own, with a directory of its own for the sockets.
fn in_own_dir(name: &str, test: impl FnOnce(&Path)) {
    const INSIDE: &str = "LINERATE_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        let dir = std::env::var_os(RUNTIME_DIR).unwrap();
        return test(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .env(RUNTIME_DIR, dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[14..18].try_into().unwrap())
}

/// Sends numbered frames and receives their echoes.
struct EchoLoop {
    next: u32,
    returned: Vec<u32>,
}

impl EchoLoop {
    fn run(&mut self, port: &mut AnyPort, pool: &mut FramePool, count: usize) {
        let target = self.returned.len() + count;
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut burst = Burst::new();
        while self.returned.len() < target {
            assert!(
                Instant::now() < deadline,
                "{} of {target} came back",
                self.returned.len()
            );
            let memory = pool.memory().clone();
            let mut out = Burst::with_limit(16);
            pool.allocate_burst(&mut out, 16);
            let fresh = out.len();
            for (ahead, frame) in out.frames_mut().iter_mut().enumerate() {
                let bytes = numbered(self.next + ahead as u32, 100);
                frame.set_len(100);
                memory.bytes_mut(frame).copy_from_slice(&bytes);
            }
            port.transmit(pool, &mut out);
            self.next += (fresh - out.len()) as u32;
            pool.free_all(&mut out);
            if port.receive(pool, &mut burst) == 0 {
                std::thread::yield_now();
            }
            for frame in burst.frames() {
                let bytes = memory.bytes(frame);
                assert_eq!(bytes, numbered(number(bytes), 100), "whole frames only");
                self.returned.push(number(bytes));
            }
            pool.free_all(&mut burst);
        }
    }

    /// Receives the echoes that are still on their way.
    fn drain(&mut self, port: &mut AnyPort, pool: &mut FramePool) {
        let all = |_: &[u8]| true;
        let remaining =
            crate::common::receive_within(port, pool, usize::MAX, Duration::from_millis(500), all);
        self.returned
            .extend(remaining.iter().map(|frame| number(frame)));
    }
}

fn echo_with_killed_peer(dir: &Path, own_url: &str, peer_url: &str) {
    let memory = memory(512);
    let mut pool = memory.pool();
    let mut port = crate::common::open(own_url, &memory);
    let mut echo_loop = EchoLoop {
        next: 0,
        returned: Vec::new(),
    };
    const KILLS: usize = 4;
    let mut echo = Echo::start(dir, peer_url);
    for round in 0..KILLS {
        echo_loop.run(&mut port, &mut pool, 3000 + round * 777);
        echo.kill();
        echo = Echo::start(dir, peer_url);
    }
    echo_loop.run(&mut port, &mut pool, 3000);
    echo_loop.drain(&mut port, &mut pool);
    port.refresh().unwrap();
    let outages = port.receive.peer_outages();
    assert_eq!(outages.len(), KILLS);
    for outage in &outages {
        assert!(outage.until > Some(outage.from), "{outages:?}");
    }
    echo.kill();
    port.refresh().unwrap();
    let last = port.receive.peer_outages().pop().unwrap();
    assert_eq!(last.until, None, "not reconnected");

    assert!(
        echo_loop
            .returned
            .is_sorted_by(|earlier, later| earlier < later),
        "in order, and none twice"
    );
    let lost = echo_loop.next as usize - echo_loop.returned.len();
    assert!(lost <= KILLS * 32, "{lost} lost in {KILLS} deaths");
    // All frames are free again: the survivor has lost none of its own.
    let free = std::iter::from_fn(|| pool.allocate()).count();
    assert_eq!(free, 512);
}

#[test]
fn a_client_may_be_killed_and_come_back() {
    in_own_dir("shm::a_client_may_be_killed_and_come_back", |dir| {
        echo_with_killed_peer(dir, "shm:x,role=server,rxd=64", "shm:x");
    });
}

#[test]
fn a_server_may_be_killed_and_come_back() {
    in_own_dir("shm::a_server_may_be_killed_and_come_back", |dir| {
        echo_with_killed_peer(dir, "shm:x,rxd=64", "shm:x,role=server,rxd=64");
    });
}

#[test]
fn either_side_may_come_first() {
    in_own_dir("shm::either_side_may_come_first", |_| {
        let memory = memory(512);
        let mut pool = memory.pool();
        for (first, second) in [
            ("shm:a", "shm:a,role=server"),
            ("shm:b,role=server", "shm:b"),
        ] {
            let mut one = crate::common::open(first, &memory);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(one.receive(&mut pool, &mut Burst::new()), 0);
            let mut second_port = crate::common::open(second, &memory);
            // Both connect as they are polled; normally each has its own thread.
            let deadline = Instant::now() + Duration::from_secs(10);
            let mut burst = Burst::new();
            pool.allocate_burst(&mut burst, 1);
            burst.frames_mut()[0].set_len(60);
            while one.transmit(&mut pool, &mut burst) == 0 {
                second_port.receive(&mut pool, &mut Burst::new());
                assert!(Instant::now() < deadline, "not connected");
            }
            while second_port.receive(&mut pool, &mut burst) == 0 {
                assert!(Instant::now() < deadline, "not received");
            }
            pool.free_all(&mut burst);
            send(
                &mut second_port,
                &mut pool,
                &[numbered(1, 1518), numbered(2, 60)],
            );
            let arrived = receive(&mut one, &mut pool, 2);
            assert_eq!(arrived, [numbered(1, 1518), numbered(2, 60)]);
        }
    });
}

#[test]
fn queues_have_rings_of_their_own() {
    in_own_dir("shm::queues_have_rings_of_their_own", |_| {
        let memory = memory(512);
        let mut pool = memory.pool();
        let open = |url: &str| {
            let url: PortUrl = url.parse().unwrap();
            linerate_port::open(&url, &memory).unwrap()
        };
        let (mut servers, mut clients) =
            (open("shm:m,role=server,queues=2"), open("shm:m,queues=2"));
        for queue in 0..2 {
            let deadline = Instant::now() + Duration::from_secs(10);
            let mut burst = Burst::new();
            pool.allocate_burst(&mut burst, 1);
            burst.frames_mut()[0].set_len(60 + queue as u16);
            while servers[queue].transmit(&mut pool, &mut burst) == 0 {
                clients[queue].receive(&mut pool, &mut Burst::new());
                assert!(Instant::now() < deadline, "not connected");
            }
            while clients[queue].receive(&mut pool, &mut burst) == 0 {
                assert!(Instant::now() < deadline, "not received");
            }
            assert_eq!(burst.frames()[0].len(), 60 + queue as u16);
            assert_eq!(
                clients[1 - queue]
                    .receive
                    .receive(&mut pool, &mut Burst::new()),
                0
            );
            pool.free_all(&mut burst);
        }
    });
}

#[test]
fn a_name_in_use_is_reported() {
    in_own_dir("shm::a_name_in_use_is_reported", |dir| {
        let memory = memory(512);
        let mut pool = memory.pool();
        let mut server = crate::common::open("shm:x,role=server", &memory);
        let second = crate::common::try_open("shm:x,role=server", &memory).map(|_| ());
        assert!(matches!(second, Err(PortError::InUse { .. })));
        let _echo = Echo::start(dir, "shm:x");
        send(&mut server, &mut pool, &[numbered(0, 60)]);
        assert_eq!(receive(&mut server, &mut pool, 1).len(), 1);
        // A second client gets an error.
        let mut second_client = crate::common::open("shm:x", &memory);
        let deadline = Instant::now() + Duration::from_secs(10);
        let failure = loop {
            server.receive(&mut pool, &mut Burst::new());
            if let Err(error) = second_client.refresh() {
                break error;
            }
            assert!(Instant::now() < deadline, "no error for the second client");
        };
        assert!(matches!(failure, PortError::InUse { .. }), "{failure}");
        drop((second_client, server));
        // Only files of the killed child's side may be left.
        assert_eq!(std::fs::read_dir(dir.join("linerate")).unwrap().count(), 0);
    });
}

/// With different frame lengths the longer frames would be lost: the client gets an error, and the
/// server waits for another.
#[test]
fn other_frame_lengths_are_rejected() {
    in_own_dir("shm::other_frame_lengths_are_rejected", |_| {
        let memory = memory(256);
        let mut pool = memory.pool();
        let mut server = crate::common::open("shm:x,role=server,mtu=1500", &memory);
        let mut meet = |url: &str| -> Result<(), PortError> {
            let mut client = crate::common::open(url, &memory);
            let deadline = Instant::now() + Duration::from_secs(10);
            loop {
                server.receive(&mut pool, &mut Burst::new());
                server.refresh().expect("the error is the client's");
                client
                    .receive
                    .receive(&mut memory.pool(), &mut Burst::new());
                client.refresh()?;
                if client.receive.peer_state() == Some(PeerState::Connected) {
                    return Ok(());
                }
                assert!(Instant::now() < deadline, "not connected: {url}");
            }
        };
        // Also by so little that the slots of both have the same size.
        for mtu in [1000, 1490, 1501] {
            let error = meet(&format!("shm:x,mtu={mtu}")).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, PortError::PeerMismatch { .. }), "{text}");
            assert!(
                text.contains("mtu=1500") && text.contains(&format!("mtu={mtu}")),
                "{text}"
            );
        }
        meet("shm:x,mtu=1500").unwrap();
    });
}

#[test]
fn names_that_would_be_paths_are_rejected() {
    for url in ["shm:../x", "shm:a/b", "shm:"] {
        let error = url.parse::<PortUrl>().unwrap_err();
        assert!(error.is_usage(), "{url}: {error}");
    }
}
