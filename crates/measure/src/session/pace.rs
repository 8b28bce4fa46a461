//! Kernel pacing: how a sender's rate is kept (user space, socket rate, departure times), and
//! whether the interface's qdisc honours it.

use std::net::{IpAddr, SocketAddr};

use linerate_host::snapshot::netlink;
use linerate_host::sys::pacing::{DepartureClock, DepartureTimes, set_max_rate};
use linerate_metric::facts::Host;
use linerate_metric::pace::Pacing;
use linerate_metric::plan::{Plan, Protocol};
use linerate_metric::record::Doubt;
use linerate_metric::size_costs;
use socket2::{Domain, SockAddr, Socket, Type};

use super::checks::probe_socket;
use crate::error::MeasureError;
use crate::flow::Part;
use crate::transport::FlowOptions;

/// Returns the bytes that a qdisc counts for a datagram: each IP fragment has its own headers.
fn on_the_wire(payload: u64, mtu: u64, ipv6: bool) -> u64 {
    const ETHERNET: u64 = 14;
    const UDP: u64 = 8;
    let packets = size_costs::fragments(payload, mtu, ipv6);
    // RFC 8200 section 4.5: over IPv6 a fragment has a header of 8 bytes more.
    let ip = match (ipv6, packets) {
        (false, _) => 20,
        (true, 1) => 40,
        (true, _) => 48,
    };
    payload + UDP + packets * (ETHERNET + ip)
}

/// Returns the path MTU in bytes, as far as the kernel has it.
fn path_mtu(far: IpAddr) -> Option<u64> {
    let far = SocketAddr::new(far, 9);
    let socket = Socket::new(Domain::for_address(far), Type::DGRAM, None).ok()?;
    // Connecting a UDP socket sends nothing.
    socket.connect(&SockAddr::from(far)).ok()?;
    linerate_host::sys::socket::path_mtu(&socket, far.is_ipv6())
        .ok()
        .map(u64::from)
}

/// Returns the qdiscs of the interface towards the other end; empty where they are unknown.
#[must_use]
pub fn disciplines(host: &Host) -> Vec<String> {
    let name = host.interface.as_ref().map(|interface| &interface.name);
    let link = name.and_then(|name| netlink::link(name).ok());
    link.and_then(|link| netlink::qdisc_kinds(link.index).ok())
        .unwrap_or_default()
}

/// Sets the pacing options of a sending flow.
pub fn apply(
    options: &mut FlowOptions,
    plan: &Plan,
    part: Part,
    disciplines: &[String],
    far: IpAddr,
) {
    let Some(rate) = plan.rate_bps.filter(|_| part == Part::Source) else {
        return;
    };
    let is_udp = plan.protocol == Protocol::Udp;
    match plan.pace.by {
        Pacing::User => options.paced = is_udp,
        Pacing::Socket => {
            let payload = plan.payload_bytes.max(1);
            // TCP counts payload, a qdisc counts frames.
            let whole = match is_udp {
                false => payload,
                true => {
                    let far = far.to_canonical();
                    let mtu = path_mtu(far).unwrap_or(1_500);
                    on_the_wire(payload, mtu, far.is_ipv6())
                }
            };
            let bytes = u128::from(rate / 8) * u128::from(whole) / u128::from(payload);
            options.max_rate = Some(u64::try_from(bytes).unwrap_or(u64::MAX).max(1));
        }
        Pacing::Txtime => {
            options.paced = true;
            options.departure_clock = Some(clock(disciplines));
        }
    }
}

/// Limits a TCP sender of a server to `most_bps`, also after the client stopped reading for a
/// while: the data in the socket buffer would otherwise leave at line rate.
pub fn hold(options: &mut FlowOptions, plan: &Plan, part: Part, most_bps: u64) {
    if part != Part::Source || plan.protocol != Protocol::Tcp {
        return;
    }
    let most = (most_bps / 8 / u64::from(plan.streams.max(1))).max(1);
    options.max_rate = Some(options.max_rate.map_or(most, |rate| rate.min(most)));
}

/// Returns the clock of the qdisc's departure times.
fn clock(disciplines: &[String]) -> DepartureClock {
    let is_tai = |kind: &String| matches!(kind.as_str(), "etf" | "taprio");
    match disciplines.iter().any(is_tai) {
        true => DepartureClock::Tai,
        false => DepartureClock::Monotonic,
    }
}

