//! The memory computed for a configuration is what a stack allocates, and it allocates nothing
//! afterwards.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::task::Poll;

use common::{FAR, NEAR, NEAR_V6, addressing, any, at, ready};
use linerate_host::sys::cpu::ThreadEvents;
use linerate_port::{Memory, PortUrl};
use linerate_stack::{Config, PROFILES, Stack, TcpState, memory_plan};

struct Counting;

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
unsafe impl GlobalAlloc for Counting {
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
static ALLOCATOR: Counting = Counting;

fn counted() -> (i64, u64) {
    (BYTES.get(), CALLS.get())
}

#[test]
fn computed_is_allocated_and_nothing_comes_later() {
    for (name, ..) in PROFILES {
        let config = Config::profile(name).unwrap();
        let urls: [PortUrl; 2] = ["a", "b"].map(|end| format!("ring:m,end={end}").parse().unwrap());
        let account = config.memory(&urls[0]);
        let plan = memory_plan(&config, &urls[0]);
        assert_eq!(
            (account.frames, account.slot_bytes),
            (plan.frames, plan.slot_bytes())
        );
        let memory = Memory::new(plan.joined(memory_plan(&config, &urls[1]))).unwrap();
        let mapped = 2 * account.frame_bytes();
        // Mappings consist of whole huge pages.
        assert_eq!(
            memory.mapped_bytes(),
            mapped.next_multiple_of(2 << 20),
            "{name}"
        );

        let mut stacks: Vec<Stack> = Vec::with_capacity(2);
        for (url, address) in urls.iter().zip([NEAR, FAR]) {
            let port = linerate_port::open(url, &memory).unwrap().remove(0);
            let own = addressing(address, NEAR_V6);
            let (before, _) = counted();
            stacks.push(Stack::new(port, &memory, &config, &own).unwrap());
            let taken = counted().0 - before;
            assert_eq!(taken, account.heap_bytes() as i64, "{name}: {account:#?}");
        }
        let items: usize = account.items().map(|item| item.bytes).sum();
        assert_eq!(items, account.bytes());

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
fn pair(config: &Config, name: &str) -> [Stack; 2] {
    let urls: [PortUrl; 2] =
        ["a", "b"].map(|end| format!("ring:{name},end={end}").parse().unwrap());
    let plan = memory_plan(config, &urls[0]).joined(memory_plan(config, &urls[1]));
    let memory = Memory::new(plan).unwrap();
    let mut addresses = [NEAR, FAR].into_iter();
    urls.map(|url| {
        let port = linerate_port::open(&url, &memory).unwrap().remove(0);
        let own = addressing(addresses.next().unwrap(), NEAR_V6);
        Stack::new(port, &memory, config, &own).unwrap()
    })
}

/// A page fault costs as much as some packets, in the middle of a measurement.
#[test]
fn what_was_allocated_is_not_faulted_in_by_traffic() {
    let config = Config::profile("default").unwrap();
    // The first pair takes the faults of first use, such as the program's own pages. It stays
    // alive, so that its memory is not reused by the second.
    let mut first = pair(&config, "first");
    traffic(&mut first);
    let mut stacks = pair(&config, "second");
    let before = ThreadEvents::now().minor_faults;
    traffic(&mut stacks);
    let faults = ThreadEvents::now().minor_faults - before;
    // There were some sixty while buffers were only allocated; a few are caused by the kernel
    // itself.
    assert!(faults < 16, "{faults} pages were not there");
}

/// Short and long datagrams, streams in both directions, many connections, and a silent neighbour.
fn traffic(stacks: &mut [Stack]) {
    let [near, far] = stacks else { unreachable!() };
    let mut now = 1_000_000;
    let mut turn = |near: &mut Stack, far: &mut Stack| {
        now += 20_000;
        near.turn(now);
        far.turn(now);
    };
    let server = far.udp_bind(any(7)).unwrap();
    let client = near.udp_bind(any(0)).unwrap();
    let _ = near.udp_send(client, Some(at("10.0.0.99", 7)), 10, |_| ());
    let mut got = 0;
    for round in 0..400 {
        let bytes = if round % 10 == 0 { 5_000 } else { 64 };
        let _ = near.udp_send(client, Some(at(FAR, 7)), bytes, |payload| payload.fill(1));
        turn(near, far);
        while let Poll::Ready(from) = far.udp_receive(server, |_, meta| meta.from) {
            got += 1;
            let _ = far.udp_send(server, from.ok(), 64, |payload| payload.fill(2));
        }
        while near.udp_receive(client, |_, _| ()).is_ready() {}
    }
    assert!(got > 300, "{got}");
    let listener = far.tcp_listen(any(80), 2).unwrap();
    for _ in 0..20 {
        let client = near.tcp_connect(at(FAR, 80), None).unwrap();
        let server = loop {
            turn(near, far);
            if let Poll::Ready(server) = far.tcp_accept(listener) {
                break server.unwrap();
            }
        };
        let mut moved = 0;
        while near.tcp_state(client).unwrap() != TcpState::Established {
            turn(near, far);
        }
        while moved < 50_000 {
            let _ = near.tcp_send(client, |room| room.len());
            turn(near, far);
            while let Poll::Ready(count) =
                far.tcp_receive(server, |bytes| (bytes.len(), bytes.len()))
            {
                moved += count.unwrap();
            }
        }
        while near.ready().is_some() || far.ready().is_some() {}
        near.abort(client).unwrap();
        turn(near, far);
        far.close(server).unwrap();
        turn(near, far);
    }
    let refused = near.tcp_connect(at(FAR, 81), None).unwrap();
    turn(near, far);
    near.close(refused).unwrap();
    for _ in 0..10 {
        turn(near, far);
    }
    ready(near.udp_send(client, Some(at(FAR, 7)), 0, |_| ()));
}
