//! A receive ring is too short for the bursts that arrive.

use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::forward::QueueFigures;
use linerate_record::ids::{CauseId, LossPoint};
use linerate_record::plan::{RunKind, TransportProtocol};
use linerate_record::record::FlowEnd;
use linerate_stats::units::{format_count, format_nanos, format_share};

use super::burst_size::{IDLE_PART, LARGE_BURST_FRAMES, POLL_COST_FRAMES};
use super::nic_drop::{MIN_DROPS, MIN_RELEVANT_SHARE};
use super::path_loss::MAX_CORE_WAIT_SHARE;
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::{DirectionView, RunView};

/// Ring length that holds the small frames of a time slice at 1 Gb/s.
const LONG_RING_DESCRIPTORS: u32 = 1024;

/// Mean frames per poll over ring length from which the ring limits the poll.
const MIN_RING_SHARE: f64 = 0.75;

/// Default ring length of our stack.
const NETSTACK_DEFAULT_DESCRIPTORS: u32 = 256;

/// See docs/CAUSES.md#too-few-descriptors.
pub struct TooFewDescriptors;

impl Rule for TooFewDescriptors {
    fn id(&self) -> CauseId {
        CauseId::TooFewDescriptors
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "A ring is too short for the bursts that arrive.",
            shown_when: vec![
                detection(
                    "TCP and UDP, hardware",
                    [
                        format!(
                            "`rx_missed` has {MIN_DROPS} frames or more, and {} or more",
                            percent(MIN_RELEVANT_SHARE)
                        ),
                        format!(
                            "the ring is shorter than the device permits; than \
                             {LONG_RING_DESCRIPTORS} if that is unknown"
                        ),
                    ],
                ),
                detection(
                    "UDP, the user-space stack with `poll.interval`",
                    [
                        "more frames arrive in an interval than `rx_descriptors`".into(),
                        format!(
                            "{MIN_DROPS} datagrams or more, and {} or more, are lost at \
                             `interface-rx` or `path`",
                            percent(MIN_RELEVANT_SHARE)
                        ),
                    ],
                ),
                detection(
                    "TCP and UDP, the user-space stack receives",
                    [format!(
                        "its port lacked descriptors or buffers for {MIN_DROPS} frames or more, \
                         and {} or more",
                        percent(MIN_RELEVANT_SHARE)
                    )],
                ),
                detection(
                    "`forward` and `generate`",
                    [format!(
                        "a port dropped {MIN_DROPS} frames or more, and {} or more, for lack of \
                         descriptors or buffers",
                        percent(MIN_RELEVANT_SHARE)
                    )],
                ),
                detection(
                    "`forward`, rings shorter than a burst",
                    [
                        format!(
                            "the shortest ring has less than a burst and than \
                             {LARGE_BURST_FRAMES} descriptors"
                        ),
                        format!(
                            "a poll moves {} of it or more, and one in {IDLE_PART} rounds at most \
                             finds no frame",
                            percent(MIN_RING_SHARE)
                        ),
                    ],
                ),
            ],
            limit_when: vec![
                "the user-space stack: the path is full".into(),
                format!(
                    "the user-space stack: the ring has {LONG_RING_DESCRIPTORS} descriptors or more"
                ),
                format!(
                    "the user-space stack: its thread is saturated with a ring of \
                     {NETSTACK_DEFAULT_DESCRIPTORS} or more: it is too slow on average"
                ),
            ],
            not_when: vec![
                format!(
                    "the user-space stack waits for a CPU for more than {} of the time: see \
                     [scheduling-delay](#scheduling-delay)",
                    percent(MAX_CORE_WAIT_SHARE)
                ),
                "a port of `forward` had no carrier or no peer".into(),
            ],
            evidence: &[
                ("rx_missed", "frames"),
                ("rx descriptors", ""),
                ("maximum rx descriptors", ""),
                ("poll.interval", "ns"),
                ("rx_descriptors", ""),
                ("frames per poll interval", "frames"),
                ("losses[interface-rx]", "datagrams"),
                ("losses[path]", "datagrams"),
                ("link.port_ring_full", "frames"),
                ("link.port_no_buffer", "frames"),
                ("link.in_frames", "frames"),
                ("working time of the receiving thread", "share"),
                ("drops[ring-full, no-buffer], receive", "frames"),
                ("drops[ring-full, no-buffer], transmit", "frames"),
                ("moved", "frames"),
                ("tx descriptors", ""),
                ("descriptors", ""),
                ("frames per poll", "frames"),
                ("drops[ring-full, no-buffer]", "frames"),
                ("burst", "frames"),
                ("sent", "frames"),
            ],
            cost: vec![
                "Lost share.".into(),
                "TCP: share of the time in which only the congestion window limits the sender."
                    .into(),
            ],
            remedy: vec![
                "Enlarge the ring: `ethtool -G IF rx N`, `--rxd`, `--txd`, or `rx_descriptors` of \
                 the user-space stack."
                    .into(),
                "Let the user-space stack poll all the time (`--set poll.interval=spin`).".into(),
                "`generate`: use a thread for receiving (`--threads 2`).".into(),
            ],
            wrong_when: vec![
                "the reader is too slow on average: a longer ring only delays the loss".into(),
                "in records of versions without `rx_errors`, frames arrived corrupted".into(),
            ],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        match run.plan.kind {
            RunKind::Throughput => (run.directions.iter())
                .filter_map(|direction| {
                    let of_stack = || {
                        self.evaluate_poll_interval(run, direction)
                            .or_else(|| self.evaluate_netstack_ring(run, direction))
                    };
                    self.evaluate_interface(run, direction).or_else(of_stack)
                })
                .collect(),
            RunKind::Forward => (self
                .evaluate_forwarder(run)
                .or_else(|| self.evaluate_polls(run)))
            .into_iter()
            .collect(),
            RunKind::Generate => self.evaluate_generator(run).into_iter().collect(),
            RunKind::Latency | RunKind::Stack => Vec::new(),
        }
    }
}

