//! The real binary on lab networks: hosts, switches and links of `linerate lab`.

use std::fs;
use std::time::Duration;

use crate::common::{
    FinishedCommand, RunningCommand, TestDir, TestLab, assert_record, finish, lab, number_at, skip,
    wait_until,
};
use rustix::process::Signal;
use serde_json::Value;

/// Returns the record of a measurement from the client to an address of the server.
#[track_caller]
fn measure(lab: &TestLab, args: &str) -> Value {
    println!("{args}");
    let output = finish(&mut lab.linerate("client", &format!("{args} --json"))).expect(0);
    let record = output.json();
    assert_record(&record);
    record
}

/// Returns the names of this user's labs.
fn lab_names(dir: &TestDir) -> Vec<String> {
    let document = dir.run("lab list --json").expect(0).json();
    let labs = document["labs"].as_array().expect("labs");
    labs.iter()
        .map(|lab| lab["name"].as_str().expect("a name").to_owned())
        .collect()
}

fn lab_down(lab: &TestLab) -> FinishedCommand {
    lab.dir.run(&format!("lab down --name {}", lab.name))
}

#[test]
fn every_measurement_through_a_switch() {
    let lab = lab!(TestLab::up(TestDir::new(), "measure", "--hops 1"));
    let server = lab.server("-q");
    assert_eq!(server.port, 5201, "the default port");
    for args in [
        "throughput 10.77.0.2 -t 0.3",
        "throughput 10.77.0.2 -t 0.3 -R",
        "throughput 10.77.0.2 -t 0.3 --bidir -b 50M",
        "throughput 10.77.0.2 -t 0.3 -P 3",
        "throughput 10.77.0.2 -u -t 0.3 -b 20M",
        "throughput 10.77.0.2 -u -t 0.3 -b 20M -R",
        "throughput 10.77.0.2 -u -t 0.3 -b 20M --bidir -P 2",
        "throughput fd77::2 -t 0.3 -b 50M",
        "throughput fd77::2 -u -t 0.3 -b 20M",
        "latency 10.77.0.2 -n 200",
        "latency 10.77.0.2 -u -n 200 -P 3",
        "latency fd77::2 -u -n 200 --wait spin",
        "latency 10.77.0.2 -u -n 200 -B 10.77.0.1%eth0",
        "latency 10.77.0.2 -n 200 -B %eth0 --source-port 4000",
    ] {
        let record = measure(&lab, args);
        for host in 0..2 {
            let interface = &record["hosts"][host]["interface"];
            assert_eq!(interface["name"], "eth0", "{args}");
            assert_eq!(interface["driver"], "veth", "{args}");
            assert_eq!(interface["mtu"], 1500, "{args}");
        }
        if args.starts_with("latency") {
            assert_eq!(number_at(&record, "/summary/mismatched"), 0.0, "{args}");
            assert!(number_at(&record, "/summary/rtt_ns/p50") > 0.0, "{args}");
        } else {
            assert!(number_at(&record, "/summary/goodput_bps") > 0.0, "{args}");
        }
        if args.contains("throughput") && args.contains("-u") {
            // Largest payload of one packet, without the headers of IP and UDP.
            let payload = if args.contains("fd77") {
                1452.0
            } else {
                1472.0
            };
            assert_eq!(number_at(&record, "/plan/payload_bytes"), payload, "{args}");
        }
        if args.contains("--source-port") {
            let local = &record["directions"][0]["streams"][0]["sender"]["local"];
            assert_eq!(local, "10.77.0.1:4000");
        }
    }
}

/// A link with a rate never carries more than that, including headers.
#[test]
fn a_link_of_100_megabits() {
    run_over_a_link_of_100_megabits(0.0);
}

#[test]
fn a_link_of_100_megabits_is_filled() {
    run_over_a_link_of_100_megabits(81.0);
}

