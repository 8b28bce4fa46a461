//! Large packets are lost on the path without an ICMP message.

use linerate_record::facts::Role;
use linerate_record::finding::{Finding, FindingLocation};
use linerate_record::ids::{CauseId, LossPoint};
use linerate_record::plan::{RunKind, TransportProtocol};
use linerate_stats::units::{format_count, parse_duration};

use super::{evaluate_directions, tcp_info_source, with_retransmits};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent, size};
use crate::run_view::{DirectionView, RunView};

/// Packet size up to which nearly every path works (RFC 8200 section 5: 1280).
const LARGE_PACKET_BYTES: u64 = 1_100;

/// Payload up to which every path works (RFC 791: 576 bytes, headers included).
const MIN_MTU_PAYLOAD_BYTES: u64 = 540;

/// Share of retransmitted segments from which unsegmented packets are lost.
const MIN_RETRANSMIT_SHARE: f64 = 0.01;

/// Payload that passes a black hole: a few small segments.
const NEGLIGIBLE_BYTES: u64 = 64 << 10;

/// Part of the payload that a black hole passes in retransmitted segments: one in two.
const RETRANSMITTED_PART: f64 = 2.0;

/// Loss share from which nothing arrives, share of it on the path and at interfaces, and fewest
/// datagrams for that.
const MIN_TOTAL_LOSS: f64 = 0.99;
const MIN_PATH_LOSS: f64 = 0.9;
const MIN_DATAGRAMS: u64 = 10;

/// Largest cost while some segments arrive.
const MAX_PARTIAL_COST: f64 = 0.95;

/// Failed timeouts of a segment before our stack sends a shorter one.
const FAILED_TIMEOUTS: u32 = 5;

/// Sum of these timeouts in units of the first one: each is twice as long as the one before (RFC
/// 6298).
const RTO_BACKOFF_SUM: f64 = ((1_u32 << FAILED_TIMEOUTS) - 1) as f64;

/// See docs/CAUSES.md#mtu-black-hole.
pub struct MtuBlackHole;

