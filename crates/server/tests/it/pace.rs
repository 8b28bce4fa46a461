//! Paced loads over loopback: the intended rate is kept, or the record has a warning.

use crate::common::{TestServer, caveats, run, try_run};
use linerate_record::exit_codes;
use linerate_record::ids::LossPoint;
use linerate_record::pace::{PaceBurst, PacingMethod};
use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};

fn plan(server: &TestServer, protocol: TransportProtocol) -> Plan {
    let mut plan = server.plan(RunKind::Throughput, protocol);
    plan.duration_ns = Some(400_000_000);
    plan.interval_ns = None;
    plan.payload_bytes = 1_000;
    plan
}

#[test]
fn bursts_leave_together_and_keep_the_rate() {
    let server = TestServer::start();
    for direction in [Direction::Send, Direction::Receive] {
        for burst in [
            None,
            Some(PaceBurst::Payloads(1)),
            Some(PaceBurst::Payloads(16)),
            Some(PaceBurst::Bytes(64_000)),
            // More than one call accepts.
            Some(PaceBurst::Payloads(150)),
        ] {
            let mut plan = plan(&server, TransportProtocol::Udp);
            plan.directions = vec![direction];
            plan.rate_bps = Some(40_000_000);
            plan.pace.burst = burst;
            let record = run(plan);
            let summary = &record.summary;
            let context = format!("{burst:?}: {summary:?}");
            let each = record.plan.pace.burst_bytes(1_000) / 1_000;
            let lateness = summary.lateness_ns.expect(&context);
            let bursts = summary.packets_sent.unwrap().div_ceil(each);
            assert!(lateness.count.abs_diff(bursts) <= 1, "{context}");
            // On a busy machine less may leave, and then the run has a warning; never more.
            assert!(summary.rate_error.unwrap() < 0.2, "{context}");
            assert!(summary.arrival_gap_ns.is_some(), "{context}");
            assert!(summary.delay_variation_ns.is_some(), "{context}");
            let name = format!("lateness_ns.{direction}");
            assert!(record.histograms.contains_key(&name), "{context}");
            let gso = record.plan.udp_offload.gso == Some(true);
            assert!(!gso || each > 1, "{context}");
        }
    }
}

#[test]
fn packets_per_second_make_a_rate() {
    let server = TestServer::start();
    for protocol in [TransportProtocol::Udp, TransportProtocol::Tcp] {
        let mut plan = plan(&server, protocol);
        plan.pace.packets_per_second = Some(2_000);
        plan.rate_bps = Some(1);
        let record = run(plan);
        assert_eq!(record.plan.rate_bps, Some(16_000_000), "{protocol}");
        assert!(record.summary.lateness_ns.is_some(), "{protocol}");
        let sent = record.summary.bytes_sent.unwrap();
        // Two megabytes a second; on a busy machine it may end late.
        let seconds = record.summary.duration_ns.unwrap() as f64 / 1e9;
        let most = 2_000_000.0 * seconds + 100_000.0;
        assert!(sent as f64 <= most, "{protocol}: {sent} in {seconds} s");
    }
}

#[test]
fn a_rate_that_no_layer_keeps_is_noted() {
    let server = TestServer::start();
    for (protocol, by, honoured) in [
        (TransportProtocol::Udp, PacingMethod::Socket, false),
        (TransportProtocol::Udp, PacingMethod::Txtime, false),
        (TransportProtocol::Tcp, PacingMethod::Socket, true),
    ] {
        for direction in [Direction::Send, Direction::Receive] {
            let mut plan = plan(&server, protocol);
            plan.directions = vec![direction];
            plan.duration_ns = Some(150_000_000);
            plan.rate_bps = Some(40_000_000);
            plan.pace.method = by;
            let record = match try_run(plan) {
                Err(error) if error.exit_code() == exit_codes::MISSING => {
                    println!("skipped: {error}");
                    continue;
                }
                record => record.unwrap(),
            };
            let has_caveat = caveats(&record).contains(&"pacing-not-honoured");
            assert_eq!(has_caveat, !honoured, "{protocol} {by} {direction}");
            assert!(record.summary.rate_error.is_some());
        }
    }
}

#[test]
fn a_rate_beyond_the_sender_is_the_tools_limit() {
    let server = TestServer::start();
    let mut plan = plan(&server, TransportProtocol::Udp);
    plan.payload_bytes = 100;
    // A terabit per second of small datagrams is not reachable.
    plan.rate_bps = Some(1_000_000_000_000);
    let record = run(plan);
    assert!(
        caveats(&record).contains(&"tool-limit"),
        "{:?}",
        record.validity
    );
    assert!(record.summary.rate_error.unwrap() < -0.9);
    assert_eq!(
        record
            .losses
            .iter()
            .filter(|loss| loss.place == LossPoint::SenderSocket)
            .count(),
        0
    );
}