/// Measures the goodput over a link of 100 Mb/s, which is at least `lowest` Mb/s.
fn run_over_a_link_of_100_megabits(lowest: f64) {
    let dir = TestDir::new();
    let file = "[hosts.client]\n[hosts.server]\n[[links]]\nbetween = [\"client\", \"server\"]\nrate = \"100M\"\n";
    fs::write(dir.path().join("lab.toml"), file).expect("a file");
    let lab = lab!(TestLab::up(dir, "rate", "lab.toml"));
    assert_eq!(lab.info["links"][0]["rate_bps"], 100_000_000);
    let _server = lab.server("-q");
    for args in [
        "throughput 10.77.0.2 -t 2",
        "throughput 10.77.0.2 -t 2 -u -b 120M",
    ] {
        let goodput = number_at(&measure(&lab, args), "/summary/goodput_bps") / 1e6;
        assert!(goodput <= 110.0, "{args}: {goodput} Mb/s");
        assert!(goodput > lowest, "{args}: {goodput} Mb/s");
    }
}

#[test]
fn datagrams_fill_what_the_link_takes() {
    let dir = TestDir::new();
    let file = "[hosts.client]\n[hosts.server]\n[[links]]\nbetween = [\"client\", \"server\"]\nmtu = 4000\n";
    fs::write(dir.path().join("lab.toml"), file).expect("a file");
    let lab = lab!(TestLab::up(dir, "mtu", "lab.toml"));
    let _server = lab.server("-q");
    let record = measure(&lab, "throughput 10.77.0.2 -u -t 0.2 -b 20M");
    assert_eq!(number_at(&record, "/plan/payload_bytes"), 3972.0);
    let record = measure(&lab, "throughput fd77::2 -u -t 0.2 -b 20M");
    assert_eq!(number_at(&record, "/plan/payload_bytes"), 3952.0);
    // Larger datagrams are fragmented and still arrive.
    let record = measure(&lab, "throughput 10.77.0.2 -u -t 0.2 -b 20M -l 20000");
    assert!(number_at(&record, "/summary/bytes_received") > 0.0);
}

/// Defaults of other tools are longer than an IPv6 packet.
#[test]
fn default_datagrams_fit_a_packet() {
    let lab = lab!(TestLab::pair(
        "datagrams-fit",
        "[[links]]\nbetween = [\"client\", \"server\"]\n"
    ));
    let _server = lab.server("-q --also 9");
    for (remote, peer, bytes) in [
        ("10.77.0.2", "iperf3 -p 5201", 1_460),
        ("fd77::2", "iperf3 -p 5201", 1_452),
        ("fd77::2", "iperf3 -p 5201 -R", 1_452),
        ("fd77::2", "iperf2 -p 5201", 1_452),
        ("fd77::2", "iperf2 -p 5201 -R", 1_452),
        ("fd77::2", "nuttcp -p 5201", 1_024),
        ("fd77::2", "discard", 1_452),
        // What an option sets stays.
        ("fd77::2", "iperf3 -p 5201 -l 1460", 1_460),
    ] {
        let args = format!("throughput {remote} --peer {peer} -u -b 1M -t 0.3 -i 0");
        let record = measure(&lab, &args);
        assert_eq!(record["plan"]["payload_bytes"], bytes, "{args}");
    }
}

#[test]
fn labs_are_listed_while_they_exist() {
    let lab = lab!(TestLab::up(TestDir::new(), "list", "--hops 2"));
    assert!(lab_names(&lab.dir).contains(&lab.name));
    assert_eq!(lab.info["switches"].as_array().map(Vec::len), Some(2));
    let text = lab.dir.run("lab list").expect(0).stdout;
    assert!(
        text.contains(&lab.name) && text.contains("10.77.0.1"),
        "{text}"
    );
    let duplicate = lab.dir.run(&format!("lab up --hops 0 --name {}", lab.name));
    assert!(duplicate.expect(1).stderr.contains(&lab.name));
    let unknown = finish(&mut lab.command_on("nobody", ["true"])).expect(1);
    assert!(unknown.stderr.contains("client, server"), "{unknown:?}");
    lab_down(&lab).expect(0);
    assert!(!lab_names(&lab.dir).contains(&lab.name));
    assert!(lab_down(&lab).expect(1).stderr.contains(&lab.name));
}

