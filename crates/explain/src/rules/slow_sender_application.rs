//! The sending application offers less than the path can carry.

use linerate_metric::finding::Finding;
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bit_rate, format_share};

use super::{is_paced, schedstat, tcp_info};
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Send buffer from which a sender does not wait for space unless it is full.
const LARGE: u64 = 256 << 10;

/// Smallest share of the time without data to send that matters.
const MATTERS: f64 = 0.35;

/// See docs/CAUSES.md#slow-sender-application.
pub struct SlowSenderApplication;

impl Rule for SlowSenderApplication {
    fn id(&self) -> &'static str {
        "slow-sender-application"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        if case.plan.kind != Kind::Throughput {
            return Vec::new();
        }
        let ways = case.ways.iter();
        let of = |way| match is_paced(case) {
            true => self.asked(case, way),
            false => self.idle(case, way),
        };
        ways.filter_map(of).collect()
    }
}

/// Describes the received share; datagrams without sequence numbers give only the received rate.
fn arrived(protocol: Protocol, loss: Option<f64>, goodput: f64) -> String {
    match (protocol, loss) {
        (Protocol::Udp, None) => format!("{} was received", format_bit_rate(goodput)),
        (Protocol::Udp, Some(loss)) if loss > 0.0 => {
            format!("all but {} of it was received", format_share(loss))
        }
        _ => "all of it was received".to_owned(),
    }
}

impl SlowSenderApplication {
    /// The user requested this rate.
    fn asked(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let flows = way.streams().len().max(1) as f64;
        let rate = case.plan.rate_bps.map(|rate| rate as f64).or_else(|| {
            let packets = case.plan.pace.packets_per_second? as f64;
            Some(packets * case.plan.payload_bytes as f64 * 8.0)
        })? * flows;
        let goodput = way.goodput()?;
        // Over UDP, a byte count without a datagram count does not prove that all arrived.
        let loss = way.summary().loss_fraction;
        let lost = match case.plan.protocol {
            Protocol::Udp => loss.is_none_or(|loss| loss > 0.005),
            Protocol::Tcp => loss.is_some_and(|loss| loss > 0.005),
        };
        if goodput < 0.95 * rate || lost || way.fills_path() || case.is_coarse() {
            return None;
        }
        Draft::limit(self.id(), way.sender)
            .way(way.direction)
            .cost(1.0)
            .says(format!(
                "{} was requested, and {}: nothing else was the limit",
                format_bit_rate(rate),
                arrived(case.plan.protocol, way.summary().loss_fraction, goodput)
            ))
            .seen("requested rate", rate, "bit/s", "plan")
            .seen("goodput_bps", goodput, "bit/s", "receiver")
            .remedy("request a higher rate to find the limit")
            .command(match case.plan.protocol {
                Protocol::Udp => case.again_slower(2.0 * rate / flows),
                Protocol::Tcp => case.again_without(&["bitrate", "pps", "pacing"], ""),
            })
            .found()
    }

    /// The sender had time and buffer space, and did not send.
    fn idle(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        if case.plan.protocol != Protocol::Tcp || way.fills_path() {
            return None;
        }
        let tcp = way.tcp()?;
        let busy = tcp.busy?;
        let time = way.time(CountedAt::Sender)?;
        let room = way.send_buffer()?;
        let idle = (1.0 - busy).min(time.free());
        if idle < MATTERS || room < LARGE || case.plan.payload_bytes < 4096 {
            return None;
        }
        // A sender that waits for the receiver or the congestion window counts as busy. Pacing by
        // the kernel looks the same as an idle sender.
        if way
            .congestion_control()
            .is_some_and(|name| name.starts_with("bbr"))
            || tcp.loss() > 0.001
        {
            return None;
        }
        let role = way.sender;
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(idle)
            .says(format!(
                "the {}'s application had no data in flight for {} of the time, with space in its \
                 socket buffer and an idle processor",
                name(role),
                format_share(idle)
            ))
            .seen("tcpi_busy_time", busy, "share", tcp_info(role))
            .seen(
                "idle time of the sending threads",
                time.free(),
                "share",
                schedstat(role),
            )
            .seen("SO_SNDBUF", room, "B", format!("{} socket", name(role)))
            .remedy(
                "check what the sending application waits for: a disk, another peer, a timer, a \
                 debugger",
            )
            .command(case.watched())
            .gain(
                Some(1.0 / (1.0 - idle).max(0.05)),
                "1 / (1 - share of the time without data to send)",
            )
            .found()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_to_have_arrived_is_said_to_have() {
        for (protocol, loss, want) in [
            (Protocol::Tcp, None, "all of it was received"),
            (Protocol::Udp, Some(0.0), "all of it was received"),
            (
                Protocol::Udp,
                Some(0.004),
                "all but 0.40 % of it was received",
            ),
            (Protocol::Udp, None, "9.90 Mb/s was received"),
        ] {
            assert_eq!(arrived(protocol, loss, 9.9e6), want, "{protocol} {loss:?}");
        }
    }
}
