//! An iperf2 client on one stack, and the service on another.

use std::net::Ipv4Addr;
use std::sync::Arc;

use linerate_protocol::iperf2::datagram::{HEADER_BYTES, read_header, write_number};
use linerate_protocol::iperf2::{Iperf2TcpServer, TestAmount, WriteDelayReader};
use linerate_record::event::{Event, EventKind};
use linerate_stack::TcpState;
use linerate_transport::stack_thread::stack_service::StackService;
use linerate_transport::test_support;

use super::super::{ServiceContext, StackServices};
use super::*;
use crate::options::{InteropOptions, ServerOptions};

const SERVICE: u16 = 5_001;
/// Port on which the client listens.
const CLIENT_PORT: u16 = 5_002;
/// Bytes that the client requests: ten datagrams.
const REQUESTED_BYTES: u64 = 10_000;

fn server() -> SocketAddr {
    SocketAddr::from(([10, 9, 0, 2], SERVICE))
}

fn any(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))
}

fn settings(direction: Iperf2Direction, dual: Option<DualTest>) -> Iperf2Settings {
    Iperf2Settings {
        direction,
        dual,
        flows: 1,
        port: CLIENT_PORT,
        buffer_bytes: Some(1_000),
        amount: Some(TestAmount::Bytes(REQUESTED_BYTES)),
        rate: Some(80_000_000),
        version: Some((0x0002_0001, 0x0008_0003)),
        ..Iperf2Settings::default()
    }
}

/// The service, its client, and the rejections.
struct ServiceSim {
    stacks: [Stack; 2],
    services: StackServices,
    events: std::sync::mpsc::Receiver<Event>,
}

impl ServiceSim {
    fn new(name: &str, allow: &[&str]) -> Self {
        let mut stacks = test_support::stack_pair(name);
        let (sender, events) = std::sync::mpsc::channel();
        let options = ServerOptions {
            interop: InteropOptions {
                allowed_networks: allow.iter().map(|text| text.parse().unwrap()).collect(),
                ..InteropOptions::default()
            },
            ..ServerOptions::default()
        };
        let emit: crate::options::EventCallback = Arc::new(move |event| drop(sender.send(event)));
        let front = ServiceContext {
            interop: Arc::new(InteropState::new(&options, vec![SERVICE], emit)),
            linerate: None,
        };
        let specs = vec!["iperf2".parse().unwrap()];
        let services = StackServices::open(&mut stacks[1], specs, front).unwrap();
        Self {
            stacks,
            services,
            events,
        }
    }

    /// Polls until the client has what it waits for.
    fn poll_until(&mut self, mut done: impl FnMut(&mut Stack) -> bool) {
        let services = &mut self.services;
        test_support::poll_until(&mut self.stacks, |[client, server]| {
            let now = clock::now();
            while let Some(socket) = server.next_ready() {
                services.on_socket_change(server, socket, now);
            }
            services.run_ready(server, now);
            services.poll_timers(server, now);
            done(client)
        });
    }

    /// Sends the first datagram of a flow from the client.
    fn open_flow(&mut self, socket: SocketId, settings: &Iperf2Settings) {
        let mut first = vec![0; 1_000];
        write_number(&mut first, 1, clock::now_realtime());
        settings
            .write(&mut first[HEADER_BYTES..], HEADER_BYTES)
            .unwrap();
        let client = &mut self.stacks[0];
        let sent = client.udp_send(socket, Some(server()), first.len(), |space| {
            space.copy_from_slice(&first);
        });
        assert!(matches!(sent, Poll::Ready(Ok(_))), "{sent:?}");
    }

    /// Opens a connection to the service and closes it, which validates the client's address.
    fn validate_address(&mut self) {
        let socket = self.stacks[0].tcp_connect(server(), None).unwrap();
        self.poll_until(|client| client.tcp_state(socket).unwrap() == TcpState::Established);
        // Until the service has processed the handshake.
        let interop = Arc::clone(&self.services.interop);
        self.poll_until(|_| interop.is_validated([10, 9, 0, 1].into()));
        self.stacks[0].close(socket).unwrap();
    }

    /// Returns the numbers of the datagrams at a socket, up to the third end marker.
    fn received_numbers(&mut self, socket: SocketId) -> Vec<i64> {
        let mut numbers = Vec::new();
        self.poll_until(|client| {
            let _ = client.udp_receive_burst(socket, 32, |datagram, _| {
                assert_eq!(datagram.len(), 1_000);
                numbers.push(read_header(datagram, true).unwrap().sequence);
            });
            numbers.iter().filter(|number| **number < 0).count() == 3
        });
        numbers
    }

