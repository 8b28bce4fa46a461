//! Every lost datagram has its place: losses are planted in labs, one place at a time, and the real
//! binary must find them there, all of them, exactly.

mod common;

use std::fs;
use std::process::Command;
use std::time::Duration;

use common::{Room, Server, finish, is_record, skip};
use serde_json::Value;

struct Lab {
    room: Room,
    name: String,
}

impl Lab {
    #[track_caller]
    fn up(test: &str, links: &str) -> Result<Self, String> {
        let room = Room::new();
        let name = format!("loss-{test}-{}", std::process::id());
        let file = format!("[hosts.client]\n[hosts.server]\n{links}");
        fs::write(room.path().join("lab.toml"), file).expect("a file");
        let ran = room.run(&format!("lab up lab.toml --name {name} --json"));
        if ran.code() == 4 {
            return Err(ran.json()["error"].to_string());
        }
        ran.expect(0);
        Ok(Self { room, name })
    }

    fn on(&self, host: &str, words: &[&str]) -> Command {
        let mut command = self
            .room
            .linerate(&format!("lab exec {}/{host} --", self.name));
        command.args(words);
        command
    }

    /// A shell line on a host; whether it worked.
    fn shell(&self, host: &str, line: &str) -> bool {
        let done = self.on(host, &["sh", "-ec", line]).output();
        done.is_ok_and(|done| done.status.success())
    }

    fn server(&self) -> Server {
        let binary = self.room.binary();
        let binary = binary.to_str().expect("a path in UTF-8");
        Server::start(&mut self.on("server", &[binary, "server", "-q"]))
    }

    #[track_caller]
    fn measure(&self, words: &str) -> Value {
        let binary = self.room.binary();
        let mut all = vec![
            binary.to_str().expect("a path in UTF-8"),
            "throughput",
            "10.77.0.2",
        ];
        all.extend(words.split_whitespace());
        all.extend(["-u", "-i", "0", "--json"]);
        let record = finish(&mut self.on("client", &all)).expect(0).json();
        is_record(&record);
        adds_up(&record, words);
        record
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let down = format!("lab down {}", self.name);
        let _ = self.room.linerate(&down).output();
    }
}

/// In a lab nothing may be left over, whatever was lost.
#[track_caller]
fn adds_up(record: &Value, words: &str) {
    let lost = record["summary"]["lost"].as_u64().expect("UDP knows it");
    let losses = record["losses"].as_array().expect("a list");
    let sum: u64 = losses
        .iter()
        .filter_map(|loss| loss["packets"].as_u64())
        .sum();
    assert_eq!(sum, lost, "{words}: {losses:#?}");
    let doubts = record["validity"].as_array().expect("a list");
    let unexplained = doubts.iter().find(|d| d["doubt"] == "loss-not-explained");
    assert_eq!(
        unexplained, None,
        "{words}: {losses:#?} {:#?}",
        record["counters"]
    );
    assert!(
        losses.iter().all(|loss| loss["place"] != "path"),
        "{words}: {losses:#?}"
    );
}

/// What was lost at a place, and whether that is exact.
fn at(record: &Value, place: &str) -> (u64, bool) {
    let losses = record["losses"].as_array().expect("a list");
    let loss = losses.iter().find(|loss| loss["place"] == place);
    loss.map_or((0, true), |loss| {
        (
            loss["packets"].as_u64().expect("a count"),
            loss["exact"].as_bool().expect("a flag"),
        )
    })
}

macro_rules! lab {
    ($name:literal, $links:expr) => {
        match Lab::up($name, $links) {
            Ok(lab) => lab,
            Err(why) => skip!("no lab: {why}"),
        }
    };
}

const PLAIN: &str = "[[links]]\nbetween = [\"client\", \"server\"]\n";

const SLOW_SWITCH: &str = "[switches.s1]\n[[links]]\nbetween = [\"client\", \"s1\"]\n\
    [[links]]\nbetween = [\"s1\", \"server\"]\nrate = \"20M\"\nqueue = \"16K\"\n";

