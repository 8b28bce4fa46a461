//! `shm:` ports between real processes, some of which are killed.

mod common;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{memory, numbered, receive, send};
use linerate_port::{
    AnyPort, Burst, Cause, Memory, MemoryPlan, Partner, Pool, Port, PortError, PortUrl, Receive,
};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// Variable with the directory of the rendezvous; each test has its own.
const FOLDER: &str = "XDG_RUNTIME_DIR";
/// Variable with the port that a child opens to send all frames back.
const CHILD: &str = "LINERATE_TEST_ECHO";

/// Malicious client that follows the handshake and passes memory of its own.
struct Forger {
    talk: OwnedFd,
    memory: OwnedFd,
    slots: usize,
    slot_bytes: usize,
}

impl Forger {
    /// Connects to the server `shm:x` with frames of 1518 bytes, and passes memory with slots of
    /// `slot_bytes`.
    fn come(folder: &Path, slots: u32, slot_bytes: u32) -> Self {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("forged", flags).unwrap();
        rustix::fs::ftruncate(&memory, 4 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
        let header = [
            &b"linrt-s\x01"[..],
            &slots.to_ne_bytes(),
            &slot_bytes.to_ne_bytes(),
        ];
        rustix::io::pwrite(&memory, &header.concat(), 0).unwrap();
        Self {
            talk: Self::hand(folder, memory.as_fd()),
            memory,
            slots: slots as usize,
            slot_bytes: slot_bytes as usize,
        }
    }

    /// Connects to the server without sending anything.
    fn silent(folder: &Path) -> OwnedFd {
        let socket = folder.join("linerate/shm-x.sock");
        let talk = net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        );
        let talk = talk.unwrap();
        net::connect(&talk, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
        talk
    }

    /// Connects and sends a hello, with a file and frames of 1518 bytes.
    fn hand(folder: &Path, file: BorrowedFd<'_>) -> OwnedFd {
        let talk = Self::silent(folder);
        let mut hello = *b"linrt-m\x01\x01\0\0\0\0\0\0\0";
        hello[10..12].copy_from_slice(&1518u16.to_ne_bytes());
        let files = [file];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)));
        let pieces = [IoSlice::new(&hello)];
        net::sendmsg(&talk, &pieces, &mut ancillary, SendFlags::empty()).unwrap();
        talk
    }

    /// Reply of the server, if there is one: 2 is joined, 4 incompatible.
    fn answer(&self) -> Option<u8> {
        let mut word = [0; 16];
        rustix::io::read(&self.talk, &mut word).ok()?;
        Some(word[8])
    }

    /// Publishes frames of these lengths, which may exceed the slots.
    fn publish(&self, lengths: &[u32]) {
        // Behind a header and the server's ring; indices on lines of their own come first.
        let lengths_bytes = (self.slots * 4).next_multiple_of(128);
        let ring = 256 + lengths_bytes + (self.slots * self.slot_bytes).next_multiple_of(128);
        let at = 128 + ring as u64;
        let written: Vec<u8> = lengths.iter().flat_map(|n| n.to_ne_bytes()).collect();
        rustix::io::pwrite(&self.memory, &written, at + 256).unwrap();
        let tail = (lengths.len() as u32).to_ne_bytes();
        rustix::io::pwrite(&self.memory, &tail, at).unwrap();
    }
}

