//! The receiving application reads too late.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bit_rate, format_nanos, format_share};

use super::receive_window::{CLOSED_BY_READER, SMALL, on_its_way, use_of_window};
use super::{is_paced, schedstat, tcp_info};
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Smallest share of the time that matters.
const MATTERS: f64 = 0.25;

/// Time slice of another thread on the receiver's processor, s: a shorter queue overflows within
/// one.
const TURN_S: f64 = 0.004;

/// Poll interval over median round trip from which it is a part of it, and from which most round
/// trips did not wait for it.
const WAITS: f64 = 0.2;
const ALONE: f64 = 2.0;

/// Goodput over window / minimum round-trip time below which a small window is not the limit.
const USED: f64 = 0.2;

/// Smallest possible processor share for the received data from which the processor may be the
/// limit.
const WORKS: f64 = 0.1;

/// See docs/CAUSES.md#slow-receiver-application.
pub struct SlowReceiverApplication;

impl Rule for SlowReceiverApplication {
    fn id(&self) -> &'static str {
        "slow-receiver-application"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        match case.plan.kind {
            Kind::Throughput => {}
            Kind::Latency => return super::of_ends(case, |role| self.of_poll(case, role)),
            _ => return Vec::new(),
        }
        let ways = case.ways.iter();
        let of = |way| match case.plan.protocol {
            Protocol::Tcp => self
                .of_stream(case, way)
                .or_else(|| self.of_another(case, way)),
            Protocol::Udp => self.of_datagrams(case, way),
        };
        ways.filter_map(of).collect()
    }
}

impl SlowReceiverApplication {
    /// Round trips wait for the next poll of our stack.
    fn of_poll(&self, case: &Case<'_>, role: Role) -> Option<Finding> {
        let rtt = case.record.summary.rtt_ns.filter(|_| case.is_latency())?;
        let interval = case.poll_interval_ns(role)?;
        // A request sent right after a response waits for the full interval.
        let share = interval / (rtt.p50 as f64).max(1.0);
        if !(WAITS..ALONE).contains(&share) {
            return None;
        }
        let cost = share.min(0.95);
        Draft::cause(self.id(), role)
            .cost(cost)
            .says(format!(
                "our stack at the {} polls its port every {}, and the median round trip took {}",
                name(role),
                format_nanos(interval),
                format_nanos(rtt.p50 as f64)
            ))
            .seen(
                "poll.interval",
                interval,
                "ns",
                format!("{} stack", name(role)),
            )
            .seen("rtt_ns.p50", rtt.p50, "ns", "client")
            .remedy("poll the port all the time, or more often than the target round-trip time")
            .command(case.again_with_key(role, "poll.interval", "spin"))
            .gain(Some(1.0 / (1.0 - cost)), "1 / (1 - poll.interval / median)")
            .found()
    }

    fn of_stream(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let tcp = way.tcp()?;
        let time = way.time(CountedAt::Receiver);
        let window = way.receive_buffer()?;
        let used = use_of_window(way)?;
        if tcp.receive_window < MATTERS || window <= SMALL || way.fills_path() || is_paced(case) {
            return None;
        }
        // A window without scaling is never large, whatever the buffer size.
        if !super::receive_window::unscaled(case).is_empty() {
            return None;
        }
        // A large window that is closed: the application does not read, and not for lack of a core.
        let idle = time.is_none_or(|time| time.free() > 0.3 && time.runnable < 0.2);
        if used >= CLOSED_BY_READER || !idle {
            return None;
        }
        let role = way.receiver;
        let refused = case.added("tcp_receive_queue_refused", |host, _| host == name(role));
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(tcp.receive_window)
            .says(format!(
                "the window of the {} is large and was closed for {} of the time, while its \
                 processor was idle: its application reads too late",
                name(role),
                format_share(tcp.receive_window)
            ))
            .seen(
                "tcpi_rwnd_limited",
                tcp.receive_window,
                "share",
                tcp_info(way.sender),
            )
            .seen("SO_RCVBUF", window, "B", format!("{} socket", name(role)))
            .seen(
                "goodput / (window / RTT)",
                used,
                "share",
                "goodput, SO_RCVBUF, tcpi_rtt",
            )
            .seen_if(
                "idle time of the receiving threads",
                time.map(|time| time.free()),
                "share",
                schedstat(role),
            )
            .seen_if(
                "TCPRcvQDrop",
                refused,
                "segments",
                format!("{} /proc/net/netstat", name(role)),
            )
            .remedy(
                "check what the receiving application waits for: a disk, another peer, a timer, a \
                 debugger",
            )
            .command(case.watched())
            .gain(
                super::within_headroom(way, 1.0 / (1.0 - tcp.receive_window).max(0.01)),
                format!(
                    "1 / (1 - share with the window closed), at most {}",
                    super::HEADROOM
                ),
            )
            .found()
    }

