//! Rules for settings that a host may not allow to change.

use linerate_record::ids::CauseId;
use serde_json::json;

use super::rules::{changed, command, finding_of, reading};

/// A feature that the driver fixes to off leaves nothing to try.
#[test]
fn a_fixed_feature_is_no_cause() {
    for (fixed, also_off, is_cause, expected) in [
        (&[][..], "", true, Some("ethtool -K eth0 tso on")),
        (&["rx-gro-hw"], "", true, Some("ethtool -K eth0 tso on")),
        (&["tx-tcp-segmentation"], "", false, None),
        (
            &["tcp-segmentation-offload", "tx-tcp-segmentation"],
            "",
            false,
            None,
        ),
        // Its dependency is not available.
        (&["scatter-gather"], "scatter-gather", false, None),
        // Another offload can be switched.
        (
            &["tx-tcp-segmentation"],
            "generic-segmentation-offload",
            true,
            Some("ethtool -K eth0 gso on"),
        ),
    ] {
        let mut record = changed("offload-off-tso", &[]);
        let interface = record.hosts[0].interface.as_mut().expect("an interface");
        interface.fixed_offloads = fixed.iter().map(|&name| name.to_owned()).collect();
        if !also_off.is_empty() {
            interface.offloads.insert(also_off.to_owned(), false);
        }
        let found = linerate_explain::explain(&record);
        let found = found
            .iter()
            .find(|found| found.cause == CauseId::OffloadOff);
        let found = found.unwrap_or_else(|| panic!("{fixed:?}: no finding"));
        assert_eq!(found.is_cause(), is_cause, "{fixed:?} {also_off}");
        assert_eq!(found.command.as_deref(), expected, "{fixed:?} {also_off}");
        assert_eq!(found.gain.is_some(), is_cause, "{fixed:?} {also_off}");
    }
}

/// A window without a requested size is small when its kernel may not grow it or may not announce
/// its size.
#[test]
fn a_window_that_cannot_grow_is_reported_with_the_setting() {
    let moderate = "/hosts/1/sysctls/net.ipv4.tcp_moderate_rcvbuf";
    let client_scaling = "/hosts/0/sysctls/net.ipv4.tcp_window_scaling";
    let server_scaling = "/hosts/1/sysctls/net.ipv4.tcp_window_scaling";
    let rmem = "/hosts/1/sysctls/net.ipv4.tcp_rmem";
    let on = "4096 131072 33554432";
    for (granted, least_ns, settings, expected) in [
        // By default the kernel grows it: nothing to set.
        (131_072, 4_000, &[(rmem, on)][..], None),
        (
            131_072,
            4_000,
            &[(moderate, "1"), (client_scaling, "1"), (rmem, on)],
            None,
        ),
        (
            131_072,
            4_000,
            &[(moderate, "0"), (rmem, on)],
            Some("sysctl -w net.ipv4.tcp_moderate_rcvbuf=1"),
        ),
        // On a long path too, and when the default was raised by hand.
        (
            131_072,
            9_000_000,
            &[(moderate, "0"), (rmem, on)],
            Some("sysctl -w net.ipv4.tcp_moderate_rcvbuf=1"),
        ),
        (
            131_072,
            4_000,
            &[(moderate, "0"), (rmem, "4096 131072 131072")],
            Some(
                "sysctl -w net.ipv4.tcp_moderate_rcvbuf=1 net.ipv4.tcp_rmem='4096 131072 4194304'",
            ),
        ),
        // The buffer is large but the announced window is not, whichever end lacks window scaling.
        (
            6_291_456,
            4_000,
            &[(client_scaling, "0"), (rmem, on)],
            Some("sysctl -w net.ipv4.tcp_window_scaling=1"),
        ),
        (
            6_291_456,
            9_000_000,
            &[(server_scaling, "0"), (rmem, on)],
            Some("sysctl -w net.ipv4.tcp_window_scaling=1"),
        ),
        (6_291_456, 4_000, &[(client_scaling, "1"), (rmem, on)], None),
    ] {
        let mut changes = vec![
            ("/plan/socket", json!({})),
            (
                "/directions/0/streams/0/receiver/receive_buffer_bytes",
                json!(granted),
            ),
            ("/intervals/*/tcp/receive_window_limited", json!(0.6)),
            ("/intervals/*/tcp/min_rtt_ns", json!(least_ns)),
            ("/intervals/*/tcp/rtt_ns", json!(least_ns + 10_000)),
        ];
        changes.extend(settings.iter().map(|&(name, value)| (name, json!(value))));
        let found = finding_of("receive-window", "receive-window-4k", &changes);
        let advice = found.as_ref().and_then(|found| found.command.as_deref());
        assert_eq!(advice, expected, "{granted} {least_ns} {settings:?}");
        if let Some(found) = found {
            let off = found
                .evidence
                .iter()
                .any(|seen| seen.source.ends_with(" sysctl"));
            assert!(off && found.is_cause(), "{found:#?}");
            let reader = finding_of("slow-receiver-application", "receive-window-4k", &changes);
            assert_eq!(reader, None, "{granted} {least_ns} {settings:?}");
        }
    }
    // A requested size overrides the kernel's tuning.
    let advice = command(
        "receive-window",
        "receive-window-4k",
        &[(moderate, json!("0"))],
    );
    assert!(advice.contains("--rcvbuf 4M"), "{advice}");
}

