//! A token bucket limits the path to a rate.

use linerate_record::facts::Role;
use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::CauseId;
use linerate_record::plan::TransportProtocol;
use linerate_record::record::FlowEnd;
use linerate_stats::units::{format_bit_rate, format_nanos, format_share};

use super::tcp_info_source;
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, duration, percent};
use crate::run_view::{
    DirectionView, MAX_QUEUED_RATE_SPREAD, MIN_IDLE_END_SHARE, MIN_STANDING_QUEUE_SHARE,
    PLATEAU_INTERVALS, RunView, STANDING_QUEUE_NS,
};

/// Share of a known rate from which it is used up.
const FULL_SHARE: f64 = 0.9;

/// Share of a known rate from which a qdisc that counts delayed packets is the limit.
const MIN_COUNTED_SHARE: f64 = 0.75;

/// Delayed packets that a qdisc counts from which it may be the limit: at the start of a run every
/// qdisc delays packets.
const MIN_OVER_LIMIT: u64 = 100;

/// Largest spread of the intervals of a plateau.
const MAX_PLATEAU_SPREAD: f64 = 0.05;

/// Largest spread that lowers the cost.
const MAX_COST_SPREAD: f64 = 0.5;

/// Ratio of the first interval to the plateau from which it is a burst.
const MIN_BURST_RATIO: f64 = 1.2;

/// Ratio of the first interval to the rest from which the rest is an outage.
const MAX_BURST_RATIO: f64 = 50.0;

/// Delayed packets over round trips from which they are the cause, and their smallest number.
const MIN_HELD_SHARE: f64 = 0.5;
const MIN_HELD_PACKETS: u64 = 20;

/// See docs/CAUSES.md#shaped-link.
pub struct ShapedLink;

impl Rule for ShapedLink {
    fn id(&self) -> CauseId {
        CauseId::ShapedLink
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "A token bucket limits the path to a rate.",
            shown_when: vec![
                detection(
                    "TCP and UDP, a known rate",
                    [
                        "a qdisc of the sender, or on the path where that direction leaves, has a \
                         rate"
                            .into(),
                        "below `mq` it is the rate of a single queue for one flow, and the sum of \
                         all queues for several"
                            .into(),
                        format!("{} of it or more are used", percent(FULL_SHARE)),
                    ],
                ),
                detection(
                    "TCP, a standing queue",
                    [
                        format!(
                            "queueing takes more than {}, and {} of the round-trip time",
                            duration(STANDING_QUEUE_NS),
                            percent(MIN_STANDING_QUEUE_SHARE)
                        ),
                        format!(
                            "more than {PLATEAU_INTERVALS} intervals, whose rates spread by less \
                             than {}",
                            percent(MAX_QUEUED_RATE_SPREAD)
                        ),
                        format!(
                            "both ends have more than {} idle time, as far as they report it",
                            percent(MIN_IDLE_END_SHARE)
                        ),
                        "the network limits the sender".into(),
                    ],
                ),
                detection(
                    "TCP and UDP, a burst and a plateau",
                    [
                        format!(
                            "the first interval is {MIN_BURST_RATIO} to {MAX_BURST_RATIO} times the \
                             rest, which spreads by less than {}",
                            percent(MAX_PLATEAU_SPREAD)
                        ),
                        format!(
                            "both ends have more than {} idle time",
                            percent(MIN_IDLE_END_SHARE)
                        ),
                        "no rate was requested, and no window or buffer limits the sender".into(),
                    ],
                ),
                detection(
                    "TCP and UDP, a qdisc that counts",
                    [
                        format!(
                            "a qdisc of the sender or on the path delayed more than \
                             {MIN_OVER_LIMIT} packets"
                        ),
                        format!(
                            "{} of its rate or more are used, if rate and `tx_packets` are known",
                            percent(MIN_COUNTED_SHARE)
                        ),
                        format!(
                            "the sender has more than {} idle time, and no rate was requested",
                            percent(MIN_IDLE_END_SHARE)
                        ),
                    ],
                ),
                detection(
                    "round trips",
                    [format!(
                        "a qdisc delayed {MIN_HELD_PACKETS} packets or more, and {} of the number \
                         of round trips",
                        percent(MIN_HELD_SHARE)
                    )],
                ),
            ],
            not_when: vec![
                "[loss](#path-loss) between two ends of one machine limits the rate, unless the rate \
                 of a qdisc is used"
                    .into(),
                "a link went down, or the peer had no route for a while; then only a known rate \
                 counts"
                    .into(),
            ],
            evidence: &[
                ("rate", "bit/s"),
                ("burst", "B"),
                ("with headers", "bit/s"),
                ("qdisc_over_limit", ""),
                ("round_trips", ""),
                ("rtt_ns.p50", "ns"),
                ("rtt_ns.min", "ns"),
                ("goodput_bps", "bit/s"),
                ("spread of the intervals", "share"),
                ("first interval", "bit/s"),
                ("tcpi_rtt", "ns"),
                ("tcpi_min_rtt", "ns"),
                ("idle time of the sending threads", "share"),
            ],
            cost: vec![
                "Used share of a known rate.".into(),
                format!(
                    "Else 1 - spread of the intervals, {} at least.",
                    percent(1.0 - MAX_COST_SPREAD)
                ),
                "Round trips: share of the median beyond the minimum.".into(),
            ],
            remedy: vec![
                "Raise the rate where it is configured.".into(),
                "Send fewer or smaller requests (`--rate`, `-l`).".into(),
            ],
            wrong_when: vec![
                "something else causes so steady a rate, such as a slow device with a large buffer"
                    .into(),
                "the qdisc that counts delays bursts of a lower rate, or other packets".into(),
            ],
            ..CauseReference::limit()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        let tcp = run.throughput_directions(TransportProtocol::Tcp);
        let udp = run.throughput_directions(TransportProtocol::Udp);
        let directions = tcp.chain(udp);
        directions
            .filter_map(|direction| {
                (self.evaluate_sender_shaper(run, direction))
                    .or_else(|| self.evaluate_path_shaper(run, direction))
                    .or_else(|| self.evaluate_hidden_shaper(run, direction))
            })
            .chain(self.evaluate_round_trips(run))
            .collect()
    }
}

