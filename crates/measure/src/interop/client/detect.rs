//! Detection of the server's protocol (`--peer auto`), by probes at well-known ports.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use linerate_dialect::iperf2::{Due, Settings, UdpClient, datagram};
use linerate_dialect::iperf3::{BUSY, State};
use linerate_dialect::sockperf::Header;
use linerate_dialect::{control, nuttcp};
use linerate_host::sys::clock;
use linerate_metric::plan::{DEFAULT_PORT, Direction, Kind, Plan, Protocol};
use socket2::Socket;

use super::probe_sockets::Asker;
use super::setup_context::foreign;
use super::{Caller, caller};
use crate::error::MeasureError;
use crate::interop::probes::{self, END_BYTES};

/// Time for a reply to a probe.
const ANSWER: Duration = Duration::from_millis(700);

/// Time for a server that sends first to do so.
const UNASKED: Duration = Duration::from_millis(300);

/// Time for a server to be ready again after a connection without a test: iperf3 and nuttcp serve
/// one client at a time, and reject others in that time.
const RECOVERY: Duration = Duration::from_millis(500);

/// Time for an iperf2 UDP server to be ready again: it replies to end markers until a quarter of a
/// second of silence, and counts datagrams before that into the previous test (2.1.8 needs a
/// second).
const UDP_RECOVERY: Duration = Duration::from_millis(1_200);

const IPERF2_PORT: u16 = 5001;

/// Pause between attempts at a port that rejects for a moment.
const AGAIN: Duration = Duration::from_millis(100);

/// Detected protocol.
pub enum Found {
    /// Protocol of our own server.
    Own,
    /// Protocol of another tool, with its port.
    Foreign(&'static Caller, u16),
}

/// Probe that only one protocol replies to in its way.
struct Probe {
    dialect: &'static str,
    words: fn() -> Vec<u8>,
    is_answer: fn(&[u8]) -> bool,
}

/// Probes in the order of use, except that the protocol that owns a port comes first. Some probes
/// harm other servers (reference iperf2 crashes on nuttcp's, so it comes early). A server that
/// waits for more bytes must not receive a probe that it takes for payload before the other probes.
const PROBES: &[Probe] = &[
    Probe {
        dialect: "linerate",
        words: probes::own,
        is_answer: is_own,
    },
    Probe {
        dialect: "iperf2",
        words: probes::iperf2,
        is_answer: |answer| answer.starts_with(&[0, 0, 0, 2, 0, 0, 0]),
    },
    Probe {
        dialect: "nuttcp",
        words: || probes::NUTTCP.to_vec(),
        is_answer: |answer| answer.starts_with(b"HELO nuttcp v"),
    },
    Probe {
        dialect: "iperf3",
        words: probes::iperf3,
        is_answer: |answer| {
            answer.starts_with(&[State::ParamExchange.to_byte()]) || answer.starts_with(&BUSY)
        },
    },
    Probe {
        dialect: "sockperf",
        words: || probes::SOCKPERF.bytes().to_vec(),
        is_answer: |answer| Header::read(answer) == Some(probes::SOCKPERF.answered()),
    },
    Probe {
        dialect: "echo",
        words: || probes::MARK.to_vec(),
        is_answer: |answer| answer == probes::MARK,
    },
];

/// Returns the probes for a port, the one of its owner first.
fn probes(port: u16) -> impl Iterator<Item = &'static Probe> {
    let owner = match port {
        nuttcp::CONTROL_PORT => "nuttcp",
        IPERF2_PORT => "iperf2",
        linerate_dialect::sockperf::PORT => "sockperf",
        linerate_dialect::echo::PORT => "echo",
        _ => "linerate",
    };
    let is_owner = move |probe: &&Probe| probe.dialect == owner;
    let others = PROBES.iter().filter(move |probe| !is_owner(probe));
    PROBES.iter().filter(is_owner).chain(others)
}

/// Returns the protocol of a reply to `request`. It need not be the probed one: iperf3 accepts any
/// bytes as its cookie, and an unchanged copy means echo.
fn whose(words: &[u8], answer: &[u8]) -> Option<&'static Probe> {
    let echoed = !answer.is_empty() && words.starts_with(answer);
    PROBES.iter().find(|probe| match echoed {
        true => probe.dialect == "echo",
        false => (probe.is_answer)(answer),
    })
}

