//! The measuring tool itself is the limit.

use linerate_metric::facts::Role;
use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::Kind;
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bit_rate, format_count, format_share};

use super::{is_paced, schedstat};
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Largest share of the intended load that may be missing
/// (docs/method/defaults.md#constants-of-estimates).
const MISSING: f64 = 0.02;
/// Shortest meaningful run of the generator: one stall is a fifth of a shorter one.
const LEAST_NS: u64 = 100_000_000;

/// See docs/CAUSES.md#tool-limit.
pub struct ToolLimit;

impl Rule for ToolLimit {
    fn id(&self) -> &'static str {
        "tool-limit"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        match case.plan.kind {
            Kind::Throughput if is_paced(case) => (case.ways.iter())
                .filter_map(|way| self.of_rate(case, way))
                .collect(),
            Kind::Generate => self.of_generator(case).into_iter().collect(),
            Kind::Latency => self.of_schedule(case).into_iter().collect(),
            _ => Vec::new(),
        }
    }
}

impl ToolLimit {
    fn of_rate(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let error = way.summary().rate_error?;
        if error > -MISSING || way.fills_path() {
            return None;
        }
        let time = way.time(CountedAt::Sender)?;
        // A sender that slept for buffer space was limited by the path behind its socket.
        let refused: u64 = way.senders().filter_map(|socket| socket.send_refused).sum();
        if time.free() > 0.3 && refused > 0 {
            return None;
        }
        if case.plan.protocol == linerate_metric::plan::Protocol::Tcp && !time.is_saturated() {
            return None;
        }
        let role = way.sender;
        let late = way.summary().lateness_ns.map(|late| late.p99);
        // Our stack at either end has neither GSO nor GRO.
        let is_udp = case.plan.protocol == linerate_metric::plan::Protocol::Udp;
        let by_kernels =
            is_udp && !case.is_own_stack(Role::Client) && !case.is_own_stack(Role::Server);
        Draft::limit(self.id(), role)
            .way(way.direction)
            .cost(-error)
            .says(format!(
                "the {}'s sending threads offered {} less than requested: the result is the limit \
                 of the tool, not of the path",
                name(role),
                format_share(-error)
            ))
            .seen("rate_error", error, "share", "sender")
            .seen_if("offered_bps", way.summary().offered_bps, "bit/s", "sender")
            .seen_if("lateness_ns.p99", late, "ns", "sender")
            .seen(
                "working time of the sending threads",
                time.working,
                "share",
                schedstat(role),
            )
            .remedy(match by_kernels {
                true => "send in bursts, send many datagrams per call, or use several flows",
                false => "use several flows",
            })
            .command(match by_kernels {
                true => case.again(&format!("--offload gso,gro -P {}", 2 * case.plan.streams)),
                false => case.again(&format!("-P {}", 2 * case.plan.streams)),
            })
            .tried(case.plan.batch.map(|batch| format!("--batch {batch}")))
            .gain(
                Some(1.0 / (1.0 + error).max(0.01)),
                "intended over offered load",
            )
            .found()
    }

    fn of_generator(&self, case: &Case<'_>) -> Option<Finding> {
        let figures = case.record.generate.as_ref()?;
        if case.leads_nowhere() {
            return None;
        }
        let intended = case.plan.generate.as_ref()?.intended_fps?;
        let missing = 1.0 - figures.offered_fps / intended.max(1.0);
        if (missing < MISSING && figures.unsent == 0) || figures.duration_ns < LEAST_NS {
            return None;
        }
        let disturbed = case.is_doubted(&["core-disturbed"]);
        // A second thread takes over receiving, if anything is received.
        let threads = case.plan.generate.as_ref()?.threads;
        let second = figures.receive.is_some() && threads < 2;
        let draft = Draft::limit(self.id(), End::Client)
            .cost(missing.max(0.001))
            .says(format!(
                "{:.0} frames per second were requested and {:.0} sent: the generator is the limit",
                intended, figures.offered_fps
            ))
            .seen("intended_fps", intended, "1/s", "plan")
            .seen("offered_fps", figures.offered_fps, "1/s", "generator")
            .seen("unsent", figures.unsent, "frames", "generator")
            .seen("refused_polls", figures.refused_polls, "polls", "generator")
            .remedy(if figures.refused_polls > figures.sent / 1000 {
                "the port is the limit: use a faster port, or send larger frames"
            } else if disturbed {
                "another program ran on the sending thread's core: stop it, or use another core"
            } else if second {
                "use a separate thread and core for sending"
            } else {
                "send larger frames, or fewer of them: the core is the limit"
            });
        match second {
            true => draft.command(case.again("--threads 2 --cpu 0,1")).found(),
            false => draft.found(),
        }
    }

    /// Scheduled requests were sent late because the requesting thread was too slow.
    fn of_schedule(&self, case: &Case<'_>) -> Option<Finding> {
        let rate = case.plan.round_trip.rate_per_second? as f64 * f64::from(case.plan.streams);
        let summary = &case.record.summary;
        let done = summary.round_trips_per_second?;
        let unsent = summary.unsent.unwrap_or(0);
        let time = case.time(Role::Client)?;
        if done > (1.0 - MISSING) * rate || unsent == 0 || !time.is_saturated() {
            return None;
        }
        Draft::limit(self.id(), End::Client)
            .cost(1.0 - done / rate)
            .says(format!(
                "{} scheduled requests were never sent: the requesting threads were saturated ({} \
                 requested per second)",
                format_count(unsent),
                format_bit_rate(rate).trim_end_matches("b/s")
            ))
            .seen("unsent", unsent, "requests", "client")
            .seen("round_trips_per_second", done, "1/s", "client")
            .seen(
                "working time of the requesting threads",
                time.working,
                "share",
                schedstat(Role::Client),
            )
            .remedy("spread the requests over several flows")
            .command(case.again(&format!("-P {}", 2 * case.plan.streams)))
            .found()
    }
}
