//! Our own stack: beside a plain loop over its engine, both on the same ring ports, one thread for both ends;
//! and as a host that the kernel talks to, beside a host of the kernel.

mod bare;
mod beside;
mod memory;
mod ours;
mod plain;

pub use beside::{
    BUFFER, ECHO_BARE, ECHO_BLOCKING, ECHO_BLOCKING_LIMIT, ECHO_LIMIT, ECHO_SHM, ECHO_SHM_BARE,
    ECHO_SHM_LIMIT, ECHO_SPINNING, IN_BARE, IN_BBR, IN_CUBIC, IN_LIMIT, IN_PLACE, OUT_BARE,
    OUT_BBR, OUT_COPIES, OUT_CUBIC, OUT_LIMIT, OUT_PLACE, QUEUE_1, QUEUE_64, QUEUE_255,
};
pub use memory::{MEMORY_DEFAULT, MEMORY_TUNED};

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::ground::Control;
use crate::row::{Mark, Peer, Row};
use crate::trouble::Trouble;

/// How long one side is measured.
pub const TIME: Duration = Duration::from_millis(500);
/// Slices that the time of a loop is cut into which stands at once.
const SLICES: usize = 10;
const SLICE: Duration = Duration::from_millis(TIME.as_millis() as u64 / SLICES as u64);
/// Datagrams between two turns.
pub const BURST: usize = 32;
/// What programs and sockets keep of a stream.
const BUFFER_BYTES: usize = 64 << 10;

const BASE: Row = Row {
    name: "",
    against: "",
    unit: "ns",
    mark: Mark::AtMost(1.0),
    speed: false,
    near: false,
    held: true,
    control: Control::Cubic,
    long: false,
    most_pairs: None,
    slices: 1,
    needs: |_| Ok(()),
    ours: |_| unreachable!("every row of this file says how to measure"),
    theirs: &[],
};

/// A round trip of 64 B beside ten thousand idle UDP sockets.
pub const IDLE_UDP: Row = Row {
    name: "stack/idle/udp_10000",
    against: "no other socket, round trip",
    mark: Mark::AtMost(2.0),
    ours: |_| ours::udp_round_trip(10_000),
    theirs: &[Peer::only(|_| ours::udp_round_trip(0))],
    ..BASE
};

/// A round trip of 64 B beside ten thousand idle connections.
pub const IDLE_TCP: Row = Row {
    name: "stack/idle/tcp_10000",
    ours: |_| ours::tcp_round_trip(10_000),
    theirs: &[Peer::only(|_| ours::tcp_round_trip(0))],
    ..IDLE_UDP
};

/// Sending and receiving a datagram of 64 B.
pub const UDP_BURST: Row = Row {
    name: "stack/udp/64B_burst32",
    against: "plain smoltcp on the same ring, send + receive",
    mark: Mark::AtMost(0.35),
    slices: SLICES,
    ours: |_| ours::datagrams(),
    theirs: &[Peer::only(|_| plain::datagrams())],
    ..BASE
};

/// A stream with checksums, copied in and out.
pub const TCP_STREAM: Row = Row {
    name: "stack/tcp/1500_64K",
    against: "plain smoltcp on the same ring, one stream",
    unit: "Gb/s",
    mark: Mark::AtLeast(1.0),
    ours: |_| ours::stream(),
    theirs: &[Peer::only(|_| plain::stream())],
    ..UDP_BURST
};

/// What the bytes of such a stream cost whoever keeps them in buffers.
pub const TCP_STREAM_LIMIT: Row = Row {
    name: "stack/tcp/1500_64K/limit",
    against: "plain smoltcp on the same ring, one stream; ours is the bare loop: four copies and two sums of each byte",
    mark: Mark::Shown,
    ours: |_| bare::stream(),
    ..TCP_STREAM
};

/// Runs a round again and again for so long, once its memory is in the caches and both ends know each other: what was
/// moved in all, and how long that took, in ns.
fn over(
    time: Duration,
    mut round: impl FnMut() -> Result<usize, Trouble>,
) -> Result<(f64, f64), Trouble> {
    /// Between two looks at the clock.
    const ROUNDS: usize = 100;
    let mut rounds = || -> Result<usize, Trouble> {
        let mut moved = 0;
        for _ in 0..ROUNDS {
            moved += round()?;
        }
        Ok(moved)
    };
    rounds()?;
    let (begin, mut moved) = (Instant::now(), 0);
    while begin.elapsed() < time {
        moved += rounds()?;
    }
    Ok((moved as f64, begin.elapsed().as_nanos() as f64))
}

/// Something to hold while a side is measured, so that its buffers lie elsewhere each time, those of both sides of a pair
/// alike: how fast long copies are depends on where both ends lie in their pages, and would be the luck of a process.
fn shift() -> Vec<u8> {
    const PAGE: usize = 4096;
    /// Comes by every multiple of 16 bytes.
    const STEP: usize = 65 * 16;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let pair = NEXT.fetch_add(1, Relaxed) / 2;
    // More than allocators keep at hand: what is allocated next lies behind it.
    black_box(Vec::with_capacity(16 * PAGE + pair * STEP % PAGE))
}
