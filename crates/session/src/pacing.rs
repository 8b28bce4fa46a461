//! Pacing of a sender: user space, socket rate or departure times, the qdisc that these need, and the
//! datagrams of one call.

use std::net::{IpAddr, SocketAddr};

use linerate_host::netlink;
use linerate_record::facts::HostFacts;
use linerate_record::ids::CaveatId;
use linerate_record::pace::{PaceBurst, PacingMethod};
use linerate_record::plan::{Plan, TransportProtocol};
use linerate_record::record::Caveat;
use linerate_stats::size_costs;
use linerate_sys::pacing::{TxtimeClock, TxtimeSender, set_max_rate};
use linerate_transport::FlowOptions;
use linerate_transport::flow_role::FlowRole;

use crate::dial;
use crate::dial::SourceBinding;
use crate::error::SessionError;
use crate::plan_checks::probe_socket;

/// Datagrams per second of a flow above which they are joined: one by one a sender reaches about
/// 200,000, and less with a clock read before each.
const JOIN_ABOVE_PER_SECOND: u64 = 100_000;

/// Bursts per second, unless one call carries less: a burst takes 0.1 ms of the rate, less than the
/// lateness that sleeping threads make up for.
const BURSTS_PER_SECOND: u64 = 10_000;

/// Joins datagrams in bursts of one call, where one datagram a call cannot reach the rate.
/// `max_datagrams`: most datagrams of one call.
pub fn join_datagrams(plan: &mut Plan, max_datagrams: u64) {
    let Some(rate) = plan.rate_bps else { return };
    if plan.pace.method != PacingMethod::User || plan.pace.burst.is_some() {
        return;
    }
    let per_second = rate / (8 * plan.payload_bytes.max(1));
    let datagrams = per_second.div_ceil(BURSTS_PER_SECOND).min(max_datagrams);
    if per_second > JOIN_ABOVE_PER_SECOND && datagrams > 1 {
        plan.pace.burst = Some(PaceBurst::Payloads(datagrams));
    }
}

/// Returns the bytes that a qdisc counts for a datagram: each IP fragment has its own headers.
fn wire_bytes(payload: u64, mtu: u64, ipv6: bool) -> u64 {
    const ETHERNET: u64 = 14;
    const UDP: u64 = 8;
    let packets = size_costs::fragment_count(payload, mtu, ipv6);
    // RFC 8200 section 4.5: over IPv6 a fragment has a header of 8 bytes more.
    let ip_header = match (ipv6, packets) {
        (false, _) => 20,
        (true, 1) => 40,
        (true, _) => 48,
    };
    payload + UDP + packets * (ETHERNET + ip_header)
}

/// Returns the qdiscs of the interface towards the other end; empty where they are unknown.
#[must_use]
pub fn qdiscs(host: &HostFacts) -> Vec<String> {
    let name = host.interface.as_ref().map(|interface| &interface.name);
    let link = name.and_then(|name| netlink::find_link(name).ok());
    link.and_then(|link| netlink::read_qdisc_kinds(link.index).ok())
        .unwrap_or_default()
}

/// Sets the pacing options of a sending flow.
pub fn apply_pacing(
    options: &mut FlowOptions,
    plan: &Plan,
    flow_role: FlowRole,
    qdiscs: &[String],
    remote: IpAddr,
) {
    let Some(rate) = plan.rate_bps.filter(|_| flow_role == FlowRole::Sender) else {
        return;
    };
    let is_udp = plan.protocol == TransportProtocol::Udp;
    match plan.pace.method {
        PacingMethod::User => options.paced = is_udp,
        PacingMethod::Socket => {
            let payload = plan.payload_bytes.max(1);
            // TCP counts payload, a qdisc counts frames.
            let wire_size = match is_udp {
                false => payload,
                true => {
                    let remote = remote.to_canonical();
                    let mtu = dial::path_mtu(SocketAddr::new(remote, 9), &SourceBinding::default());
                    let mtu = mtu.map_or(1_500, u64::from);
                    wire_bytes(payload, mtu, remote.is_ipv6())
                }
            };
            let bytes = u128::from(rate / 8) * u128::from(wire_size) / u128::from(payload);
            options.max_rate = Some(u64::try_from(bytes).unwrap_or(u64::MAX).max(1));
        }
        PacingMethod::Txtime => {
            options.paced = true;
            options.departure_clock = Some(departure_clock(qdiscs));
        }
    }
}

