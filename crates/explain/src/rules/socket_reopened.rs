//! A socket is opened and closed for each request.

use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::CauseId;
use linerate_record::round_trip::SocketMode;
use linerate_stats::units::{format_nanos, format_share};

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::RunView;

/// Smallest share of the time from open to close that matters.
const MIN_RELEVANT_SHARE: f64 = 0.05;

/// See docs/CAUSES.md#socket-reopened.
pub struct SocketReopened;

impl Rule for SocketReopened {
    fn id(&self) -> CauseId {
        CauseId::SocketReopened
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "A socket is opened, connected and closed for each request.",
            shown_when: vec![detection(
                "round trips",
                [format!(
                    "the median from open to close exceeds the median round trip by {} of it or \
                     more",
                    percent(MIN_RELEVANT_SHARE)
                )],
            )],
            limit_when: vec!["`throughput --connect`, which measures exactly that".into()],
            evidence: &[
                ("whole_ns.p50", "ns"),
                ("rtt_ns.p50", "ns"),
                ("open_ns", "ns"),
                ("bind_ns", "ns"),
                ("connect_ns", "ns"),
                ("close_ns", "ns"),
            ],
            cost: vec!["Difference as a share of the time from open to close.".into()],
            remedy: vec!["Keep the socket open.".into()],
            wrong_when: vec!["connections are the subject of the measurement".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        self.evaluate_run(run).into_iter().collect()
    }
}

impl SocketReopened {
    fn evaluate_run(&self, run: &RunView<'_>) -> Option<Finding> {
        let plan = &run.plan.round_trip;
        if plan.socket_mode != SocketMode::Reopened {
            return None;
        }
        let summary = &run.record.summary;
        let open_to_close = summary.whole_ns?;
        let rtt = summary.rtt_ns?;
        let share = 1.0 - rtt.p50 as f64 / open_to_close.p50.max(1) as f64;
        if share < MIN_RELEVANT_SHARE {
            return None;
        }
        let mut builder =
            FindingBuilder::limit_if(plan.connections, self.id(), FindingLocation::Client)
                .cost(share)
                .summary(format!(
                    "of {} per request, {} are spent on opening, connecting and closing its socket",
                    format_nanos(open_to_close.p50 as f64),
                    format_share(share)
                ))
                .evidence("whole_ns.p50", open_to_close.p50, "ns", "client")
                .evidence("rtt_ns.p50", rtt.p50, "ns", "client");
        for step in ["open_ns", "bind_ns", "connect_ns", "close_ns"] {
            let times = run.record.histograms.get(step);
            let mean = times.filter(|times| times.count > 0);
            let mean = mean.map(|times| times.sum as f64 / times.count as f64);
            builder = builder.evidence_if(step, mean, "ns", "client, mean");
        }
        builder
            .remedy("keep the socket open between requests")
            .command(run.keep_open_command())
            .gain(
                Some(1.0 / (1.0 - share).max(0.01)),
                "time from open to close over the round-trip time",
            )
            .build()
    }
}
