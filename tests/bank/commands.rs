//! Commands that findings advise: complete as typed, and never one that is rejected.

use linerate_record::ids::CauseId;
use serde_json::{Value, json};

use super::rules::{changed, command, explained, finding_of};

/// A command that changes a lab host runs on that host, with its interface.
#[test]
fn commands_name_the_interface_and_the_host() {
    let in_lab = json!({
        "command": "throughput",
        "through": ["linerate", "lab", "exec", "pair/client", "--"],
        "program": "linerate",
        "arguments": [{ "words": ["10.77.0.2"] }],
    });
    let several = |gso: u64| {
        [
            ("/command", in_lab.clone()),
            ("/plan/streams", json!(4)),
            ("/hosts/0/interface/gso_ipv4_max_bytes", json!(gso)),
        ]
    };
    let advice = command(
        "receiver-cpu",
        "receiver-cpu-copies-alone",
        &several(65_536),
    );
    assert_eq!(
        advice,
        "linerate lab exec pair/client -- ip link set dev eth0 gso_max_size 524280 gso_ipv4_max_size 524280 gro_ipv4_max_size 524280"
    );
    // At the maximum there is no advice.
    let advice = command(
        "receiver-cpu",
        "receiver-cpu-copies-alone",
        &several(524_280),
    );
    assert_eq!(advice, "");
    let advice = command(
        "link-speed",
        "link-speed-half",
        &[("/command", in_lab.clone())],
    );
    assert!(
        advice.starts_with("linerate lab exec pair/server -- sh -c 'ethtool -s enp3s0"),
        "{advice}"
    );
    let advice = command("nic-drop", "nic-drop-tcp", &[("/command", in_lab)]);
    assert!(
        advice.starts_with("linerate lab exec pair/server -- sh -c 'ethtool -S enp3s0"),
        "{advice}"
    );
}

/// Without a reported interface the command has no name to use.
#[test]
fn commands_have_no_place_to_fill_in() {
    for (cause, name, expected) in [
        ("softirq-core", "softirq-core-client", ""),
        ("line-rate", "line-rate-tcp", "ethtool enp3s0"),
    ] {
        let changes = [("/hosts/0/interface", Value::Null)];
        assert_eq!(command(cause, name, &changes), expected, "{cause}");
    }
}

/// A remote kernel has no `-C none`; the user-space stack has a key for it.
#[test]
fn no_congestion_control_is_proposed_as_a_command() {
    let changes = |control: &'static str| {
        [
            (
                "/directions/0/streams/0/sender/congestion_control",
                json!(control),
            ),
            ("/plan/congestion_control", json!(control)),
            (
                "/hosts/0/stack/counters",
                json!({ "tcp": { "out_segments": 40_000, "retransmitted_segments": 1_000 } }),
            ),
            ("/directions/0/goodput_bps", json!(90e6)),
        ]
    };
    let advice = command("path-loss", "delayed-ack-own-stack", &changes("reno"));
    assert!(
        advice.contains("--set tcp.congestion_control=none"),
        "{advice}"
    );
    assert!(!advice.contains("-C "), "{advice}");
    // A stack without congestion control needs no such advice.
    let advice = command("path-loss", "delayed-ack-own-stack", &changes("none"));
    assert!(!advice.contains("none"), "{advice}");
}

/// The host that saw an address change probes that address, not its own.
#[test]
fn a_changed_neighbour_is_looked_up() {
    for (host, expected) in [
        ("client", "arping -c 3 -I eth0 10.77.0.2"),
        ("server", "arping -c 3 -I eth0 10.77.0.1"),
    ] {
        let mut record = changed("neighbour-moved", &[]);
        for counter in &mut record.counters {
            if counter.counter == "neighbour_address_changes" {
                counter.after = if counter.host == host { 6 } else { 0 };
                counter.before = 0;
            }
        }
        if host == "server" {
            let counter = record
                .counters
                .iter()
                .find(|found| found.counter == "neighbour_address_changes");
            let mut counter = counter.expect("it was read").clone();
            (counter.host, counter.after) = ("server".to_owned(), 6);
            record
                .counters
                .retain(|found| found.counter != "neighbour_address_changes");
            record.counters.push(counter);
        }
        let found = linerate_explain::explain(&record);
        let found = found.iter().find(|found| found.cause == CauseId::Neighbour);
        let advice = found.and_then(|found| found.command.as_deref());
        assert_eq!(advice, Some(expected), "{host}");
    }
}

