//! Packets are lost on the path without a trace in any counter.

use linerate_record::facts::Role;
use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::{CauseId, LossPoint};
use linerate_record::plan::TransportProtocol;
use linerate_record::record::FlowEnd;
use linerate_stats::units::{format_bit_rate, format_count, format_nanos, format_share};

use super::congestion_loss::{
    MIN_LOST_SEGMENTS, MIN_QUEUEING_SHARE, SACK_SYSCTL, counted_drops, cwnd_limited_share,
    mathis_bps, with_sack_remedy,
};
use super::{evaluate_directions, tcp_info_source, with_retransmits, within_headroom};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, bit_rate, detection, duration, percent};
use crate::run_view::{
    DirectionView, LOSS_BOUND_RATIO, MATHIS_FACTOR, MIN_GOODPUT_BPS, MIN_LOSSY_INTERVALS,
    MIN_REPEATED_LOSSES, MIN_UNACCOUNTED_SHARE, RunView, STANDING_QUEUE_NS, UNACCOUNTED_PART,
    UNNECESSARY_PART, format_rate_option,
};

/// Smallest share of lost datagrams or segments that matters.
const MIN_RELEVANT_SHARE: f64 = 0.0005;

/// Fewest lost datagrams or requests; fewer are noise.
const MIN_LOST_DATAGRAMS: u64 = 3;

/// Loss share from which nothing arrives: that is no random loss.
const MAX_LOSS_SHARE: f64 = 0.99;

/// Part of the lost packets from which another counter has them: one in two.
const COUNTED_PART: u64 = 2;

/// Cost of a loss share for our stack, over its square root, and largest cost.
const ROOT_LOSS_COST: f64 = 3.0;
const MAX_COST: f64 = 0.95;

/// Smallest share of our stack's retransmits that matters: the stack also retransmits after late
/// acknowledgements.
const MIN_NETSTACK_SHARE: f64 = 0.005;

/// Smallest excess of the mean round trip over the median at which retransmits matter, and smallest
/// share of the time spent waiting for missing responses.
const MIN_WAIT_SHARE: f64 = 0.1;

/// Fewest retransmitted segments of requests and responses; fewer are noise.
const MIN_RETRANSMITS: u64 = 2;

/// Share of the time that a polling stack waits for a core from which its ring overflows.
pub(super) const MAX_CORE_WAIT_SHARE: f64 = 0.3;

/// See docs/CAUSES.md#path-loss.
pub struct PathLoss;

