//! Sample latency run with stages.

use linerate_record::facts::Role;
use linerate_record::record::{Record, RoundTripStage, StagePass};
use linerate_record::timeline::{DriverActivity, Timeline, TimelineSlice, TimelineTrack};

use super::latency_blocking;

/// Latency run with stages and a timeline of the last round trips.
pub fn staged() -> Record {
    let mut record = latency_blocking();
    record.label = Some("where the time goes".to_owned());
    let times = [
        ("client-send-call", 1_510),
        ("client-qdisc", 461),
        ("path-to-server", 191),
        ("server-receive", 7_220),
        ("server-application", 180),
        ("server-send-call", 1_590),
        ("server-qdisc", 461),
        ("path-to-client", 191),
        ("client-receive", 9_950),
    ];
    record.stages = times
        .iter()
        .map(|&(stage, p50_ns)| RoundTripStage {
            stage: stage.to_owned(),
            p50_ns,
            p90_ns: p50_ns * 5 / 4,
            p99_ns: p50_ns * 3,
            mean_ns: p50_ns as f64 * 1.1,
            timestamp_source: "software".to_owned(),
            clock_error_ns: stage.starts_with("path").then_some(1_250),
            parts: Vec::new(),
        })
        .collect();
    let parts = [
        ("server-softirq", 2_100),
        ("server-wake-up", 5_590),
        ("server-receive-call", 1_630),
    ];
    record.stages[3].parts = parts
        .iter()
        .map(|&(stage, p50_ns)| RoundTripStage {
            stage: stage.to_owned(),
            p50_ns,
            p90_ns: p50_ns * 2,
            p99_ns: p50_ns * 3,
            ..record.stages[0].clone()
        })
        .collect();
    record.stage_pass = Some(StagePass {
        round_trips: 15_998,
        incomplete: 2,
        rtt_ns: record.summary.rtt_ns,
        sum_of_medians_ns: times.iter().map(|&(_, time)| time).sum(),
        timestamp_overhead_ns: Some(1_340),
        tracing_overhead_ns: Some(4_100),
        notes: vec![
            "client: when its thread was woken is not known (Permission denied)".to_owned(),
        ],
    });
    let slice = |role, track, name: &str, start_ns, end_ns, cpu| TimelineSlice {
        role,
        track,
        name: name.to_owned(),
        start_ns,
        end_ns,
        round_trip: (track != TimelineTrack::Driver).then_some(start_ns / 25_000),
        cpu,
        thread: None,
    };
    let mut timeline = Timeline::default();
    for round_trip in 0..3u64 {
        let at = 25_000 * round_trip;
        timeline.slices.extend([
            slice(
                Role::Client,
                TimelineTrack::Thread,
                "send",
                at,
                at + 3_000,
                None,
            ),
            slice(
                Role::Client,
                TimelineTrack::Kernel,
                "stack-out",
                at,
                at + 1_510,
                None,
            ),
            slice(
                Role::Client,
                TimelineTrack::Kernel,
                "qdisc",
                at + 1_510,
                at + 1_971,
                None,
            ),
            slice(
                Role::Server,
                TimelineTrack::Kernel,
                "stack-in",
                at + 2_162,
                at + 4_000,
                None,
            ),
            slice(
                Role::Server,
                TimelineTrack::Driver,
                "net-rx",
                at + 2_400,
                at + 4_400,
                Some(1),
            ),
            slice(
                Role::Client,
                TimelineTrack::Thread,
                "receive",
                at + 3_000,
                at + 24_000,
                None,
            ),
            slice(
                Role::Server,
                TimelineTrack::Kernel,
                "wake-up",
                at + 4_000,
                at + 7_752,
                None,
            ),
            slice(
                Role::Server,
                TimelineTrack::Thread,
                "receive",
                at + 7_752,
                at + 9_382,
                None,
            ),
            slice(
                Role::Server,
                TimelineTrack::Thread,
                "send",
                at + 9_562,
                at + 13_000,
                None,
            ),
            slice(
                Role::Server,
                TimelineTrack::Kernel,
                "stack-out",
                at + 9_562,
                at + 11_152,
                None,
            ),
            slice(
                Role::Client,
                TimelineTrack::Kernel,
                "stack-in",
                at + 11_804,
                at + 23_000,
                None,
            ),
        ]);
    }
    let quantiles = record.summary.rtt_ns.unwrap();
    timeline.driver = vec![DriverActivity {
        role: Role::Server,
        period_ns: quantiles,
        duration_ns: quantiles,
    }];
    record.timeline = Some(timeline);
    record
}
