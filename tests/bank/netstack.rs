//! Findings for runs over the user-space stack.

use linerate_record::finding::Finding;
use linerate_record::ids::{CauseId, LossPoint};
use linerate_record::record::CounterDelta;
use serde_json::{Value, json};

use super::rules::{Changes, changed, command, explained, finding_of, reading};

/// A fully used window of the user-space stack is the limit, although its minimum round trip is a
/// fraction of the round trip under load.
#[test]
fn windows_of_our_stack_are_small_by_their_use() {
    // Window, goodput and fraction of time limited by the window, as measured over veth.
    for (window, goodput, limited, is_reported) in [
        (1 << 10, 328e6, 0.28, true),
        (2 << 10, 801e6, 0.197, true),
        (4 << 10, 928e6, 0.28, true),
        (8 << 10, 1.8e9, 0.34, true),
        (16 << 10, 2.5e9, 0.44, true),
        (64 << 10, 3.8e9, 0.53, false),
        (256 << 10, 3.2e9, 0.02, false),
    ] {
        let mut record = changed("receive-window-own-stack", &[]);
        let direction = &mut record.directions[0];
        direction.summary.goodput_bps = Some(goodput);
        for stream in &mut direction.streams {
            let receiver = stream.receiver.as_mut().expect("a receiver");
            receiver.receive_buffer_bytes = Some(window);
        }
        for interval in &mut record.intervals {
            let tcp = interval.tcp.as_mut().expect("TCP_INFO");
            (tcp.min_rtt_ns, tcp.rtt_ns) = (Some(7_000), 20_000);
            tcp.receive_window_limited = Some(limited);
        }
        let found = linerate_explain::explain(&record);
        let found = found
            .iter()
            .find(|found| found.cause == CauseId::ReceiveWindow);
        assert_eq!(found.is_some(), is_reported, "{window}: {found:#?}");
    }
}

/// The user-space stack reports no round-trip time: a buffer of few segments that is reused quickly
/// is the limit.
#[test]
fn send_buffers_of_our_stack_are_small_by_their_rounds() {
    for (buffer, goodput, retransmits, is_reported) in [
        (1_u64 << 10, 864e6, 0, true),
        (3 << 10, 1.3e9, 0, true),
        (8 << 10, 2.2e9, 0, true),
        // A slow path, losses, and a buffer larger than the receiver's window.
        (8 << 10, 90e6, 0, false),
        (8 << 10, 2.2e9, 2_000, false),
        (64 << 10, 3.2e9, 0, false),
    ] {
        let changes = [
            ("/directions/0/goodput_bps", json!(goodput)),
            (
                "/directions/0/streams/0/sender/send_buffer_bytes",
                json!(buffer),
            ),
            (
                "/hosts/0/stack/counters",
                json!({ "tcp": { "out_segments": 100_000, "retransmitted_segments": retransmits } }),
            ),
        ];
        let found = finding_of("send-buffer", "delayed-ack-own-stack", &changes);
        assert_eq!(
            found.is_some(),
            is_reported,
            "{buffer} {goodput}: {found:#?}"
        );
        if let Some(command) = found.and_then(|found| found.command) {
            assert!(command.contains("--set tcp.send_buffer=64K"), "{command}");
        }
    }
}

/// Over a longer path one buffer is sent a round trip, which the receiving kernel measures.
#[test]
fn send_buffers_of_our_stack_are_small_for_the_path() {
    for (buffer, goodput, path_ns, is_reported) in [
        (1_u64 << 10, 1.31e6, json!(6_308_000), true),
        (64 << 10, 84e6, json!(6_308_000), true),
        // Most of the time is spent elsewhere, or the path delay is unknown.
        (1 << 10, 0.4e6, json!(6_308_000), false),
        (1 << 10, 1.31e6, Value::Null, false),
        (1 << 10, 1.31e6, json!(40_000), false),
    ] {
        let state = json!({ "retransmits": 0, "cwnd_segments": 10, "mss_bytes": 1460, "path_mtu_bytes": 1500, "rtt_ns": 6_400_000, "rtt_variation_ns": 9_000, "min_rtt_ns": path_ns });
        let changes = [
            ("/directions/0/goodput_bps", json!(goodput)),
            (
                "/directions/0/streams/0/sender/send_buffer_bytes",
                json!(buffer),
            ),
            ("/directions/0/streams/0/receiver/tcp", state),
            (
                "/hosts/0/stack/counters",
                json!({ "tcp": { "out_segments": 900, "retransmitted_segments": 0 } }),
            ),
        ];
        let found = finding_of("send-buffer", "delayed-ack-own-stack", &changes);
        assert_eq!(
            found.is_some(),
            is_reported,
            "{buffer} {goodput} {path_ns}: {found:#?}"
        );
    }
}

/// Limits of kernel sockets do not apply to the user-space stack.
#[test]
fn our_stack_has_no_rmem_max() {
    for (stack, is_reported) in [("kernel", true), ("linerate", false)] {
        let changes = [("/plan/stack/far", json!(stack))];
        let found = finding_of("socket-buffer-cap", "socket-buffer-cap-tcp", &changes);
        assert_eq!(found.is_some(), is_reported, "{stack}");
    }
}

