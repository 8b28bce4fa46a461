//! What remedies are said to give: no more than is known.

use serde_json::json;

use super::rules::{changed, command, explained, of};

/// Packets of 512 KiB are worth twice those of 64 KiB, as measured.
#[test]
fn larger_packets_give_what_they_were_measured_to() {
    for (bytes, cost, gain, sizes) in [
        (
            65_536_u64,
            0.47,
            1.9,
            "gso_max_size 524280 gso_ipv4_max_size 524280 gro_ipv4_max_size 524280",
        ),
        // What every `ip` can set gets as far as the kernel's own limit.
        (16_384, 0.8, 2.6, "gso_max_size 65536"),
        (8_192, 0.89, 4.8, "gso_max_size 65536"),
    ] {
        let changes = [("/hosts/0/interface/gso_ipv4_max_bytes", json!(bytes))];
        let found = of("gso-size", "gso-size-16k", &changes).expect("it is told");
        assert!((found.cost - cost).abs() < 0.02, "{bytes}: {}", found.cost);
        let told = found.gain.expect("a gain");
        assert!((told / gain - 1.0).abs() < 0.05, "{bytes}: {told}");
        assert_eq!(found.is_cause(), bytes < 65_536, "{bytes}");
        let command = found.command.unwrap_or_default();
        let want = format!("ip link set dev eth0 {sizes}");
        assert_eq!(command, want, "{bytes}");
    }
}

/// What our own stack gains is within what it ever moved: 1 KiB of send buffer is not made 64 times as fast by 64 KiB.
#[test]
fn gains_of_our_own_stack_are_within_its_reach() {
    for name in ["receive-window-own-stack", "send-buffer-own-stack-long"] {
        let found = &explained(name, &[])[0];
        let record = changed(name, &[]);
        let goodput = record.summary.goodput_bps.expect("it was measured");
        let gain = found.gain.expect("it is estimated");
        assert!(
            gain > 1.0 && gain * goodput < 3.4e9,
            "{name}: {gain} of {goodput}"
        );
    }
    let command = command("receive-window", "receive-window-own-stack", &[]);
    assert!(command.contains("tcp.receive_window=64K"), "{command}");
}

/// Nobody knows how fast a path is that a window still grows on: no factor is promised but within a known rate.
#[test]
fn what_grows_is_promised_no_more_than_is_known() {
    for name in ["healthy-spinning-from-late-on", "healthy-long-start"] {
        let record = changed(name, &[]);
        let found = linerate_explain::explain(&record);
        let growing = found
            .iter()
            .filter(|found| found.what.contains("still growing"));
        for found in growing {
            let most = if name == "healthy-long-start" {
                1.2
            } else {
                1.0
            };
            assert!(found.gain.is_none_or(|gain| gain < most), "{found:?}");
        }
    }
}

/// Over a long path the window is what goes each round trip: 64 times of it are no 340.
#[test]
fn a_window_gains_what_it_grows_by() {
    for name in ["receive-window-unscaled-back", "path-delay-window-live"] {
        for found in explained(name, &[]) {
            let is_window = ["receive-window", "send-buffer"].contains(&found.cause.as_str());
            let gain = found.gain.filter(|_| is_window).unwrap_or(1.0);
            assert!(gain <= 65.0, "{name}: {found:?}");
        }
    }
    // What else takes time stays: half of it waiting is a factor of two at most.
    let mut record = changed("receive-window-unscaled-back", &[]);
    for interval in &mut record.intervals {
        let tcp = interval.tcp.as_mut().expect("it was told");
        tcp.receive_window_limited = Some(0.5);
    }
    let found = linerate_explain::explain(&record);
    let found = found.iter().find(|found| found.cause == "receive-window");
    let found = found.expect("it is told");
    let gain = found.gain.expect("a gain");
    assert!(gain > 1.5 && gain < 1.0 / (1.0 - found.cost), "{found:?}");
}

/// What one machine moved at best bounds no other one that moves more.
#[test]
fn a_faster_machine_is_told_no_gain() {
    for (goodput, told) in [(2e9, true), (4e9, false)] {
        let changes = [
            ("/summary/goodput_bps", json!(goodput)),
            ("/directions/0/goodput_bps", json!(goodput)),
        ];
        let found = of("receive-window", "receive-window-own-stack", &changes);
        let found = found.expect("it is told");
        assert_eq!(found.gain.is_some(), told, "{found:?}");
    }
}
