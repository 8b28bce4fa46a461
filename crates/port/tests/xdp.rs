//! AF_XDP ports on real veth pairs, in namespaces.

#[path = "xdp/end.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod end;
#[path = "xdp/net.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod net;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use end::{End, free_frames, length, receive};
use linerate_port::{AnyPort, Burst, Copies, Pair, Port, PortError, Receive, Transmit};
use net::{in_namespace, ip, ip_link, memory, open, pair, try_open};

fn frames_cross(mode: &str) {
    const FRAMES: u32 = 5_000;
    const STEP: u32 = 500;
    pair(1);
    let (a, b) = (format!("xdp:va,mode={mode}"), format!("xdp:vb,mode={mode}"));
    let memory = memory(&[&a, &b]);
    let (Some(mut near), Some(mut far)) = (End::open(&a, &memory), End::open(&b, &memory)) else {
        return;
    };
    for end in [&near, &far] {
        let capabilities = end.port.capabilities();
        assert!(end.has_note(&format!("XDP {mode}")), "{capabilities:?}");
        assert!(end.has_note("copy: the kernel copies"), "{capabilities:?}");
        assert_eq!(capabilities.copies, Copies::InKernel);
        assert!(capabilities.address.is_some());
    }
    let mut got = Vec::new();
    for start in (0..FRAMES).step_by(STEP as usize) {
        near.send(start..start + STEP, length);
        got.extend(receive(&mut near, &mut far, STEP as usize));
        // The same number in the other direction, so that all rings of both ends wrap.
        far.send(start..start + STEP, length);
        receive(&mut far, &mut near, STEP as usize);
    }
    assert_eq!(got, (0..FRAMES).collect::<Vec<_>>(), "in order, each once");
    let bytes: u64 = (0..FRAMES).map(|number| u64::from(length(number))).sum();
    for end in [&mut near, &mut far] {
        for totals in [end.received(), end.sent()] {
            assert_eq!((totals.frames, totals.bytes), (u64::from(FRAMES), bytes));
            assert_eq!(totals.all_dropped(), 0, "{totals:?}");
        }
    }
    drop((near, far));
    assert_eq!(
        free_frames(&memory),
        memory.frames() as usize,
        "no slot is lost"
    );
    assert!(!ip_link("va").contains("prog/xdp"), "{}", ip_link("va"));
}

#[test]
fn frames_cross_native() {
    in_namespace(|| frames_cross("native"));
}

#[test]
fn frames_cross_generic() {
    in_namespace(|| frames_cross("generic"));
}

/// Both queues of a port, each with its own thread: one sends, the remote end sends all frames
/// back, the other receives.
#[test]
fn both_halves_work_at_once_on_two_threads() {
    const FRAMES: usize = 20_000;
    in_namespace(|| {
        pair(1);
        let memory = memory(&["xdp:va", "xdp:vb"]);
        let (Some(near), Some(mut far)) = (open("xdp:va", &memory), End::open("xdp:vb", &memory))
        else {
            return;
        };
        let Some(Pair {
            mut receive,
            mut transmit,
            ..
        }) = near.into_iter().next()
        else {
            panic!("a port has a queue")
        };
        let (memory, end) = (&memory, Instant::now() + end::PATIENCE);
        // Not more in flight than a ring holds, so that none is lost.
        let (asked, echoed) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
        let going = move || echoed.load(Relaxed) < FRAMES && Instant::now() < end;
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut pool, mut burst) = (memory.pool(), Burst::new());
                while going() {
                    let sent = asked.load(Relaxed);
                    let under_way = sent - echoed.load(Relaxed);
                    while sent + burst.len() < FRAMES && under_way < 500 && !burst.is_full() {
                        let Some(mut frame) = pool.allocate() else {
                            break;
                        };
                        frame.set_len(60);
                        memory.bytes_mut(&mut frame).fill(0xff);
                        burst.push(frame).unwrap();
                    }
                    asked.fetch_add(transmit.transmit(&mut pool, &mut burst), Relaxed);
                    thread::yield_now();
                }
                pool.free_all(&mut burst);
            });
            scope.spawn(move || {
                let (mut pool, mut burst) = (memory.pool(), Burst::new());
                while going() {
                    echoed.fetch_add(receive.receive(&mut pool, &mut burst), Relaxed);
                    pool.free_all(&mut burst);
                    thread::yield_now();
                }
            });
            let mut burst = Burst::new();
            while going() {
                far.port.receive(&mut far.pool, &mut burst);
                far.port.transmit(&mut far.pool, &mut burst);
                thread::yield_now();
            }
        });
        assert_eq!(
            (asked.load(Relaxed), echoed.load(Relaxed)),
            (FRAMES, FRAMES)
        );
        assert_eq!(far.received().all_dropped(), 0);
        drop(far);
        assert_eq!(
            free_frames(memory),
            memory.frames() as usize,
            "no slot is lost"
        );
    });
}

