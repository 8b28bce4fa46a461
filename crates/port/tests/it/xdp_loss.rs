//! Frames that an AF_XDP port loses are counted with their causes: on real veth pairs, in
//! namespaces.

use std::time::Instant;

use crate::xdp::end::{TIMEOUT, TestPort, free_frames, open_pair, receive, settle};
use crate::xdp::net::{in_namespace, ip, memory, pair};
use linerate_port::{DropCause, Port, PortError, PortUrl};
use linerate_sys::frames::burst::Burst;
use linerate_sys::frames::frame::Frame;
use linerate_sys::frames::frame_memory::{FrameRegion, MemoryPlan};

/// A ring that is not emptied loses frames as ring full, an exhausted memory as no buffer, and
/// frames longer than a buffer are too long: all frames sent are accounted for.
fn every_lost_frame_has_its_cause(mode: &str) {
    pair(1);
    for name in ["va", "vb"] {
        ip(&format!("link set {name} mtu 1900"));
    }
    let a = format!("xdp:va,mode={mode},mtu=1900");
    let b = format!("xdp:vb,mode={mode},rxd=64");
    let (sending, receiving) = (memory(&[&a]), memory(&[&b]));
    let (Some(mut local), Some(mut remote)) =
        (TestPort::open(&a, &sending), TestPort::open(&b, &receiving))
    else {
        return;
    };
    assert!(remote.has_note("frames longer than 1792 bytes are lost"));

    local.send(0..300, |_| 60);
    let full = settle(&mut local, &mut remote, |totals| {
        totals.total_drops() == 236
    });
    assert_eq!(full.drops_by(DropCause::RingFull), 236, "{full:?}");
    assert_eq!(receive(&mut local, &mut remote, 64).len(), 64);

    let before = remote.received();
    local.send(0..10, |_| 1793);
    local.send(10..20, |_| 1792);
    let numbers = receive(&mut local, &mut remote, 10);
    assert_eq!(numbers, (10..20).collect::<Vec<_>>());
    let long = remote.received().since(before);
    assert_eq!(long.drops_by(DropCause::TooLong), 10, "{long:?}");
    assert_eq!((long.frames, long.total_drops()), (10, 10), "{long:?}");

    // All frames are withheld: those given to the kernel arrive, the others find no buffer.
    let before = remote.received();
    let withheld: Vec<Frame> = std::iter::from_fn(|| remote.pool.allocate()).collect();
    let mut received = Vec::new();
    let end = Instant::now() + TIMEOUT;
    for start in (0..300).step_by(30) {
        local.send(start..start + 30, |_| 60);
        loop {
            local.flush();
            remote.receive_into(&mut received);
            let totals = remote.received().since(before);
            if totals.frames + totals.total_drops() == u64::from(start) + 30 {
                break;
            }
            assert!(Instant::now() < end, "{totals:?}");
        }
    }
    let none = remote.received().since(before);
    // Twice the ring was given to the kernel, minus less than a burst that had just come back.
    assert!((97..=128).contains(&none.frames), "{none:?}");
    assert_eq!(
        none.drops_by(DropCause::NoBuffer),
        300 - none.frames,
        "{none:?}"
    );
    assert_eq!(none.total_drops(), 300 - none.frames, "{none:?}");

    // After freeing them it continues: an empty fill ring is filled before frames arrive.
    remote.free(withheld.into_iter().chain(received));
    remote.receive_into(&mut Vec::new());
    local.send(0..60, |_| 60);
    assert_eq!(receive(&mut local, &mut remote, 60).len(), 60);
    assert_eq!(local.sent().total_drops(), 0);
    drop((local, remote));
    assert_eq!(free_frames(&sending), sending.frames() as usize);
    assert_eq!(free_frames(&receiving), receiving.frames() as usize);
}

#[test]
fn every_frame_lost_in_native_mode_has_its_cause() {
    in_namespace(|| every_lost_frame_has_its_cause("native"));
}