fn is_own(answer: &[u8]) -> bool {
    answer.starts_with(&control::ANSWER_MAGIC) || answer.starts_with(&control::CONTROL_MAGIC)
}

/// Returns the ports to probe, each with the protocol to assume for a port that accepts a
/// connection and sends nothing.
fn ports(plan: &Plan) -> Vec<(u16, Option<&'static str>)> {
    let named = plan.port;
    if named != 0 && named != DEFAULT_PORT {
        let silent = match plan.kind {
            Kind::Throughput => Some("iperf2-legacy"),
            Kind::Latency | Kind::Forward | Kind::Generate | Kind::Stack => None,
        };
        return vec![(named, silent)];
    }
    match plan.kind {
        Kind::Throughput => vec![
            (DEFAULT_PORT, None),
            (nuttcp::CONTROL_PORT, None),
            (IPERF2_PORT, Some("iperf2-legacy")),
            (linerate_dialect::discard::PORT, Some("discard")),
            (linerate_dialect::chargen::PORT, None),
        ],
        Kind::Latency | Kind::Forward => vec![
            (DEFAULT_PORT, None),
            (linerate_dialect::sockperf::PORT, None),
            (linerate_dialect::echo::PORT, None),
            (IPERF2_PORT, None),
        ],
        // No server takes part in it.
        Kind::Generate | Kind::Stack => Vec::new(),
    }
}

/// Returns the protocol that owns a port exclusively, if it fits the plan: a probe would only be
/// payload there.
fn owner(plan: &Plan, port: u16) -> Option<&'static Caller> {
    let name = match port {
        linerate_dialect::discard::PORT => "discard",
        linerate_dialect::chargen::PORT => "chargen",
        _ => return None,
    };
    caller(name).filter(|caller| caller.kinds.contains(&plan.kind))
}

/// Returns whether a server sends first.
fn sends_unasked(stream: &Socket) -> bool {
    let heard = || -> io::Result<usize> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(UNASKED))?;
        (&*stream).read(&mut [0; 256])
    };
    heard().is_ok_and(|bytes| bytes > 0)
}

/// Probes for protocols that respond over UDP only.
fn by_datagram(
    plan: &Plan,
    far: SocketAddr,
    asker: &Asker,
    tried: &mut Tried,
) -> Result<Option<Found>, MeasureError> {
    for (port, _) in ports(plan) {
        for probe in PROBES {
            let known = caller(probe.dialect).filter(|caller| caller.kinds.contains(&plan.kind));
            let Some(caller) = known.filter(|caller| ["sockperf", "echo"].contains(&caller.name))
            else {
                continue;
            };
            tried.udp(port);
            let line = asker.datagrams(SocketAddr::new(far.ip(), port))?;
            let ask = || -> io::Result<Vec<u8>> {
                line.send(&(probe.words)())?;
                let mut answer = vec![0; 256];
                let bytes = line.receive(&mut answer, ANSWER)?;
                answer.truncate(bytes);
                Ok(answer)
            };
            if (probe.is_answer)(&ask().unwrap_or_default()) {
                return Ok(Some(Found::Foreign(caller, port)));
            }
        }
    }
    Ok(None)
}

