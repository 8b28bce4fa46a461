//! Reference iperf (2.x) at the other end, over loopback: the driver next to this file serves and
//! measures it.

mod iperf2_driver;

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use iperf2_driver::{tcp, udp};
use linerate_protocol::iperf2::{DualTest, Iperf2Direction, Iperf2Settings, TestAmount};
use linerate_record::plan::Direction;

/// Returns whether reference iperf is installed; prints a note if not.
fn is_reference_installed() -> bool {
    let there = Command::new("iperf").arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: iperf is not installed");
    }
    there
}

/// A reference client that reports as comma-separated values.
fn client(port: u16, options: &[&str]) -> Child {
    Command::new("iperf")
        .args(["-c", "127.0.0.1", "-y", "C", "-p", &port.to_string()])
        .args(options)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The lines of a client's report: field 8 is bytes, and 11 and 12 are lost and all datagrams.
fn lines(client: Child) -> Vec<Vec<String>> {
    let output = client.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| line.split(',').map(str::to_owned).collect())
        .filter(|fields: &Vec<String>| fields.len() > 8)
        .collect()
}

fn bytes_of(line: &[String]) -> u64 {
    line[7].parse().unwrap()
}

fn serve_tcp(options: &[&str]) -> (Vec<u64>, tcp::Served) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = client(listener.local_addr().unwrap().port(), options);
    let served = tcp::serve_one(&listener);
    (
        lines(client).iter().map(|line| bytes_of(line)).collect(),
        served,
    )
}

#[test]
fn a_reference_client_sends_over_tcp() {
    if !is_reference_installed() {
        return;
    }
    for (options, header) in [
        (&["-n", "1M"][..], true),
        (&["-n", "1M", "-C"], false),
        (&["-t", "0.5", "-b", "20M"], true),
        (&["-n", "100K", "--trip-times"], true),
        (&["-n", "100K", "-X"], true),
        (&["-n", "100K", "--permit-key=abcdefgh"], true),
    ] {
        let (bytes, served) = serve_tcp(options);
        assert_eq!(bytes, [served.received], "{options:?}");
        assert_eq!(served.settings.is_some(), header, "{options:?}");
    }
}

