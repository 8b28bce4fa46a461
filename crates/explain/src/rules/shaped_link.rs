//! A token bucket limits the path to a rate.

use linerate_metric::facts::Role;
use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::Protocol;
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bit_rate, format_nanos, format_share};

use super::tcp_info;
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, PLATEAU, Way, name};

/// Share of a known rate from which it is used up.
const FULL: f64 = 0.9;

/// Share of a known rate from which a qdisc that counts delayed packets is the limit.
const USED: f64 = 0.75;

/// Ratio of the first interval to the plateau from which it is a burst.
const BURST: f64 = 1.2;

/// Delayed packets over round trips from which they are the cause, and their smallest number.
const HELD: f64 = 0.5;
const HELD_MIN: u64 = 20;

/// See docs/CAUSES.md#shaped-link.
pub struct ShapedLink;

impl Rule for ShapedLink {
    fn id(&self) -> &'static str {
        "shaped-link"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        let tcp = case.throughput(Protocol::Tcp);
        let udp = case.throughput(Protocol::Udp);
        let ways = tcp.chain(udp);
        ways.filter_map(|way| {
            (self.known(case, way))
                .or_else(|| self.in_view(case, way))
                .or_else(|| self.seen(case, way))
        })
        .chain(self.of_round_trips(case))
        .collect()
    }
}

impl ShapedLink {
    /// The sender's own qdisc has a rate limit, and it is used up.
    fn known(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let interface = way.sends_by()?;
        let shape = way.own_shape()?;
        let rate = shape.rate_bps;
        let share = way.l2_bps()? / rate as f64;
        if share < FULL {
            return None;
        }
        let held = case.added("qdisc_over_limit", |host, _| host == name(way.sender));
        let role = way.sender;
        Draft::limit(self.id(), role)
            .way(way.direction)
            .cost(share)
            .says(format!(
                "{} of the {} is limited to {} by {}, and the rate is used up",
                interface.name,
                name(role),
                format_bit_rate(rate as f64),
                match shape.below {
                    true => format!("{} below mq", shape.kind),
                    false => shape.kind.to_owned(),
                }
            ))
            .seen(
                "rate",
                rate,
                "bit/s",
                format!("{} {} rtnetlink TCA_OPTIONS", name(role), interface.name),
            )
            .seen_if(
                "burst",
                shape.burst_bytes,
                "B",
                format!("{} {} rtnetlink TCA_OPTIONS", name(role), interface.name),
            )
            .seen(
                "with headers",
                way.l2_bps()?,
                "bit/s",
                "goodput with Ethernet headers",
            )
            .seen_if(
                "qdisc_over_limit",
                held,
                "",
                format!("{} rtnetlink TCA_STATS2", name(role)),
            )
            .remedy("raise the configured rate")
            .command(case.at(role, &format!("tc qdisc show dev {}", interface.name)))
            .found()
    }

    /// A qdisc between the ends has a rate limit, and it is used up.
    fn in_view(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let at = way.shape_on_the_way()?;
        let (rate, moved) = (at.after, way.l2_bps()?);
        let share = moved / rate as f64;
        if share < FULL {
            return None;
        }
        let interface = at.interface.as_deref().unwrap_or("an interface");
        Draft::limit(self.id(), End::Path)
            .way(way.direction)
            .cost(share)
            .says(format!(
                "{interface} of {} is limited to {} by its qdisc, and the rate is used up",
                at.host,
                format_bit_rate(rate as f64)
            ))
            .seen(
                "rate",
                rate,
                "bit/s",
                format!("{} {interface} rtnetlink TCA_OPTIONS", at.host),
            )
            .seen(
                "with headers",
                moved,
                "bit/s",
                "goodput with Ethernet headers",
            )
            .remedy("raise the configured rate")
            .command(case.at_host(&at.host, &format!("tc qdisc show dev {interface}")))
            .found()
    }

    /// A qdisc delays requests or responses until it has tokens for them.
    fn of_round_trips(&self, case: &Case<'_>) -> Option<Finding> {
        if !case.is_latency() {
            return None;
        }
        let (rtt, asked) = (
            case.record.summary.rtt_ns?,
            case.record.summary.round_trips?,
        );
        let over = (case.record.counters.iter())
            .filter(|counter| counter.counter == "qdisc_over_limit")
            .max_by_key(|counter| counter.added())?;
        // A qdisc that delayed a few packets is not the cause for all round trips.
        if over.added() < HELD_MIN || (over.added() as f64) < HELD * asked as f64 {
            return None;
        }
        let ends = [Role::Client, Role::Server];
        let end = ends.into_iter().find(|role| over.host == name(*role));
        let interface = over.interface.as_deref().unwrap_or("an interface");
        let source = format!("{} {interface} rtnetlink TCA_STATS2", over.host);
        let known = (end.and_then(|role| case.interface(role)))
            .filter(|found| Some(found.name.as_str()) == over.interface.as_deref());
        let command = format!("tc -s qdisc show dev {interface}");
        Draft::limit(self.id(), end.map_or(End::Path, End::from))
            .cost(1.0 - rtt.min as f64 / rtt.p50.max(1) as f64)
            .says(format!(
                "the qdisc of {interface} ({}) delays requests or responses: the median was {}, \
                 and the minimum {}",
                over.host,
                format_nanos(rtt.p50 as f64),
                format_nanos(rtt.min as f64)
            ))
            .seen("qdisc_over_limit", over.added(), "", source)
            .seen("round_trips", asked, "", "client")
            .seen("rtt_ns.p50", rtt.p50, "ns", "client")
            .seen("rtt_ns.min", rtt.min, "ns", "client")
            .seen_if(
                "rate",
                known.and_then(|found| found.qdisc_rate_bps),
                "bit/s",
                format!("{} {interface} rtnetlink TCA_OPTIONS", over.host),
            )
            .remedy("send fewer or smaller requests (--rate, -l), or raise the configured rate")
            .command(match end {
                Some(role) => case.at(role, &command),
                None => case.at_host(&over.host, &command),
            })
            .found()
    }

