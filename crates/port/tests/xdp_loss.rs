//! Frames that an AF_XDP port loses are counted with their causes: on real veth pairs, in
//! namespaces.

#[path = "xdp/end.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod end;
#[path = "xdp/net.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod net;

use std::time::Instant;

use end::{End, PATIENCE, free_frames, receive, settle};
use linerate_port::{Burst, Cause, Frame, Memory, MemoryPlan, Port, PortError, PortUrl};
use net::{in_namespace, ip, memory, pair};

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
    let (Some(mut near), Some(mut far)) = (End::open(&a, &sending), End::open(&b, &receiving))
    else {
        return;
    };
    assert!(far.has_note("frames longer than 1792 bytes are lost"));

    near.send(0..300, |_| 60);
    let full = settle(&mut near, &mut far, |totals| totals.all_dropped() == 236);
    assert_eq!(full.dropped(Cause::RingFull), 236, "{full:?}");
    assert_eq!(receive(&mut near, &mut far, 64).len(), 64);

    let before = far.received();
    near.send(0..10, |_| 1793);
    near.send(10..20, |_| 1792);
    let numbers = receive(&mut near, &mut far, 10);
    assert_eq!(numbers, (10..20).collect::<Vec<_>>());
    let long = far.received().since(before);
    assert_eq!(long.dropped(Cause::TooLong), 10, "{long:?}");
    assert_eq!((long.frames, long.all_dropped()), (10, 10), "{long:?}");

    // All frames are withheld: those given to the kernel arrive, the others find no buffer.
    let before = far.received();
    let kept: Vec<Frame> = std::iter::from_fn(|| far.pool.allocate()).collect();
    let mut held = Vec::new();
    let end = Instant::now() + PATIENCE;
    for start in (0..300).step_by(30) {
        near.send(start..start + 30, |_| 60);
        loop {
            near.push();
            far.take(&mut held);
            let totals = far.received().since(before);
            if totals.frames + totals.all_dropped() == u64::from(start) + 30 {
                break;
            }
            assert!(Instant::now() < end, "{totals:?}");
        }
    }
    let none = far.received().since(before);
    // Twice the ring was given to the kernel, minus less than a burst that had just come back.
    assert!((97..=128).contains(&none.frames), "{none:?}");
    assert_eq!(none.dropped(Cause::NoBuffer), 300 - none.frames, "{none:?}");
    assert_eq!(none.all_dropped(), 300 - none.frames, "{none:?}");

    // After freeing them it continues: an empty fill ring is filled before frames arrive.
    far.free(kept.into_iter().chain(held));
    far.take(&mut Vec::new());
    near.send(0..60, |_| 60);
    assert_eq!(receive(&mut near, &mut far, 60).len(), 60);
    assert_eq!(near.sent().all_dropped(), 0);
    drop((near, far));
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
        let receiving = Memory::new(MemoryPlan {
            frames: 40,
            ..url.parse::<PortUrl>().unwrap().memory_plan()
        })
        .unwrap();
        let (Some(mut near), Some(mut far)) =
            (End::open("xdp:va", &sending), End::open(url, &receiving))
        else {
            return;
        };
        let end = Instant::now() + PATIENCE;
        let mut got = 0;
        for round in 1..=200_u64 {
            near.send(0..32, |_| 60);
            let mut held = Vec::new();
            loop {
                near.push();
                far.take(&mut held);
                if round % 3 != 0 {
                    got += held.len() as u64;
                    far.free(held.drain(..));
                }
                let totals = far.received();
                if totals.frames + totals.all_dropped() == 32 * round {
                    break;
                }
                assert!(Instant::now() < end, "round {round}: {totals:?}");
            }
            got += held.len() as u64;
            far.free(held);
        }
        let totals = far.received();
        assert_eq!(got, totals.frames);
        assert_eq!(
            totals.all_dropped(),
            totals.dropped(Cause::RingFull) + totals.dropped(Cause::NoBuffer)
        );
        // After all that, as many frames arrive as there are buffers.
        far.take(&mut Vec::new());
        near.send(0..30, |_| 60);
        assert_eq!(receive(&mut near, &mut far, 30).len(), 30);
        assert_eq!(far.received().all_dropped(), totals.all_dropped());
    });
}

#[test]
fn what_cannot_be_sent_is_counted_and_given_back() {
    in_namespace(|| {
        pair(1);
        let memory = memory(&["xdp:va", "xdp:vb"]);
        let (Some(mut near), Some(mut far)) =
            (End::open("xdp:va", &memory), End::open("xdp:vb", &memory))
        else {
            return;
        };
        let mut burst = Burst::new();
        for length in [0, 13, 14, 1518, 1519, 60] {
            let mut frame = near.frame(0, 1519).unwrap();
            frame.set_len(length);
            burst.push(frame).unwrap();
        }
        assert_eq!(near.port.transmit(&mut near.pool, &mut burst), 6);
        let sent = near.sent();
        assert_eq!((sent.frames, sent.bytes), (3, 14 + 1518 + 60), "{sent:?}");
        assert_eq!(sent.dropped(Cause::Bad), 2, "{sent:?}");
        assert_eq!(sent.dropped(Cause::TooLong), 1, "{sent:?}");
        let mut held = Vec::new();
        let end = Instant::now() + PATIENCE;
        while held.len() < 3 {
            near.push();
            far.take(&mut held);
            assert!(Instant::now() < end, "{held:?}");
        }
        let mut lengths: Vec<u16> = held.iter().map(Frame::len).collect();
        lengths.sort_unstable();
        assert_eq!(lengths, [14, 60, 1518]);
        far.free(held);

        // An interface that goes down is reported, and neither side loses its memory.
        ip("link set va down");
        near.send(0..1, |_| 60);
        let error = near.port.refresh().unwrap_err();
        assert!(matches!(error, PortError::Stopped { .. }), "{error}");
        assert!(error.to_string().contains("set down"), "{error}");
        // Frames that the kernel left in the ring meanwhile are sent when the interface is up
        // again.
        ip("link set va up");
        assert_eq!(receive(&mut near, &mut far, 1), [0]);
        near.port.refresh().unwrap();
        ip("link delete va");
        let error = near.port.refresh().unwrap_err();
        assert!(error.to_string().contains("is gone"), "{error}");
        drop((near, far));
        assert_eq!(free_frames(&memory), memory.frames() as usize);
    });
}