impl Rule for PathLoss {
    fn id(&self) -> CauseId {
        CauseId::PathLoss
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "Packets are lost on the path, and no visible counter has them.",
            shown_when: vec![
                detection(
                    "TCP, a kernel sends",
                    [
                        format!(
                            "{} needed retransmits or more, and {} of the segments or more",
                            crate::run_view::MIN_LOST_SEGMENTS,
                            percent(MIN_UNACCOUNTED_SHARE)
                        ),
                        format!(
                            "between two ends of one machine {MIN_REPEATED_LOSSES} are enough, in \
                             {MIN_LOSSY_INTERVALS} intervals or more"
                        ),
                        format!("fewer than one in {UNNECESSARY_PART} retransmits was unnecessary"),
                        format!(
                            "visible counters have less than {} of the losses",
                            percent(1.0 / UNACCOUNTED_PART as f64)
                        ),
                        format!(
                            "the congestion control ignores loss; or no more is in flight than \
                             {LOSS_BOUND_RATIO} times Mathis' window, {MATHIS_FACTOR} / sqrt(loss) \
                             segments"
                        ),
                        format!("goodput is {} or more", bit_rate(MIN_GOODPUT_BPS)),
                    ],
                ),
                detection(
                    "TCP, the user-space stack sends",
                    [
                        format!(
                            "it retransmitted {MIN_LOST_SEGMENTS} segments or more, and {} or more",
                            percent(MIN_NETSTACK_SHARE)
                        ),
                        format!(
                            "visible counters have less than {} of them",
                            percent(1.0 / COUNTED_PART as f64)
                        ),
                    ],
                ),
                detection(
                    "UDP",
                    [format!(
                        "`losses` has {MIN_LOST_DATAGRAMS} datagrams or more at `path`, and {} or \
                         more",
                        percent(MIN_RELEVANT_SHARE)
                    )],
                ),
                detection(
                    "UDP round trips",
                    [format!(
                        "{MIN_LOST_DATAGRAMS} requests or more, and {} or more, get no \
                             response. Or waiting for responses that do not come takes {} of the \
                             time",
                        percent(MIN_RELEVANT_SHARE),
                        percent(MIN_WAIT_SHARE)
                    )],
                ),
                detection(
                    "TCP round trips",
                    [
                        format!(
                            "{MIN_RETRANSMITS} segments or more, and {} or more, are retransmitted",
                            percent(MIN_RELEVANT_SHARE)
                        ),
                        "the receiver did not already have all of them, as both ends report".into(),
                        format!(
                            "waiting is {} of the mean round trip or more: mean less median",
                            percent(MIN_WAIT_SHARE)
                        ),
                    ],
                ),
            ],
            unknown_when: vec![
                "UDP: the receiver is another tool, whose socket may have dropped the datagrams"
                    .into(),
            ],
            not_when: vec![
                "streams: the path is full".into(),
                "TCP: the requested rate was received".into(),
                format!(
                    "TCP: a hidden queue between two machines takes more than {}, and {} of the \
                     round-trip time",
                    duration(STANDING_QUEUE_NS),
                    percent(MIN_QUEUEING_SHARE)
                ),
                format!(
                    "TCP: less than {} of the lost segments are missing at the port of the user-space stack: only \
                     acknowledgements were late",
                    percent(1.0 / UNACCOUNTED_PART as f64)
                ),
                format!(
                    "UDP: the user-space stack receives and waits for a CPU for more than {} of the time",
                    percent(MAX_CORE_WAIT_SHARE)
                ),
                format!(
                    "UDP: more than {} was lost; or the ring of the user-space stack dropped {} of that or more",
                    percent(MAX_LOSS_SHARE),
                    percent(1.0 / COUNTED_PART as f64)
                ),
                "a response came after `--timeout` \
                 ([late-responses](method/validity.md#content-and-responses))"
                    .into(),
            ],
            evidence: &[
                ("tcpi_total_retrans", "segments"),
                ("tcpi_dsack_dups", "segments"),
                ("tcpi_rtt", "ns"),
                ("tcpi_min_rtt", "ns"),
                ("tcpi_snd_cwnd", "B"),
                ("drops on the path", "packets"),
                ("Mathis", "bit/s"),
                (SACK_SYSCTL, ""),
                ("timeouts", ""),
                ("retransmitted_segments", "segments"),
                ("out_segments", "segments"),
                ("losses[path]", "datagrams"),
                ("loss_fraction", "share"),
                ("lost", "datagrams"),
                ("drops of the remote socket", ""),
                ("lost", "round trips"),
                ("out_of_order", "late responses"),
                ("round_trips", "round trips"),
                ("retransmits", "segments"),
                ("rtt_ns.mean", "ns"),
                ("rtt_ns.p50", "ns"),
            ],
            cost: vec![
                "TCP: share of the time limited by the congestion window; the gain is by Mathis' \
                 formula."
                    .into(),
                "A congestion control that ignores loss: time of the repairs, one round trip each."
                    .into(),
                format!("The user-space stack: {ROOT_LOSS_COST} times the root of the share."),
                "Round trips: share of the mean beyond the median, or of the time waiting for \
                 missing responses."
                    .into(),
                "Otherwise the lost share.".into(),
            ],
            remedy: vec![
                "Check cables, radio and overloaded devices.".into(),
                "Until then use a congestion control that ignores loss (`-C bbr`).".into(),
                "The user-space stack has the key `tcp.congestion_control=none`, since `-C` applies to both \
                 ends."
                    .into(),
                format!(
                    "Enable `{SACK_SYSCTL}` first if it is off at an end: without it each loss costs \
                     a round trip or a timeout."
                ),
                format!("Without `{SACK_SYSCTL}` unnecessary retransmits are not reported either."),
            ],
            wrong_when: vec!["a shallow queue drops without ever being long".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        let mut findings = evaluate_directions(
            run,
            |direction| {
                self.evaluate_tcp(run, direction)
                    .or_else(|| self.evaluate_netstack(run, direction))
            },
            |direction| self.evaluate_udp(run, direction),
        );
        findings.extend(
            self.evaluate_requests(run)
                .or_else(|| self.evaluate_tcp_requests(run)),
        );
        findings
    }
}

impl PathLoss {
    fn evaluate_tcp(&self, run: &RunView<'_>, direction: &DirectionView<'_>) -> Option<Finding> {
        let tcp = direction.tcp()?;
        let unaccounted = direction.unaccounted_loss()?;
        let loss = unaccounted.share;
        // A hidden standing queue that is longer than those of the ends may have dropped them.
        let queue = tcp.queueing_share() >= MIN_QUEUEING_SHARE
            && tcp.rtt_ns - tcp.min_rtt_ns > STANDING_QUEUE_NS;
        if queue && !direction.is_one_machine()
            || direction.fills_path()
            || super::is_paced(run) && super::met_requested_rate(run)
        {
            return None;
        }
        let reacts_to_loss = direction.reacts_to_loss();
        // A few losses at once reduce the window once, and it has grown far beyond their limit
        // since.
        if reacts_to_loss && !direction.is_loss_bound(&tcp, loss) {
            return None;
        }
        let flows = direction.streams().len().max(1);
        // A congestion control that ignores loss still repairs each one, and delivery waits for the
        // repair.
        let repairs = unaccounted.segments as f64 * tcp.rtt_ns
            / flows as f64
            / (direction.seconds() * 1e9).max(1.0);
        let cost = match reacts_to_loss {
            true => cwnd_limited_share(&tcp),
            false => repairs.max(loss),
        };
        let allowed = mathis_bps(&tcp, loss, flows);
        let control = direction.congestion_control();
        let mut builder = FindingBuilder::cause(self.id(), FindingLocation::Path)
            .direction(direction.direction)
            .cost(cost.min(MAX_COST))
            .summary(match reacts_to_loss {
                true => format!(
                    "{} of the segments were lost on the path, in no visible counter: a \
                     loss-based congestion control reaches about {} on such a path",
                    format_share(loss),
                    format_bit_rate(allowed)
                ),
                false => format!(
                    "{} of the segments were lost on the path, in no visible counter; {} does not \
                     reduce its rate, but data after each loss waits for one round trip",
                    format_share(loss),
                    control.unwrap_or("the sender")
                ),
            });
        builder = with_retransmits(builder, direction.sender, &tcp)
            .evidence(
                "tcpi_snd_cwnd",
                tcp.cwnd_bytes.round(),
                "B",
                tcp_info_source(direction.sender),
            )
            .evidence(
                "drops on the path",
                counted_drops(run),
                "packets",
                "counters of both ends",
            )
            .tried(control.map(|name| format!("congestion control {name}")));
        let builder = match (reacts_to_loss, run.uses_netstack(direction.sender)) {
            (true, is_netstack) => builder
                .evidence("Mathis", allowed, "bit/s", "from MSS, RTT and loss")
                .remedy(
                    "find the cause of the loss: cables, an overloaded device on the path, radio; \
                     until then use a congestion control that ignores loss",
                )
                .command(match (is_netstack, run.uses_netstack(direction.receiver)) {
                    (true, _) => without_congestion_control_command(run, direction),
                    // The `-C` option of the client applies to both ends, and our stack would have
                    // to support it.
                    (false, true) => udp_probe_command(run, direction),
                    (false, false) => run.rerun_command("-C bbr"),
                })
                .estimated_gain(
                    within_headroom(direction, 1.0 / (1.0 - cost).max(0.01)),
                    "Mathis: MSS / RTT * 1.22 / sqrt(loss) is the current limit; without loss the \
                     next limit applies",
                ),
            (false, _) => builder
                .remedy(
                    "find the cause of the loss: cables, an overloaded device on the path, radio; \
                     UDP at a fixed rate shows whether load is the cause",
                )
                .command(udp_probe_command(run, direction)),
        };
        with_sack_remedy(builder, run, direction, &tcp).build()
    }