#[test]
fn commands_in_a_lab_end_as_they_do_outside() {
    let lab = lab!(TestLab::up(TestDir::new(), "exec", "--hops 0"));
    finish(&mut lab.command_on("client", ["true"])).expect(0);
    finish(lab.command_on("client", ["sh", "-c"]).arg("exit 7")).expect(7);
    finish(&mut lab.command_on("client", ["no-such-command"])).expect(127);
    let streams = finish(
        lab.command_on("client", ["sh", "-c"])
            .arg("echo out; echo err >&2"),
    )
    .expect(0);
    assert_eq!(
        (streams.stdout.as_str(), streams.stderr.as_str()),
        ("out\n", "err\n")
    );
    // Ctrl-C reaches the command inside.
    let server = lab.server("");
    assert!(server.stop().expect(0).stdout.contains("READY"));
    // Errors of the binary inside have its own exit codes.
    let rejected = finish(&mut lab.linerate("client", "latency 10.77.0.2")).expect(5);
    assert!(rejected.stderr.contains("refused"), "{rejected:?}");
    let nowhere = finish(&mut lab.linerate("client", "latency 192.0.2.1")).expect(5);
    assert!(nowhere.stderr.contains("no route"), "{nowhere:?}");
}

/// Returns whether any process is in this network namespace.
fn has_processes(namespace: &str) -> bool {
    fs::read_dir("/proc")
        .expect("/proc is mounted")
        .flatten()
        .filter_map(|process| fs::read_link(process.path().join("ns/net")).ok())
        .any(|link| link.to_string_lossy() == namespace)
}

#[test]
fn nothing_outlives_a_killed_holder() {
    let lab = lab!(TestLab::up(TestDir::new(), "kill", "--hops 1"));
    let namespace =
        finish(&mut lab.command_on("server", ["readlink", "/proc/self/ns/net"])).expect(0);
    let namespace = namespace.stdout.trim().to_owned();
    let server = lab.server("-q");
    assert!(has_processes(&namespace));
    let holder = lab.info["holder_pid"].as_i64().expect("a number");
    let holder = i32::try_from(holder)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(holder.expect("a process"), Signal::KILL).expect("it runs");
    let exited = server.running.wait();
    assert!(!exited.status.success(), "{exited:?}");
    wait_until("the namespace is empty", || !has_processes(&namespace));
    wait_until("the lab is not listed", || {
        !lab_names(&lab.dir).contains(&lab.name)
    });
}

/// Both ends detect it within their timeout, and the server serves further clients.
#[test]
fn a_cable_that_is_pulled() {
    let lab = lab!(TestLab::up(TestDir::new(), "cable", "--hops 0"));
    let mut server = lab.server("--json-stream");
    let args = "latency 10.77.0.2 -u -t 900 -i 0.1";
    let client = RunningCommand::start(&mut lab.linerate("client", args));
    server.running.wait_started();
    std::thread::sleep(Duration::from_millis(300));
    finish(&mut lab.command_on("server", ["ip", "link", "set", "eth0", "down"])).expect(0);
    let client = client.wait().expect(5);
    assert!(client.stderr.contains("14 s"), "{client:?}");
    assert!(
        client.stdout.contains("p99.9"),
        "the partial result: {client:?}"
    );
    server.running.wait_line(|line| {
        line.contains(r#""event":"finished""#) || line.contains(r#""event":"failed""#)
    });
    finish(&mut lab.command_on("server", ["ip", "link", "set", "eth0", "up"])).expect(0);
    let retry_args = "latency 10.77.0.2 -u -n 10 --retry 150";
    finish(&mut lab.linerate("client", retry_args)).expect(0);
}

#[test]
fn an_ordinary_user_has_labs_too() {
    let Some(dir) = TestDir::unprivileged() else {
        skip!("cannot become an unprivileged user here");
    };
    let lab = lab!(TestLab::up(dir, "user", "--hops 1"));
    assert_eq!(lab.info["rootless"], true);
    assert!(lab_names(&lab.dir).contains(&lab.name));
    let _server = lab.server("-q");
    let record = measure(&lab, "throughput 10.77.0.2 -t 0.3 -b 50M");
    assert!(number_at(&record, "/summary/goodput_bps") > 0.0);
    // Both ends write into the same home.
    wait_until("records are stored inside as outside", || {
        lab.dir.stored().len() == 2
    });
    lab_down(&lab).expect(0);
}
