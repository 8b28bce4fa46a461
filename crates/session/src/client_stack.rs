//! Network stack of the client's end of a test: the kernel's, or our user-space stack.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use linerate_port::PortError;
use linerate_record::event::ErrorReport;
use linerate_record::facts::{HostFacts, Role};
use linerate_record::ids::CaveatId;
use linerate_record::plan::{
    Direction, MAX_DATAGRAM_BYTES, Plan, RunKind, SchedPolicy, TransportProtocol, UdpOffload,
    WaitMode,
};
use linerate_record::record::{Caveat, Record};
use linerate_record::stack::{ControlPath, StackPlan};
use linerate_transport::CONNECT_TIMEOUT;
use linerate_transport::flow_role::FlowRole;
use linerate_transport::stack_thread::{StackThread, thread_ended};

use super::client::Client;
use super::control_connection::ControlStream;
use super::dial;
use super::dial::SourceBinding;
use super::setup;
use super::thread_plan::{ThreadPlan, usable_cpus};
use crate::client_agreement::{max_packet_payload, resolve_plan};
use crate::error::SessionError;
use crate::record_assembly::peer_lost_warning;
use crate::{pacing, stack_rejections};

/// Network stack of the client's end.
pub enum ClientStack {
    Kernel,
    /// User-space stack with its options.
    Netstack(Box<(StackThread, StackPlan)>),
}

/// Longest wait for a neighbour's link-layer address; the stack repeats its request once a second.
const NEIGHBOR_TIMEOUT: Duration = Duration::from_secs(5);

/// Poll interval of that wait.
const NEIGHBOR_POLL_INTERVAL: Duration = Duration::from_millis(1);

impl ClientStack {
    /// Returns the stack of a plan; starts the user-space stack.
    ///
    /// # Errors
    /// Options that the stack does not support, and errors of its start.
    pub fn start(plan: &Plan) -> Result<Self, SessionError> {
        let Some(stack_plan) = plan.client_stack.as_deref() else {
            return Ok(Self::Kernel);
        };
        stack_rejections::check_client(plan, stack_plan)?;
        let bound = SourceBinding::parse(plan.bind.as_deref())?.address;
        let thread = StackThread::start(stack_plan, None)
            .map_err(|error| rename_option(plan, error.into()))?;
        if let Some(address) = bound.filter(|address| !thread.is_local_address(*address)) {
            return Err(SessionError::OptionRejected {
                option: format!("-B {address} with --dev"),
                why: "the user-space stack has no such address".to_owned(),
                next_step: "use one of the addresses of --ip, or leave it out".to_owned(),
            });
        }
        Ok(Self::Netstack(Box::new((thread, stack_plan.clone()))))
    }

    /// Returns the user-space stack, if there is one.
    pub fn netstack(&self) -> Option<&StackThread> {
        match self {
            Self::Kernel => None,
            Self::Netstack(stack) => Some(&stack.0),
        }
    }

    /// Returns the cause of an error where it is a failed port, or a port whose peer has left.
    pub fn explain_error(&self, error: SessionError) -> SessionError {
        let Some(stack) = self.netstack() else {
            return error;
        };
        match stack.take_failure() {
            Some(failure) => failure.into(),
            None if is_missing_reply(&error) && stack.is_peer_lost() => port_peer_lost(stack),
            None => error,
        }
    }

    /// Replaces the error that ended a run by its cause: over the user-space stack, a failed port
    /// looks as if the remote end had closed the connection.
    #[must_use]
    pub fn explain_results(
        &self,
        (mut record, failure): (Record, Option<SessionError>),
    ) -> (Record, Option<SessionError>) {
        let Some(error) = failure else {
            return (record, None);
        };
        let why = self.explain_error(error);
        if let SessionError::Port(port) = &why {
            let mut caveats = record.validity.iter_mut();
            if let Some(caveat) = caveats.find(|caveat| caveat.id == CaveatId::PeerVanished) {
                let ErrorReport {
                    object, situation, ..
                } = port.to_report();
                *caveat = peer_lost_warning(format!("{object}: {situation}"));
            }
        }
        (record, Some(why))
    }

