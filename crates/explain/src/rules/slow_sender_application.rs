//! The sending program offers less than the path would take.

use linerate_metric::finding::Finding;
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::record::CountedAt;
use linerate_metric::units::{format_bit_rate, format_share};

use super::{is_paced, schedstat, tcp_info};
use crate::Rule;
use crate::case::{Case, Way, name};
use crate::draft::Draft;

/// A send buffer from this size on does not make a sender wait for room while it is not full.
const LARGE: u64 = 256 << 10;

/// Share of the time without data to send from which it matters.
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

/// How much of it arrived; of datagrams without numbers only what came is known.
fn arrived(protocol: Protocol, loss: Option<f64>, goodput: f64) -> String {
    match (protocol, loss) {
        (Protocol::Udp, None) => format!("{} arrived", format_bit_rate(goodput)),
        (Protocol::Udp, Some(loss)) if loss > 0.0 => {
            format!("all but {} of it arrived", format_share(loss))
        }
        _ => "all of it arrived".to_owned(),
    }
}

impl SlowSenderApplication {
    /// It was told to.
    fn asked(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let flows = way.streams().len().max(1) as f64;
        let rate = case.plan.rate_bps.map(|rate| rate as f64).or_else(|| {
            let packets = case.plan.pace.packets_per_second? as f64;
            Some(packets * case.plan.payload_bytes as f64 * 8.0)
        })? * flows;
        let goodput = way.goodput()?;
        // Over UDP a count of bytes alone, as of a far end that tells no datagrams, proves no arrival of all.
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
                "{} was asked for, and {}: nothing else was the limit",
                format_bit_rate(rate),
                arrived(case.plan.protocol, way.summary().loss_fraction, goodput)
            ))
            .seen("rate asked for", rate, "bit/s", "plan")
            .seen("goodput_bps", goodput, "bit/s", "receiver")
            .remedy("ask for more to find the limit")
            .command(match case.plan.protocol {
                Protocol::Udp => case.again_slower(2.0 * rate / flows),
                Protocol::Tcp => case.again_without(&["bitrate", "pps", "pacing"], ""),
            })
            .found()
    }

    /// It had time and room, and did not send.
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
        // Neither the receiver nor the congestion control let it wait: then it would be busy. What asks the
        // kernel to pace looks the same.
        if way.congestion_control().is_some_and(|name| name.starts_with("bbr")) || tcp.loss() > 0.001 {
            return None;
        }
        let role = way.sender;
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(idle)
            .says(format!(
                "the {}'s program had nothing on its way for {} of the time, with room in its socket and time on its processor",
                name(role),
                format_share(idle)
            ))
            .seen("tcpi_busy_time", busy, "share", tcp_info(role))
            .seen("free time of the sending threads", time.free(), "share", schedstat(role))
            .seen("SO_SNDBUF", room, "B", format!("{} socket", name(role)))
            .remedy("look at what the sending program waits for: a disk, another peer, a timer, a debugger")
            .command(case.watched())
            .gain(Some(1.0 / (1.0 - idle).max(0.05)), "1 / (1 - share of the time without data to send)")
            .found()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_to_have_arrived_is_said_to_have() {
        for (protocol, loss, want) in [
            (Protocol::Tcp, None, "all of it arrived"),
            (Protocol::Udp, Some(0.0), "all of it arrived"),
            (Protocol::Udp, Some(0.004), "all but 0.40 % of it arrived"),
            (Protocol::Udp, None, "9.90 Mb/s arrived"),
        ] {
            assert_eq!(arrived(protocol, loss, 9.9e6), want, "{protocol} {loss:?}");
        }
    }
}