    fn rejections(&self) -> Vec<String> {
        let problems = self.events.try_iter().filter_map(|event| match event.kind {
            EventKind::Refused { problem } => Some(problem.to_string()),
            _ => None,
        });
        problems.collect()
    }
}

/// Ten datagrams, and the end marker as often as it is sent without a response.
fn ten_and_the_end() -> Vec<i64> {
    (1..=10).chain([-11; 3]).collect()
}

#[test]
fn a_validated_client_is_sent_a_flow() {
    let mut sim = ServiceSim::new("flows-reverse", &[]);
    sim.validate_address();
    let socket = sim.stacks[0].udp_bind(any(0)).unwrap();
    sim.open_flow(socket, &settings(Iperf2Direction::Reverse, None));
    assert_eq!(sim.received_numbers(socket), ten_and_the_end());
    assert!(sim.rejections().is_empty());
}

#[test]
fn an_unvalidated_client_is_rejected_and_logged() {
    for (name, allow, sent) in [
        ("flows-unknown", &[][..], false),
        ("flows-network", &["10.9.0.0/24"], false),
        ("flows-allowed", &["10.9.0.1"], true),
    ] {
        let mut sim = ServiceSim::new(name, allow);
        let socket = sim.stacks[0].udp_bind(any(0)).unwrap();
        sim.open_flow(socket, &settings(Iperf2Direction::Reverse, None));
        if sent {
            assert_eq!(sim.received_numbers(socket), ten_and_the_end(), "{name}");
            continue;
        }
        let mut events_so_far = Vec::new();
        let events = &sim.events;
        let services = &mut sim.services;
        test_support::poll_until(&mut sim.stacks, |[_, server]| {
            while let Some(socket) = server.next_ready() {
                services.on_socket_change(server, socket, clock::now());
            }
            events_so_far.extend(events.try_iter());
            !events_so_far.is_empty()
        });
        let EventKind::Refused { problem } = &events_so_far[0].kind else {
            panic!("{events_so_far:?}");
        };
        assert!(
            problem.next_step.contains("--allow 10.9.0.1"),
            "{problem:?}"
        );
        assert_eq!(sim.stacks[0].udp_queued(socket).unwrap(), 0);
    }
}

/// Both flows at once, and one after the other once the client has sent its end marker.
#[test]
fn a_second_flow_goes_to_the_port_that_the_client_names() {
    for (name, dual) in [
        ("flows-now", DualTest::Simultaneous),
        ("flows-after", DualTest::Sequential),
    ] {
        let mut sim = ServiceSim::new(name, &[]);
        sim.validate_address();
        let second_socket = sim.stacks[0].udp_bind(any(CLIENT_PORT)).unwrap();
        let socket = sim.stacks[0].udp_bind(any(0)).unwrap();
        sim.open_flow(socket, &settings(Iperf2Direction::Forward, Some(dual)));
        if dual == DualTest::Sequential {
            let mut last = vec![0; 1_000];
            linerate_protocol::iperf2::datagram::write_end(&mut last, 1, clock::now_realtime());
            let client = &mut sim.stacks[0];
            let sent = client.udp_send(socket, Some(server()), last.len(), |space| {
                space.copy_from_slice(&last);
            });
            assert!(matches!(sent, Poll::Ready(Ok(_))));
            // The report of the first flow arrives before the second flow starts.
            sim.poll_until(|client| client.udp_queued(socket).unwrap() > 0);
            assert_eq!(sim.stacks[0].udp_queued(second_socket).unwrap(), 0);
        }
        assert_eq!(
            sim.received_numbers(second_socket),
            ten_and_the_end(),
            "{name}"
        );
    }
}

/// Returns the bytes of a connection that the service opens towards the client, which listens late.
fn second_connection_bytes(sim: &mut ServiceSim, listener: SocketId) -> usize {
    let mut accepted = None;
    sim.poll_until(|client| {
        if let Poll::Ready(socket) = client.tcp_accept(listener) {
            accepted = Some(socket.unwrap());
        }
        accepted.is_some()
    });
    let (socket, mut bytes) = (accepted.unwrap(), 0);
    sim.poll_until(|client| {
        let received = client.tcp_receive(socket, |payload| (payload.len(), payload.len()));
        match received {
            Poll::Ready(Ok(0)) => true,
            Poll::Ready(Ok(bytes_read)) => {
                bytes += bytes_read;
                false
            }
            _ => false,
        }
    });
    bytes
}

