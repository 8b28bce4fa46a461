//! The congestion control does not suit the path.

use linerate_record::facts::Role;
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::TransportProtocol;
use linerate_record::record::FlowEnd;
use linerate_stats::units::format_count;

use super::tcp_info_source;
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, duration, percent, size};
use crate::run_view::{DirectionView, RunView, ThreadTime};

/// Longest round-trip time of a path that is limited by processors and not by its length.
const SHORT_RTT_NS: f64 = 1e6;

/// Unnecessary retransmits per second from which they matter.
const MIN_SPURIOUS_PER_SECOND: f64 = 50.0;

/// Part of the retransmits from which unnecessary ones matter: one in three.
const SPURIOUS_PART: u64 = 3;

/// Idle time of both ends from which pacing timers may limit them, and smallest call, in bytes:
/// smaller ones cost more than the timers.
const MIN_IDLE_SHARE: f64 = 0.1;
const MIN_CALL_BYTES: u64 = 16 << 10;

/// Share of the time limited by a window or buffer, and buffer size in bytes below it, from which
/// that is the limit.
const MAX_WINDOW_LIMITED_SHARE: f64 = 0.4;
const SMALL_BUFFER_BYTES: u64 = 64 << 10;

/// Smallest gain of a loss-based congestion control over bbr without pacing on a short path: 3.3 to
/// 3.6 on veth, 2.5 on loopback of the 2-core VM (docs/method/defaults.md#constants-of-estimates).
const MIN_SPEEDUP: f64 = 2.5;

/// Largest gain measured there.
const MAX_SPEEDUP: f64 = 6.0;

/// Text of the remedy.
const REMEDY: &str = "use a congestion control that does not pace on such a short path, or set the \
                  interface's qdisc to `fq`";

