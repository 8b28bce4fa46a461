//! Detection of the server's protocol (`--peer auto`), by probes at well-known ports.

use std::io;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use linerate_protocol::iperf2::{Iperf2ClientAction, Iperf2Settings, Iperf2UdpClient, datagram};
use linerate_protocol::iperf3::{BUSY, Iperf3State};
use linerate_protocol::sockperf::SockperfHeader;
use linerate_protocol::{control, nuttcp};
use linerate_record::plan::{DEFAULT_PORT, Direction, Plan, RunKind, TransportProtocol};
use linerate_session::error::SessionError;
use linerate_sys::clock;
use linerate_workload::probes;
use linerate_workload::probes::IPERF2_UDP_PROBE_BYTES;
use socket2::Socket;

use super::probe_sockets::ProbeSockets;
use super::setup_context::protocol_error;
use super::{ClientProtocolSpec, client_protocol};

/// Time for a reply to a probe, besides the round trip of the path. The times below are extended by
/// it too.
const REPLY_TIMEOUT: Duration = Duration::from_millis(700);

/// Time for a server that sends first to do so.
const SEND_FIRST_TIMEOUT: Duration = Duration::from_millis(300);

/// Time for a server to be ready again after a connection without a test: iperf3 and nuttcp serve
/// one client at a time, and reject others in that time.
const RECOVERY_TIME: Duration = Duration::from_millis(500);

/// Time for an iperf2 UDP server to be ready again: it replies to end markers until a quarter of a
/// second of silence, and counts datagrams before that into the previous test (2.1.8 needs a
/// second).
const UDP_RECOVERY_TIME: Duration = Duration::from_millis(1_200);

const IPERF2_PORT: u16 = 5001;

/// Pause between attempts at a port that rejects for a moment.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Detected protocol.
pub enum DetectedProtocol {
    /// Protocol of our own server.
    Linerate,
    /// Protocol of another tool, with its port.
    ThirdParty(&'static ClientProtocolSpec, u16),
}

/// Probe that only one protocol replies to in its way.
struct ProtocolProbe {
    protocol: &'static str,
    request: fn() -> Vec<u8>,
    is_reply: fn(&[u8]) -> bool,
}

/// Probes in the order of use, except that the protocol that owns a port comes first. Some probes
/// harm other servers (reference iperf2 crashes on nuttcp's, so it comes early). A server that
/// waits for more bytes must not receive a probe that it takes for payload before the other probes.
const PROBES: &[ProtocolProbe] = &[
    ProtocolProbe {
        protocol: "linerate",
        request: probes::linerate,
        is_reply: is_linerate_reply,
    },
    ProtocolProbe {
        protocol: "iperf2",
        request: probes::iperf2,
        is_reply: |reply| reply.starts_with(&[0, 0, 0, 2, 0, 0, 0]),
    },
    ProtocolProbe {
        protocol: "nuttcp",
        request: || probes::NUTTCP_PROBE.to_vec(),
        is_reply: |reply| reply.starts_with(b"HELO nuttcp v"),
    },
    ProtocolProbe {
        protocol: "iperf3",
        request: probes::iperf3,
        is_reply: |reply| {
            reply.starts_with(&[Iperf3State::ParamExchange.to_byte()]) || reply.starts_with(&BUSY)
        },
    },
    ProtocolProbe {
        protocol: "sockperf",
        request: || probes::SOCKPERF_PROBE.to_bytes().to_vec(),
        is_reply: |reply| SockperfHeader::read(reply) == Some(probes::SOCKPERF_PROBE.to_reply()),
    },
    ProtocolProbe {
        protocol: "echo",
        request: || probes::ECHO_PROBE.to_vec(),
        is_reply: |reply| reply == probes::ECHO_PROBE,
    },
];

/// Returns the probes for a port, the one of its owner first.
fn probes(port: u16) -> impl Iterator<Item = &'static ProtocolProbe> {
    let owner = match port {
        nuttcp::CONTROL_PORT => "nuttcp",
        IPERF2_PORT => "iperf2",
        linerate_protocol::sockperf::PORT => "sockperf",
        linerate_protocol::echo::PORT => "echo",
        _ => "linerate",
    };
    let is_owner = move |probe: &&ProtocolProbe| probe.protocol == owner;
    let others = PROBES.iter().filter(move |probe| !is_owner(probe));
    PROBES.iter().filter(is_owner).chain(others)
}

