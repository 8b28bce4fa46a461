//! Large packets are lost on the path without an ICMP message.

use linerate_metric::facts::Role;
use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::units::{format_count, parse_duration};

use super::{of_ways, sent_again, tcp_info};
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// Packet size up to which nearly every path works (RFC 8200 section 5: 1280).
const LARGE: u64 = 1_100;

/// Payload up to which every path works (RFC 791: 576 bytes, headers included).
const LEAST: u64 = 540;

/// Share of retransmitted segments from which unsegmented packets are lost.
const UNCUT: f64 = 0.01;

/// Payload that passes a black hole: a few small segments.
const NOTHING: u64 = 64 << 10;

/// Sum of the timeouts before our stack sends a shorter segment, in units of the first one: five,
/// each twice as long as the one before (RFC 6298).
const IN_VAIN: f64 = 1.0 + 2.0 + 4.0 + 8.0 + 16.0;

/// See docs/CAUSES.md#mtu-black-hole.
pub struct MtuBlackHole;

impl Rule for MtuBlackHole {
    fn id(&self) -> &'static str {
        "mtu-black-hole"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        let of_tcp = |way: &Way<'_>| {
            let found = self
                .of_uncut(case, way)
                .or_else(|| self.of_own_stack(case, way));
            found.or_else(|| self.of_tcp(case, way))
        };
        let mut found = of_ways(case, of_tcp, |way| self.of_udp(case, way));
        found.extend(self.of_questions(case));
        found
    }
}

impl MtuBlackHole {
    fn of_tcp(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let tcp = way.tcp()?;
        // The server did not report its received bytes.
        let arrived = way.summary().bytes_received?;
        if tcp.mss < LARGE as f64 || tcp.retransmits + tcp.timeouts == 0 {
            return None;
        }
        // Nothing arrives through a black hole: with MTU probing, or ICMP messages, segments become
        // smaller.
        if arrived > NOTHING || way.summary().bytes_sent.is_some_and(|sent| sent <= arrived) {
            return None;
        }
        // The little payload that arrived was retransmitted many times.
        if arrived > tcp.mss as u64 && tcp.retransmits as f64 * tcp.mss < arrived as f64 / 2.0 {
            return None;
        }
        let probing = case.sysctl(way.sender, "net.ipv4.tcp_mtu_probing");
        let told = case.added("icmp_unreachable_received", |host, _| {
            host == name(way.sender)
        });
        let draft = Draft::cause(self.id(), End::Path)
            .way(way.direction)
            .cost(1.0)
            .says(format!(
                "connections are established, but full segments of {:.0} B never arrive: a link \
                 on the path has a smaller MTU and sends no ICMP message",
                tcp.mss
            ))
            .seen("bytes_received", arrived, "B", "receiver");
        sent_again(draft, way.sender, &tcp)
            .seen("tcpi_total_rto", tcp.timeouts, "", tcp_info(way.sender))
            .seen("tcpi_snd_mss", tcp.mss, "B", tcp_info(way.sender))
            .seen_if(
                "InDestUnreachs",
                told,
                "packets",
                format!("{} /proc/net/snmp", name(way.sender)),
            )
            .seen_if(
                "net.ipv4.tcp_mtu_probing",
                probing,
                "",
                format!("{} sysctl", name(way.sender)),
            )
            .remedy(
                "set the same MTU on all links of a segment, let ICMP \"fragmentation needed\" \
                 pass, or enable MTU probing",
            )
            .command(case.at(way.sender, "sysctl -w net.ipv4.tcp_mtu_probing=1"))
            .tried(
                probing
                    .filter(|&probing| probing > 0)
                    .map(|probing| format!("net.ipv4.tcp_mtu_probing={probing}")),
            )
            .found()
    }

