//! An iperf2 client on one stack, and the service on another.

use std::net::Ipv4Addr;
use std::sync::Arc;

use linerate_dialect::iperf2::datagram::{HEADER_BYTES, read_header, write_number};
use linerate_dialect::iperf2::{Amount, TcpServer, WriteTimes};
use linerate_metric::event::{Event, What};
use linerate_stack::TcpState;

use super::super::{Front, Services};
use super::*;
use crate::netstack::test_pair;
use crate::session::{PeerOptions, ServerOptions};

const SERVICE: u16 = 5_001;
/// Port on which the client listens.
const BACK: u16 = 5_002;
/// Bytes that the client requests: ten datagrams.
const WANTED: u64 = 10_000;

fn server() -> SocketAddr {
    SocketAddr::from(([10, 9, 0, 2], SERVICE))
}

fn any(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))
}

fn asks(way: Way, dual: Option<Dual>) -> Settings {
    Settings {
        way,
        dual,
        flows: 1,
        port: BACK,
        buffer_bytes: Some(1_000),
        amount: Some(Amount::Bytes(WANTED)),
        rate: Some(80_000_000),
        version: Some((0x0002_0001, 0x0008_0003)),
        ..Settings::default()
    }
}

/// The service, its client, and the rejections.
struct Scene {
    stacks: [Stack; 2],
    services: Services,
    events: std::sync::mpsc::Receiver<Event>,
}

impl Scene {
    fn new(name: &str, allow: &[&str]) -> Self {
        let mut stacks = test_pair::pair(name);
        let (say, events) = std::sync::mpsc::channel();
        let options = ServerOptions {
            peers: PeerOptions {
                allow: allow.iter().map(|one| one.parse().unwrap()).collect(),
                ..PeerOptions::default()
            },
            ..ServerOptions::default()
        };
        let emit: crate::session::Emit = Arc::new(move |event| drop(say.send(event)));
        let front = Front {
            hall: Arc::new(Hall::new(&options, vec![SERVICE], emit)),
            desk: None,
        };
        let specs = vec!["iperf2".parse().unwrap()];
        let services = Services::open(&mut stacks[1], specs, front).unwrap();
        Self {
            stacks,
            services,
            events,
        }
    }

    /// Polls until the client has what it waits for.
    fn until(&mut self, mut done: impl FnMut(&mut Stack) -> bool) {
        let services = &mut self.services;
        test_pair::until(&mut self.stacks, |[client, server]| {
            let now = clock::now();
            while let Some(socket) = server.ready() {
                services.changed(server, socket, now);
            }
            services.go_on(server, now);
            services.look(server, now);
            done(client)
        });
    }

    /// Sends the first datagram of a flow from the client.
    fn opens(&mut self, socket: SocketId, settings: &Settings) {
        let mut first = vec![0; 1_000];
        write_number(&mut first, 1, clock::real());
        settings
            .write(&mut first[HEADER_BYTES..], HEADER_BYTES)
            .unwrap();
        let client = &mut self.stacks[0];
        let sent = client.udp_send(socket, Some(server()), first.len(), |room| {
            room.copy_from_slice(&first);
        });
        assert!(matches!(sent, Poll::Ready(Ok(_))), "{sent:?}");
    }

    /// Opens a connection to the service and closes it, which validates the client's address.
    fn proves_itself(&mut self) {
        let socket = self.stacks[0].tcp_connect(server(), None).unwrap();
        self.until(|client| client.tcp_state(socket).unwrap() == TcpState::Established);
        // Until the service has processed the handshake.
        let hall = Arc::clone(&self.services.hall);
        self.until(|_| hall.is_known([10, 9, 0, 1].into()));
        self.stacks[0].close(socket).unwrap();
    }