impl Rule for MtuBlackHole {
    fn id(&self) -> CauseId {
        CauseId::MtuBlackHole
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "Large packets are lost on the path without an ICMP message.",
            shown_when: vec![
                detection(
                    "TCP, a kernel sends",
                    [
                        format!(
                            "connections are established, and segments have {} or more",
                            size(LARGE_PACKET_BYTES)
                        ),
                        format!(
                            "{} or less arrives, less than was sent",
                            size(NEGLIGIBLE_BYTES)
                        ),
                        format!(
                            "segments are retransmitted or time out: {} of the arrived bytes or \
                             more",
                            percent(1.0 / RETRANSMITTED_PART)
                        ),
                    ],
                ),
                detection(
                    "TCP to the user-space stack on a `packet:` or `xdp:` port",
                    [
                        "the sender's veth leaves segmentation to its peer (TSO or GSO on): the \
                         port accepts no frame above its MTU"
                            .into(),
                        format!(
                            "{} of the segments or more are retransmitted",
                            percent(MIN_RETRANSMIT_SHARE)
                        ),
                    ],
                ),
                detection(
                    "TCP, the user-space stack sends",
                    [
                        format!(
                            "it sent shorter segments after {FAILED_TIMEOUTS} timeouts of a full \
                             one (`path_mtu_guesses`)"
                        ),
                        "no link went down, and the peer always had a route".into(),
                    ],
                ),
                detection(
                    "UDP",
                    [
                        format!(
                            "datagrams have {} or more; {} if interfaces dropped them",
                            size(LARGE_PACKET_BYTES),
                            size(MIN_MTU_PAYLOAD_BYTES)
                        ),
                        format!("{MIN_DATAGRAMS} or more were sent, and none arrives"),
                        format!(
                            "{} of them or more are lost on the path or at interfaces",
                            percent(MIN_PATH_LOSS)
                        ),
                    ],
                ),
                detection(
                    "round trips",
                    [format!(
                        "requests have {} or more, and none gets a response",
                        size(LARGE_PACKET_BYTES)
                    )],
                ),
            ],
            evidence: &[
                ("bytes_received", "B"),
                ("tcpi_total_retrans", "segments"),
                ("tcpi_dsack_dups", "segments"),
                ("tcpi_rtt", "ns"),
                ("tcpi_min_rtt", "ns"),
                ("tcpi_total_rto", ""),
                ("tcpi_snd_mss", "B"),
                ("InDestUnreachs", "packets"),
                ("InPktTooBigs", "packets"),
                ("net.ipv4.tcp_mtu_probing", ""),
                ("tx-tcp-segmentation", ""),
                ("tx-tcp6-segmentation", ""),
                ("generic-segmentation-offload", ""),
                ("retransmitted segments", "share"),
                ("path_mtu_guesses", "times"),
                ("path_mtu_reported", "times"),
                ("retransmitted_segments", "segments"),
                ("tcp.min_rto", ""),
                ("mtu", "B"),
                ("loss_fraction", "share"),
                ("payload_bytes", "B"),
                ("lost", "round trips"),
                ("ip.reassembly", ""),
            ],
            cost: vec![
                "All of it.".into(),
                format!(
                    "Unsegmented packets to a port of the user-space stack: {}.",
                    percent(MAX_PARTIAL_COST)
                ),
                format!(
                    "If the user-space stack sends, the time of the timeouts: {RTO_BACKOFF_SUM} times \
                     `tcp.min_rto` for each guess."
                ),
            ],
            notes: vec![
                "`path_mtu_reported` counts messages of routers: with them there is no hole."
                    .into(),
                "Requests that exceed a packet are fragmented; the finding names the keys of our \
                 stack that reassemble them."
                    .into(),
            ],
            remedy: vec![
                "Set the same MTU on all links of a segment, and let ICMP pass.".into(),
                "Enable MTU probing (`net.ipv4.tcp_mtu_probing=1`).".into(),
                "Set an `mtu` of the user-space stack that the path carries.".into(),
                "Before the user-space stack: `ethtool -K IF tso off gso off` at the sender."
                    .into(),
                "Confirm it with `-l 1200` or `-M 1100`.".into(),
            ],
            wrong_when: vec!["a filter drops by port and not by size".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        let evaluate_tcp = |direction: &DirectionView<'_>| {
            let findings = self
                .evaluate_unsegmented(run, direction)
                .or_else(|| self.evaluate_netstack(run, direction));
            findings.or_else(|| self.evaluate_tcp(run, direction))
        };
        let mut findings = evaluate_directions(run, evaluate_tcp, |direction| {
            self.evaluate_udp(run, direction)
        });
        findings.extend(self.evaluate_requests(run));
        findings
    }
}