/// Drops without a descriptor at the stack's port have a counter; if everything arrived, nothing
/// was lost.
#[test]
fn frames_that_a_full_ring_drops_are_not_path_losses() {
    for name in [
        "too-few-descriptors-own-ring",
        "too-few-descriptors-own-ring-udp",
    ] {
        assert!(finding_of("path-loss", name, &[]).is_none(), "{name}");
        let command = command("too-few-descriptors", name, &[]);
        assert!(
            command.contains("--set rx_descriptors=256"),
            "{name}: {command}"
        );
    }
    // Frames too long for the port have a counter as well: a frame may be many segments sent
    // together.
    let tcp = "too-few-descriptors-own-ring";
    let link = "/hosts/0/stack/counters/link";
    let segmentation_offload = "/hosts/1/interface/offloads/tx-tcp-segmentation";
    for (long, together, lost) in [
        (0, false, true),
        (3_000, false, false),
        (100, false, true),
        (100, true, false),
    ] {
        let changes = [
            (&*format!("{link}/port_ring_full"), json!(0)),
            (&*format!("{link}/port_too_long"), json!(long)),
            (segmentation_offload, json!(together)),
        ];
        let found = finding_of("path-loss", tcp, &changes);
        assert_eq!(found.is_some(), lost, "{long} {together}: {found:?}");
    }
    // Fewer frames arrived than were sent, and no ring was full.
    let counters = "/hosts/0/stack/counters/link";
    let in_frames = &*format!("{counters}/in_frames");
    let late = "healthy-own-stack-late-answers";
    let is_lost = |changes: Changes<'_>| finding_of("path-loss", late, changes).is_some();
    assert!(!is_lost(&[]));
    assert!(is_lost(&[(in_frames, json!(200_000))]));
    // Frames of others do not account for lost ones: frames for other hosts, more than were sent,
    // or a wire out of view.
    let other_frames = format!("{counters}/in_not_ours");
    assert!(is_lost(&[(&*other_frames, json!(100_000))]));
    assert!(is_lost(&[(in_frames, json!(400_000))]));
    assert!(is_lost(&[("/hosts/0/boot_id", json!("another"))]));
}

/// One thread of the user-space stack sends each datagram separately, and `--offload` is rejected
/// with `--dev`.
#[test]
fn our_stack_gets_no_advice_that_it_rejects() {
    for name in ["healthy-own-stack-flood", "healthy-own-stack-udp"] {
        for found in explained(name, &[]) {
            let command = found.command.unwrap_or_default();
            assert!(!command.contains("--offload"), "{name}: {command}");
        }
    }
    // Nor where the stack receives from a kernel.
    let netstack_receives = [
        ("/plan/stack/far", json!("linerate")),
        ("/plan/streams", json!(2)),
    ];
    for name in ["small-writes-udp", "tool-limit-udp"] {
        let kernels = explained(name, &netstack_receives[1..]);
        let offloads = |found: &Finding| {
            let command = found.command.as_deref();
            command.is_some_and(|command| command.contains("--offload"))
        };
        assert!(kernels.iter().any(offloads), "{name}: {kernels:?}");
        let found = explained(name, &netstack_receives);
        assert!(!found.iter().any(offloads), "{name}: {found:?}");
    }
}

/// A segment that had arrived before its retransmission was late, not lost.
#[test]
fn segments_that_had_arrived_were_not_lost() {
    assert!(finding_of("path-loss", "healthy-latency-answered-late", &[]).is_none());
    let streams = "/directions/0/streams/0";
    let none =
        ["sender", "receiver"].map(|end| format!("{streams}/{end}/tcp/spurious_retransmits"));
    // An end that does not report them may have sent the lost ones.
    let unreported = [(&*format!("{streams}/receiver/tcp"), Value::Null)];
    assert!(finding_of("path-loss", "healthy-latency-answered-late", &unreported).is_some());
    let changes = [(&*none[0], json!(0)), (&*none[1], json!(0))];
    let found = finding_of("path-loss", "healthy-latency-answered-late", &changes);
    assert_eq!(
        reading(&found.expect("they were lost"), "round_trips"),
        Some(json!(592))
    );
}

/// The stack's buffers are not kernel memory, so no sysctl changes their number or length.
#[test]
fn our_stack_has_buffers_for_reassembly() {
    let stack = "/hosts/0/stack";
    for (counter, key, value, command) in [
        ("reassembly_no_buffer", "count", "64", "256"),
        ("reassembly_too_long", "bytes", "4000", "65535"),
    ] {
        let key = format!("ip.reassembly_buffers.{key}");
        let mut record = changed(
            "too-few-descriptors-own-ring-udp",
            &[
                ("/plan/payload_bytes", json!(8192)),
                (&*format!("{stack}/counters/link/port_ring_full"), json!(0)),
                (&*format!("{stack}/counters/ip/{counter}"), json!(6_000)),
                (&*format!("{stack}/configuration/{key}"), json!(value)),
            ],
        );
        for loss in &mut record.losses {
            (loss.place, loss.packets) = (LossPoint::Reassembly.into(), 1_000);
        }
        record.counters.push(CounterDelta {
            host: "client".to_owned(),
            interface: None,
            counter: "reassembly_failures".to_owned(),
            before: 0,
            after: 6_000,
        });
        let found = linerate_explain::explain(&record).into_iter();
        let found: Vec<_> = found
            .filter(|found| found.cause == CauseId::Reassembly)
            .collect();
        let advice = found[0].command.as_deref().unwrap_or_default();
        let expected = format!("--set {key}={command}");
        assert!(advice.contains(&expected), "{expected}: {found:?}");
        assert!(!format!("{found:?}").contains("sysctl"), "{found:?}");
    }
}