    /// Returns the numbers of the datagrams at a socket, up to the third end marker.
    fn numbers(&mut self, socket: SocketId) -> Vec<i64> {
        let mut numbers = Vec::new();
        self.until(|client| {
            let _ = client.udp_receive_burst(socket, 32, |datagram, _| {
                assert_eq!(datagram.len(), 1_000);
                numbers.push(read_header(datagram, true).unwrap().sequence);
            });
            numbers.iter().filter(|number| **number < 0).count() == 3
        });
        numbers
    }

    fn refusals(&self) -> Vec<String> {
        let told = self.events.try_iter().filter_map(|event| match event.what {
            What::Refused { problem } => Some(problem.to_string()),
            _ => None,
        });
        told.collect()
    }
}

/// Ten datagrams, and the end marker as often as it is sent without a response.
fn ten_and_the_end() -> Vec<i64> {
    (1..=10).chain([-11; 3]).collect()
}

#[test]
fn who_proved_where_he_is_is_sent_a_flow() {
    let mut scene = Scene::new("flows-reverse", &[]);
    scene.proves_itself();
    let socket = scene.stacks[0].udp_bind(any(0)).unwrap();
    scene.opens(socket, &asks(Way::Reverse, None));
    assert_eq!(scene.numbers(socket), ten_and_the_end());
    assert!(scene.refusals().is_empty());
}

#[test]
fn who_did_not_is_told_of_at_the_host() {
    for (name, allow, sent) in [
        ("flows-unknown", &[][..], false),
        ("flows-network", &["10.9.0.0/24"], false),
        ("flows-allowed", &["10.9.0.1"], true),
    ] {
        let mut scene = Scene::new(name, allow);
        let socket = scene.stacks[0].udp_bind(any(0)).unwrap();
        scene.opens(socket, &asks(Way::Reverse, None));
        if sent {
            assert_eq!(scene.numbers(socket), ten_and_the_end(), "{name}");
            continue;
        }
        let mut told = Vec::new();
        let events = &scene.events;
        let services = &mut scene.services;
        test_pair::until(&mut scene.stacks, |[_, server]| {
            while let Some(socket) = server.ready() {
                services.changed(server, socket, clock::now());
            }
            told.extend(events.try_iter());
            !told.is_empty()
        });
        let What::Refused { problem } = &told[0].what else {
            panic!("{told:?}");
        };
        assert!(
            problem.next_step.contains("--allow 10.9.0.1"),
            "{problem:?}"
        );
        assert_eq!(scene.stacks[0].udp_waiting(socket).unwrap(), 0);
    }
}

/// Both flows at once, and one after the other once the client has sent its end marker.
#[test]
fn a_second_flow_goes_to_the_port_that_the_client_names() {
    for (name, dual) in [("flows-now", Dual::Now), ("flows-after", Dual::After)] {
        let mut scene = Scene::new(name, &[]);
        scene.proves_itself();
        let back = scene.stacks[0].udp_bind(any(BACK)).unwrap();
        let socket = scene.stacks[0].udp_bind(any(0)).unwrap();
        scene.opens(socket, &asks(Way::Forward, Some(dual)));
        if dual == Dual::After {
            let mut last = vec![0; 1_000];
            linerate_dialect::iperf2::datagram::write_end(&mut last, 1, clock::real());
            let client = &mut scene.stacks[0];
            let sent = client.udp_send(socket, Some(server()), last.len(), |room| {
                room.copy_from_slice(&last);
            });
            assert!(matches!(sent, Poll::Ready(Ok(_))));
            // The report of the first flow arrives before the second flow starts.
            scene.until(|client| client.udp_waiting(socket).unwrap() > 0);
            assert_eq!(scene.stacks[0].udp_waiting(back).unwrap(), 0);
        }
        assert_eq!(scene.numbers(back), ten_and_the_end(), "{name}");
    }
}