    /// Our stack sends, and counts its retransmits.
    fn evaluate_netstack(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let (sent, retransmitted) = direction.netstack_segments()?;
        let share = retransmitted as f64 / sent.max(1) as f64;
        // If our stack receives as well, drops of its ring are counted.
        let dropped =
            counted_drops(run) + direction.ring_full_frames() + direction.oversize_frames();
        if share < MIN_NETSTACK_SHARE
            || retransmitted < MIN_LOST_SEGMENTS
            || dropped >= retransmitted / COUNTED_PART
            || direction.fills_path()
        {
            return None;
        }
        FindingBuilder::cause(self.id(), FindingLocation::Path)
            .direction(direction.direction)
            .cost((share.sqrt() * ROOT_LOSS_COST).min(MAX_COST))
            .summary(format!(
                "the user-space stack retransmitted {} of {} segments, and no visible counter dropped them",
                format_count(retransmitted),
                format_count(sent)
            ))
            .evidence(
                "retransmitted_segments",
                retransmitted,
                "segments",
                format!("{} stack", direction.sender.as_str()),
            )
            .evidence(
                "out_segments",
                sent,
                "segments",
                format!("{} stack", direction.sender.as_str()),
            )
            .evidence(
                "drops on the path",
                dropped,
                "packets",
                "counters of both ends",
            )
            .remedy(
                "find the cause of the loss: cables, an overloaded device on the path, radio; \
                 until then use a congestion control that ignores loss",
            )
            .command(match direction.reacts_to_loss() {
                true => without_congestion_control_command(run, direction),
                false => udp_probe_command(run, direction),
            })
            .tried(
                direction
                    .congestion_control()
                    .map(|name| format!("congestion control {name}")),
            )
            .build()
    }

