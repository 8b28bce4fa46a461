//! Location of every lost datagram: losses are injected in labs, one place at a time, and the real
//! binary must find all of them there, exactly.

use std::fs;

use crate::common::{
    LinerateServer, RunningCommand, TestDir, TestLab, assert_record, finish, lab, skip,
};
use serde_json::Value;

/// Returns the record of datagrams between the two hosts of a lab.
#[track_caller]
fn measure(lab: &TestLab, args: &str) -> Value {
    let args = format!("throughput 10.77.0.2 {args} -u -i 0 --json");
    let record = finish(&mut lab.linerate("client", &args)).expect(0).json();
    assert_record(&record);
    check_sum(&record, &args);
    record
}

/// Checks that in a lab no loss is unaccounted for.
#[track_caller]
fn check_sum(record: &Value, args: &str) {
    let lost = record["summary"]["lost"].as_u64().expect("UDP knows it");
    let losses = record["losses"].as_array().expect("a list");
    let sum: u64 = losses
        .iter()
        .filter_map(|loss| loss["packets"].as_u64())
        .sum();
    assert_eq!(sum, lost, "{args}: {losses:#?}");
    let caveats = record["validity"].as_array().expect("a list");
    let unexplained = caveats.iter().find(|d| d["doubt"] == "loss-not-explained");
    assert_eq!(
        unexplained, None,
        "{args}: {losses:#?} {:#?}",
        record["counters"]
    );
    assert!(
        losses.iter().all(|loss| loss["place"] != "path"),
        "{args}: {losses:#?}"
    );
}

/// Returns the packets lost at a place, and whether the count is exact.
fn loss_at(record: &Value, place: &str) -> (u64, bool) {
    let losses = record["losses"].as_array().expect("a list");
    let loss = losses.iter().find(|loss| loss["place"] == place);
    loss.map_or((0, true), |loss| {
        (
            loss["packets"].as_u64().expect("a count"),
            loss["exact"].as_bool().expect("a flag"),
        )
    })
}

const PLAIN: &str = "[[links]]\nbetween = [\"client\", \"server\"]\n";

const SLOW_SWITCH: &str = "[switches.s1]\n[[links]]\nbetween = [\"client\", \"s1\"]\n\
    [[links]]\nbetween = [\"s1\", \"server\"]\nrate = \"20M\"\nqueue = \"16K\"\n";

/// Runs of a series, and a run under load, read the counters of the full path as a single run does.
#[test]
fn runs_of_a_series_see_the_switches() {
    let lab = lab!(TestLab::pair("loss-series", SLOW_SWITCH));
    let _server = lab.server("-q");
    for args in ["-l 64,1K -t 0.1", "--load tcp -t 0.2"] {
        let args = format!("latency 10.77.0.2 -u {args} -i 0 --json");
        let set = finish(&mut lab.linerate("client", &args)).expect(0).json();
        let runs = set["runs"].as_array().expect("a list");
        assert!(runs.len() > 1, "{args}: {set:#}");
        for run in runs {
            let counters = run["counters"].as_array().expect("a list");
            let seen = counters.iter().any(|counter| counter["host"] == "s1");
            assert!(seen, "{args}: {counters:#?}");
        }
    }
}

#[test]
fn a_queue_behind_a_switch_drops() {
    let lab = lab!(TestLab::pair("loss-qdisc", SLOW_SWITCH));
    let _server = lab.server("-q");
    for args in [
        "-b 60M -t 0.5",
        "-b 60M -t 0.5 -P 3",
        "-b 60M/8 -t 0.5",
        "-t 0.3",
    ] {
        let record = measure(&lab, args);
        let (packets, exact) = loss_at(&record, "qdisc");
        assert!(packets > 0 && exact, "{args}: {:#?}", record["losses"]);
    }
    // In reverse the datagrams pass the link's other end, which has drops of its own.
    let back = measure(&lab, "-b 60M -t 0.5 -R");
    assert!(loss_at(&back, "qdisc").0 > 0);
    let bidirectional = measure(&lab, "-b 60M -t 0.5 --bidir");
    let losses = bidirectional["losses"].as_array().expect("a list");
    let directions = losses.iter().filter(|loss| loss["place"] == "qdisc");
    assert_eq!(directions.count(), 2, "{losses:#?}");
}

