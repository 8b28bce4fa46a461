//! The receiving application reads too late.

use linerate_record::facts::Role;
use linerate_record::finding::Finding;
use linerate_record::ids::{CauseId, LossPoint};
use linerate_record::plan::{RunKind, TransportProtocol};
use linerate_record::record::FlowEnd;
use linerate_stats::units::{format_bit_rate, format_nanos, format_share};

use super::receive_window::{CLOSED_WINDOW_USE, SMALL_BUFFER_BYTES, bytes_in_flight, window_use};
use super::{is_paced, schedstat_source, tcp_info_source};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, bit_rate, detection, duration, percent, size};
use crate::run_view::{DirectionView, RunView};

/// Smallest share of the time that matters.
const MIN_RELEVANT_SHARE: f64 = 0.25;

/// Time slice of another thread on the receiver's processor, s: a shorter queue overflows within
/// one.
const TIME_SLICE_S: f64 = 0.004;

/// Idle time of a receiver that reads too late, over TCP and over UDP, and largest share of its
/// time waiting for a core.
const MIN_IDLE_SHARE: f64 = 0.3;
const MIN_UDP_IDLE_SHARE: f64 = 0.5;
const MAX_CORE_WAIT_SHARE: f64 = 0.2;

/// Smallest share of datagrams lost at the socket that matters.
const MIN_LOSS_SHARE: f64 = 0.05;

/// Largest cost of a poll interval.
const MAX_POLL_COST: f64 = 0.95;

/// Poll interval over median round trip from which it is a part of it, and from which most round
/// trips did not wait for it.
const MIN_POLL_SHARE: f64 = 0.2;
const MAX_POLL_SHARE: f64 = 2.0;

/// Goodput over window / minimum round-trip time below which a small window is not the limit.
const MAX_WINDOW_USE: f64 = 0.2;

/// Smallest possible processor share for the received data from which the processor may be the
/// limit.
const MAX_MIN_WORK_SHARE: f64 = 0.1;

/// See docs/CAUSES.md#slow-receiver-application.
pub struct SlowReceiverApplication;

impl Rule for SlowReceiverApplication {
    fn id(&self) -> CauseId {
        CauseId::SlowReceiverApplication
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The receiving program reads too late.",
            shown_when: vec![
                detection(
                    "TCP",
                    [
                        format!(
                            "a window above {} limits the sender for {} of the time or more",
                            size(SMALL_BUFFER_BYTES),
                            percent(MIN_RELEVANT_SHARE)
                        ),
                        format!(
                            "goodput is less than {} of window / round-trip time",
                            percent(CLOSED_WINDOW_USE)
                        ),
                        format!(
                            "the receiver has more than {} idle time, and waits for a CPU for less \
                             than {}",
                            percent(MIN_IDLE_SHARE),
                            percent(MAX_CORE_WAIT_SHARE)
                        ),
                    ],
                ),
                detection(
                    "TCP to another tool, which does not report its time",
                    [
                        format!(
                            "the window limits the sender for {} of the time or more",
                            percent(MIN_RELEVANT_SHARE)
                        ),
                        format!(
                            "goodput is less than {} of window / minimum round-trip time",
                            percent(MAX_WINDOW_USE)
                        ),
                        format!(
                            "goodput is {} a flow at most, which a CPU receives in {} of its \
                             time",
                            bit_rate(MAX_MIN_WORK_SHARE * 8e9 / super::MIN_BYTE_NS),
                            percent(MAX_MIN_WORK_SHARE)
                        ),
                    ],
                ),
                detection(
                    "UDP",
                    [
                        format!(
                            "{} of the datagrams or more are lost at a socket of more than {}",
                            percent(MIN_LOSS_SHARE),
                            size(SMALL_BUFFER_BYTES)
                        ),
                        format!(
                            "its buffer holds the data of {} or more",
                            duration(TIME_SLICE_S * 1e9)
                        ),
                        format!(
                            "the receiver has {} idle time, and waits for a CPU for {} at most",
                            percent(MIN_UDP_IDLE_SHARE),
                            percent(MAX_CORE_WAIT_SHARE)
                        ),
                    ],
                ),
                detection(
                    "round trips with the user-space stack",
                    [format!(
                        "`poll.interval` is {MIN_POLL_SHARE} to {MAX_POLL_SHARE} times the median"
                    )],
                ),
            ],
            not_when: vec![
                "TCP: a rate was requested, or the path is full".into(),
                "TCP: windows are not scaled: see [receive-window](#receive-window)".into(),
            ],
            evidence: &[
                ("tcpi_rwnd_limited", "share"),
                ("SO_RCVBUF", "B"),
                ("goodput / (window / RTT)", "share"),
                ("idle time of the receiving threads", "share"),
                ("TCPRcvQDrop", "segments"),
                ("minimum window", "B"),
                ("tcpi_min_rtt", "ns"),
                ("goodput_bps", "bit/s"),
                ("time of the receiving threads", ""),
                ("losses[udp-receive-queue]", "datagrams"),
                ("poll.interval", "ns"),
                ("rtt_ns.p50", "ns"),
            ],
            cost: vec![
                "Share of the time with the window closed, or of the datagrams lost there.".into(),
                "Round trips: the poll interval as a share of the median.".into(),
            ],
            remedy: vec![
                "Check what the program waits for (`--calls`).".into(),
                "Let the user-space stack poll all the time (`--set poll.interval=spin`).".into(),
            ],
            wrong_when: vec![
                "the scheduler does not count the missing time, as in a stopped virtual machine"
                    .into(),
            ],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        match run.plan.kind {
            RunKind::Throughput => {}
            RunKind::Latency => {
                return super::evaluate_ends(run, |role| self.evaluate_poll_interval(run, role));
            }
            _ => return Vec::new(),
        }
        let directions = run.directions.iter();
        let of = |direction| match run.plan.protocol {
            TransportProtocol::Tcp => self
                .evaluate_stream(run, direction)
                .or_else(|| self.evaluate_third_party(run, direction)),
            TransportProtocol::Udp => self.evaluate_datagrams(run, direction),
        };
        directions.filter_map(of).collect()
    }
}