#[test]
fn a_second_connection_goes_to_the_port_that_the_client_names() {
    for (name, dual) in [
        ("dials-now", DualTest::Simultaneous),
        ("dials-after", DualTest::Sequential),
    ] {
        let mut sim = ServiceSim::new(name, &[]);
        let socket = sim.stacks[0].tcp_connect(server(), None).unwrap();
        sim.poll_until(|client| client.tcp_state(socket).unwrap() == TcpState::Established);
        let settings = Iperf2Settings {
            rate: None,
            ..settings(Iperf2Direction::Forward, Some(dual))
        };
        let mut header = vec![0; settings.required_bytes(0)];
        settings.write(&mut header, 0).unwrap();
        assert!(
            Iperf2TcpServer::new()
                .receive(&header, 0)
                .is_ok_and(|(_, job)| job.is_some())
        );
        let sent = sim.stacks[0].tcp_send(socket, |space| {
            space[..header.len()].copy_from_slice(&header);
            header.len()
        });
        assert!(matches!(sent, Poll::Ready(Ok(_))));
        if dual == DualTest::Sequential {
            sim.stacks[0].tcp_finish(socket).unwrap();
        }
        // The first attempts are refused.
        let begin = clock::now();
        sim.poll_until(|_| clock::now() > begin + 50_000_000);
        let listener = sim.stacks[0].tcp_listen(any(CLIENT_PORT), 1).unwrap();
        assert_eq!(
            second_connection_bytes(&mut sim, listener),
            REQUESTED_BYTES as usize,
            "{name}"
        );
    }
}

/// `iperf -R --trip-times` over TCP: the reply, and writes with send times, at a rate and without
/// one.
#[test]
fn writes_carry_send_times_on_request() {
    for (name, rate) in [("times-free", None), ("times-paced", Some(80_000_000))] {
        let mut sim = ServiceSim::new(name, &[]);
        let socket = sim.stacks[0].tcp_connect(server(), None).unwrap();
        sim.poll_until(|client| client.tcp_state(socket).unwrap() == TcpState::Established);
        let settings = Iperf2Settings {
            rate,
            ..settings(Iperf2Direction::Reverse, None)
        };
        let mut header = vec![0; settings.required_bytes(0)];
        settings.write(&mut header, 0).unwrap();
        // As the iperf2 client encodes it: a longer header with its start time, and the flag.
        header.resize(80, 0);
        header[3] = 80 << 1;
        header[33] |= 0x10;
        header[64..68].copy_from_slice(&1_u32.to_be_bytes());
        let read_back = Iperf2Settings::read(&header, 0).unwrap();
        assert!(read_back.trip_times && read_back.start_ns.is_some());
        let begin = clock::now_realtime();
        let sent = sim.stacks[0].tcp_send(socket, |space| {
            space[..header.len()].copy_from_slice(&header);
            header.len()
        });
        assert!(matches!(sent, Poll::Ready(Ok(_))));
        let mut received_bytes = Vec::new();
        sim.poll_until(|client| {
            let received = client.tcp_receive(socket, |payload| {
                received_bytes.extend_from_slice(payload);
                (payload.len(), payload.len())
            });
            matches!(received, Poll::Ready(Ok(0)))
        });
        let reply = received_bytes.len() - REQUESTED_BYTES as usize;
        assert!(
            Iperf2Settings::read(&received_bytes[..reply], 0)
                .is_some_and(|settings| settings.trip_times),
            "{name}"
        );
        let (mut times, mut delays) = (WriteDelayReader::new(), Vec::new());
        let end = clock::now_realtime();
        times.receive(&received_bytes[reply..], end, |delay| delays.push(delay));
        assert!(!times.is_out_of_sync(), "{name}");
        let max_delay = (end - begin) as i64;
        // Timestamps have a resolution of 1 us.
        assert!(
            delays
                .iter()
                .all(|delay| (0..=max_delay + 1_000).contains(delay)),
            "{delays:?}"
        );
        assert_eq!(delays.len(), 10, "{name}: ten writes of 1000 B");
        // At that rate each write takes 0.1 ms and has a send time of its own.
        assert!(
            rate.is_none() || delays.windows(2).all(|two| two[0] > two[1]),
            "{delays:?}"
        );
    }
}
