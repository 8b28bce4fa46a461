//! TCP: streams either way, a second connection back, questions and answers.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_protocol::iperf2::bounceback;
use linerate_protocol::iperf2::bounceback::BouncebackReply;
use linerate_protocol::iperf2::{
    DualTest, Iperf2Direction, Iperf2Settings, Iperf2TcpClient, Iperf2TcpRequest, Iperf2TcpServer,
    TestAmount, VersionAck, fill,
};

use super::{NAP, Until, connect, wall_ns};

const BLOCK: usize = 128 << 10;

/// What came of a connection, at the server.
#[derive(Debug, Default)]
pub struct Served {
    pub settings: Option<Iperf2Settings>,
    pub received: u64,
    pub sent: u64,
    pub answers: u64,
}

/// Sends the requested amount and returns it.
fn source(mut stream: TcpStream, begun: u64, amount: Option<TestAmount>) -> u64 {
    let mut block = vec![0; BLOCK];
    fill(&mut block);
    let until = Until::now(amount);
    let mut sent = begun;
    loop {
        let bytes = until.next(sent, BLOCK);
        if bytes == 0 || stream.write_all(&block[..bytes]).is_err() {
            break;
        }
        sent += bytes as u64;
    }
    let _ = stream.shutdown(Shutdown::Write);
    sent
}

fn sink(mut stream: TcpStream) -> u64 {
    let mut room = vec![0; BLOCK];
    let mut received = 0;
    loop {
        match stream.read(&mut room) {
            Ok(0) => return received,
            Ok(bytes) => received += bytes as u64,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return received,
        }
    }
}

/// The second connection of `-d` and `-r`: no header, digits only.
fn send_back(to: SocketAddr, amount: Option<TestAmount>) -> u64 {
    source(connect(to), 0, amount)
}

/// Serves one connection to its end.
pub fn serve_one(listener: &TcpListener) -> Served {
    let (mut stream, from) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    let mut machine = Iperf2TcpServer::new();
    let mut room = vec![0; BLOCK];
    let (rest, job) = loop {
        let bytes = stream.read(&mut room).unwrap();
        if bytes == 0 {
            // Less than a header came: payload all the same.
            return Served {
                received: machine.payload_bytes(),
                ..Served::default()
            };
        }
        let (taken, job) = machine.receive(&room[..bytes], wall_ns()).unwrap();
        if let Some(job) = job {
            break (room[taken..bytes].to_vec(), job);
        }
    };
    let ack = machine.outgoing().to_vec();
    stream.write_all(&ack).unwrap();
    machine.mark_sent(ack.len());
    let begun = machine.payload_bytes() + rest.len() as u64;
    match job {
        Iperf2TcpRequest::Plain => Served {
            received: begun + sink(stream),
            ..Served::default()
        },
        Iperf2TcpRequest::Test(settings) => stream_test(*settings, stream, from, begun),
        Iperf2TcpRequest::Bounceback(server) => Served {
            answers: answer(stream, *server, &rest),
            ..Served::default()
        },
    }
}

fn stream_test(
    settings: Iperf2Settings,
    stream: TcpStream,
    from: SocketAddr,
    begun: u64,
) -> Served {
    let amount = settings.amount;
    let back = SocketAddr::new(from.ip(), settings.port);
    let mut served = Served {
        received: begun,
        ..Served::default()
    };
    match (settings.direction, settings.dual) {
        (Iperf2Direction::Forward, None) => served.received += sink(stream),
        (Iperf2Direction::Forward, Some(DualTest::Simultaneous)) => {
            let sender = std::thread::spawn(move || send_back(back, amount));
            served.received += sink(stream);
            served.sent = sender.join().unwrap();
        }
        (Iperf2Direction::Forward, Some(DualTest::Sequential)) => {
            served.received += sink(stream);
            served.sent = send_back(back, amount);
        }
        (Iperf2Direction::Reverse, _) => {
            let sender = stream.try_clone().unwrap();
            served.sent = source(sender, 0, amount);
            sink(stream);
            // The header was payload of the client's, and all of it.
        }
        (Iperf2Direction::Both, _) => {
            let sender = stream.try_clone().unwrap();
            let sender = std::thread::spawn(move || source(sender, 0, amount));
            served.received += sink(stream);
            served.sent = sender.join().unwrap();
        }
    }
    served.settings = Some(settings);
    served
}

