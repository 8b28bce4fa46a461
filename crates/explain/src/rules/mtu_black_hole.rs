//! Large packets vanish on the way, and nobody says so.

use linerate_metric::facts::Role;
use linerate_metric::finding::{End, Finding};
use linerate_metric::plan::{Kind, Protocol};
use linerate_metric::units::{format_count, parse_duration};

use super::{of_ways, sent_again, tcp_info};
use crate::Rule;
use crate::case::{Case, Way, name};
use crate::draft::Draft;

/// Smaller packets cross nearly every path (RFC 8200 section 5: 1280).
const LARGE: u64 = 1_100;

/// Smaller packets cross every path (RFC 791: 576 bytes, headers counted).
const LEAST: u64 = 540;

/// Share of the segments sent again from which those left together vanish.
const UNCUT: f64 = 0.01;

/// Payload that arrives through a hole: what a few small segments hold.
const NOTHING: u64 = 64 << 10;

/// Time-outs, as multiples of the shortest one, until our own stack sends a segment shorter: five, each twice as long as
/// the one before (RFC 6298).
const IN_VAIN: f64 = 1.0 + 2.0 + 4.0 + 8.0 + 16.0;

/// See docs/CAUSES.md#mtu-black-hole.
pub struct MtuBlackHole;

impl Rule for MtuBlackHole {
    fn id(&self) -> &'static str {
        "mtu-black-hole"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        let of_tcp = |way: &Way<'_>| {
            let found = self.of_uncut(case, way).or_else(|| self.of_own_stack(case, way));
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
        // Of a far end that does not tell, nothing is known.
        let arrived = way.summary().bytes_received?;
        if tcp.mss < LARGE as f64 || tcp.retransmits + tcp.timeouts == 0 {
            return None;
        }
        // All or nothing: with probing of the path's MTU, or a path that tells, segments get smaller.
        if arrived > NOTHING || way.summary().bytes_sent.is_some_and(|sent| sent <= arrived) {
            return None;
        }
        // What little arrived was sent again and again.
        if arrived > tcp.mss as u64 && tcp.retransmits as f64 * tcp.mss < arrived as f64 / 2.0 {
            return None;
        }
        let probing = case.sysctl(way.sender, "net.ipv4.tcp_mtu_probing");
        let told = case.added("icmp_unreachable_received", |host, _| host == name(way.sender));
        let draft = Draft::cause(self.id(), End::Path)
            .way(way.direction)
            .cost(1.0)
            .says(format!(
                "connections open and full segments of {:.0} B never arrive: somebody on the way has a smaller MTU and does not say so",
                tcp.mss
            ))
            .seen("bytes_received", arrived, "B", "receiver");
        sent_again(draft, way.sender, &tcp)
            .seen("tcpi_total_rto", tcp.timeouts, "", tcp_info(way.sender))
            .seen("tcpi_snd_mss", tcp.mss, "B", tcp_info(way.sender))
            .seen_if("InDestUnreachs", told, "packets", format!("{} /proc/net/snmp", name(way.sender)))
            .seen_if("net.ipv4.tcp_mtu_probing", probing, "", format!("{} sysctl", name(way.sender)))
            .remedy("give all links of a segment one MTU, let ICMP \"fragmentation needed\" through, or let TCP probe")
            .command(case.at(way.sender, "sysctl -w net.ipv4.tcp_mtu_probing=1"))
            .tried(probing.filter(|&probing| probing > 0).map(|probing| format!("net.ipv4.tcp_mtu_probing={probing}")))
            .found()
    }

    /// A kernel leaves cutting to a virtual device that never does it, and our stack's port is offered packets
    /// of many segments, which it takes none of.
    fn of_uncut(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let tcp = way.tcp()?;
        let sends = way.sends_by()?;
        let cuts = ["tx-tcp-segmentation", "generic-segmentation-offload"];
        let on = cuts.into_iter().find(|name| sends.offloads.get(*name) == Some(&true))?;
        let device = way.host(way.receiver)?.stack.as_ref()?.device.as_str();
        let of_interface = ["packet:", "xdp:"].iter().any(|kind| device.starts_with(kind));
        let is_virtual = sends.driver.as_deref() == Some("veth");
        if !way.is_own_stack(way.receiver) || !of_interface || !is_virtual || tcp.repeated() < UNCUT {
            return None;
        }
        let draft = Draft::cause(self.id(), way.sender)
            .way(way.direction)
            .cost(0.95)
            .says(format!(
                "{} of the {} leaves segments together that a device would cut, and {device} takes no frame above its MTU: they vanish, and only what is sent again one by one arrives",
                sends.name,
                name(way.sender)
            ))
            .seen(on, "on", "", format!("{} {} ethtool -k", name(way.sender), sends.name))
            .seen("segments sent again", tcp.repeated(), "share", tcp_info(way.sender));
        sent_again(draft, way.sender, &tcp)
            .remedy(format!("let the {} cut segments itself", name(way.sender)))
            .command(case.at(way.sender, &format!("ethtool -K {} tso off gso off", sends.name)))
            .gain(super::headroom(way).map(|most| most.min(100.0)), "what small segments give over what arrives now: 100 on veth")
            .found()
    }

    /// Our own stack has found the hole: it sends shorter segments once several time-outs were in vain, and counts that.
    fn of_own_stack(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let stack = way.host(way.sender)?.stack.as_ref().filter(|_| way.is_own_stack(way.sender))?;
        let count = |name| stack.counter("tcp", name);
        let (told, guesses) = (count("path_mtu_told"), count("path_mtu_guesses"));
        // Where there was no way at all every segment is in vain.
        if guesses == 0 || case.was_cut_off() {
            return None;
        }
        let flows = way.streams().len().max(1) as u64;
        let timeout = stack.configuration.get("tcp.min_rto").and_then(|text| parse_duration(text).ok());
        let waited = timeout.map(|timeout| timeout.as_secs_f64() * IN_VAIN * guesses as f64 / flows as f64);
        let share = waited.map_or(1.0, |waited| waited / way.seconds().max(1e-9));
        // What the first guess leaves of IPv4 may still be too long, and of IPv6 nothing smaller may be asked for.
        let mtu = if guesses > flows && !way.is_ipv6() { "576" } else { "1280" };
        let read = format!("{} stack", name(way.sender));
        Draft::cause(self.id(), End::Path)
            .way(way.direction)
            .cost(share.min(0.95))
            .says(format!(
                "full segments were sent again and again in vain until our stack sent shorter ones ({}): somebody on the way has a smaller MTU and does not say so",
                match guesses {
                    1 => "once".to_owned(),
                    guesses => format!("{} times", format_count(guesses)),
                }
            ))
            .seen("path_mtu_guesses", guesses, "times", &*read)
            .seen("path_mtu_told", told, "times", &*read)
            .seen("retransmitted_segments", count("retransmitted_segments"), "segments", &*read)
            .seen_if("tcp.min_rto", stack.configuration.get("tcp.min_rto").cloned(), "", &*read)
            .seen_if("mtu", stack.configuration.get("mtu").cloned(), "B", &*read)
            .remedy("give all links of a segment one MTU, or let ICMP \"too big\" through; until then have our stack send no longer packets")
            .command(case.again_with_key(way.sender, "mtu", mtu))
            .gain(Some(1.0 / (1.0 - share.min(0.95))), "1 / (1 - share of the time waiting for time-outs)")
            .found()
    }

    fn of_udp(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        let payload = case.plan.payload_bytes;
        let summary = way.summary();
        let lost = summary.loss_fraction?;
        // Interfaces that count all of them as dropped, and let the control connection pass, have an MTU.
        let refused = way.lost_share("interface-tx") + way.lost_share("interface-rx") > 0.9;
        let least = if refused { LEAST } else { LARGE };
        if payload < least || lost < 0.99 || summary.packets_sent.unwrap_or(0) < 10 {
            return None;
        }
        // A few arrived: it is no wall.
        if summary.bytes_received.is_some_and(|bytes| bytes > 0) {
            return None;
        }
        // Lost at a place of the ends' own it is no hole on the way.
        if way.lost_share("path") + way.lost_share("interface-rx") + way.lost_share("interface-tx") < 0.9 {
            return None;
        }
        Draft::cause(self.id(), End::Path)
            .way(way.direction)
            .cost(1.0)
            .says(format!(
                "none of {} datagrams of {payload} B arrived, while the control connection lives",
                format_count(summary.packets_sent.unwrap_or(0))
            ))
            .seen("loss_fraction", lost, "share", "receiver")
            .seen("payload_bytes", payload, "B", "plan")
            .seen("mtu", way.mtu(), "B", format!("{} interface", name(way.sender)))
            .remedy("find the largest payload that arrives; give all links of a segment one MTU")
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
                    "no answer to questions of {payload} B is taken: a packet holds {holds} B, so each comes in fragments, and the client's stack puts none together"
                ))
                .seen("lost", lost, "round trips", "client")
                .seen("payload_bytes", payload, "B", "plan")
                .seen("ip.reassembly", "off", "", "client stack")
                .remedy("have the client's stack put fragments together, or send what a packet holds")
                .command(case.again_with_key(Role::Client, "ip.reassembly", "on"))
                .found();
        }
        let lives = match case.plan.dialect {
            None => ", while the control connection lives",
            Some(_) => "",
        };
        let pieces = match in_fragments {
            true => format!(": a packet holds {holds} B, so each goes in fragments, which something drops"),
            false => String::new(),
        };
        Draft::cause(self.id(), End::Path)
            .cost(1.0)
            .says(format!("no question of {payload} B was answered{lives}{pieces}"))
            .seen("lost", lost, "round trips", "client")
            .seen("payload_bytes", payload, "B", "plan")
            .remedy(match in_fragments {
                true => "send what a packet holds, or have the far end put fragments together (of our own stack: --set ip.reassembly=on and ip.fragmentation=on)",
                false => "find the largest message that arrives; give all links of a segment one MTU",
            })
            .command(case.again(&match in_fragments {
                true => format!("-l {holds}"),
                false => "-l 1200".to_owned(),
            }))
            .found()
    }
}

/// Payload of a datagram that one packet of the client holds.
fn packet_holds(case: &Case<'_>) -> u64 {
    let host = case.host(Role::Client);
    let stack = host.and_then(|host| host.stack.as_ref());
    let own = stack.and_then(|stack| stack.configuration.get("mtu")?.parse().ok());
    let interface = host.and_then(|host| host.interface.as_ref()?.mtu.map(u64::from));
    let headers = case.datagram_headers();
    own.or(interface).unwrap_or(1500u64).saturating_sub(headers.into())
}
