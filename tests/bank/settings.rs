//! What rules make of settings that a host may or may not let be changed.

use serde_json::json;

use super::rules::{changed, command, of};

/// A driver that keeps a feature off for good leaves nothing to be tried.
#[test]
fn what_nobody_can_switch_is_no_cause() {
    for (fixed, also_off, is_cause, want) in [
        (&[][..], "", true, Some("ethtool -K eth0 tso on")),
        (&["rx-gro-hw"], "", true, Some("ethtool -K eth0 tso on")),
        (&["tx-tcp-segmentation"], "", false, None),
        (
            &["tcp-segmentation-offload", "tx-tcp-segmentation"],
            "",
            false,
            None,
        ),
        // What it needs is not to be had.
        (&["scatter-gather"], "scatter-gather", false, None),
        // There is another one that can be switched.
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
        let found = found.iter().find(|found| found.cause == "offload-off");
        let found = found.unwrap_or_else(|| panic!("{fixed:?}: it is told"));
        assert_eq!(found.is_cause(), is_cause, "{fixed:?} {also_off}");
        assert_eq!(found.command.as_deref(), want, "{fixed:?} {also_off}");
        assert_eq!(found.gain.is_some(), is_cause, "{fixed:?} {also_off}");
    }
}

/// A window that no size was asked for is small where its kernel may not make it larger, or not say how large it is.
#[test]
fn a_window_that_cannot_grow_is_told_with_the_setting() {
    let moderate = "/hosts/1/sysctls/net.ipv4.tcp_moderate_rcvbuf";
    let near = "/hosts/0/sysctls/net.ipv4.tcp_window_scaling";
    let far = "/hosts/1/sysctls/net.ipv4.tcp_window_scaling";
    let rmem = "/hosts/1/sysctls/net.ipv4.tcp_rmem";
    let on = "4096 131072 33554432";
    for (granted, least_ns, settings, want) in [
        // As it comes the kernel makes it larger: nothing to be set.
        (131_072, 4_000, &[(rmem, on)][..], None),
        (
            131_072,
            4_000,
            &[(moderate, "1"), (near, "1"), (rmem, on)],
            None,
        ),
        (
            131_072,
            4_000,
            &[(moderate, "0"), (rmem, on)],
            Some("sysctl -w net.ipv4.tcp_moderate_rcvbuf=1"),
        ),
        // On a long path too, and where the default was raised by hand.
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
        // The buffer is large, and the window that is told of it is not, whichever end does not scale.
        (
            6_291_456,
            4_000,
            &[(near, "0"), (rmem, on)],
            Some("sysctl -w net.ipv4.tcp_window_scaling=1"),
        ),
        (
            6_291_456,
            9_000_000,
            &[(far, "0"), (rmem, on)],
            Some("sysctl -w net.ipv4.tcp_window_scaling=1"),
        ),
        (6_291_456, 4_000, &[(near, "1"), (rmem, on)], None),
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
        let found = of("receive-window", "receive-window-4k", &changes);
        let told = found.as_ref().and_then(|found| found.command.as_deref());
        assert_eq!(told, want, "{granted} {least_ns} {settings:?}");
        if let Some(found) = found {
            let off = found
                .evidence
                .iter()
                .any(|seen| seen.read.ends_with(" sysctl"));
            assert!(off && found.is_cause(), "{found:#?}");
            let reader = of("slow-receiver-application", "receive-window-4k", &changes);
            assert_eq!(reader, None, "{granted} {least_ns} {settings:?}");
        }
    }
    // A size that was asked for is none of the kernel's.
    let told = command(
        "receive-window",
        "receive-window-4k",
        &[(moderate, json!("0"))],
    );
    assert!(told.contains("--rcvbuf 4M"), "{told}");
}

/// The kernel refuses all of a command for one word that a driver does not know.
#[test]
fn interrupts_are_set_as_far_as_the_driver_knows_them() {
    for (settings, want) in [
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
        let found = of(
            "interrupt-coalescing",
            "interrupt-coalescing-client",
            &changes,
        );
        let found = found.unwrap_or_else(|| panic!("{settings}: it is told"));
        assert_eq!(found.command.as_deref(), want, "{settings}");
        assert_eq!(found.is_cause(), want.is_some(), "{settings}");
    }
}

/// A call within another program's source is nothing that can be typed.
#[test]
fn commands_are_commands() {
    for (stack, want) in [("kernel", None), ("linerate", Some("--set tcp.nagle=off"))] {
        let changes = [
            ("/summary/rtt_ns/p50", json!(40_100_000)),
            ("/summary/rtt_ns/min", json!(90_000)),
            ("/plan/stack/far", json!(stack)),
        ];
        let found = of("delayed-ack", "healthy-latency-spin-tcp", &changes);
        let found = found.unwrap_or_else(|| panic!("{stack}: it is told"));
        assert!(found.remedy.contains("TCP_NODELAY"), "{}", found.remedy);
        match want {
            None => assert_eq!(found.command, None),
            Some(want) => assert!(found.command.is_some_and(|told| told.contains(want))),
        }
    }
}
