//! Rules of the explain engine: one file per rule, and one line in [`RULES`].

mod asymmetric_path;
mod burst_size;
mod congestion_control;
mod congestion_loss;
mod cpu_frequency;
mod cpu_quota;
mod delayed_ack;
mod energy_efficient_ethernet;
mod fragment_loss;
mod gso_size;
mod idle_wakeup;
mod interrupt_coalescing;
mod line_rate;
mod link_down;
mod link_speed;
mod mtu_black_hole;
mod nagle;
mod neighbour;
mod nic_drop;
mod offload_off;
mod path_delay;
mod path_loss;
mod qdisc_drop;
mod reassembly;
mod receive_window;
mod receiver_cpu;
mod reordering;
mod rt_throttle;
mod scheduling_delay;
mod send_buffer;
mod sender_cpu;
mod shaped_link;
mod shared_core;
mod single_flow;
mod slow_receiver_application;
mod slow_sender_application;
mod small_writes;
mod socket_buffer_cap;
mod socket_reopened;
mod softirq_core;
mod softnet_backlog;
mod steal;
mod too_few_descriptors;
mod too_few_in_flight;
mod tool_limit;
mod udp_receive_queue;
mod usb_adapter;

use linerate_record::facts::{ChildQdisc, Role};
use linerate_record::finding::Finding;
use linerate_record::plan::{RunKind, TransportProtocol};
use linerate_record::record::FlowEnd;

use crate::finding_builder::FindingBuilder;
use crate::run_view::{DirectionView, RunView, TcpSummary};

/// Rules, in the order of docs/CAUSES.md.
pub const RULES: &[&dyn crate::Rule] = &[
    &receive_window::ReceiveWindow,
    &send_buffer::SendBuffer,
    &congestion_loss::CongestionLoss,
    &congestion_control::CongestionControl,
    &reordering::Reordering,
    &delayed_ack::DelayedAck,
    &nagle::Nagle,
    &small_writes::SmallWrites,
    &sender_cpu::SenderCpu,
    &receiver_cpu::ReceiverCpu,
    &shared_core::SharedCore,
    &softirq_core::SoftirqCore,
    &idle_wakeup::IdleWakeup,
    &scheduling_delay::SchedulingDelay,
    &rt_throttle::RtThrottle,
    &cpu_quota::QuotaLimit,
    &cpu_frequency::CpuFrequency,
    &steal::Steal,
    &udp_receive_queue::UdpReceiveQueue,
    &socket_buffer_cap::SocketBufferCap,
    &qdisc_drop::QdiscDrop,
    &nic_drop::NicDrop,
    &softnet_backlog::SoftnetBacklog,
    &fragment_loss::FragmentLoss,
    &reassembly::Reassembly,
    &mtu_black_hole::MtuBlackHole,
    &offload_off::OffloadOff,
    &gso_size::GsoSize,
    &line_rate::LineRate,
    &shaped_link::ShapedLink,
    &path_loss::PathLoss,
    &path_delay::PathDelay,
    &asymmetric_path::AsymmetricPath,
    &single_flow::SingleFlow,
    &too_few_in_flight::TooFewInFlight,
    &too_few_descriptors::TooFewDescriptors,
    &burst_size::BurstSize,
    &socket_reopened::SocketReopened,
    &slow_sender_application::SlowSenderApplication,
    &slow_receiver_application::SlowReceiverApplication,
    &link_down::LinkDown,
    &neighbour::Neighbour,
    &link_speed::LinkSpeed,
    &usb_adapter::UsbAdapter,
    &interrupt_coalescing::InterruptCoalescing,
    &energy_efficient_ethernet::EnergyEfficientEthernet,
    &tool_limit::ToolLimit,
];

/// Largest gain that a finding estimates: beyond it there is no basis for an estimate.
const MAX_GAIN: f64 = 1e5;

/// Smallest processor time per byte of a stream, ns: 100 Gb/s; the fastest streams of the 2-core VM
/// come close to it (docs/method/defaults.md#constants-of-estimates).
pub(crate) const MIN_BYTE_NS: f64 = 0.08;

/// Smallest processor time per byte through our stack on the 2-core VM, ns: over AF_PACKET 3.3 Gb/s
/// with buffers so large that more gave no gain, over other ports at best 18.7 Gb/s (a tap,
/// docs/method/our-stack.md).
pub(crate) const NETSTACK_PACKET_BYTE_NS: f64 = 2.4;
pub(crate) const NETSTACK_BYTE_NS: f64 = 0.43;

/// Returns the smallest processor time per byte for the stacks of both ends, ns.
fn byte_ns(direction: &DirectionView<'_>) -> f64 {
    let netstack_ends = [direction.sender, direction.receiver]
        .into_iter()
        .filter(|role| direction.uses_netstack(*role));
    let each = netstack_ends.map(|role| {
        let stack = direction.host(role).and_then(|host| host.stack.as_ref());
        match stack.is_some_and(|stack| stack.device.starts_with("packet:")) {
            true => NETSTACK_PACKET_BYTE_NS,
            false => NETSTACK_BYTE_NS,
        }
    });
    each.fold(MIN_BYTE_NS, f64::max)
}