    /// Opens the control connection.
    ///
    /// # Errors
    /// The reason why no address of the server accepts it.
    pub fn connect(
        &self,
        client: &Client,
        local: &SourceBinding,
        stop: &AtomicBool,
    ) -> Result<ControlStream, SessionError> {
        let (stack, stack_plan) = match self {
            Self::Netstack(stack) if stack.1.control == ControlPath::Stack => (&stack.0, &stack.1),
            _ => {
                let stream = ControlStream::from_tcp(client.connect(local, stop)?)?;
                let remote = stream.peer;
                self.prepare_path(remote, stop)?;
                return Ok(stream);
            }
        };
        debug_assert!(!stack_plan.addresses.is_empty(), "--dev requires --ip");
        self.connect_over_netstack(stack, reachable(stack, client.addresses(local)?), stop)
    }

    /// Opens a connection over the user-space stack to the first address that accepts one.
    fn connect_over_netstack(
        &self,
        stack: &StackThread,
        addresses: Vec<SocketAddr>,
        stop: &AtomicBool,
    ) -> Result<ControlStream, SessionError> {
        try_in_order(addresses, |remote| {
            self.prepare_path(remote, stop)?;
            let (pair, (local, peer)) = (stack.handle().connect(remote, &|| stop.load(Relaxed)))
                .map_err(|error| netstack_connect_error(remote, error))?;
            Ok(ControlStream::bridged(pair, local, peer))
        })
    }

    /// Returns the server's addresses in the order to try them; never empty.
    ///
    /// # Errors
    /// An unknown name, or no address of the requested family.
    pub fn remote_addresses(
        &self,
        client: &Client,
        local: &SourceBinding,
    ) -> Result<Vec<SocketAddr>, SessionError> {
        let addresses = client.addresses(local)?;
        Ok(match self.netstack() {
            Some(stack) => reachable(stack, addresses),
            None => addresses,
        })
    }

    /// Prepares the path to an address: with the user-space stack, until the next hop replies.
    ///
    /// # Errors
    /// No route, or no reply of the next hop; `Interrupted` once `stop` is set.
    pub fn prepare_path(&self, remote: SocketAddr, stop: &AtomicBool) -> Result<(), SessionError> {
        if let Some(stack) = self.netstack() {
            check_reachable(stack, remote)?;
        }
        self.resolve_next_hop(remote, stop)
    }

    /// Waits until the user-space stack has resolved the next hop's link-layer address, so that no
    /// measurement contains the resolution.
    ///
    /// # Errors
    /// No route, or no reply of the next hop; `Interrupted` once `stop` is set.
    pub fn resolve_next_hop(
        &self,
        remote: SocketAddr,
        stop: &AtomicBool,
    ) -> Result<(), SessionError> {
        let Some(stack) = self.netstack() else {
            return Ok(());
        };
        let remote = unmapped(remote);
        let started = Instant::now();
        loop {
            let resolution = stack.handle().with_stack(move |stack, _| {
                let next_hop = stack.resolve_next_hop(remote.ip());
                stack.flush();
                next_hop
            });
            let (hop, resolved) = match resolution {
                Some(Ok(next_hop)) => next_hop,
                Some(Err(_)) => return Err(SessionError::NoNetstackRoute { address: remote }),
                None => return Err(SessionError::system("the stack's thread", thread_ended())),
            };
            if resolved {
                return Ok(());
            }
            if stop.load(Relaxed) {
                return Err(SessionError::Interrupted);
            }
            // A failed port may be the reason for the missing reply.
            if let Some(failure) = stack.take_failure() {
                return Err(failure.into());
            }
            if stack.is_peer_lost() {
                return Err(port_peer_lost(stack));
            }
            if started.elapsed() >= NEIGHBOR_TIMEOUT {
                // The request reached no peer at all.
                if stack.never_had_peer() {
                    return Err(PortError::NoPeer {
                        port: stack.port_name(),
                        timeout_s: NEIGHBOR_TIMEOUT.as_secs(),
                    }
                    .into());
                }
                return Err(SessionError::NoNeighbor {
                    address: remote,
                    hop,
                    timeout: NEIGHBOR_TIMEOUT,
                });
            }
            std::thread::sleep(NEIGHBOR_POLL_INTERVAL);
        }
    }