impl ShapedLink {
    /// The sender's own qdisc has a rate limit, and it is used up.
    fn evaluate_sender_shaper(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let interface = direction.sender_interface()?;
        let shape = direction.sender_shaper()?;
        let rate = shape.rate_bps;
        let share = direction.l2_bps()? / rate as f64;
        if share < FULL_SHARE {
            return None;
        }
        let over_limit = run.counter_increase("qdisc_over_limit", |host, _| {
            host == direction.sender.as_str()
        });
        let role = direction.sender;
        FindingBuilder::limit(self.id(), role)
            .direction(direction.direction)
            .cost(share)
            .summary(format!(
                "{} of the {} is limited to {} by {}, and the rate is used up",
                interface.name,
                role.as_str(),
                format_bit_rate(rate as f64),
                match shape.is_below_mq {
                    true => format!("{} below mq", shape.kind),
                    false => shape.kind.to_owned(),
                }
            ))
            .evidence(
                "rate",
                rate,
                "bit/s",
                format!("{} {} rtnetlink TCA_OPTIONS", role.as_str(), interface.name),
            )
            .evidence_if(
                "burst",
                shape.burst_bytes,
                "B",
                format!("{} {} rtnetlink TCA_OPTIONS", role.as_str(), interface.name),
            )
            .evidence(
                "with headers",
                direction.l2_bps()?,
                "bit/s",
                "goodput with Ethernet headers",
            )
            .evidence_if(
                "qdisc_over_limit",
                over_limit,
                "",
                format!("{} rtnetlink TCA_STATS2", role.as_str()),
            )
            .remedy("raise the configured rate")
            .command(run.command_at(role, &format!("tc qdisc show dev {}", interface.name)))
            .build()
    }