impl SlowReceiverApplication {
    /// Round trips wait for the next poll of our stack.
    fn evaluate_poll_interval(&self, run: &RunView<'_>, role: Role) -> Option<Finding> {
        let rtt = run.record.summary.rtt_ns.filter(|_| run.is_latency())?;
        let interval = run.poll_interval_ns(role)?;
        // A request sent right after a response waits for the full interval.
        let share = interval / (rtt.p50 as f64).max(1.0);
        if !(MIN_POLL_SHARE..MAX_POLL_SHARE).contains(&share) {
            return None;
        }
        let cost = share.min(MAX_POLL_COST);
        FindingBuilder::cause(self.id(), role)
            .cost(cost)
            .summary(format!(
                "the user-space stack at the {} polls its port every {}, and the median round trip took {}",
                role.as_str(),
                format_nanos(interval),
                format_nanos(rtt.p50 as f64)
            ))
            .evidence(
                "poll.interval",
                interval,
                "ns",
                format!("{} stack", role.as_str()),
            )
            .evidence("rtt_ns.p50", rtt.p50, "ns", "client")
            .remedy("poll the port all the time, or more often than the target round-trip time")
            .command(run.rerun_with_key(role, "poll.interval", "spin"))
            .gain(Some(1.0 / (1.0 - cost)), "1 / (1 - poll.interval / median)")
            .build()
    }

    fn evaluate_stream(&self, run: &RunView<'_>, direction: &DirectionView<'_>) -> Option<Finding> {
        let tcp = direction.tcp()?;
        let time = direction.thread_time(FlowEnd::Receiver);
        let window = direction.receive_buffer()?;
        let used = window_use(direction)?;
        if tcp.receive_window_limited < MIN_RELEVANT_SHARE
            || window <= SMALL_BUFFER_BYTES
            || direction.fills_path()
            || is_paced(run)
        {
            return None;
        }
        // A window without scaling is never large, whatever the buffer size.
        if !super::receive_window::ends_without_scaling(run).is_empty() {
            return None;
        }
        // A large window that is closed: the application does not read, and not for lack of a core.
        let idle = time.is_none_or(|time| {
            time.free_share() > MIN_IDLE_SHARE && time.core_wait < MAX_CORE_WAIT_SHARE
        });
        if used >= CLOSED_WINDOW_USE || !idle {
            return None;
        }
        let role = direction.receiver;
        let queue_drops =
            run.counter_increase("tcp_receive_queue_refused", |host, _| host == role.as_str());
        FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(tcp.receive_window_limited)
            .summary(format!(
                "the window of the {} is large and was closed for {} of the time, while its \
                 CPU was idle: its application reads too late",
                role.as_str(),
                format_share(tcp.receive_window_limited)
            ))
            .evidence(
                "tcpi_rwnd_limited",
                tcp.receive_window_limited,
                "share",
                tcp_info_source(direction.sender),
            )
            .evidence(
                "SO_RCVBUF",
                window,
                "B",
                format!("{} socket", role.as_str()),
            )
            .evidence(
                "goodput / (window / RTT)",
                used,
                "share",
                "goodput, SO_RCVBUF, tcpi_rtt",
            )
            .evidence_if(
                "idle time of the receiving threads",
                time.map(|time| time.free_share()),
                "share",
                schedstat_source(role),
            )
            .evidence_if(
                "TCPRcvQDrop",
                queue_drops,
                "segments",
                format!("{} /proc/net/netstat", role.as_str()),
            )
            .remedy(
                "check what the receiving application waits for: a disk, another peer, a timer, a \
                 debugger",
            )
            .command(run.rerun_with_calls())
            .estimated_gain(
                super::within_headroom(
                    direction,
                    1.0 / (1.0 - tcp.receive_window_limited).max(0.01),
                ),
                format!(
                    "1 / (1 - share with the window closed), at most {}",
                    super::HEADROOM_FORMULA
                ),
            )
            .build()
    }

