//! Detection of growing queues from the arrivals of untagged frames.

use super::*;

/// Runs 2,500 untagged frames sent within 1 s through a device that forwards `fps`, with
/// `strays_ms` as arrival times of unrelated frames of the same length.
fn path(fps: u64, delay_ms: u64, strays_ms: &[u64]) -> Option<Filling> {
    let began = 10_000_000_000;
    let mut sink = Sink::new(Known::Length(vec![true; 100].into()), 1, 0);
    let own = (0..2_500).map(|at| at * 1_000_000_000 / fps + delay_ms * 1_000_000);
    let strays = strays_ms.iter().map(|at| at * 1_000_000);
    let mut all: Vec<Nanos> = own.chain(strays).map(|at| began + at).collect();
    all.sort_unstable();
    for at in all {
        sink.take(&[0; 60], at);
    }
    let ends = Ends {
        began,
        due: Some(began + 1_000_000_000),
        last: began + 999_600_000,
        sent_at: began + 1_000_000_000,
        paced: true,
        duration: Some(1_000_000_000),
    };
    path_of(Some(&sink.finish(&[2_500])), &ends).0
}

/// A growing queue is detected by the frames that it still delivers after the end; unrelated frames
/// do not count.
#[test]
fn a_stray_frame_is_no_queue() {
    for delay_ms in [0, 1, 300] {
        for strays in [
            &[][..],
            &[1_800],
            &[2_999],
            &[0],
            &[1_400, 1_900, 1_901],
            &[0, 500, 2_500],
        ] {
            let found = path(2_500, delay_ms, strays);
            assert_eq!(found, None, "{delay_ms} ms, strays at {strays:?} ms");
            let found = path(2_000, delay_ms, strays).unwrap();
            let growth = found.growth;
            assert!(
                (growth - 0.25).abs() < 0.01,
                "{delay_ms}: {strays:?}: {found:?}"
            );
        }
    }
}
