//! `linerate-bench-memory PROFILE` prints three numbers for a configuration of the user-space
//! stack: its computed
//! memory and its real memory, in bytes, and the number of allocations that follow during traffic.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::task::Poll;

use linerate_port::{Memory, PortUrl};
use linerate_stack::{Addressing, Config, Stack, memory_plan};

struct Counting;

static BYTES: AtomicI64 = AtomicI64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

fn count(bytes: i64) {
    BYTES.fetch_add(bytes, Relaxed);
    CALLS.fetch_add(1, Relaxed);
}

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

type Broken = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let profile = std::env::args().nth(1).unwrap_or_default();
    match measure(&profile) {
        Ok((computed, taken, later)) => {
            println!("{computed} {taken} {later}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(profile: &str) -> Result<(usize, usize, u64), Broken> {
    let config = Config::profile(profile)?;
    let urls: [PortUrl; 2] = ["ring:m,end=a".parse()?, "ring:m,end=b".parse()?];
    let computed = config.memory(&urls[0]).bytes();
    let plan = memory_plan(&config, &urls[0]);
    let memory = Memory::new(plan.joined(memory_plan(&config, &urls[1])))?;
    // Each end has half of the mapping, whose size is rounded up to huge pages.
    let frames = memory.frames() as usize / 2 * memory.slot_bytes();
    let mapped = memory.mapped_bytes();
    if mapped != (2 * frames).next_multiple_of(2 << 20) {
        return Err(format!("{mapped} B are mapped for {frames} B of frames at each end").into());
    }
    let make = |url: &PortUrl, address: &str| -> Result<(Stack, i64), Broken> {
        let port = linerate_port::open(url, &memory)?.remove(0);
        let own = Addressing::new(&[address])?;
        let before = BYTES.load(Relaxed);
        let stack = Stack::new(port, &memory, &config, &own)?;
        Ok((stack, BYTES.load(Relaxed) - before))
    };
    let (mut near, heap) = make(&urls[0], "10.0.0.1/24")?;
    let (mut far, _) = make(&urls[1], "10.0.0.2/24")?;
    let calls = CALLS.load(Relaxed);
    traffic(&mut near, &mut far)?;
    let later = CALLS.load(Relaxed) - calls;
    Ok((computed, frames + usize::try_from(heap)?, later))
}

/// Traffic: datagrams, some fragmented, and connections that open, transfer data and close.
fn traffic(near: &mut Stack, far: &mut Stack) -> Result<(), Broken> {
    let mut now = 1_000_000;
    let mut turn = |near: &mut Stack, far: &mut Stack| {
        now += 20_000;
        near.turn(now);
        far.turn(now);
    };
    let server = far.udp_bind(([0, 0, 0, 0], 7).into())?;
    let client = near.udp_bind(([0, 0, 0, 0], 0).into())?;
    near.udp_connect(client, ([10, 0, 0, 2], 7).into())?;
    let mut answered = 0;
    for round in 0..1_000 {
        let bytes = if round % 10 == 0 { 5_000 } else { 64 };
        let _ = near.udp_send(client, None, bytes, |payload| payload.fill(1));
        turn(near, far);
        while let Poll::Ready(from) = far.udp_receive(server, |_, meta| meta.from) {
            let _ = far.udp_send(server, Some(from?), 64, |payload| payload.fill(2));
        }
        while near.udp_receive(client, |_, _| ()).is_ready() {
            answered += 1;
        }
    }
    let listener = far.tcp_listen(([0, 0, 0, 0], 80).into(), 2)?;
    let mut moved = 0;
    for _ in 0..20 {
        let client = near.tcp_connect(([10, 0, 0, 2], 80).into(), None)?;
        let server = loop {
            turn(near, far);
            if let Poll::Ready(server) = far.tcp_accept(listener) {
                break server?;
            }
        };
        for _ in 0..200 {
            let _ = near.tcp_send(client, |room| room.len());
            turn(near, far);
            while let Poll::Ready(count) = far.tcp_receive(server, |got| (got.len(), got.len())) {
                moved += count?;
            }
        }
        near.abort(client)?;
        turn(near, far);
        far.close(server)?;
        turn(near, far);
    }
    if answered < 500 || moved < 20_000 {
        return Err(format!("only {answered} responses and {moved} B of streams").into());
    }
    Ok(())
}
