//! Helpers shared by the tests of real ports.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use linerate_lab::{Lab, LabHost, Topology, privileged};
use linerate_port::{AnyPort, PortError, PortUrl, RxQueue, TxQueue};
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame_memory::{FrameRegion, MemoryPlan};
use linerate_sys::frames::frame_pool::FramePool;

/// Runs a test that needs labs: here, or again in a user namespace. `name` is the name of the test.
pub fn with_privilege(name: &str, test: impl FnOnce()) {
    if privileged() {
        test();
        return;
    }
    let executable = std::env::current_exe().expect("a test has a path");
    let target_dir = executable.parent().and_then(|deps| deps.parent());
    let rootless: PathBuf = target_dir
        .expect("tests lie in target/deps")
        .join("examples/rootless");
    if !rootless.exists() {
        println!(
            "skipped: {} is not built: run `cargo test` without --test",
            rootless.display()
        );
        return;
    }
    let probe = Command::new(&rootless)
        .arg("true")
        .output()
        .expect("it runs");
    if !probe.status.success() {
        println!("skipped: {}", String::from_utf8_lossy(&probe.stderr));
        return;
    }
    let output = Command::new(&rootless)
        .arg(executable)
        .args(["--exact", name, "--nocapture"])
        .output()
        .expect("it runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    // A wrong name selects no test, and that is a success.
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{name}: {stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Creates two hosts, `a` and `b`, and a link between their `eth0`; `properties` are more keys of
/// that link.
pub fn pair(properties: &str) -> Lab {
    let file = format!("[hosts.a]\n[hosts.b]\n[[links]]\nbetween = ['a', 'b']\n{properties}\n");
    let topology = Topology::from_toml(&file).expect("a good lab file");
    Lab::up(&topology).unwrap_or_else(|error| panic!("{}", error.full_text()))
}

/// Creates a memory with this many frames.
pub fn memory(frames: u32) -> FrameRegion {
    FrameRegion::new(MemoryPlan {
        frames,
        ..MemoryPlan::default()
    })
    .unwrap()
}

/// Opens the first queue of a port in this thread's network namespace.
pub fn try_open(url: &str, memory: &FrameRegion) -> Result<AnyPort, PortError> {
    let url: PortUrl = url.parse()?;
    Ok(linerate_port::open(&url, memory)?.remove(0))
}

/// Like [`try_open`], but must succeed.
pub fn open(url: &str, memory: &FrameRegion) -> AnyPort {
    try_open(url, memory).unwrap_or_else(|error| panic!("{error}: {:?}", error.to_report()))
}

/// Opens a port inside a host.
pub fn open_in(host: &LabHost, url: &str, memory: &FrameRegion) -> AnyPort {
    host.run(|| open(url, memory)).unwrap()
}

/// A broadcast frame with an experimental EtherType (IEEE 802, 0x88b5) and a number.
pub fn numbered(number: u32, length: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame.extend(number.to_be_bytes());
    frame.extend((frame.len()..length).map(|at| (at as u32 ^ number) as u8));
    frame
}

/// Sends these frames, and waits while the port accepts none.
pub fn send(port: &mut AnyPort, pool: &mut FramePool, frames: &[Vec<u8>]) {
    let deadline = Instant::now() + Duration::from_secs(10);
    for chunk in frames.chunks(32) {
        let mut burst = Burst::new();
        for bytes in chunk {
            let mut frame = pool.allocate().expect("the memory has room");
            frame.set_len(bytes.len() as u16);
            pool.memory().bytes_mut(&mut frame).copy_from_slice(bytes);
            burst.push(frame).unwrap();
        }
        while !burst.is_empty() {
            if port.transmit.transmit(pool, &mut burst) == 0 {
                assert!(Instant::now() < deadline, "the port takes no more");
                std::thread::yield_now();
            }
        }
    }
    port.transmit.reclaim(pool);
}

/// Receives until `count` frames that `accept` accepts have arrived, or until the timeout.
pub fn receive_within(
    port: &mut AnyPort,
    pool: &mut FramePool,
    count: usize,
    timeout: Duration,
    accept: impl Fn(&[u8]) -> bool,
) -> Vec<Vec<u8>> {
    let deadline = Instant::now() + timeout;
    let mut arrived = Vec::new();
    let mut burst = Burst::new();
    while arrived.len() < count && Instant::now() < deadline {
        if port.receive.receive(pool, &mut burst) == 0 {
            std::thread::yield_now();
            continue;
        }
        for frame in burst.frames() {
            let bytes = pool.memory().bytes(frame);
            if accept(bytes) {
                arrived.push(bytes.to_vec());
            }
        }
        pool.free_all(&mut burst);
    }
    arrived
}

/// Like [`receive_within`], for numbered frames with a long timeout.
pub fn receive(port: &mut AnyPort, pool: &mut FramePool, count: usize) -> Vec<Vec<u8>> {
    let numbered = |frame: &[u8]| frame[12..14] == [0x88, 0xb5];
    receive_within(port, pool, count, Duration::from_secs(10), numbered)
}
