//! Checks of a finished lab: every host reaches every other, and every link has its requested
//! properties, read back from the kernel.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Lab;
use crate::check_result::CheckResult;
use crate::error::LabError;
use crate::netlink::{LinkState, NetlinkSocket, QdiscState};
use crate::offload::Offload;
use crate::qdisc::{Netem, TokenBucket};
use crate::topology::LinkSpec;

/// Time hosts have to reach each other, plus eight times the sum of all link delays. The kernel
/// polls carriers once a second, so a link can take that long to come up.
const REACHABILITY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which an unanswered request is sent again.
const RESEND_INTERVAL: Duration = Duration::from_millis(20);

/// Largest number of host pairs for which every host probes every other. The kernel has one
/// neighbour table a family, of 1024 entries over *all* namespaces
/// (`net.ipv4.neigh.default.gc_thresh3`): 60 hosts that all exchange packets overflow it, and then
/// no host reaches another.
const MAX_FULL_MESH_PAIRS: usize = 400;

/// Checks links and reachability.
pub(super) fn check_lab(lab: &Lab) -> Result<Vec<CheckResult>, LabError> {
    let mut results = check_links(lab)?;
    results.extend(check_reachability(lab)?);
    Ok(results)
}

/// Reads the properties of both ends of every link back.
fn check_links(lab: &Lab) -> Result<Vec<CheckResult>, LabError> {
    let mut results = Vec::new();
    let links = lab.topology().links.iter().zip(&lab.layout().links);
    for (number, (link, interfaces)) in links.enumerate() {
        let emulated = lab.emulator_is_running(number);
        if let Some(alive) = emulated {
            results.push(CheckResult {
                subject: format!("link {}", link.label()),
                property: "delay and loss".to_owned(),
                requested: "emulated".to_owned(),
                actual: alive.then(|| "emulated".to_owned()),
            });
        }
        for (name, end) in link.between.iter().zip(interfaces) {
            let interface = &end.interface;
            let subject = format!("link {}, interface {interface} of {name}", link.label());
            let actual = lab
                .namespace_of(end.node)
                .run(|| check_interface(link, interface, emulated.is_some()))??;
            results.extend(
                actual
                    .into_iter()
                    .map(|(property, requested, actual)| CheckResult {
                        subject: subject.clone(),
                        property,
                        requested,
                        actual,
                    }),
            );
        }
    }
    Ok(results)
}

/// Property, requested value, actual value.
type PropertyCheck = (String, String, Option<String>);

/// Reads one interface; runs inside the interface's namespace.
fn check_interface(
    link: &LinkSpec,
    interface: &str,
    emulated: bool,
) -> Result<Vec<PropertyCheck>, LabError> {
    let mut netlink = NetlinkSocket::open()?;
    let state = netlink.link(interface)?;
    let qdiscs = netlink.qdiscs(state.index)?;
    let mut lines = vec![
        property_check("mtu", link.mtu(), Some(state.mtu)),
        property_check("state", "up", Some(if state.up { "up" } else { "down" })),
    ];
    lines.extend(check_segment_sizes(link, &state));
    lines.extend(check_qdiscs(link, &qdiscs, emulated));
    if !link.offloads.is_empty() {
        // The ioctl needs a socket only for its namespace.
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
            .map_err(|error| LabError::system("open a socket", error))?;
        for (name, &on) in &link.offloads {
            let on_off = |on: bool| if on { "on" } else { "off" };
            let actual =
                Offload::parse(name).and_then(|one| one.read(socket.as_fd(), interface, on).ok());
            lines.push(property_check(
                &format!("offload {name}"),
                on_off(on),
                actual.map(on_off),
            ));
        }
    }
    Ok(lines)
}

fn property_check(
    property: &str,
    requested: impl ToString,
    actual: Option<impl ToString>,
) -> PropertyCheck {
    (
        property.to_owned(),
        requested.to_string(),
        actual.map(|actual| actual.to_string()),
    )
}

fn check_segment_sizes(link: &LinkSpec, state: &LinkState) -> Vec<PropertyCheck> {
    let Some(gso) = link.gso_bytes() else {
        return Vec::new();
    };
    vec![
        property_check("gso", gso, state.gso),
        property_check("gro", gso, state.gro),
        property_check("gso for IPv4", gso, state.gso_ipv4),
        property_check("gro for IPv4", gso, state.gro_ipv4),
    ]
}

