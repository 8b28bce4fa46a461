//! Client side of the negotiation: resolves the plan before the proposal, and applies the server's
//! reply.

use std::io;
use std::net::{IpAddr, SocketAddr};

use linerate_dialect::control::Accept;
use linerate_metric::facts::Role;
use linerate_metric::pace::Pacing;
use linerate_metric::plan::{Direction, LARGEST_DATAGRAM_BYTES, Plan, Protocol};
use linerate_metric::record::Doubt;
use linerate_metric::round_trip::Attachment;
use socket2::{Domain, SockAddr, Socket, Type};

use super::checks;
use super::dial::Local;
use super::pace;
use super::setup::{AgreedFlow, flow_options, part};
use crate::error::MeasureError;
use crate::interop::framing::Framing;
use crate::transport::Correspondent;
use crate::worker::Opening;

/// Checks and resolves what the client can decide before its proposal.
pub(crate) fn settle(
    plan: &mut Plan,
    far: SocketAddr,
    local: &Local,
) -> Result<Option<Doubt>, MeasureError> {
    plan.forced_buffers.near = checks::check_socket_options(plan, Role::Client, true)?;
    checks::check_wait(plan, Role::Client)?;
    checks::check_copies(plan, Role::Client)?;
    if let Some(group) = &plan.round_trip.group
        && group.address.is_ipv4() != far.ip().to_canonical().is_ipv4()
    {
        return Err(MeasureError::OptionRefused {
            option: format!("--multicast {group}"),
            why: format!(
                "the group and the server ({}) are of different address families",
                far.ip()
            ),
            next_step: "give the server's address in the group's family, or use -4 or -6"
                .to_owned(),
        });
    }
    match plan.protocol {
        Protocol::Tcp => {
            if let Some(count) = plan.pace.packets_per_second {
                plan.rate_bps = Some(count.saturating_mul(plan.payload_bytes).saturating_mul(8));
            }
            checks::check_congestion_control(plan, Role::Client)?;
            if plan.congestion_control.is_none() && plan.flows(Direction::Send) {
                plan.congestion_control = checks::default_congestion_control();
            }
        }
        Protocol::Udp => {
            let whole = whole_packet_payload(far, local)?;
            if plan.payload_bytes == 0 {
                plan.payload_bytes = whole;
            }
            if let Some(count) = plan.pace.packets_per_second {
                plan.rate_bps = Some(count.saturating_mul(plan.payload_bytes).saturating_mul(8));
            }
            // Paced datagrams leave one by one, or in bursts. A datagram above the MTU is
            // fragmented by IP, not split by GSO.
            let together = match plan.pace.by {
                Pacing::User => plan.rate_bps.is_none() || plan.pace.has_bursts(plan.payload_bytes),
                Pacing::Socket | Pacing::Txtime => plan.rate_bps.is_none(),
            };
            let fits = together && plan.batch.is_none() && plan.payload_bytes <= whole;
            let offload = &mut plan.udp_offload;
            if fits && !offload.asked {
                offload.gso.get_or_insert(true);
                offload.gro.get_or_insert(true);
            }
            if plan.payload_bytes > whole && offload.gso == Some(true) {
                return Err(MeasureError::OptionRefused {
                    option: "--offload gso".to_owned(),
                    why: format!(
                        "a datagram of {} B does not fit one packet on this path",
                        plan.payload_bytes
                    ),
                    next_step: format!("use -l {whole} or less, or leave gso out"),
                });
            }
            offload.gso.get_or_insert(false);
            offload.gro.get_or_insert(false);
        }
    }
    checks::settle_udp_offload(plan, Role::Client)
}

/// Returns the largest UDP payload in bytes that fits one packet on the path to `far`.
fn whole_packet_payload(far: SocketAddr, local: &Local) -> Result<u64, MeasureError> {
    /// IPv4 header without options, and UDP header.
    const V4_HEADERS: u32 = 20 + 8;
    /// IPv6 header without extensions, and UDP header.
    const V6_HEADERS: u32 = 40 + 8;
    let system = |error| MeasureError::system("path MTU", error);
    let socket = Socket::new(Domain::for_address(far), Type::DGRAM, None).map_err(system)?;
    local.bind(&socket)?;
    // Connecting a UDP socket sends nothing.
    (socket.connect(&SockAddr::from(far))).map_err(|error| unconnected(far, error))?;
    let is_v6 = far.is_ipv6();
    let mtu = linerate_host::sys::socket::path_mtu(&socket, is_v6).map_err(system)?;
    let headers = if is_v6 { V6_HEADERS } else { V4_HEADERS };
    Ok(u64::from(mtu.saturating_sub(headers)).clamp(64, LARGEST_DATAGRAM_BYTES))
}

/// Converts a connect error: a missing route gets its own variant.
fn unconnected(far: SocketAddr, error: io::Error) -> MeasureError {
    match error.kind() {
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            MeasureError::NoRoute {
                address: far,
                source: error,
            }
        }
        _ => MeasureError::system("path MTU", error),
    }
}

