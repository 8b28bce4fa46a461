//! The measuring tool itself was the limit.

use linerate_metric::facts::Role;
use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::Kind;
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bit_rate, format_count, format_share};

use super::{is_paced, schedstat};
use crate::Rule;
use crate::case::{Case, Way, name};
use crate::draft::Draft;

/// Share of the asked load that may be missing (docs/METHOD.md, pacing).
const MISSING: f64 = 0.02;
/// Shorter runs of the generator say nothing: one look away is a fifth of them.
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
        // A sender that slept for room was held by what is behind its socket.
        let refused: u64 = way.senders().filter_map(|socket| socket.send_refused).sum();
        if time.free() > 0.3 && refused > 0 {
            return None;
        }
        if case.plan.protocol == linerate_metric::plan::Protocol::Tcp && !time.is_saturated() {
            return None;
        }
        let role = way.sender;
        let late = way.summary().lateness_ns.map(|late| late.p99);
        // Our own stack at either end takes no datagrams that are joined.
        let is_udp = case.plan.protocol == linerate_metric::plan::Protocol::Udp;
        let by_kernels = is_udp && !case.is_own_stack(Role::Client) && !case.is_own_stack(Role::Server);
        Draft::limit(self.id(), role)
            .way(way.direction)
            .cost(-error)
            .says(format!(
                "the {}'s sending threads offered {} less than was asked for: what arrived is what the tool can make, not what the path carries",
                name(role),
                format_share(-error)
            ))
            .seen("rate_error", error, "share", "sender")
            .seen_if("offered_bps", way.summary().offered_bps, "bit/s", "sender")
            .seen_if("lateness_ns.p99", late, "ns", "sender")
            .seen("working time of the sending threads", time.working, "share", schedstat(role))
            .remedy(match by_kernels {
                true => "send in bursts, hand over many datagrams a call, or use several flows",
                false => "use several flows",
            })
            .command(match by_kernels {
                true => case.again(&format!("--offload gso,gro -P {}", 2 * case.plan.streams)),
                false => case.again(&format!("-P {}", 2 * case.plan.streams)),
            })
            .tried(case.plan.batch.map(|batch| format!("--batch {batch}")))
            .gain(Some(1.0 / (1.0 + error).max(0.01)), "asked over offered load")
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
        // A second thread takes what arrives off the first: there must be something that arrives.
        let threads = case.plan.generate.as_ref()?.threads;
        let second = figures.receive.is_some() && threads < 2;
        let draft = Draft::limit(self.id(), End::Client)
            .cost(missing.max(0.001))
            .says(format!(
                "{:.0} frames a second were asked for and {:.0} left: the generator is the limit",
                intended, figures.offered_fps
            ))
            .seen("intended_fps", intended, "1/s", "plan")
            .seen("offered_fps", figures.offered_fps, "1/s", "generator")
            .seen("unsent", figures.unsent, "frames", "generator")
            .seen("refused_polls", figures.refused_polls, "polls", "generator")
            .remedy(if figures.refused_polls > figures.sent / 1000 {
                "the port takes no more: use one that does, or send larger frames"
            } else if disturbed {
                "something else ran on the sending thread's core: end it, or send from another core"
            } else if second {
                "give sending a thread and a core of its own"
            } else {
                "send larger frames, or fewer of them: a faster core is what is lacking"
            });
        match second {
            true => draft.command(case.again("--threads 2 --cpu 0,1")).found(),
            false => draft.found(),
        }
    }

    /// Questions of a schedule that left late because the asking thread could not keep up.
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
                "{} questions were due and never left: the asking threads had no time left ({} asked for a second)",
                format_count(unsent),
                format_bit_rate(rate).trim_end_matches("b/s")
            ))
            .seen("unsent", unsent, "questions", "client")
            .seen("round_trips_per_second", done, "1/s", "client")
            .seen("working time of the asking threads", time.working, "share", schedstat(Role::Client))
            .remedy("spread the questions over several flows")
            .command(case.again(&format!("-P {}", 2 * case.plan.streams)))
            .found()
    }
}