fn check_qdiscs(link: &LinkSpec, qdiscs: &[QdiscState], emulated: bool) -> Vec<PropertyCheck> {
    let mut lines = Vec::new();
    if let Some(requested) = TokenBucket::from_link(link) {
        let actual = qdiscs
            .iter()
            .find(|qdisc| qdisc.kind == "tbf")
            .and_then(|qdisc| TokenBucket::decode(&qdisc.options));
        let bits = |bucket: TokenBucket| format!("{} bit/s", bucket.bytes_per_second * 8);
        let bytes = |bucket: TokenBucket| format!("{} bytes", bucket.limit_bytes);
        lines.push(property_check("rate", bits(requested), actual.map(bits)));
        lines.push(property_check("queue", bytes(requested), actual.map(bytes)));
    }
    if Netem::from_link(link).is_some() && !emulated {
        let actual = qdiscs.iter().find(|qdisc| qdisc.kind == "netem");
        lines.push(property_check(
            "delay and loss",
            "netem",
            actual.map(|one| &one.kind),
        ));
    }
    lines
}

/// A host's UDP socket that sends requests and replies to those of others.
struct Prober {
    host: usize,
    v6: bool,
    port: u16,
    socket: UdpSocket,
}

/// Request from one host to an address of another.
struct ReachabilityProbe {
    from: usize,
    to: usize,
    address: IpAddr,
    replied: bool,
}

const REQUEST_KIND: u8 = 1;
const REPLY_KIND: u8 = 2;

/// Sends a request from every host to every address of every other (in a large lab, of some
/// others), all at once, until all replies have arrived or the deadline passes.
///
/// UDP rather than ICMP: ping needs a privilege where `ping_group_range` is empty.
fn check_reachability(lab: &Lab) -> Result<Vec<CheckResult>, LabError> {
    let mut probers = Vec::new();
    for (host, one) in lab.hosts().iter().enumerate() {
        let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let families = if one.address_v6().is_some() { 2 } else { 1 };
        for any in any.into_iter().take(families) {
            let (socket, port) = one
                .namespace
                .run(|| {
                    let socket = UdpSocket::bind((any, 0))?;
                    socket.set_nonblocking(true)?;
                    let port = socket.local_addr()?.port();
                    Ok((socket, port))
                })?
                .map_err(|error: io::Error| {
                    LabError::system(format!("open a socket in host {}", one.name()), error)
                })?;
            probers.push(Prober {
                host,
                v6: any.is_ipv6(),
                port,
                socket,
            });
        }
    }
    let mut probes = plan_probes(lab);
    let delays: Duration = lab.topology().links.iter().filter_map(|l| l.delay).sum();
    let deadline = Instant::now() + REACHABILITY_TIMEOUT + delays * 8;
    exchange_probes(&probers, &mut probes, deadline)
        .map_err(|error| LabError::system("let the hosts reach each other", error))?;
    Ok(probes
        .iter()
        .map(|probe| CheckResult {
            subject: format!("host {}", lab.hosts()[probe.from].name()),
            property: format!(
                "reaching {} ({})",
                lab.hosts()[probe.to].name(),
                probe.address
            ),
            requested: "possible".to_owned(),
            actual: Some(
                if probe.replied {
                    "possible"
                } else {
                    "impossible"
                }
                .to_owned(),
            ),
        })
        .collect())
}

/// Returns whether host `from` probes host `to`. In a large lab every host exchanges requests with
/// the first and the next one only, which still covers every host, port and switch.
fn is_probed(hosts: usize, from: usize, to: usize) -> bool {
    let next = |host: usize| (host + 1) % hosts;
    let mesh = hosts * (hosts - 1) <= MAX_FULL_MESH_PAIRS;
    from != to && (mesh || from == 0 || to == 0 || to == next(from) || from == next(to))
}

