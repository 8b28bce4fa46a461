//! Sample sets of runs with their results.

use linerate_record::ids::AddedDelay;
use linerate_record::load::{LatencyUnderLoad, LoadCurve, LoadPoint};
use linerate_record::plan::{Direction, TransportProtocol, WaitMode};
use linerate_record::record::Record;
use linerate_record::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_record::waiting_costs::WaitingRuns;
use linerate_stats::size_costs::{CostEstimate, SizeCosts};

use super::{
    latency, latency_blocking, latency_spinning, tcp, tcp_receive, tcp_send, udp_bidirectional,
};

/// Set with costs of all kinds.
pub fn conclusions() -> RunSet {
    let mut set = demo();
    let cost = |ns: f64| CostEstimate {
        ns,
        low_ns: Some(ns * 0.95),
        high_ns: Some(ns * 1.05),
    };
    set.result.size_costs = Some(SizeCosts {
        fixed: cost(10_600.0),
        per_byte: cost(0.071),
        per_fragment: Some(cost(1_480.0)),
        fragments_in_bytes: false,
        residual_ns: Some(12.0),
    });
    let (idle, loaded) = (latency_blocking(), latency_spinning());
    let (idle, loaded) = (idle.summary.rtt_ns.unwrap(), loaded.summary.rtt_ns.unwrap());
    let point = |share: f64| LoadPoint {
        share,
        intended_per_second: share * 80_000.0,
        achieved_per_second: share * 80_000.0,
        lost: 0,
        unsent: 0,
        rtt_intended_ns: idle,
        rtt_ns: loaded,
    };
    set.result.load_curve = Some(LoadCurve {
        capacity_per_second: 80_000.0,
        points: vec![point(0.1), point(0.5), point(0.95)],
        knee: Some(point(0.5)),
    });
    set.result.under_load = Some(LatencyUnderLoad {
        rate_per_second: Some(500),
        processor_wait_ns: Some(1_200.0),
        added_by: Some(AddedDelay::PathQueue.into()),
        ..LatencyUnderLoad::compare("TCP".to_owned(), loaded, idle, Some(13.5e9))
    });
    set
}

/// Alternating runs with several wait modes.
pub fn waiting() -> RunSet {
    let mut set = demo();
    set.result.waiting_costs = WaitingRuns {
        blocking: vec![48_000.0, 49_000.0, 47_500.0],
        no_halt: vec![10_100.0, 10_300.0, 10_000.0],
        spinning: vec![6_100.0, 6_000.0, 6_050.0],
    }
    .costs();
    set
}

fn labelled(label: &str, mut record: Record) -> Record {
    record.label = Some(label.to_owned());
    record
}

/// Result of the demo.
pub fn demo() -> RunSet {
    let mut tcp_blocking = labelled(
        "TCP round trips, blocking",
        latency("", WaitMode::Block, 55_000.0, 303),
    );
    let mut tcp_spinning = labelled(
        "TCP round trips, spinning",
        latency("", WaitMode::Spin, 8_300.0, 404),
    );
    for (run, id) in [
        (&mut tcp_blocking, "20261121T144130Z-111111"),
        (&mut tcp_spinning, "20261121T144136Z-222222"),
    ] {
        run.id = id.to_owned();
        run.plan.protocol = TransportProtocol::Tcp;
    }
    let runs = vec![
        labelled("TCP, sending", tcp_send()),
        labelled("TCP, receiving", tcp_receive()),
        labelled("UDP, bidirectional", udp_bidirectional()),
        labelled("UDP round trips, blocking", latency_blocking()),
        labelled("UDP round trips, spinning", latency_spinning()),
        tcp_blocking,
        tcp_spinning,
    ];
    RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: "20261121T144042Z-5e7000".to_owned(),
        kind: "demo".to_owned(),
        started: runs[0].started,
        interrupted: false,
        runs,
        result: SetResult {
            notes: vec![
                "the two hosts are network namespaces on this machine, joined by a veth pair: no cable is involved".to_owned(),
            ],
            ..SetResult::default()
        },
    }
}

/// Seven repeats of one run.
pub fn repeats() -> RunSet {
    let runs: Vec<_> = (0..7)
        .map(|n| {
            let id = format!("20261121T15000{n}Z-00000{n}");
            tcp(&id, Direction::Send, 61.2e9, 100 + n)
        })
        .collect();
    RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: "20261121T150000Z-5e7001".to_owned(),
        kind: "repeat".to_owned(),
        started: runs[0].started,
        interrupted: false,
        result: SetResult::from_repeats(&runs),
        runs,
    }
}
