//! Client side of the negotiation: resolves the plan before the proposal, and applies the server's
//! reply.

use std::net::{IpAddr, SocketAddr};

use linerate_protocol::control::Accept;
use linerate_record::facts::Role;
use linerate_record::pace::PacingMethod;
use linerate_record::plan::{Direction, MAX_DATAGRAM_BYTES, Plan, TransportProtocol};
use linerate_record::record::Caveat;
use linerate_record::round_trip::SocketMode;
use linerate_transport::PeerAddressing;
use linerate_transport::flow_options::flow_options;
use linerate_workload::framing::Framing;
use linerate_workload::worker::FlowOpening;

use crate::dial::{SourceBinding, with_port};
use crate::error::SessionError;
use crate::flow_handle::flow_role;
use crate::loss::datagrams_per_packet;
use crate::setup::AgreedFlow;
use crate::{dial, pacing, plan_checks};

/// Checks and resolves what the client can decide before its proposal.
pub fn resolve_plan(
    plan: &mut Plan,
    server: SocketAddr,
    local: &SourceBinding,
) -> Result<Option<Caveat>, SessionError> {
    plan_checks::check_socket_options(plan, Role::Client)?;
    plan.forced_buffers.client = plan_checks::check_buffers(plan, Role::Client, true)?;
    plan_checks::check_wait(plan, Role::Client)?;
    plan_checks::check_copy_mode(plan, Role::Client)?;
    if let Some(group) = &plan.round_trip.group
        && group.address.is_ipv4() != server.ip().to_canonical().is_ipv4()
    {
        return Err(SessionError::OptionRejected {
            option: format!("--multicast {group}"),
            why: format!(
                "the group and the server ({}) are of different address families",
                server.ip()
            ),
            next_step: "give the server's address in the group's family, or use -4 or -6"
                .to_owned(),
        });
    }
    match plan.protocol {
        TransportProtocol::Tcp => {
            if let Some(count) = plan.pace.packets_per_second {
                plan.rate_bps = Some(count.saturating_mul(plan.payload_bytes).saturating_mul(8));
            }
            plan_checks::check_congestion_control(plan, Role::Client)?;
            if plan.congestion_control.is_none() && plan.has_direction(Direction::Send) {
                plan.congestion_control = plan_checks::default_congestion_control();
            }
        }
        TransportProtocol::Udp => {
            let max_payload = max_packet_payload(server, local)?;
            if plan.payload_bytes == 0 {
                plan.payload_bytes = max_payload;
            }
            if let Some(count) = plan.pace.packets_per_second {
                plan.rate_bps = Some(count.saturating_mul(plan.payload_bytes).saturating_mul(8));
            }
            if let Some(datagrams) = max_datagrams_per_call(plan, max_payload) {
                pacing::join_datagrams(plan, datagrams);
            }
            // Paced datagrams leave one by one, or in bursts. A datagram above the MTU is
            // fragmented by IP, not split by GSO.
            let may_coalesce = match plan.pace.method {
                PacingMethod::User => {
                    plan.rate_bps.is_none() || plan.pace.has_bursts(plan.payload_bytes)
                }
                PacingMethod::Socket | PacingMethod::Txtime => plan.rate_bps.is_none(),
            };
            let fits = may_coalesce && plan.batch.is_none() && plan.payload_bytes <= max_payload;
            let offload = &mut plan.udp_offload;
            if fits && !offload.requested {
                offload.gso.get_or_insert(true);
                offload.gro.get_or_insert(true);
            }
            if plan.payload_bytes > max_payload && offload.gso == Some(true) {
                return Err(SessionError::OptionRejected {
                    option: "--offload gso".to_owned(),
                    why: format!(
                        "a datagram of {} B does not fit one packet on this path",
                        plan.payload_bytes
                    ),
                    next_step: format!("use -l {max_payload} or less, or leave gso out"),
                });
            }
            offload.gso.get_or_insert(false);
            offload.gro.get_or_insert(false);
        }
    }
    plan_checks::resolve_udp_offload(plan, Role::Client)
}

/// Returns the most datagrams of one send call; `None` where each needs a call of its own, and where
/// only the server of another tool sends.
fn max_datagrams_per_call(plan: &Plan, max_payload: u64) -> Option<u64> {
    if plan.peer_protocol.is_some() && !plan.has_direction(Direction::Send) {
        return None;
    }
    let offload = &plan.udp_offload;
    let may_split = !offload.requested || offload.gso == Some(true);
    let fits = may_split && plan.batch.is_none() && plan.payload_bytes <= max_payload;
    fits.then(|| datagrams_per_packet(plan.payload_bytes))
}

/// Returns the largest UDP payload in bytes that fits one packet on the path to `server`.
pub(super) fn max_packet_payload(
    server: SocketAddr,
    local: &SourceBinding,
) -> Result<u64, SessionError> {
    let mtu = u64::from(dial::path_mtu(server, local)?);
    let payload = mtu.saturating_sub(dial::udp_headers_bytes(server.is_ipv6()));
    Ok(payload.clamp(64, MAX_DATAGRAM_BYTES))
}

