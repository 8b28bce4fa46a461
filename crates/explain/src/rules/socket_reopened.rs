//! A socket is opened and closed for each request.

use linerate_metric::finding::{End, Finding};
use linerate_metric::round_trip::Attachment;
use linerate_metric::units::{format_nanos, format_share};

use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::Case;

/// Smallest share of the time from open to close that matters.
const MATTERS: f64 = 0.05;

/// See docs/CAUSES.md#socket-reopened.
pub struct SocketReopened;

impl Rule for SocketReopened {
    fn id(&self) -> &'static str {
        "socket-reopened"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        self.of(case).into_iter().collect()
    }
}

impl SocketReopened {
    fn of(&self, case: &Case<'_>) -> Option<Finding> {
        let plan = &case.plan.round_trip;
        if plan.attachment != Attachment::Reopened {
            return None;
        }
        let summary = &case.record.summary;
        let whole = summary.whole_ns?;
        let rtt = summary.rtt_ns?;
        let share = 1.0 - rtt.p50 as f64 / whole.p50.max(1) as f64;
        if share < MATTERS {
            return None;
        }
        let mut draft = Draft::limit_if(plan.connections, self.id(), End::Client)
            .cost(share)
            .says(format!(
                "of {} per request, {} are spent on opening, connecting and closing its socket",
                format_nanos(whole.p50 as f64),
                format_share(share)
            ))
            .seen("whole_ns.p50", whole.p50, "ns", "client")
            .seen("rtt_ns.p50", rtt.p50, "ns", "client");
        for step in ["open_ns", "bind_ns", "connect_ns", "close_ns"] {
            let times = case.record.histograms.get(step);
            let mean = times.filter(|times| times.count > 0);
            let mean = mean.map(|times| times.sum as f64 / times.count as f64);
            draft = draft.seen_if(step, mean, "ns", "client, mean");
        }
        draft
            .remedy("keep the socket open between requests")
            .command(case.kept_open())
            .gain(
                Some(1.0 / (1.0 - share).max(0.01)),
                "time from open to close over the round-trip time",
            )
            .found()
    }
}