/// Returns the protocol of a reply to `request`. It need not be the probed one: iperf3 accepts any
/// bytes as its cookie, and an unchanged copy means echo.
fn classify_reply(request: &[u8], reply: &[u8]) -> Option<&'static ProtocolProbe> {
    let echoed = !reply.is_empty() && request.starts_with(reply);
    PROBES.iter().find(|probe| match echoed {
        true => probe.protocol == "echo",
        false => (probe.is_reply)(reply),
    })
}

fn is_linerate_reply(reply: &[u8]) -> bool {
    reply.starts_with(&control::REPLY_MAGIC) || reply.starts_with(&control::CONTROL_MAGIC)
}

/// Returns the ports to probe, each with the protocol to assume for a port that accepts a
/// connection and sends nothing.
fn ports_to_probe(plan: &Plan) -> Vec<(u16, Option<&'static str>)> {
    let named = plan.port;
    if named != 0 && named != DEFAULT_PORT {
        let fallback = match plan.kind {
            RunKind::Throughput => Some("iperf2-legacy"),
            RunKind::Latency | RunKind::Forward | RunKind::Generate | RunKind::Stack => None,
        };
        return vec![(named, fallback)];
    }
    match plan.kind {
        RunKind::Throughput => vec![
            (DEFAULT_PORT, None),
            (nuttcp::CONTROL_PORT, None),
            (IPERF2_PORT, Some("iperf2-legacy")),
            (linerate_protocol::discard::PORT, Some("discard")),
            (linerate_protocol::chargen::PORT, None),
        ],
        RunKind::Latency | RunKind::Forward => vec![
            (DEFAULT_PORT, None),
            (linerate_protocol::sockperf::PORT, None),
            (linerate_protocol::echo::PORT, None),
            (IPERF2_PORT, None),
        ],
        // No server takes part in it.
        RunKind::Generate | RunKind::Stack => Vec::new(),
    }
}

/// Returns the protocol that owns a port exclusively, if it fits the plan: a probe would only be
/// payload there.
fn port_owner(plan: &Plan, port: u16) -> Option<&'static ClientProtocolSpec> {
    let name = match port {
        linerate_protocol::discard::PORT => "discard",
        linerate_protocol::chargen::PORT => "chargen",
        _ => return None,
    };
    client_protocol(name).filter(|spec| spec.kinds.contains(&plan.kind))
}

/// Returns whether a server sends first.
fn sends_first(stream: &Socket, timeout: Duration) -> bool {
    let received = || -> io::Result<usize> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(timeout))?;
        (&*stream).read(&mut [0; 256])
    };
    received().is_ok_and(|bytes| bytes > 0)
}

/// Probes for protocols that respond over UDP only.
fn detect_udp_responder(
    plan: &Plan,
    remote: SocketAddr,
    sockets: &ProbeSockets,
    probed: &mut ProbedPorts,
) -> Result<Option<DetectedProtocol>, SessionError> {
    for (port, _) in ports_to_probe(plan) {
        for probe in PROBES {
            let known_spec =
                client_protocol(probe.protocol).filter(|spec| spec.kinds.contains(&plan.kind));
            let Some(spec) = known_spec.filter(|spec| ["sockperf", "echo"].contains(&spec.name))
            else {
                continue;
            };
            probed.add_udp(port);
            let socket = sockets.open_udp(SocketAddr::new(remote.ip(), port))?;
            let exchange = || -> io::Result<Vec<u8>> {
                socket.send(&(probe.request)())?;
                let mut reply = vec![0; 256];
                let bytes = socket.receive(&mut reply, sockets.with_round_trip(REPLY_TIMEOUT))?;
                reply.truncate(bytes);
                Ok(reply)
            };
            if (probe.is_reply)(&exchange().unwrap_or_default()) {
                return Ok(Some(DetectedProtocol::ThirdParty(spec, port)));
            }
        }
    }
    Ok(None)
}

