//! A receive ring is too short for the bursts that arrive.

use linerate_metric::finding::{End, Finding};
use linerate_metric::forward::QueueFigures;
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_count, format_nanos, format_share};

use super::burst_size::{ENOUGH, POLL};
use super::nic_drop::{FEW, MATTERS};
use super::path_loss::IN_LINE;
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Ring length that holds the small frames of a time slice at 1 Gb/s.
const LONG: u32 = 1024;

/// Mean frames per poll over ring length from which the ring limits the poll.
const NEARLY: f64 = 0.75;

/// Default ring length of our stack.
const OWN_DEFAULT: u32 = 256;

/// See docs/CAUSES.md#too-few-descriptors.
pub struct TooFewDescriptors;

impl Rule for TooFewDescriptors {
    fn id(&self) -> &'static str {
        "too-few-descriptors"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        match case.plan.kind {
            Kind::Throughput => (case.ways.iter())
                .filter_map(|way| {
                    let of_stack = || self.of_stack(case, way).or_else(|| self.of_ring(case, way));
                    self.of_interface(case, way).or_else(of_stack)
                })
                .collect(),
            Kind::Forward => (self.of_forwarder(case).or_else(|| self.of_polls(case)))
                .into_iter()
                .collect(),
            Kind::Generate => self.of_generator(case).into_iter().collect(),
            Kind::Latency | Kind::Stack => Vec::new(),
        }
    }
}

/// Returns the option for a ring that holds a time slice; `None` if it is long enough.
fn longer_ring(option: &str, now: Option<u32>) -> Option<String> {
    now.is_none_or(|now| now < LONG)
        .then(|| format!("{option} {LONG}"))
}

fn no_room(figures: &QueueFigures) -> u64 {
    ["ring-full", "no-buffer"]
        .iter()
        .filter_map(|cause| figures.drops.get(*cause))
        .sum()
}