#[test]
fn a_small_receive_buffer_drops() {
    let lab = lab!(TestLab::pair("loss-rcvbuf", PLAIN));
    let _server = lab.server("-q");
    // Bursts that exceed the buffer.
    let record = measure(&lab, "-b 100M/64 -t 0.5 --rcvbuf 4000 --offload none");
    let (packets, exact) = loss_at(&record, "udp-receive-queue");
    assert!(packets > 0 && exact, "{:#?}", record["losses"]);
    let drops = &record["directions"][0]["streams"][0]["receiver"]["receive_queue_drops"];
    assert_eq!(drops.as_u64(), Some(packets));
}

#[test]
fn a_sender_without_buffer_space_drops() {
    let slow = "[[links]]\nbetween = [\"client\", \"server\"]\nrate = \"10M\"\nqueue = \"1M\"\n";
    let lab = lab!(TestLab::pair("loss-sndbuf", slow));
    let _server = lab.server("-q");
    for args in [
        "-b 40M -t 0.6 --sndbuf 8000",
        "-b 40M -t 0.6 --sndbuf 8000 --wait spin/block",
    ] {
        let record = measure(&lab, args);
        let (packets, exact) = loss_at(&record, "sender-socket");
        assert!(packets > 0 && exact, "{args}: {:#?}", record["losses"]);
        let send_errors = &record["directions"][0]["streams"][0]["sender"]["send_refused"];
        assert_eq!(send_errors.as_u64(), Some(packets), "{args}");
        assert_eq!(
            record["summary"]["unsent"].as_u64(),
            Some(packets),
            "{args}"
        );
    }
}

#[test]
fn a_fragment_that_is_missing_loses_its_datagram_once() {
    let lab = lab!(TestLab::pair("loss-fragments", SLOW_SWITCH));
    let _server = lab.server("-q");
    let record = measure(&lab, "-b 40M -t 0.5 -l 5888");
    let (packets, _) = loss_at(&record, "reassembly");
    assert!(packets > 0, "{:#?}", record["losses"]);
    assert!(loss_at(&record, "qdisc").0 + packets > 0);
}

#[test]
fn no_memory_to_reassemble_loses_at_reassembly_alone() {
    let lab = lab!(TestLab::pair("loss-reassembly", PLAIN));
    // Limit of the namespace; a datagram of four fragments needs more.
    let limit =
        "cd /proc/sys/net/ipv4 && echo 0 > ipfrag_low_thresh && echo 5000 > ipfrag_high_thresh";
    if let Err(why) = lab.shell("server", limit) {
        skip!("the limit of fragments cannot be set here: {why}");
    }
    let _server = lab.server("-q");
    let record = measure(&lab, "-b 20M -t 0.4 -l 5888");
    let lost = record["summary"]["lost"].as_u64();
    let (packets, exact) = loss_at(&record, "reassembly");
    assert!(packets > 0 && exact, "{:#?}", record["losses"]);
    assert_eq!(Some(packets), lost, "all of them");
}

#[test]
fn an_interface_that_takes_smaller_packets_drops() {
    let lab = lab!(TestLab::pair("loss-mtu", PLAIN));
    let _server = lab.server("-q");
    if let Err(why) = lab.shell("server", "ip link set eth0 mtu 1000") {
        skip!("{why}");
    }
    let record = measure(&lab, "-b 20M -t 0.3 -l 1400");
    let (packets, exact) = loss_at(&record, "interface-rx");
    let lost = record["summary"]["lost"].as_u64();
    assert!(
        packets > 0 && exact,
        "{:#?} {:#?}",
        record["losses"],
        record["counters"]
    );
    assert_eq!(Some(packets), lost, "nothing of that size arrives");
}

#[test]
fn a_link_that_goes_down_is_named() {
    let lab = lab!(TestLab::pair("loss-carrier", PLAIN));
    let _server = lab.server("-q");
    let take_down = "ip link set eth0 down; sleep 1; ip link set eth0 up";
    if let Err(why) = lab.shell("server", take_down) {
        skip!("{why}");
    }
    // The run lasts until the link has been down.
    let args = "throughput 10.77.0.2 -b 20M -l 1400 -u -i 0 --json-stream -t 600";
    let mut running = RunningCommand::start(&mut lab.linerate("client", args));
    running.wait_started();
    lab.shell("server", take_down).expect("it worked before");
    running.interrupt();
    let mut lines = running.wait().expect(130).json_lines();
    let record = lines.pop().expect("a line")["record"].take();
    assert_record(&record);
    let caveats = record["validity"].as_array().expect("a list");
    let has_caveat = |id: &str| caveats.iter().any(|caveat| caveat["doubt"] == id);
    assert!(
        has_caveat("carrier-lost") && !has_caveat("loss-not-explained"),
        "{caveats:#?}"
    );
    // On a busy machine another cause may cost most: the link must only be among them.
    let findings = record["findings"].as_array().expect("a list");
    let mut causes = findings.iter().map(|findings| &findings["cause"]);
    assert!(causes.any(|cause| cause == "link-down"), "{findings:#?}");
}