/// Returns the largest possible speedup of a direction: until a known rate of the path is used up,
/// or until a processor has no time left.
///
/// The current load of a thread bounds the speedup only if it works in large chunks, whose cost is
/// that of their bytes (Amdahl). With small chunks the number of chunks costs most, and larger ones
/// reduce it. The load of a polling thread carries no information. Then the bound is the most that
/// one processor moves; for our stack for all flows together, because one thread moves them. These
/// bounds were measured on one machine: for a direction that already exceeds them the result is
/// `None`.
pub(crate) fn headroom(direction: &DirectionView<'_>) -> Option<f64> {
    let most = flow_ends(direction)
        .into_iter()
        .filter(|(_, part)| direction.has_large_chunks(*part))
        .filter_map(|(_, part)| direction.thread_time(part))
        .map(|time| 1.0 / time.working.max(1e-3))
        .fold(rate_headroom(direction)?, f64::min);
    Some(most.clamp(1.0, MAX_GAIN))
}

/// Returns the largest possible speedup of a direction within known rates. The idle time of the
/// threads does not bound a remedy that reduces the cost of each byte.
pub(crate) fn rate_headroom(direction: &DirectionView<'_>) -> Option<f64> {
    let goodput = direction.goodput().filter(|&goodput| goodput > 0.0)?;
    let uses_netstack =
        direction.uses_netstack(direction.sender) || direction.uses_netstack(direction.receiver);
    let flows = if uses_netstack {
        1
    } else {
        direction.streams().len().max(1)
    };
    let at_best = 8e9 / byte_ns(direction) * flows as f64 / goodput;
    if at_best <= 1.0 {
        return None;
    }
    let most = [direction.line_share(), direction.shaper_share()]
        .into_iter()
        .flatten()
        .map(|share| 1.0 / share.max(1e-3))
        .fold(at_best, f64::min);
    Some(most.clamp(1.0, MAX_GAIN))
}

/// Text of the formula of [`headroom`].
pub(crate) const HEADROOM_FORMULA: &str = "known rates, the threads' idle time if they move large chunks, \
                                   and 100 Gb/s per flow (for the user-space stack 18 Gb/s in total, 3.3 \
                                   over AF_PACKET)";

/// Limits a factor to the [`headroom`].
pub(crate) fn within_headroom(direction: &DirectionView<'_>, factor: f64) -> Option<f64> {
    headroom(direction).map(|most| most.min(factor))
}

