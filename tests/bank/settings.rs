//! What rules make of settings that a host may or may not let be changed.

use serde_json::json;

use super::rules::{changed, of};

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