#[test]
fn each_queue_has_its_own_frames() {
    in_namespace(|| {
        pair(3);
        let memory = memory(&["xdp:va,q=0-2", "xdp:vb,q=1-2"]);
        let (Some(mut near), Some(mut far)) = (
            End::all("xdp:va,q=0-2", &memory),
            End::all("xdp:vb,q=1-2", &memory),
        ) else {
            return;
        };
        assert_eq!((near.len(), far.len()), (3, 2));
        assert_eq!(far[0].port.capabilities().name, "xdp:vb queue 1");
        assert!(far[0].has_note("only frames of the receive queues 1-2"));
        assert!(!near[0].has_note("only frames of the receive queues"));
        for (queue, end) in near.iter_mut().enumerate() {
            let first = 1000 * queue as u32;
            end.send(first..first + 200, length);
        }
        for (at, far) in far.iter_mut().enumerate() {
            let first = 1000 * (at as u32 + 1);
            let numbers = receive(&mut near[at + 1], far, 200);
            assert_eq!(numbers, (first..first + 200).collect::<Vec<_>>());
            let totals = far.received();
            assert_eq!((totals.frames, totals.all_dropped()), (200, 0));
        }
        // Queue 0 has no socket, so its frames go to the kernel's stack and to no other queue.
        let kernels = || {
            let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
            let line = text
                .lines()
                .find(|line| line.trim().starts_with("vb:"))
                .unwrap();
            let fields: Vec<u64> = line
                .split_whitespace()
                .skip(1)
                .map(|n| n.parse().unwrap())
                .collect();
            fields[1]
        };
        let end = Instant::now() + end::PATIENCE;
        while kernels() < 600 {
            near[0].push();
            assert!(Instant::now() < end, "{} frames at vb", kernels());
        }
        for end in &mut far {
            let mut held = Vec::new();
            end.take(&mut held);
            assert!(held.is_empty(), "{held:?}");
        }
        let error = try_open("xdp:va,q=3", &memory).map(drop).unwrap_err();
        assert!(
            error.is_usage() && error.to_string().contains("0 to 2"),
            "{error}"
        );
    });
}

#[test]
fn a_second_program_is_refused_with_its_holder_and_the_queue_is_free_afterwards() {
    in_namespace(|| {
        pair(1);
        let memory = memory(&["xdp:va", "xdp:va"]);
        let Some(first) = open("xdp:va", &memory) else {
            return;
        };
        let error = try_open("xdp:va", &memory).map(drop).unwrap_err();
        assert!(matches!(error, PortError::Taken { .. }), "{error}");
        assert!(
            error.to_string().contains("this process has it open"),
            "{error}"
        );
        drop(first);
        // At once: the kernel is still cleaning up, and opening waits for that.
        let again = try_open("xdp:va", &memory).unwrap();
        assert!(ip_link("va").contains("prog/xdp"));
        drop(again);
        assert!(!ip_link("va").contains("prog/xdp"));
    });
}

#[test]
fn generic_takes_over_where_native_cannot_be() {
    in_namespace(|| {
        pair(1);
        for name in ["va", "vb"] {
            ip(&format!("link set {name} mtu 9000"));
        }
        ip("link set lo up");
        let memory = memory(&["xdp:va", "xdp:lo"]);
        let Some(end) = End::open("xdp:va", &memory) else {
            return;
        };
        let capabilities = end.port.capabilities();
        assert!(
            end.has_note("XDP generic, because its MTU of 9000"),
            "{capabilities:?}"
        );
        assert!(end.has_note("frames longer than 1792"), "{capabilities:?}");
        drop(end);
        let error = try_open("xdp:va,mode=native", &memory)
            .map(drop)
            .unwrap_err();
        assert!(error.is_missing_privilege(), "{error}");
        assert!(error.to_string().contains("set a smaller MTU"), "{error}");

        // This host's connections to itself would be cut off, so `force` is required.
        let error = try_open("xdp:lo", &memory).map(drop).unwrap_err();
        assert!(
            error.to_string().contains("connections to itself"),
            "{error}"
        );
        // Loopback has no native hook; frames sent on it come back.
        let mut end = End::open("xdp:lo,force", &memory).unwrap();
        let capabilities = end.port.capabilities();
        assert!(
            end.has_note("its driver has no native XDP"),
            "{capabilities:?}"
        );
        end.send(0..100, length);
        let mut held = Vec::new();
        let patience = Instant::now() + end::PATIENCE;
        while held.len() < 100 {
            end.push();
            end.take(&mut held);
            assert!(Instant::now() < patience, "{}", held.len());
        }
        end.free(held);
    });
}