/// Returns the option for a ring that holds a time slice; `None` if it is long enough.
fn longer_ring_option(option: &str, now: Option<u32>) -> Option<String> {
    now.is_none_or(|now| now < LONG_RING_DESCRIPTORS)
        .then(|| format!("{option} {LONG_RING_DESCRIPTORS}"))
}

fn ring_drops(figures: &QueueFigures) -> u64 {
    ["ring-full", "no-buffer"]
        .iter()
        .filter_map(|cause| figures.drops.get(*cause))
        .sum()
}

impl TooFewDescriptors {
    fn evaluate_interface(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let interface = direction.receiver_interface()?;
        let (now, most) = (interface.rx_descriptors?, interface.rx_descriptors_max);
        let host = direction.receiver.as_str();
        let missed = run.counter_increase("rx_missed", |at, on| {
            at == host && on == Some(interface.name.as_str())
        })?;
        let share = missed as f64 / (direction.path_packets() + missed as f64).max(1.0);
        let longer = most
            .unwrap_or(LONG_RING_DESCRIPTORS)
            .max(LONG_RING_DESCRIPTORS.min(most.unwrap_or(LONG_RING_DESCRIPTORS)));
        if missed < MIN_DROPS || share < MIN_RELEVANT_SHARE || now >= longer {
            return None;
        }
        let is_udp = run.plan.protocol == TransportProtocol::Udp;
        let limited = direction
            .tcp()
            .map_or(0.0, |tcp| super::congestion_loss::cwnd_limited_share(&tcp));
        FindingBuilder::cause(self.id(), direction.receiver)
            .direction(direction.direction)
            .cost(if is_udp { share } else { limited.max(share) })
            .summary(format!(
                "{} of the {host} had no free descriptor for {} frames ({}): its queues have \
                 {now} each",
                interface.name,
                format_count(missed),
                format_share(share)
            ))
            .evidence(
                "rx_missed",
                missed,
                "frames",
                format!("{host} {} rtnl_link_stats64", interface.name),
            )
            .evidence(
                "rx descriptors",
                now,
                "",
                format!("{host} {} ethtool -g", interface.name),
            )
            .evidence_if(
                "maximum rx descriptors",
                most,
                "",
                format!("{host} {} ethtool -g", interface.name),
            )
            .remedy("enlarge the receive ring")
            .command(run.command_at(
                direction.receiver,
                &format!("ethtool -G {} rx {longer}", interface.name),
            ))
            .gain(
                is_udp.then(|| 1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .build()
    }

    /// Our stack polls so rarely that more frames arrive than its ring holds.
    fn evaluate_poll_interval(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let role = direction.receiver;
        let interval = run.poll_interval_ns(role)?;
        let stack = run.host(role)?.stack.as_ref()?;
        let ring: f64 = stack.configuration.get("rx_descriptors")?.parse().ok()?;
        // Some ports do not count their drops.
        let (in_ring, uncounted) = (
            direction.lost_at(LossPoint::InterfaceRx),
            direction.lost_at(LossPoint::Path),
        );
        let lost = in_ring + uncounted;
        let share =
            direction.lost_share(LossPoint::InterfaceRx) + direction.lost_share(LossPoint::Path);
        let arrive = direction.packets_sent() * direction.fragments()
            / direction.send_seconds().max(1e-9)
            * interval
            / 1e9;
        if run.plan.protocol != TransportProtocol::Udp
            || lost < MIN_DROPS
            || share < MIN_RELEVANT_SHARE
            || arrive <= ring
        {
            return None;
        }
        FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(share)
            .summary(format!(
                "the user-space stack at the {} polls its port every {}: {arrive:.0} frames arrive per \
                 interval, its ring holds {ring:.0}, and {} datagrams ({}) were dropped",
                role.as_str(),
                format_nanos(interval),
                format_count(lost),
                format_share(share)
            ))
            .evidence(
                "poll.interval",
                interval,
                "ns",
                format!("{} stack", role.as_str()),
            )
            .evidence(
                "rx_descriptors",
                ring,
                "",
                format!("{} stack", role.as_str()),
            )
            .evidence(
                "frames per poll interval",
                arrive,
                "frames",
                "datagrams sent per second * poll.interval",
            )
            .evidence_if(
                "losses[interface-rx]",
                (in_ring > 0).then_some(in_ring),
                "datagrams",
                "frames dropped at the full ring",
            )
            .evidence_if(
                "losses[path]",
                (uncounted > 0).then_some(uncounted),
                "datagrams",
                "sequence numbers missing at the receiver, less counted drops",
            )
            .remedy(
                "poll the port all the time, or enlarge its ring to hold the frames of one \
                 interval (rx_descriptors)",
            )
            .command(run.rerun_with_key(role, "poll.interval", "spin"))
            .tried(Some(format!(
                "poll.interval={}",
                stack.configuration.get("poll.interval")?
            )))
            .gain(
                Some(1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .build()
    }

    /// Our stack polls all the time, and its port had no descriptor for a burst.
    fn evaluate_netstack_ring(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let role = direction.receiver;
        let full = direction.ring_full_frames();
        let stack = run.host(role)?.stack.as_ref()?;
        let ring: u32 = stack.configuration.get("rx_descriptors")?.parse().ok()?;
        let arrived = stack.counter("link", "in_frames");
        let share = full as f64 / (arrived + full).max(1) as f64;
        // A stack that waits for a core empties no ring.
        let time = direction.thread_time(FlowEnd::Receiver);
        let is_core_limited = time.is_some_and(|time| time.core_wait > MAX_CORE_WAIT_SHARE);
        if full < MIN_DROPS || share < MIN_RELEVANT_SHARE || is_core_limited {
            return None;
        }
        // A longer ring only delays the loss if the reader is too slow on average.
        let is_slow =
            time.is_some_and(|time| time.is_saturated()) && ring >= NETSTACK_DEFAULT_DESCRIPTORS;
        let is_long = ring >= LONG_RING_DESCRIPTORS;
        let is_udp = run.plan.protocol == TransportProtocol::Udp;
        let limited = direction
            .tcp()
            .map_or(0.0, |tcp| super::congestion_loss::cwnd_limited_share(&tcp));
        let longer = ring
            .saturating_mul(4)
            .clamp(NETSTACK_DEFAULT_DESCRIPTORS, LONG_RING_DESCRIPTORS);
        // A saturated path has no more to give.
        let full_path = direction.fills_path();
        let no_buffer = run
            .host(role)?
            .stack
            .as_ref()?
            .counter("link", "port_no_buffer");
        let builder = FindingBuilder::limit_if(full_path || is_slow || is_long, self.id(), role)
            .direction(direction.direction)
            .cost(if is_udp || full_path {
                share
            } else {
                limited.clamp(share, 0.95)
            })
            .summary(format!(
                "the port of the user-space stack at the {} had no free descriptor for {} frames ({}): its \
                 ring holds {ring}",
                role.as_str(),
                format_count(full),
                format_share(share)
            ))
            .evidence(
                "link.port_ring_full",
                full - no_buffer,
                "frames",
                format!("{} stack", role.as_str()),
            )
            .evidence_if(
                "link.port_no_buffer",
                (no_buffer > 0).then_some(no_buffer),
                "frames",
                format!("{} stack", role.as_str()),
            )
            .evidence(
                "link.in_frames",
                arrived,
                "frames",
                format!("{} stack", role.as_str()),
            )
            .evidence(
                "rx_descriptors",
                ring,
                "",
                format!("{} stack", role.as_str()),
            )
            .tried(Some(format!("rx_descriptors={ring}")));
        if is_slow || is_long {
            return builder
                .evidence_if(
                    "working time of the receiving thread",
                    time.map(|time| time.working),
                    "share",
                    super::schedstat_source(role),
                )
                .remedy(match is_long {
                    true => {
                        "the ring is long: the user-space stack reads frames too slowly, and a longer ring \
                         only delays the loss; use larger frames, fewer of them, or a separate \
                         CPU for its thread"
                    }
                    false => {
                        "its thread is saturated, and a longer ring only delays the loss; use \
                         larger frames, fewer of them, or a faster CPU"
                    }
                })
                .build();
        }
        builder
            .remedy(
                "enlarge the ring of the user-space stack's port to hold a burst (rx_descriptors)",
            )
            .command(run.rerun_with_key(role, "rx_descriptors", &longer.to_string()))
            .gain(
                is_udp.then(|| 1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .build()
    }

    fn evaluate_forwarder(&self, run: &RunView<'_>) -> Option<Finding> {
        let figures = run.record.forward.as_ref()?;
        // Without a receiver no ring is long enough.
        if run.has_no_receiver() {
            return None;
        }
        let port = figures
            .ports
            .iter()
            .max_by_key(|port| ring_drops(&port.receive).max(ring_drops(&port.transmit)))?;
        let lost = ring_drops(&port.receive).max(ring_drops(&port.transmit));
        let frames_moved = port.receive.packets + port.transmit.packets;
        let share = lost as f64 / (frames_moved + lost).max(1) as f64;
        if lost < MIN_DROPS || share < MIN_RELEVANT_SHARE {
            return None;
        }
        let options: Vec<String> = [
            ("--rxd", port.rx_descriptors),
            ("--txd", port.tx_descriptors),
        ]
        .into_iter()
        .filter_map(|(option, now)| longer_ring_option(option, now))
        .collect();
        let mut builder = FindingBuilder::cause(self.id(), FindingLocation::Both)
            .cost(share)
            .summary(format!(
                "port {} ({}) dropped {} frames ({}) at a full ring",
                port.port,
                port.name,
                format_count(lost),
                format_share(share)
            ))
            .evidence(
                "drops[ring-full, no-buffer], receive",
                ring_drops(&port.receive),
                "frames",
                format!("port {}", port.port),
            )
            .evidence(
                "drops[ring-full, no-buffer], transmit",
                ring_drops(&port.transmit),
                "frames",
                format!("port {}", port.port),
            )
            .evidence(
                "moved",
                frames_moved,
                "frames",
                format!("port {}", port.port),
            )
            .evidence_if(
                "rx descriptors",
                port.rx_descriptors,
                "",
                format!("port {}", port.port),
            )
            .evidence_if(
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
            builder = builder.command(run.rerun_command(&options.join(" ")));
        }
        builder
            .gain(
                Some(1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .build()
    }

    /// Rings shorter than a poll's burst: each is full or empty at every poll.
    fn evaluate_polls(&self, run: &RunView<'_>) -> Option<Finding> {
        let plan = run.plan.forward.as_ref()?;
        let figures = run.record.forward.as_ref()?;
        if run.has_no_receiver() {
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
            .map(|port| ring_drops(&port.receive) + ring_drops(&port.transmit))
            .sum();
        let frames_moved: u64 = figures.ports.iter().map(|port| port.receive.packets).sum();
        // Each round polls every stream of its thread.
        let polls =
            rounds as f64 * figures.streams.len() as f64 / figures.cores.len().max(1) as f64;
        let each = frames_moved as f64 / polls.max(1.0);
        let short = ring < LARGE_BURST_FRAMES.min(plan.burst)
            && each >= MIN_RING_SHARE * f64::from(ring)
            && full > 0;
        if rounds == 0 || idle * IDLE_PART > rounds || !short {
            return None;
        }
        let (poll, least) = (
            |burst: f64| 1.0 + POLL_COST_FRAMES / burst,
            f64::from(plan.burst.min(32)),
        );
        let gain = poll(f64::from(ring)) / poll(least);
        let options: Vec<String> = ["--rxd", "--txd"]
            .into_iter()
            .filter_map(|option| longer_ring_option(option, Some(ring)))
            .collect();
        FindingBuilder::cause(self.id(), FindingLocation::Both)
            .cost(1.0 - 1.0 / gain)
            .summary(format!(
                "the rings hold at most {ring} frames, and each poll moves {each:.1} of {} \
                 possible ones",
                plan.burst
            ))
            .evidence("descriptors", ring, "", "shortest ring of all ports")
            .evidence(
                "frames per poll",
                each,
                "frames",
                "received / rounds and streams",
            )
            .evidence("drops[ring-full, no-buffer]", full, "frames", "all ports")
            .evidence("burst", plan.burst, "frames", "plan")
            .remedy("enlarge the rings beyond a burst")
            .command(run.rerun_command(&options.join(" ")))
            .tried(Some(format!("{ring} descriptors")))
            .estimated_gain(
                Some(gain),
                "a frame costs 1 + 2 / frames per poll (docs/method/defaults.md)",
            )
            .build()
    }

    fn evaluate_generator(&self, run: &RunView<'_>) -> Option<Finding> {
        let figures = run.record.generate.as_ref()?;
        let port = figures.receive.as_ref()?;
        let lost: u64 = ["ring-full", "no-buffer"]
            .iter()
            .filter_map(|cause| port.drops.get(*cause))
            .sum();
        let share = lost as f64 / figures.sent.max(1) as f64;
        if lost < MIN_DROPS || share < MIN_RELEVANT_SHARE {
            return None;
        }
        FindingBuilder::cause(self.id(), FindingLocation::Both)
            .cost(share)
            .summary(format!(
                "the receiving port {} had no free descriptor for {} frames ({})",
                port.name,
                format_count(lost),
                format_share(share)
            ))
            .evidence(
                "drops[ring-full, no-buffer]",
                lost,
                "frames",
                port.name.clone(),
            )
            .evidence("sent", figures.sent, "frames", "generator")
            .remedy("enlarge the receive ring, or use two polling threads")
            .command(run.rerun_command("--threads 2"))
            .build()
    }
}