#[test]
fn a_queue_behind_a_switch_drops() {
    let lab = lab!("qdisc", SLOW_SWITCH);
    let _server = lab.server();
    for words in [
        "-b 60M -t 0.5",
        "-b 60M -t 0.5 -P 3",
        "-b 60M/8 -t 0.5",
        "-t 0.3",
    ] {
        let record = lab.measure(words);
        let (packets, exact) = at(&record, "qdisc");
        assert!(packets > 0 && exact, "{words}: {:#?}", record["losses"]);
    }
    // The other way the datagrams pass the link's other end, which drops on its own.
    let back = lab.measure("-b 60M -t 0.5 -R");
    assert!(at(&back, "qdisc").0 > 0);
    let both = lab.measure("-b 60M -t 0.5 --bidir");
    let losses = both["losses"].as_array().expect("a list");
    let ways = losses.iter().filter(|loss| loss["place"] == "qdisc");
    assert_eq!(ways.count(), 2, "{losses:#?}");
}

#[test]
fn a_small_receive_buffer_refuses() {
    let lab = lab!("rcvbuf", PLAIN);
    let _server = lab.server();
    // Bursts that the buffer cannot hold.
    let record = lab.measure("-b 100M/64 -t 0.5 --rcvbuf 4000 --offload none");
    let (packets, exact) = at(&record, "udp-receive-queue");
    assert!(packets > 0 && exact, "{:#?}", record["losses"]);
    let drops = &record["directions"][0]["streams"][0]["receiver"]["receive_queue_drops"];
    assert_eq!(drops.as_u64(), Some(packets));
}

#[test]
fn a_sender_without_room_gives_up() {
    let slow = "[[links]]\nbetween = [\"client\", \"server\"]\nrate = \"10M\"\nqueue = \"1M\"\n";
    let lab = lab!("sndbuf", slow);
    let _server = lab.server();
    for words in [
        "-b 40M -t 0.6 --sndbuf 8000",
        "-b 40M -t 0.6 --sndbuf 8000 --wait spin/block",
    ] {
        let record = lab.measure(words);
        let (packets, exact) = at(&record, "sender-socket");
        assert!(packets > 0 && exact, "{words}: {:#?}", record["losses"]);
        let refused = &record["directions"][0]["streams"][0]["sender"]["send_refused"];
        assert_eq!(refused.as_u64(), Some(packets), "{words}");
    }
}

#[test]
fn a_fragment_that_is_missing_loses_its_datagram_once() {
    let lab = lab!("fragments", SLOW_SWITCH);
    let _server = lab.server();
    let record = lab.measure("-b 40M -t 0.5 -l 5888");
    let (packets, _) = at(&record, "reassembly");
    assert!(packets > 0, "{:#?}", record["losses"]);
    assert!(at(&record, "qdisc").0 + packets > 0);
}

#[test]
fn no_memory_to_reassemble_loses_at_reassembly_alone() {
    let lab = lab!("reassembly", PLAIN);
    // The namespace's own limit; a datagram of four fragments needs more.
    if !lab.shell(
        "server",
        "cd /proc/sys/net/ipv4 && echo 0 > ipfrag_low_thresh && echo 5000 > ipfrag_high_thresh",
    ) {
        skip!("the limit of fragments cannot be set here");
    }
    let _server = lab.server();
    let record = lab.measure("-b 20M -t 0.4 -l 5888");
    let lost = record["summary"]["lost"].as_u64();
    let (packets, exact) = at(&record, "reassembly");
    assert!(packets > 0 && exact, "{:#?}", record["losses"]);
    assert_eq!(Some(packets), lost, "all of them");
}

#[test]
fn an_interface_that_takes_smaller_packets_drops() {
    let lab = lab!("mtu", PLAIN);
    let _server = lab.server();
    if !lab.shell("server", "ip link set eth0 mtu 1000") {
        skip!("needs ip");
    }
    let record = lab.measure("-b 20M -t 0.3 -l 1400");
    let (packets, exact) = at(&record, "interface-rx");
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
    let lab = lab!("carrier", PLAIN);
    let _server = lab.server();
    let binary = lab.room.binary();
    let mut all = vec![binary.to_str().expect("a path in UTF-8")];
    all.extend("throughput 10.77.0.2 -b 20M -t 2 -l 1400 -u -i 0 --json".split_whitespace());
    let (record, is_cut) = std::thread::scope(|scope| {
        let running = scope.spawn(|| finish(&mut lab.on("client", &all)).expect(0).json());
        std::thread::sleep(Duration::from_millis(900));
        let is_cut = lab.shell(
            "server",
            "ip link set eth0 down; sleep 0.3; ip link set eth0 up",
        );
        (running.join().expect("a run"), is_cut)
    });
    if !is_cut {
        skip!("needs ip");
    }
    let doubts = record["validity"].as_array().expect("a list");
    let told = |id: &str| doubts.iter().any(|doubt| doubt["doubt"] == id);
    assert!(
        told("carrier-lost") && !told("loss-not-explained"),
        "{doubts:#?}"
    );
    // Other tests beside this one may cost more than a link that was down for a sixth of the time.
    let others = ["scheduling-delay", "steal"];
    let found = record["findings"].as_array().expect("a list");
    let first = (found
        .iter()
        .map(|found| found["cause"].as_str().expect("a name")))
    .find(|cause| !others.contains(cause));
    assert_eq!(first, Some("link-down"), "{found:#?}");
}