    /// A kernel leaves segmentation to a virtual device that never segments, and our stack's port
    /// drops packets of several segments.
    fn of_uncut(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let tcp = way.tcp()?;
        let sends = way.sends_by()?;
        let cuts = ["tx-tcp-segmentation", "generic-segmentation-offload"];
        let on = cuts
            .into_iter()
            .find(|name| sends.offloads.get(*name) == Some(&true))?;
        let device = way.host(way.receiver)?.stack.as_ref()?.device.as_str();
        let of_interface = ["packet:", "xdp:"]
            .iter()
            .any(|kind| device.starts_with(kind));
        let is_virtual = sends.driver.as_deref() == Some("veth");
        if !way.is_own_stack(way.receiver) || !of_interface || !is_virtual || tcp.repeated() < UNCUT
        {
            return None;
        }
        let draft = Draft::cause(self.id(), way.sender)
            .way(way.direction)
            .cost(0.95)
            .says(format!(
                "{} of the {} sends unsegmented GSO packets, and {device} drops frames above its \
                 MTU: only single retransmitted segments arrive",
                sends.name,
                name(way.sender)
            ))
            .seen(
                on,
                "on",
                "",
                format!("{} {} ethtool -k", name(way.sender), sends.name),
            )
            .seen(
                "retransmitted segments",
                tcp.repeated(),
                "share",
                tcp_info(way.sender),
            );
        sent_again(draft, way.sender, &tcp)
            .remedy(format!(
                "disable segmentation offload at the {}",
                name(way.sender)
            ))
            .command(case.at(
                way.sender,
                &format!("ethtool -K {} tso off gso off", sends.name),
            ))
            .gain(
                super::headroom(way).map(|most| most.min(100.0)),
                "rate with small segments over the current rate: 100 on veth",
            )
            .found()
    }

    /// Our stack detected the black hole: it sends shorter segments after several timeouts, and
    /// counts that.
    fn of_own_stack(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let stack = way
            .host(way.sender)?
            .stack
            .as_ref()
            .filter(|_| way.is_own_stack(way.sender))?;
        let count = |name| stack.counter("tcp", name);
        let (told, guesses) = (count("path_mtu_told"), count("path_mtu_guesses"));
        // Without connectivity every segment is lost.
        if guesses == 0 || case.was_cut_off() {
            return None;
        }
        let flows = way.streams().len().max(1) as u64;
        let timeout = stack
            .configuration
            .get("tcp.min_rto")
            .and_then(|text| parse_duration(text).ok());
        let waited =
            timeout.map(|timeout| timeout.as_secs_f64() * IN_VAIN * guesses as f64 / flows as f64);
        let share = waited.map_or(1.0, |waited| waited / way.seconds().max(1e-9));
        // The first guess may still be too long for IPv4; IPv6 permits nothing smaller.
        let mtu = if guesses > flows && !way.is_ipv6() {
            "576"
        } else {
            "1280"
        };
        let read = format!("{} stack", name(way.sender));
        Draft::cause(self.id(), End::Path)
            .way(way.direction)
            .cost(share.min(0.95))
            .says(format!(
                "full segments were retransmitted without success until our stack sent shorter \
                 ones ({}): a link on the path has a smaller MTU and sends no ICMP message",
                match guesses {
                    1 => "once".to_owned(),
                    guesses => format!("{} times", format_count(guesses)),
                }
            ))
            .seen("path_mtu_guesses", guesses, "times", &*read)
            .seen("path_mtu_told", told, "times", &*read)
            .seen(
                "retransmitted_segments",
                count("retransmitted_segments"),
                "segments",
                &*read,
            )
            .seen_if(
                "tcp.min_rto",
                stack.configuration.get("tcp.min_rto").cloned(),
                "",
                &*read,
            )
            .seen_if("mtu", stack.configuration.get("mtu").cloned(), "B", &*read)
            .remedy(
                "set the same MTU on all links of a segment, or let ICMP \"too big\" pass; until \
                 then limit our stack's MTU",
            )
            .command(case.again_with_key(way.sender, "mtu", mtu))
            .gain(
                Some(1.0 / (1.0 - share.min(0.95))),
                "1 / (1 - share of the time waiting for timeouts)",
            )
            .found()
    }

