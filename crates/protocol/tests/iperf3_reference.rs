//! Reference iperf3 at the other end, over loopback: the driver next to this file serves and measures
//! it.

mod iperf3_driver;

use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};

use iperf3_driver::client::{Measured, run};
use iperf3_driver::server::{Port, Served, serve_one};
use linerate_protocol::iperf3::{
    CounterWidth, Iperf3Direction, Iperf3Error, Iperf3ErrorCode, Iperf3Params, Iperf3Phase,
    Iperf3Transport, remote_report,
};
use linerate_protocol::remote_report::RemoteReport;
use linerate_record::plan::Direction;

/// Returns whether reference iperf3 is installed; prints a note if not.
fn is_reference_installed() -> bool {
    let there = Command::new("iperf3").arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: iperf3 is not installed");
    }
    there
}

fn reference_client(port: u16, options: &[&str]) -> Child {
    Command::new("iperf3")
        .args(["-c", "127.0.0.1", "-J", "-p", &port.to_string()])
        .args(options)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A reference client against our server: what it printed, and what we have.
fn serve(options: &[&str], early: bool) -> (serde_json::Value, Result<Served, Iperf3Error>) {
    let port = Port::any();
    let client = reference_client(port.number(), options);
    let served = serve_one(&port, early);
    let Output { stdout, .. } = client.wait_with_output().unwrap();
    let text = String::from_utf8(stdout).unwrap();
    (
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")),
        served,
    )
}

/// Bytes of all flows that a reference client reports, by the counting end.
fn sum(report: &serde_json::Value, name: &str, figure: &str) -> u64 {
    report["end"][name][figure]
        .as_f64()
        .unwrap_or_else(|| panic!("{name} {figure}: {report}")) as u64
}

fn bytes(report: &RemoteReport, direction: Direction) -> u64 {
    let of = report
        .flows
        .iter()
        .filter(|flow| flow.direction == direction);
    of.map(|flow| flow.figures.bytes.unwrap()).sum()
}

/// Our own count of one direction.
fn counted(served: &Served, from_client: bool) -> u64 {
    let flows = served.params.flows();
    let ours = served.ours.as_ref().unwrap();
    let of = ours.flows.iter().filter(|flow| {
        flows
            .iter()
            .any(|f| f.id == flow.id && f.from_client == from_client)
    });
    of.map(|flow| flow.bytes.unwrap()).sum()
}

#[test]
fn a_reference_client_sends_over_tcp() {
    if !is_reference_installed() {
        return;
    }
    for options in [
        &["-n", "8M"][..],
        &["-t", "1", "-P", "4", "-b", "50M"],
        &["-k", "100", "-l", "1000"],
        &["-t", "1", "-b", "20M", "--get-server-output"],
    ] {
        let (report, served) = serve(options, false);
        let served = served.unwrap();
        let theirs = served.theirs.as_ref().unwrap();
        let far = remote_report(&served.params, false, theirs);
        let received = counted(&served, true);
        assert!(received > 0);
        assert_eq!(
            received,
            bytes(&far, Direction::Receive),
            "{options:?}: all arrived"
        );
        assert_eq!(
            received,
            sum(&report, "sum_received", "bytes"),
            "{options:?}"
        );
        assert_eq!(sum(&report, "sum_sent", "bytes"), received, "{options:?}");
        // Linux reports retransmissions to a sender, but no losses over TCP.
        for flow in &far.flows {
            assert!(flow.figures.retransmits.is_some());
            assert_eq!(
                (
                    flow.figures.lost,
                    flow.figures.ipdv_ns,
                    flow.figures.packets
                ),
                (None, None, None)
            );
        }
        if options.contains(&"--get-server-output") {
            assert_eq!(report["server_output_text"], "a report of linerate\n");
        }
    }
}

#[test]
fn a_reference_client_receives_and_does_both_over_tcp() {
    if !is_reference_installed() {
        return;
    }
    let (report, served) = serve(&["-R", "-t", "1", "-P", "2", "-b", "50M"], false);
    let served = served.unwrap();
    let far = remote_report(&served.params, false, served.theirs.as_ref().unwrap());
    assert_eq!(counted(&served, false), sum(&report, "sum_sent", "bytes"));
    assert_eq!(
        bytes(&far, Direction::Send),
        sum(&report, "sum_received", "bytes")
    );
    assert!(
        far.flows
            .iter()
            .all(|flow| flow.figures.retransmits.is_none())
    );

    let (report, served) = serve(&["--bidir", "-t", "1", "-P", "2", "-b", "20M"], false);
    let served = served.unwrap();
    assert_eq!(served.params.direction, Iperf3Direction::Both);
    assert_eq!(counted(&served, true), sum(&report, "sum_sent", "bytes"));
    assert_eq!(
        counted(&served, false),
        sum(&report, "sum_sent_bidir_reverse", "bytes")
    );
}

#[test]
fn a_reference_client_uses_udp() {
    if !is_reference_installed() {
        return;
    }
    for options in [
        &["-u", "-t", "1", "-b", "4M", "-l", "1000"][..],
        &[
            "-u",
            "-t",
            "1",
            "-b",
            "2M",
            "-l",
            "500",
            "-P",
            "3",
            "--udp-counters-64bit",
        ],
        &["-u", "-R", "-t", "1", "-b", "2M", "-l", "1400", "-P", "2"],
        &["-u", "--bidir", "-t", "1", "-b", "1M", "-l", "1200"],
    ] {
        let (report, served) = serve(options, false);
        let served = served.unwrap();
        assert_eq!(report.get("error"), None, "{options:?}");
        let far = remote_report(&served.params, false, served.theirs.as_ref().unwrap());
        for flow in &far.flows {
            let of_ours = served.ours.as_ref().unwrap();
            let ours = of_ours
                .flows
                .iter()
                .find(|f| Some(f.id) == flow.id)
                .unwrap();
            match flow.direction {
                Direction::Receive => {
                    // It sent, we counted: nothing is lost on an idle loopback, but a loaded one
                    // drops.
                    assert_eq!(
                        flow.figures.packets,
                        Some(ours.packets.unwrap()),
                        "{options:?}"
                    );
                    assert_eq!(flow.figures.lost, None);
                    let arrived = flow.figures.packets.unwrap() - ours.lost.unwrap();
                    assert_eq!(
                        ours.bytes,
                        Some(arrived * u64::from(served.params.block_bytes))
                    );
                }
                Direction::Send => {
                    assert!(flow.figures.packets.unwrap() > 0, "{options:?}");
                    assert!(
                        flow.figures.packets.unwrap() + flow.figures.lost.unwrap()
                            <= ours.packets.unwrap()
                    );
                    assert!(flow.figures.ipdv_ns.is_some());
                }
            }
        }
    }
}

#[test]
fn a_reference_client_prints_its_rejection() {
    if !is_reference_installed() {
        return;
    }
    let port = Port::any();
    // 3.12 checks its own limits first, so the reason has to be another one.
    let client = reference_client(port.number(), &["-t", "1"]);
    let control = loop {
        if let Ok((stream, _)) = port.tcp.accept() {
            break stream;
        }
    };
    control.set_nonblocking(false).unwrap();
    let mut first = [0; 37];
    std::io::Read::read_exact(&mut &control, &mut first).unwrap();
    let (_, mut machine) = linerate_protocol::iperf3::Iperf3Server::open(&first, 0).unwrap();
    loop {
        let said = iperf3_driver::flush(&control, machine.outgoing());
        machine.mark_sent(said);
        if let Some(bytes) = iperf3_driver::listen(&control) {
            machine.receive(&bytes).unwrap();
        }
        if machine.next_event(0).unwrap().is_some() {
            machine.reject(Iperf3ErrorCode::TOTAL_RATE, 0);
            iperf3_driver::flush(&control, machine.outgoing());
            break;
        }
    }
    let output = client.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("total required bandwidth is larger than server limit"),
        "{text}"
    );
}