/// Without selective acknowledgements at one end, that setting comes first in the remedy.
#[test]
fn loss_without_selective_acknowledgements_is_reported_with_the_setting() {
    let (client_sack, server_sack) = (
        "/hosts/0/sysctls/net.ipv4.tcp_sack",
        "/hosts/1/sysctls/net.ipv4.tcp_sack",
    );
    let on = "sysctl -w net.ipv4.tcp_sack=1";
    for (cause, name) in [
        ("path-loss", "path-loss-tcp"),
        ("path-loss", "path-loss-cubic"),
        ("congestion-loss", "congestion-loss-sawtooth"),
    ] {
        for (client_value, server_value, off) in
            [("1", "1", 0), ("0", "1", 1), ("1", "0", 1), ("0", "0", 2)]
        {
            let changes = [
                (client_sack, json!(client_value)),
                (server_sack, json!(server_value)),
            ];
            let found = finding_of(cause, name, &changes);
            let found =
                found.unwrap_or_else(|| panic!("{name} {client_value} {server_value}: no finding"));
            let seen = found.evidence.iter();
            let seen = seen.filter(|seen| seen.counter == "net.ipv4.tcp_sack");
            assert_eq!(seen.count(), off, "{name} {client_value} {server_value}");
            let command = found.command.as_deref().unwrap_or_default();
            assert_eq!(
                command == on,
                off > 0,
                "{name} {client_value} {server_value}: {command}"
            );
            let first = found.remedy.contains("selective acknowledgements");
            assert_eq!(
                first,
                off > 0,
                "{name} {client_value} {server_value}: {}",
                found.remedy
            );
        }
    }
    // The user-space stack has no such setting.
    let changes = [
        (client_sack, json!("0")),
        (server_sack, json!("1")),
        ("/plan/stack/near", json!("linerate")),
    ];
    let advice = command("path-loss", "path-loss-tcp", &changes);
    assert!(!advice.contains("tcp_sack"), "{advice}");
}

/// Without timestamps each packet has 12 more bytes of payload.
#[test]
fn headers_of_tcp_are_those_of_its_options() {
    for (client, server, header) in [
        ("1", "1", 32.0),
        ("2", "1", 32.0),
        ("0", "1", 20.0),
        ("1", "0", 20.0),
    ] {
        let changes = [
            ("/hosts/0/sysctls/net.ipv4.tcp_timestamps", json!(client)),
            ("/hosts/1/sysctls/net.ipv4.tcp_timestamps", json!(server)),
            ("/directions/0/goodput_bps", json!(1e9)),
        ];
        let record = changed("healthy-tcp-send", &changes);
        let run = linerate_explain::run_view::RunView::new(&record);
        let direction_view = &run.directions[0];
        let mss = direction_view.tcp().expect("TCP_INFO").mss_bytes;
        let found = direction_view.l2_bps().expect("a rate");
        let expected = 1e9 * (mss + 14.0 + 20.0 + header) / mss;
        assert!(
            (found / expected - 1.0).abs() < 1e-12,
            "{client} {server}: {found} for {expected}"
        );
    }
}

/// The kernel rejects a whole command for one parameter that a driver does not have.
#[test]
fn interrupt_moderation_is_set_as_far_as_the_driver_supports_it() {
    for (settings, expected) in [
        (
            json!([]),
            Some("ethtool -C enp3s0 adaptive-rx off rx-usecs 0"),
        ),
        (
            json!(["rx-usecs", "rx-frames", "adaptive-rx"]),
            Some("ethtool -C enp3s0 adaptive-rx off rx-usecs 0 rx-frames 1"),
        ),
        (json!(["tx-usecs"]), None),
    ] {
        let changes = [("/hosts/0/interface/coalescing_settings", settings.clone())];
        let found = finding_of(
            "interrupt-coalescing",
            "interrupt-coalescing-client",
            &changes,
        );
        let found = found.unwrap_or_else(|| panic!("{settings}: no finding"));
        assert_eq!(found.command.as_deref(), expected, "{settings}");
        assert_eq!(found.is_cause(), expected.is_some(), "{settings}");
    }
}

