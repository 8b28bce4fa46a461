//! iperf3 against our server.

use super::*;

fn figure(report: &Value, sum: &str, name: &str) -> f64 {
    let value = report["end"][sum][name].as_f64();
    value.unwrap_or_else(|| panic!("{sum} {name}: {report}"))
}

#[test]
fn iperf3_over_tcp() {
    if !is_installed("iperf3", "--version") {
        return;
    }
    let (_alone, host) = (alone(), InteropServer::start());
    for options in [
        "-t 2 -b 200M",
        "-n 20M -P 3",
        "-k 300 -l 10000",
        "-t 1 -b 50M --get-server-output",
    ] {
        let (report, record) = iperf3(&host, options);
        let sent = figure(&report, "sum_sent", "bytes");
        let got = direction_summary(&record, Direction::Send);
        assert_eq!(
            got.bytes_received,
            Some(sent as u64),
            "{options}: all arrived"
        );
        assert_eq!(figure(&report, "sum_received", "bytes"), sent, "{options}");
        assert_eq!(got.lost, None);
        assert_eq!(record.plan.peer_protocol.as_deref(), Some("iperf3"));
        if options.starts_with("-t 2") {
            assert!(record.intervals.len() >= 2, "{options}");
            let ours = got.goodput_bps.unwrap();
            let theirs = figure(&report, "sum_received", "bits_per_second");
            assert_similar(ours, theirs, options);
        }
        if options.contains("--get-server-output") {
            assert!(
                report["server_output_text"]
                    .as_str()
                    .unwrap()
                    .contains("linerate")
            );
        }
    }
    let (report, record) = iperf3(&host, "-R -t 2 -b 100M -P 2");
    let sent = direction_summary(&record, Direction::Receive);
    assert_eq!(
        sent.bytes_sent,
        Some(figure(&report, "sum_sent", "bytes") as u64)
    );
    let theirs = figure(&report, "sum_received", "bits_per_second");
    assert_similar(sent.offered_bps.unwrap(), theirs, "-R");

    let (report, record) = iperf3(&host, "--bidir -t 2 -b 50M");
    let (there, back) = (
        direction_summary(&record, Direction::Send),
        direction_summary(&record, Direction::Receive),
    );
    assert_eq!(
        there.bytes_received,
        Some(figure(&report, "sum_sent", "bytes") as u64)
    );
    let theirs = figure(&report, "sum_sent_bidir_reverse", "bytes");
    assert_eq!(back.bytes_sent, Some(theirs as u64));
    let theirs = figure(&report, "sum_received", "bits_per_second");
    assert_similar(there.goodput_bps.unwrap(), theirs, "--bidir");
}

#[test]
fn rates_are_those_of_iperf3() {
    if !is_installed("iperf3", "--version") {
        return;
    }
    let (_alone, host) = (alone(), InteropServer::start());
    let theirs = |report: &Value| figure(report, "sum_received", "bits_per_second");
    let (report, record) = iperf3(&host, "-t 2 -b 200M");
    let got = direction_summary(&record, Direction::Send);
    assert_close(got.goodput_bps.unwrap(), theirs(&report), "-b 200M");
    let (report, record) = iperf3(&host, "-R -t 2 -b 100M -P 2");
    let sent = direction_summary(&record, Direction::Receive);
    assert_close(sent.offered_bps.unwrap(), theirs(&report), "-R");
    // The last block is 105 ms before the end; the exchange of results is not part of the test's
    // time.
    let (report, record) = iperf3(&host, "--bidir -t 2 -b 10M");
    let ends = record.intervals.iter().map(|it| it.end_ns).max();
    assert!(ends < Some(2_090_000_000), "{:?}", record.intervals);
    let got = direction_summary(&record, Direction::Send);
    assert_close(got.goodput_bps.unwrap(), theirs(&report), "--bidir");
    let (_, record) = iperf3(&host, "-u -R -t 2 -b 10M -l 1000");
    let sent = direction_summary(&record, Direction::Receive);
    assert_close(sent.offered_bps.unwrap(), 10e6, "-u -R");
}