#[test]
fn either_end_may_stop_early() {
    if !is_reference_installed() {
        return;
    }
    let (report, served) = serve(&["-t", "20", "-b", "1M"], true);
    assert!(
        report["error"]
            .as_str()
            .unwrap()
            .contains("the server has terminated"),
        "{report}"
    );
    // The client ends on request.
    assert!(served.is_ok(), "{served:?}");

    for (signal, says_so) in [("-INT", true), ("-KILL", false)] {
        let port = Port::any();
        let client = reference_client(port.number(), &["-t", "30", "-b", "1M"]);
        let id = client.id().to_string();
        let stop = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(1500));
            Command::new("kill").args([signal, &id]).status().unwrap()
        });
        match serve_one(&port, false) {
            Ok(served) => assert!(says_so && served.terminated && served.theirs.is_none()),
            Err(Iperf3Error::PeerClosed { phase }) => {
                assert!(!says_so && phase == Iperf3Phase::Running, "{phase}");
            }
            Err(other) => panic!("{other}"),
        }
        assert!(stop.join().unwrap().success());
        client.wait_with_output().unwrap();
    }
}

/// Reference servers, ended when the test is.
struct ReferenceServer {
    child: Child,
    address: SocketAddr,
}

impl ReferenceServer {
    fn start() -> Self {
        // A port that was free a moment ago.
        let address = Port::any().tcp.local_addr().unwrap();
        let child = Command::new("iperf3")
            .args(["-s", "-p", &address.port().to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, address }
    }
}

impl Drop for ReferenceServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn measure(reference: &ReferenceServer, params: &Iperf3Params) -> (Measured, RemoteReport) {
    // A reference server needs a moment between two tests.
    for _ in 0..100 {
        match run(reference.address, params.clone(), false) {
            // It sends busy, or accepts and closes at once while it cleans up.
            Err(
                Iperf3Error::Busy
                | Iperf3Error::PeerClosed {
                    phase: Iperf3Phase::CookieExchange,
                },
            ) => std::thread::sleep(iperf3_driver::NAP * 10),
            measured => {
                let measured = measured.unwrap();
                let far = remote_report(params, true, measured.theirs.as_ref().unwrap());
                return (measured, far);
            }
        }
    }
    panic!("busy for too long");
}

#[test]
fn we_measure_a_reference_server_over_tcp() {
    if !is_reference_installed() {
        return;
    }
    let reference = ReferenceServer::start();
    let base = Iperf3Params {
        duration_ns: Some(1_000_000_000),
        rate_bps: Some(40_000_000),
        client_version: Some("3.12".into()),
        ..Iperf3Params::default()
    };
    for params in [
        Iperf3Params {
            parallel: 3,
            ..base.clone()
        },
        Iperf3Params {
            direction: Iperf3Direction::Reverse,
            parallel: 2,
            ..base.clone()
        },
        Iperf3Params {
            direction: Iperf3Direction::Both,
            ..base.clone()
        },
        Iperf3Params {
            server_output: true,
            ..base.clone()
        },
    ] {
        let (measured, far) = measure(&reference, &params);
        let ours = measured.ours.unwrap();
        assert_eq!(far.flows.len(), params.flows().len());
        for flow in &far.flows {
            let near = ours.flows.iter().find(|f| Some(f.id) == flow.id).unwrap();
            let (near, there) = (near.bytes.unwrap(), flow.figures.bytes.unwrap());
            assert!(near > 0 && there > 0);
            match flow.direction {
                // A reference server drops data in flight at the end of the test.
                Direction::Send => assert!(there <= near, "{there} of {near}"),
                Direction::Receive => {
                    assert!(near <= there, "{near} of {there}");
                    assert!(flow.figures.retransmits.is_some());
                }
            }
        }
        assert_eq!(far.text.is_some(), params.server_output);
    }
}

#[test]
fn we_measure_a_reference_server_over_udp() {
    if !is_reference_installed() {
        return;
    }
    let reference = ReferenceServer::start();
    let base = Iperf3Params {
        protocol: Iperf3Transport::Udp,
        duration_ns: Some(1_000_000_000),
        rate_bps: Some(2_000_000),
        block_bytes: 1000,
        ..Iperf3Params::default()
    };
    for params in [
        Iperf3Params {
            parallel: 2,
            ..base.clone()
        },
        Iperf3Params {
            direction: Iperf3Direction::Reverse,
            counter_width: CounterWidth::Bits64,
            ..base.clone()
        },
    ] {
        let (measured, far) = measure(&reference, &params);
        let ours = measured.ours.unwrap();
        for flow in &far.flows {
            let near = ours.flows.iter().find(|f| Some(f.id) == flow.id).unwrap();
            let near_packets = near.packets.unwrap();
            assert!(near_packets > 10, "{near_packets}");
            let there = flow.figures;
            match flow.direction {
                Direction::Send => {
                    assert!(there.packets.unwrap() + there.lost.unwrap() <= near_packets);
                    assert!(there.ipdv_ns.is_some());
                }
                Direction::Receive => {
                    assert!(there.packets.unwrap() >= near_packets);
                    assert_eq!(
                        (there.lost, there.ipdv_ns, there.retransmits),
                        (None, None, None)
                    );
                }
            }
        }
    }
}

#[test]
fn a_busy_or_stopped_reference_server_reports_it() {
    if !is_reference_installed() {
        return;
    }
    let mut reference = ReferenceServer::start();
    let long = Iperf3Params {
        duration_ns: Some(20_000_000_000),
        rate_bps: Some(1_000_000),
        ..Iperf3Params::default()
    };
    let first = std::thread::spawn({
        let (address, params) = (reference.address, long.clone());
        move || run(address, params, false)
    });
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(matches!(
        run(reference.address, long.clone(), false),
        Err(Iperf3Error::Busy)
    ));
    let id = reference.child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &id])
            .status()
            .unwrap()
            .success()
    );
    let ended = first.join().unwrap().unwrap();
    assert!(ended.terminated && ended.theirs.is_none());
    reference.child.wait().unwrap();

    // And we may go too: the server is free again afterwards.
    let reference = ReferenceServer::start();
    assert!(run(reference.address, long, true).unwrap().terminated);
    let short = Iperf3Params {
        duration_ns: None,
        amount_bytes: Some(1 << 20),
        ..Iperf3Params::default()
    };
    measure(&reference, &short);
}
