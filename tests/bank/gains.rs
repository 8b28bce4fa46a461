//! Gains that remedies promise: never more than was measured.

use linerate_record::ids::CauseId;
use serde_json::json;

use super::rules::{changed, command, explained, finding_of};

/// Packets of 512 KiB gain a factor of two over 64 KiB, as measured.
#[test]
fn larger_packets_gain_as_measured() {
    for (bytes, cost, gain, sizes) in [
        (
            65_536_u64,
            0.47,
            1.9,
            "gso_max_size 524280 gso_ipv4_max_size 524280 gro_ipv4_max_size 524280",
        ),
        // A size that every `ip` can set is limited by the kernel's maximum.
        (16_384, 0.8, 2.6, "gso_max_size 65536"),
        (8_192, 0.89, 4.8, "gso_max_size 65536"),
    ] {
        let changes = [("/hosts/0/interface/gso_ipv4_max_bytes", json!(bytes))];
        let found = finding_of("gso-size", "gso-size-16k", &changes).expect("a finding");
        assert!((found.cost - cost).abs() < 0.02, "{bytes}: {}", found.cost);
        let promised = found.gain.expect("a gain");
        assert!((promised / gain - 1.0).abs() < 0.05, "{bytes}: {promised}");
        assert_eq!(found.is_cause(), bytes < 65_536, "{bytes}");
        let command = found.command.unwrap_or_default();
        let expected = format!("ip link set dev eth0 {sizes}");
        assert_eq!(command, expected, "{bytes}");
    }
}

/// Gains of the user-space stack stay within its highest measured rate: a send buffer of 1 KiB does
/// not become 64 times as fast with 64 KiB.
#[test]
fn gains_of_our_stack_are_within_its_measured_rates() {
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

/// While a window still grows, the rate of the path is unknown: no factor is promised beyond a
/// known rate.
#[test]
fn gains_are_not_larger_than_known_limits() {
    for name in ["healthy-spinning-from-late-on", "healthy-long-start"] {
        let record = changed(name, &[]);
        let found = linerate_explain::explain(&record);
        let growing = found
            .iter()
            .filter(|found| found.summary.contains("still growing"));
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

/// Over a long path one window is sent a round trip: 64 times the window is not 340 times the rate.
#[test]
fn a_window_gains_what_it_grows_by() {
    for name in ["receive-window-unscaled-back", "path-delay-window-live"] {
        for found in explained(name, &[]) {
            let is_window = found
                .cause
                .is_one_of(&[CauseId::ReceiveWindow, CauseId::SendBuffer]);
            let gain = found.gain.filter(|_| is_window).unwrap_or(1.0);
            assert!(gain <= 65.0, "{name}: {found:?}");
        }
    }
    // The other waits remain: with half of the time limited by the window the gain is at most two.
    let mut record = changed("receive-window-unscaled-back", &[]);
    for interval in &mut record.intervals {
        let tcp = interval.tcp.as_mut().expect("TCP_INFO");
        tcp.receive_window_limited = Some(0.5);
    }
    let found = linerate_explain::explain(&record);
    let found = found
        .iter()
        .find(|found| found.cause == CauseId::ReceiveWindow);
    let found = found.expect("a finding");
    let gain = found.gain.expect("a gain");
    assert!(gain > 1.5 && gain < 1.0 / (1.0 - found.cost), "{found:?}");
}

/// Another congestion control reduces the cost of each byte, so busy threads do not bound its gain,
/// and no text says that they do.
#[test]
fn a_cheaper_byte_is_not_bounded_by_idle_time() {
    let mut record = changed("congestion-control-bbr", &[]);
    for end in &mut record.summary.cpu {
        for thread in &mut end.threads {
            // No time is left for the present cost of a byte.
            thread.cpu_ns = thread.wall_ns;
            (thread.runnable_ns, thread.blocked_ns) = (Some(0), Some(0));
        }
    }
    for interval in &mut record.intervals {
        (interval.sender_threads, interval.receiver_threads) = (None, None);
    }
    let found = linerate_explain::explain(&record);
    let found = found
        .iter()
        .find(|found| found.cause == CauseId::CongestionControl);
    let found = found.expect("a finding");
    assert!(found.gain.is_some_and(|gain| gain > 2.0), "{found:?}");
    assert!(found.gain_is_estimate, "{found:?}");
}

/// The highest rate of one machine does not limit a faster one.
#[test]
fn a_faster_machine_gets_no_gain() {
    for (goodput, has_gain) in [(2e9, true), (4e9, false)] {
        let changes = [
            ("/summary/goodput_bps", json!(goodput)),
            ("/directions/0/goodput_bps", json!(goodput)),
        ];
        let found = finding_of("receive-window", "receive-window-own-stack", &changes);
        let found = found.expect("a finding");
        assert_eq!(found.gain.is_some(), has_gain, "{found:?}");
    }
}