/// A call in another program's source cannot be typed as a command.
#[test]
fn commands_are_commands() {
    for (stack, expected) in [("kernel", None), ("linerate", Some("--set tcp.nagle=off"))] {
        let changes = [
            ("/summary/rtt_ns/p50", json!(40_100_000)),
            ("/summary/rtt_ns/min", json!(90_000)),
            ("/plan/stack/far", json!(stack)),
        ];
        let found = finding_of("delayed-ack", "healthy-latency-spin-tcp", &changes);
        let found = found.unwrap_or_else(|| panic!("{stack}: no finding"));
        assert!(found.remedy.contains("TCP_NODELAY"), "{}", found.remedy);
        match expected {
            None => assert_eq!(found.command, None),
            Some(expected) => assert!(
                found
                    .command
                    .is_some_and(|command| command.contains(expected))
            ),
        }
    }
}

/// The user-space stack has a queue a socket and buffers for all sockets: the smaller one is
/// reported.
#[test]
fn the_smaller_limit_of_our_stack_is_the_one_to_raise() {
    for (queue, buffers, full, no_buffer, expected) in [
        (
            1_024,
            2_048,
            900,
            0,
            "--set udp.receive_queue=8192 --set udp.buffers=8192",
        ),
        (16, 2_048, 900, 10, "--set udp.receive_queue=128"),
        (1_024, 100, 0, 900, "--set udp.buffers=800"),
        (1_024, 512, 10, 900, "--set udp.buffers=4096"),
        // A record without the counters: the smaller limit.
        (1_024, 512, 0, 0, "--set udp.buffers=4096"),
        (64, 512, 0, 0, "--set udp.receive_queue=512"),
        (60_000, 1_000_000, 900, 0, "--set udp.receive_queue=65536"),
    ] {
        let stack = "/hosts/0/stack";
        let at = |key: &str| format!("{stack}/{key}");
        let (queue_key, buffers_key) = (
            at("configuration/udp.receive_queue"),
            at("configuration/udp.buffers"),
        );
        let (full_key, none_key) = (
            at("counters/udp/receive_queue_full"),
            at("counters/udp/no_buffer"),
        );
        let changes = [
            ("/losses/0/place", json!("udp-receive-queue")),
            (&*queue_key, json!(queue.to_string())),
            (&*buffers_key, json!(buffers.to_string())),
            (&*full_key, json!(full)),
            (&*none_key, json!(no_buffer)),
        ];
        let advice = command("udp-receive-queue", "too-few-descriptors-poll", &changes);
        let context = format!("{queue} of {buffers}, {full} and {no_buffer}");
        assert!(advice.ends_with(expected), "{context}: {advice}");
    }
}

/// The user-space stack counts path MTU guesses: a router drops long segments without an ICMP
/// error.
#[test]
fn a_black_hole_that_our_stack_detects_is_reported() {
    for (guesses, icmp_reports, carrier_lost, mtu) in [
        (0, 0, false, None),
        // A router that sends an ICMP error makes no black hole.
        (0, 3, false, None),
        (1, 0, false, Some("1280")),
        (2, 1, false, Some("576")),
        // Without a carrier no segment arrives, whatever its length.
        (1, 0, true, None),
    ] {
        let carrier = json!({
            "host": "server", "interface": "eth0", "counter": "carrier_losses",
            "before": 1, "after": if carrier_lost { 2 } else { 1 },
        });
        let changes = [
            (
                "/hosts/0/stack/counters",
                json!({ "tcp": {
                    "out_segments": 40_000, "retransmitted_segments": 9,
                    "path_mtu_guesses": guesses, "path_mtu_reported": icmp_reports,
                } }),
            ),
            ("/directions/0/duration_ns", json!(10_000_000_000_u64)),
            ("/hosts/0/stack/configuration/tcp.min_rto", json!("200ms")),
            ("/hosts/0/stack/configuration/mtu", json!("1500")),
            ("/counters", json!([carrier])),
        ];
        let found = finding_of("mtu-black-hole", "delayed-ack-own-stack", &changes);
        let context = format!("{guesses} guesses, {icmp_reports} reported, cut off {carrier_lost}");
        let expected = mtu.map(|mtu| format!("--set mtu={mtu}"));
        let command = found.as_ref().and_then(|found| found.command.clone());
        let has = |command: &String| {
            expected
                .as_ref()
                .is_some_and(|expected| command.ends_with(expected))
        };
        assert_eq!(
            command.is_some(),
            expected.is_some(),
            "{context}: {found:#?}"
        );
        assert!(command.as_ref().is_none_or(has), "{context}: {command:?}");
        if let Some(found) = found {
            // 31 times 200 ms for each, of ten seconds.
            let cost = (0.62 * f64::from(guesses)).min(0.95);
            assert!(
                (found.cost - cost).abs() < 1e-3,
                "{context}: {}",
                found.cost
            );
            assert!(found.is_cause(), "{context}");
            assert_eq!(reading(&found, "path_mtu_guesses"), Some(json!(guesses)));
            assert_eq!(
                reading(&found, "path_mtu_reported"),
                Some(json!(icmp_reports))
            );
        }
    }
}

