//! User-space stack: compared with a plain loop over smoltcp, both on the same ring ports with one
//! thread for both ends; and as a host that communicates with the kernel, compared with a host of
//! the kernel.

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

use crate::bench_env::DefaultCongestion;
use crate::error::BenchError;
use crate::row::{BenchPeer, BenchRow, RatioMark};

/// Duration of one side.
pub const RUN_TIME: Duration = Duration::from_millis(500);
/// Number of slices into which the duration of an in-process loop is divided.
const SLICES_PER_RUN: usize = 10;
const SLICE_TIME: Duration =
    Duration::from_millis(RUN_TIME.as_millis() as u64 / SLICES_PER_RUN as u64);
/// Datagrams between two polls.
pub const BURST_DATAGRAMS: usize = 32;
/// Size of the buffers of programs and sockets for a stream.
const BUFFER_BYTES: usize = 64 << 10;

const BASE_ROW: BenchRow = BenchRow {
    name: "",
    against: "",
    unit: "ns",
    mark: RatioMark::AtMost(1.0),
    is_speed: false,
    needs_near_state: false,
    holds_idle_states: true,
    default_congestion: DefaultCongestion::Cubic,
    is_long: false,
    max_pairs: None,
    slices_per_pair: 1,
    check_requirements: |_| Ok(()),
    measure: |_| unreachable!("each row of this file sets its own measurement"),
    peers: &[],
};

/// Round trip of 64 B with ten thousand idle UDP sockets.
pub const IDLE_UDP: BenchRow = BenchRow {
    name: "stack/idle/udp_10000",
    against: "no other socket, round trip",
    mark: RatioMark::AtMost(2.0),
    measure: |_| netstack::measure_udp_round_trip(10_000),
    peers: &[BenchPeer::single(|_| netstack::measure_udp_round_trip(0))],
    ..BASE_ROW
};

/// Round trip of 64 B with ten thousand idle connections.
pub const IDLE_TCP: BenchRow = BenchRow {
    name: "stack/idle/tcp_10000",
    measure: |_| netstack::measure_tcp_round_trip(10_000),
    peers: &[BenchPeer::single(|_| netstack::measure_tcp_round_trip(0))],
    ..IDLE_UDP
};

/// Send and receive of a datagram of 64 B.
pub const UDP_BURST: BenchRow = BenchRow {
    name: "stack/udp/64B_burst32",
    against: "plain smoltcp on the same ring, send + receive",
    mark: RatioMark::AtMost(0.35),
    slices_per_pair: SLICES_PER_RUN,
    measure: |_| netstack::measure_datagrams(),
    peers: &[BenchPeer::single(|_| smoltcp_loop::measure_datagrams())],
    ..BASE_ROW
};

/// Stream with checksums, copied in and out.
pub const TCP_STREAM: BenchRow = BenchRow {
    name: "stack/tcp/1500_64K",
    against: "plain smoltcp on the same ring, one stream",
    unit: "Gb/s",
    mark: RatioMark::AtLeast(1.0),
    measure: |_| netstack::measure_stream(),
    peers: &[BenchPeer::single(|_| smoltcp_loop::measure_stream())],
    ..UDP_BURST
};

/// Cost of the bytes of such a stream for any stack with buffers.
pub const TCP_STREAM_LIMIT: BenchRow = BenchRow {
    name: "stack/tcp/1500_64K/limit",
    against: "plain smoltcp on the same ring, one stream; ours is the bare loop: four copies and two sums of each byte",
    mark: RatioMark::Informational,
    measure: |_| buffer_copies::measure_copies(),
    ..TCP_STREAM
};

/// Repeats `round` for `time` after a warm-up; returns the amount transferred and the duration in
/// ns.
fn repeat_for(
    time: Duration,
    mut round: impl FnMut() -> Result<usize, BenchError>,
) -> Result<(f64, f64), BenchError> {
    /// Rounds between two reads of the clock.
    const ROUNDS_PER_CHECK: usize = 100;
    let mut rounds = || -> Result<usize, BenchError> {
        let mut transferred = 0;
        for _ in 0..ROUNDS_PER_CHECK {
            transferred += round()?;
        }
        Ok(transferred)
    };
    rounds()?;
    let (begin, mut transferred) = (Instant::now(), 0);
    while begin.elapsed() < time {
        transferred += rounds()?;
    }
    Ok((transferred as f64, begin.elapsed().as_nanos() as f64))
}

/// Allocation to hold during a measurement, so that its buffers have another page offset each time.
///
/// Both sides of a pair get the same offset. The speed of long copies depends on the page offsets
/// of source and target, which would otherwise be fixed at random per process.
fn shift_allocations() -> Vec<u8> {
    const PAGE_BYTES: usize = 4096;
    /// Step that reaches every multiple of 16 bytes.
    const STEP_BYTES: usize = 65 * 16;
    static NEXT_SHIFT: AtomicUsize = AtomicUsize::new(0);
    let pair = NEXT_SHIFT.fetch_add(1, Relaxed) / 2;
    // More than allocators cache: the next allocation follows behind it.
    black_box(Vec::with_capacity(
        16 * PAGE_BYTES + pair * STEP_BYTES % PAGE_BYTES,
    ))
}