impl MtuBlackHole {
    fn evaluate_tcp(&self, run: &RunView<'_>, direction: &DirectionView<'_>) -> Option<Finding> {
        let tcp = direction.tcp()?;
        // The server did not report its received bytes.
        let arrived = direction.summary().bytes_received?;
        if tcp.mss_bytes < LARGE_PACKET_BYTES as f64 || tcp.retransmits + tcp.timeouts == 0 {
            return None;
        }
        // Nothing arrives through a black hole: with MTU probing, or ICMP messages, segments become
        // smaller.
        if arrived > NEGLIGIBLE_BYTES
            || direction
                .summary()
                .bytes_sent
                .is_some_and(|sent| sent <= arrived)
        {
            return None;
        }
        // The little payload that arrived was retransmitted many times.
        if arrived > tcp.mss_bytes as u64
            && tcp.retransmits as f64 * tcp.mss_bytes < arrived as f64 / RETRANSMITTED_PART
        {
            return None;
        }
        let probing = run.sysctl(direction.sender, "net.ipv4.tcp_mtu_probing");
        let icmp_unreachable = run.counter_increase("icmp_unreachable_received", |host, _| {
            host == direction.sender.as_str()
        });
        let builder = FindingBuilder::cause(self.id(), FindingLocation::Path)
            .direction(direction.direction)
            .cost(1.0)
            .summary(format!(
                "connections are established, but full segments of {:.0} B never arrive: a link \
                 on the path has a smaller MTU and sends no ICMP message",
                tcp.mss_bytes
            ))
            .evidence("bytes_received", arrived, "B", "receiver");
        with_retransmits(builder, direction.sender, &tcp)
            .evidence(
                "tcpi_total_rto",
                tcp.timeouts,
                "",
                tcp_info_source(direction.sender),
            )
            .evidence(
                "tcpi_snd_mss",
                tcp.mss_bytes,
                "B",
                tcp_info_source(direction.sender),
            )
            .evidence_if(
                match direction.is_ipv6() {
                    true => "InPktTooBigs",
                    false => "InDestUnreachs",
                },
                icmp_unreachable,
                "packets",
                match direction.is_ipv6() {
                    true => format!(
                        "{} /proc/net/snmp6 Icmp6InPktTooBigs and Icmp6InDestUnreachs",
                        direction.sender.as_str()
                    ),
                    false => format!("{} /proc/net/snmp", direction.sender.as_str()),
                },
            )
            .evidence_if(
                "net.ipv4.tcp_mtu_probing",
                probing,
                "",
                format!("{} sysctl", direction.sender.as_str()),
            )
            .remedy(match direction.is_ipv6() {
                true => {
                    "set the same MTU on all links of a segment, let ICMPv6 \"packet too big\" \
                         pass, or enable MTU probing"
                }
                false => {
                    "set the same MTU on all links of a segment, let ICMP \"fragmentation \
                         needed\" pass, or enable MTU probing"
                }
            })
            .command(run.command_at(direction.sender, "sysctl -w net.ipv4.tcp_mtu_probing=1"))
            .tried(
                probing
                    .filter(|&probing| probing > 0)
                    .map(|probing| format!("net.ipv4.tcp_mtu_probing={probing}")),
            )
            .build()
    }

    /// A kernel leaves segmentation to a virtual device that never segments, and our stack's port
    /// drops packets of several segments.
    fn evaluate_unsegmented(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let tcp = direction.tcp()?;
        let sends = direction.sender_interface()?;
        let offload_names = [
            run.family_setting(["tx-tcp-segmentation", "tx-tcp6-segmentation"]),
            "generic-segmentation-offload",
        ];
        let on = offload_names
            .into_iter()
            .find(|name| sends.offloads.get(*name) == Some(&true))?;
        let device = direction
            .host(direction.receiver)?
            .stack
            .as_ref()?
            .device
            .as_str();
        let of_interface = ["packet:", "xdp:"]
            .iter()
            .any(|kind| device.starts_with(kind));
        let is_virtual = sends.driver.as_deref() == Some("veth");
        if !direction.uses_netstack(direction.receiver)
            || !of_interface
            || !is_virtual
            || tcp.retransmit_share() < MIN_RETRANSMIT_SHARE
        {
            return None;
        }
        let builder = FindingBuilder::cause(self.id(), direction.sender)
            .direction(direction.direction)
            .cost(MAX_PARTIAL_COST)
            .summary(format!(
                "{} of the {} sends unsegmented GSO packets, and {device} drops frames above its \
                 MTU: only single retransmitted segments arrive",
                sends.name,
                direction.sender.as_str()
            ))
            .evidence(
                on,
                "on",
                "",
                format!("{} {} ethtool -k", direction.sender.as_str(), sends.name),
            )
            .evidence(
                "retransmitted segments",
                tcp.retransmit_share(),
                "share",
                tcp_info_source(direction.sender),
            );
        with_retransmits(builder, direction.sender, &tcp)
            .remedy(format!(
                "disable segmentation offload at the {}",
                direction.sender.as_str()
            ))
            .command(run.command_at(
                direction.sender,
                &format!("ethtool -K {} tso off gso off", sends.name),
            ))
            .estimated_gain(
                super::rate_headroom(direction).map(|most| most.min(100.0)),
                "earlier tests, not this run: small segments had 100 times the rate on veth",
            )
            .build()
    }

