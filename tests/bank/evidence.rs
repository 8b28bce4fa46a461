//! Evidence of rules for paths and interfaces: each row changes one reading.

use linerate_record::ids::CauseId;
use serde_json::{Value, json};

use super::rules::{changed, finding_of, reading};

/// Packets of other programs are dropped by the same queueing discipline.
#[test]
fn drops_of_others_are_no_drops_of_the_run() {
    let drops = |count: u64| {
        let counter = json!({ "host": "client", "interface": "eth0", "counter": "qdisc_drops", "before": 0, "after": count });
        ("/counters", json!([counter]))
    };
    let stream = |retransmits: u64, busy: f64, cpu_ns: u64| {
        vec![
            drops(5_000),
            ("/directions/0/retransmits", json!(retransmits)),
            ("/intervals/*/tcp/busy", json!(busy)),
            ("/intervals/*/tcp/receive_window_limited", json!(0.0)),
            ("/summary/cpu/0/threads/0/cpu_ns", json!(cpu_ns)),
            (
                "/summary/cpu/0/threads/0/blocked_ns",
                json!(1_000_000_000 - cpu_ns),
            ),
            ("/summary/cpu/0/threads/0/runnable_ns", json!(0)),
            ("/summary/cpu/1/threads/0/cpu_ns", json!(200_000_000)),
            ("/summary/cpu/1/threads/0/blocked_ns", json!(800_000_000)),
            ("/summary/cpu/1/threads/0/runnable_ns", json!(0)),
        ]
    };
    for (retransmits, busy, cpu_ns, expected) in [
        // No retransmissions, and only the reader limited the sender.
        (0, 0.1, 300_000_000, None),
        // The processor limited the sender.
        (0, 1.0, 980_000_000, None),
        // A local drop is retransmitted without being counted, and the congestion window shrinks.
        (0, 1.0, 30_000_000, Some(5_000)),
        // Fewer retransmissions than drops: the rest belonged to other programs.
        (3_000, 1.0, 980_000_000, Some(3_000)),
        (9_000, 1.0, 980_000_000, Some(5_000)),
    ] {
        let found = finding_of(
            "qdisc-drop",
            "healthy-tcp-send",
            &stream(retransmits, busy, cpu_ns),
        );
        let finding_text = found.map(|found| found.summary);
        let expected_text =
            expected.map(|lost: u64| format!("dropped {},000 packets", lost / 1000));
        match (&finding_text, &expected_text) {
            (None, None) => {}
            (Some(finding_text), Some(expected_text)) => assert!(
                finding_text.contains(expected_text.as_str()),
                "{finding_text}"
            ),
            _ => panic!("{retransmits} {busy} {cpu_ns}: {finding_text:?}, not {expected_text:?}"),
        }
    }
    for (lost, expected) in [(0.0, false), (0.2, true)] {
        let changes = [drops(5_000), ("/directions/0/loss_fraction", json!(lost))];
        let found = finding_of("qdisc-drop", "healthy-udp-paced", &changes);
        assert_eq!(found.is_some(), expected, "{lost}");
    }
}

/// Buffers are advised for a known rate or for one step further, and never for all memory.
#[test]
fn buffers_of_a_long_path_have_an_end() {
    let unknown_speed = [
        ("/hosts/0/interface/speed_bps", Value::Null),
        ("/hosts/1/interface/speed_bps", Value::Null),
    ];
    for (changes, rtt_ns, memory, expected) in [
        // 10 Gb/s over 40 ms are 50 MB.
        (&[][..], 40_000_000_u64, 64_u64 << 30, "134217728"),
        (&[], 400_000_000, 64 << 30, "268435456"),
        (&[], 40_000_000, 1 << 30, "33554432"),
        // No rate is known: eight times the measured 0.9 Gb/s.
        (&unknown_speed, 40_000_000, 64 << 30, "134217728"),
        (&unknown_speed, 4_000_000, 64 << 30, "8388608"),
    ] {
        let mut all = changes.to_vec();
        all.extend([
            ("/intervals/*/tcp/min_rtt_ns", json!(rtt_ns)),
            ("/intervals/*/tcp/rtt_ns", json!(rtt_ns + 500_000)),
            ("/hosts/0/memory_bytes", json!(memory)),
            ("/hosts/1/memory_bytes", json!(memory)),
        ]);
        for host in ["0", "1"] {
            for (name, value) in [
                ("rmem", "4096 131072 6291456"),
                ("wmem", "4096 16384 4194304"),
            ] {
                let at = format!("/hosts/{host}/sysctls/net.ipv4.tcp_{name}");
                all.push((Box::leak(at.into_boxed_str()), json!(value)));
            }
        }
        let found = finding_of("path-delay", "path-delay-window", &all);
        let found = found.unwrap_or_else(|| panic!("{rtt_ns} {memory}: no finding"));
        let advice = found.command.as_deref().unwrap_or_default();
        assert!(
            advice.contains(&format!(" {expected}'")),
            "{rtt_ns} {memory}: {advice}"
        );
        let known = changes.is_empty();
        assert_eq!(
            found.remedy.contains("not known"),
            !known,
            "{}",
            found.remedy
        );
    }
}