    fn evaluate_udp(&self, run: &RunView<'_>, direction: &DirectionView<'_>) -> Option<Finding> {
        let lost = direction.lost_at(LossPoint::Path);
        let share = direction.lost_share(LossPoint::Path);
        // Drops of our stack's ring are counted, but the counter is not read at the same time as
        // the others: a few of them appear as path loss (in older records all of them).
        let (full, at_port) = (
            direction.ring_full_frames(),
            direction.lost_at(LossPoint::InterfaceRx),
        );
        let in_ring = full >= MIN_LOST_SEGMENTS && full >= (lost + at_port) / COUNTED_PART;
        if share < MIN_RELEVANT_SHARE
            || lost < MIN_LOST_DATAGRAMS
            || in_ring
            || direction.fills_path()
            || direction.goodput()? <= 0.0
        {
            return None;
        }
        // A polling end that waits for a core lets its ring overflow: that is no path loss.
        let is_core_limited = direction
            .thread_time(FlowEnd::Receiver)
            .is_some_and(|time| time.core_wait > MAX_CORE_WAIT_SHARE);
        if direction.uses_netstack(direction.receiver) && is_core_limited {
            return None;
        }
        let summary = direction.summary();
        if summary
            .loss_fraction
            .is_some_and(|loss| loss > MAX_LOSS_SHARE)
        {
            return None;
        }
        // Drops at the socket of another tool are unknown.
        let is_third_party_client = run.is_third_party_client();
        let third_party_role = if is_third_party_client {
            Role::Client
        } else {
            Role::Server
        };
        if run.has_third_party_server() && direction.receiver == third_party_role {
            let (source, remedy, command) = match is_third_party_client {
                true => (
                    "report of the client's program",
                    "measure with `linerate` there, which reports it",
                    run.rerun_command(""),
                ),
                false => (
                    "report of the server's program",
                    "run `linerate server` there, which reports it",
                    "linerate server".to_owned(),
                ),
            };
            return FindingBuilder::unknown(self.id(), FindingLocation::Path)
                .direction(direction.direction)
                .summary(format!(
                    "{} datagrams ({}) were lost on the path or in the socket of the {} program: \
                     which of both is unknown",
                    format_count(lost),
                    format_share(share),
                    if is_third_party_client {
                        "client's"
                    } else {
                        "server's"
                    }
                ))
                .evidence("lost", lost, "datagrams", source)
                .missing_evidence(
                    "drops of the remote socket",
                    &format!("{} SO_MEMINFO", third_party_role.as_str()),
                    "that end runs another program, which does not report it",
                )
                .remedy(remedy)
                .command(command)
                .build();
        }
        FindingBuilder::cause(self.id(), FindingLocation::Path)
            .direction(direction.direction)
            .cost(share)
            .summary(format!(
                "{} datagrams ({}) were sent by the {} and appear in no counter of the {}",
                format_count(lost),
                format_share(share),
                direction.sender.as_str(),
                direction.receiver.as_str()
            ))
            .evidence(
                "losses[path]",
                lost,
                "datagrams",
                "sequence numbers missing at the receiver, less counted drops",
            )
            .evidence_if("loss_fraction", summary.loss_fraction, "share", "receiver")
            .remedy(
                "find the cause of the loss: cables, an overloaded device on the path, radio; a \
                 lower rate shows whether load is the cause",
            )
            // Random loss occurs at every rate: a search for a rate without loss would find none.
            .command(run.rerun_without(
                &["pps"],
                &format!(
                    "-b {}",
                    format_rate_option(
                        0.5 * direction.goodput()? / direction.streams().len().max(1) as f64
                    )
                ),
            ))
            .gain(Some(1.0 / (1.0 - share).max(0.01)), "1 / (1 - loss)")
            .build()
    }