/// Returns the end whose host restricts cubic to root and allows reno, with its allowed list. The
/// command may run at the server without root privileges.
fn restricted_cubic_end<'a>(run: &RunView<'a>) -> Option<(Role, &'a str)> {
    [Role::Client, Role::Server].into_iter().find_map(|role| {
        let allowed = run
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
fn is_core_limited(end: &ThreadTime, peer: &ThreadTime) -> bool {
    end.free_share() <= peer.core_wait
}

/// See docs/CAUSES.md#congestion-control.
pub struct CongestionControl;

impl Rule for CongestionControl {
    fn id(&self) -> CauseId {
        CauseId::CongestionControl
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The congestion control does not suit the path: bbr paces with timers of its \
                      own, because the interface has no `fq`.",
            shown_when: vec![detection(
                "TCP",
                [
                    "`bbr` is in use, and `fq` is neither the root qdisc of the interface nor \
                     directly below it"
                        .into(),
                    format!(
                        "the minimum round-trip time is {} at most",
                        duration(SHORT_RTT_NS)
                    ),
                    format!(
                        "{MIN_SPURIOUS_PER_SECOND} unnecessary retransmits a second or more, and \
                         one in {SPURIOUS_PART} of all; or both ends wait"
                    ),
                    format!(
                        "waiting is idle time of more than {} at both ends, in calls of {} or more",
                        percent(MIN_IDLE_SHARE),
                        size(MIN_CALL_BYTES)
                    ),
                    "waiting counts only if one end is idle for longer than the other one waits \
                     for a CPU"
                        .into(),
                ],
            )],
            not_when: vec![
                "a rate was requested".into(),
                "the path is full".into(),
                format!(
                    "a window or a buffer limits the sender for more than {} of the time, or holds \
                     less than {}",
                    percent(MAX_WINDOW_LIMITED_SHARE),
                    size(SMALL_BUFFER_BYTES)
                ),
                "segments are [lost on the path](#path-loss): there bbr is the better choice"
                    .into(),
                "the qdisc is unknown; records that do not list the children of `mq` count by \
                 `net.core.default_qdisc`"
                    .into(),
            ],
            evidence: &[
                ("TCP_CONGESTION", ""),
                ("qdisc", ""),
                ("qdisc, below it", ""),
                ("net.core.default_qdisc", ""),
                ("tcpi_dsack_dups", "segments"),
                ("tcpi_total_retrans", "segments"),
                ("tcpi_reord_seen", ""),
                ("tcpi_min_rtt", "ns"),
                ("net.ipv4.tcp_allowed_congestion_control", ""),
            ],
            cost: vec![
                format!(
                    "{}: a loss-based control was {MIN_SPEEDUP} times as fast or more on veth and \
                     loopback.",
                    percent(1.0 - 1.0 / MIN_SPEEDUP)
                ),
                format!("The gain is {MAX_SPEEDUP} at most."),
            ],
            remedy: vec![
                "Use `-C cubic`, or `-C reno` if a host permits cubic only to root.".into(),
                "Or set the qdisc: `tc qdisc replace dev IF root fq`.".into(),
            ],
            wrong_when: vec![
                "the short path hides a shallow buffer that only bbr copes with".into(),
                "in an old record, the qdisc below `mq` was set by hand, against \
                 `net.core.default_qdisc`"
                    .into(),
            ],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        let directions = run.throughput_directions(TransportProtocol::Tcp);
        directions
            .filter_map(|direction| self.evaluate_direction(run, direction))
            .collect()
    }
}

impl CongestionControl {
    fn evaluate_direction(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let control = direction.congestion_control()?;
        let tcp = direction.tcp()?;
        let interface = direction.sender_interface();
        let qdisc = interface.and_then(|interface| interface.qdisc.as_deref());
        let children = interface.map_or(&[][..], |interface| &interface.qdisc_children);
        // Below `mq` each queue has its own qdisc. Older records do not list them: then it is the
        // default qdisc, which may be `fq`.
        let below = run
            .host(direction.sender)
            .and_then(|host| host.sysctls.get("net.core.default_qdisc"));
        let below = below
            .filter(|_| qdisc == Some("mq") && children.is_empty())
            .map(String::as_str);
        let has_fq_child = children.iter().any(|child| child.kind == "fq");
        let default_below =
            qdisc == Some("mq") && children.is_empty() && below.is_none_or(|below| below == "fq");
        let may_be_fq = qdisc == Some("fq") || has_fq_child || default_below;
        if !control.starts_with("bbr") || may_be_fq || direction.fills_path() {
            return None;
        }
        // Loss on the path limits a loss-based congestion control more than bbr.
        if direction.unaccounted_loss().is_some() {
            return None;
        }
        let is_limited_elsewhere = tcp.receive_window_limited > MAX_WINDOW_LIMITED_SHARE
            || tcp.send_buffer_limited > MAX_WINDOW_LIMITED_SHARE;
        let small = direction
            .send_buffer()
            .is_some_and(|bytes| bytes < SMALL_BUFFER_BYTES)
            || direction
                .receive_buffer()
                .is_some_and(|bytes| bytes < SMALL_BUFFER_BYTES);
        if tcp.min_rtt_ns > SHORT_RTT_NS || super::is_paced(run) || is_limited_elsewhere || small {
            return None;
        }
        let spurious = tcp.spurious_retransmits as f64 / direction.seconds().max(1e-3);
        let needless = spurious >= MIN_SPURIOUS_PER_SECOND
            && tcp.spurious_retransmits * SPURIOUS_PART >= tcp.retransmits;
        // Pacing timers: neither end is busy all the time, and nothing else limits the sender.
        let ends = direction
            .thread_time(FlowEnd::Sender)
            .zip(direction.thread_time(FlowEnd::Receiver));
        let waits = ends.is_some_and(|(sender, receiver)| {
            let has_rest =
                sender.free_share() > MIN_IDLE_SHARE && receiver.free_share() > MIN_IDLE_SHARE;
            has_rest
                && !(is_core_limited(&sender, &receiver) && is_core_limited(&receiver, &sender))
        });
        let small_calls = run.plan.payload_bytes < MIN_CALL_BYTES;
        if !needless && (!waits || small_calls) {
            return None;
        }
        let role = direction.sender;
        let restricted = restricted_cubic_end(run);
        FindingBuilder::cause(self.id(), role)
            .direction(direction.direction)
            .cost(1.0 - 1.0 / MIN_SPEEDUP)
            .summary(format!(
                "{control} paces with its own timers, because the {}'s interface has no `fq` \
                 qdisc: {}",
                role.as_str(),
                match needless {
                    true => format!(
                        "acknowledgements are processed on the receiver's CPU, segments are \
                         reordered, and {} retransmits were unnecessary",
                        format_count(tcp.spurious_retransmits)
                    ),
                    false => "both ends wait for these timers".to_owned(),
                }
            ))
            .evidence(
                "TCP_CONGESTION",
                control,
                "",
                format!("{} socket", role.as_str()),
            )
            .evidence(
                "qdisc",
                qdisc.unwrap_or("none"),
                "",
                format!("{} rtnetlink", role.as_str()),
            )
            .evidence_if(
                "qdisc, below it",
                super::child_qdiscs(children),
                "",
                format!("{} rtnetlink", role.as_str()),
            )
            .evidence_if(
                "net.core.default_qdisc",
                below,
                "",
                format!("{} sysctl", role.as_str()),
            )
            .evidence(
                "tcpi_dsack_dups",
                tcp.spurious_retransmits,
                "segments",
                tcp_info_source(role),
            )
            .evidence(
                "tcpi_total_retrans",
                tcp.retransmits,
                "segments",
                tcp_info_source(role),
            )
            .evidence(
                "tcpi_reord_seen",
                tcp.reordering_events,
                "",
                tcp_info_source(role),
            )
            .evidence(
                "tcpi_min_rtt",
                tcp.min_rtt_ns.round(),
                "ns",
                tcp_info_source(role),
            )
            .evidence_if(
                "net.ipv4.tcp_allowed_congestion_control",
                restricted.map(|(_, allowed)| allowed),
                "",
                restricted
                    .map_or_else(String::new, |(role, _)| format!("{} sysctl", role.as_str())),
            )
            .remedy(match restricted {
                Some((role, _)) => format!(
                    "{REMEDY}; the {}'s host permits reno for all users, and cubic only for root",
                    role.as_str()
                ),
                None => REMEDY.to_owned(),
            })
            .command(run.rerun_command(match restricted {
                Some(_) => "-C reno",
                None => "-C cubic",
            }))
            .tried(
                run.plan
                    .congestion_control_requested
                    .then(|| format!("-C {control}")),
            )
            .estimated_gain(
                super::rate_headroom(direction).map(|most| most.min(MAX_SPEEDUP)),
                "earlier tests, not this run: 2.5 to 6 on veth and loopback, without pacing in \
                 place of bbr without fq",
            )
            .build()
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::ids::CauseId;
    use linerate_record::record::Record;

    #[test]
    fn the_command_uses_a_control_that_all_users_may_set() {
        let text = include_str!("../../../../tests/bank/recorded/congestion-control-bbr.json");
        let injected: serde_json::Value = serde_json::from_str(text).expect("JSON");
        for (allowed, control) in [
            (Some("reno bbr"), "-C reno"),
            (Some("reno bbr cubic"), "-C cubic"),
            (Some("bbr"), "-C cubic"),
            (None, "-C cubic"),
        ] {
            let mut record: Record =
                serde_json::from_value(injected["record"].clone()).expect("a record");
            for host in &mut record.hosts {
                const NAME: &str = "net.ipv4.tcp_allowed_congestion_control";
                host.sysctls.remove(NAME);
                host.sysctls
                    .extend(allowed.map(|allowed| (NAME.to_owned(), allowed.to_owned())));
            }
            let findings = crate::explain(&record);
            let findings = findings
                .iter()
                .find(|findings| findings.cause == CauseId::CongestionControl);
            let command = findings.and_then(|findings| findings.command.as_deref());
            let command = command.expect("a command");
            assert!(command.contains(control), "{allowed:?}: {command}");
        }
    }
}