impl TooFewDescriptors {
    fn of_interface(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let interface = way.receives_by()?;
        let (now, most) = (interface.rx_descriptors?, interface.rx_descriptors_max);
        let host = name(way.receiver);
        let missed = case.added("rx_missed", |at, on| {
            at == host && on == Some(interface.name.as_str())
        })?;
        let share = missed as f64 / (way.packets() + missed as f64).max(1.0);
        let longer = most.unwrap_or(LONG).max(LONG.min(most.unwrap_or(LONG)));
        if missed < FEW || share < MATTERS || now >= longer {
            return None;
        }
        let is_udp = case.plan.protocol == Protocol::Udp;
        let held = way
            .tcp()
            .map_or(0.0, |tcp| super::congestion_loss::held_by_congestion(&tcp));
        Draft::cause(self.id(), way.receiver)
            .way(way.direction)
            .cost(if is_udp { share } else { held.max(share) })
            .says(format!(
                "{} of the {host} had no free descriptor for {} frames ({}): its queues have \
                 {now} each",
                interface.name,
                format_count(missed),
                format_share(share)
            ))
            .seen(
                "rx_missed",
                missed,
                "frames",
                format!("{host} {} rtnl_link_stats64", interface.name),
            )
            .seen(
                "rx descriptors",
                now,
                "",
                format!("{host} {} ethtool -g", interface.name),
            )
            .seen_if(
                "maximum rx descriptors",
                most,
                "",
                format!("{host} {} ethtool -g", interface.name),
            )
            .remedy("enlarge the receive ring")
            .command(case.at(
                way.receiver,
                &format!("ethtool -G {} rx {longer}", interface.name),
            ))
            .gain(
                is_udp.then(|| 1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .found()
    }

    /// Our stack polls so rarely that more frames arrive than its ring holds.
    fn of_stack(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let role = way.receiver;
        let interval = case.poll_interval_ns(role)?;
        let stack = case.host(role)?.stack.as_ref()?;
        let ring: f64 = stack.configuration.get("rx_descriptors")?.parse().ok()?;
        // Some ports do not count their drops.
        let (in_ring, uncounted) = (way.lost_at("interface-rx"), way.lost_at("path"));
        let lost = in_ring + uncounted;
        let share = way.lost_share("interface-rx") + way.lost_share("path");
        let arrive =
            way.packets_sent() * way.fragments() / way.seconds().max(1e-9) * interval / 1e9;
        if case.plan.protocol != Protocol::Udp || lost < FEW || share < MATTERS || arrive <= ring {
            return None;
        }
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(share)
            .says(format!(
                "our stack at the {} polls its port every {}: {arrive:.0} frames arrive per \
                 interval, its ring holds {ring:.0}, and {} datagrams ({}) were dropped",
                name(role),
                format_nanos(interval),
                format_count(lost),
                format_share(share)
            ))
            .seen(
                "poll.interval",
                interval,
                "ns",
                format!("{} stack", name(role)),
            )
            .seen("rx_descriptors", ring, "", format!("{} stack", name(role)))
            .seen(
                "frames per poll interval",
                arrive,
                "frames",
                "datagrams sent per second * poll.interval",
            )
            .seen_if(
                "losses[interface-rx]",
                (in_ring > 0).then_some(in_ring),
                "datagrams",
                "frames dropped at the full ring",
            )
            .seen_if(
                "losses[path]",
                (uncounted > 0).then_some(uncounted),
                "datagrams",
                "sequence numbers missing at the receiver, less counted drops",
            )
            .remedy(
                "poll the port all the time, or enlarge its ring to hold the frames of one \
                 interval (rx_descriptors)",
            )
            .command(case.again_with_key(role, "poll.interval", "spin"))
            .tried(Some(format!(
                "poll.interval={}",
                stack.configuration.get("poll.interval")?
            )))
            .gain(
                Some(1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .found()
    }

    /// Our stack polls all the time, and its port had no descriptor for a burst.
    fn of_ring(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let role = way.receiver;
        let full = way.ring_was_full();
        let stack = case.host(role)?.stack.as_ref()?;
        let ring: u32 = stack.configuration.get("rx_descriptors")?.parse().ok()?;
        let arrived = stack.counter("link", "in_frames");
        let share = full as f64 / (arrived + full).max(1) as f64;
        // A stack that waits for a core empties no ring.
        let time = way.time(CountedAt::Receiver);
        let late = time.is_some_and(|time| time.runnable > IN_LINE);
        if full < FEW || share < MATTERS || late {
            return None;
        }
        // A longer ring only delays the loss if the reader is too slow on average.
        let is_slow = time.is_some_and(|time| time.is_saturated()) && ring >= OWN_DEFAULT;
        let is_long = ring >= LONG;
        let is_udp = case.plan.protocol == Protocol::Udp;
        let held = way
            .tcp()
            .map_or(0.0, |tcp| super::congestion_loss::held_by_congestion(&tcp));
        let longer = ring.saturating_mul(4).clamp(OWN_DEFAULT, LONG);
        // A saturated path has no more to give.
        let full_path = way.fills_path();
        let no_buffer = case
            .host(role)?
            .stack
            .as_ref()?
            .counter("link", "port_no_buffer");
        let draft = Draft::limit_if(full_path || is_slow || is_long, self.id(), role)
            .way(way.direction)
            .cost(if is_udp || full_path {
                share
            } else {
                held.clamp(share, 0.95)
            })
            .says(format!(
                "the port of our stack at the {} had no free descriptor for {} frames ({}): its \
                 ring holds {ring}",
                name(role),
                format_count(full),
                format_share(share)
            ))
            .seen(
                "link.port_ring_full",
                full - no_buffer,
                "frames",
                format!("{} stack", name(role)),
            )
            .seen_if(
                "link.port_no_buffer",
                (no_buffer > 0).then_some(no_buffer),
                "frames",
                format!("{} stack", name(role)),
            )
            .seen(
                "link.in_frames",
                arrived,
                "frames",
                format!("{} stack", name(role)),
            )
            .seen("rx_descriptors", ring, "", format!("{} stack", name(role)))
            .tried(Some(format!("rx_descriptors={ring}")));
        if is_slow || is_long {
            return draft
                .seen_if(
                    "working time of the receiving thread",
                    time.map(|time| time.working),
                    "share",
                    super::schedstat(role),
                )
                .remedy(match is_long {
                    true => {
                        "the ring is long: our stack reads frames too slowly, and a longer ring \
                         only delays the loss; use larger frames, fewer of them, or a separate \
                         core for its thread"
                    }
                    false => {
                        "its thread is saturated, and a longer ring only delays the loss; use \
                         larger frames, fewer of them, or a faster core"
                    }
                })
                .found();
        }
        draft
            .remedy("enlarge the ring of our stack's port to hold a burst (rx_descriptors)")
            .command(case.again_with_key(role, "rx_descriptors", &longer.to_string()))
            .gain(
                is_udp.then(|| 1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .found()
    }

    fn of_forwarder(&self, case: &Case<'_>) -> Option<Finding> {
        let figures = case.record.forward.as_ref()?;
        // Without a receiver no ring is long enough.
        if case.leads_nowhere() {
            return None;
        }
        let port = figures
            .ports
            .iter()
            .max_by_key(|port| no_room(&port.receive).max(no_room(&port.transmit)))?;
        let lost = no_room(&port.receive).max(no_room(&port.transmit));
        let moved = port.receive.packets + port.transmit.packets;
        let share = lost as f64 / (moved + lost).max(1) as f64;
        if lost < FEW || share < MATTERS {
            return None;
        }
        let options: Vec<String> = [
            ("--rxd", port.rx_descriptors),
            ("--txd", port.tx_descriptors),
        ]
        .into_iter()
        .filter_map(|(option, now)| longer_ring(option, now))
        .collect();
        let mut draft = Draft::cause(self.id(), End::Both)
            .cost(share)
            .says(format!(
                "port {} ({}) dropped {} frames ({}) at a full ring",
                port.port,
                port.name,
                format_count(lost),
                format_share(share)
            ))
            .seen(
                "drops[ring-full, no-buffer], receive",
                no_room(&port.receive),
                "frames",
                format!("port {}", port.port),
            )
            .seen(
                "drops[ring-full, no-buffer], transmit",
                no_room(&port.transmit),
                "frames",
                format!("port {}", port.port),
            )
            .seen("moved", moved, "frames", format!("port {}", port.port))
            .seen_if(
                "rx descriptors",
                port.rx_descriptors,
                "",
                format!("port {}", port.port),
            )
            .seen_if(
                "tx descriptors",
                port.tx_descriptors,
                "",
                format!("port {}", port.port),
            )
            .remedy(match options.is_empty() {
                true => {
                    "its rings are long: read frames faster (more threads and queues), or reduce \
                     the packets in circulation"
                }
                false => "enlarge the rings, or reduce the packets in circulation",
            });
        if !options.is_empty() {
            draft = draft.command(case.again(&options.join(" ")));
        }
        draft
            .gain(
                Some(1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .found()
    }

    /// Rings shorter than a poll's burst: each is full or empty at every poll.
    fn of_polls(&self, case: &Case<'_>) -> Option<Finding> {
        let plan = case.plan.forward.as_ref()?;
        let figures = case.record.forward.as_ref()?;
        if case.leads_nowhere() {
            return None;
        }
        let rounds: u64 = figures.cores.iter().map(|core| core.rounds).sum();
        let idle: u64 = figures.cores.iter().map(|core| core.idle_rounds).sum();
        let rings = figures
            .ports
            .iter()
            .flat_map(|port| [port.rx_descriptors, port.tx_descriptors]);
        let ring = rings.flatten().min()?;
        let full: u64 = figures
            .ports
            .iter()
            .map(|port| no_room(&port.receive) + no_room(&port.transmit))
            .sum();
        let moved: u64 = figures.ports.iter().map(|port| port.receive.packets).sum();
        // Each round polls every stream of its thread.
        let looks =
            rounds as f64 * figures.streams.len() as f64 / figures.cores.len().max(1) as f64;
        let each = moved as f64 / looks.max(1.0);
        let short = ring < ENOUGH.min(plan.burst) && each >= NEARLY * f64::from(ring) && full > 0;
        if rounds == 0 || idle * 3 > rounds || !short {
            return None;
        }
        let (poll, least) = (
            |burst: f64| 1.0 + POLL / burst,
            f64::from(plan.burst.min(32)),
        );
        let gain = poll(f64::from(ring)) / poll(least);
        let options: Vec<String> = ["--rxd", "--txd"]
            .into_iter()
            .filter_map(|option| longer_ring(option, Some(ring)))
            .collect();
        Draft::cause(self.id(), End::Both)
            .cost(1.0 - 1.0 / gain)
            .says(format!(
                "the rings hold at most {ring} frames, and each poll moves {each:.1} of {} \
                 possible ones",
                plan.burst
            ))
            .seen("descriptors", ring, "", "shortest ring of all ports")
            .seen(
                "frames per poll",
                each,
                "frames",
                "received / rounds and streams",
            )
            .seen("drops[ring-full, no-buffer]", full, "frames", "all ports")
            .seen("burst", plan.burst, "frames", "plan")
            .remedy("enlarge the rings beyond a burst")
            .command(case.again(&options.join(" ")))
            .tried(Some(format!("{ring} descriptors")))
            .gain(
                Some(gain),
                "a frame costs 1 + 2 / frames per poll (docs/method/defaults.md)",
            )
            .found()
    }

    fn of_generator(&self, case: &Case<'_>) -> Option<Finding> {
        let figures = case.record.generate.as_ref()?;
        let port = figures.receive.as_ref()?;
        let lost: u64 = ["ring-full", "no-buffer"]
            .iter()
            .filter_map(|cause| port.drops.get(*cause))
            .sum();
        let share = lost as f64 / figures.sent.max(1) as f64;
        if lost < FEW || share < MATTERS {
            return None;
        }
        Draft::cause(self.id(), End::Both)
            .cost(share)
            .says(format!(
                "the receiving port {} had no free descriptor for {} frames ({})",
                port.name,
                format_count(lost),
                format_share(share)
            ))
            .seen(
                "drops[ring-full, no-buffer]",
                lost,
                "frames",
                port.name.clone(),
            )
            .seen("sent", figures.sent, "frames", "generator")
            .remedy("enlarge the receive ring, or use two polling threads")
            .command(case.again("--threads 2"))
            .found()
    }
}