    /// Our stack detected the black hole: it sends shorter segments after several timeouts, and
    /// counts that.
    fn evaluate_netstack(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        let stack = direction
            .host(direction.sender)?
            .stack
            .as_ref()
            .filter(|_| direction.uses_netstack(direction.sender))?;
        let count = |name| stack.counter("tcp", name);
        let (path_mtu_reports, guesses) = (count("path_mtu_reported"), count("path_mtu_guesses"));
        // Without connectivity every segment is lost.
        if guesses == 0 || run.lost_connectivity() {
            return None;
        }
        let flows = direction.streams().len().max(1) as u64;
        let timeout = stack
            .configuration
            .get("tcp.min_rto")
            .and_then(|text| parse_duration(text).ok());
        let waited = timeout
            .map(|timeout| timeout.as_secs_f64() * RTO_BACKOFF_SUM * guesses as f64 / flows as f64);
        let share = waited.map_or(1.0, |waited| waited / direction.seconds().max(1e-9));
        // The first guess may still be too long for IPv4; IPv6 permits nothing smaller.
        let mtu = if guesses > flows && !direction.is_ipv6() {
            "576"
        } else {
            "1280"
        };
        let read = format!("{} stack", direction.sender.as_str());
        FindingBuilder::cause(self.id(), FindingLocation::Path)
            .direction(direction.direction)
            .cost(share.min(MAX_PARTIAL_COST))
            .summary(format!(
                "full segments were retransmitted without success until the user-space stack sent shorter \
                 ones ({}): a link on the path has a smaller MTU and sends no ICMP message",
                match guesses {
                    1 => "once".to_owned(),
                    guesses => format!("{} times", format_count(guesses)),
                }
            ))
            .evidence("path_mtu_guesses", guesses, "times", &*read)
            .evidence("path_mtu_reported", path_mtu_reports, "times", &*read)
            .evidence(
                "retransmitted_segments",
                count("retransmitted_segments"),
                "segments",
                &*read,
            )
            .evidence_if(
                "tcp.min_rto",
                stack.configuration.get("tcp.min_rto").cloned(),
                "",
                &*read,
            )
            .evidence_if("mtu", stack.configuration.get("mtu").cloned(), "B", &*read)
            .remedy(
                "set the same MTU on all links of a segment, or let ICMP \"too big\" pass; until \
                 then limit the user-space stack's MTU",
            )
            .command(run.rerun_with_key(direction.sender, "mtu", mtu))
            .estimated_gain(
                Some(1.0 / (1.0 - share.min(MAX_PARTIAL_COST))),
                "1 / (1 - share of the time waiting for timeouts)",
            )
            .build()
    }

    fn evaluate_udp(&self, run: &RunView<'_>, direction: &DirectionView<'_>) -> Option<Finding> {
        let payload = run.plan.payload_bytes;
        let summary = direction.summary();
        let lost = summary.loss_fraction?;
        // Interfaces that drop all large packets and pass the control connection have a smaller
        // MTU.
        let is_interface_drop = direction.lost_share(LossPoint::InterfaceTx)
            + direction.lost_share(LossPoint::InterfaceRx)
            > MIN_PATH_LOSS;
        let least = if is_interface_drop {
            MIN_MTU_PAYLOAD_BYTES
        } else {
            LARGE_PACKET_BYTES
        };
        if payload < least
            || lost < MIN_TOTAL_LOSS
            || summary.packets_sent.unwrap_or(0) < MIN_DATAGRAMS
        {
            return None;
        }
        // Some datagrams arrived: no black hole.
        if summary.bytes_received.is_some_and(|bytes| bytes > 0) {
            return None;
        }
        // Datagrams lost in a queue of an end were not lost in a black hole.
        if direction.lost_share(LossPoint::Path)
            + direction.lost_share(LossPoint::InterfaceRx)
            + direction.lost_share(LossPoint::InterfaceTx)
            < MIN_PATH_LOSS
        {
            return None;
        }
        FindingBuilder::cause(self.id(), FindingLocation::Path)
            .direction(direction.direction)
            .cost(1.0)
            .summary(format!(
                "none of {} datagrams of {payload} B arrived, while the control connection works",
                format_count(summary.packets_sent.unwrap_or(0))
            ))
            .evidence("loss_fraction", lost, "share", "receiver")
            .evidence("payload_bytes", payload, "B", "plan")
            .evidence(
                "mtu",
                direction.mtu(),
                "B",
                format!("{} interface", direction.sender.as_str()),
            )
            .remedy(
                "find the largest payload that arrives; set the same MTU on all links of a segment",
            )
            .command(run.rerun_command(if payload > 1_200 { "-l 1200" } else { "-l 512" }))
            .build()
    }