#[test]
fn the_largest_segment_of_an_iperf3_client_binds_both_ends() {
    if !is_installed("iperf3", "--version") {
        return;
    }
    let (_alone, host) = (alone(), InteropServer::start());
    let (_, record) = iperf3(&host, "-R -n 1M -M 600 -C reno");
    let sent = &record.directions[0].streams[0];
    let state = sent.sender.as_ref().and_then(|socket| socket.tcp.clone());
    // TCP timestamps take 12 of its bytes.
    let mss = state.unwrap().mss_bytes;
    assert!((500..=600).contains(&mss), "{mss}");
    assert_eq!(record.plan.congestion_control.as_deref(), Some("reno"));
}

#[test]
fn iperf3_over_udp() {
    if !is_installed("iperf3", "--version") {
        return;
    }
    let (_alone, host) = (alone(), InteropServer::start());
    for options in [
        "-u -t 2 -b 10M -l 1000",
        "-u -t 1 -b 5M -l 500 -P 3 --udp-counters-64bit",
    ] {
        let (report, record) = iperf3(&host, options);
        let got = direction_summary(&record, Direction::Send);
        // A loaded machine drops datagrams: both ends report the same loss.
        let lost = figure(&report, "sum", "lost_packets") as u64;
        let sent = figure(&report, "sum", "packets") as u64;
        assert_eq!(
            got.packets_received.unwrap() + got.lost.unwrap(),
            sent,
            "{options}"
        );
        assert_eq!(got.lost, Some(lost), "{options}");
        assert!(got.ipdv_ns.is_some());
    }
    let (report, record) = iperf3(&host, "-u -R -t 2 -b 10M -l 1000");
    let sent = direction_summary(&record, Direction::Receive);
    let theirs = figure(&report, "sum", "packets") as u64;
    assert!(sent.packets_sent.unwrap() >= theirs, "-u -R");
    // Datagrams in flight when the client ends the test are not lost.
    let lost = figure(&report, "sum", "lost_packets") as u64;
    assert_eq!(sent.lost, Some(lost), "-u -R");
    assert_similar(sent.offered_bps.unwrap(), 10e6, "-u -R");

    let (_, record) = iperf3(&host, "-u --bidir -t 1 -b 4M -l 1200");
    assert!(
        direction_summary(&record, Direction::Send)
            .packets_received
            .unwrap()
            > 300
    );
    assert!(
        direction_summary(&record, Direction::Receive)
            .packets_sent
            .unwrap()
            > 300
    );
}

/// Payload arrives on separate connections and flows, at the same port.
#[test]
fn iperf3_on_a_port_that_was_given_to_it() {
    if !is_installed("iperf3", "--version") {
        return;
    }
    let (_alone, host) = (alone(), InteropServer::with_ports(&["iperf3"]));
    let given = host.also[0];
    for options in ["-n 4M -P 2", "-t 1 -u -b 10M -P 2", "-t 1 -R -b 10M"] {
        let text = run("iperf3", &format!("-c 127.0.0.1 -J -p {given} {options}"));
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report.get("error"), None, "{options}");
        assert_eq!(host.record().plan.port, given, "{options}");
    }
}

#[test]
fn several_iperf3_at_a_time() {
    if !is_installed("iperf3", "--version") {
        return;
    }
    let (_alone, host) = (alone(), InteropServer::start());
    let reports = std::thread::scope(|scope| {
        let clients = [
            "-t 2 -b 20M",
            "-t 2 -b 20M -R",
            "-u -t 2 -b 5M -l 800",
            "-u -t 2 -b 5M -l 900 -R",
        ];
        let clients = clients.map(|options| {
            let args = format!("-c 127.0.0.1 -J -p {} {options}", host.port);
            scope.spawn(move || run("iperf3", &args))
        });
        clients.map(|client| client.join().unwrap())
    });
    for text in reports {
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report.get("error"), None);
    }
    for _ in 0..4 {
        assert!(!host.record().interrupted);
    }
}

