//! The congestion control does not suit the path.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::Protocol;
use linerate_metric::record::CountedAt;
use linerate_metric::units::format_count;

use super::tcp_info;
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Time, Way, name};

/// Longest round-trip time of a path that is limited by processors and not by its length.
const SHORT_NS: f64 = 1e6;

/// Unnecessary retransmits per second from which they matter.
const SPURIOUS: f64 = 50.0;

/// Smallest gain of a loss-based congestion control over bbr without pacing on a short path: 3.3 to
/// 3.6 on veth, 2.5 on loopback of the 2-core VM (docs/method/defaults.md#constants-of-estimates).
const FASTER: f64 = 2.5;

/// Largest gain measured there.
const MOST: f64 = 6.0;

/// Text of the remedy.
const DO: &str = "use a congestion control that does not pace on such a short path, or set the \
                  interface's qdisc to `fq`";

/// Returns the end whose host restricts cubic to root and allows reno, with its allowed list. The
/// command may run at the server without root privileges.
fn keeps_cubic<'a>(case: &Case<'a>) -> Option<(Role, &'a str)> {
    [Role::Client, Role::Server].into_iter().find_map(|role| {
        let allowed = case
            .host(role)?
            .sysctls
            .get("net.ipv4.tcp_allowed_congestion_control")?;
        let has = |control: &str| allowed.split_whitespace().any(|each| each == control);
        (has("reno") && !has("cubic")).then_some((role, allowed.as_str()))
    })
}

/// Returns true if an end was idle no longer than other programs kept the peer from a core: then
/// its idle time needs no pacing timer. On a machine kept busy by other programs, 8 to 21 % idle
/// time and 46 to 51 % of such waiting were measured at both ends, and reno was no faster there.
fn waits_for_its_core(end: &Time, other: &Time) -> bool {
    end.free() <= other.runnable
}

/// See docs/CAUSES.md#congestion-control.
pub struct CongestionControl;

impl Rule for CongestionControl {
    fn id(&self) -> &'static str {
        "congestion-control"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        let ways = case.throughput(Protocol::Tcp);
        ways.filter_map(|way| self.of(case, way)).collect()
    }
}