    /// Returns the local address that the user-space stack uses towards `remote`; `None` for the
    /// kernel.
    pub fn local_address_towards(&self, remote: IpAddr) -> Option<IpAddr> {
        self.netstack()?.source_address_for(remote)
    }

    /// Returns the facts of this host for the record.
    pub fn host_facts(&self, remote: IpAddr) -> HostFacts {
        let Some(stack) = self.netstack() else {
            return setup::host_facts(Role::Client, remote);
        };
        let mut host = linerate_host::snapshot::read_host();
        host.role = Some(Role::Client);
        host.stack = Some(Box::new(stack.facts().clone()));
        host
    }

    /// Returns the largest UDP payload in bytes that fits one packet on the path to `remote`.
    ///
    /// # Errors
    /// When the kernel has no path.
    pub fn max_packet_payload(
        &self,
        remote: SocketAddr,
        local: &SourceBinding,
    ) -> Result<u64, SessionError> {
        let Some(stack) = self.netstack() else {
            return max_packet_payload(remote, local);
        };
        let headers = dial::udp_headers_bytes(remote.is_ipv6());
        let payload = u64::from(stack.config().mtu).saturating_sub(headers);
        Ok(payload.clamp(64, MAX_DATAGRAM_BYTES))
    }

    /// Checks and resolves what this end can decide before it contacts the server.
    ///
    /// # Errors
    /// The first option that this end does not support.
    pub fn resolve_plan(
        &self,
        plan: &mut Plan,
        remote: SocketAddr,
        local: &SourceBinding,
    ) -> Result<Option<Caveat>, SessionError> {
        let Some(stack) = self.netstack() else {
            return resolve_plan(plan, remote, local);
        };
        match plan.protocol {
            TransportProtocol::Tcp => {
                if plan.congestion_control.is_none() && plan.has_direction(Direction::Send) {
                    plan.congestion_control = stack.config().get("tcp.congestion_control");
                }
            }
            TransportProtocol::Udp => {
                let max_payload = self.max_packet_payload(remote, local)?;
                if plan.payload_bytes == 0 {
                    plan.payload_bytes = max_payload;
                }
                let sends = plan.kind != RunKind::Throughput || plan.has_direction(Direction::Send);
                let fragments = stack.config().get("ip.fragmentation").as_deref() != Some("off");
                if sends && !fragments && plan.payload_bytes > max_payload {
                    return Err(SessionError::OptionRejected {
                        option: format!(
                            "-l {} with --set ip.fragmentation=off",
                            plan.payload_bytes
                        ),
                        why: format!(
                            "packets of the stack hold {max_payload} B of it, and fragmentation is off"
                        ),
                        next_step: "send smaller datagrams, or leave ip.fragmentation on"
                            .to_owned(),
                    });
                }
                if plan.kind == RunKind::Throughput {
                    // Datagrams are sent one by one, in bursts of calls.
                    plan.udp_offload = UdpOffload {
                        gso: Some(false),
                        gro: Some(false),
                        requested: true,
                    };
                }
            }
        }
        if let Some(count) = plan.pace.packets_per_second {
            plan.rate_bps = Some(count.saturating_mul(plan.payload_bytes).saturating_mul(8));
        }
        Ok(None)
    }

    /// Returns a warning when the requested rate cannot be kept.
    ///
    /// # Errors
    /// The pacing option that is not supported.
    pub fn check_pacing(
        &self,
        plan: &Plan,
        flow_role: FlowRole,
        host: &HostFacts,
    ) -> Result<Option<Caveat>, SessionError> {
        match self {
            Self::Kernel => pacing::check_pacing(plan, flow_role, host),
            Self::Netstack(_) => Ok(None),
        }
    }