    /// A qdisc between the ends has a rate limit, and it is used up.
    fn evaluate_path_shaper(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let at = direction.path_shaper()?;
        let (rate, l2_bps) = (at.after, direction.l2_bps()?);
        let share = l2_bps / rate as f64;
        if share < FULL_SHARE {
            return None;
        }
        let interface = at.interface.as_deref().unwrap_or("an interface");
        FindingBuilder::limit(self.id(), FindingLocation::Path)
            .direction(direction.direction)
            .cost(share)
            .summary(format!(
                "{interface} of {} is limited to {} by its qdisc, and the rate is used up",
                at.host,
                format_bit_rate(rate as f64)
            ))
            .evidence(
                "rate",
                rate,
                "bit/s",
                format!("{} {interface} rtnetlink TCA_OPTIONS", at.host),
            )
            .evidence(
                "with headers",
                l2_bps,
                "bit/s",
                "goodput with Ethernet headers",
            )
            .remedy("raise the configured rate")
            .command(run.command_at_host(&at.host, &format!("tc qdisc show dev {interface}")))
            .build()
    }

    /// A qdisc delays requests or responses until it has tokens for them.
    fn evaluate_round_trips(&self, run: &RunView<'_>) -> Option<Finding> {
        if !run.is_latency() {
            return None;
        }
        let (rtt, round_trips) = (run.record.summary.rtt_ns?, run.record.summary.round_trips?);
        let over = (run.record.counters.iter())
            .filter(|counter| counter.counter == "qdisc_over_limit")
            .max_by_key(|counter| counter.increase())?;
        // A qdisc that delayed a few packets is not the cause for all round trips.
        if over.increase() < MIN_HELD_PACKETS
            || (over.increase() as f64) < MIN_HELD_SHARE * round_trips as f64
        {
            return None;
        }
        let roles = [Role::Client, Role::Server];
        let end = roles.into_iter().find(|role| over.host == role.as_str());
        let interface = over.interface.as_deref().unwrap_or("an interface");
        let source = format!("{} {interface} rtnetlink TCA_STATS2", over.host);
        let known = (end.and_then(|role| run.interface(role))).filter(|interface_facts| {
            Some(interface_facts.name.as_str()) == over.interface.as_deref()
        });
        let command = format!("tc -s qdisc show dev {interface}");
        FindingBuilder::limit(
            self.id(),
            end.map_or(FindingLocation::Path, FindingLocation::from),
        )
        .cost(1.0 - rtt.min as f64 / rtt.p50.max(1) as f64)
        .summary(format!(
            "the qdisc of {interface} ({}) delays requests or responses: the median was {}, \
                 and the minimum {}",
            over.host,
            format_nanos(rtt.p50 as f64),
            format_nanos(rtt.min as f64)
        ))
        .evidence("qdisc_over_limit", over.increase(), "", source)
        .evidence("round_trips", round_trips, "", "client")
        .evidence("rtt_ns.p50", rtt.p50, "ns", "client")
        .evidence("rtt_ns.min", rtt.min, "ns", "client")
        .evidence_if(
            "rate",
            known.and_then(|interface_facts| interface_facts.qdisc_rate_bps),
            "bit/s",
            format!("{} {interface} rtnetlink TCA_OPTIONS", over.host),
        )
        .remedy("send fewer or smaller requests (--rate, -l), or raise the configured rate")
        .command(match end {
            Some(role) => run.command_at(role, &command),
            None => run.command_at_host(&over.host, &command),
        })
        .build()
    }