/// Returns the client's flows in the order in which the server granted them.
pub(super) fn granted_flows(
    plan: &Plan,
    accept: &Accept,
    client: SocketAddr,
    server: SocketAddr,
    local: &SourceBinding,
    disciplines: &[String],
) -> Vec<AgreedFlow> {
    let flow = |(number, grant): (usize, &linerate_protocol::control::FlowGrant)| {
        let flow_role = flow_role(Role::Client, grant.direction);
        let mut options = flow_options(plan, flow_role);
        pacing::apply_pacing(&mut options, plan, flow_role, disciplines, server.ip());
        options.interface.clone_from(&local.interface);
        let round_trip = &plan.round_trip;
        if let Some(group) = &round_trip.group {
            options.addressing = PeerAddressing::Multicast(group.address);
            options.interface = group.interface.clone().or(options.interface);
            // The server replies to the client address of the control connection. Requests must
            // leave from it: without this, the kernel may choose any address of the interface.
            options.local = Some(with_port(client, 0));
        } else if round_trip.socket_mode == SocketMode::Unconnected {
            options.addressing = PeerAddressing::Unconnected;
        }
        options.force_buffers = plan.forced_buffers.client;
        let port = plan
            .source_port
            .map_or(0, |port| port.wrapping_add(number as u16));
        if local.address.is_some() || port != 0 {
            let address = local.address.unwrap_or(if client.is_ipv4() {
                IpAddr::from([0; 4])
            } else {
                IpAddr::from([0; 16])
            });
            options.local = Some(SocketAddr::new(address, port));
        }
        AgreedFlow {
            id: grant.id,
            direction: grant.direction,
            opening: FlowOpening::Connect {
                remote: match grant.port {
                    Some(port) => with_port(server, port),
                    None => server,
                },
                token: grant.token,
            },
            options,
            token: grant.token,
            framing: Framing::Linerate,
        }
    };
    accept.flows.iter().enumerate().map(flow).collect()
}

/// Longest name accepted from the server, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// Copies the server's choices into the plan, and rejects any other difference: a server does not
/// decide what the client does.
pub(super) fn apply_reply(plan: &mut Plan, accept: &Accept) -> Result<(), &'static str> {
    let reply = &accept.plan;
    let mut expected = plan.clone();
    if expected.congestion_control.is_none() {
        let name = reply.congestion_control.clone();
        expected.congestion_control = name.filter(|name| name.len() <= MAX_NAME_BYTES);
    }
    for (mine, reply) in [
        (&mut expected.udp_offload.gso, reply.udp_offload.gso),
        (&mut expected.udp_offload.gro, reply.udp_offload.gro),
    ] {
        // The server may lack an offload that was proposed, but not add one.
        if *mine == Some(true) && reply == Some(false) {
            *mine = reply;
        }
    }
    // The server alone decides which stack it runs.
    if reply.stack.server.len() <= MAX_NAME_BYTES {
        expected.stack.server.clone_from(&reply.stack.server);
    }
    // The server may need a privilege for the requested buffers.
    expected.forced_buffers.server = reply.forced_buffers.server;
    if expected != *reply {
        return Err("it replied with another plan");
    }
    if plan
        .wait
        .as_ref()
        .is_some_and(|requested| requested.server != accept.wait)
    {
        return Err("it uses another wait mode than requested");
    }
    let directions =
        (plan.directions.iter()).flat_map(|&direction| (0..plan.streams).map(move |_| direction));
    let expected_flows = (1u32..).zip(directions);
    let granted_flows = accept.flows.iter().map(|grant| (grant.id, grant.direction));
    if !expected_flows.eq(granted_flows) {
        return Err("it granted other flows");
    }
    let has_service = plan.round_trip.needs_flow_socket();
    if accept
        .flows
        .iter()
        .any(|flow| flow.port.is_some() != has_service)
    {
        return Err("it opened other sockets than requested");
    }
    *plan = expected;
    Ok(())
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::RunKind;

    use super::*;

    #[test]
    fn one_call_carries_datagrams_of_our_own_sender() {
        const MAX_PAYLOAD: u64 = 1_472;
        let iperf3 = Some("iperf3");
        for (payload, peer, direction, gso, datagrams) in [
            (1_472, None, Direction::Send, None, Some(44)),
            (1_472, None, Direction::Receive, None, Some(44)),
            (64, None, Direction::Send, None, Some(128)),
            (1_473, None, Direction::Send, None, None),
            (1_472, iperf3, Direction::Send, None, Some(44)),
            (1_472, iperf3, Direction::Receive, None, None),
            (1_472, None, Direction::Send, Some(true), Some(44)),
            (1_472, None, Direction::Send, Some(false), None),
        ] {
            let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "host");
            plan.payload_bytes = payload;
            plan.peer_protocol = peer.map(str::to_owned);
            plan.directions = vec![direction];
            (plan.udp_offload.gso, plan.udp_offload.requested) = (gso, gso.is_some());
            assert_eq!(
                max_datagrams_per_call(&plan, MAX_PAYLOAD),
                datagrams,
                "{payload} {peer:?} {direction:?} {gso:?}"
            );
        }
    }
}