fn answer(mut stream: TcpStream, mut server: bounceback::BouncebackServer, begun: &[u8]) -> u64 {
    let mut room = vec![0; BLOCK];
    let mut waiting = begun.to_vec();
    loop {
        let mut at = 0;
        loop {
            if server.has_request() {
                std::thread::sleep(Duration::from_nanos(server.hold_ns()));
                if stream.write_all(server.reply(wall_ns())).is_err() {
                    return server.replies();
                }
                server.mark_replied();
            }
            if server.is_over() {
                return server.replies();
            }
            if at == waiting.len() {
                break;
            }
            at += server.receive(&waiting[at..], wall_ns());
        }
        match stream.read(&mut room) {
            Ok(bytes) if bytes > 0 => waiting = room[..bytes].to_vec(),
            _ => return server.replies(),
        }
    }
}

/// What came of a connection, at the client.
#[derive(Debug, Default)]
pub struct Measured {
    pub sent: u64,
    pub received: u64,
    pub ack: Option<VersionAck>,
}

/// Runs one test; with [`Settings::dual`] `listener` waits on its port.
pub fn run(
    server: SocketAddr,
    settings: Iperf2Settings,
    listener: Option<TcpListener>,
) -> Measured {
    let mut stream = connect(server);
    let mut machine = Iperf2TcpClient::new(settings.clone()).unwrap();
    let mut measured = Measured::default();
    stream.write_all(machine.header()).unwrap();
    measured.sent = machine.header().len() as u64;
    while machine.waits_for_ack() {
        let mut room = [0; 100];
        let bytes = stream.read(&mut room).unwrap();
        assert!(bytes > 0, "the server went");
        machine.receive(&room[..bytes]);
    }
    let back: Option<JoinHandle<u64>> =
        listener.map(|listener| std::thread::spawn(move || sink(listener.accept().unwrap().0)));
    let reader = stream.try_clone().unwrap();
    let received = std::thread::spawn(move || {
        let mut payload = 0;
        let (mut reader, mut room) = (reader, vec![0; BLOCK]);
        while let Ok(bytes) = reader.read(&mut room) {
            if bytes == 0 {
                break;
            }
            let other = machine.receive(&room[..bytes]);
            payload += (bytes - other) as u64;
        }
        (payload, machine.ack())
    });
    if settings.direction != Iperf2Direction::Reverse {
        measured.sent = source(stream, measured.sent, settings.amount);
    }
    (measured.received, measured.ack) = received.join().unwrap();
    if let Some(back) = back {
        measured.received += back.join().unwrap();
    }
    measured
}

/// Sends requests one after another; returns the time of each in nanoseconds, and the replies.
pub fn ask(
    server: SocketAddr,
    size: u32,
    hold_us: u32,
    questions: u32,
) -> Vec<(u64, BouncebackReply)> {
    let mut stream = connect(server);
    stream.set_nodelay(true).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let mut client = bounceback::BouncebackClient::new(size, hold_us).unwrap();
    let mut room = vec![0; BLOCK];
    let mut asked = Vec::new();
    for number in 1..=questions {
        let begun = Instant::now();
        stream.write_all(client.request(wall_ns())).unwrap();
        loop {
            let bytes = stream.read(&mut room).unwrap();
            assert!(bytes > 0, "the server went after {number}");
            assert_eq!(client.receive(&room[..bytes]), bytes);
            if let Some(answer) = client.reply().unwrap() {
                asked.push((u64::try_from(begun.elapsed().as_nanos()).unwrap(), answer));
                break;
            }
        }
        std::thread::sleep(NAP);
    }
    stream.write_all(client.stop(wall_ns())).unwrap();
    assert_eq!(stream.read(&mut room).unwrap(), 0, "the server closes");
    asked
}
