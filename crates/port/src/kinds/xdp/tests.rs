//! Tests that need no interface, and one of the state that a closed port leaves.

use std::fs;
use std::io;
use std::process::Command;

use linerate_sys::namespace;
use linerate_sys::namespace::NamespaceKind;

use super::*;
use crate::counters::DropCause;

fn parse(text: &str) -> Result<PortUrl, PortError> {
    text.parse()
}

#[test]
fn keys_are_checked_before_the_machine_is_accessed() {
    for (text, want) in [
        ("xdp:", "names no interface"),
        (
            "xdp:va,rxd=18",
            "`rxd=18` in `xdp:va,rxd=18` is not a power of two",
        ),
        ("xdp:va,txd=100", "give one like `txd=128`"),
        ("xdp:va,mode=fast", "one of auto, native, generic"),
        ("xdp:va,q=3-1", "is not a range of queues"),
        ("xdp:va,q=0-1,queues=3", "as many as `q=` selects, 2"),
        (
            "xdp:va,mode=generic,zerocopy=yes",
            "the kernel always copies",
        ),
        ("xdp:va,busy=0", "a number from 1 to 65535"),
        ("xdp:va,wakeup=maybe", "is not a flag"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.is_usage(), "{text}: {error}");
        assert!(error.to_string().contains(want), "{text}: {error}");
    }
    for (text, expected) in [
        ("xdp:va", 0..=0),
        ("xdp:va,q=2", 2..=2),
        ("xdp:va,q=0-1,queues=2", 0..=1),
        ("xdp:va,queues=4", 0..=3),
    ] {
        assert_eq!(queue_range(&parse(text).unwrap()), expected, "{text}");
    }
}

#[test]
fn memory_has_room_for_all_rings_of_all_queues() {
    for (text, frames, slot_bytes) in [
        ("xdp:va", 2 * (1024 + 1024) + 512, 2048),
        ("xdp:va,q=0-1", 2 * (2 * (1024 + 1024) + 512), 2048),
        ("xdp:va,queues=2", 2 * (2 * (1024 + 1024) + 512), 2048),
        ("xdp:va,rxd=64,txd=32", 2 * (64 + 32) + 512, 2048),
        ("xdp:va,mtu=1774", 4608, 2048),
        ("xdp:va,mtu=1775", 4608, 4096),
        ("xdp:va,mtu=3822", 4608, 4096),
    ] {
        let plan = parse(text).unwrap().memory_plan();
        assert_eq!(plan.frames, frames, "{text}");
        assert_eq!(plan.slot_bytes(), slot_bytes, "{text}");
    }
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    let url = parse("xdp:no-such-link").unwrap();
    let memory = FrameRegion::new(url.memory_plan()).unwrap();
    let error = crate::open(&url, &memory).map(drop).unwrap_err();
    assert!(matches!(error, PortError::NoInterface { .. }), "{error}");
    // A memory planned for other ports: slots of another size cannot be shared with the kernel.
    let memory = FrameRegion::new(MemoryPlan::default()).unwrap();
    let error = crate::open(&url, &memory).map(drop).unwrap_err();
    assert!(matches!(error, PortError::MemoryTooSmall { .. }), "{error}");
}

#[test]
fn frames_larger_than_a_page_are_refused_with_the_largest_mtu() {
    let text = format!("xdp:va,mtu={}", rustix::param::page_size().min(60_000));
    let url = parse(&text).unwrap();
    let memory = FrameRegion::new(MemoryPlan {
        frames: 4,
        ..url.memory_plan()
    })
    .unwrap();
    let Err(error) = check_slot_fits_page(&url, &memory) else {
        panic!("{memory:?}")
    };
    let max_mtu = rustix::param::page_size() - 256 - 18;
    assert!(
        error.to_string().contains(&format!("`mtu={max_mtu}`")),
        "{error}"
    );
}