#[test]
fn every_frame_lost_in_generic_mode_has_its_cause() {
    in_namespace(|| every_lost_frame_has_its_cause("generic"));
}

/// The frames of a tiny memory pass through it many times, and in every third round all are
/// withheld.
#[test]
fn a_starved_ring_recovers() {
    in_namespace(|| {
        pair(1);
        let url = "xdp:vb,rxd=32,txd=32";
        let sending = memory(&["xdp:va"]);
        let receiving = FrameRegion::new(MemoryPlan {
            frames: 40,
            ..url.parse::<PortUrl>().unwrap().memory_plan()
        })
        .unwrap();
        let (Some(mut local), Some(mut remote)) = (
            TestPort::open("xdp:va", &sending),
            TestPort::open(url, &receiving),
        ) else {
            return;
        };
        let end = Instant::now() + TIMEOUT;
        let mut got = 0;
        for round in 1..=200_u64 {
            local.send(0..32, |_| 60);
            let mut held = Vec::new();
            loop {
                local.flush();
                remote.receive_into(&mut held);
                if round % 3 != 0 {
                    got += held.len() as u64;
                    remote.free(held.drain(..));
                }
                let totals = remote.received();
                if totals.frames + totals.total_drops() == 32 * round {
                    break;
                }
                assert!(Instant::now() < end, "round {round}: {totals:?}");
            }
            got += held.len() as u64;
            remote.free(held);
        }
        let totals = remote.received();
        assert_eq!(got, totals.frames);
        assert_eq!(
            totals.total_drops(),
            totals.drops_by(DropCause::RingFull) + totals.drops_by(DropCause::NoBuffer)
        );
        // After all that, as many frames arrive as there are buffers.
        remote.receive_into(&mut Vec::new());
        local.send(0..30, |_| 60);
        assert_eq!(receive(&mut local, &mut remote, 30).len(), 30);
        assert_eq!(remote.received().total_drops(), totals.total_drops());
    });
}

#[test]
fn unsent_frames_are_counted_and_returned() {
    in_namespace(|| {
        let Some((mut local, mut remote)) = open_pair("xdp:va", "xdp:vb") else {
            return;
        };
        let memory = local.memory.clone();
        let mut burst = Burst::new();
        for length in [0, 13, 14, 1518, 1519, 60] {
            let mut frame = local.frame(0, 1519).unwrap();
            frame.set_len(length);
            burst.push(frame).unwrap();
        }
        assert_eq!(local.port.transmit(&mut local.pool, &mut burst), 6);
        let sent = local.sent();
        assert_eq!((sent.frames, sent.bytes), (3, 14 + 1518 + 60), "{sent:?}");
        assert_eq!(sent.drops_by(DropCause::Invalid), 2, "{sent:?}");
        assert_eq!(sent.drops_by(DropCause::TooLong), 1, "{sent:?}");
        let mut received = Vec::new();
        let end = Instant::now() + TIMEOUT;
        while received.len() < 3 {
            local.flush();
            remote.receive_into(&mut received);
            assert!(Instant::now() < end, "{received:?}");
        }
        let mut lengths: Vec<u16> = received.iter().map(Frame::len).collect();
        lengths.sort_unstable();
        assert_eq!(lengths, [14, 60, 1518]);
        remote.free(received);

        // An interface that goes down is reported, and neither side loses its memory.
        ip("link set va down");
        local.send(0..1, |_| 60);
        let error = local.port.refresh().unwrap_err();
        assert!(matches!(error, PortError::Stopped { .. }), "{error}");
        assert!(error.to_string().contains("set down"), "{error}");
        // Frames that the kernel left in the ring meanwhile are sent when the interface is up
        // again.
        ip("link set va up");
        assert_eq!(receive(&mut local, &mut remote, 1), [0]);
        local.port.refresh().unwrap();
        ip("link delete va");
        let error = local.port.refresh().unwrap_err();
        assert!(error.to_string().contains("is gone"), "{error}");
        drop((local, remote));
        assert_eq!(free_frames(&memory), memory.frames() as usize);
    });
}