/// A length that exceeds the slot is an error of the peer, and only costs that frame.
#[test]
fn lengths_beyond_a_slot_are_dropped() {
    in_own_dir("lengths_beyond_a_slot_are_dropped", |folder| {
        // The memory's frames are longer than those of this port, as another port requires.
        let memory = Memory::new(MemoryPlan {
            frames: 512,
            frame_bytes: 9018,
            ..MemoryPlan::default()
        });
        let memory = memory.unwrap();
        let mut pool = memory.pool();
        let mut server = common::open("shm:x,role=server,mtu=1500", &memory);
        let forger = Forger::come(folder, 64, 1600);
        let lengths = [60, 1600, 1601, 9018, 9019, u32::MAX, 0, 61];
        let deadline = Instant::now() + Duration::from_secs(10);
        let (mut answer, mut came) = (None, Vec::new());
        let mut burst = Burst::new();
        while came.len() < 3 {
            if answer.is_none() {
                server.refresh().unwrap();
                answer = forger.answer();
                if answer.is_some() {
                    forger.publish(&lengths);
                }
            }
            server.receive(&mut pool, &mut burst);
            came.extend(burst.frames().iter().map(|frame| frame.len()));
            pool.free_all(&mut burst);
            assert!(Instant::now() < deadline, "{answer:?}, {came:?} came");
        }
        assert_eq!((answer, &came[..]), (Some(2), &[60, 1600, 61][..]));
        let counted = server.receive.counters().read();
        let drops = (counted.dropped(Cause::TooLong), counted.dropped(Cause::Bad));
        assert_eq!(drops, (4, 1));
    });
}

/// Memory for frames of another length than agreed is rejected.
#[test]
fn memory_for_other_frames_is_refused() {
    in_own_dir("memory_for_other_frames_is_refused", |folder| {
        let memory = memory(256);
        let mut server = common::open("shm:x,role=server,mtu=1500", &memory);
        for slot_bytes in [64, 1472, 1728, 9024] {
            let forger = Forger::come(folder, 64, slot_bytes);
            let deadline = Instant::now() + Duration::from_secs(10);
            let told = loop {
                if let Err(error) = server.refresh() {
                    break error;
                }
                assert!(Instant::now() < deadline, "{slot_bytes}: not rejected");
            };
            let text = told.to_string();
            assert!(matches!(told, PortError::PeerMismatch { .. }), "{text}");
            let says = |bytes: u32| text.contains(&bytes.to_string());
            assert!(says(slot_bytes) && says(1600), "{text}");
            assert_eq!(forger.answer(), Some(4), "{slot_bytes}");
            assert_eq!(server.receive.partner(), Some(Partner::Awaited));
        }
    });
}