    fn evaluate_requests(&self, run: &RunView<'_>) -> Option<Finding> {
        let summary = &run.record.summary;
        let none = run.plan.kind == RunKind::Latency && summary.round_trips.unwrap_or(0) == 0;
        let lost = summary.lost.unwrap_or(0);
        if !none || lost == 0 || run.plan.payload_bytes < LARGE_PACKET_BYTES {
            return None;
        }
        let payload = run.plan.payload_bytes;
        let packet_payload = max_packet_payload(run);
        let in_fragments = run.plan.protocol == TransportProtocol::Udp && payload > packet_payload;
        let client_stack = run.host(Role::Client).and_then(|host| host.stack.as_ref());
        let no_reassembly = client_stack.filter(|stack| {
            let key = stack.configuration.get("ip.reassembly");
            in_fragments && key.is_some_and(|value| value == "off")
        });
        if no_reassembly.is_some() {
            return FindingBuilder::cause(self.id(), Role::Client)
                .cost(1.0)
                .summary(format!(
                    "no response to requests of {payload} B is received: a packet holds {packet_payload} \
                     B, so each response is fragmented, and the client's stack does not \
                     reassemble fragments"
                ))
                .evidence("lost", lost, "round trips", "client")
                .evidence("payload_bytes", payload, "B", "plan")
                .evidence("ip.reassembly", "off", "", "client stack")
                .remedy(
                    "enable reassembly in the client's stack, or send messages that fit into one \
                     packet",
                )
                .command(run.rerun_with_key(Role::Client, "ip.reassembly", "on"))
                .build();
        }
        let control_note = match run.plan.peer_protocol {
            None => ", while the control connection works",
            Some(_) => "",
        };
        let fragment_note = match in_fragments {
            true => format!(
                ": a packet holds {packet_payload} B, so each request is fragmented, and its fragments are \
                 dropped"
            ),
            false => String::new(),
        };
        FindingBuilder::cause(self.id(), FindingLocation::Path)
            .cost(1.0)
            .summary(format!(
                "no request of {payload} B got a response{control_note}{fragment_note}"
            ))
            .evidence("lost", lost, "round trips", "client")
            .evidence("payload_bytes", payload, "B", "plan")
            .remedy(match in_fragments {
                true => {
                    "send messages that fit into one packet, or enable reassembly at the server \
                     (for the user-space stack: --set ip.reassembly=on and ip.fragmentation=on)"
                }
                false => {
                    "find the largest message that arrives; set the same MTU on all links of a \
                     segment"
                }
            })
            .command(run.rerun_command(&match in_fragments {
                true => format!("-l {packet_payload}"),
                false => "-l 1200".to_owned(),
            }))
            .build()
    }
}

/// Returns the largest UDP payload that fits one packet of the client.
fn max_packet_payload(run: &RunView<'_>) -> u64 {
    let host = run.host(Role::Client);
    let stack = host.and_then(|host| host.stack.as_ref());
    let stack_mtu = stack.and_then(|stack| stack.configuration.get("mtu")?.parse().ok());
    let interface = host.and_then(|host| host.interface.as_ref()?.mtu.map(u64::from));
    let headers = run.datagram_headers();
    stack_mtu
        .or(interface)
        .unwrap_or(1500u64)
        .saturating_sub(headers.into())
}
