//! The rules: one file each, and a line of [`RULES`].

macro_rules! rules {
    ($($module:ident $rule:ident),* $(,)?) => {
        $(mod $module;)*

        /// Every rule, in the order of docs/CAUSES.md.
        pub const RULES: &[&dyn crate::Rule] = &[$(&$module::$rule),*];
    };
}

rules! {
    receive_window ReceiveWindow,
    send_buffer SendBuffer,
    congestion_loss CongestionLoss,
    congestion_control CongestionControl,
    reordering Reordering,
    delayed_ack DelayedAck,
    nagle Nagle,
    small_writes SmallWrites,
    sender_cpu SenderCpu,
    receiver_cpu ReceiverCpu,
    shared_core SharedCore,
    softirq_core SoftirqCore,
    idle_wakeup IdleWakeup,
    scheduling_delay SchedulingDelay,
    rt_throttle RtThrottle,
    cpu_frequency CpuFrequency,
    steal Steal,
    udp_receive_queue UdpReceiveQueue,
    socket_buffer_cap SocketBufferCap,
    qdisc_drop QdiscDrop,
    nic_drop NicDrop,
    softnet_backlog SoftnetBacklog,
    fragment_loss FragmentLoss,
    reassembly Reassembly,
    mtu_black_hole MtuBlackHole,
    offload_off OffloadOff,
    gso_size GsoSize,
    line_rate LineRate,
    shaped_link ShapedLink,
    path_loss PathLoss,
    path_delay PathDelay,
    asymmetric_path AsymmetricPath,
    single_flow SingleFlow,
    too_few_in_flight TooFewInFlight,
    too_few_descriptors TooFewDescriptors,
    burst_size BurstSize,
    socket_reopened SocketReopened,
    slow_sender_application SlowSenderApplication,
    slow_receiver_application SlowReceiverApplication,
    link_down LinkDown,
    neighbour Neighbour,
    link_speed LinkSpeed,
    usb_adapter UsbAdapter,
    interrupt_coalescing InterruptCoalescing,
    energy_efficient_ethernet EnergyEfficientEthernet,
    tool_limit ToolLimit,
}

use linerate_metric::facts::{ChildQdisc, Role};
use linerate_metric::finding::Finding;
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::record::CountedAt;

use crate::case::{Case, Tcp, Way, name};
use crate::draft::Draft;

/// Most that a remedy is said to give: beyond it nobody can tell.
const MOST: f64 = 1e5;

/// What a byte of a stream takes of one processor at best, ns: 100 Gb/s; the fastest streams of the 2-core
/// VM come near it (docs/METHOD.md).
const BYTE_NS: f64 = 0.08;

/// The same through our own stack on the 2-core VM: over AF_PACKET 3.3 Gb/s with the room that more did not raise, over
/// everything else 18.7 Gb/s at best (a tap, docs/ARCHITECTURE.md).
const OWN_PACKET_BYTE_NS: f64 = 2.4;
const OWN_BYTE_NS: f64 = 0.43;

/// What a byte takes at best of what stands at both ends.
fn byte_ns(way: &Way<'_>) -> f64 {
    let own = [way.sender, way.receiver]
        .into_iter()
        .filter(|role| way.is_own_stack(*role));
    let each = own.map(|role| {
        let stack = way.host(role).and_then(|host| host.stack.as_ref());
        match stack.is_some_and(|stack| stack.device.starts_with("packet:")) {
            true => OWN_PACKET_BYTE_NS,
            false => OWN_BYTE_NS,
        }
    });
    each.fold(BYTE_NS, f64::max)
}

/// How much faster a direction could be at most: until a known rate of the path is used up, or until a
/// processor has no time left.
///
/// What a thread works now bounds that only where it works in large pieces, whose cost is that of their bytes
/// (Amdahl): with small ones it is the pieces that cost, and larger ones cost less. A thread that polls tells
/// nothing by being busy. Then the bound is what one processor moves at best, all flows of our own stack together: its
/// one thread moves them. That was measured on one machine: of a direction that moves more already nobody knows.
pub(crate) fn headroom(way: &Way<'_>) -> Option<f64> {
    let goodput = way.goodput().filter(|&goodput| goodput > 0.0)?;
    let own = way.is_own_stack(way.sender) || way.is_own_stack(way.receiver);
    let flows = if own { 1 } else { way.streams().len().max(1) };
    let at_best = 8e9 / byte_ns(way) * flows as f64 / goodput;
    if at_best <= 1.0 {
        return None;
    }
    let most = parts(way)
        .into_iter()
        .filter(|(_, part)| way.works_in_large_pieces(*part))
        .filter_map(|(_, part)| way.time(part))
        .map(|time| 1.0 / time.working.max(1e-3))
        .chain(
            [way.share_of_line(), way.share_of_shape()]
                .into_iter()
                .flatten()
                .map(|share| 1.0 / share.max(1e-3)),
        )
        .fold(at_best, f64::min);
    Some(most.clamp(1.0, MOST))
}

/// What [`headroom`] is, in words.
pub(crate) const HEADROOM: &str = "known rates, the threads' spare time where they move large pieces, and 100 Gb/s a flow (of our own stack 18 Gb/s in all, 3.3 over AF_PACKET)";

/// What a factor comes to within the [`headroom`].
pub(crate) fn within_headroom(way: &Way<'_>, factor: f64) -> Option<f64> {
    headroom(way).map(|most| most.min(factor))
}