    fn evaluate_requests(&self, run: &RunView<'_>) -> Option<Finding> {
        let summary = &run.record.summary;
        if !run.is_latency() || run.plan.protocol != TransportProtocol::Udp {
            return None;
        }
        let (missed, done) = (summary.lost?, summary.round_trips?);
        // Late responses were not lost. With several outstanding requests they cannot be separated
        // from reordered ones.
        let late_responses = match run.plan.round_trip.is_pipelined() {
            true => 0,
            false => summary.out_of_order.unwrap_or(0).min(missed),
        };
        let lost = missed - late_responses;
        let share = lost as f64 / (lost + done).max(1) as f64;
        // With one outstanding request, each loss costs the full timeout.
        let flows = run.plan.streams.max(1) as f64;
        let waited = match run.plan.round_trip.is_pipelined() {
            true => 0.0,
            false => {
                lost as f64 * run.plan.response_timeout_ns.unwrap_or(1_000_000_000) as f64
                    / flows
                    / summary.duration_ns.unwrap_or(u64::MAX) as f64
            }
        };
        if lost == 0
            || waited < MIN_WAIT_SHARE && (share < MIN_RELEVANT_SHARE || lost < MIN_LOST_DATAGRAMS)
        {
            return None;
        }
        FindingBuilder::cause(self.id(), FindingLocation::Path)
            .cost(share.max(waited.min(MAX_COST)))
            .summary(match waited >= MIN_WAIT_SHARE {
                true => format!(
                    "{} requests got no response, and waiting for them took {} of the time",
                    format_count(lost),
                    format_share(waited.min(1.0))
                ),
                false => format!("{} requests got no response", format_count(lost)),
            })
            .evidence("lost", missed, "round trips", "client")
            .evidence_if(
                "out_of_order",
                (late_responses > 0).then_some(late_responses),
                "late responses",
                "client",
            )
            .evidence("round_trips", done, "round trips", "client")
            .remedy("send datagrams in one direction to see where they are lost")
            .command(run.throughput_command("-b 10M"))
            .build()
    }