#[test]
fn a_failed_bind_names_what_to_do() {
    let url = parse("xdp:va,q=1").unwrap();
    let link = XdpLinkInfo {
        name: "va".to_owned(),
        ..XdpLinkInfo::default()
    };
    for (code, copy_policy, missing, text) in [
        (
            libc::EBUSY,
            CopyPolicy::Either,
            false,
            "select another one with `q=`",
        ),
        (
            libc::EOPNOTSUPP,
            CopyPolicy::ZeroCopy,
            true,
            "leave out `zerocopy=yes`",
        ),
        (libc::EINVAL, CopyPolicy::Copy, false, "`ethtool -l va`"),
        (libc::ENETDOWN, CopyPolicy::Copy, false, "`va` is down"),
    ] {
        let source = io::Error::from_raw_os_error(code);
        let error = kernel_errors::bind_error(&url, "xdp:va", 1, copy_policy, &link, source);
        assert_eq!(error.is_missing_privilege(), missing, "{error}");
        assert!(error.to_string().contains(text), "{error}");
        assert!(!error.to_report().next_step.is_empty(), "{error}");
    }
    for (error, text) in [
        (
            kernel_errors::socket_error("xdp:va", io::Error::from_raw_os_error(libc::EPERM)),
            "CAP_NET_RAW",
        ),
        (
            kernel_errors::socket_error("xdp:va", io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
            "CONFIG_XDP_SOCKETS",
        ),
        (
            kernel_errors::busy_poll_error("xdp:va", io::Error::from_raw_os_error(libc::EPERM)),
            "CAP_NET_ADMIN",
        ),
        (
            kernel_errors::busy_poll_error(
                "xdp:va",
                io::Error::from_raw_os_error(libc::ENOPROTOOPT),
            ),
            "Linux 5.11",
        ),
    ] {
        assert!(
            error.is_missing_privilege() && error.to_string().contains(text),
            "{error}"
        );
    }
}

#[test]
fn the_kernels_counters_become_causes() {
    let before = XskStatistics {
        rx_dropped: 10,
        rx_invalid: 1,
        tx_invalid: 0,
        rx_ring_full: Some(5),
        fill_ring_empty: Some(6),
        tx_ring_empty: Some(0),
    };
    let now = XskStatistics {
        rx_dropped: 30,
        rx_invalid: 3,
        rx_ring_full: Some(12),
        fill_ring_empty: Some(21),
        ..before
    };
    let lost = |zero_copy| socket_queues::lost_between(before, now, zero_copy);
    let copied = [
        (DropCause::RingFull, 7),
        (DropCause::NoBuffer, 15),
        (DropCause::TooLong, 5),
        (DropCause::Invalid, 2),
    ];
    assert_eq!(lost(false), copied);
    // With zero-copy an empty fill ring counts checks, not frames.
    assert_eq!(
        lost(true)[1..3],
        [(DropCause::NoBuffer, 0), (DropCause::TooLong, 20)]
    );
    let first = socket_queues::lost_between(XskStatistics::default(), now, false);
    let first = first.map(|(_, frames)| frames);
    assert_eq!(first, [12, 21, 9, 3], "from the start");
    let old = XskStatistics {
        rx_ring_full: None,
        fill_ring_empty: None,
        ..now
    };
    let lost = socket_queues::lost_between(before, old, false);
    assert_eq!(
        lost[..3],
        [
            (DropCause::RingFull, 0),
            (DropCause::NoBuffer, 0),
            (DropCause::TooLong, 20)
        ]
    );
}

/// Frames sent by `va`, as counted by the kernel.
fn sent_by_va() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("va:"));
    let fields = line.expect("it is there").split_whitespace();
    fields
        .clone()
        .nth(9)
        .and_then(|field| field.parse().ok())
        .unwrap()
}

/// A busy kernel leaves frames in the ring, which are counted as sent: they must leave before the
/// socket is closed.
#[test]
fn pending_frames_are_sent_before_the_socket_is_closed() {
    let running = thread::spawn(|| {
        if let Err(error) = namespace::unshare(NamespaceKind::Net) {
            println!("skipped: no network namespace ({error}): run as root");
            return;
        }
        // No address, and no traffic of its own.
        let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        for args in [
            "link add va type veth peer name vb",
            "link set va up",
            "link set vb up",
        ] {
            match Command::new("ip").args(args.split(' ')).status() {
                Ok(status) if status.success() => {}
                result => {
                    println!("skipped: no veth pair: {result:?}");
                    return;
                }
            }
        }
        let url = parse("xdp:va").unwrap();
        let memory = FrameRegion::new(url.memory_plan()).unwrap();
        let port = match crate::open(&url, &memory) {
            Ok(mut ports) => ports.remove(0),
            Err(error) if error.is_missing_privilege() => {
                println!("skipped: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let AnyPort {
            receive, transmit, ..
        } = port;
        let crate::AnyTransmit::Xdp(mut transmit) = transmit else {
            panic!("an xdp: port sends through AF_XDP");
        };
        let mut pool = memory.pool();
        let rings = transmit.rings.as_mut().unwrap();
        rings.free_slots();
        // More than the kernel takes in one call.
        for _ in 0..100 {
            let mut frame = pool.allocate().unwrap();
            frame.set_len(60);
            memory.bytes_mut(&mut frame).fill(0xff);
            rings.push(frame).unwrap();
        }
        rings.publish();
        assert_eq!(sent_by_va(), 0, "the kernel was not woken yet");
        drop(transmit);
        assert_eq!(sent_by_va(), 100);
        drop(receive);
    });
    if let Err(panic) = running.join() {
        std::panic::resume_unwind(panic);
    }
}
