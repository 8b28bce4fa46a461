//! Reference sockperf at the other end, over loopback. The drivers here serve and ask it with
//! blocking sockets; the engine does the same on its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use linerate_protocol::amplification_guard::{AmplificationGuard, GuardRules};
use linerate_protocol::sockperf::{
    SockperfDatagram, SockperfHeader, SockperfServer, SockperfTotals,
};

fn is_reference_installed() -> bool {
    let there = Command::new("sockperf").arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: sockperf is not installed");
    }
    there
}

/// Ends a reference program whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(arguments: &[&str], port: u16) -> Running {
    let child = Command::new("sockperf")
        .args(arguments)
        .args(["-i", "127.0.0.1", "-p", &port.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Running(child)
}

/// What a reference client printed, without its colours.
fn printed(mut client: Running) -> String {
    let mut text = String::new();
    let mut stdout = client.0.stdout.take().unwrap();
    stdout.read_to_string(&mut text).unwrap();
    text
}

/// The number behind a word of what was printed.
fn figure(text: &str, word: &str) -> u64 {
    let (_, rest) = text
        .split_once(word)
        .unwrap_or_else(|| panic!("no {word:?} in {text}"));
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap();
    rest[..end].parse().unwrap()
}

fn clock() -> impl Fn() -> u64 {
    let begun = Instant::now();
    move || u64::try_from(begun.elapsed().as_nanos()).unwrap()
}

/// Serves one UDP client until it is silent for two seconds.
fn serve_udp(arguments: &[&str]) -> (SockperfTotals, String) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = start(arguments, socket.local_addr().unwrap().port());
    let now = clock();
    let mut guard = AmplificationGuard::new(GuardRules::default());
    let mut server = SockperfServer::default();
    let mut buffer = vec![0; 65_536];
    // A reference client needs two seconds before it sends anything, more on a busy machine.
    socket
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    while let Ok((bytes, from)) = socket.recv_from(&mut buffer) {
        if server.totals() == SockperfTotals::default() {
            socket
                .set_read_timeout(Some(Duration::from_secs(2)))
                .unwrap();
        }
        guard.add_received(now(), from.ip(), bytes as u64);
        if let SockperfDatagram::Reply(_) = server.receive_datagram(&mut buffer[..bytes]) {
            guard
                .authorize_send(now(), from.ip(), bytes as u64)
                .unwrap();
            socket.send_to(&buffer[..bytes], from).unwrap();
        }
    }
    (server.totals(), printed(client))
}

/// Serves one TCP client until it closes.
fn serve_tcp(arguments: &[&str]) -> (SockperfTotals, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = start(arguments, listener.local_addr().unwrap().port());
    let (mut socket, _) = listener.accept().unwrap();
    socket.set_nodelay(true).unwrap();
    let mut server = SockperfServer::default();
    let mut buffer = vec![0; 65_536];
    loop {
        let bytes = match socket.read(&mut buffer) {
            // Reference clients leave with a reset when an answer is still on its way.
            Ok(0) | Err(_) => break,
            Ok(bytes) => bytes,
        };
        let mut taken = 0;
        while taken < bytes {
            taken += server.receive_stream(&buffer[taken..bytes]).unwrap();
            if socket.write_all(server.outgoing()).is_err() {
                break;
            }
            server.mark_sent(server.outgoing().len());
        }
    }
    (server.totals(), printed(client))
}