/// Detects the iperf2 layout of a UDP server, which replies to the end marker of a flow with its
/// report. The probe flow has one datagram, because a lone end marker belongs to an earlier test.
fn iperf2_by_datagram(
    address: SocketAddr,
    asker: &Asker,
) -> Result<Option<&'static Caller>, MeasureError> {
    let line = asker.datagrams(address)?;
    // Settings that legacy and current servers read.
    let settings = Settings::legacy(address.port());
    let Ok(mut machine) = UdpClient::new(settings, END_BYTES) else {
        return Ok(None);
    };
    let mut words = machine.template();
    if let Some(at) = words.len().checked_sub(probes::MARK.len()) {
        words[at..].copy_from_slice(probes::MARK);
    }
    datagram::write_number(&mut words, 1, clock::real());
    if line.send(&words).is_err() {
        return Ok(None);
    }
    machine.count(1);
    machine.finish(clock::now());
    let until = Instant::now() + ANSWER;
    let mut room = [0; 2048];
    while Instant::now() < until {
        if asker.stop.load(Relaxed) {
            return Err(MeasureError::Interrupted);
        }
        let now = clock::now();
        let wait = match machine.due(now) {
            Due::End => {
                machine.write_end(&mut words, clock::real(), now);
                // ICMP error: the port is closed.
                if line.send(&words).is_err() {
                    return Ok(None);
                }
                continue;
            }
            Due::At(at) => Duration::from_nanos(at.saturating_sub(now).max(1_000_000)),
            Due::Request | Due::Nothing => break,
        };
        match line.receive(&mut room, wait.min(ANSWER)) {
            Ok(bytes) if machine.receive(&room[..bytes]) => {
                return Ok(caller(layout(&room[..bytes])));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(None)
}

/// Returns the layout of a report: legacy servers have flags where current ones have the upper half
/// of a number.
fn layout(report: &[u8]) -> &'static str {
    match report.get(12..16) {
        Some([0x80, 0, 0, 0]) => "iperf2-legacy",
        _ => "iperf2",
    }
}

/// Probed ports, for the error text.
#[derive(Default)]
struct Tried {
    tcp: Vec<u16>,
    udp: Vec<u16>,
}

impl Tried {
    fn tcp(&mut self, port: u16) {
        if !self.tcp.contains(&port) {
            self.tcp.push(port);
        }
    }

    fn udp(&mut self, port: u16) {
        if !self.udp.contains(&port) {
            self.udp.push(port);
        }
    }

    /// Formats the ports: `TCP ports 5201, 5000 and UDP port 5001`.
    fn words(&self) -> String {
        let of = |protocol, ports: &[u16]| {
            let numbers: Vec<_> = ports.iter().map(u16::to_string).collect();
            let port = if ports.len() == 1 { "port" } else { "ports" };
            (!ports.is_empty()).then(|| format!("{protocol} {port} {}", numbers.join(", ")))
        };
        let parts = [of(Protocol::Tcp, &self.tcp), of(Protocol::Udp, &self.udp)];
        parts
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(" and ")
    }
}

/// Connects; `None` if no program listens. If one `was_open` before, the connect is retried for a
/// while.
fn enter(
    address: SocketAddr,
    asker: &Asker,
    listened: bool,
) -> Result<Option<Socket>, MeasureError> {
    let begin = Instant::now();
    loop {
        if asker.stop.load(Relaxed) {
            return Err(MeasureError::Interrupted);
        }
        match asker.connect(address) {
            Ok(stream) => return Ok(Some(stream)),
            Err(MeasureError::Refused { .. }) if !listened || begin.elapsed() > RECOVERY => {
                return Ok(None);
            }
            Err(MeasureError::Refused { .. }) => std::thread::sleep(AGAIN),
            Err(error) => return Err(error),
        }
    }
}

/// Detects the protocol of the server.
///
/// # Errors
/// If no port accepts a connection, or no reply is recognised.
pub fn find(plan: &Plan, far: SocketAddr, asker: &Asker) -> Result<Found, MeasureError> {
    let mut taken = false;
    let mut unfit = None;
    let mut tried = Tried::default();
    // A server that cannot run the plan is skipped: another one may run on the same host.
    let fits = |caller: &Caller| {
        caller.kinds.contains(&plan.kind) && super::refuse(caller, plan).is_none()
    };
    let (mut mute, udp) = (false, plan.protocol == Protocol::Udp);
    let passable = |entered, mute: &mut bool| match entered {
        Err(MeasureError::Silent { .. }) if udp => {
            *mute = true;
            Ok(None)
        }
        entered => entered,
    };
    for (port, silent) in ports(plan) {
        let mut here = false;
        let mut address = far;
        address.set_port(port);
        let mut answered = false;
        'tcp: {
            // A firewall that drops connections may pass datagrams: the timeout is spent once.
            if mute {
                break 'tcp;
            }
            tried.tcp(port);
            // A server that sends payload may do so without any request.
            let listens = plan.flows(Direction::Receive) && !plan.flows(Direction::Send);
            if let Some(caller) =
                owner(plan, port).or_else(|| super::caller("chargen").filter(|_| listens))
            {
                let owned = owner(plan, port).is_some();
                let entered = enter(address, asker, false);
                let Some(stream) = passable(entered, &mut mute)? else {
                    break 'tcp;
                };
                (taken, here) = (true, true);
                if owned || sends_unasked(&stream) {
                    if fits(caller) {
                        return Ok(Found::Foreign(caller, port));
                    }
                    unfit.get_or_insert((caller, address));
                    break 'tcp;
                }
                drop(stream);
            }
            for probe in probes(port) {
                let entered = enter(address, asker, here);
                let Some(mut stream) = passable(entered, &mut mute)? else {
                    // The port is closed; try the next one.
                    break;
                };
                (taken, here) = (true, true);
                let words = (probe.words)();
                let mut ask = || -> io::Result<Vec<u8>> {
                    stream.set_nonblocking(false)?;
                    stream.set_read_timeout(Some(ANSWER))?;
                    stream.write_all(&words)?;
                    let mut answer = vec![0; 256];
                    let bytes = stream.read(&mut answer)?;
                    answer.truncate(bytes);
                    Ok(answer)
                };
                let answer = ask().unwrap_or_default();
                answered |= !answer.is_empty();
                let Some(answers) = whose(&words, &answer) else {
                    continue;
                };
                match caller(answers.dialect) {
                    None => return Ok(Found::Own),
                    Some(caller) if fits(caller) => {
                        drop(stream);
                        std::thread::sleep(RECOVERY);
                        return Ok(Found::Foreign(caller, port));
                    }
                    // The protocol is recognised but does not support this measurement.
                    Some(caller) => {
                        unfit.get_or_insert((caller, address));
                        break;
                    }
                }
            }
            // An accepted connection shows nothing about datagrams.
            if here
                && !answered
                && plan.protocol == Protocol::Tcp
                && let Some(caller) = silent.and_then(caller)
            {
                if !fits(caller) {
                    unfit.get_or_insert((caller, address));
                    break 'tcp;
                }
                return Ok(Found::Foreign(caller, port));
            }
        }
        // A UDP server of iperf2 accepts no connections.
        if !asks_iperf2(plan, port) {
            continue;
        }
        tried.udp(port);
        match iperf2_by_datagram(address, asker)? {
            Some(caller) if fits(caller) => {
                std::thread::sleep(UDP_RECOVERY);
                return Ok(Found::Foreign(caller, port));
            }
            Some(caller) => {
                unfit.get_or_insert((caller, address));
            }
            None => {}
        }
    }
    if udp && let Some(found) = by_datagram(plan, far, asker, &mut tried)? {
        return Ok(found);
    }
    if let Some((caller, address)) = unfit
        && let Some(refusal) = super::refuse(caller, plan)
    {
        let why = refusal.why;
        return Err(foreign(
            address,
            format!("speaks {}, and {why}", caller.name),
        ));
    }
    let ports = tried.words();
    Err(foreign(
        far,
        match taken {
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
fn asks_iperf2(plan: &Plan, port: u16) -> bool {
    let is_named = plan.port != 0 && plan.port != DEFAULT_PORT;
    let udp = plan.kind == Kind::Throughput && plan.protocol == Protocol::Udp;
    udp && (is_named || port == IPERF2_PORT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_dialect::control::{Connection, Hello};
    use linerate_dialect::iperf2::{Layout, Report};
    use std::net::UdpSocket;
    use std::sync::atomic::AtomicBool;

    use crate::session::dial::Local;

    /// Detects over the kernel's sockets.
    fn find_over_kernel(plan: &Plan, far: SocketAddr) -> Result<Found, MeasureError> {
        let asker = Asker {
            local: &Local::default(),
            stack: None,
            stop: &AtomicBool::new(false),
        };
        find(plan, far, &asker)
    }

    #[test]
    fn the_owner_of_a_port_is_asked_first_and_everybody_once() {
        for (port, first) in [
            (5000, "nuttcp"),
            (5001, "iperf2"),
            (11_111, "sockperf"),
            (7, "echo"),
            (5201, "linerate"),
            (4_242, "linerate"),
        ] {
            let asked: Vec<_> = probes(port).map(|probe| probe.dialect).collect();
            assert_eq!(asked[0], first, "{port}");
            assert_eq!(asked.len(), PROBES.len());
            assert!(PROBES.iter().all(|probe| asked.contains(&probe.dialect)));
        }
    }

    #[test]
    fn who_sends_unasked_is_listened_to_first() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let far = listener.local_addr().unwrap();
        let sender = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b" !\"#$%&").unwrap();
            // Probe bytes of the client would arrive here.
            let mut said = Vec::new();
            let _ = stream.read_to_end(&mut said);
            said
        });
        let mut plan = Plan::new(Kind::Throughput, Protocol::Tcp, "127.0.0.1");
        (plan.port, plan.directions) = (far.port(), vec![Direction::Receive]);
        let found = find_over_kernel(&plan, far).unwrap();
        assert!(matches!(found, Found::Foreign(caller, _) if caller.name == "chargen"));
        assert_eq!(sender.join().unwrap(), b"");
    }

    /// Starts an iperf2 server for datagrams only.
    fn reporting(layout: Layout) -> (SocketAddr, std::thread::JoinHandle<u64>) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = socket.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            let (mut room, mut payload) = ([0; 2048], 0);
            loop {
                let (bytes, from) = socket.recv_from(&mut room).unwrap();
                let header = datagram::read_header(&room[..bytes], false).unwrap();
                if header.sequence > 0 {
                    payload += 1;
                    continue;
                }
                let report = Report {
                    datagrams: 2,
                    ..Report::default()
                };
                socket.send_to(&report.write(layout), from).unwrap();
                return payload;
            }
        });
        (far, serving)
    }

    #[test]
    fn iperf2_is_found_where_it_takes_datagrams_alone() {
        for (layout, name) in [(Layout::Today, "iperf2"), (Layout::Legacy, "iperf2-legacy")] {
            let (far, serving) = reporting(layout);
            let mut plan = Plan::new(Kind::Throughput, Protocol::Udp, "127.0.0.1");
            plan.port = far.port();
            let found = find_over_kernel(&plan, far).unwrap();
            assert!(
                matches!(found, Found::Foreign(caller, port) if caller.name == name && port == far.port()),
                "{name}"
            );
            // The server received one datagram of payload only.
            assert_eq!(serving.join().unwrap(), 1);
        }
    }

    #[test]
    fn who_finds_nobody_says_where_he_asked() {
        let free = UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let mut plan = Plan::new(Kind::Throughput, Protocol::Udp, "127.0.0.1");
        plan.port = free.port();
        let found = find_over_kernel(&plan, free);
        let Err(error) = found else {
            panic!("detected a server");
        };
        let (port, said) = (free.port(), error.problem().to_string());
        let asked = format!("probed: TCP port {port} and UDP port {port}");
        assert!(said.contains(&asked), "{said}");
        let mut tried = Tried::default();
        for port in [5201, 5000, 5201] {
            tried.tcp(port);
        }
        assert_eq!(tried.words(), "TCP ports 5201, 5000");
    }

    #[test]
    fn the_ports_of_discard_and_chargen_are_theirs() {
        let plan = Plan::new(Kind::Throughput, Protocol::Tcp, "127.0.0.1");
        let name = |port| owner(&plan, port).map(|caller| caller.name);
        assert_eq!((name(9), name(19)), (Some("discard"), Some("chargen")));
        assert_eq!(name(5001), None);
    }

    #[test]
    fn an_answer_tells_who_gave_it_whoever_was_asked() {
        for probe in PROBES {
            let words = (probe.words)();
            let name = |answer: &[u8]| whose(&words, answer).map(|probe| probe.dialect);
            // iperf3 accepts any first bytes as a cookie.
            assert_eq!(name(&[State::ParamExchange.to_byte()]), Some("iperf3"));
            assert_eq!(name(&BUSY), Some("iperf3"));
            assert_eq!(name(b"HELO nuttcp v6.1.2\n"), Some("nuttcp"));
            assert_eq!(name(&words), Some("echo"));
            assert_eq!(name(&words[..1]), Some("echo"));
            assert_eq!(name(b""), None);
            assert_eq!(name(b"SSH-2.0-x\r\n"), None);
            let mut server = Connection::server(Hello::new("linerate 0.1.0")).unwrap();
            server.receive(&probes::own()).unwrap();
            server.next_frame().unwrap();
            assert_eq!(name(server.outgoing()), Some("linerate"));
        }
    }
}
