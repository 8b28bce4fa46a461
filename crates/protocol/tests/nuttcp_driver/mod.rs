//! A driver of nuttcp's machines over blocking sockets, both roles: what the engine does on its
//! own, in the least of code.

mod data;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use data::{Ready, Side, move_data};
use linerate_protocol::nuttcp::{
    NuttcpClient, NuttcpClientEvent, NuttcpCounts, NuttcpDirection, NuttcpError, NuttcpInterval,
    NuttcpServer, NuttcpServerEvent, NuttcpTest,
};
use linerate_protocol::remote_report::RemoteReport;

/// Reports of both ends on a test.
pub struct Outcome {
    pub test: NuttcpTest,
    /// What this end counted.
    pub near: NuttcpCounts,
    /// Report of the other end.
    pub far: RemoteReport,
    /// Intervals that the other end reported.
    pub intervals: Vec<NuttcpInterval>,
    /// UDP receivers: what they miss, when they know.
    pub lost: Option<u64>,
}

/// Serves one client on its control connection.
///
/// # Errors
/// The client was refused, or is none.
pub fn serve(mut control: TcpStream) -> Result<Outcome, String> {
    let peer = control.peer_addr().unwrap().ip();
    let mut server = NuttcpServer::default();
    let mut buffer = [0; 4_096];
    let mut ready = None;
    loop {
        while let Some(event) = server.poll() {
            match event {
                NuttcpServerEvent::Prepare(test) => {
                    ready = Some(Ready::new(&test, Side::Server));
                    server.mark_ready();
                }
                NuttcpServerEvent::Run(test) => {
                    flush(&mut control, &mut server);
                    let ready = ready.take().expect("it was prepared");
                    let (near, lost) = move_data(
                        &test,
                        Side::Server,
                        peer,
                        ready,
                        // A closed control connection is data's end too: it is looked at between.
                        &mut || gone(&control),
                        &mut |interval| {
                            server.report_interval(interval);
                            let waiting = server.outgoing().to_vec();
                            (&control).write_all(&waiting).unwrap();
                            server.mark_sent(waiting.len());
                        },
                    );
                    server.finish(&near);
                    flush(&mut control, &mut server);
                    return Ok(Outcome {
                        test,
                        near,
                        far: server.remote_report(),
                        intervals: Vec::new(),
                        lost,
                    });
                }
                NuttcpServerEvent::ClientClosed => return Err("the client closed".to_owned()),
                NuttcpServerEvent::Close => {
                    let said = String::from_utf8_lossy(server.outgoing()).into_owned();
                    flush(&mut control, &mut server);
                    return Err(said);
                }
            }
        }
        flush(&mut control, &mut server);
        match control.read(&mut buffer).unwrap() {
            0 => server.mark_closed().map_err(|error| error.to_string())?,
            bytes => server
                .receive(&buffer[..bytes])
                .map_err(|error| error.to_string())?,
        }
    }
}

fn flush(control: &mut TcpStream, server: &mut NuttcpServer) {
    control.write_all(server.outgoing()).unwrap();
    server.mark_sent(server.outgoing().len());
}

/// Whether the other end closed its side.
fn gone(control: &TcpStream) -> bool {
    control.set_nonblocking(true).unwrap();
    let closed = matches!(control.peek(&mut [0]), Ok(0));
    control.set_nonblocking(false).unwrap();
    closed
}

/// Measures a server.
///
/// # Errors
/// Errors of the codec.
pub fn measure(server: SocketAddr, test: NuttcpTest) -> Result<Outcome, NuttcpError> {
    // A reference server listens again only some time after its last test.
    let begun = Instant::now();
    let mut control = loop {
        match TcpStream::connect(server) {
            Ok(control) => break control,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(10), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(25));
    };
    let mut client = NuttcpClient::new(test.clone())?;
    let mut buffer = [0; 4_096];
    let mut ready = None;
    let mut intervals = Vec::new();
    let mut outcome = None;
    loop {
        while let Some(event) = client.poll() {
            match event {
                NuttcpClientEvent::Prepare(test) => {
                    ready = Some(Ready::new(&test, Side::Client));
                    client.mark_ready();
                }
                NuttcpClientEvent::Start(test) => {
                    let ready = ready.take().expect("it was prepared");
                    outcome = Some(move_data(
                        &test,
                        Side::Client,
                        server.ip(),
                        ready,
                        // Messages of the server wait in the socket meanwhile.
                        &mut || false,
                        &mut |_| {},
                    ));
                    if test.direction == NuttcpDirection::ToServer {
                        control.shutdown(std::net::Shutdown::Write).unwrap();
                    }
                }
                NuttcpClientEvent::Interval(interval) => intervals.push(interval),
                NuttcpClientEvent::Done => {}
                NuttcpClientEvent::ServerClosed => {
                    let (near, lost) = outcome.expect("it ran");
                    return Ok(Outcome {
                        test,
                        near,
                        far: client.remote_report(),
                        intervals,
                        lost,
                    });
                }
            }
        }
        if !client.outgoing().is_empty() {
            control.write_all(client.outgoing()).unwrap();
            client.mark_sent(client.outgoing().len());
        }
        match control.read(&mut buffer) {
            Ok(0) => client.mark_closed()?,
            Ok(bytes) => client.receive(&buffer[..bytes])?,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns the first of `count` consecutive ports that are free for TCP and UDP.
pub fn free_ports(count: u16) -> u16 {
    for _ in 0..1_000 {
        let first = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let free = |port: u16| {
            let address = (IpAddr::from([127, 0, 0, 1]), port);
            TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
        };
        let last = first.checked_add(count - 1);
        if first >= 5_000 && last.is_some_and(|last| (first..=last).all(free)) {
            return first;
        }
    }
    panic!("no {count} free ports in a row");
}
