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
    neighbour Neighbour,
    link_speed LinkSpeed,
    usb_adapter UsbAdapter,
    interrupt_coalescing InterruptCoalescing,
    energy_efficient_ethernet EnergyEfficientEthernet,
    tool_limit ToolLimit,
}

use linerate_metric::facts::Role;
use linerate_metric::record::CountedAt;

use crate::case::{Case, Way, name};

/// Most that a remedy is said to give: beyond it the next limit is anybody's guess.
const MOST: f64 = 100.0;

/// How much faster a direction could be before the busier end's processor, or a known rate of the path, is
/// used up (Amdahl: what is not that processor's time can go to nothing). `None` where none of them is known.
pub(crate) fn headroom(way: &Way<'_>) -> Option<f64> {
    let working = |part| way.time(part).map(|time| time.working);
    let (sender, receiver) = (working(CountedAt::Sender), working(CountedAt::Receiver));
    let used = [sender, receiver, way.share_of_line(), way.share_of_shape()];
    let most = used.into_iter().flatten().fold(0.0, f64::max);
    (most > 0.0).then(|| (1.0 / most).clamp(1.0, MOST))
}

/// What [`headroom`] is, in words.
pub(crate) const HEADROOM: &str = "1 / the largest of: processor time of the sending and the receiving threads, share of the line's rate";

/// `client /proc/self/task/TID/schedstat`.
pub(crate) fn schedstat(role: Role) -> String {
    format!("{} /proc/PID/task/TID/schedstat", name(role))
}

/// `client TCP_INFO`.
pub(crate) fn tcp_info(role: Role) -> String {
    format!("{} TCP_INFO", name(role))
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