    /// The receiver is another tool, which reports only its window.
    fn of_another(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let tcp = way.tcp()?;
        let other =
            case.far_is_foreign() && way.receiver == Role::Server && way.receive_buffer().is_none();
        if !other || tcp.receive_window < MATTERS || way.fills_path() || is_paced(case) {
            return None;
        }
        // The window was at least as large as the data in flight, and as its last value.
        let offered = (way.senders())
            .filter_map(|socket| socket.tcp.as_ref()?.send_window_bytes)
            .min()?;
        let offered = offered.max(on_its_way(way, &tcp) as u64);
        let flows = way.streams().len().max(1) as f64;
        let through = offered as f64 * 8e9 * flows / tcp.min_rtt_ns.max(1.0);
        let goodput = way.goodput()?;
        // A processor that only receives is far faster.
        if goodput >= USED * through || goodput * super::BYTE_NS / 8e9 > WORKS * flows {
            return None;
        }
        let role = way.receiver;
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(tcp.receive_window)
            .says(format!(
                "the window of the {} was closed for {} of the time, and is large enough for {}: \
                 its application reads too late",
                name(role),
                format_share(tcp.receive_window),
                format_bit_rate(through)
            ))
            .seen(
                "tcpi_rwnd_limited",
                tcp.receive_window,
                "share",
                tcp_info(way.sender),
            )
            .seen(
                "minimum window",
                offered,
                "B",
                "tcpi_snd_wnd, goodput * tcpi_rtt",
            )
            .seen(
                "tcpi_min_rtt",
                tcp.min_rtt_ns.round(),
                "ns",
                tcp_info(way.sender),
            )
            .seen("goodput_bps", goodput, "bit/s", "sender")
            .missing(
                "time of the receiving threads",
                &schedstat(role),
                "the server is another program, which does not report it",
            )
            .remedy(
                "check what the receiving application waits for: a disk, another peer, a timer, a \
                 debugger; `linerate server` in its place shows what the path carries",
            )
            .command("linerate server")
            .gain(
                super::within_headroom(
                    way,
                    (1.0 / (1.0 - tcp.receive_window).max(0.01)).min(through / goodput.max(1.0)),
                ),
                format!(
                    "1 / (1 - share with the window closed), at most window / round-trip time, \
                     and {}",
                    super::HEADROOM
                ),
            )
            .found()
    }

    fn of_datagrams(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let time = way.time(CountedAt::Receiver)?;
        let share = way.lost_share("udp-receive-queue");
        let large = way.receive_buffer().is_some_and(|bytes| bytes > SMALL);
        // A thread that waits for a core is not a slow application; with frequent sleeps it counts
        // as wake-up latency.
        let in_line = time.runnable + time.waking;
        if share < 0.05 || !large || time.free() < 0.5 || in_line > 0.2 {
            return None;
        }
        // Time that a queue of this size bridges: the application was away for longer.
        let held = way.receive_buffer()? as f64 * 8.0 / way.summary().offered_bps?.max(1.0);
        if held < TURN_S {
            return None;
        }
        let role = way.receiver;
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(share + 1e-4)
            .says(format!(
                "the {}'s socket buffer holds {:.0} ms of the received data and was full, while \
                 its processor was idle: its application reads too late",
                name(role),
                held * 1e3
            ))
            .seen(
                "losses[udp-receive-queue]",
                way.lost_at("udp-receive-queue"),
                "datagrams",
                format!("{} SO_MEMINFO drops", name(role)),
            )
            .seen(
                "idle time of the receiving threads",
                time.free(),
                "share",
                schedstat(role),
            )
            .seen_if(
                "SO_RCVBUF",
                way.receive_buffer(),
                "B",
                format!("{} socket", name(role)),
            )
            .remedy(
                "check what the receiving application waits for: a disk, another peer, a timer, a \
                 debugger",
            )
            .command(case.watched())
            .gain(
                Some(1.0 / (1.0 - share).max(0.01)),
                "1 / (1 - share lost here)",
            )
            .found()
    }
}