    /// A hidden shaper limits the rate.
    fn evaluate_hidden_shaper(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        if direction
            .line_share()
            .is_some_and(|share| share >= FULL_SHARE)
            || run.lost_connectivity()
        {
            return None;
        }
        let rates = direction.interval_rates();
        let plateau = direction.goodput()?;
        let over = run.record.counters.iter().find(|counter| {
            let is_on_path = counter.host == direction.sender.as_str()
                || counter.host != direction.receiver.as_str()
                    && direction.leaves_through(&counter.host, counter.interface.as_deref());
            counter.counter == "qdisc_over_limit"
                && counter.increase() > MIN_OVER_LIMIT
                && is_on_path
        });
        let queue = direction.hidden_bottleneck_bps();
        let free = |part| {
            direction
                .thread_time(part)
                .is_some_and(|time| time.free_share() > MIN_IDLE_END_SHARE)
        };
        let steady = rates.len() > 1 + PLATEAU_INTERVALS
            && direction
                .rate_spread()
                .is_some_and(|spread| spread < MAX_PLATEAU_SPREAD);
        // TCP must be limited by the network: a sender that waits for buffer space has a plateau as
        // well.
        let pushes = match direction.plan().protocol {
            TransportProtocol::Tcp => direction.tcp().is_some_and(|tcp| tcp.is_network_limited()),
            TransportProtocol::Udp => true,
        };
        let after = rates.get(1..).map_or(0.0, |rest| {
            rest.iter().sum::<f64>() / rest.len().max(1) as f64
        });
        let burst = steady
            && pushes
            && rates.first().is_some_and(|&first| {
                first > after * MIN_BURST_RATIO && after * MAX_BURST_RATIO > first
            })
            && free(FlowEnd::Sender)
            && free(FlowEnd::Receiver)
            && !super::is_paced(run)
            && !direction.is_loss_limited();
        // A qdisc on the path that delays packets, and a sender with idle time: that qdisc is the
        // limit, unless its rate is known and hardly used, or loss limits the rate. At the start of
        // a run every qdisc delays packets.
        let is_used = direction
            .path_shaper_use()
            .is_none_or(|share| share >= MIN_COUNTED_SHARE)
            && !direction.is_loss_limited();
        let counted = over.is_some()
            && is_used
            && !super::is_paced(run)
            && free(FlowEnd::Sender)
            && direction.sender_interface().is_some()
            && direction.sender_shaper().is_none();
        if queue.is_none() && !burst && !counted {
            return None;
        }
        let tcp = direction.tcp();
        // A known rate that is not used up is no hidden one.
        let known = direction.path_shaper();
        let limit = match known {
            Some(at) => format!(
                "the path passes {} behind the qdisc of {} at {}, which is limited to {}",
                format_bit_rate(plateau),
                at.interface.as_deref().unwrap_or("an interface"),
                at.host,
                format_bit_rate(at.after as f64)
            ),
            None => format!(
                "a hidden limit on the path passes {}",
                format_bit_rate(plateau)
            ),
        };
        let mut builder = FindingBuilder::limit(self.id(), FindingLocation::Path)
            .direction(direction.direction)
            .cost(1.0 - direction.rate_spread().unwrap_or(0.0).min(MAX_COST_SPREAD))
            .summary(format!(
                "{limit}: {}, and both ends had idle time",
                match (burst, queue.is_some()) {
                    (true, _) => "a burst at first, then a plateau",
                    (false, true) => "a standing queue and a steady rate",
                    (false, false) => "a qdisc on the path delays packets",
                }
            ))
            .evidence("goodput_bps", plateau, "bit/s", "receiver")
            .evidence(
                "spread of the intervals",
                direction.rate_spread().unwrap_or(0.0),
                "share",
                "intervals",
            );
        if let Some(first) = rates.first() {
            builder = builder.evidence("first interval", *first, "bit/s", "intervals");
        }
        if let Some(tcp) = tcp {
            builder = builder
                .evidence(
                    "tcpi_rtt",
                    tcp.rtt_ns.round(),
                    "ns",
                    tcp_info_source(direction.sender),
                )
                .evidence(
                    "tcpi_min_rtt",
                    tcp.min_rtt_ns.round(),
                    "ns",
                    tcp_info_source(direction.sender),
                );
        }
        if let Some(over) = over {
            let at = format!(
                "{} {} rtnetlink",
                over.host,
                over.interface.as_deref().unwrap_or("")
            );
            builder = builder.evidence("qdisc_over_limit", over.increase(), "", at);
        }
        if let Some(time) = direction.thread_time(FlowEnd::Sender) {
            builder = builder.evidence(
                "idle time of the sending threads",
                time.free_share(),
                "share",
                super::schedstat_source(direction.sender),
            );
        }
        builder
            .remedy(format!(
                "this is the capacity of the path ({} of the time at one rate); raise the rate \
                 where it is configured",
                format_share(1.0 - direction.rate_spread().unwrap_or(0.0).min(1.0))
            ))
            .command(match known {
                Some(at) => {
                    let interface = at.interface.as_deref().unwrap_or("");
                    run.command_at_host(&at.host, &format!("tc -s qdisc show dev {interface}"))
                }
                None if run.has_third_party_server() => String::new(),
                None => {
                    run.rerun_without(&["congestion", "no-delay", "mss", "rcvlowat"], "-u -b max")
                }
            })
            .build()
    }
}
