//! The memory computed for a configuration is what a stack allocates, and it allocates nothing
//! afterwards.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::task::Poll;

use common::{LOCAL, LOCAL_V6, REMOTE, addressing, any_address, expect_ready, socket_address};
use linerate_port::PortUrl;
use linerate_stack::{PROFILES, Stack, StackConfig, TcpState, memory_plan};
use linerate_sys::cpu::ThreadEvents;
use linerate_sys::frames::frame_memory::FrameRegion;

struct CountingAllocator;

thread_local! {
    static BYTES: Cell<i64> = const { Cell::new(0) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // A thread that ends may have no counter any more; it is not one of those measured.
    let _ = BYTES.try_with(|total| total.set(total.get() + bytes));
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn counted() -> (i64, u64) {
    (BYTES.get(), CALLS.get())
}

#[test]
fn the_computed_memory_is_allocated_and_no_more() {
    for (name, ..) in PROFILES {
        let config = StackConfig::profile(name).unwrap();
        let urls: [PortUrl; 2] = ["a", "b"].map(|end| format!("ring:m,end={end}").parse().unwrap());
        let usage = config.memory_usage(&urls[0]);
        let plan = memory_plan(&config, &urls[0]);
        assert_eq!(
            (usage.frames, usage.slot_bytes),
            (plan.frames, plan.slot_bytes())
        );
        let memory = FrameRegion::new(plan.combine(memory_plan(&config, &urls[1]))).unwrap();
        let mapped = 2 * usage.frame_bytes();
        // Mappings consist of whole huge pages.
        assert_eq!(
            memory.mapped_bytes(),
            mapped.next_multiple_of(2 << 20),
            "{name}"
        );

        let mut stacks: Vec<Stack> = Vec::with_capacity(2);
        for (url, address) in urls.iter().zip([LOCAL, REMOTE]) {
            let port = linerate_port::open(url, &memory).unwrap().remove(0);
            let own = addressing(address, LOCAL_V6);
            let (before, _) = counted();
            stacks.push(Stack::new(port, &memory, &config, &own).unwrap());
            let allocated = counted().0 - before;
            assert_eq!(allocated, usage.heap_bytes() as i64, "{name}: {usage:#?}");
        }
        let items: usize = usage.items().map(|item| item.bytes).sum();
        assert_eq!(items, usage.bytes());

        let (_, calls) = counted();
        traffic(&mut stacks);
        assert_eq!(
            counted().1,
            calls,
            "{name}: something was allocated during traffic"
        );
    }
}

/// Returns two stacks on a memory of their own.
fn pair(config: &StackConfig, name: &str) -> [Stack; 2] {
    let urls: [PortUrl; 2] =
        ["a", "b"].map(|end| format!("ring:{name},end={end}").parse().unwrap());
    let plan = memory_plan(config, &urls[0]).combine(memory_plan(config, &urls[1]));
    let memory = FrameRegion::new(plan).unwrap();
    let mut addresses = [LOCAL, REMOTE].into_iter();
    urls.map(|url| {
        let port = linerate_port::open(&url, &memory).unwrap().remove(0);
        let own = addressing(addresses.next().unwrap(), LOCAL_V6);
        Stack::new(port, &memory, config, &own).unwrap()
    })
}

/// A page fault costs as much as some packets, in the middle of a measurement.
#[test]
fn traffic_causes_no_page_faults() {
    let config = StackConfig::profile("default").unwrap();
    // The first pair takes the faults of first use, such as the program's own pages. It stays
    // alive, so that its memory is not reused by the second.
    let mut first_pair = pair(&config, "first");
    traffic(&mut first_pair);
    let mut stacks = pair(&config, "second");
    let before = ThreadEvents::read().minor_faults;
    traffic(&mut stacks);
    let faults = ThreadEvents::read().minor_faults - before;
    // There were some sixty while buffers were only allocated; a few are caused by the kernel
    // itself.
    assert!(faults < 16, "{faults} pages were not there");
}

/// Short and long datagrams, streams in both directions, many connections, and a silent neighbour.
fn traffic(stacks: &mut [Stack]) {
    let [local, remote] = stacks else {
        unreachable!()
    };
    let mut now = 1_000_000;
    let mut poll = |local: &mut Stack, remote: &mut Stack| {
        now += 20_000;
        local.poll(now);
        remote.poll(now);
    };
    let server = remote.udp_bind(any_address(7)).unwrap();
    let client = local.udp_bind(any_address(0)).unwrap();
    let _ = local.udp_send(client, Some(socket_address("10.0.0.99", 7)), 10, |_| ());
    let mut got = 0;
    for round in 0..400 {
        let bytes = if round % 10 == 0 { 5_000 } else { 64 };
        let _ = local.udp_send(client, Some(socket_address(REMOTE, 7)), bytes, |payload| {
            payload.fill(1)
        });
        poll(local, remote);
        while let Poll::Ready(from) = remote.udp_receive(server, |_, meta| meta.from) {
            got += 1;
            let _ = remote.udp_send(server, from.ok(), 64, |payload| payload.fill(2));
        }
        while local.udp_receive(client, |_, _| ()).is_ready() {}
    }
    assert!(got > 300, "{got}");
    let listener = remote.tcp_listen(any_address(80), 2).unwrap();
    for _ in 0..20 {
        let client = local.tcp_connect(socket_address(REMOTE, 80), None).unwrap();
        let server = loop {
            poll(local, remote);
            if let Poll::Ready(server) = remote.tcp_accept(listener) {
                break server.unwrap();
            }
        };
        let mut transferred = 0;
        while local.tcp_state(client).unwrap() != TcpState::Established {
            poll(local, remote);
        }
        while transferred < 50_000 {
            let _ = local.tcp_send(client, |space| space.len());
            poll(local, remote);
            while let Poll::Ready(count) =
                remote.tcp_receive(server, |bytes| (bytes.len(), bytes.len()))
            {
                transferred += count.unwrap();
            }
        }
        while local.next_ready().is_some() || remote.next_ready().is_some() {}
        local.abort(client).unwrap();
        poll(local, remote);
        remote.close(server).unwrap();
        poll(local, remote);
    }
    let rejected = local.tcp_connect(socket_address(REMOTE, 81), None).unwrap();
    poll(local, remote);
    local.close(rejected).unwrap();
    for _ in 0..10 {
        poll(local, remote);
    }
    expect_ready(local.udp_send(client, Some(socket_address(REMOTE, 7)), 0, |_| ()));
}
