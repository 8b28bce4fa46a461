//! User-space stack: compared with a plain loop over smoltcp, both on the same ring ports with one
//! thread for both
//! ends; and as a host that communicates with the kernel, compared with a host of the kernel.

mod buffer_copies;
mod kernel_comparison;
mod memory;
mod netstack;
mod smoltcp_loop;

pub use kernel_comparison::{
    BUFFER, ECHO_BARE, ECHO_BLOCKING, ECHO_BLOCKING_LIMIT, ECHO_LIMIT, ECHO_SHM, ECHO_SHM_BARE,
    ECHO_SHM_LIMIT, ECHO_SPINNING, IN_BARE, IN_BBR, IN_CUBIC, IN_LIMIT, IN_PLACE, OUT_BARE,
    OUT_BBR, OUT_COPIES, OUT_CUBIC, OUT_LIMIT, OUT_PLACE, QUEUE_1, QUEUE_64, QUEUE_255,
};
pub use memory::{MEMORY_DEFAULT, MEMORY_TUNED};

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::bench_env::Control;
use crate::error::Trouble;
use crate::row::{Mark, Peer, Row};

/// Duration of one side.
pub const TIME: Duration = Duration::from_millis(500);
/// Number of slices into which the duration of an in-process loop is divided.
const SLICES: usize = 10;
const SLICE: Duration = Duration::from_millis(TIME.as_millis() as u64 / SLICES as u64);
/// Datagrams between two polls.
pub const BURST: usize = 32;
/// Size of the buffers of programs and sockets for a stream.
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
    ours: |_| unreachable!("each row of this file sets its own measurement"),
    theirs: &[],
};

/// Round trip of 64 B with ten thousand idle UDP sockets.
pub const IDLE_UDP: Row = Row {
    name: "stack/idle/udp_10000",
    against: "no other socket, round trip",
    mark: Mark::AtMost(2.0),
    ours: |_| netstack::udp_round_trip(10_000),
    theirs: &[Peer::only(|_| netstack::udp_round_trip(0))],
    ..BASE
};

/// Round trip of 64 B with ten thousand idle connections.
pub const IDLE_TCP: Row = Row {
    name: "stack/idle/tcp_10000",
    ours: |_| netstack::tcp_round_trip(10_000),
    theirs: &[Peer::only(|_| netstack::tcp_round_trip(0))],
    ..IDLE_UDP
};

/// Send and receive of a datagram of 64 B.
pub const UDP_BURST: Row = Row {
    name: "stack/udp/64B_burst32",
    against: "plain smoltcp on the same ring, send + receive",
    mark: Mark::AtMost(0.35),
    slices: SLICES,
    ours: |_| netstack::datagrams(),
    theirs: &[Peer::only(|_| smoltcp_loop::datagrams())],
    ..BASE
};

/// Stream with checksums, copied in and out.
pub const TCP_STREAM: Row = Row {
    name: "stack/tcp/1500_64K",
    against: "plain smoltcp on the same ring, one stream",
    unit: "Gb/s",
    mark: Mark::AtLeast(1.0),
    ours: |_| netstack::stream(),
    theirs: &[Peer::only(|_| smoltcp_loop::stream())],
    ..UDP_BURST
};

/// Cost of the bytes of such a stream for any stack with buffers.
pub const TCP_STREAM_LIMIT: Row = Row {
    name: "stack/tcp/1500_64K/limit",
    against: "plain smoltcp on the same ring, one stream; ours is the bare loop: four copies and two sums of each byte",
    mark: Mark::Shown,
    ours: |_| buffer_copies::stream(),
    ..TCP_STREAM
};

/// Repeats `round` for `time` after a warm-up; returns the amount transferred and the duration in
/// ns.
fn over(
    time: Duration,
    mut round: impl FnMut() -> Result<usize, Trouble>,
) -> Result<(f64, f64), Trouble> {
    /// Rounds between two reads of the clock.
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

/// Allocation to hold during a measurement, so that its buffers have another page offset each time.
///
/// Both sides of a pair get the same offset. The speed of long copies depends on the page offsets
/// of
/// source and target, which would otherwise be fixed at random per process.
fn shift() -> Vec<u8> {
    const PAGE: usize = 4096;
    /// Step that reaches every multiple of 16 bytes.
    const STEP: usize = 65 * 16;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let pair = NEXT.fetch_add(1, Relaxed) / 2;
    // More than allocators cache: the next allocation follows behind it.
    black_box(Vec::with_capacity(16 * PAGE + pair * STEP % PAGE))
}