/// Rejects pacing that this kernel does not support; returns a warning when no qdisc honours it.
///
/// # Errors
/// [`MeasureError::OptionRefused`].
pub fn check(plan: &Plan, part: Part, host: &Host) -> Result<Option<Doubt>, MeasureError> {
    if plan.rate_bps.is_none() || part != Part::Source || plan.pace.by == Pacing::User {
        return Ok(None);
    }
    let disciplines = disciplines(host);
    let socket = probe_socket(plan.protocol)?;
    let tried = match plan.pace.by {
        Pacing::Txtime => DepartureTimes::enable(&socket, clock(&disciplines)).map(drop),
        _ => set_max_rate(&socket, u64::MAX),
    };
    tried.map_err(|error| MeasureError::OptionRefused {
        option: format!("--pacing {}", plan.pace.by),
        why: format!("the kernel rejects it ({error})"),
        next_step: match plan.pace.by {
            Pacing::Txtime => {
                "it needs Linux 4.19, and root where the interface has `etf`: use --pacing user"
            }
            _ => "use --pacing user",
        }
        .to_owned(),
    })?;
    Ok(unhonoured(plan, &disciplines, host))
}

fn unhonoured(plan: &Plan, disciplines: &[String], host: &Host) -> Option<Doubt> {
    let honours = |kind: &String| match plan.pace.by {
        Pacing::Txtime => matches!(kind.as_str(), "fq" | "etf" | "taprio"),
        _ => kind == "fq",
    };
    // TCP paces by itself.
    let by_itself = plan.pace.by == Pacing::Socket && plan.protocol == Protocol::Tcp;
    if by_itself || disciplines.iter().any(honours) {
        return None;
    }
    let interface = host.interface.as_ref();
    let name = interface.map_or("the interface", |interface| interface.name.as_str());
    let has = match disciplines.is_empty() {
        true => "no known qdisc".to_owned(),
        false => format!("`{}`", disciplines.join("`, `")),
    };
    let command = format!("tc qdisc replace dev {name} root fq");
    Some(Doubt::new(
        "pacing-not-honoured",
        match plan.pace.by {
            Pacing::Txtime => format!(
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
    use super::*;
    use crate::session::setup::flow_options;
    use linerate_metric::plan::Kind;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn each_fragment_has_its_headers() {
        for (payload, mtu, ipv6, whole) in [
            (1_000, 1_500, false, 1_042),
            (1_000, 1_500, true, 1_062),
            (5_888, 1_500, false, 5_888 + 8 + 4 * 34),
            (5_888, 1_500, true, 5_888 + 8 + 5 * 62),
            (65_507, 65_535, false, 65_507 + 42),
        ] {
            assert_eq!(
                on_the_wire(payload, mtu, ipv6),
                whole,
                "{payload} {mtu} {ipv6}"
            );
        }
    }

    fn plan(protocol: Protocol, by: Pacing) -> Plan {
        let mut plan = Plan::new(Kind::Throughput, protocol, "host");
        plan.payload_bytes = 1000;
        plan.rate_bps = Some(8_000_000);
        plan.pace.by = by;
        plan
    }

    #[test]
    fn it_is_said_when_nothing_honours_it() {
        use Pacing::{Socket, Txtime};
        use Protocol::{Tcp, Udp};
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
            let doubt = unhonoured(&plan(protocol, by), &kinds, &Host::default());
            assert_eq!(doubt.is_none(), honoured, "{protocol} {by} {kinds:?}");
        }
    }

    #[test]
    fn sockets_are_told_in_the_units_of_whoever_keeps_the_rate() {
        let options = |plan: &Plan, part, ipv6| {
            let mut options = flow_options(plan, part);
            let far: IpAddr = match ipv6 {
                true => Ipv6Addr::LOCALHOST.into(),
                false => Ipv4Addr::LOCALHOST.into(),
            };
            apply(&mut options, plan, part, &["etf".to_owned()], far);
            options
        };
        let tcp = plan(Protocol::Tcp, Pacing::Socket);
        let udp = plan(Protocol::Udp, Pacing::Socket);
        assert_eq!(options(&tcp, Part::Source, false).max_rate, Some(1_000_000));
        assert_eq!(options(&udp, Part::Source, false).max_rate, Some(1_042_000));
        assert_eq!(options(&udp, Part::Source, true).max_rate, Some(1_062_000));
        assert_eq!(options(&udp, Part::Sink, true).max_rate, None);
        let timed = options(&plan(Protocol::Udp, Pacing::Txtime), Part::Source, false);
        assert_eq!(timed.departure_clock, Some(DepartureClock::Tai));
    }
}