#[test]
fn zero_copy_that_cannot_be_had_is_told() {
    in_namespace(|| {
        pair(1);
        let memory = memory(&["xdp:va"]);
        let Some(end) = End::open("xdp:va,zerocopy=no", &memory) else {
            return;
        };
        assert_eq!(end.port.capabilities().copies, Copies::InKernel);
        drop(end);
        let error = try_open("xdp:va,zerocopy=yes", &memory)
            .map(drop)
            .unwrap_err();
        assert!(error.is_missing_privilege(), "{error}");
        assert!(
            error.to_string().contains("zero-copy for its driver"),
            "{error}"
        );
        // The failed attempt left nothing.
        assert!(!ip_link("va").contains("prog/xdp"), "{}", ip_link("va"));
        assert_eq!(free_frames(&memory), memory.frames() as usize);
    });
}

#[test]
fn traps_of_veth_are_named() {
    in_namespace(|| {
        pair(1);
        let memory = memory(&["xdp:va", "xdp:vb"]);
        let Some(near) = End::open("xdp:va", &memory) else {
            return;
        };
        let notes = near.port.capabilities();
        assert!(near.has_note("`ethtool -K vb tx off`"), "{notes:?}");
        assert!(near.has_note("`ethtool -K vb gro on`"), "{notes:?}");
        // This end has a program now, so redirects of the other one arrive.
        let far = End::open("xdp:vb,mode=generic,busy=64,wakeup=no", &memory).unwrap();
        let notes = far.port.capabilities();
        assert!(!far.has_note("gro on"), "{notes:?}");
        assert!(far.has_note("do not pass the generic hook"), "{notes:?}");
        // Some kernel versions do not report the driver's queue; then there is a note.
        let binding = notes.xdp.as_ref().unwrap();
        assert!(!binding.native && !binding.need_wakeup, "{binding:?}");
        let polling = binding.busy_poll.as_ref().unwrap();
        assert_eq!(polling.budget, 64);
        let told = notes.notes_so_far();
        let without = told
            .iter()
            .any(|note| note.contains("SO_INCOMING_NAPI_ID is 0"));
        assert_eq!(without, polling.napi_id() == 0, "{told:?}");
        let binding = near.port.capabilities().xdp.as_ref().unwrap();
        assert!(binding.native && binding.need_wakeup, "{binding:?}");
        assert_eq!(binding.busy_poll, None);
    });
}

/// Frames also arrive without need-wakeup, and with busy polling.
#[test]
fn options_keep_frames_whole() {
    in_namespace(|| {
        pair(1);
        let (a, b) = ("xdp:va,wakeup=no,txd=64", "xdp:vb,busy=64,rxd=64");
        let memory = memory(&[a, b]);
        let (Some(mut near), Some(mut far)) = (End::open(a, &memory), End::open(b, &memory)) else {
            return;
        };
        for start in (0..1000).step_by(50) {
            near.send(start..start + 50, length);
            let numbers = receive(&mut near, &mut far, 50);
            assert_eq!(numbers, (start..start + 50).collect::<Vec<_>>());
        }
        assert_eq!(far.received().all_dropped(), 0);
    });
}

/// The handle of a port becomes readable when frames wait, so that a loop may sleep.
#[test]
fn a_loop_can_sleep_until_frames_come() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    in_namespace(|| {
        pair(1);
        let memory = memory(&["xdp:va", "xdp:vb"]);
        let (Some(mut near), Some(mut far)) =
            (End::open("xdp:va", &memory), End::open("xdp:vb", &memory))
        else {
            return;
        };
        let readable = |port: &AnyPort, seconds| {
            let handle = port.wait_handle().unwrap();
            let patience = Timespec {
                tv_sec: seconds,
                tv_nsec: 0,
            };
            poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&patience)).unwrap() == 1
        };
        assert!(!readable(&far.port, 0));
        near.send(0..5, |_| 60);
        near.push();
        assert!(readable(&far.port, 20));
        assert_eq!(receive(&mut near, &mut far, 5).len(), 5);
        assert!(!readable(&far.port, 0));
    });
}

#[test]
fn the_default_route_is_refused_unless_forced() {
    in_namespace(|| {
        pair(1);
        ip("address add 192.0.2.1/24 dev va");
        ip("route add default via 192.0.2.2 dev va");
        let memory = memory(&["xdp:va"]);
        let error = try_open("xdp:va", &memory).map(drop).unwrap_err();
        assert!(matches!(error, PortError::InterfaceInUse { .. }), "{error}");
        drop(open("xdp:va,force", &memory));
    });
}