    fn of_udp(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let payload = case.plan.payload_bytes;
        let summary = way.summary();
        let lost = summary.loss_fraction?;
        // Interfaces that drop all large packets and pass the control connection have a smaller
        // MTU.
        let refused = way.lost_share("interface-tx") + way.lost_share("interface-rx") > 0.9;
        let least = if refused { LEAST } else { LARGE };
        if payload < least || lost < 0.99 || summary.packets_sent.unwrap_or(0) < 10 {
            return None;
        }
        // Some datagrams arrived: no black hole.
        if summary.bytes_received.is_some_and(|bytes| bytes > 0) {
            return None;
        }
        // Datagrams lost in a queue of an end were not lost in a black hole.
        if way.lost_share("path") + way.lost_share("interface-rx") + way.lost_share("interface-tx")
            < 0.9
        {
            return None;
        }
        Draft::cause(self.id(), End::Path)
            .way(way.direction)
            .cost(1.0)
            .says(format!(
                "none of {} datagrams of {payload} B arrived, while the control connection works",
                format_count(summary.packets_sent.unwrap_or(0))
            ))
            .seen("loss_fraction", lost, "share", "receiver")
            .seen("payload_bytes", payload, "B", "plan")
            .seen(
                "mtu",
                way.mtu(),
                "B",
                format!("{} interface", name(way.sender)),
            )
            .remedy(
                "find the largest payload that arrives; set the same MTU on all links of a segment",
            )
            .command(case.again(if payload > 1_200 { "-l 1200" } else { "-l 512" }))
            .found()
    }

    fn of_questions(&self, case: &Case<'_>) -> Option<Finding> {
        let summary = &case.record.summary;
        let none = case.plan.kind == Kind::Latency && summary.round_trips.unwrap_or(0) == 0;
        let lost = summary.lost.unwrap_or(0);
        if !none || lost == 0 || case.plan.payload_bytes < LARGE {
            return None;
        }
        let payload = case.plan.payload_bytes;
        let holds = packet_holds(case);
        let in_fragments = case.plan.protocol == Protocol::Udp && payload > holds;
        let own = case.host(Role::Client).and_then(|host| host.stack.as_ref());
        let puts_none = own.filter(|stack| {
            let key = stack.configuration.get("ip.reassembly");
            in_fragments && key.is_some_and(|value| value == "off")
        });
        if puts_none.is_some() {
            return Draft::cause(self.id(), Role::Client)
                .cost(1.0)
                .says(format!(
                    "no response to requests of {payload} B is received: a packet holds {holds} \
                     B, so each response is fragmented, and the client's stack does not \
                     reassemble fragments"
                ))
                .seen("lost", lost, "round trips", "client")
                .seen("payload_bytes", payload, "B", "plan")
                .seen("ip.reassembly", "off", "", "client stack")
                .remedy(
                    "enable reassembly in the client's stack, or send messages that fit into one \
                     packet",
                )
                .command(case.again_with_key(Role::Client, "ip.reassembly", "on"))
                .found();
        }
        let lives = match case.plan.dialect {
            None => ", while the control connection works",
            Some(_) => "",
        };
        let pieces = match in_fragments {
            true => format!(
                ": a packet holds {holds} B, so each request is fragmented, and its fragments are \
                 dropped"
            ),
            false => String::new(),
        };
        Draft::cause(self.id(), End::Path)
            .cost(1.0)
            .says(format!(
                "no request of {payload} B got a response{lives}{pieces}"
            ))
            .seen("lost", lost, "round trips", "client")
            .seen("payload_bytes", payload, "B", "plan")
            .remedy(match in_fragments {
                true => {
                    "send messages that fit into one packet, or enable reassembly at the server \
                     (for our stack: --set ip.reassembly=on and ip.fragmentation=on)"
                }
                false => {
                    "find the largest message that arrives; set the same MTU on all links of a \
                     segment"
                }
            })
            .command(case.again(&match in_fragments {
                true => format!("-l {holds}"),
                false => "-l 1200".to_owned(),
            }))
            .found()
    }
}

/// Returns the largest UDP payload that fits one packet of the client.
fn packet_holds(case: &Case<'_>) -> u64 {
    let host = case.host(Role::Client);
    let stack = host.and_then(|host| host.stack.as_ref());
    let own = stack.and_then(|stack| stack.configuration.get("mtu")?.parse().ok());
    let interface = host.and_then(|host| host.interface.as_ref()?.mtu.map(u64::from));
    let headers = case.datagram_headers();
    own.or(interface)
        .unwrap_or(1500u64)
        .saturating_sub(headers.into())
}