/// Returns the child qdiscs as text for evidence; `None` without children.
pub(crate) fn child_qdiscs(children: &[ChildQdisc]) -> Option<String> {
    let one = |child: &ChildQdisc| match child.count {
        ..=1 => child.kind.clone(),
        count => format!("{count} {}", child.kind),
    };
    let all: Vec<String> = children.iter().map(one).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Buffer size that holds several GSO packets.
const LARGE_BUFFER_BYTES: u64 = 256 << 10;

/// Round-trip time from which a path counts as long: idle neighbouring hosts stay below it.
pub(crate) const LONG_RTT_NS: f64 = 1e6;

/// Returns the gain of a larger buffer. A small buffer, whose every chunk costs a round trip and
/// two wake-ups, gains its growth; a large one gains the waiting time. On a long path the waiting
/// time shrinks with the growth, and other costs stay (Amdahl).
pub(crate) fn waiting_gain(
    direction: &DirectionView<'_>,
    limited: f64,
    buffer_bytes: u64,
    larger: u64,
) -> f64 {
    let without_waiting = 1.0 / (1.0 - limited).max(0.001);
    let growth = larger as f64 / buffer_bytes.max(1) as f64;
    // On a long path one window is sent per round trip, whatever the threads do.
    let is_long = direction
        .tcp()
        .is_some_and(|tcp| tcp.min_rtt_ns >= LONG_RTT_NS);
    if is_long && growth > 1.0 {
        let limited = limited.clamp(0.0, 1.0);
        return 1.0 / ((1.0 - limited) + limited / growth);
    }
    let has_large_chunks = flow_ends(direction)
        .into_iter()
        .any(|(_, part)| direction.has_large_chunks(part));
    match has_large_chunks && buffer_bytes > LARGE_BUFFER_BYTES {
        true => without_waiting,
        false => without_waiting.max(growth),
    }
}

/// Text of the formula of [`waiting_gain`].
pub(crate) const WAITING_GAIN_FORMULA: &str = "1 / (1 - share of time waiting for buffer space), or the \
                                       growth of the buffer if it is used in small chunks; with a \
                                       round trip of 1 ms or more 1 / (1 - share + share / growth)";

/// Returns the command with a larger socket buffer, through the option that set it.
pub(crate) fn larger_buffer_command(
    run: &RunView<'_>,
    option: &str,
    requested: Option<u64>,
    larger: u64,
) -> String {
    let size = (larger >> 20).max(1);
    match requested {
        Some(_) => run.rerun_command(&format!("--{option} {size}M")),
        None => run.rerun_command(&format!("-w {size}M")),
    }
}

/// Evaluates both ends of a throughput or latency run.
pub(crate) fn evaluate_ends(
    run: &RunView<'_>,
    evaluate: impl Fn(Role) -> Option<Finding>,
) -> Vec<Finding> {
    match run.plan.kind {
        RunKind::Throughput | RunKind::Latency => [Role::Client, Role::Server]
            .into_iter()
            .filter_map(evaluate)
            .collect(),
        _ => Vec::new(),
    }
}

/// Evaluates the directions of a throughput run, by protocol.
pub(crate) fn evaluate_directions(
    run: &RunView<'_>,
    of_tcp: impl Fn(&DirectionView<'_>) -> Option<Finding>,
    of_udp: impl Fn(&DirectionView<'_>) -> Option<Finding>,
) -> Vec<Finding> {
    let tcp = run
        .throughput_directions(TransportProtocol::Tcp)
        .filter_map(of_tcp);
    tcp.chain(
        run.throughput_directions(TransportProtocol::Udp)
            .filter_map(of_udp),
    )
    .collect()
}

/// Adds a sender's retransmit statistics as evidence.
pub(crate) fn with_retransmits(
    builder: FindingBuilder,
    role: Role,
    tcp: &TcpSummary,
) -> FindingBuilder {
    builder
        .evidence(
            "tcpi_total_retrans",
            tcp.retransmits,
            "segments",
            tcp_info_source(role),
        )
        .evidence(
            "tcpi_dsack_dups",
            tcp.spurious_retransmits,
            "segments",
            tcp_info_source(role),
        )
        .evidence("tcpi_rtt", tcp.rtt_ns.round(), "ns", tcp_info_source(role))
        .evidence(
            "tcpi_min_rtt",
            tcp.min_rtt_ns.round(),
            "ns",
            tcp_info_source(role),
        )
}

/// Largest missing share of the requested rate, and largest loss share, of a rate that was
/// received.
pub(crate) const MAX_RATE_ERROR: f64 = 0.02;
pub(crate) const MAX_RATE_LOSS: f64 = 0.001;

/// Returns true if the requested rate was received: then no delay mattered.
pub(crate) fn met_requested_rate(run: &RunView<'_>) -> bool {
    let met_rate = |direction: &DirectionView<'_>| {
        let summary = direction.summary();
        // A coarse rate has no error: its burst was sent, and the time of the next one did not
        // come.
        (summary.rate_error).map_or(run.is_rate_too_coarse(), |error| error > -MAX_RATE_ERROR)
            && summary
                .loss_fraction
                .is_none_or(|loss| loss < MAX_RATE_LOSS)
    };
    is_paced(run) && run.directions.iter().all(met_rate)
}

/// Returns the evidence source `client /proc/PID/task/TID/schedstat`.
pub(crate) fn schedstat_source(role: Role) -> String {
    format!("{} /proc/PID/task/TID/schedstat", role.as_str())
}

/// Returns the evidence source `client TCP_INFO`.
pub(crate) fn tcp_info_source(role: Role) -> String {
    format!("{} TCP_INFO", role.as_str())
}

/// Returns the opposite end.
pub(crate) fn other_role(role: Role) -> Role {
    match role {
        Role::Client => Role::Server,
        Role::Server => Role::Client,
    }
}

/// Returns the value of a per-end option, `CLIENT/SERVER`.
pub(crate) fn per_end_option(role: Role, value: &str, other_value: &str) -> String {
    match role {
        Role::Client => format!("{value}/{other_value}"),
        Role::Server => format!("{other_value}/{value}"),
    }
}

/// Returns the `sysctl` command for a setting.
pub(crate) fn sysctl_command(name: &str, value: u64) -> String {
    format!("sysctl -w {name}={value}")
}

/// Returns both ends of a direction with their roles.
pub(crate) fn flow_ends(direction: &DirectionView<'_>) -> [(Role, FlowEnd); 2] {
    [
        (direction.sender, FlowEnd::Sender),
        (direction.receiver, FlowEnd::Receiver),
    ]
}

/// Returns true if the user requested a rate.
pub(crate) fn is_paced(run: &RunView<'_>) -> bool {
    run.plan.rate_bps.is_some() || run.plan.pace.packets_per_second.is_some()
}

/// Returns true if the threads of either end had no time left.
pub(crate) fn is_saturated(direction: &DirectionView<'_>) -> bool {
    let saturated = |part| {
        direction
            .thread_time(part)
            .is_some_and(|time| time.is_saturated())
    };
    saturated(FlowEnd::Sender) || saturated(FlowEnd::Receiver)
}