/// The limit of the cores' queues is the whole machine's: whoever wants it changed for a moment says so.
#[test]
fn a_core_whose_queue_is_full_drops() {
    const LIMIT: &str = "/proc/sys/net/core/netdev_max_backlog";

    /// Puts the limit back, whatever happens.
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
    let lab = lab!("backlog", shaped);
    let _server = lab.server();
    let before = fs::read_to_string(LIMIT).expect("it is there");
    let restore = Restore(before);
    if fs::write(LIMIT, "1").is_err() {
        skip!("needs root");
    }
    // The bucket lets many go in one turn of the softirq.
    let record = lab.measure("-b 280M/60 -t 0.4 -l 1400 --offload gso");
    drop(restore);
    let (packets, exact) = at(&record, "softnet-backlog");
    assert!(packets > 0 && exact, "{:#?}", record["losses"]);
}

/// The search ends at what the link carries, and says what it stands on.
#[test]
fn the_highest_rate_of_a_link_is_found() {
    let link = "[[links]]\nbetween = [\"client\", \"server\"]\nrate = \"20M\"\nqueue = \"100K\"\n";
    let lab = lab!("search", link);
    let _server = lab.server();
    let binary = lab.room.binary();
    let binary = binary.to_str().expect("a path in UTF-8");
    let words = "throughput 10.77.0.2 -u -b max:1% --trial 150ms -t 0.4 -i 0 --sndbuf 1M --json";
    let words: Vec<&str> = std::iter::once(binary)
        .chain(words.split_whitespace())
        .collect();
    let set = finish(&mut lab.on("client", &words)).expect(0).json();
    assert_eq!(set["schema"], "linerate/set/1");
    assert_eq!(set["kind"], "search");
    let search = &set["result"]["search"];
    let runs = set["runs"].as_array().expect("runs");
    assert_eq!(search["trials"].as_array().map(Vec::len), Some(runs.len()));
    runs.iter().for_each(is_record);
    // The link's rate counts headers. On a busy machine less may be found, and never more.
    let rate = search["rate_bps"].as_f64().unwrap_or(0.0);
    assert!(rate < 26e6, "{search:#}");
    let ended = search["stopped_by"].as_str().expect("a reason");
    assert!(
        ["resolution", "sender", "trials", "floor"].contains(&ended),
        "{search:#}"
    );
}

/// Outside a lab others may use the same counters.
#[test]
fn on_loopback_shared_counters_only_bound() {
    let room = Room::new();
    let server = Server::start(&mut room.linerate("server -q -p 0"));
    let words = format!(
        "throughput 127.0.0.1 -u -p {} -t 0.4 -b 400M/64 -l 1000 --rcvbuf 4000 --offload none -i 0 --json",
        server.port
    );
    let record = room.run(&words).expect(0).json();
    is_record(&record);
    let lost = record["summary"]["lost"].as_u64().expect("UDP knows it");
    let losses = record["losses"].as_array().expect("a list");
    let sum: u64 = losses
        .iter()
        .filter_map(|loss| loss["packets"].as_u64())
        .sum();
    assert_eq!(sum, lost, "{losses:#?}");
    let (packets, exact) = at(&record, "udp-receive-queue");
    assert!(packets > 0 && exact, "{losses:#?}");
    let names: Vec<_> = (record["counters"].as_array().expect("a list").iter())
        .filter_map(|counter| counter["counter"].as_str())
        .collect();
    for name in ["rx_dropped", "backlog_drops", "fragments_received"] {
        assert!(names.contains(&name), "{names:?}");
    }
}