impl CongestionControl {
    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let control = way.congestion_control()?;
        let tcp = way.tcp()?;
        let interface = way.sends_by();
        let qdisc = interface.and_then(|interface| interface.qdisc.as_deref());
        let children = interface.map_or(&[][..], |interface| &interface.qdisc_children);
        // Below `mq` each queue has its own qdisc. Older records do not list them: then it is the
        // default qdisc, which may be `fq`.
        let below = case
            .host(way.sender)
            .and_then(|host| host.sysctls.get("net.core.default_qdisc"));
        let below = below
            .filter(|_| qdisc == Some("mq") && children.is_empty())
            .map(String::as_str);
        let told_below = children.iter().any(|child| child.kind == "fq");
        let default_below =
            qdisc == Some("mq") && children.is_empty() && below.is_none_or(|below| below == "fq");
        let may_be_fq = qdisc == Some("fq") || told_below || default_below;
        if !control.starts_with("bbr") || may_be_fq || way.fills_path() {
            return None;
        }
        // Loss on the path limits a loss-based congestion control more than bbr.
        if way.unseen_loss().is_some() {
            return None;
        }
        let held_elsewhere = tcp.receive_window > 0.4 || tcp.send_buffer > 0.4;
        let small = way.send_buffer().is_some_and(|bytes| bytes < 64 << 10)
            || way.receive_buffer().is_some_and(|bytes| bytes < 64 << 10);
        if tcp.min_rtt_ns > SHORT_NS || super::is_paced(case) || held_elsewhere || small {
            return None;
        }
        let spurious = tcp.spurious as f64 / way.seconds().max(1e-3);
        let needless = spurious >= SPURIOUS && tcp.spurious * 3 >= tcp.retransmits;
        // Pacing timers: neither end is busy all the time, and nothing else limits the sender.
        let ends = way
            .time(CountedAt::Sender)
            .zip(way.time(CountedAt::Receiver));
        let waits = ends.is_some_and(|(sender, receiver)| {
            let has_rest = sender.free() > 0.1 && receiver.free() > 0.1;
            has_rest
                && !(waits_for_its_core(&sender, &receiver)
                    && waits_for_its_core(&receiver, &sender))
        });
        let small_calls = case.plan.payload_bytes < 16 << 10;
        if !needless && (!waits || small_calls) {
            return None;
        }
        let role = way.sender;
        let kept = keeps_cubic(case);
        Draft::cause(self.id(), role)
            .way(way.direction)
            .cost(1.0 - 1.0 / FASTER)
            .says(format!(
                "{control} paces with its own timers, because the {}'s interface has no `fq` \
                 qdisc: {}",
                name(role),
                match needless {
                    true => format!(
                        "acknowledgements are processed on the receiver's core, segments are \
                         reordered, and {} retransmits were unnecessary",
                        format_count(tcp.spurious)
                    ),
                    false => "both ends wait for these timers".to_owned(),
                }
            ))
            .seen(
                "TCP_CONGESTION",
                control,
                "",
                format!("{} socket", name(role)),
            )
            .seen(
                "qdisc",
                qdisc.unwrap_or("none"),
                "",
                format!("{} rtnetlink", name(role)),
            )
            .seen_if(
                "qdisc, below it",
                super::kinds_below(children),
                "",
                format!("{} rtnetlink", name(role)),
            )
            .seen_if(
                "net.core.default_qdisc",
                below,
                "",
                format!("{} sysctl", name(role)),
            )
            .seen("tcpi_dsack_dups", tcp.spurious, "segments", tcp_info(role))
            .seen(
                "tcpi_total_retrans",
                tcp.retransmits,
                "segments",
                tcp_info(role),
            )
            .seen("tcpi_reord_seen", tcp.reordering, "", tcp_info(role))
            .seen("tcpi_min_rtt", tcp.min_rtt_ns.round(), "ns", tcp_info(role))
            .seen_if(
                "net.ipv4.tcp_allowed_congestion_control",
                kept.map(|(_, allowed)| allowed),
                "",
                kept.map_or_else(String::new, |(role, _)| format!("{} sysctl", name(role))),
            )
            .remedy(match kept {
                Some((role, _)) => format!(
                    "{DO}; the {}'s host permits reno for all users, and cubic only for root",
                    name(role)
                ),
                None => DO.to_owned(),
            })
            .command(case.again(match kept {
                Some(_) => "-C reno",
                None => "-C cubic",
            }))
            .tried(
                case.plan
                    .congestion_control_asked
                    .then(|| format!("-C {control}")),
            )
            .gain(
                super::within_headroom(way, MOST),
                "a congestion control without pacing over bbr without fq: 2.5 to 6, measured on \
                 veth and loopback (docs/method/defaults.md)",
            )
            .found()
    }
}

#[cfg(test)]
mod tests {
    use linerate_metric::record::Record;

    #[test]
    fn the_command_asks_for_what_everybody_may_have() {
        let text = include_str!("../../../../tests/bank/recorded/congestion-control-bbr.json");
        let planted: serde_json::Value = serde_json::from_str(text).expect("JSON");
        for (allowed, control) in [
            (Some("reno bbr"), "-C reno"),
            (Some("reno bbr cubic"), "-C cubic"),
            (Some("bbr"), "-C cubic"),
            (None, "-C cubic"),
        ] {
            let mut record: Record =
                serde_json::from_value(planted["record"].clone()).expect("a record");
            for host in &mut record.hosts {
                const NAME: &str = "net.ipv4.tcp_allowed_congestion_control";
                host.sysctls.remove(NAME);
                host.sysctls
                    .extend(allowed.map(|allowed| (NAME.to_owned(), allowed.to_owned())));
            }
            let found = crate::explain(&record);
            let found = found
                .iter()
                .find(|found| found.cause == "congestion-control");
            let command = found.and_then(|found| found.command.as_deref());
            let command = command.expect("a command");
            assert!(command.contains(control), "{allowed:?}: {command}");
        }
    }
}