/// Returns the client's flows in the order in which the server granted them.
pub(super) fn agreed(
    plan: &Plan,
    accept: &Accept,
    near: SocketAddr,
    far: SocketAddr,
    local: &Local,
    disciplines: &[String],
) -> Vec<AgreedFlow> {
    let flow = |(number, grant): (usize, &linerate_dialect::control::FlowGrant)| {
        let part = part(Role::Client, grant.direction);
        let mut options = flow_options(plan, part);
        pace::apply(&mut options, plan, part, disciplines, far.ip());
        options.interface.clone_from(&local.interface);
        let asked = &plan.round_trip;
        if let Some(group) = &asked.group {
            options.correspondent = Correspondent::Group(group.address);
            options.interface = group.interface.clone().or(options.interface);
            // The server replies to the client address of the control connection. Requests must
            // leave from it: without this, the kernel may choose any address of the interface.
            options.local = Some(with_port(near, 0));
        } else if asked.attachment == Attachment::Unconnected {
            options.correspondent = Correspondent::Unconnected;
        }
        options.force_buffers = plan.forced_buffers.near;
        let port = plan
            .source_port
            .map_or(0, |port| port.wrapping_add(number as u16));
        if local.address.is_some() || port != 0 {
            let address = local.address.unwrap_or(if near.is_ipv4() {
                IpAddr::from([0; 4])
            } else {
                IpAddr::from([0; 16])
            });
            options.local = Some(SocketAddr::new(address, port));
        }
        AgreedFlow {
            id: grant.id,
            direction: grant.direction,
            opening: Opening::Connect {
                remote: match grant.port {
                    Some(port) => with_port(far, port),
                    None => far,
                },
                token: grant.token,
            },
            options,
            token: grant.token,
            framing: Framing::Own,
        }
    };
    accept.flows.iter().enumerate().map(flow).collect()
}

/// Replaces the port of an address; host and scope id stay.
fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// Longest name accepted from the server, in bytes.
const NAME_LIMIT: usize = 256;

/// Copies the server's choices into the plan, and rejects any other difference: a server does not
/// decide what the client does.
pub(super) fn take_over(plan: &mut Plan, accept: &Accept) -> Result<(), &'static str> {
    let theirs = &accept.plan;
    let mut expected = plan.clone();
    if expected.congestion_control.is_none() {
        let name = theirs.congestion_control.clone();
        expected.congestion_control = name.filter(|name| name.len() <= NAME_LIMIT);
    }
    for (ours, theirs) in [
        (&mut expected.udp_offload.gso, theirs.udp_offload.gso),
        (&mut expected.udp_offload.gro, theirs.udp_offload.gro),
    ] {
        // The server may lack an offload that was proposed, but not add one.
        if *ours == Some(true) && theirs == Some(false) {
            *ours = theirs;
        }
    }
    // The server alone decides which stack it runs.
    if theirs.stack.far.len() <= NAME_LIMIT {
        expected.stack.far.clone_from(&theirs.stack.far);
    }
    // The server may need a privilege for the requested buffers.
    expected.forced_buffers.far = theirs.forced_buffers.far;
    if expected != *theirs {
        return Err("it replied with another plan");
    }
    if plan
        .wait
        .as_ref()
        .is_some_and(|asked| asked.far != accept.wait)
    {
        return Err("it uses another wait mode than requested");
    }
    let directions =
        (plan.directions.iter()).flat_map(|&direction| (0..plan.streams).map(move |_| direction));
    let wanted = (1u32..).zip(directions);
    let granted = accept.flows.iter().map(|grant| (grant.id, grant.direction));
    if !wanted.eq(granted) {
        return Err("it granted other flows");
    }
    let service = plan.round_trip.needs_service();
    if accept
        .flows
        .iter()
        .any(|flow| flow.port.is_some() != service)
    {
        return Err("it opened other sockets than requested");
    }
    *plan = expected;
    Ok(())
}

#[cfg(test)]
mod tests {
    use linerate_metric::exit;

    use super::*;

    /// Without a control connection, no other call reports the missing route.
    #[test]
    fn a_host_that_no_way_leads_to_is_told_as_over_tcp() {
        let far: SocketAddr = "192.0.2.1:7".parse().unwrap();
        let of = |number| unconnected(far, io::Error::from_raw_os_error(number));
        const ENETUNREACH: i32 = 101;
        const EHOSTUNREACH: i32 = 113;
        const EINVAL: i32 = 22;
        for number in [ENETUNREACH, EHOSTUNREACH] {
            let error = of(number);
            assert!(matches!(error, MeasureError::NoRoute { address, .. } if address == far));
            assert_eq!(error.exit_code(), exit::PEER);
        }
        assert_eq!(of(EINVAL).exit_code(), exit::FAILED);
    }
}