/// Returns the bytes of a connection that the service opens towards the client, which listens late.
fn comes_back(scene: &mut Scene, listener: SocketId) -> usize {
    let mut accepted = None;
    scene.until(|client| {
        if let Poll::Ready(socket) = client.tcp_accept(listener) {
            accepted = Some(socket.unwrap());
        }
        accepted.is_some()
    });
    let (socket, mut bytes) = (accepted.unwrap(), 0);
    scene.until(|client| {
        let came = client.tcp_receive(socket, |payload| (payload.len(), payload.len()));
        match came {
            Poll::Ready(Ok(0)) => true,
            Poll::Ready(Ok(some)) => {
                bytes += some;
                false
            }
            _ => false,
        }
    });
    bytes
}

#[test]
fn a_second_connection_goes_to_the_port_that_the_client_names() {
    for (name, dual) in [("dials-now", Dual::Now), ("dials-after", Dual::After)] {
        let mut scene = Scene::new(name, &[]);
        let socket = scene.stacks[0].tcp_connect(server(), None).unwrap();
        scene.until(|client| client.tcp_state(socket).unwrap() == TcpState::Established);
        let settings = Settings {
            rate: None,
            ..asks(Way::Forward, Some(dual))
        };
        let mut words = vec![0; settings.room_bytes(0)];
        settings.write(&mut words, 0).unwrap();
        assert!(
            TcpServer::new()
                .receive(&words, 0)
                .is_ok_and(|(_, job)| job.is_some())
        );
        let said = scene.stacks[0].tcp_send(socket, |room| {
            room[..words.len()].copy_from_slice(&words);
            words.len()
        });
        assert!(matches!(said, Poll::Ready(Ok(_))));
        if dual == Dual::After {
            scene.stacks[0].tcp_finish(socket).unwrap();
        }
        // The first attempts are refused.
        let begin = clock::now();
        scene.until(|_| clock::now() > begin + 50_000_000);
        let listener = scene.stacks[0].tcp_listen(any(BACK), 1).unwrap();
        assert_eq!(comes_back(&mut scene, listener), WANTED as usize, "{name}");
    }
}

/// `iperf -R --trip-times` over TCP: the reply, and writes with send times, at a rate and without
/// one.
#[test]
fn writes_say_when_they_left_to_who_asks() {
    for (name, rate) in [("times-free", None), ("times-paced", Some(80_000_000))] {
        let mut scene = Scene::new(name, &[]);
        let socket = scene.stacks[0].tcp_connect(server(), None).unwrap();
        scene.until(|client| client.tcp_state(socket).unwrap() == TcpState::Established);
        let settings = Settings {
            rate,
            ..asks(Way::Reverse, None)
        };
        let mut words = vec![0; settings.room_bytes(0)];
        settings.write(&mut words, 0).unwrap();
        // As the iperf2 client encodes it: a longer header with its start time, and the flag.
        words.resize(80, 0);
        words[3] = 80 << 1;
        words[33] |= 0x10;
        words[64..68].copy_from_slice(&1_u32.to_be_bytes());
        let told = Settings::read(&words, 0).unwrap();
        assert!(told.trip_times && told.start_ns.is_some());
        let begin = clock::real();
        let said = scene.stacks[0].tcp_send(socket, |room| {
            room[..words.len()].copy_from_slice(&words);
            words.len()
        });
        assert!(matches!(said, Poll::Ready(Ok(_))));
        let mut heard = Vec::new();
        scene.until(|client| {
            let came = client.tcp_receive(socket, |payload| {
                heard.extend_from_slice(payload);
                (payload.len(), payload.len())
            });
            matches!(came, Poll::Ready(Ok(0)))
        });
        let reply = heard.len() - WANTED as usize;
        assert!(
            Settings::read(&heard[..reply], 0).is_some_and(|told| told.trip_times),
            "{name}"
        );
        let (mut times, mut delays) = (WriteTimes::new(), Vec::new());
        let end = clock::real();
        times.receive(&heard[reply..], end, |delay| delays.push(delay));
        assert!(!times.is_lost(), "{name}");
        let most = (end - begin) as i64;
        // Timestamps have a resolution of 1 us.
        assert!(
            delays
                .iter()
                .all(|delay| (0..=most + 1_000).contains(delay)),
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
