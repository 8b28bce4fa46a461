//! `linerate-bench-memory PROFILE` prints three numbers for a configuration of the user-space
//! stack: its computed memory and its real memory, in bytes, and the number of allocations that
//! follow during traffic.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::task::Poll;

use linerate_port::PortUrl;
use linerate_stack::{Stack, StackAddressing, StackConfig, memory_plan};
use linerate_sys::frames::frame_memory::FrameRegion;

struct CountingAllocator;

static BYTES: AtomicI64 = AtomicI64::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn count_allocation(bytes: i64) {
    BYTES.fetch_add(bytes, Relaxed);
    ALLOCATIONS.fetch_add(1, Relaxed);
}

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size() as i64);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_allocation(layout.size() as i64);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count_allocation(-(layout.size() as i64));
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_allocation(size as i64 - layout.size() as i64);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

type BoxedError = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let profile = std::env::args().nth(1).unwrap_or_default();
    match measure(&profile) {
        Ok((computed, allocated, later_allocations)) => {
            println!("{computed} {allocated} {later_allocations}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(profile: &str) -> Result<(usize, usize, u64), BoxedError> {
    let config = StackConfig::profile(profile)?;
    let urls: [PortUrl; 2] = ["ring:m,end=a".parse()?, "ring:m,end=b".parse()?];
    let computed = config.memory_usage(&urls[0]).bytes();
    let plan = memory_plan(&config, &urls[0]);
    let memory = FrameRegion::new(plan.combine(memory_plan(&config, &urls[1])))?;
    // Each end has half of the mapping, whose size is rounded up to huge pages.
    let frames = memory.frames() as usize / 2 * memory.slot_bytes();
    let mapped = memory.mapped_bytes();
    if mapped != (2 * frames).next_multiple_of(2 << 20) {
        return Err(format!("{mapped} B are mapped for {frames} B of frames at each end").into());
    }
    let open_stack = |url: &PortUrl, address: &str| -> Result<(Stack, i64), BoxedError> {
        let port = linerate_port::open(url, &memory)?.remove(0);
        let addressing = StackAddressing::new(&[address])?;
        let before = BYTES.load(Relaxed);
        let stack = Stack::new(port, &memory, &config, &addressing)?;
        Ok((stack, BYTES.load(Relaxed) - before))
    };
    let (mut client, heap) = open_stack(&urls[0], "10.0.0.1/24")?;
    let (mut server, _) = open_stack(&urls[1], "10.0.0.2/24")?;
    let calls = ALLOCATIONS.load(Relaxed);
    run_traffic(&mut client, &mut server)?;
    let later_allocations = ALLOCATIONS.load(Relaxed) - calls;
    Ok((computed, frames + usize::try_from(heap)?, later_allocations))
}

/// Traffic: datagrams, some fragmented, and connections that open, transfer data and close.
fn run_traffic(client_stack: &mut Stack, server_stack: &mut Stack) -> Result<(), BoxedError> {
    let mut now = 1_000_000;
    let mut poll_both = |client_stack: &mut Stack, server_stack: &mut Stack| {
        now += 20_000;
        client_stack.poll(now);
        server_stack.poll(now);
    };
    let server = server_stack.udp_bind(([0, 0, 0, 0], 7).into())?;
    let client = client_stack.udp_bind(([0, 0, 0, 0], 0).into())?;
    client_stack.udp_connect(client, ([10, 0, 0, 2], 7).into())?;
    let mut responses = 0;
    for round in 0..1_000 {
        let bytes = if round % 10 == 0 { 5_000 } else { 64 };
        let _ = client_stack.udp_send(client, None, bytes, |payload| payload.fill(1));
        poll_both(client_stack, server_stack);
        while let Poll::Ready(from) = server_stack.udp_receive(server, |_, meta| meta.from) {
            let _ = server_stack.udp_send(server, Some(from?), 64, |payload| payload.fill(2));
        }
        while client_stack.udp_receive(client, |_, _| ()).is_ready() {
            responses += 1;
        }
    }
    let listener = server_stack.tcp_listen(([0, 0, 0, 0], 80).into(), 2)?;
    let mut bytes_received = 0;
    for _ in 0..20 {
        let client = client_stack.tcp_connect(([10, 0, 0, 2], 80).into(), None)?;
        let server = loop {
            poll_both(client_stack, server_stack);
            if let Poll::Ready(server) = server_stack.tcp_accept(listener) {
                break server?;
            }
        };
        for _ in 0..200 {
            let _ = client_stack.tcp_send(client, |space| space.len());
            poll_both(client_stack, server_stack);
            while let Poll::Ready(count) =
                server_stack.tcp_receive(server, |data| (data.len(), data.len()))
            {
                bytes_received += count?;
            }
        }
        client_stack.abort(client)?;
        poll_both(client_stack, server_stack);
        server_stack.close(server)?;
        poll_both(client_stack, server_stack);
    }
    if responses < 500 || bytes_received < 20_000 {
        return Err(format!("only {responses} responses and {bytes_received} B of streams").into());
    }
    Ok(())
}