    /// Requests over TCP: lost segments are retransmitted, and the response waits for them.
    fn evaluate_tcp_requests(&self, run: &RunView<'_>) -> Option<Finding> {
        let summary = &run.record.summary;
        if !run.is_latency() || run.plan.protocol != TransportProtocol::Tcp {
            return None;
        }
        let (retransmitted, done, rtt) =
            (summary.retransmits?, summary.round_trips?, summary.rtt_ns?);
        // If all retransmitted segments had already arrived, acknowledgements were late and nothing
        // was lost. Some arrived if an acknowledgement was lost. An end without statistics may have
        // sent the rest.
        let streams = run.directions.iter().flat_map(DirectionView::streams);
        let sockets = streams.flat_map(|stream| [stream.sender.as_ref(), stream.receiver.as_ref()]);
        let socket_counts = sockets.map(|socket| {
            let tcp = socket?.tcp.as_ref()?;
            Some((tcp.retransmits, tcp.spurious_retransmits?))
        });
        let socket_counts: Option<Vec<(u64, u64)>> = socket_counts.collect();
        let is_all_spurious = |socket_counts: Vec<(u64, u64)>| {
            let mut retransmitted = socket_counts
                .into_iter()
                .filter(|(retransmitted, _)| *retransmitted > 0)
                .peekable();
            retransmitted.peek().is_some()
                && retransmitted.all(|(retransmitted, spurious)| spurious >= retransmitted)
        };
        if socket_counts.is_some_and(is_all_spurious) {
            return None;
        }
        // A request and its response have at least one segment each.
        let share = retransmitted as f64 / (2 * done).max(1) as f64;
        // Round trips that wait for retransmits raise the mean above the median.
        let cost = 1.0 - rtt.p50 as f64 / rtt.mean.max(1.0);
        // A timeout takes at least 200 ms: a few of them are a large part of a run.
        if retransmitted < MIN_RETRANSMITS || share < MIN_RELEVANT_SHARE || cost < MIN_WAIT_SHARE {
            return None;
        }
        FindingBuilder::cause(self.id(), FindingLocation::Path)
            .cost(cost.min(MAX_COST))
            .summary(format!(
                "{} segments of requests and responses were retransmitted, and their round trips \
                 waited for that: {} on average, with a median of {}",
                format_count(retransmitted),
                format_nanos(rtt.mean),
                format_nanos(rtt.p50 as f64)
            ))
            .evidence(
                "retransmits",
                retransmitted,
                "segments",
                "TCP_INFO of both ends",
            )
            .evidence("round_trips", done, "round trips", "client")
            .evidence("rtt_ns.mean", rtt.mean.round(), "ns", "client")
            .evidence("rtt_ns.p50", rtt.p50, "ns", "client")
            .evidence(
                "drops on the path",
                counted_drops(run),
                "packets",
                "counters of both ends",
            )
            .remedy(
                "find the cause of the loss: cables, an overloaded device on the path, radio; \
                 `--limit` lists the slow round trips",
            )
            .command(run.throughput_command("-u -b 10M"))
            .estimated_gain(
                Some(1.0 / (1.0 - cost).max(0.01)),
                "mean over p50: no round trip waits for a retransmit",
            )
            .build()
    }
}

/// Returns the command that runs our stack without congestion control. Uses its configuration key,
/// because `-C` applies to both ends, and a kernel has no such control.
fn without_congestion_control_command(run: &RunView<'_>, direction: &DirectionView<'_>) -> String {
    run.rerun_with_key(direction.sender, "tcp.congestion_control", "none")
}

/// Returns a UDP command at half of the rate over the same path, which shows whether the loss
/// depends on load.
fn udp_probe_command(run: &RunView<'_>, direction: &DirectionView<'_>) -> String {
    match run.has_third_party_server() {
        true => run.rerun_command(""),
        false => {
            let rate = format_rate_option(0.5 * direction.goodput().unwrap_or(2e7));
            run.rerun_without(
                &["congestion", "no-delay", "mss", "rcvlowat", "pacing"],
                &format!("-u -b {rate}"),
            )
        }
    }
}
