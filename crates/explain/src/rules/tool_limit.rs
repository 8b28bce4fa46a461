//! The measuring tool itself is the limit.

use linerate_record::facts::Role;
use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::{CauseId, CaveatId};
use linerate_record::plan::RunKind;
use linerate_record::record::FlowEnd;
use linerate_stats::units::{format_bit_rate, format_count, format_share};

use super::{is_paced, schedstat_source};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, duration, percent};
use crate::run_view::{DirectionView, RunView};

/// Largest share of the intended load that may be missing
/// (docs/method/defaults.md#constants-of-estimates).
const MAX_MISSING_SHARE: f64 = 0.02;

/// Idle time of a sender that waited for buffer space.
const MAX_IDLE_SHARE: f64 = 0.3;

/// Part of the sent frames from which short transmits show that the port is the limit.
const SHORT_TRANSMIT_PART: u64 = 1000;

/// Smallest cost: some frames were never sent.
const MIN_COST: f64 = 0.001;

/// Shortest meaningful run of the generator: one stall is a fifth of a shorter one.
const MIN_DURATION_NS: u64 = 100_000_000;

/// See docs/CAUSES.md#tool-limit.
pub struct ToolLimit;

impl Rule for ToolLimit {
    fn id(&self) -> CauseId {
        CauseId::ToolLimit
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The measuring tool itself was the limit.",
            shown_when: vec![
                detection(
                    "TCP and UDP at a requested rate",
                    [
                        format!(
                            "the offered load is {} below the requested one or more",
                            percent(MAX_MISSING_SHARE)
                        ),
                        "TCP: the sending end is saturated".into(),
                    ],
                ),
                detection(
                    "round trips on a schedule",
                    [
                        format!(
                            "{} of the requests or more were never sent",
                            percent(MAX_MISSING_SHARE)
                        ),
                        "the client's threads are saturated".into(),
                    ],
                ),
                detection(
                    "`generate`",
                    [
                        format!(
                            "frames were never sent, or {} of the intended rate is missing",
                            percent(MAX_MISSING_SHARE)
                        ),
                        format!("the run took {} or more", duration(MIN_DURATION_NS as f64)),
                    ],
                ),
            ],
            not_when: vec![
                "the path is full".into(),
                format!(
                    "the socket refused datagrams, and the sender has more than {} idle time: the \
                     path behind it is the limit",
                    percent(MAX_IDLE_SHARE)
                ),
                "a port of `generate` had no carrier or no peer".into(),
            ],
            evidence: &[
                ("rate_error", "share"),
                ("offered_bps", "bit/s"),
                ("lateness_ns.p99", "ns"),
                ("working time of the sending threads", "share"),
                ("intended_fps", "1/s"),
                ("offered_fps", "1/s"),
                ("unsent", "frames"),
                ("short_transmits", "polls"),
                ("unsent", "requests"),
                ("round_trips_per_second", "1/s"),
                ("working time of the requesting threads", "share"),
            ],
            cost: vec!["Missing share: the figure is the tool's.".into()],
            remedy: vec![
                "Send in bursts, with GSO, over several flows, from a CPU of its own.".into(),
                "`generate`: send larger frames, or use a thread for receiving (`--threads 2`)."
                    .into(),
            ],
            wrong_when: vec![
                "the path behind the socket is the limit, but the socket counted no refusal".into(),
            ],
            ..CauseReference::limit()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        match run.plan.kind {
            RunKind::Throughput if is_paced(run) => (run.directions.iter())
                .filter_map(|direction| self.evaluate_rate(run, direction))
                .collect(),
            RunKind::Generate => self.evaluate_generator(run).into_iter().collect(),
            RunKind::Latency => self.evaluate_schedule(run).into_iter().collect(),
            _ => Vec::new(),
        }
    }
}