/// A faster peer does not show what a device supports.
#[test]
fn an_unreported_speed_limit_of_a_device_is_unknown() {
    for (fastest, is_cause) in [(json!(1_000_000_000), true), (Value::Null, false)] {
        let changes = [("/hosts/0/interface/fastest_bps", fastest)];
        let found = finding_of("link-speed", "link-speed-cable", &changes).expect("a finding");
        assert_eq!(found.is_cause(), is_cause, "{found:#?}");
        assert_eq!(found.gain.is_some(), is_cause);
        assert_eq!(
            found.summary.contains("supports 1.00 Gb/s"),
            is_cause,
            "{}",
            found.summary
        );
    }
}

/// A packet of eight segments is small, whatever the size limit is.
#[test]
fn packets_of_few_segments_are_small() {
    for (bytes, segments, expected) in [
        (65_536, None, None),
        (65_536, Some(65_535), None),
        (
            65_536,
            Some(8),
            Some("ip link set dev eth0 gso_max_segs 65535"),
        ),
        (
            32_768,
            Some(8),
            Some("ip link set dev eth0 gso_max_segs 65535 gso_max_size 65536"),
        ),
        (
            8_192,
            Some(64),
            Some("ip link set dev eth0 gso_max_size 65536"),
        ),
    ] {
        let changes = [
            ("/hosts/0/interface/gso_ipv4_max_bytes", json!(bytes)),
            ("/hosts/0/interface/gso_max_segments", json!(segments)),
        ];
        let found = finding_of("gso-size", "gso-size-16k", &changes).expect("a finding");
        assert_eq!(found.is_cause(), expected.is_some(), "{bytes} {segments:?}");
        if let Some(expected) = expected {
            assert_eq!(
                found.command.as_deref(),
                Some(expected),
                "{bytes} {segments:?}"
            );
        }
        let seen = reading(&found, "gso_max_segs").is_some();
        assert_eq!(seen, segments == Some(8), "{bytes} {segments:?}");
    }
}

/// No command raises a limit of the driver.
#[test]
fn packets_become_no_larger_than_a_driver_takes() {
    for (driver, (bytes, segments), (most_bytes, most_segments), expected) in [
        // Defaults: 64000 bytes with r8169, 24 segments with another driver.
        ("r8169", (64_000, 64), (64_000, 64), None),
        ("igb", (65_536, 24), (65_536, 24), None),
        (
            "igb",
            (16_384, 65_535),
            (65_536, 65_535),
            Some("ip link set dev eth0 gso_max_size 65536"),
        ),
        (
            "r8169",
            (16_384, 64),
            (64_000, 64),
            Some("ip link set dev eth0 gso_max_size 64000"),
        ),
        (
            "igb",
            (65_536, 8),
            (65_536, 40),
            Some("ip link set dev eth0 gso_max_segs 40"),
        ),
        (
            "r8169",
            (8_000, 4),
            (64_000, 64),
            Some("ip link set dev eth0 gso_max_segs 64 gso_max_size 64000"),
        ),
        (
            "veth",
            (16_384, 65_535),
            (524_280, 65_535),
            Some("ip link set dev eth0 gso_max_size 65536"),
        ),
    ] {
        let changes = [
            ("/hosts/0/interface/driver", json!(driver)),
            ("/hosts/0/interface/gso_ipv4_max_bytes", json!(bytes)),
            ("/hosts/0/interface/gso_max_segments", json!(segments)),
            ("/hosts/0/interface/tso_max_bytes", json!(most_bytes)),
            ("/hosts/0/interface/tso_max_segments", json!(most_segments)),
        ];
        let found = finding_of("gso-size", "gso-size-16k", &changes);
        let advice = found.as_ref().and_then(|found| found.command.as_deref());
        assert_eq!(advice, expected, "{driver} {bytes} {segments}");
        if let Some(found) = &found {
            assert!(found.is_cause() && found.gain.is_some(), "{found:#?}");
            assert!(reading(found, "tso_max_size").is_some());
        }
    }
}

/// Six losses in three intervals are those of a queue, where one may be out of view.
#[test]
fn a_sawtooth_out_of_view_is_no_loss() {
    let name = "path-loss-narrow-back";
    assert!(finding_of("path-loss", name, &[]).is_some());
    let elsewhere = [("/hosts/1/boot_id", json!("another"))];
    assert!(finding_of("path-loss", name, &elsewhere).is_none());
    // Twelve are too many for that.
    let mut record = changed(name, &elsewhere);
    record.directions[0].summary.retransmits = Some(12);
    let found = linerate_explain::explain(&record);
    assert!(found.iter().any(|found| found.cause == CauseId::PathLoss));
}