#[test]
fn reference_clients_are_served() {
    if !is_reference_installed() {
        return;
    }
    type Serve = fn(&[&str]) -> (SockperfTotals, String);
    let runs: [(Serve, &[&str]); 6] = [
        (serve_udp, &["pp", "-t", "1", "-m", "64"]),
        (
            serve_udp,
            &["ul", "-t", "1", "-m", "64", "--mps=200", "--reply-every=10"],
        ),
        (serve_udp, &["tp", "-t", "1", "-m", "1472", "--mps=200"]),
        (serve_tcp, &["pp", "--tcp", "-t", "1", "-m", "64"]),
        (
            serve_tcp,
            &["ul", "--tcp", "-t", "1", "-m", "64", "--mps=2000"],
        ),
        (
            serve_tcp,
            &["tp", "--tcp", "-t", "1", "-m", "1472", "--mps=2000"],
        ),
    ];
    // All at once: each takes three seconds of mostly waiting.
    let servings =
        runs.map(|(serve, arguments)| std::thread::spawn(move || (arguments, serve(arguments))));
    for serving in servings {
        let (arguments, (totals, text)) = serving.join().unwrap();
        assert!(totals.messages > 0, "{arguments:?}: {totals:?}");
        assert_eq!(totals.ignored, 0, "{arguments:?}");
        let sent = if arguments[0] == "tp" {
            assert_eq!(totals.bytes, totals.messages * 1_472);
            assert_eq!(totals.replied, 0);
            figure(&text, "Total of ")
        } else {
            let received = figure(&text, "ReceivedMessages=");
            // When its time is over the client looks at no answer any more.
            assert!(
                totals.replied.abs_diff(received) <= 2,
                "{arguments:?} {totals:?} {text}"
            );
            figure(&text, "SentMessages=")
        };
        let highest = totals.highest_sequence.unwrap();
        // A client that is stopped in the middle of a call may not count its last message.
        assert!(highest <= sent + 1, "{arguments:?} {totals:?} {sent}");
        assert!(totals.messages <= highest, "{arguments:?} {totals:?}");
        // On a schedule over UDP a busy machine may lose some in our socket's buffer.
        if arguments.contains(&"--tcp") || arguments[0] == "pp" {
            assert!(
                totals.messages.abs_diff(sent) <= 1,
                "{arguments:?} {totals:?} {sent}"
            );
        }
        if arguments[0] == "pp" {
            assert_eq!(figure(&text, "dropped messages = "), 0, "{arguments:?}");
        }
    }
}

/// A reference server, and its address.
fn reference_server(tcp: bool) -> (Running, SocketAddr) {
    for _ in 0..5 {
        let port = if tcp {
            let socket = TcpListener::bind("127.0.0.1:0").unwrap();
            socket.local_addr().unwrap().port()
        } else {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.local_addr().unwrap().port()
        };
        let options: &[&str] = if tcp { &["sr", "--tcp"] } else { &["sr"] };
        let mut server = start(options, port);
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        // It stands when it answers.
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(50));
            let stands = if tcp {
                TcpStream::connect(address).is_ok()
            } else {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.connect(address).unwrap();
                socket
                    .set_read_timeout(Some(Duration::from_millis(50)))
                    .unwrap();
                let question = b"\0\0\0\0\0\0\0\x01\0\x03\0\0\0\x0e";
                let _ = socket.send(question);
                socket.recv(&mut [0; 14]).is_ok()
            };
            if stands {
                return (server, address);
            }
            if server.0.try_wait().unwrap().is_some() {
                // Another process took the port meanwhile.
                break;
            }
        }
    }
    panic!("no reference server stands");
}

/// Messages of which every so many is a question: as long as these are answered, the others were
/// passed over.
const MESSAGES: u64 = 200;

/// The messages, each with the beginning of its answer where there is one.
fn messages(every: u64) -> impl Iterator<Item = ([u8; 64], Option<SockperfHeader>)> {
    (1..=MESSAGES).map(move |sequence| {
        let question = SockperfHeader::request(sequence, 64);
        let asks = sequence.is_multiple_of(every);
        let header = if asks {
            question
        } else {
            SockperfHeader {
                flags: 1,
                ..question
            }
        };
        let mut message = [7; 64];
        header.write(&mut message);
        (message, asks.then(|| question.to_reply()))
    })
}

#[test]
fn a_reference_server_replies_to_our_requests_over_udp() {
    if !is_reference_installed() {
        return;
    }
    let (_server, address) = reference_server(false);
    for every in [1, 10] {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(address).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        for (message, answered) in messages(every) {
            socket.send(&message).unwrap();
            if answered.is_some() {
                let mut answer = [0; 100];
                let bytes = socket.recv(&mut answer).unwrap();
                assert_eq!((bytes, SockperfHeader::read(&answer)), (64, answered));
                assert_eq!(answer[14..64], message[14..]);
            }
        }
    }
}

#[test]
fn a_reference_server_replies_to_our_requests_over_tcp() {
    if !is_reference_installed() {
        return;
    }
    let (_server, address) = reference_server(true);
    for every in [1, 10] {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        for (message, answered) in messages(every) {
            socket.write_all(&message).unwrap();
            if answered.is_some() {
                let mut answer = [0; 64];
                socket.read_exact(&mut answer).unwrap();
                assert_eq!(SockperfHeader::read(&answer), answered);
                assert_eq!(answer[14..], message[14..]);
            }
        }
    }
}