impl ToolLimit {
    fn evaluate_rate(&self, run: &RunView<'_>, direction: &DirectionView<'_>) -> Option<Finding> {
        let error = direction.summary().rate_error?;
        if error > -MAX_MISSING_SHARE || direction.fills_path() {
            return None;
        }
        let time = direction.thread_time(FlowEnd::Sender)?;
        // A sender that slept for buffer space was limited by the path behind its socket.
        let send_drops: u64 = direction
            .senders()
            .filter_map(|socket| socket.send_refused)
            .sum();
        if time.free_share() > MAX_IDLE_SHARE && send_drops > 0 {
            return None;
        }
        if run.plan.protocol == linerate_record::plan::TransportProtocol::Tcp
            && !time.is_saturated()
        {
            return None;
        }
        let role = direction.sender;
        let lateness_ns = direction
            .summary()
            .lateness_ns
            .map(|lateness_ns| lateness_ns.p99);
        // Our stack at either end has neither GSO nor GRO.
        let is_udp = run.plan.protocol == linerate_record::plan::TransportProtocol::Udp;
        let by_kernels =
            is_udp && !run.uses_netstack(Role::Client) && !run.uses_netstack(Role::Server);
        FindingBuilder::limit(self.id(), role)
            .direction(direction.direction)
            .cost(-error)
            .summary(format!(
                "the {}'s sending threads offered {} less than requested: the result is the limit \
                 of the tool, not of the path",
                role.as_str(),
                format_share(-error)
            ))
            .evidence("rate_error", error, "share", "sender")
            .evidence_if(
                "offered_bps",
                direction.summary().offered_bps,
                "bit/s",
                "sender",
            )
            .evidence_if("lateness_ns.p99", lateness_ns, "ns", "sender")
            .evidence(
                "working time of the sending threads",
                time.working,
                "share",
                schedstat_source(role),
            )
            .remedy(match by_kernels {
                true => "send in bursts, send many datagrams per call, or use several flows",
                false => "use several flows",
            })
            .command(match by_kernels {
                true => {
                    run.rerun_command(&format!("--offload gso,gro -P {}", 2 * run.plan.streams))
                }
                false => run.rerun_command(&format!("-P {}", 2 * run.plan.streams)),
            })
            .tried(run.plan.batch.map(|batch| format!("--batch {batch}")))
            .gain(
                Some(1.0 / (1.0 + error).max(0.01)),
                "intended over offered load",
            )
            .build()
    }

    fn evaluate_generator(&self, run: &RunView<'_>) -> Option<Finding> {
        let figures = run.record.generate.as_ref()?;
        if run.has_no_receiver() {
            return None;
        }
        let intended = run.plan.generate.as_ref()?.intended_fps?;
        let missing = 1.0 - figures.offered_fps / intended.max(1.0);
        if (missing < MAX_MISSING_SHARE && figures.unsent == 0)
            || figures.duration_ns < MIN_DURATION_NS
        {
            return None;
        }
        let disturbed = run.has_caveat(&[CaveatId::CoreDisturbed]);
        // A second thread takes over receiving, if anything is received.
        let threads = run.plan.generate.as_ref()?.threads;
        let second = figures.receive.is_some() && threads < 2;
        let builder = FindingBuilder::limit(self.id(), FindingLocation::Client)
            .cost(missing.max(MIN_COST))
            .summary(format!(
                "{:.0} frames per second were requested and {:.0} sent: the generator is the limit",
                intended, figures.offered_fps
            ))
            .evidence("intended_fps", intended, "1/s", "plan")
            .evidence("offered_fps", figures.offered_fps, "1/s", "generator")
            .evidence("unsent", figures.unsent, "frames", "generator")
            .evidence(
                "short_transmits",
                figures.short_transmits,
                "polls",
                "generator",
            )
            .remedy(
                if figures.short_transmits > figures.sent / SHORT_TRANSMIT_PART {
                    "the port is the limit: use a faster port, or send larger frames"
                } else if disturbed {
                    "another program ran on the sending thread's core: stop it, or use another CPU"
                } else if second {
                    "use a separate thread and CPU for sending"
                } else {
                    "send larger frames, or fewer of them: the CPU is the limit"
                },
            );
        match second {
            true => builder
                .command(run.rerun_command("--threads 2 --cpu 0,1"))
                .build(),
            false => builder.build(),
        }
    }

    /// Scheduled requests were sent late because the requesting thread was too slow.
    fn evaluate_schedule(&self, run: &RunView<'_>) -> Option<Finding> {
        let rate = run.plan.round_trip.rate_per_second? as f64 * f64::from(run.plan.streams);
        let summary = &run.record.summary;
        let done = summary.round_trips_per_second?;
        let unsent = summary.unsent.unwrap_or(0);
        let time = run.thread_time(Role::Client)?;
        if done > (1.0 - MAX_MISSING_SHARE) * rate || unsent == 0 || !time.is_saturated() {
            return None;
        }
        FindingBuilder::limit(self.id(), FindingLocation::Client)
            .cost(1.0 - done / rate)
            .summary(format!(
                "{} never sent: the requesting threads were saturated ({} \
                 requested per second)",
                match unsent {
                    1 => "1 scheduled request was".to_owned(),
                    unsent => format!("{} scheduled requests were", format_count(unsent)),
                },
                format_bit_rate(rate).trim_end_matches("b/s")
            ))
            .evidence("unsent", unsent, "requests", "client")
            .evidence("round_trips_per_second", done, "1/s", "client")
            .evidence(
                "working time of the requesting threads",
                time.working,
                "share",
                schedstat_source(Role::Client),
            )
            .remedy("spread the requests over several flows")
            .command(run.rerun_command(&format!("-P {}", 2 * run.plan.streams)))
            .build()
    }
}
