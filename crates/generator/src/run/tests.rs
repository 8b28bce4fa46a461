//! Detection of growing queues from the arrivals of untagged frames.

use super::*;

/// Runs 2,500 untagged frames sent within 1 s through a device that forwards `fps`, with
/// `strays_ms` as arrival times of unrelated frames of the same length.
fn growth_of_path(fps: u64, delay_ms: u64, strays_ms: &[u64]) -> Option<QueueGrowth> {
    let started_at = 10_000_000_000;
    let mut sink = FrameSink::new(FrameMatcher::Length(vec![true; 100].into()), 1, 0);
    let run_frames = (0..2_500).map(|at| at * 1_000_000_000 / fps + delay_ms * 1_000_000);
    let strays = strays_ms.iter().map(|at| at * 1_000_000);
    let mut arrivals: Vec<Nanos> = run_frames.chain(strays).map(|at| started_at + at).collect();
    arrivals.sort_unstable();
    for at in arrivals {
        sink.record(&[0; 60], at);
    }
    let times = SendTimes {
        started_at,
        next_deadline: Some(started_at + 1_000_000_000),
        last_sent_at: started_at + 999_600_000,
        ended_at: started_at + 1_000_000_000,
        is_paced: true,
        duration: Some(1_000_000_000),
    };
    path_figures(Some(&sink.into_results(&[2_500])), &times).0
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
            let growth = growth_of_path(2_500, delay_ms, strays);
            assert_eq!(growth, None, "{delay_ms} ms, strays at {strays:?} ms");
            let growth = growth_of_path(2_000, delay_ms, strays).unwrap();
            let growth_ratio = growth.growth_ratio;
            assert!(
                (growth_ratio - 0.25).abs() < 0.01,
                "{delay_ms}: {strays:?}: {growth:?}"
            );
        }
    }
}