/// Limits a TCP sender of a server to `most_bps`, also after the client stopped reading for a
/// while: the data in the socket buffer would otherwise leave at line rate.
pub fn limit_tcp_rate(options: &mut FlowOptions, plan: &Plan, flow_role: FlowRole, most_bps: u64) {
    if flow_role != FlowRole::Sender || plan.protocol != TransportProtocol::Tcp {
        return;
    }
    let max_rate = (most_bps / 8 / u64::from(plan.streams.max(1))).max(1);
    options.max_rate = Some(options.max_rate.map_or(max_rate, |rate| rate.min(max_rate)));
}

/// Returns the clock of the qdisc's departure times.
fn departure_clock(qdiscs: &[String]) -> TxtimeClock {
    let is_tai = |kind: &String| matches!(kind.as_str(), "etf" | "taprio");
    match qdiscs.iter().any(is_tai) {
        true => TxtimeClock::Tai,
        false => TxtimeClock::Monotonic,
    }
}

/// Rejects pacing that this kernel does not support; returns a warning when no qdisc honours it.
///
/// # Errors
/// [`SessionError::OptionRejected`].
pub fn check_pacing(
    plan: &Plan,
    flow_role: FlowRole,
    host: &HostFacts,
) -> Result<Option<Caveat>, SessionError> {
    if plan.rate_bps.is_none()
        || flow_role != FlowRole::Sender
        || plan.pace.method == PacingMethod::User
    {
        return Ok(None);
    }
    let qdiscs = qdiscs(host);
    let socket = probe_socket(plan.protocol)?;
    let tried = match plan.pace.method {
        PacingMethod::Txtime => TxtimeSender::enable(&socket, departure_clock(&qdiscs)).map(drop),
        _ => set_max_rate(&socket, u64::MAX),
    };
    tried.map_err(|error| SessionError::OptionRejected {
        option: format!("--pacing {}", plan.pace.method),
        why: format!("the kernel rejects it ({error})"),
        next_step: match plan.pace.method {
            PacingMethod::Txtime => {
                "it needs Linux 4.19, and root where the interface has `etf`: use --pacing user"
            }
            _ => "use --pacing user",
        }
        .to_owned(),
    })?;
    Ok(pacing_warning(plan, &qdiscs, host))
}

