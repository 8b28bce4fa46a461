//! The receiving program takes payload later than it comes.

use linerate_metric::finding::Finding;
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::record::CountedAt;
use linerate_metric::units::format_share;

use super::receive_window::{CLOSED_BY_READER, SMALL, use_of_window};
use super::{is_paced, schedstat, tcp_info};
use crate::Rule;
use crate::case::{Case, Way, name};
use crate::draft::Draft;

/// Share of the time from which it matters.
const MATTERS: f64 = 0.25;

/// A queue that holds less is full after one turn of another thread on the receiver's processor, s.
const TURN_S: f64 = 0.004;

/// See docs/CAUSES.md#slow-receiver-application.
pub struct SlowReceiverApplication;

impl Rule for SlowReceiverApplication {
    fn id(&self) -> &'static str {
        "slow-receiver-application"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        if case.plan.kind != Kind::Throughput {
            return Vec::new();
        }
        let ways = case.ways.iter();
        let of = |way| match case.plan.protocol {
            Protocol::Tcp => self.of_stream(case, way),
            Protocol::Udp => self.of_datagrams(case, way),
        };
        ways.filter_map(of).collect()
    }
}

impl SlowReceiverApplication {
    fn of_stream(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let tcp = way.tcp()?;
        let time = way.time(CountedAt::Receiver);
        let window = way.receive_buffer()?;
        let used = use_of_window(way)?;
        if tcp.receive_window < MATTERS || window <= SMALL || way.fills_path() || is_paced(case) {
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
