//! The receiving program takes payload later than it comes.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bit_rate, format_nanos, format_share};

use super::receive_window::{CLOSED_BY_READER, SMALL, on_its_way, use_of_window};
use super::{is_paced, schedstat, tcp_info};
use crate::Rule;
use crate::case::{Case, Way, name};
use crate::draft::Draft;

/// Share of the time from which it matters.
const MATTERS: f64 = 0.25;

/// A queue that holds less is full after one turn of another thread on the receiver's processor, s.
const TURN_S: f64 = 0.004;

/// Interval between two looks over the median round trip from which it is a part of it, and from which most round
/// trips did not wait for it.
const WAITS: f64 = 0.2;
const ALONE: f64 = 2.0;

/// Share of window / least round-trip time below which it is no small window that holds the sender.
const USED: f64 = 0.2;

/// Share of the time that a processor needs at best for what arrived, from which it may be what is late.
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
            Protocol::Tcp => self.of_stream(case, way).or_else(|| self.of_another(case, way)),
            Protocol::Udp => self.of_datagrams(case, way),
        };
        ways.filter_map(of).collect()
    }
}

impl SlowReceiverApplication {
    /// Round trips wait for the next look of our own stack at its port.
    fn of_poll(&self, case: &Case<'_>, role: Role) -> Option<Finding> {
        let rtt = case.record.summary.rtt_ns.filter(|_| case.is_latency())?;
        let interval = case.poll_interval_ns(role)?;
        // Who asks right behind an answer waits for all of it.
        let share = interval / (rtt.p50 as f64).max(1.0);
        if !(WAITS..ALONE).contains(&share) {
            return None;
        }
        let cost = share.min(0.95);
        Draft::cause(self.id(), role)
            .cost(cost)
            .says(format!(
                "our stack of the {} looks at its port every {}, and half of the round trips took {} or more",
                name(role),
                format_nanos(interval),
                format_nanos(rtt.p50 as f64)
            ))
            .seen("poll.interval", interval, "ns", format!("{} stack", name(role)))
            .seen("rtt_ns.p50", rtt.p50, "ns", "client")
            .remedy("look at the port all the time, or more often than round trips may take")
            .command(case.again_with_key(role, "poll.interval", "spin"))
            .gain(Some(1.0 / (1.0 - cost)), "1 / (1 - poll.interval over the median)")
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
        // No window is large that is not scaled, however large the buffer behind it.
        if !super::receive_window::unscaled(case).is_empty() {
            return None;
        }
        // A window that is large and closed: nobody takes what is in it, and not for want of a processor.
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
                "the window of the {} is large and was closed for {} of the time, while its processor had time: its program reads too late",
                name(role),
                format_share(tcp.receive_window)
            ))
            .seen("tcpi_rwnd_limited", tcp.receive_window, "share", tcp_info(way.sender))
            .seen("SO_RCVBUF", window, "B", format!("{} socket", name(role)))
            .seen("goodput over window / RTT", used, "share", "goodput, SO_RCVBUF, tcpi_rtt")
            .seen_if("free time of the receiving threads", time.map(|time| time.free()), "share", schedstat(role))
            .seen_if("TCPRcvQDrop", refused, "segments", format!("{} /proc/net/netstat", name(role)))
            .remedy("look at what the receiving program waits for: a disk, another peer, a timer, a debugger")
            .command(case.watched())
            .gain(super::within_headroom(way, 1.0 / (1.0 - tcp.receive_window).max(0.01)), format!("1 / (1 - share with the window closed), at most {}", super::HEADROOM))
            .found()
    }

    /// Another program receives, and tells nothing but the window that it offers.
    fn of_another(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let tcp = way.tcp()?;
        let other = case.far_is_foreign() && way.receiver == Role::Server && way.receive_buffer().is_none();
        if !other || tcp.receive_window < MATTERS || way.fills_path() || is_paced(case) {
            return None;
        }
        // A window that is sure to have been open: what was on its way fitted, and what it offered at the end would.
        let offered = (way.senders()).filter_map(|socket| socket.tcp.as_ref()?.send_window_bytes).min()?;
        let offered = offered.max(on_its_way(way, &tcp) as u64);
        let flows = way.streams().len().max(1) as f64;
        let through = offered as f64 * 8e9 * flows / tcp.min_rtt_ns.max(1.0);
        let goodput = way.goodput()?;
        // A processor that does nothing but receive takes far more.
        if goodput >= USED * through || goodput * super::BYTE_NS / 8e9 > WORKS * flows {
            return None;
        }
        let role = way.receiver;
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(tcp.receive_window)
            .says(format!(
                "the window of the {} was closed for {} of the time, and is large enough for {}: its program reads too late",
                name(role),
                format_share(tcp.receive_window),
                format_bit_rate(through)
            ))
            .seen("tcpi_rwnd_limited", tcp.receive_window, "share", tcp_info(way.sender))
            .seen("window at least", offered, "B", "tcpi_snd_wnd, goodput * tcpi_rtt")
            .seen("tcpi_min_rtt", tcp.min_rtt_ns.round(), "ns", tcp_info(way.sender))
            .seen("goodput_bps", goodput, "bit/s", "sender")
            .missing("time of the receiving threads", &schedstat(role), "the far end is another program, which does not tell")
            .remedy("look at what the receiving program waits for: a disk, another peer, a timer, a debugger; `linerate server` in its place tells what the path carries")
            .command("linerate server")
            .gain(super::within_headroom(way, (1.0 / (1.0 - tcp.receive_window).max(0.01)).min(through / goodput.max(1.0))), format!("1 / (1 - share with the window closed), at most window / round-trip time, and {}", super::HEADROOM))
            .found()
    }

    fn of_datagrams(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let time = way.time(CountedAt::Receiver)?;
        let share = way.lost_share("udp-receive-queue");
        let large = way.receive_buffer().is_some_and(|bytes| bytes > SMALL);
        // Whoever waits in line for a processor is not away: that shows as waking up where it sleeps often.
        let in_line = time.runnable + time.waking;
        if share < 0.05 || !large || time.free() < 0.5 || in_line > 0.2 {
            return None;
        }
        // A queue of this size holds what arrives in so long: a program that reads has been away longer.
        let held = way.receive_buffer()? as f64 * 8.0 / way.summary().offered_bps?.max(1.0);
        if held < TURN_S {
            return None;
        }
        let role = way.receiver;
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(share + 1e-4)
            .says(format!(
                "the {}'s socket holds {:.0} ms of what arrives and was full, while its processor had time: its program reads too late",
                name(role),
                held * 1e3
            ))
            .seen("losses[udp-receive-queue]", way.lost_at("udp-receive-queue"), "datagrams", format!("{} SO_MEMINFO drops", name(role)))
            .seen("free time of the receiving threads", time.free(), "share", schedstat(role))
            .seen_if("SO_RCVBUF", way.receive_buffer(), "B", format!("{} socket", name(role)))
            .remedy("look at what the receiving program waits for: a disk, another peer, a timer, a debugger")
            .command(case.watched())
            .gain(Some(1.0 / (1.0 - share).max(0.01)), "1 / (1 - share lost here)")
            .found()
    }
}