fn pacing_warning(plan: &Plan, qdiscs: &[String], host: &HostFacts) -> Option<Caveat> {
    let honours = |kind: &String| match plan.pace.method {
        PacingMethod::Txtime => matches!(kind.as_str(), "fq" | "etf" | "taprio"),
        _ => kind == "fq",
    };
    // TCP paces by itself.
    let tcp_paces =
        plan.pace.method == PacingMethod::Socket && plan.protocol == TransportProtocol::Tcp;
    if tcp_paces || qdiscs.iter().any(honours) {
        return None;
    }
    let interface = host.interface.as_ref();
    let name = interface.map_or("the interface", |interface| interface.name.as_str());
    let has = match qdiscs.is_empty() {
        true => "no known qdisc".to_owned(),
        false => format!("`{}`", qdiscs.join("`, `")),
    };
    let command = format!("tc qdisc replace dev {name} root fq");
    Some(Caveat::new(
        CaveatId::PacingNotHonoured,
        match plan.pace.method {
            PacingMethod::Txtime => format!(
                "{name} has {has}: no qdisc delays datagrams until their departure times \
                 (`{command}` would)"
            ),
            _ => format!(
                "{name} has {has}: no qdisc keeps the socket's rate, and UDP leaves at full speed \
                 (`{command}` would keep the rate)"
            ),
        },
    ))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use linerate_record::plan::RunKind;
    use linerate_transport::flow_options::flow_options;

    use super::*;

    #[test]
    fn each_fragment_has_its_headers() {
        for (payload, mtu, ipv6, expected) in [
            (1_000, 1_500, false, 1_042),
            (1_000, 1_500, true, 1_062),
            (5_888, 1_500, false, 5_888 + 8 + 4 * 34),
            (5_888, 1_500, true, 5_888 + 8 + 5 * 62),
            (65_507, 65_535, false, 65_507 + 42),
        ] {
            assert_eq!(
                wire_bytes(payload, mtu, ipv6),
                expected,
                "{payload} {mtu} {ipv6}"
            );
        }
    }

    fn plan(protocol: TransportProtocol, by: PacingMethod) -> Plan {
        let mut plan = Plan::new(RunKind::Throughput, protocol, "host");
        plan.payload_bytes = 1000;
        plan.rate_bps = Some(8_000_000);
        plan.pace.method = by;
        plan
    }

    #[test]
    fn datagrams_of_high_rates_are_joined() {
        const GBPS: u64 = 1_000_000_000;
        for (rate, payload, max_datagrams, burst) in [
            // 84,918 and 169,837 datagrams per second.
            (GBPS, 1_472, 44, None),
            (2 * GBPS, 1_472, 44, Some(17)),
            (10 * GBPS, 1_472, 44, Some(44)),
            // All that one call carries.
            (95 * GBPS, 1_472, 44, Some(44)),
            (GBPS, 64, 128, Some(128)),
            // Loopback and jumbo frames: one datagram is the largest call.
            (95 * GBPS, 65_507, 1, None),
            (20 * GBPS, 8_972, 7, Some(7)),
        ] {
            let mut plan = plan(TransportProtocol::Udp, PacingMethod::User);
            (plan.rate_bps, plan.payload_bytes) = (Some(rate), payload);
            join_datagrams(&mut plan, max_datagrams);
            let context = format!("{rate} bit/s of {payload} B");
            assert_eq!(plan.pace.burst, burst.map(PaceBurst::Payloads), "{context}");
            let burst_ns = plan.pace.burst_bytes(payload) * 8 * GBPS / rate;
            assert!(
                burst.is_none() || burst_ns <= 110_000,
                "{context}: {burst_ns}"
            );
        }
        // Requested bursts, and those of the kernel, stay.
        let mut requested = plan(TransportProtocol::Udp, PacingMethod::User);
        (requested.rate_bps, requested.pace.burst) =
            (Some(95 * GBPS), Some(PaceBurst::Payloads(1)));
        let mut kernel = plan(TransportProtocol::Udp, PacingMethod::Socket);
        kernel.rate_bps = Some(95 * GBPS);
        for mut plan in [requested, kernel] {
            let before = plan.pace.clone();
            join_datagrams(&mut plan, 44);
            assert_eq!(plan.pace, before);
        }
    }

    #[test]
    fn a_missing_qdisc_is_reported() {
        use PacingMethod::{Socket, Txtime};
        use TransportProtocol::{Tcp, Udp};
        for (protocol, by, kinds, honoured) in [
            (Tcp, Socket, &["noqueue"][..], true),
            (Udp, Socket, &["noqueue"], false),
            (Udp, Socket, &["mq", "fq", "fq"], true),
            (Udp, Socket, &["etf"], false),
            (Udp, Txtime, &["pfifo_fast"], false),
            (Udp, Txtime, &["mqprio", "etf"], true),
            (Udp, Txtime, &["fq"], true),
            (Udp, Txtime, &[], false),
        ] {
            let kinds: Vec<_> = kinds.iter().map(|&kind| kind.to_owned()).collect();
            let caveat = pacing_warning(&plan(protocol, by), &kinds, &HostFacts::default());
            assert_eq!(caveat.is_none(), honoured, "{protocol} {by} {kinds:?}");
        }
    }

    #[test]
    fn socket_rates_count_what_the_pacer_counts() {
        let options = |plan: &Plan, flow_role, ipv6| {
            let mut options = flow_options(plan, flow_role);
            let remote: IpAddr = match ipv6 {
                true => Ipv6Addr::LOCALHOST.into(),
                false => Ipv4Addr::LOCALHOST.into(),
            };
            apply_pacing(&mut options, plan, flow_role, &["etf".to_owned()], remote);
            options
        };
        let tcp = plan(TransportProtocol::Tcp, PacingMethod::Socket);
        let udp = plan(TransportProtocol::Udp, PacingMethod::Socket);
        assert_eq!(
            options(&tcp, FlowRole::Sender, false).max_rate,
            Some(1_000_000)
        );
        assert_eq!(
            options(&udp, FlowRole::Sender, false).max_rate,
            Some(1_042_000)
        );
        assert_eq!(
            options(&udp, FlowRole::Sender, true).max_rate,
            Some(1_062_000)
        );
        assert_eq!(options(&udp, FlowRole::Receiver, true).max_rate, None);
        let timed = options(
            &plan(TransportProtocol::Udp, PacingMethod::Txtime),
            FlowRole::Sender,
            false,
        );
        assert_eq!(timed.departure_clock, Some(TxtimeClock::Tai));
    }
}