    /// The receiver is another tool, which reports only its window.
    fn evaluate_third_party(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let tcp = direction.tcp()?;
        let is_third_party_receiver = run.has_third_party_server()
            && direction.receiver == Role::Server
            && direction.receive_buffer().is_none();
        if !is_third_party_receiver
            || tcp.receive_window_limited < MIN_RELEVANT_SHARE
            || direction.fills_path()
            || is_paced(run)
        {
            return None;
        }
        // The window was at least as large as the data in flight, and as its last value.
        let offered = (direction.senders())
            .filter_map(|socket| socket.tcp.as_ref()?.send_window_bytes)
            .min()?;
        let offered = offered.max(bytes_in_flight(direction, &tcp) as u64);
        let flows = direction.streams().len().max(1) as f64;
        let through = offered as f64 * 8e9 * flows / tcp.min_rtt_ns.max(1.0);
        let goodput = direction.goodput()?;
        // A processor that only receives is far faster.
        if goodput >= MAX_WINDOW_USE * through
            || goodput * super::MIN_BYTE_NS / 8e9 > MAX_MIN_WORK_SHARE * flows
        {
            return None;
        }
        let role = direction.receiver;
        FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(tcp.receive_window_limited)
            .summary(format!(
                "the window of the {} was closed for {} of the time, and is large enough for {}: \
                 its application reads too late",
                role.as_str(),
                format_share(tcp.receive_window_limited),
                format_bit_rate(through)
            ))
            .evidence(
                "tcpi_rwnd_limited",
                tcp.receive_window_limited,
                "share",
                tcp_info_source(direction.sender),
            )
            .evidence(
                "minimum window",
                offered,
                "B",
                "tcpi_snd_wnd, goodput * tcpi_rtt",
            )
            .evidence(
                "tcpi_min_rtt",
                tcp.min_rtt_ns.round(),
                "ns",
                tcp_info_source(direction.sender),
            )
            .evidence("goodput_bps", goodput, "bit/s", "sender")
            .missing_evidence(
                "time of the receiving threads",
                &schedstat_source(role),
                "the server is another program, which does not report it",
            )
            .remedy(
                "check what the receiving application waits for: a disk, another peer, a timer, a \
                 debugger; `linerate server` in its place shows what the path carries",
            )
            .command("linerate server")
            .estimated_gain(
                super::within_headroom(
                    direction,
                    (1.0 / (1.0 - tcp.receive_window_limited).max(0.01))
                        .min(through / goodput.max(1.0)),
                ),
                format!(
                    "1 / (1 - share with the window closed), at most window / round-trip time, \
                     and {}",
                    super::HEADROOM_FORMULA
                ),
            )
            .build()
    }

    fn evaluate_datagrams(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let time = direction.thread_time(FlowEnd::Receiver)?;
        let share = direction.lost_share(LossPoint::UdpReceiveQueue);
        let large = direction
            .receive_buffer()
            .is_some_and(|bytes| bytes > SMALL_BUFFER_BYTES);
        // A thread that waits for a core is not a slow application; with frequent sleeps it counts
        // as wake-up latency.
        let core_wait = time.core_wait + time.wakeup;
        if share < MIN_LOSS_SHARE
            || !large
            || time.free_share() < MIN_UDP_IDLE_SHARE
            || core_wait > MAX_CORE_WAIT_SHARE
        {
            return None;
        }
        // Time that a queue of this size bridges: the application was away for longer.
        let queue_s =
            direction.receive_buffer()? as f64 * 8.0 / direction.summary().offered_bps?.max(1.0);
        if queue_s < TIME_SLICE_S {
            return None;
        }
        let role = direction.receiver;
        FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(share + 1e-4)
            .summary(format!(
                "the {}'s socket buffer holds {:.0} ms of the received data and was full, while \
                 its CPU was idle: its application reads too late",
                role.as_str(),
                queue_s * 1e3
            ))
            .evidence(
                "losses[udp-receive-queue]",
                direction.lost_at(LossPoint::UdpReceiveQueue),
                "datagrams",
                format!("{} SO_MEMINFO drops", role.as_str()),
            )
            .evidence(
                "idle time of the receiving threads",
                time.free_share(),
                "share",
                schedstat_source(role),
            )
            .evidence_if(
                "SO_RCVBUF",
                direction.receive_buffer(),
                "B",
                format!("{} socket", role.as_str()),
            )
            .remedy(
                "check what the receiving application waits for: a disk, another peer, a timer, a \
                 debugger",
            )
            .command(run.rerun_with_calls())
            .gain(
                Some(1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .build()
    }
}