/// With one usable processor another one of the machine may be made usable; a machine of one has
/// none.
#[test]
fn one_usable_processor_is_not_split() {
    for (usable, logical, has) in [
        (1, 1, None),
        (1, 2, Some("taskset -c 0 linerate ")),
        (2, 2, Some("--cpu 0/1")),
    ] {
        let changes = [
            ("/hosts/0/cpu/usable", json!(usable)),
            ("/hosts/0/cpu/logical", json!(logical)),
        ];
        let found = finding_of("shared-core", "shared-core-udp", &changes).expect("a finding");
        let command = found.command.as_deref();
        match has {
            None => assert_eq!(command, None, "{usable} of {logical}"),
            Some(has) => assert!(
                command.is_some_and(|command| command.contains(has)),
                "{command:?}"
            ),
        }
        let remedied = logical > 1;
        assert_eq!(found.gain.is_some(), remedied, "{usable} of {logical}");
        assert_eq!(found.is_cause(), remedied, "{usable} of {logical}");
    }
}

/// The largest unfragmented datagram is 20 bytes shorter with IPv6.
#[test]
fn datagrams_fit_packets_of_their_family() {
    for (host, length) in [("10.77.0.2", "-l 1372"), ("fd77::2", "-l 1352")] {
        let mut record = changed("nic-drop-mtu", &[("/plan/host", json!(host))]);
        for direction in &mut record.directions {
            direction.streams.clear();
        }
        let found = linerate_explain::explain(&record);
        let found = found.iter().find(|found| found.cause == CauseId::NicDrop);
        let advice = found.and_then(|found| found.command.clone());
        assert!(
            advice
                .as_ref()
                .is_some_and(|command| command.ends_with(length)),
            "{host}: {advice:?}"
        );
    }
}

/// A ring at its maximum length gets no advice to make it longer.
#[test]
fn longer_rings_are_proposed() {
    for (rx, tx, expected) in [
        (Some(512), Some(512), "--rxd 1024 --txd 1024"),
        (Some(1024), Some(512), "--txd 1024"),
        (Some(4096), Some(2048), ""),
        (None, None, "--rxd 1024 --txd 1024"),
    ] {
        let changes = [
            ("/forward/ports/0/rx_descriptors", json!(rx)),
            ("/forward/ports/0/tx_descriptors", json!(tx)),
        ];
        let advice = command("too-few-descriptors", "too-few-descriptors-ring", &changes);
        match expected {
            "" => assert_eq!(advice, "", "{rx:?} {tx:?}"),
            _ => assert!(advice.ends_with(expected), "{rx:?} {tx:?}: {advice}"),
        }
        assert_eq!(
            advice.contains("--rxd"),
            expected.contains("--rxd"),
            "{rx:?} {tx:?}"
        );
    }
}

/// A flow needs one thread at each end: `--threads 1` would change nothing.
#[test]
fn a_single_flow_gets_no_advice_of_fewer_threads() {
    let mut reported = 0;
    for (streams, fewer) in [(1, false), (4, true)] {
        let changes = [
            ("/plan/streams", json!(streams)),
            ("/hosts/0/cpu/usable", json!(1)),
            ("/hosts/1/cpu/usable", json!(1)),
        ];
        for found in explained("scheduling-delay-tcp", &changes) {
            if found.cause == CauseId::SchedulingDelay {
                let command = found.command.unwrap_or_default();
                assert_eq!(
                    command.contains("--threads 1"),
                    fewer,
                    "{streams}: {command}"
                );
                reported += 1;
            }
        }
    }
    assert!(reported >= 2, "{reported}");
    // An end on a machine of its own has one thread a direction.
    let changes = [
        ("/hosts/0/cpu/usable", json!(0)),
        ("/hosts/1/cpu/usable", json!(0)),
        ("/hosts/1/boot_id", json!("another")),
    ];
    let found = finding_of("scheduling-delay", "scheduling-delay-tcp", &changes);
    let remedy = found.expect("a finding").remedy;
    let names = |text| remedy.contains(text);
    assert!(names("--bidir") && !names("two machines"), "{remedy}");
}

/// Half of the rate shows whether load causes the loss of datagrams; a search for a rate without
/// loss finds none on such a path.
#[test]
fn datagrams_lost_on_the_path_are_sent_at_half_the_rate() {
    let command = command("path-loss", "path-loss-udp-live", &[]);
    assert!(command.contains(" -b 14."), "{command}");
}