    /// Chooses the wait mode, CPUs and number of threads of this end.
    ///
    /// # Errors
    /// The option that this end does not support.
    pub fn thread_plan(
        &self,
        plan: &Plan,
        requested_wait: Option<WaitMode>,
        shares_cores: bool,
    ) -> Result<ThreadPlan, SessionError> {
        let Some(stack) = self.netstack() else {
            return ThreadPlan::choose(plan, Role::Client, requested_wait, shares_cores, 0);
        };
        usable_cpus(plan, Role::Client)?;
        Ok(ThreadPlan {
            wait: stack.wait_mode(),
            wait_requested: true,
            cpus: plan.cpu.client.clone(),
            reason: Some("the user-space stack polls its port".to_owned()),
            threads_per_direction: 1,
            shares_threads: plan.streams > 1,
        })
    }
}

/// Returns whether a lost peer of the port could cause the error: it reports only missing replies.
fn is_missing_reply(error: &SessionError) -> bool {
    matches!(
        error,
        SessionError::PeerLost { .. }
            | SessionError::NoReply { .. }
            | SessionError::NoDatagram { .. }
            | SessionError::UdpBlocked { .. }
            | SessionError::NoNeighbor { .. }
    )
}

fn port_peer_lost(stack: &StackThread) -> SessionError {
    let port = stack.port_name();
    PortError::PeerGone { port }.into()
}

/// Converts an IPv4-mapped IPv6 address (RFC 4291 section 2.5.5.2) to IPv4: the packets are IPv4,
/// and only kernel sockets accept the mapped form.
fn unmapped(remote: SocketAddr) -> SocketAddr {
    match remote.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, remote.port()),
        IpAddr::V6(_) => remote,
    }
}

/// Returns the addresses that the user-space stack has a route to, in their order; all of them when
/// it has none, so that the error can name one.
fn reachable(stack: &StackThread, addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let mut all: Vec<_> = addresses.into_iter().map(unmapped).collect();
    if all
        .iter()
        .any(|remote| check_reachable(stack, *remote).is_ok())
    {
        all.retain(|remote| check_reachable(stack, *remote).is_ok());
    }
    all
}

/// Tries addresses in order until one succeeds.
///
/// # Errors
/// The error of the first address at which a program responded, else of the first one; at once for
/// errors that do not depend on the address.
pub fn try_in_order<R>(
    addresses: Vec<SocketAddr>,
    mut attempt: impl FnMut(SocketAddr) -> Result<R, SessionError>,
) -> Result<R, SessionError> {
    let mut kept_error: Option<SessionError> = None;
    for address in addresses {
        match attempt(address) {
            Err(error) if error.depends_on_address() => {
                let kept_responded = (kept_error.as_ref()).map(SessionError::is_of_a_program);
                if kept_responded.is_none_or(|responded| !responded && error.is_of_a_program()) {
                    kept_error = Some(error);
                }
            }
            done => return done,
        }
    }
    Err(kept_error.expect("a name without an address is an error before"))
}

/// Checks that the user-space stack can send to an address.
fn check_reachable(stack: &StackThread, remote: SocketAddr) -> Result<(), SessionError> {
    let address = remote.ip();
    if stack.is_local_address(address) {
        return Err(SessionError::OptionRejected {
            option: format!("--ip {address}"),
            why: "it is the server's address: the stack would connect to itself".to_owned(),
            next_step: "give the stack an address of its own in that network".to_owned(),
        });
    }
    match stack.has_route(address) {
        true => Ok(()),
        false => Err(SessionError::NoNetstackRoute { address: remote }),
    }
}

