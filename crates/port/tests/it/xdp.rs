//! AF_XDP ports on real veth pairs, in namespaces.

pub mod end;
pub mod net;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use end::{TestPort, free_frames, length, open_pair, receive};
use linerate_port::{AnyPort, FrameCopy, Port, PortError, PortQueues, RxQueue, TxQueue};
use linerate_sys::frames::burst::Burst;
use net::{in_namespace, ip, ip_link, memory, open, pair, try_open};

fn frames_cross(mode: &str) {
    const FRAMES: u32 = 5_000;
    const STEP: u32 = 500;
    let (a, b) = (format!("xdp:va,mode={mode}"), format!("xdp:vb,mode={mode}"));
    let Some((mut local, mut remote)) = open_pair(&a, &b) else {
        return;
    };
    let memory = local.memory.clone();
    for end in [&local, &remote] {
        let capabilities = end.port.capabilities();
        assert!(end.has_note(&format!("XDP {mode}")), "{capabilities:?}");
        assert!(end.has_note("copy: the kernel copies"), "{capabilities:?}");
        assert_eq!(capabilities.copies, FrameCopy::InKernel);
        assert!(capabilities.address.is_some());
    }
    let mut got = Vec::new();
    for start in (0..FRAMES).step_by(STEP as usize) {
        local.send(start..start + STEP, length);
        got.extend(receive(&mut local, &mut remote, STEP as usize));
        // The same number in the other direction, so that all rings of both ends wrap.
        remote.send(start..start + STEP, length);
        receive(&mut remote, &mut local, STEP as usize);
    }
    assert_eq!(got, (0..FRAMES).collect::<Vec<_>>(), "in order, each once");
    let bytes: u64 = (0..FRAMES).map(|number| u64::from(length(number))).sum();
    for end in [&mut local, &mut remote] {
        for totals in [end.received(), end.sent()] {
            assert_eq!((totals.frames, totals.bytes), (u64::from(FRAMES), bytes));
            assert_eq!(totals.total_drops(), 0, "{totals:?}");
        }
    }
    drop((local, remote));
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
        let (Some(local), Some(mut remote)) =
            (open("xdp:va", &memory), TestPort::open("xdp:vb", &memory))
        else {
            return;
        };
        let Some(PortQueues {
            mut receive,
            mut transmit,
            ..
        }) = local.into_iter().next()
        else {
            panic!("a port has a queue")
        };
        let (memory, end) = (&memory, Instant::now() + end::TIMEOUT);
        // Not more in flight than a ring holds, so that none is lost.
        let (sent_total, echoed) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
        let is_running = move || echoed.load(Relaxed) < FRAMES && Instant::now() < end;
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut pool, mut burst) = (memory.pool(), Burst::new());
                while is_running() {
                    let sent = sent_total.load(Relaxed);
                    let in_flight = sent - echoed.load(Relaxed);
                    while sent + burst.len() < FRAMES && in_flight < 500 && !burst.is_full() {
                        let Some(mut frame) = pool.allocate() else {
                            break;
                        };
                        frame.set_len(60);
                        memory.bytes_mut(&mut frame).fill(0xff);
                        burst.push(frame).unwrap();
                    }
                    sent_total.fetch_add(transmit.transmit(&mut pool, &mut burst), Relaxed);
                    thread::yield_now();
                }
                pool.free_all(&mut burst);
            });
            scope.spawn(move || {
                let (mut pool, mut burst) = (memory.pool(), Burst::new());
                while is_running() {
                    echoed.fetch_add(receive.receive(&mut pool, &mut burst), Relaxed);
                    pool.free_all(&mut burst);
                    thread::yield_now();
                }
            });
            let mut burst = Burst::new();
            while is_running() {
                remote.port.receive(&mut remote.pool, &mut burst);
                remote.port.transmit(&mut remote.pool, &mut burst);
                thread::yield_now();
            }
        });
        assert_eq!(
            (sent_total.load(Relaxed), echoed.load(Relaxed)),
            (FRAMES, FRAMES)
        );
        assert_eq!(remote.received().total_drops(), 0);
        drop(remote);
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
        let (Some(mut local), Some(mut remote)) = (
            TestPort::all("xdp:va,q=0-2", &memory),
            TestPort::all("xdp:vb,q=1-2", &memory),
        ) else {
            return;
        };
        assert_eq!((local.len(), remote.len()), (3, 2));
        assert_eq!(remote[0].port.capabilities().name, "xdp:vb queue 1");
        assert!(remote[0].has_note("only frames of the receive queues 1-2"));
        assert!(!local[0].has_note("only frames of the receive queues"));
        for (queue, end) in local.iter_mut().enumerate() {
            let first = 1000 * queue as u32;
            end.send(first..first + 200, length);
        }
        for (at, remote) in remote.iter_mut().enumerate() {
            let first = 1000 * (at as u32 + 1);
            let numbers = receive(&mut local[at + 1], remote, 200);
            assert_eq!(numbers, (first..first + 200).collect::<Vec<_>>());
            let totals = remote.received();
            assert_eq!((totals.frames, totals.total_drops()), (200, 0));
        }
        // Queue 0 has no socket, so its frames go to the kernel's stack and to no other queue.
        let kernel_frames = || {
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
        let end = Instant::now() + end::TIMEOUT;
        while kernel_frames() < 600 {
            local[0].flush();
            assert!(Instant::now() < end, "{} frames at vb", kernel_frames());
        }
        for end in &mut remote {
            let mut held = Vec::new();
            end.receive_into(&mut held);
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
fn a_second_program_is_rejected_with_its_holder_and_the_queue_is_free_afterwards() {
    in_namespace(|| {
        pair(1);
        let memory = memory(&["xdp:va", "xdp:va"]);
        let Some(first) = open("xdp:va", &memory) else {
            return;
        };
        let error = try_open("xdp:va", &memory).map(drop).unwrap_err();
        assert!(matches!(error, PortError::InUse { .. }), "{error}");
        assert!(
            error.to_string().contains("this process has it open"),
            "{error}"
        );
        drop(first);
        // At once: the kernel is still cleaning up, and opening waits for that.
        let second = try_open("xdp:va", &memory).unwrap();
        assert!(ip_link("va").contains("prog/xdp"));
        drop(second);
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
        let Some(end) = TestPort::open("xdp:va", &memory) else {
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
        assert!(error.to_string().contains("loopback traffic"), "{error}");
        // Loopback has no native hook; frames sent on it come back.
        let mut end = TestPort::open("xdp:lo,force", &memory).unwrap();
        let capabilities = end.port.capabilities();
        assert!(
            end.has_note("its driver has no native XDP"),
            "{capabilities:?}"
        );
        end.send(0..100, length);
        let mut frames = Vec::new();
        let timeout = Instant::now() + end::TIMEOUT;
        while frames.len() < 100 {
            end.flush();
            end.receive_into(&mut frames);
            assert!(Instant::now() < timeout, "{}", frames.len());
        }
        end.free(frames);
    });
}

#[test]
fn unavailable_zero_copy_is_reported() {
    in_namespace(|| {
        pair(1);
        let memory = memory(&["xdp:va"]);
        let Some(end) = TestPort::open("xdp:va,zerocopy=no", &memory) else {
            return;
        };
        assert_eq!(end.port.capabilities().copies, FrameCopy::InKernel);
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
fn quirks_of_veth_are_noted() {
    in_namespace(|| {
        pair(1);
        let memory = memory(&["xdp:va", "xdp:vb"]);
        let Some(local) = TestPort::open("xdp:va", &memory) else {
            return;
        };
        let notes = local.port.capabilities();
        assert!(local.has_note("`ethtool -K vb tx off`"), "{notes:?}");
        assert!(local.has_note("`ethtool -K vb gro on`"), "{notes:?}");
        // This end has a program now, so redirects of the other one arrive.
        let remote = TestPort::open("xdp:vb,mode=generic,busy=64,wakeup=no", &memory).unwrap();
        let notes = remote.port.capabilities();
        assert!(!remote.has_note("gro on"), "{notes:?}");
        assert!(remote.has_note("do not pass the generic hook"), "{notes:?}");
        // Some kernel versions do not report the driver's queue; then there is a note.
        let binding = notes.xdp.as_ref().unwrap();
        assert!(!binding.native && !binding.need_wakeup, "{binding:?}");
        let polling = binding.busy_poll.as_ref().unwrap();
        assert_eq!(polling.budget, 64);
        let notes_now = notes.current_notes();
        let without = notes_now
            .iter()
            .any(|note| note.contains("SO_INCOMING_NAPI_ID is 0"));
        assert_eq!(without, polling.napi_id() == 0, "{notes_now:?}");
        let binding = local.port.capabilities().xdp.as_ref().unwrap();
        assert!(binding.native && binding.need_wakeup, "{binding:?}");
        assert_eq!(binding.busy_poll, None);
    });
}

/// Frames also arrive without need-wakeup, and with busy polling.
#[test]
fn options_do_not_change_frames() {
    in_namespace(|| {
        let (a, b) = ("xdp:va,wakeup=no,txd=64", "xdp:vb,busy=64,rxd=64");
        let Some((mut local, mut remote)) = open_pair(a, b) else {
            return;
        };
        for start in (0..1000).step_by(50) {
            local.send(start..start + 50, length);
            let numbers = receive(&mut local, &mut remote, 50);
            assert_eq!(numbers, (start..start + 50).collect::<Vec<_>>());
        }
        assert_eq!(remote.received().total_drops(), 0);
    });
}

/// The handle of a port becomes readable when frames wait, so that a loop may sleep.
#[test]
fn a_loop_can_sleep_until_frames_come() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    in_namespace(|| {
        let Some((mut local, mut remote)) = open_pair("xdp:va", "xdp:vb") else {
            return;
        };
        let readable = |port: &AnyPort, seconds| {
            let handle = port.wait_handle().unwrap();
            let timeout = Timespec {
                tv_sec: seconds,
                tv_nsec: 0,
            };
            poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout)).unwrap() == 1
        };
        assert!(!readable(&remote.port, 0));
        local.send(0..5, |_| 60);
        local.flush();
        assert!(readable(&remote.port, 20));
        assert_eq!(receive(&mut local, &mut remote, 5).len(), 5);
        assert!(!readable(&remote.port, 0));
    });
}

#[test]
fn the_default_route_is_rejected_unless_forced() {
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