    /// A hidden shaper limits the rate.
    fn seen(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        if way.share_of_line().is_some_and(|share| share >= FULL) || case.was_cut_off() {
            return None;
        }
        let rates = way.rates();
        let plateau = way.goodput()?;
        let over = case.record.counters.iter().find(|counter| {
            let of_way = counter.host == name(way.sender)
                || counter.host != name(way.receiver)
                    && way.leaves_by(&counter.host, counter.interface.as_deref());
            counter.counter == "qdisc_over_limit" && counter.added() > 100 && of_way
        });
        let queue = way.shaped_elsewhere();
        let free = |part| way.time(part).is_some_and(|time| time.free() > 0.3);
        let steady = rates.len() > 1 + PLATEAU && way.spread().is_some_and(|spread| spread < 0.05);
        // TCP must be limited by the network: a sender that waits for buffer space has a plateau as
        // well.
        let pushes = match way.plan().protocol {
            Protocol::Tcp => way.tcp().is_some_and(|tcp| tcp.pushes()),
            Protocol::Udp => true,
        };
        let after = rates.get(1..).map_or(0.0, |rest| {
            rest.iter().sum::<f64>() / rest.len().max(1) as f64
        });
        let burst = steady
            && pushes
            && rates
                .first()
                .is_some_and(|&first| first > after * BURST && after * 50.0 > first)
            && free(CountedAt::Sender)
            && free(CountedAt::Receiver)
            && !super::is_paced(case)
            && !way.is_held_by_loss();
        // A qdisc on the path that delays packets, and a sender with idle time: that qdisc is the
        // limit, unless its rate is known and hardly used, or loss limits the rate. At the start of
        // a run every qdisc delays packets.
        let is_used =
            way.use_on_the_way().is_none_or(|share| share >= USED) && !way.is_held_by_loss();
        let counted = over.is_some()
            && is_used
            && !super::is_paced(case)
            && free(CountedAt::Sender)
            && way.sends_by().is_some()
            && way.own_shape().is_none();
        if queue.is_none() && !burst && !counted {
            return None;
        }
        let tcp = way.tcp();
        let mut draft = Draft::limit(self.id(), End::Path)
            .way(way.direction)
            .cost(1.0 - way.spread().unwrap_or(0.0).min(0.5))
            .says(format!(
                "a hidden limit on the path passes {}: {}, and both ends had idle time",
                format_bit_rate(plateau),
                match (burst, queue.is_some()) {
                    (true, _) => "a burst at first, then a plateau",
                    (false, true) => "a standing queue and a steady rate",
                    (false, false) => "a qdisc on the path delays packets",
                }
            ))
            .seen("goodput_bps", plateau, "bit/s", "receiver")
            .seen(
                "spread of the intervals",
                way.spread().unwrap_or(0.0),
                "share",
                "intervals",
            );
        if let Some(first) = rates.first() {
            draft = draft.seen("first interval", *first, "bit/s", "intervals");
        }
        if let Some(tcp) = tcp {
            draft = draft
                .seen("tcpi_rtt", tcp.rtt_ns.round(), "ns", tcp_info(way.sender))
                .seen(
                    "tcpi_min_rtt",
                    tcp.min_rtt_ns.round(),
                    "ns",
                    tcp_info(way.sender),
                );
        }
        if let Some(over) = over {
            let at = format!(
                "{} {} rtnetlink",
                over.host,
                over.interface.as_deref().unwrap_or("")
            );
            draft = draft.seen("qdisc_over_limit", over.added(), "", at);
        }
        if let Some(time) = way.time(CountedAt::Sender) {
            draft = draft.seen(
                "idle time of the sending threads",
                time.free(),
                "share",
                super::schedstat(way.sender),
            );
        }
        draft
            .remedy(format!(
                "this is the capacity of the path ({} of the time at one rate); raise the rate \
                 where it is configured",
                format_share(1.0 - way.spread().unwrap_or(0.0).min(1.0))
            ))
            .command(match case.far_is_foreign() {
                true => case.again(""),
                false => {
                    case.again_without(&["congestion", "no-delay", "mss", "rcvlowat"], "-u -b max")
                }
            })
            .found()
    }
}