/// The last datagrams of a client are lost: no gap shows that, and its own count does.
#[test]
fn the_count_of_an_iperf3_client_shows_losses_at_the_end() {
    use linerate_protocol::iperf3::CounterWidth;
    use linerate_protocol::iperf3::udp::{Iperf3Header, UdpHello, write_header};
    use std::io::{Read, Write};
    use std::net::{TcpStream, UdpSocket};
    let (_alone, host) = (alone(), InteropServer::start());
    let mut control = TcpStream::connect(("127.0.0.1", host.port)).unwrap();
    control
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let read_state = |mut control: &TcpStream| {
        let mut state = [0];
        control.read_exact(&mut state).unwrap();
        state[0]
    };
    let send_json = |mut control: &TcpStream, value: Value| {
        let text = value.to_string();
        let length = (text.len() as u32).to_be_bytes();
        control
            .write_all(&[&length[..], text.as_bytes()].concat())
            .unwrap();
    };
    control
        .write_all(b"abcdefghijklmnopqrstuvwxyz234567abcd\0")
        .unwrap();
    assert_eq!(read_state(&control), 9);
    send_json(
        &control,
        serde_json::json!({"udp": true, "omit": 0, "time": 1, "num": 0, "blockcount": 0, "parallel": 1,
            "len": 500, "bandwidth": 1_000_000, "client_version": "3.12"}),
    );
    assert_eq!(read_state(&control), 10);
    let flow = UdpSocket::bind("127.0.0.1:0").unwrap();
    flow.connect(("127.0.0.1", host.port)).unwrap();
    flow.set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    flow.send(&UdpHello::Little.to_bytes()).unwrap();
    flow.recv(&mut [0; 4]).unwrap();
    assert_eq!([read_state(&control), read_state(&control)], [1, 2]);
    // Every tenth of the first 70 is lost, and the last 30 of 100.
    for sequence in (1..=70).filter(|sequence| sequence % 10 != 5) {
        let mut datagram = [0; 500];
        let sent_ns = 1_000_000_000 + sequence * 3_000_001;
        write_header(
            &mut datagram,
            CounterWidth::Bits32,
            Iperf3Header { sequence, sent_ns },
        );
        flow.send(&datagram).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(100));
    control.write_all(&[4]).unwrap();
    assert_eq!(read_state(&control), 13);
    send_json(
        &control,
        serde_json::json!({"cpu_util_total": 1.0, "cpu_util_user": 1.0, "cpu_util_system": 0.0,
            "sender_has_retransmits": 0, "streams": [{"id": 1, "bytes": 50_000, "retransmits": -1,
            "jitter": 0.0, "errors": 0, "packets": 100, "start_time": 0.0, "end_time": 0.3}]}),
    );
    let mut length = [0; 4];
    control.read_exact(&mut length).unwrap();
    let mut text = vec![0; u32::from_be_bytes(length) as usize];
    control.read_exact(&mut text).unwrap();
    let reply: Value = serde_json::from_slice(&text).unwrap();
    let stream = &reply["streams"][0];
    assert_eq!(
        (&stream["errors"], &stream["packets"]),
        (&37.into(), &100.into()),
        "{reply}"
    );
    assert_eq!(read_state(&control), 14);
    control.write_all(&[16]).unwrap();
    drop(control);
    let record = host.record();
    let got = direction_summary(&record, Direction::Send);
    assert_eq!(
        (got.packets_sent, got.packets_received),
        (Some(100), Some(63))
    );
    assert_eq!((got.lost, got.loss_fraction), (Some(37), Some(0.37)));
    assert!(
        got.duration_ns.unwrap() >= 210_000_000,
        "{:?}",
        got.duration_ns
    );
}