/// A server handles one client at a time: one that sends nothing, like a stopped program, blocks
/// others only for a moment.
#[test]
fn a_silent_client_does_not_block_others() {
    in_own_dir("a_silent_client_does_not_block_others", |folder| {
        let memory = memory(256);
        let (mut pool, mut burst) = (memory.pool(), Burst::new());
        let mut server = common::open("shm:x,role=server", &memory);
        let _silent = Forger::silent(folder);
        // The server accepts this one first.
        server.receive.receive(&mut pool, &mut burst);
        let mut client = common::open("shm:x", &memory);
        let deadline = Instant::now() + Duration::from_secs(60);
        while client.receive.partner() != Some(Partner::There) {
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
fn refusals_of_the_kernel_keep_their_cause() {
    in_own_dir("refusals_of_the_kernel_keep_their_cause", |folder| {
        let mut server = common::open("shm:x,role=server", &memory(256));
        // Not memory, and so without seals: EINVAL (fcntl(2), F_GET_SEALS).
        let file = std::fs::File::open("/dev/null").unwrap();
        let _talk = Forger::hand(folder, file.as_fd());
        let deadline = Instant::now() + Duration::from_secs(10);
        let told = loop {
            if let Err(error) = server.refresh() {
                break error;
            }
            assert!(Instant::now() < deadline, "no error");
        };
        let PortError::Kernel { source, .. } = &told else {
            panic!("{told}");
        };
        assert_eq!(source.kind(), std::io::ErrorKind::InvalidInput, "{source}");
    });
}

/// Not a test: the code of a child process.
#[test]
fn child() {
    let Ok(url) = std::env::var(CHILD) else {
        return;
    };
    let memory = memory(256);
    let mut pool = memory.pool();
    let mut port = common::open(&url, &memory);
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
    fn start(folder: &Path, url: &str) -> Self {
        let own = std::env::current_exe().unwrap();
        let child = Command::new(own)
            .args(["--exact", "child", "--nocapture"])
            .env(FOLDER, folder)
            .env(CHILD, url)
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
        let folder = std::env::var_os(FOLDER).unwrap();
        return test(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .env(FOLDER, folder.path())
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
struct Circle {
    next: u32,
    back: Vec<u32>,
}

impl Circle {
    fn run(&mut self, port: &mut AnyPort, pool: &mut Pool, count: usize) {
        let target = self.back.len() + count;
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut burst = Burst::new();
        while self.back.len() < target {
            assert!(
                Instant::now() < deadline,
                "{} of {target} came back",
                self.back.len()
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
                self.back.push(number(bytes));
            }
            pool.free_all(&mut burst);
        }
    }

    /// Receives the echoes that are still on their way.
    fn drain(&mut self, port: &mut AnyPort, pool: &mut Pool) {
        let all = |_: &[u8]| true;
        let rest = common::receive_within(port, pool, usize::MAX, Duration::from_millis(500), all);
        self.back.extend(rest.iter().map(|frame| number(frame)));
    }
}

fn echo_that_dies(folder: &Path, own: &str, other: &str) {
    let memory = memory(512);
    let mut pool = memory.pool();
    let mut port = common::open(own, &memory);
    let mut circle = Circle {
        next: 0,
        back: Vec::new(),
    };
    const KILLS: usize = 4;
    let mut echo = Echo::start(folder, other);
    for round in 0..KILLS {
        circle.run(&mut port, &mut pool, 3000 + round * 777);
        echo.kill();
        echo = Echo::start(folder, other);
    }
    circle.run(&mut port, &mut pool, 3000);
    circle.drain(&mut port, &mut pool);
    port.refresh().unwrap();
    let absences = port.receive.absences();
    assert_eq!(absences.len(), KILLS);
    for absence in &absences {
        assert!(absence.until > Some(absence.from), "{absences:?}");
    }
    echo.kill();
    port.refresh().unwrap();
    let last = port.receive.absences().pop().unwrap();
    assert_eq!(last.until, None, "not reconnected");

    assert!(
        circle.back.is_sorted_by(|earlier, later| earlier < later),
        "in order, and none twice"
    );
    let lost = circle.next as usize - circle.back.len();
    assert!(lost <= KILLS * 32, "{lost} lost in {KILLS} deaths");
    // All frames are free again: the survivor has lost none of its own.
    let free = std::iter::from_fn(|| pool.allocate()).count();
    assert_eq!(free, 512);
}

#[test]
fn a_client_may_be_killed_and_come_back() {
    in_own_dir("a_client_may_be_killed_and_come_back", |folder| {
        echo_that_dies(folder, "shm:x,role=server,rxd=64", "shm:x");
    });
}

#[test]
fn a_server_may_be_killed_and_come_back() {
    in_own_dir("a_server_may_be_killed_and_come_back", |folder| {
        echo_that_dies(folder, "shm:x,rxd=64", "shm:x,role=server,rxd=64");
    });
}

#[test]
fn either_side_may_come_first() {
    in_own_dir("either_side_may_come_first", |_| {
        let memory = memory(512);
        let mut pool = memory.pool();
        for (first, second) in [
            ("shm:a", "shm:a,role=server"),
            ("shm:b,role=server", "shm:b"),
        ] {
            let mut one = common::open(first, &memory);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(one.receive(&mut pool, &mut Burst::new()), 0);
            let mut other = common::open(second, &memory);
            // Both connect as they are polled; normally each has its own thread.
            let deadline = Instant::now() + Duration::from_secs(10);
            let mut burst = Burst::new();
            pool.allocate_burst(&mut burst, 1);
            burst.frames_mut()[0].set_len(60);
            while one.transmit(&mut pool, &mut burst) == 0 {
                other.receive(&mut pool, &mut Burst::new());
                assert!(Instant::now() < deadline, "not connected");
            }
            while other.receive(&mut pool, &mut burst) == 0 {
                assert!(Instant::now() < deadline, "not received");
            }
            pool.free_all(&mut burst);
            send(&mut other, &mut pool, &[numbered(1, 1518), numbered(2, 60)]);
            let arrived = receive(&mut one, &mut pool, 2);
            assert_eq!(arrived, [numbered(1, 1518), numbered(2, 60)]);
        }
    });
}

#[test]
fn queues_have_rings_of_their_own() {
    in_own_dir("queues_have_rings_of_their_own", |_| {
        let memory = memory(512);
        let mut pool = memory.pool();
        let open = |url: &str| {
            let url: PortUrl = url.parse().unwrap();
            linerate_port::open(&url, &memory).unwrap()
        };
        let (mut near, mut far) = (open("shm:m,role=server,queues=2"), open("shm:m,queues=2"));
        for queue in 0..2 {
            let deadline = Instant::now() + Duration::from_secs(10);
            let mut burst = Burst::new();
            pool.allocate_burst(&mut burst, 1);
            burst.frames_mut()[0].set_len(60 + queue as u16);
            while near[queue].transmit(&mut pool, &mut burst) == 0 {
                far[queue].receive(&mut pool, &mut Burst::new());
                assert!(Instant::now() < deadline, "not connected");
            }
            while far[queue].receive(&mut pool, &mut burst) == 0 {
                assert!(Instant::now() < deadline, "not received");
            }
            assert_eq!(burst.frames()[0].len(), 60 + queue as u16);
            assert_eq!(
                far[1 - queue].receive.receive(&mut pool, &mut Burst::new()),
                0
            );
            pool.free_all(&mut burst);
        }
    });
}

#[test]
fn a_name_in_use_is_reported() {
    in_own_dir("a_name_in_use_is_reported", |folder| {
        let memory = memory(512);
        let mut pool = memory.pool();
        let mut server = common::open("shm:x,role=server", &memory);
        let second = common::try_open("shm:x,role=server", &memory).map(|_| ());
        assert!(matches!(second, Err(PortError::Taken { .. })));
        let _echo = Echo::start(folder, "shm:x");
        send(&mut server, &mut pool, &[numbered(0, 60)]);
        assert_eq!(receive(&mut server, &mut pool, 1).len(), 1);
        // A second client gets an error.
        let mut late = common::open("shm:x", &memory);
        let deadline = Instant::now() + Duration::from_secs(10);
        let told = loop {
            server.receive(&mut pool, &mut Burst::new());
            if let Err(error) = late.refresh() {
                break error;
            }
            assert!(Instant::now() < deadline, "no error for the second client");
        };
        assert!(matches!(told, PortError::Taken { .. }), "{told}");
        drop((late, server));
        // Only files of the killed child's side may be left.
        assert_eq!(
            std::fs::read_dir(folder.join("linerate")).unwrap().count(),
            0
        );
    });
}

/// With different frame lengths the longer frames would be lost: the client gets an error, and the
/// server waits for another.
#[test]
fn other_frame_lengths_are_refused() {
    in_own_dir("other_frame_lengths_are_refused", |_| {
        let memory = memory(256);
        let mut pool = memory.pool();
        let mut server = common::open("shm:x,role=server,mtu=1500", &memory);
        let mut meet = |url: &str| -> Result<(), PortError> {
            let mut client = common::open(url, &memory);
            let deadline = Instant::now() + Duration::from_secs(10);
            loop {
                server.receive(&mut pool, &mut Burst::new());
                server.refresh().expect("the error is the client's");
                client
                    .receive
                    .receive(&mut memory.pool(), &mut Burst::new());
                client.refresh()?;
                if client.receive.partner() == Some(Partner::There) {
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
fn names_that_would_be_paths_are_refused() {
    for url in ["shm:../x", "shm:a/b", "shm:"] {
        let error = url.parse::<PortUrl>().unwrap_err();
        assert!(error.is_usage(), "{url}: {error}");
    }
}