/// Detects the iperf2 layout of a UDP server, which replies to the end marker of a flow with its
/// report. The probe flow has one datagram, because a lone end marker belongs to an earlier test.
fn detect_iperf2_udp(
    address: SocketAddr,
    sockets: &ProbeSockets,
) -> Result<Option<&'static ClientProtocolSpec>, SessionError> {
    let socket = sockets.open_udp(address)?;
    // Settings that legacy and current servers read.
    let settings = Iperf2Settings::legacy(address.port());
    let Ok(mut machine) = Iperf2UdpClient::new(settings, IPERF2_UDP_PROBE_BYTES) else {
        return Ok(None);
    };
    let mut datagram_bytes = machine.template();
    if let Some(at) = datagram_bytes.len().checked_sub(probes::ECHO_PROBE.len()) {
        datagram_bytes[at..].copy_from_slice(probes::ECHO_PROBE);
    }
    datagram::write_number(&mut datagram_bytes, 1, clock::now_realtime());
    if socket.send(&datagram_bytes).is_err() {
        return Ok(None);
    }
    machine.set_sent(1);
    machine.finish(clock::now());
    let timeout = sockets.with_round_trip(REPLY_TIMEOUT);
    let until = Instant::now() + timeout;
    let mut buffer = [0; 2048];
    while Instant::now() < until {
        if sockets.stop.load(Relaxed) {
            return Err(SessionError::Interrupted);
        }
        let now = clock::now();
        let wait = match machine.next_action(now) {
            Iperf2ClientAction::End => {
                machine.write_end(&mut datagram_bytes, clock::now_realtime(), now);
                // ICMP error: the port is closed.
                if socket.send(&datagram_bytes).is_err() {
                    return Ok(None);
                }
                continue;
            }
            Iperf2ClientAction::WaitUntil(at) => {
                Duration::from_nanos(at.saturating_sub(now).max(1_000_000))
            }
            Iperf2ClientAction::Request | Iperf2ClientAction::Idle => break,
        };
        match socket.receive(&mut buffer, wait.min(timeout)) {
            Ok(bytes) if machine.receive(&buffer[..bytes]) => {
                return Ok(client_protocol(report_layout(&buffer[..bytes])));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(None)
}

/// Returns the layout of a report: legacy servers have flags where current ones have the upper half
/// of a number.
fn report_layout(report: &[u8]) -> &'static str {
    match report.get(12..16) {
        Some([0x80, 0, 0, 0]) => "iperf2-legacy",
        _ => "iperf2",
    }
}

/// Probed ports, for the error text.
#[derive(Default)]
struct ProbedPorts {
    tcp: Vec<u16>,
    udp: Vec<u16>,
}

impl ProbedPorts {
    fn add_tcp(&mut self, port: u16) {
        if !self.tcp.contains(&port) {
            self.tcp.push(port);
        }
    }

    fn add_udp(&mut self, port: u16) {
        if !self.udp.contains(&port) {
            self.udp.push(port);
        }
    }

    /// Formats the ports: `TCP ports 5201, 5000 and UDP port 5001`.
    fn describe(&self) -> String {
        let of = |protocol, ports: &[u16]| {
            let numbers: Vec<_> = ports.iter().map(u16::to_string).collect();
            let port = if ports.len() == 1 { "port" } else { "ports" };
            (!ports.is_empty()).then(|| format!("{protocol} {port} {}", numbers.join(", ")))
        };
        let parts = [
            of(TransportProtocol::Tcp, &self.tcp),
            of(TransportProtocol::Udp, &self.udp),
        ];
        parts
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(" and ")
    }
}

/// Connects; `None` if no program listens. If one `was_open` before, the connect is retried for a
/// while.
fn connect_if_open(
    address: SocketAddr,
    sockets: &ProbeSockets,
    was_open: bool,
) -> Result<Option<Socket>, SessionError> {
    let begin = Instant::now();
    loop {
        if sockets.stop.load(Relaxed) {
            return Err(SessionError::Interrupted);
        }
        match sockets.connect(address) {
            Ok(stream) => return Ok(Some(stream)),
            Err(SessionError::ConnectionRefused { .. })
                if !was_open || begin.elapsed() > sockets.with_round_trip(RECOVERY_TIME) =>
            {
                return Ok(None);
            }
            Err(SessionError::ConnectionRefused { .. }) => std::thread::sleep(RETRY_INTERVAL),
            Err(error) => return Err(error),
        }
    }
}

/// Detects the protocol of the server.
///
/// # Errors
/// If no port accepts a connection, or no reply is recognised.
pub fn detect(
    plan: &Plan,
    remote: SocketAddr,
    sockets: &ProbeSockets,
) -> Result<DetectedProtocol, SessionError> {
    let mut accepted = false;
    let mut unfit = None;
    let mut probed = ProbedPorts::default();
    // A server that cannot run the plan is skipped: another one may run on the same host.
    let supports_plan = |spec: &ClientProtocolSpec| {
        spec.kinds.contains(&plan.kind) && super::reject_plan(spec, plan).is_none()
    };
    let (mut tcp_blocked, udp) = (false, plan.protocol == TransportProtocol::Udp);
    let tolerate_timeout = |connected, tcp_blocked: &mut bool| match connected {
        Err(SessionError::NoReply { .. }) if udp => {
            *tcp_blocked = true;
            Ok(None)
        }
        connected => connected,
    };
    for (port, fallback) in ports_to_probe(plan) {
        let mut port_open = false;
        let mut address = remote;
        address.set_port(port);
        let mut has_reply = false;
        'tcp: {
            // A firewall that drops connections may pass datagrams: the timeout is spent once.
            if tcp_blocked {
                break 'tcp;
            }
            probed.add_tcp(port);
            // A server that sends payload may do so without any request.
            let only_receives =
                plan.has_direction(Direction::Receive) && !plan.has_direction(Direction::Send);
            if let Some(spec) = port_owner(plan, port)
                .or_else(|| super::client_protocol("chargen").filter(|_| only_receives))
            {
                let is_owner = port_owner(plan, port).is_some();
                let connected = connect_if_open(address, sockets, false);
                let Some(stream) = tolerate_timeout(connected, &mut tcp_blocked)? else {
                    break 'tcp;
                };
                (accepted, port_open) = (true, true);
                if is_owner || sends_first(&stream, sockets.with_round_trip(SEND_FIRST_TIMEOUT)) {
                    if supports_plan(spec) {
                        return Ok(DetectedProtocol::ThirdParty(spec, port));
                    }
                    unfit.get_or_insert((spec, address));
                    break 'tcp;
                }
                drop(stream);
            }
            for probe in probes(port) {
                let connected = connect_if_open(address, sockets, port_open);
                let Some(mut stream) = tolerate_timeout(connected, &mut tcp_blocked)? else {
                    // The port is closed; try the next one.
                    break;
                };
                (accepted, port_open) = (true, true);
                let request = (probe.request)();
                let mut exchange = || -> io::Result<Vec<u8>> {
                    stream.set_nonblocking(false)?;
                    stream.set_read_timeout(Some(sockets.with_round_trip(REPLY_TIMEOUT)))?;
                    stream.write_all(&request)?;
                    let mut reply = vec![0; 256];
                    let bytes = stream.read(&mut reply)?;
                    reply.truncate(bytes);
                    Ok(reply)
                };
                let reply = exchange().unwrap_or_default();
                has_reply |= !reply.is_empty();
                let Some(matched) = classify_reply(&request, &reply) else {
                    continue;
                };
                match client_protocol(matched.protocol) {
                    None => return Ok(DetectedProtocol::Linerate),
                    Some(spec) if supports_plan(spec) => {
                        drop(stream);
                        std::thread::sleep(sockets.with_round_trip(RECOVERY_TIME));
                        return Ok(DetectedProtocol::ThirdParty(spec, port));
                    }
                    // The protocol is recognised but does not support this measurement.
                    Some(spec) => {
                        unfit.get_or_insert((spec, address));
                        break;
                    }
                }
            }
            // An accepted connection shows nothing about datagrams.
            if port_open
                && !has_reply
                && plan.protocol == TransportProtocol::Tcp
                && let Some(spec) = fallback.and_then(client_protocol)
            {
                if !supports_plan(spec) {
                    unfit.get_or_insert((spec, address));
                    break 'tcp;
                }
                return Ok(DetectedProtocol::ThirdParty(spec, port));
            }
        }
        // A UDP server of iperf2 accepts no connections.
        if !probes_iperf2_udp(plan, port) {
            continue;
        }
        probed.add_udp(port);
        match detect_iperf2_udp(address, sockets)? {
            Some(spec) if supports_plan(spec) => {
                std::thread::sleep(sockets.with_round_trip(UDP_RECOVERY_TIME));
                return Ok(DetectedProtocol::ThirdParty(spec, port));
            }
            Some(spec) => {
                unfit.get_or_insert((spec, address));
            }
            None => {}
        }
    }
    if udp && let Some(detected) = detect_udp_responder(plan, remote, sockets, &mut probed)? {
        return Ok(detected);
    }
    if let Some((spec, address)) = unfit
        && let Some(rejection) = super::reject_plan(spec, plan)
    {
        let reason = rejection.reason;
        return Err(protocol_error(
            address,
            format!("serves {}, and {reason}", spec.name),
        ));
    }
    let ports = probed.describe();
    Err(protocol_error(
        remote,
        match accepted {
            true => format!(
                "accepts connections and sends no recognised reply (probed: {ports}): name its protocol with \
                 --peer, and its port with -p"
            ),
            false => format!(
                "no recognised server answers there (probed: {ports}): start one, or name its port with \
                 -p and its protocol with --peer"
            ),
        },
    ))
}