/// Renames the option of an error: `--sched` and `--cpu` set the application thread's stack keys.
fn rename_option(plan: &Plan, error: SessionError) -> SessionError {
    let SessionError::OptionRejected {
        option,
        why,
        next_step,
    } = error
    else {
        return error;
    };
    let is_key = |key: &str| option.starts_with(&format!("--set threads.application.{key}="));
    let (option, next_step) = if is_key("sched") && plan.sched.client != SchedPolicy::Inherited {
        let next_step = "run as root, or leave it out".to_owned();
        (format!("--sched {}", plan.sched.client), next_step)
    } else if is_key("cpus") && !plan.cpu.client.0.is_empty() {
        let next_step = "name one that this process may run on, or leave it out".to_owned();
        (format!("--cpu {}", plan.cpu.client), next_step)
    } else {
        (option, next_step)
    };
    SessionError::OptionRejected {
        option,
        why,
        next_step,
    }
}

/// Converts an error of a connect over the user-space stack to that of the kernel's.
pub fn netstack_connect_error(remote: SocketAddr, error: io::Error) -> SessionError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => SessionError::ConnectionRefused { address: remote },
        io::ErrorKind::TimedOut => SessionError::NoReply {
            address: remote,
            timeout: CONNECT_TIMEOUT,
        },
        io::ErrorKind::Interrupted => SessionError::Interrupted,
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            SessionError::NoRoute {
                address: remote,
                source: error,
            }
        }
        _ => SessionError::system("a connection over the user-space stack", error),
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::CpuList;

    use super::*;

    #[test]
    fn a_rejected_thread_key_is_reported_by_its_option() {
        let key = |key: &str| SessionError::OptionRejected {
            option: format!("--set {key}"),
            why: "not permitted".to_owned(),
            next_step: "leave it".to_owned(),
        };
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Tcp, "10.0.0.1");
        let message = |plan: &Plan, name: &str| rename_option(plan, key(name)).to_string();
        let by_keys = message(&plan, "threads.application.sched=fifo:9");
        assert!(
            by_keys.starts_with("--set threads.application.sched=fifo:9"),
            "{by_keys}"
        );
        plan.sched.client = SchedPolicy::Fifo(9);
        plan.cpu.client = CpuList(vec![7]);
        for (name, option) in [
            ("threads.application.sched=fifo:9", "--sched fifo:9"),
            ("threads.application.cpus=7", "--cpu 7"),
            (
                "threads.driver.sched=fifo:9",
                "--set threads.driver.sched=fifo:9",
            ),
        ] {
            let text = message(&plan, name);
            assert!(text.starts_with(option), "{text}");
        }
    }

    /// An interruption or a rejection is not replaced by a lost port peer.
    #[test]
    fn only_missing_replies_are_explained_by_a_lost_peer() {
        let address: SocketAddr = "10.0.0.2:5201".parse().unwrap();
        let timeout = Duration::from_secs(1);
        let lost = SessionError::PeerLost {
            peer: address,
            reason: "silent for 14 s".to_owned(),
        };
        let rejected = SessionError::OptionRejected {
            option: "-w 1G".to_owned(),
            why: "it is too much".to_owned(),
            next_step: "ask for less".to_owned(),
        };
        for (error, silence) in [
            (lost, true),
            (SessionError::NoReply { address, timeout }, true),
            (SessionError::NoDatagram { address, timeout }, true),
            (SessionError::Interrupted, false),
            (rejected, false),
            (SessionError::NoNetstackRoute { address }, false),
        ] {
            assert_eq!(is_missing_reply(&error), silence, "{error}");
        }
    }

    /// The exit code is that of the kernel's stack.
    #[test]
    fn an_unreachable_host_is_a_missing_route() {
        let address: SocketAddr = "192.0.2.1:7".parse().unwrap();
        for kind in [
            io::ErrorKind::NetworkUnreachable,
            io::ErrorKind::HostUnreachable,
        ] {
            let error = netstack_connect_error(address, kind.into());
            assert!(matches!(error, SessionError::NoRoute { .. }), "{error}");
        }
    }

    #[test]
    fn a_mapped_address_is_one_of_ipv4() {
        for (text, expected) in [
            ("[::ffff:10.9.0.1]:7", "10.9.0.1:7"),
            ("10.9.0.1:7", "10.9.0.1:7"),
            ("[fe80::1%3]:7", "[fe80::1%3]:7"),
        ] {
            let remote: SocketAddr = text.parse().unwrap();
            assert_eq!(unmapped(remote), expected.parse().unwrap(), "{text}");
        }
    }

    /// Addresses of the server with these ports.
    fn addresses(ports: std::ops::Range<u16>) -> Vec<SocketAddr> {
        let at = |port| SocketAddr::from(([10, 9, 0, 1], port));
        ports.map(at).collect()
    }

    #[test]
    fn the_next_address_is_tried_and_the_first_error_returned() {
        let rejected = |address| SessionError::ConnectionRefused { address };
        for (accepting_port, tried, expected) in [(1, 1, Ok(1)), (3, 3, Ok(3)), (9, 4, Err(1))] {
            let mut attempts = 0;
            let result = try_in_order(addresses(1..5), |remote| {
                attempts += 1;
                match remote.port() == accepting_port {
                    true => Ok(remote.port()),
                    false => Err(rejected(remote)),
                }
            });
            assert_eq!(attempts, tried, "{accepting_port}");
            let result = result.map_err(|error| match error {
                SessionError::ConnectionRefused { address } => address.port(),
                other => panic!("{other}"),
            });
            assert_eq!(result, expected);
        }
        // The reason of a program that responded says more than a refused connection.
        let result: Result<(), _> = try_in_order(addresses(1..5), |remote| {
            Err(match remote.port() {
                2 | 3 => SessionError::OtherSender {
                    address: remote,
                    from: remote.ip(),
                },
                _ => rejected(remote),
            })
        });
        let error = result.unwrap_err();
        assert!(
            matches!(&error, SessionError::OtherSender { address, .. } if address.port() == 2),
            "{error}"
        );
        // Ctrl-C, a failed port and a rejected option do not depend on the address.
        for stops in [
            || SessionError::Interrupted,
            || linerate_stack::StackError::SocketClosed.into(),
            || SessionError::Unsupported {
                option: "--key".to_owned(),
                why: "no".to_owned(),
                next_step: "leave it out".to_owned(),
            },
        ] {
            let mut attempts = 0;
            let result: Result<(), _> = try_in_order(addresses(1..5), |_| {
                attempts += 1;
                Err(stops())
            });
            assert!(result.is_err());
            assert_eq!(attempts, 1);
        }
    }

    /// A name with several addresses, the first of which has no listener.
    #[test]
    fn the_control_connection_goes_to_the_address_that_takes_it() {
        let name = format!("ground-ways-{}", std::process::id());
        let start = |role: &str, host: u8| {
            let plan = StackPlan {
                device: format!("shm:{name},role={role}"),
                addresses: vec![format!("10.9.0.{host}/24")],
                profile: "default".to_owned(),
                ..StackPlan::default()
            };
            let thread = StackThread::start(&plan, None);
            (thread.unwrap_or_else(|error| panic!("{error}")), plan)
        };
        let (server, _) = start("server", 1);
        let listening = server.handle().with_stack(|stack, _| {
            let any = SocketAddr::from(([0; 4], 7));
            stack.tcp_listen(any, 4).map(drop)
        });
        assert!(matches!(listening, Some(Ok(()))));
        let client = ClientStack::Netstack(Box::new(start("client", 2)));
        let stack = client.netstack().unwrap();
        let mut text = addresses(6..9);
        // In no network of the stack: skipped when another address is reachable.
        text.insert(0, "10.8.0.1:7".parse().unwrap());
        // Address of the stack itself.
        text.insert(0, "10.9.0.2:7".parse().unwrap());
        let stream =
            client.connect_over_netstack(stack, reachable(stack, text), &AtomicBool::new(false));
        let stream = stream.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(stream.peer, "10.9.0.1:7".parse().unwrap());

        let rejected =
            client.connect_over_netstack(stack, addresses(5..7), &AtomicBool::new(false));
        let Err(SessionError::ConnectionRefused { address }) = rejected else {
            panic!("no listener on this port");
        };
        assert_eq!(address.port(), 5);
    }
}