/// A long ring, and a ring whose thread lacks CPU time, lose no less when made longer; frames that
/// wait for a processor count for the processor.
#[test]
fn a_ring_is_short_where_a_longer_one_helps() {
    let (id, name) = ("too-few-descriptors", "too-few-descriptors-own-ring-udp");
    let ring = "/hosts/0/stack/configuration/rx_descriptors";
    let link = "/hosts/0/stack/counters/link";
    let (full, none) = (
        &*format!("{link}/port_ring_full"),
        &*format!("{link}/port_no_buffer"),
    );
    for (changes, cause) in [
        (vec![(ring, json!("2"))], true),
        (vec![(ring, json!("1023"))], true),
        (vec![(ring, json!("1024"))], false),
        // Without a buffer there was no descriptor either.
        (vec![(full, json!(0)), (none, json!(1091))], true),
    ] {
        let found = finding_of(id, name, &changes).unwrap_or_else(|| panic!("{changes:?}"));
        let reported = (
            found.is_cause(),
            found.command.is_some(),
            found.gain.is_some(),
        );
        assert_eq!(reported, (cause, cause, cause), "{found:?}");
        assert!(finding_of("path-loss", name, &changes).is_none());
    }
    // Only a few drops at the ring: the path loses.
    assert!(finding_of("path-loss", name, &[(full, json!(9))]).is_some());
    for (length, working, reported) in [
        ("2", 0.9, Some(true)),
        ("256", 0.9, Some(false)),
        ("256", 0.4, None),
    ] {
        let mut record = changed(name, &[(ring, json!(length))]);
        let direction_cpu = &mut record.directions[0].summary.cpu;
        for cost in direction_cpu.iter_mut().chain(&mut record.summary.cpu) {
            for thread in &mut cost.threads {
                let share = |share: f64| (thread.wall_ns as f64 * share) as u64;
                (thread.cpu_ns, thread.blocked_ns) = (share(working), Some(0));
                (thread.runnable_ns, thread.empty_calls) = (Some(share(1.0 - working)), Some(0));
            }
        }
        let found = linerate_explain::explain(&record);
        let found = found.iter().find(|found| found.cause.as_str() == id);
        let is_cause = found.map(linerate_record::finding::Finding::is_cause);
        assert_eq!(is_cause, reported, "{length} {working}: {found:?}");
    }
}

/// A rate that a stream shares with others also limits it: the total of the interface counts.
#[test]
fn a_rate_is_used_by_all_senders() {
    let at = |packets: Option<u64>| {
        let mut record = changed("path-loss-behind-switches", &[]);
        for tcp in record.intervals.iter_mut().filter_map(|at| at.tcp.as_mut()) {
            tcp.retransmits = 0;
        }
        record.directions[0].summary.retransmits = Some(0);
        let is_switch_port =
            |host: &str, interface: Option<&str>| (host, interface) == ("s1", Some("port2"));
        record.counters.retain_mut(|found| {
            let sent = found.counter == "tx_packets"
                && is_switch_port(&found.host, found.interface.as_deref());
            if let (true, Some(packets)) = (sent, packets) {
                found.after = found.before + packets;
            }
            !sent || packets.is_some()
        });
        let found = linerate_explain::explain(&record);
        found.iter().any(|found| found.cause == CauseId::ShapedLink)
    };
    // Its own 10130 packets are 0.56 of the rate.
    for (packets, is_reported) in [(Some(10_130), false), (Some(16_000), true), (None, true)] {
        assert_eq!(at(packets), is_reported, "{packets:?}");
    }
}

/// Records of older versions counted drops of the user-space stack's port as path loss; they are
/// not drops of a kernel interface.
#[test]
fn drops_of_our_port_are_its_rings() {
    let at = |place: &str, packets: u64| json!({ "direction": "receive", "place": place, "packets": packets, "exact": false });
    let (id, name) = ("too-few-descriptors", "too-few-descriptors-own-ring-udp");
    let split = [("/losses", json!([at("interface-rx", 1091), at("path", 71)]))];
    assert!(finding_of(id, name, &split).is_some_and(|found| found.is_cause()));
    assert!(finding_of("path-loss", name, &split).is_none());
    assert!(finding_of("nic-drop", name, &split).is_none());
    let dropped = json!({ "host": "server", "interface": "eth0", "counter": "tx_dropped", "before": 0, "after": 100 });
    let interface_drops = [
        (
            "/losses",
            json!([at("interface-rx", 1091), at("interface-tx", 100)]),
        ),
        ("/counters", json!([dropped])),
    ];
    let found = finding_of("nic-drop", name, &interface_drops)
        .expect("what the sender's interface dropped");
    assert!(found.summary.contains(" 100 packets"), "{}", found.summary);
    // The same when the stack sleeps between two polls.
    for losses in [
        json!([at("path", 3373)]),
        json!([at("interface-rx", 3373)]),
        json!([at("interface-rx", 3300), at("path", 73)]),
    ] {
        let changes = [("/losses", losses)];
        let found = finding_of(id, "too-few-descriptors-poll", &changes).expect("a finding");
        assert!(
            found.summary.contains("3,373 datagrams"),
            "{}",
            found.summary
        );
    }
}