/// Returns whether a port is probed for iperf2 over UDP: its default port, and a named one.
fn probes_iperf2_udp(plan: &Plan, port: u16) -> bool {
    let is_named = plan.port != 0 && plan.port != DEFAULT_PORT;
    let udp = plan.kind == RunKind::Throughput && plan.protocol == TransportProtocol::Udp;
    udp && (is_named || port == IPERF2_PORT)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::UdpSocket;
    use std::sync::atomic::AtomicBool;

    use linerate_protocol::control::{ControlCodec, Hello};
    use linerate_protocol::iperf2::{Iperf2Report, ReportLayout};
    use linerate_session::dial::SourceBinding;

    use super::*;
    /// Detects over the kernel's sockets.
    fn detect_over_kernel(
        plan: &Plan,
        remote: SocketAddr,
    ) -> Result<DetectedProtocol, SessionError> {
        let sockets = ProbeSockets {
            local: &SourceBinding::default(),
            stack: None,
            stop: &AtomicBool::new(false),
            shortest_connect: Cell::default(),
        };
        detect(plan, remote, &sockets)
    }

    #[test]
    fn the_owner_of_a_port_is_probed_first_and_each_protocol_once() {
        for (port, first) in [
            (5000, "nuttcp"),
            (5001, "iperf2"),
            (11_111, "sockperf"),
            (7, "echo"),
            (5201, "linerate"),
            (4_242, "linerate"),
        ] {
            let protocols: Vec<_> = probes(port).map(|probe| probe.protocol).collect();
            assert_eq!(protocols[0], first, "{port}");
            assert_eq!(protocols.len(), PROBES.len());
            assert!(
                PROBES
                    .iter()
                    .all(|probe| protocols.contains(&probe.protocol))
            );
        }
    }

    #[test]
    fn a_server_that_sends_first_is_read_first() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        let sender = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b" !\"#$%&").unwrap();
            // Probe bytes of the client would arrive here.
            let mut received = Vec::new();
            let _ = stream.read_to_end(&mut received);
            received
        });
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "127.0.0.1");
        (plan.port, plan.directions) = (remote.port(), vec![Direction::Receive]);
        let detected = detect_over_kernel(&plan, remote).unwrap();
        assert!(
            matches!(detected, DetectedProtocol::ThirdParty(caller, _) if caller.name == "chargen")
        );
        assert_eq!(sender.join().unwrap(), b"");
    }

    /// Starts an iperf2 server for datagrams only.
    fn start_iperf2_server(layout: ReportLayout) -> (SocketAddr, std::thread::JoinHandle<u64>) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = socket.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            let (mut buffer, mut payload) = ([0; 2048], 0);
            loop {
                let (bytes, from) = socket.recv_from(&mut buffer).unwrap();
                let header = datagram::read_header(&buffer[..bytes], false).unwrap();
                if header.sequence > 0 {
                    payload += 1;
                    continue;
                }
                let report = Iperf2Report {
                    datagrams: 2,
                    ..Iperf2Report::default()
                };
                socket.send_to(&report.write(layout), from).unwrap();
                return payload;
            }
        });
        (remote, serving)
    }

    #[test]
    fn iperf2_is_detected_over_udp_only() {
        for (layout, name) in [
            (ReportLayout::Current, "iperf2"),
            (ReportLayout::Legacy, "iperf2-legacy"),
        ] {
            let (remote, serving) = start_iperf2_server(layout);
            let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "127.0.0.1");
            plan.port = remote.port();
            let detected = detect_over_kernel(&plan, remote).unwrap();
            assert!(
                matches!(detected, DetectedProtocol::ThirdParty(caller, port) if caller.name == name && port == remote.port()),
                "{name}"
            );
            // The server received one datagram of payload only.
            assert_eq!(serving.join().unwrap(), 1);
        }
    }

    #[test]
    fn a_failed_detection_lists_the_probed_ports() {
        let free = UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let mut plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "127.0.0.1");
        plan.port = free.port();
        let detected = detect_over_kernel(&plan, free);
        let Err(error) = detected else {
            panic!("detected a server");
        };
        let (port, problem) = (free.port(), error.to_report().to_string());
        let ports = format!("probed: TCP port {port} and UDP port {port}");
        assert!(problem.contains(&ports), "{problem}");
        let mut probed = ProbedPorts::default();
        for port in [5201, 5000, 5201] {
            probed.add_tcp(port);
        }
        assert_eq!(probed.describe(), "TCP ports 5201, 5000");
    }

    #[test]
    fn discard_and_chargen_own_their_ports() {
        let plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "127.0.0.1");
        let name = |port| port_owner(&plan, port).map(|spec| spec.name);
        assert_eq!((name(9), name(19)), (Some("discard"), Some("chargen")));
        assert_eq!(name(5001), None);
    }

    #[test]
    fn a_reply_identifies_its_protocol_whatever_the_probe() {
        for probe in PROBES {
            let request = (probe.request)();
            let name = |reply: &[u8]| classify_reply(&request, reply).map(|probe| probe.protocol);
            // iperf3 accepts any first bytes as a cookie.
            assert_eq!(
                name(&[Iperf3State::ParamExchange.to_byte()]),
                Some("iperf3")
            );
            assert_eq!(name(&BUSY), Some("iperf3"));
            assert_eq!(name(b"HELO nuttcp v6.1.2\n"), Some("nuttcp"));
            assert_eq!(name(&request), Some("echo"));
            assert_eq!(name(&request[..1]), Some("echo"));
            assert_eq!(name(b""), None);
            assert_eq!(name(b"SSH-2.0-x\r\n"), None);
            let mut server = ControlCodec::server(Hello::new("linerate 0.1.0")).unwrap();
            server.receive(&probes::linerate()).unwrap();
            server.next_frame().unwrap();
            assert_eq!(name(server.outgoing()), Some("linerate"));
        }
    }
}