fn plan_probes(lab: &Lab) -> Vec<ReachabilityProbe> {
    let count = lab.hosts().len();
    let mut probes = Vec::new();
    for from in 0..count {
        for (to, target) in lab.hosts().iter().enumerate() {
            if !is_probed(count, from, to) {
                continue;
            }
            for interface in target.interfaces() {
                let v6 = interface.address_v6.map(IpAddr::V6);
                let addresses = [Some(IpAddr::V4(interface.address)), v6];
                probes.extend(
                    addresses
                        .into_iter()
                        .flatten()
                        .map(|address| ReachabilityProbe {
                            from,
                            to,
                            address,
                            replied: false,
                        }),
                );
            }
        }
    }
    probes
}

fn exchange_probes(
    probers: &[Prober],
    probes: &mut [ReachabilityProbe],
    deadline: Instant,
) -> io::Result<()> {
    let prober = |host: usize, v6: bool| {
        let mut all = probers.iter();
        all.find(|prober| prober.host == host && prober.v6 == v6)
    };
    while probes.iter().any(|probe| !probe.replied) && Instant::now() < deadline {
        for (number, probe) in probes.iter().enumerate() {
            let v6 = probe.address.is_ipv6();
            let pair = (prober(probe.from, v6), prober(probe.to, v6));
            if let (false, (Some(sender), Some(target))) = (probe.replied, pair) {
                let mut text = vec![REQUEST_KIND];
                text.extend((number as u64).to_be_bytes());
                // An address that is unreachable now may become reachable; the deadline decides.
                let _ = sender.socket.send_to(&text, (probe.address, target.port));
            }
        }
        receive_probes(probers, probes, Instant::now() + RESEND_INTERVAL)?;
    }
    Ok(())
}

/// Replies to requests and records replies until `until` or until all replies have arrived.
fn receive_probes(
    probers: &[Prober],
    probes: &mut [ReachabilityProbe],
    until: Instant,
) -> io::Result<()> {
    while probes.iter().any(|probe| !probe.replied) {
        let remaining = until.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Ok(());
        }
        let mut waiting: Vec<PollFd<'_>> = probers
            .iter()
            .map(|prober| PollFd::new(&prober.socket, PollFlags::IN))
            .collect();
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: remaining.subsec_nanos().into(),
        };
        match poll(&mut waiting, Some(&timeout)) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for prober in probers {
            drain_socket(prober, probes);
        }
    }
    Ok(())
}

fn drain_socket(prober: &Prober, probes: &mut [ReachabilityProbe]) {
    let mut text = [0; 16];
    // Errors other than "would block" report an earlier packet that was refused (ICMP). Each is
    // returned once, and the request is repeated anyway.
    while let Ok((length, from)) = prober.socket.recv_from(&mut text) {
        let Some((&kind, number)) = text[..length].split_first() else {
            continue;
        };
        let Ok(number) = number.try_into().map(u64::from_be_bytes) else {
            continue;
        };
        let probe = usize::try_from(number)
            .ok()
            .and_then(|number| probes.get_mut(number));
        match (kind, probe) {
            (REQUEST_KIND, Some(probe)) if probe.to == prober.host => {
                send_reply(prober, from, number);
            }
            (REPLY_KIND, Some(probe)) if probe.from == prober.host => {
                probe.replied = true;
            }
            _ => {}
        }
    }
}

fn send_reply(prober: &Prober, to: SocketAddr, number: u64) {
    let mut text = vec![REPLY_KIND];
    text.extend(number.to_be_bytes());
    let _ = prober.socket.send_to(&text, to);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn few_hosts_probe_all_and_many_probe_enough() {
        for hosts in [2, 3, 20, 21, 60, 250] {
            let probed: Vec<(usize, usize)> = (0..hosts)
                .flat_map(|from| (0..hosts).map(move |to| (from, to)))
                .filter(|&(from, to)| is_probed(hosts, from, to))
                .collect();
            let senders: HashSet<usize> = probed.iter().map(|&(from, _)| from).collect();
            assert_eq!(senders.len(), hosts, "every host sends");
            assert!(
                probed
                    .iter()
                    .all(|&(from, to)| probed.contains(&(to, from)))
            );
            if hosts <= 20 {
                assert_eq!(probed.len(), hosts * (hosts - 1));
            } else {
                assert!(
                    probed.len() <= 4 * hosts,
                    "{hosts} hosts, {} pairs",
                    probed.len()
                );
            }
        }
    }
}
