//! Evidence of rules for processors: each row changes one reading.

use linerate_record::ids::CauseId;
use serde_json::{Value, json};

use super::rules::{changed, finding_of, reading};

/// The cost of a call comes from the record: a tenth of the calls in the same time cost ten times
/// as much.
#[test]
fn calls_are_as_dear_as_the_record_has_them() {
    for (calls, payload, least, most) in [
        (142_355.0, 1_024, 0.7, 0.95),
        (14_235.0, 1_024, 0.7, 0.95),
        (1_423_550.0, 1_024, 0.7, 0.95),
        // Half of the time is spent on the bytes.
        (14_235.0, 30_000, 0.3, 0.55),
    ] {
        let changes = [
            ("/directions/0/calls_per_second", json!(calls)),
            ("/plan/payload_bytes", json!(payload)),
        ];
        let found = finding_of("small-writes", "small-writes-1k", &changes).expect("a finding");
        let fits = (least..most).contains(&found.cost);
        assert!(fits, "{calls} of {payload}: {}", found.cost);
        assert!(reading(&found, "time of a call").is_some());
    }
    // Measured call times win over the threads' time divided by the number of calls.
    let times = json!({ "count": 1000, "min": 1, "mean": 1e3, "p50": 1, "p90": 1, "p99": 1, "p99_9": 1, "p99_99": 1, "max": 1,
        "standard_deviation": 0.0, "total_ns": 1_000_000, "histogram": { "unit": "ns", "significant_digits": 3, "count": 0, "sum": 0, "min": 0, "max": 0, "buckets": [] } });
    let changes = [("/calls", json!({ "sendto": { "accepted": times } }))];
    // A microsecond each is 0.14 of the time, which is too little.
    assert_eq!(
        finding_of("small-writes", "small-writes-1k", &changes),
        None
    );
}

/// Cores that are never idle, or that are handed from one end to the other, do not halt; the
/// wake-up takes no longer than the exit latency of their states.
#[test]
fn cores_halt_where_they_can() {
    let stream = |idle_ns: u64| {
        let machine = json!({ "processors": 2, "user_ns": 0, "system_ns": 2_000_000_000 - idle_ns, "irq_ns": 0, "softirq_ns": 0, "steal_ns": 0, "idle_ns": idle_ns });
        vec![
            ("/plan/wait", json!({ "near": "block", "far": "block" })),
            ("/hosts/0/wake_up_ns", json!(60_000)),
            ("/intervals/*/tcp/receive_window_limited", json!(0.0)),
            ("/summary/cpu/0/machine", machine.clone()),
            ("/summary/cpu/1/machine", machine),
            ("/summary/cpu/0/threads/0/cpu_ns", json!(300_000_000)),
            ("/summary/cpu/0/threads/0/runnable_ns", json!(0)),
            ("/summary/cpu/0/threads/0/blocked_ns", json!(700_000_000)),
            ("/summary/cpu/1/threads/0/cpu_ns", json!(300_000_000)),
            ("/summary/cpu/1/threads/0/runnable_ns", json!(0)),
            ("/summary/cpu/1/threads/0/blocked_ns", json!(700_000_000)),
            ("/summary/cpu/1/threads/0/voluntary_switches", json!(20_000)),
            ("/summary/cpu/1/threads/0/cpus", json!([1])),
        ]
    };
    let states = |name: &str, latency_us: u64| json!([{ "name": "POLL", "latency_us": 0 }, { "name": name, "latency_us": latency_us }]);
    let no_hypervisor = ("/hosts/1/cpu/hypervisor", Value::Null);
    for (more, idle_ns, is_reported) in [
        (vec![], 1_000_000_000, true),
        (vec![], 100_000_000, false),
        // Both on one processor.
        (
            vec![("/summary/cpu/1/threads/0/cpus", json!([0]))],
            1_000_000_000,
            false,
        ),
        // The probe measured 60 us, but the deepest state has an exit latency of 1 us: another
        // program ran.
        (
            vec![
                no_hypervisor.clone(),
                ("/hosts/1/cpu/idle_states", states("C1", 1)),
            ],
            1_000_000_000,
            false,
        ),
        (
            vec![
                no_hypervisor,
                ("/hosts/1/cpu/idle_states", states("C6", 130)),
            ],
            1_000_000_000,
            true,
        ),
        // The states of a virtual processor have no meaning.
        (
            vec![("/hosts/1/cpu/idle_states", states("haltpoll idle", 1))],
            1_000_000_000,
            true,
        ),
    ] {
        let mut changes = stream(idle_ns);
        changes.extend(more.iter().cloned());
        let found = finding_of("idle-wakeup", "healthy-tcp-send", &changes);
        assert_eq!(
            found.is_some(),
            is_reported,
            "{more:?} {idle_ns}: {found:#?}"
        );
    }
}

/// A program started in a real-time class (`chrt`) keeps it without any option.
#[test]
fn a_class_set_from_outside_is_detected() {
    for (started, waited_ns, is_reported) in [
        (json!("fifo:50"), 49_000_000, true),
        (Value::Null, 49_000_000, false),
        // Late, but never descheduled.
        (json!("fifo:50"), 100_000, false),
    ] {
        let changes = [
            ("/plan/sched/near", json!("inherited")),
            ("/hosts/0/started_as", started.clone()),
            ("/summary/cpu/0/threads/0/runnable_ns", json!(waited_ns)),
        ];
        let found = finding_of("rt-throttle", "rt-throttle-client", &changes);
        assert_eq!(found.is_some(), is_reported, "{started} {waited_ns}");
        if let Some(found) = found {
            let seen = found
                .evidence
                .iter()
                .find(|seen| seen.counter == "scheduling");
            let read = seen.map(|seen| seen.source.as_str());
            assert_eq!(read, Some("client sched_getscheduler"));
        }
    }
}

/// Fifty requests that wait for 2 ms each wait for 0.1 s in total, and all are late.
#[test]
fn rare_requests_are_late_all_the_same() {
    for (round_trips, p50_ns, waited_ns, is_reported) in [
        (50, 2_000_000, 80_000_000, true),
        (50, 2_000_000, 10_000_000, false),
        // One long stall among fast responses.
        (50, 70_000, 80_000_000, false),
        // Requests fill the time: the ordinary rule applies.
        (20_000, 70_000, 80_000_000, false),
        (20_000, 70_000, 800_000_000, true),
    ] {
        let mut record = changed("scheduling-delay-hogs", &[]);
        record.summary.round_trips = Some(round_trips);
        let rtt = record.summary.rtt_ns.as_mut().expect("round trips");
        (rtt.p50, rtt.mean) = (
            p50_ns,
            p50_ns.max(1_700_000 * u64::from(round_trips == 50)) as f64,
        );
        for cost in &mut record.summary.cpu {
            let thread = &mut cost.threads[0];
            thread.runnable_ns = Some(waited_ns);
            thread.blocked_ns = Some(thread.wall_ns - waited_ns - thread.cpu_ns.min(100_000_000));
            thread.cpu_ns = thread.cpu_ns.min(100_000_000);
        }
        let found = linerate_explain::explain(&record);
        let found = found
            .iter()
            .find(|found| found.cause == CauseId::SchedulingDelay);
        assert_eq!(
            found.is_some(),
            is_reported,
            "{round_trips} {p50_ns} {waited_ns}: {found:#?}"
        );
        let each = found
            .is_some_and(|found| reading(found, "waited for a core, each round trip").is_some());
        assert_eq!(
            each,
            is_reported && round_trips == 50,
            "{round_trips} {p50_ns} {waited_ns}"
        );
    }
}