/// Addresses of a run over IPv6.
const IPV6: [(&str, &str); 2] = [
    ("/directions/*/streams/*/sender/remote", "[fd77::2]:5201"),
    ("/directions/*/streams/*/receiver/local", "[fd77::2]:5201"),
];

/// Changes a record to IPv6.
fn over_ipv6<'a>(changes: &[(&'a str, serde_json::Value)]) -> Vec<(&'a str, serde_json::Value)> {
    let addresses = IPV6.map(|(at, address)| (at, json!(address)));
    let host = ("/plan/host", json!("fd77::2"));
    changes
        .iter()
        .cloned()
        .chain(addresses)
        .chain([host])
        .collect()
}

/// Settings and counters of IPv4 say nothing about a run over IPv6.
#[test]
fn settings_and_counters_are_those_of_the_family() {
    let memory = [
        (
            "/hosts/1/sysctls/net.ipv4.ipfrag_high_thresh",
            json!("1000000"),
        ),
        (
            "/hosts/1/sysctls/net.ipv6.ip6frag_high_thresh",
            json!("8388608"),
        ),
    ];
    let gso = [
        ("/hosts/0/interface/gso_max_bytes", json!(8_192)),
        ("/hosts/0/interface/gso_ipv4_max_bytes", json!(16_384)),
    ];
    for (cause, case, changes, counter, source, part) in [
        (
            "reassembly",
            "reassembly-no-memory",
            &memory[..],
            [
                "net.ipv4.ipfrag_high_thresh",
                "net.ipv6.ip6frag_high_thresh",
            ],
            ["/proc/net/snmp ReasmFails", "/proc/net/snmp6 Ip6ReasmFails"],
            // Eight times the memory, or the default of the kernel.
            [
                "net.ipv4.ipfrag_high_thresh=33554432",
                "net.ipv6.ip6frag_high_thresh=67108864",
            ],
        ),
        (
            "neighbour",
            "neighbour-start",
            &[],
            ["unresolved_discards"; 2],
            ["arp_cache", "ndisc_cache"],
            [
                "net.ipv4.neigh.default.unres_qlen_bytes=",
                "net.ipv6.neigh.default.unres_qlen_bytes=",
            ],
        ),
        (
            "gso-size",
            "gso-size-16k",
            &gso,
            ["gso_ipv4_max_size", "gso_max_size"],
            ["IFLA_GSO_IPV4_MAX_SIZE", "IFLA_GSO_MAX_SIZE"],
            ["gso_max_size 65536"; 2],
        ),
        (
            "mtu-black-hole",
            "mtu-black-hole-tcp",
            &[],
            ["InDestUnreachs", "InPktTooBigs"],
            ["/proc/net/snmp", "/proc/net/snmp6"],
            ["tcp_mtu_probing"; 2],
        ),
    ] {
        let changes = [changes.to_vec(), over_ipv6(changes)];
        for (family, changes) in changes.iter().enumerate() {
            let found = finding_of(cause, case, changes);
            let found = found.unwrap_or_else(|| panic!("{case} {family}: no finding"));
            let expected = format!("{} ", source[family]);
            let mut sources = found.evidence.iter();
            assert!(
                sources.any(|one| (one.source.replace(',', "") + " ").contains(&expected)),
                "{case} {family}: {found:#?}"
            );
            assert!(
                reading(&found, counter[family]).is_some(),
                "{case} {family}: {found:#?}"
            );
            let command = found.command.unwrap_or_default();
            assert!(command.contains(part[family]), "{case} {family}: {command}");
        }
    }
}