#[test]
fn a_reference_client_receives_over_tcp() {
    if !is_reference_installed() {
        return;
    }
    let (bytes, served) = serve_tcp(&["-R", "-n", "1M"]);
    assert_eq!((bytes, served.sent), (vec![1 << 20], 1 << 20));
    let (_, served) = serve_tcp(&["-R", "-t", "0.3"]);
    assert_eq!(
        served.settings.unwrap().amount,
        Some(TestAmount::Time(300_000_000))
    );
    assert!(served.sent > 0);

    let (mut bytes, served) = serve_tcp(&["--full-duplex", "-n", "300000"]);
    bytes.sort_unstable();
    assert_eq!(
        (bytes, served.received, served.sent),
        (vec![300_000; 2], 300_000, 300_000)
    );
    assert_eq!(served.settings.unwrap().direction, Iperf2Direction::Both);
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn a_reference_client_requests_a_second_connection() {
    if !is_reference_installed() {
        return;
    }
    for (option, dual) in [("-d", DualTest::Simultaneous), ("-r", DualTest::Sequential)] {
        let port = free_port().to_string();
        let (mut bytes, served) = serve_tcp(&[option, "-n", "300000", "-L", &port]);
        bytes.sort_unstable();
        assert_eq!(
            (bytes, served.received, served.sent),
            (vec![300_000; 2], 300_000, 300_000)
        );
        let settings = served.settings.unwrap();
        assert_eq!(
            (settings.dual, settings.port.to_string()),
            (Some(dual), port)
        );
    }
}

#[test]
fn a_reference_client_sends_requests_and_gets_responses() {
    if !is_reference_installed() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    for size in ["100", "5000"] {
        let client = Command::new("iperf")
            .args(["-c", "127.0.0.1", "-p", &port, "--bounceback", "-l", size])
            .args(["-t", "1", "--bounceback-period", "0.1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let served = tcp::serve_one(&listener);
        let output = client.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        // The count of its round trips stands in front of their times: `100=0.2/0.1/0.3`.
        let counts = text.lines().filter_map(|line| {
            let at = line.find('=').filter(|_| line.contains(" rps"))?;
            line[..at].split_whitespace().last()?.parse::<u64>().ok()
        });
        let counted = counts.max().expect("it tells its round trips");
        // The time may end while an answer is on its way: it was served and is not counted.
        let unheard = served.answers.checked_sub(counted);
        assert!(
            matches!(unheard, Some(0 | 1)),
            "{} served\n{text}",
            served.answers
        );
    }
}

fn serve_udp(options: &[&str], whole: bool) -> (Vec<Vec<String>>, udp::Served) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let client = client(port, &[&["-u", "-t", "0.5"], options].concat());
    let served = udp::serve_one(&socket, whole);
    assert!(served.back.is_none());
    (lines(client), served)
}

#[test]
fn a_reference_client_requests_a_second_flow_over_udp() {
    if !is_reference_installed() {
        return;
    }
    for (option, dual) in [("-d", DualTest::Simultaneous), ("-r", DualTest::Sequential)] {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let back_port = free_port().to_string();
        let options = ["-u", "-t", "0.5", "-b", "500K", option, "-L", &back_port];
        let client = client(port, &options);
        let served = udp::serve_one(&socket, false);
        assert_eq!(served.flow.settings().unwrap().dual, Some(dual));
        // What the reference client received as a server, it reports as one.
        let back = served.back.unwrap().client;
        let reported = back.remote_report().flows[0].figures;
        assert_eq!(
            reported.packets.unwrap() + reported.lost.unwrap(),
            back.sent(),
            "{option}"
        );
        let lines = lines(client);
        let arrived = (reported.packets.unwrap() + 1) * 1470;
        assert!(
            lines.iter().any(|line| bytes_of(line) == arrived),
            "{option}: {lines:?}"
        );
    }
}

#[test]
fn a_reference_client_sends_over_udp() {
    if !is_reference_installed() {
        return;
    }
    for (options, whole) in [
        (&["-b", "1M"][..], false),
        (&["-b", "1M", "-C"], false),
        (&["-b", "1M", "--trip-times"], false),
        (&["-b", "500K", "-l", "80"], false),
        (&["-b", "100K", "-l", "40", "--trip-times"], true),
        (&["--isochronous=20:1M,10K"], false),
    ] {
        let (lines, served) = serve_udp(options, whole);
        let served = served.flow;
        let report = served.report();
        assert!(
            served.is_over() && report.datagrams > 10,
            "{options:?}: {report:?}"
        );
        // The last line is what the client made of our report.
        let reported = lines
            .last()
            .unwrap_or_else(|| panic!("{options:?}: no report"));
        assert_eq!(bytes_of(reported), report.bytes, "{options:?}: {lines:?}");
        assert_eq!(
            reported[10],
            report.lost.to_string(),
            "{options:?}: {lines:?}"
        );
        // It has sent the end too, and counts it as we do.
        let far = served.remote_report();
        let arrived = report.datagrams - report.lost - 1;
        assert_eq!(far.flows[0].direction, Direction::Receive);
        assert_eq!(far.flows[0].figures.packets, Some(arrived + report.lost));
        assert_eq!(far.flows[0].figures.bytes, None);
    }
}

#[test]
fn a_reference_client_that_requests_no_report_gets_none() {
    if !is_reference_installed() {
        return;
    }
    let (_, served) = serve_udp(&["-b", "1M", "--no-udp-fin"], true);
    assert!(served.flow.settings().unwrap().no_fin);
    assert!(served.flow.stats().received() > 10);
    assert_eq!(served.flow.reply(1000), None);
}

#[test]
fn a_reference_client_receives_over_udp() {
    if !is_reference_installed() {
        return;
    }
    let (lines, served) = serve_udp(&["-R", "-b", "1M"], false);
    assert!(served.sent > 10);
    // The end counts, there as here; a loaded machine may drop something.
    let reported = bytes_of(lines.last().unwrap());
    assert!(
        reported > 0 && reported <= (served.sent + 1) * 1470,
        "{reported} of {}",
        served.sent
    );

    let (lines, served) = serve_udp(&["--full-duplex", "-b", "1M"], false);
    assert_eq!(served.flow.direction(), Iperf2Direction::Both);
    assert!(served.sent > 10 && served.flow.stats().received() > 10);
    assert!(lines.len() >= 2, "{lines:?}");
}

/// A reference server, ended when the test is.
struct ReferenceServer {
    child: Child,
    address: SocketAddr,
}

impl ReferenceServer {
    fn start(options: &[&str]) -> Self {
        let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let child = Command::new("iperf")
            .args(["-s", "-y", "C", "-p", &address.port().to_string()])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        if options.contains(&"-u") {
            // The start of listening is not visible; UDP does not wait for it.
            std::thread::sleep(Duration::from_millis(700));
        }
        Self { child, address }
    }

    /// Ends it and returns the lines of its report.
    fn lines(mut self) -> Vec<Vec<String>> {
        std::thread::sleep(Duration::from_millis(500));
        let id = self.child.id().to_string();
        for _ in 0..2 {
            let _ = Command::new("kill").args(["-INT", &id]).status();
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = self.child.kill();
        let out = self.child.stdout.take().unwrap();
        let text = std::io::read_to_string(out).unwrap();
        text.lines()
            .map(|line| line.split(',').map(str::to_owned).collect())
            .filter(|fields: &Vec<String>| fields.len() > 8)
            .collect()
    }
}

impl Drop for ReferenceServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const AMOUNT: Option<TestAmount> = Some(TestAmount::Bytes(600_000));

#[test]
fn we_measure_a_reference_server_over_tcp() {
    if !is_reference_installed() {
        return;
    }
    for (settings, ack) in [
        (
            Iperf2Settings {
                amount: AMOUNT,
                ..Iperf2Settings::client(5001)
            },
            true,
        ),
        (
            Iperf2Settings {
                amount: AMOUNT,
                peer_detect: true,
                ..Iperf2Settings::client(5001)
            },
            true,
        ),
        (
            Iperf2Settings {
                amount: AMOUNT,
                ..Iperf2Settings::legacy(5001)
            },
            false,
        ),
        (
            Iperf2Settings {
                amount: AMOUNT,
                direction: Iperf2Direction::Reverse,
                ..Iperf2Settings::client(5001)
            },
            false,
        ),
        (
            Iperf2Settings {
                amount: AMOUNT,
                direction: Iperf2Direction::Both,
                ..Iperf2Settings::client(5001)
            },
            false,
        ),
    ] {
        let reference = ReferenceServer::start(&[]);
        let measured = tcp::run(reference.address, settings.clone(), None);
        assert_eq!(measured.ack.is_some(), ack, "{settings:?}");
        if let Some(ack) = measured.ack {
            assert_eq!(ack.version.0 >> 16, 2);
        }
        let (sends, receives) = match settings.direction {
            Iperf2Direction::Forward => (600_000, 0),
            // The header is payload too.
            Iperf2Direction::Reverse => (60, 600_000),
            Iperf2Direction::Both => (600_000, 600_000),
        };
        assert_eq!(
            (measured.sent, measured.received),
            (sends, receives),
            "{settings:?}"
        );
        if settings.direction == Iperf2Direction::Forward {
            let reported: Vec<_> = reference
                .lines()
                .iter()
                .map(|line| bytes_of(line))
                .collect();
            // Where no header comes, a reference server forgets the word in which it looked for one.
            let forgets = if settings.version.is_none() { 4 } else { 0 };
            assert_eq!(reported, [600_000 - forgets], "{settings:?}");
        }
    }
}

#[test]
fn a_reference_server_connects_back() {
    if !is_reference_installed() {
        return;
    }
    for base in [Iperf2Settings::client(0), Iperf2Settings::legacy(0)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = Iperf2Settings {
            port: listener.local_addr().unwrap().port(),
            amount: AMOUNT,
            dual: Some(DualTest::Simultaneous),
            ..base
        };
        let reference = ReferenceServer::start(&[]);
        let measured = tcp::run(reference.address, settings, Some(listener));
        assert_eq!((measured.sent, measured.received), (600_000, 600_000));
    }
}

#[test]
fn we_send_requests_to_a_reference_server() {
    if !is_reference_installed() {
        return;
    }
    let reference = ReferenceServer::start(&[]);
    let asked = tcp::ask(reference.address, 100, 2000, 20);
    assert_eq!(asked.len(), 20);
    for (took_ns, answer) in asked {
        let (received, sent) = (answer.received_ns.unwrap(), answer.sent_ns.unwrap());
        // It delays each reply by 2 ms, and reports that.
        let held = sent.checked_sub(received).expect("one clock");
        assert!((1_000_000..=took_ns).contains(&held), "{held} of {took_ns}");
    }
}

#[test]
fn we_measure_a_reference_server_over_udp() {
    if !is_reference_installed() {
        return;
    }
    let amount = Some(TestAmount::Time(500_000_000));
    for (settings, bytes) in [
        (
            Iperf2Settings {
                amount,
                rate: Some(1_000_000),
                ..Iperf2Settings::client(5001)
            },
            1470,
        ),
        (
            Iperf2Settings {
                amount,
                ..Iperf2Settings::legacy(5001)
            },
            1000,
        ),
        (
            Iperf2Settings {
                amount,
                trip_times: true,
                start_ns: Some(iperf2_driver::wall_ns()),
                ..Iperf2Settings::client(5001)
            },
            1000,
        ),
    ] {
        let reference = ReferenceServer::start(&["-u"]);
        let client = udp::run(reference.address, settings.clone(), bytes).client;
        let far = client.remote_report();
        assert_eq!(far.flows.len(), 1, "{settings:?}: no report");
        let reported = far.flows[0].figures;
        assert_eq!(far.flows[0].direction, Direction::Send);
        assert_eq!(
            reported.packets.unwrap() + reported.lost.unwrap(),
            client.sent(),
            "{settings:?}"
        );
        assert_eq!(
            reported.bytes.unwrap(),
            reported.packets.unwrap() * bytes as u64,
            "{settings:?}"
        );
        assert!(reported.ipdv_ns.is_some() && reported.retransmits.is_none());
        let transit = client.report().unwrap().transit;
        assert!(
            transit.is_some() || !settings.trip_times,
            "{:?}",
            client.report()
        );
    }
}

#[test]
fn a_reference_server_sends_over_udp() {
    if !is_reference_installed() {
        return;
    }
    let base = Iperf2Settings {
        amount: Some(TestAmount::Time(500_000_000)),
        rate: Some(1_000_000),
        ..Iperf2Settings::client(5001)
    };
    for way in [Iperf2Direction::Reverse, Iperf2Direction::Both] {
        let reference = ReferenceServer::start(&["-u"]);
        let ran = udp::run(
            reference.address,
            Iperf2Settings {
                direction: way,
                ..base.clone()
            },
            1470,
        );
        assert!(ran.far_ended, "{way:?}");
        assert!(ran.arrived > 10, "{way:?}: {}", ran.arrived);
        assert_eq!(ran.client.remote_report().flows.len(), 0);
    }
}
