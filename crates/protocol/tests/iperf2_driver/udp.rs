//! UDP: flows either way, or both on one socket.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

use linerate_protocol::iperf2::datagram::{
    ENDS_WITHOUT_REPLY, read_header, write_end, write_number,
};
use linerate_protocol::iperf2::{
    DualTest, Iperf2ClientAction, Iperf2Datagram, Iperf2Direction, Iperf2Settings, Iperf2UdpClient,
    Iperf2UdpServer, QUIET_NS, fill,
};

use super::{Clock, NAP, Until, wall_ns};

/// What a datagram without a size of its own has.
const DATAGRAM: usize = 1470;

fn receive(socket: &UdpSocket, room: &mut [u8]) -> Option<(usize, SocketAddr)> {
    match socket.recv_from(room) {
        Ok(received) => Some(received),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
        // The other end has gone; its silence ends the flow.
        Err(_) => None,
    }
}

/// How long a test may take.
const PATIENCE_NS: u64 = 30_000_000_000;

/// The time between two datagrams.
fn gap_ns(rate_bps: Option<u64>, bytes: usize) -> u64 {
    bytes as u64 * 8 * 1_000_000_000 / rate_bps.unwrap_or(1_000_000)
}

/// A flow that was served.
pub struct Served {
    pub flow: Iperf2UdpServer,
    /// Datagrams that went to the client, without the end.
    pub sent: u64,
    /// The second flow, to the client.
    pub back: Option<Ran>,
}

/// Serves one flow to its end, and the one back that its client may want; `to_count` sends reports that
/// are larger than what they answer.
pub fn serve_one(socket: &UdpSocket, whole: bool) -> Served {
    socket.set_read_timeout(Some(NAP)).unwrap();
    let clock = Clock::start();
    let mut room = vec![0; 1 << 16];
    let (mut machine, from) = loop {
        let Some((bytes, from)) = receive(socket, &mut room) else {
            assert!(clock.now_ns() < PATIENCE_NS, "nobody came");
            continue;
        };
        if let Some(machine) = Iperf2UdpServer::open(&room[..bytes], wall_ns()) {
            break (machine, from);
        }
    };
    let settings = machine.settings().cloned().unwrap_or_default();
    let size = settings
        .buffer_bytes
        .map_or(DATAGRAM, |bytes| bytes as usize);
    let mut datagram = vec![0; size];
    fill(&mut datagram);
    let mut sends = machine.direction() != Iperf2Direction::Forward;
    let (mut sent, mut ends) = (0, 0);
    let until = Until::now(settings.amount);
    let gap = gap_ns(settings.rate, size);
    // The second flow of `-d` and `-r`: to the port that the client listens on, as an old client.
    let back = SocketAddr::new(from.ip(), settings.port);
    let asked = Iperf2Settings {
        amount: settings.amount,
        rate: settings.rate,
        ..Iperf2Settings::legacy(settings.port)
    };
    let at_once = (settings.dual == Some(DualTest::Simultaneous)).then(|| {
        let asked = asked.clone();
        std::thread::spawn(move || run(back, asked, size))
    });
    let (mut due_ns, mut received_ns) = (clock.now_ns(), clock.now_ns());
    loop {
        let now_ns = clock.now_ns();
        assert!(now_ns < PATIENCE_NS, "{machine:?}");
        if sends && now_ns >= due_ns {
            due_ns += gap;
            if until.next(sent * size as u64, size) == size {
                sent += 1;
                write_number(&mut datagram, sent, wall_ns());
            } else {
                write_end(&mut datagram, sent, wall_ns());
                ends += 1;
                sends = ends < ENDS_WITHOUT_REPLY;
            }
            // The socket may be closed already.
            let _ = socket.send_to(&datagram, from);
        }
        if let Some((bytes, sender)) = receive(socket, &mut room)
            && sender == from
        {
            received_ns = clock.now_ns();
            let received = machine.receive(&room[..bytes], wall_ns());
            let most = if whole { usize::MAX } else { bytes };
            if received == Iperf2Datagram::End
                && let Some(report) = machine.reply(most)
            {
                socket.send_to(report, from).unwrap();
            }
        }
        let quiet = clock.now_ns() - received_ns > QUIET_NS;
        if !sends && quiet && (machine.is_over() || machine.direction() != Iperf2Direction::Forward)
        {
            let back = match (at_once, settings.dual) {
                (Some(running), _) => Some(running.join().unwrap()),
                (None, Some(DualTest::Sequential)) => Some(run(back, asked, size)),
                (None, _) => None,
            };
            return Served {
                flow: machine,
                sent,
                back,
            };
        }
    }
}

/// A flow that was run.
pub struct Ran {
    pub client: Iperf2UdpClient,
    /// Datagrams that came from the server, without its end.
    pub arrived: u64,
    /// True if the server sent the end of its flow.
    pub far_ended: bool,
}

/// Runs one flow to its end.
pub fn run(server: SocketAddr, settings: Iperf2Settings, bytes: usize) -> Ran {
    let clock = Clock::start();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(NAP)).unwrap();
    let until = Until::now(settings.amount);
    let gap = gap_ns(settings.rate, bytes);
    let way = settings.direction;
    let mut machine = Iperf2UdpClient::new(settings, bytes).unwrap();
    let mut datagram = machine.template();
    let mut room = vec![0; 1 << 16];
    let mut sends = way != Iperf2Direction::Reverse;
    let mut due_ns = clock.now_ns();
    let (mut sent, mut arrived, mut far_ended) = (0, 0, false);
    loop {
        let now_ns = clock.now_ns();
        assert!(now_ns < PATIENCE_NS, "{machine:?}");
        if sends && now_ns >= due_ns {
            due_ns += gap;
            if until.next(sent * bytes as u64, bytes) == bytes {
                sent += 1;
                write_number(&mut datagram, sent, wall_ns());
                let _ = socket.send(&datagram);
            } else {
                sends = false;
                machine.set_sent(sent);
                machine.finish(now_ns);
            }
        }
        let begun = arrived > 0 || far_ended;
        match machine.next_action(now_ns) {
            Iperf2ClientAction::Request if begun => {}
            Iperf2ClientAction::Request => {
                machine.write_request(&mut datagram, wall_ns(), now_ns);
                let _ = socket.send(&datagram);
            }
            Iperf2ClientAction::End => {
                machine.write_end(&mut datagram, wall_ns(), now_ns);
                let _ = socket.send(&datagram);
            }
            Iperf2ClientAction::WaitUntil(_) | Iperf2ClientAction::Idle => {}
        }
        if let Some((bytes, _)) = receive(&socket, &mut room) {
            match read_header(&room[..bytes], true) {
                _ if way == Iperf2Direction::Forward => drop(machine.receive(&room[..bytes])),
                Some(header) if header.sequence < 0 => far_ended = true,
                Some(_) => arrived += 1,
                None => {}
            }
        }
        let over = match way {
            Iperf2Direction::Forward => true,
            Iperf2Direction::Reverse | Iperf2Direction::Both => far_ended,
        };
        if !sends
            && over
            && (way == Iperf2Direction::Reverse
                || machine.next_action(clock.now_ns()) == Iperf2ClientAction::Idle)
        {
            return Ran {
                client: machine,
                arrived,
                far_ended,
            };
        }
    }
}