/// The limit of the backlog queues is machine-wide, so this test needs an explicit permission.
#[test]
fn a_core_with_a_full_backlog_drops() {
    const LIMIT: &str = "/proc/sys/net/core/netdev_max_backlog";

    /// Restores the limit on drop.
    struct Restore(String);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = fs::write(LIMIT, &self.0);
        }
    }

    if std::env::var_os("LINERATE_TEST_SYSCTLS").is_none() {
        skip!("changes {LIMIT} of this machine: set LINERATE_TEST_SYSCTLS=1 to allow it");
    }
    let shaped = "[[links]]\nbetween = [\"client\", \"server\"]\nrate = \"300M\"\n\
        queue = \"4M\"\nburst = \"60K\"\n";
    let lab = lab!(TestLab::pair("loss-backlog", shaped));
    let _server = lab.server("-q");
    let before = fs::read_to_string(LIMIT).expect("it is there");
    let restore = Restore(before);
    if fs::write(LIMIT, "1").is_err() {
        skip!("needs root");
    }
    // The token bucket lets many packets pass in one run of the softirq.
    let record = measure(&lab, "-b 280M/60 -t 0.4 -l 1400 --offload gso");
    drop(restore);
    let (packets, exact) = loss_at(&record, "softnet-backlog");
    assert!(packets > 0 && exact, "{:#?}", record["losses"]);
}

/// The search ends at the rate of the link and records its reason.
#[test]
fn the_highest_rate_of_a_link_is_found() {
    let link = "[[links]]\nbetween = [\"client\", \"server\"]\nrate = \"20M\"\nqueue = \"100K\"\n";
    let lab = lab!(TestLab::pair("loss-search", link));
    let _server = lab.server("-q");
    let args = "throughput 10.77.0.2 -u -b max:1% --trial 150ms -t 0.4 -i 0 --sndbuf 1M --json";
    let set = finish(&mut lab.linerate("client", args)).expect(0).json();
    assert_eq!(set["schema"], "linerate/set/1");
    assert_eq!(set["kind"], "search");
    let search = &set["result"]["search"];
    let runs = set["runs"].as_array().expect("runs");
    assert_eq!(search["trials"].as_array().map(Vec::len), Some(runs.len()));
    runs.iter().for_each(assert_record);
    // The sender blocks in the first trial without a rate, and so do all others.
    let waits = runs.iter().map(|run| &run["plan"]["wait"]);
    let both_block = serde_json::json!({ "client": "block", "server": "block" });
    waits.for_each(|wait| assert_eq!(*wait, both_block));
    for trial in search["trials"].as_array().expect("trials") {
        let passed = trial["passed"] == true;
        assert_eq!(trial["failure"].is_null(), passed, "{trial:#}");
    }
    // The link's rate counts headers. On a busy machine less may be found, and never more.
    let rate = search["rate_bps"].as_f64().unwrap_or(0.0);
    assert!(rate < 26e6, "{search:#}");
    let stop_reason = search["stopped_by"].as_str().expect("a reason");
    assert!(
        ["resolution", "sender", "trials", "minimum-rate"].contains(&stop_reason),
        "{search:#}"
    );
}

/// Outside a lab others may use the same counters.
#[test]
fn on_loopback_shared_counters_only_bound() {
    let dir = TestDir::new();
    let server = LinerateServer::start(&mut dir.linerate("server -q -p 0"));
    let args = format!(
        "throughput 127.0.0.1 -u -p {} -t 0.4 -b 400M/64 -l 1000 --rcvbuf 4000 --offload none -i 0 --json",
        server.port
    );
    let record = dir.run(&args).expect(0).json();
    assert_record(&record);
    let lost = record["summary"]["lost"].as_u64().expect("UDP knows it");
    let losses = record["losses"].as_array().expect("a list");
    let sum: u64 = losses
        .iter()
        .filter_map(|loss| loss["packets"].as_u64())
        .sum();
    assert_eq!(sum, lost, "{losses:#?}");
    let (packets, exact) = loss_at(&record, "udp-receive-queue");
    assert!(packets > 0 && exact, "{losses:#?}");
    let names: Vec<_> = (record["counters"].as_array().expect("a list").iter())
        .filter_map(|counter| counter["counter"].as_str())
        .collect();
    for name in ["rx_dropped", "backlog_drops", "fragments_received"] {
        assert!(names.contains(&name), "{names:?}");
    }
}