/// What disciplines below another one are, for evidence; none where there are none.
pub(crate) fn kinds_below(children: &[ChildQdisc]) -> Option<String> {
    let one = |child: &ChildQdisc| match child.count {
        ..=1 => child.kind.clone(),
        count => format!("{count} {}", child.kind),
    };
    let all: Vec<String> = children.iter().map(one).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Room for more than some packets of many segments.
const MANY: u64 = 256 << 10;

/// Round-trip times of idle hosts beside each other stay below this.
const LONG_NS: f64 = 1e6;

/// What more room gives: as much as the room grows, where it is so little that each piece of it costs a
/// round trip and two wake-ups; else what the waiting takes. Over a long path the waiting gets shorter by what the room
/// grows, and what else takes time stays (Amdahl).
pub(crate) fn waiting_gain(way: &Way<'_>, held: f64, room: u64, larger: u64) -> f64 {
    let without_waiting = 1.0 / (1.0 - held).max(0.001);
    let growth = larger as f64 / room.max(1) as f64;
    // Over a long path a window's worth goes each round trip, whatever the threads do.
    let is_long = way.tcp().is_some_and(|tcp| tcp.min_rtt_ns >= LONG_NS);
    if is_long && growth > 1.0 {
        let held = held.clamp(0.0, 1.0);
        return 1.0 / ((1.0 - held) + held / growth);
    }
    let pieces = parts(way)
        .into_iter()
        .any(|(_, part)| way.works_in_large_pieces(part));
    match pieces && room > MANY {
        true => without_waiting,
        false => without_waiting.max(growth),
    }
}

/// What [`waiting_gain`] is, in words.
pub(crate) const WAITING_GAIN: &str = "1 / (1 - share of the time waiting for room), or how much the room grows where it is used in small pieces; over a round trip of 1 ms and more 1 / (1 - share + share / how much the room grows)";

/// The command with a larger socket buffer, in the place of the one that was asked for.
pub(crate) fn larger_buffer(
    case: &Case<'_>,
    option: &str,
    own: Option<u64>,
    larger: u64,
) -> String {
    let size = (larger >> 20).max(1);
    match own {
        Some(_) => case.again(&format!("--{option} {size}M")),
        None => case.again(&format!("-w {size}M")),
    }
}

/// Both ends of a run between sockets.
pub(crate) fn of_ends(case: &Case<'_>, of: impl Fn(Role) -> Option<Finding>) -> Vec<Finding> {
    match case.plan.kind {
        Kind::Throughput | Kind::Latency => [Role::Client, Role::Server]
            .into_iter()
            .filter_map(of)
            .collect(),
        _ => Vec::new(),
    }
}

/// The directions of a run, by what carries them.
pub(crate) fn of_ways(
    case: &Case<'_>,
    of_tcp: impl Fn(&Way<'_>) -> Option<Finding>,
    of_udp: impl Fn(&Way<'_>) -> Option<Finding>,
) -> Vec<Finding> {
    let tcp = case.throughput(Protocol::Tcp).filter_map(of_tcp);
    tcp.chain(case.throughput(Protocol::Udp).filter_map(of_udp))
        .collect()
}

/// What a sender told of its segments, as readings of a finding about lost ones.
pub(crate) fn sent_again(draft: Draft, role: Role, tcp: &Tcp) -> Draft {
    draft
        .seen(
            "tcpi_total_retrans",
            tcp.retransmits,
            "segments",
            tcp_info(role),
        )
        .seen("tcpi_dsack_dups", tcp.spurious, "segments", tcp_info(role))
        .seen("tcpi_rtt", tcp.rtt_ns.round(), "ns", tcp_info(role))
        .seen("tcpi_min_rtt", tcp.min_rtt_ns.round(), "ns", tcp_info(role))
}

/// Whether what was asked for was moved all the same: then nobody was late enough to matter.
pub(crate) fn kept_its_rate(case: &Case<'_>) -> bool {
    let kept = |way: &Way<'_>| {
        let summary = way.summary();
        // A coarse one has no error: its burst left, and the next one's time did not come.
        (summary.rate_error).map_or(case.is_coarse(), |error| error > -0.02)
            && summary.loss_fraction.is_none_or(|loss| loss < 0.001)
    };
    is_paced(case) && case.ways.iter().all(kept)
}

/// `client /proc/self/task/TID/schedstat`.
pub(crate) fn schedstat(role: Role) -> String {
    format!("{} /proc/PID/task/TID/schedstat", name(role))
}

/// `client TCP_INFO`.
pub(crate) fn tcp_info(role: Role) -> String {
    format!("{} TCP_INFO", name(role))
}

/// The end that this is not.
pub(crate) fn other_end(role: Role) -> Role {
    match role {
        Role::Client => Role::Server,
        Role::Server => Role::Client,
    }
}

/// The option that asks for something at one end: `NEAR/FAR`.
pub(crate) fn at_end(role: Role, value: &str, other: &str) -> String {
    match role {
        Role::Client => format!("{value}/{other}"),
        Role::Server => format!("{other}/{value}"),
    }
}

/// The setting of an end's kernel as a command.
pub(crate) fn sysctl(name: &str, value: u64) -> String {
    format!("sysctl -w {name}={value}")
}

/// The parts of a direction with their ends.
pub(crate) fn parts(way: &Way<'_>) -> [(Role, CountedAt); 2] {
    [
        (way.sender, CountedAt::Sender),
        (way.receiver, CountedAt::Receiver),
    ]
}

/// Whether the run was held to a rate.
pub(crate) fn is_paced(case: &Case<'_>) -> bool {
    case.plan.rate_bps.is_some() || case.plan.pace.packets_per_second.is_some()
}

/// Whether either end of a direction had no time left.
pub(crate) fn is_saturated(way: &Way<'_>) -> bool {
    let saturated = |part| way.time(part).is_some_and(|time| time.is_saturated());
    saturated(CountedAt::Sender) || saturated(CountedAt::Receiver)
}
