//! Reference nuttcp at the other end, over loopback: the driver next to this file serves and measures
//! it.

mod nuttcp_driver;

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};

use linerate_protocol::nuttcp::{NuttcpDirection, NuttcpError, NuttcpTest, REPORTED_BYTES_ERROR};
use linerate_protocol::sniff::TransportKind;
use linerate_record::plan::Direction;
use nuttcp_driver::{Outcome, free_ports, measure, serve};

fn is_reference_installed() -> bool {
    let there = Command::new("nuttcp").arg("-V").output().is_ok();
    if !there {
        eprintln!("skipped: nuttcp is not installed");
    }
    there
}

/// A reference client against our server: what we have, and what it printed.
fn serve_reference(options: &[&str], streams: u16) -> (Result<Outcome, String>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let control = listener.local_addr().unwrap().port();
    let client = Command::new("nuttcp")
        .args(options)
        .args([format!("-P{control}"), format!("-p{}", free_ports(streams))])
        .arg("127.0.0.1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (control, _) = listener.accept().unwrap();
    let outcome = serve(control);
    let output = client.wait_with_output().unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (outcome, text)
}

/// A figure of `key=value` output, of the last line that has it.
fn figure(text: &str, key: &str) -> f64 {
    let (_, rest) = text
        .rsplit_once(key)
        .unwrap_or_else(|| panic!("no {key} in {text}"));
    let end = rest.find([' ', '\n']).unwrap_or(rest.len());
    rest[..end].parse().unwrap()
}

fn megabytes(bytes: u64) -> f64 {
    (bytes as f64 / 1_048_576.0 * 10_000.0).round() / 10_000.0
}

#[test]
fn reference_clients_are_served_over_tcp() {
    if !is_reference_installed() {
        return;
    }
    for (options, streams) in [
        (&["-t", "-fparse", "-n160"][..], 1),
        (&["-r", "-fparse", "-n160"], 1),
        (&["-t", "-F", "-fparse", "-n160"], 1),
        (&["-r", "-F", "-fparse", "-n160"], 1),
        (&["-t", "-N3", "-fparse", "-n160"], 3),
        (&["-r", "-N3", "-fparse", "-n160"], 3),
        (&["-t", "-l1000", "-fparse", "-n77"], 1),
        (&["-t", "-T1", "-i0.25", "-R80M", "-fparse"], 1),
        (&["-r", "-T1", "-fparse"], 1),
        (&["-t", "-T0.5", "-D", "-w256", "-c8", "-fparse"], 1),
    ] {
        let (outcome, text) = serve_reference(options, streams);
        let outcome = outcome.unwrap_or_else(|error| panic!("{options:?}: {error} {text}"));
        assert!(outcome.near.bytes > 0, "{options:?}");
        assert_eq!(
            figure(&text, "megabytes="),
            megabytes(outcome.near.bytes),
            "{options:?} {text}"
        );
        assert_eq!(outcome.test.streams, streams);
        if let Some(buffers) = outcome.test.buffer_limit {
            let asked = buffers * outcome.test.buffer_bytes as u64;
            assert_eq!(outcome.near.bytes, asked, "{options:?}");
        }
        if outcome.test.interval_ns.is_some() {
            let intervals = text.matches("real_sec=").count();
            assert!(intervals >= 2, "{options:?} {text}");
        }
        assert_eq!(outcome.far.flows, [], "a client says nothing");
    }
}

#[test]
fn reference_clients_are_served_over_udp() {
    if !is_reference_installed() {
        return;
    }
    // At once: each takes three seconds of mostly waiting. Few enough datagrams that a socket
    // buffer holds the data while a busy machine delays the reader.
    let runs = [
        (&["-t", "-u", "-fparse", "-n60", "-l1000", "-R8M"][..], 1),
        (&["-r", "-u", "-fparse", "-n60", "-l1000", "-R8M"], 1),
        (
            &["-t", "-u", "-fparse", "-T1", "-i0.3", "-R1M", "-l1000"],
            1,
        ),
        (&["-t", "-u", "-fparse", "-n30", "-N3", "-l500", "-R1M"], 3),
    ]
    .map(|(options, streams)| {
        std::thread::spawn(move || (options, serve_reference(options, streams)))
    });
    for run in runs {
        let (options, (outcome, text)) = run.join().unwrap();
        let outcome = outcome.unwrap_or_else(|error| panic!("{options:?}: {error} {text}"));
        assert!(outcome.near.bytes > 0, "{options:?}");
        assert_eq!(figure(&text, "drop="), 0.0, "{options:?} {text}");
        assert_eq!(
            figure(&text, "megabytes="),
            megabytes(outcome.near.bytes),
            "{options:?} {text}"
        );
        if let Some(buffers) = outcome.test.buffer_limit {
            assert_eq!(outcome.near.calls, Some(buffers), "{options:?}");
        }
        if outcome.test.numbers_datagrams() {
            assert_eq!(outcome.lost, Some(0));
        }
    }
}

#[test]
fn reference_clients_receive_the_reason_of_a_rejection() {
    if !is_reference_installed() {
        return;
    }
    let mut third: Vec<&str> = vec!["-t", "-T1"];
    let (outcome, text) = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let control = format!("-P{}", listener.local_addr().unwrap().port());
        third.extend([control.as_str(), "127.0.0.1", "127.0.0.2"]);
        let client = Command::new("nuttcp")
            .args(&third)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let outcome = serve(listener.accept().unwrap().0);
        let output = client.wait_with_output().unwrap();
        (
            outcome,
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    assert!(outcome.is_err());
    assert!(text.contains("3rd party"), "{text}");
    let (outcome, text) = serve_reference(&["-xt"], 1);
    assert!(outcome.is_err());
    assert!(text.contains("traceroute is not possible"), "{text}");
}

/// Ends a reference server whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn reference_server(options: &[&str]) -> (Running, SocketAddr) {
    let port = free_ports(1);
    let child = Command::new("nuttcp")
        .args(["-S", "--nofork", &format!("-P{port}")])
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (Running(child), SocketAddr::from(([127, 0, 0, 1], port)))
}

/// Our client against a reference server; both ends' bytes must be the same.
fn measured(server: SocketAddr, test: NuttcpTest) -> Outcome {
    let name = format!("{test:?}");
    let outcome = measure(server, test).unwrap_or_else(|error| panic!("{name}: {error}"));
    let flow = outcome.far.flows[0];
    let direction = match outcome.test.direction {
        NuttcpDirection::ToServer => Direction::Send,
        NuttcpDirection::ToClient => Direction::Receive,
    };
    assert_eq!(flow.direction, direction);
    // A reference transmitter that its time interrupts counts the part of a buffer that it had written,
    // and then its report is only as exact as its decimals.
    let error = match outcome.test.buffer_limit {
        Some(_) => 0,
        None => 2 * REPORTED_BYTES_ERROR,
    };
    let far = flow.figures.bytes.unwrap();
    assert!(
        far.abs_diff(outcome.near.bytes) <= error,
        "{name}: {far} there, {} here",
        outcome.near.bytes
    );
    assert!(outcome.near.bytes > 0);
    assert!(
        outcome
            .far
            .text
            .as_ref()
            .is_some_and(|text| text.contains("nuttcp-"))
    );
    outcome
}

#[test]
fn a_reference_server_is_measured_over_tcp() {
    if !is_reference_installed() {
        return;
    }
    let (_server, address) = reference_server(&[]);
    for way in [NuttcpDirection::ToServer, NuttcpDirection::ToClient] {
        for streams in [1, 3] {
            let fixed = NuttcpTest {
                streams,
                buffer_limit: Some(160),
                duration_ns: None,
                ..NuttcpTest::new(way, TransportKind::Stream, free_ports(streams))
            };
            let outcome = measured(address, fixed);
            assert_eq!(outcome.near.bytes, 160 * 65_536);
        }
        let flipped = NuttcpTest {
            flip: true,
            buffer_limit: Some(16),
            duration_ns: None,
            ..NuttcpTest::new(way, TransportKind::Stream, free_ports(1))
        };
        measured(address, flipped);
        let timed = NuttcpTest {
            duration_ns: Some(1_000_000_000),
            interval_ns: Some(250_000_000),
            ..NuttcpTest::new(way, TransportKind::Stream, free_ports(1))
        };
        let outcome = measured(address, timed);
        let reported = match way {
            NuttcpDirection::ToServer => {
                assert_eq!(outcome.far.flows[0].figures.retransmits, None);
                2..=5
            }
            NuttcpDirection::ToClient => {
                assert!(outcome.far.flows[0].figures.retransmits.is_some());
                0..=0
            }
        };
        assert!(
            reported.contains(&outcome.intervals.len()),
            "{:?}",
            outcome.intervals
        );
        let duration = outcome.far.flows[0].figures.duration_ns.unwrap();
        assert!(duration > 500_000_000, "{duration}");
    }
}

#[test]
fn a_reference_server_is_measured_over_udp() {
    if !is_reference_installed() {
        return;
    }
    let (_server, address) = reference_server(&[]);
    for way in [NuttcpDirection::ToServer, NuttcpDirection::ToClient] {
        let test = NuttcpTest {
            buffer_limit: Some(60),
            duration_ns: None,
            rate_kbps: Some(8_000),
            interval_ns: (way == NuttcpDirection::ToClient).then_some(1_000_000_000),
            buffer_bytes: 1_000,
            ..NuttcpTest::new(way, TransportKind::Datagram, free_ports(1))
        };
        let outcome = measured(address, test);
        let figures = outcome.far.flows[0].figures;
        assert_eq!(figures.packets, Some(60));
        assert_eq!(figures.lost, None, "the report does not tell");
        assert_eq!(
            outcome.lost,
            (way == NuttcpDirection::ToClient).then_some(0)
        );
    }
}

#[test]
fn an_upstream_rejection_is_an_error() {
    if !is_reference_installed() {
        return;
    }
    let (_server, address) = reference_server(&[]);
    // Its own control port cannot carry data.
    let test = NuttcpTest::new(
        NuttcpDirection::ToServer,
        TransportKind::Stream,
        address.port(),
    );
    let error = measure(address, test).err().unwrap();
    let NuttcpError::Rejected { reason } = error else {
        panic!("{error}")
    };
    assert!(reason.contains("ctlport overlaps"), "{reason}");
}
