//! Warnings about a stack: losses that the sender or a setting can prevent, and real-time
//! throttling.

use linerate_record::ids::CaveatId;
use linerate_record::record::Caveat;
use linerate_record::stack::StackFacts;
use linerate_stats::units::format_count;

use super::thread_schedule;

/// A kind of loss: its id, the counters of which one must be above zero, and the text for a count.
struct LossWarning {
    id: CaveatId,
    counters: &'static [(&'static str, &'static str)],
    applies: fn(&StackFacts) -> bool,
    describe: fn(&StackFacts, &str) -> String,
}

const LOSS_WARNINGS: &[LossWarning] = &[
    LossWarning {
        id: CaveatId::ReassemblyTooLong,
        counters: &[("ip", "reassembly_too_long")],
        // With the largest buffers no setting helps, because no valid datagram is longer.
        applies: |stack| stack.config_value("ip.reassembly_buffers.bytes") != MAX_BUFFER_BYTES,
        describe: |stack, count| {
            format!(
                "{count} fragments were dropped: their datagrams are longer than {} B; set \
                 ip.reassembly_buffers.bytes higher",
                stack.config_value("ip.reassembly_buffers.bytes")
            )
        },
    },
    LossWarning {
        id: CaveatId::ReassemblyBuffers,
        counters: &[("ip", "reassembly_no_buffer")],
        applies: |_| true,
        describe: |stack, count| {
            format!(
                "{count} fragments were dropped because all {} reassembly buffers held datagrams that the \
                 application had not received yet: start the stack with a higher \
                 --set ip.reassembly_buffers.count=N, or send at most {} B, which needs no fragments",
                stack.config_value("ip.reassembly_buffers.count"),
                max_payload_bytes(stack)
            )
        },
    },
    LossWarning {
        id: CaveatId::ReassemblyOff,
        counters: &[("ip", "reassembly_errors")],
        applies: |stack| stack.config_value("ip.reassembly") == "off",
        describe: |stack, count| {
            format!(
                "{count} fragments were dropped: reassembly is off in this stack. Start it with \
                 --set ip.reassembly=on, or send at most {} B",
                max_payload_bytes(stack)
            )
        },
    },
    LossWarning {
        id: CaveatId::FragmentationOff,
        counters: &[("ip", "fragmented_fails")],
        applies: |stack| stack.config_value("ip.fragmentation") == "off",
        describe: |stack, count| {
            format!(
                "{count} datagrams longer than a packet were not sent: fragmentation is off in this stack. \
                 Start it with --set ip.fragmentation=on, or request at most {} B",
                max_payload_bytes(stack)
            )
        },
    },
    LossWarning {
        id: CaveatId::UdpBuffers,
        counters: &[("udp", "no_buffer")],
        applies: |_| true,
        describe: |stack, count| match stack.device.split(',').any(|option| option == "vnet") {
            true => format!(
                "{count} datagrams were dropped for lack of a buffer: with a vnet header each frame takes 64 KiB, and \
                 at most 256 can wait, regardless of udp.receive_queue and udp.buffers. Open {} without vnet and with \
                 --set checksum=software",
                stack.device
            ),
            false => format!(
                "{count} datagrams were dropped for lack of a buffer: all sockets together have {}, regardless of \
                 udp.receive_queue ({} here). Start the stack with a higher --set udp.buffers=N",
                stack.config_value("udp.buffers"),
                stack.config_value("udp.receive_queue")
            ),
        },
    },
    LossWarning {
        id: CaveatId::FramesTooLong,
        counters: &[("link", "port_too_long")],
        applies: |_| true,
        describe: |stack, count| {
            format!(
                "{count} frames longer than {} accepts were dropped: their sender leaves segmentation to a device \
                 (TSO, GSO). Disable that: `ethtool -K {} tso off gso off`{}. Or its MTU is larger than the stack's, \
                 and all hosts of a link need the same: `ip link set {} mtu {}`",
                stack.device,
                peer_interface(stack),
                sender_hint(stack),
                peer_interface(stack),
                stack.config_value("mtu"),
            )
        },
    },
    LossWarning {
        id: CaveatId::ChecksumsIncomplete,
        counters: &[
            ("udp", "open_checksum_drops"),
            ("tcp", "open_checksum_drops"),
        ],
        applies: |_| true,
        describe: |stack, count| {
            format!(
                "{count} packets were dropped because their sender left the checksums to a device, which did \
                 not compute them. Disable that: `ethtool -K {} tx off`{}",
                peer_interface(stack),
                sender_hint(stack)
            )
        },
    },
    LossWarning {
        id: CaveatId::NeighbourSilent,
        counters: &[("link", "out_unresolved")],
        applies: |_| true,
        describe: |stack, count| {
            format!(
                "{count} packets on {} were not sent: no ARP or ND reply for their destination or the gateway. \
                 Check that the remote host is up and in the network of the stack's address, which is set with \
                 --ip",
                stack.device
            )
        },
    },
    LossWarning {
        id: CaveatId::DuplicateAddress,
        counters: &[("link", "in_address_conflicts")],
        applies: |_| true,
        describe: |stack, count| {
            format!(
                "another host on the link uses an address of this stack, {} (announced {count} times): packets \
                 for one of them may reach the other. Change one of the addresses with --ip",
                stack.addresses.join(" or ")
            )
        },
    },
];

/// The largest value of `ip.reassembly_buffers.bytes`.
const MAX_BUFFER_BYTES: &str = "65535";

/// Returns the warnings about a stack from its counters and configuration.
#[must_use]
pub fn stack_warnings(stack: &StackFacts) -> Vec<Caveat> {
    let losses = LOSS_WARNINGS.iter().filter_map(|row| {
        let counters = row.counters.iter();
        let count: u64 = counters
            .map(|(protocol, name)| stack.counter(protocol, name))
            .sum();
        (count > 0 && (row.applies)(stack))
            .then(|| Caveat::new(row.id, (row.describe)(stack, &format_count(count))))
    });
    losses.chain(rt_throttle_warning(stack)).collect()
}

/// Warns about a real-time thread that never sleeps.
fn rt_throttle_warning(stack: &StackFacts) -> Option<Caveat> {
    thread_schedule::never_sleeps(stack).then(|| {
        Caveat::new(
            CaveatId::RtThrottle,
            "a real-time thread of the user-space stack that spins is throttled by the kernel \
             (kernel.sched_rt_runtime_us): gaps of some 50 ms per second; use --set poll.interval=125us with it, or \
             set threads.driver.sched and threads.application.sched to inherited",
        )
    })
}

/// Returns the largest UDP payload over IPv4 that fits in one packet.
fn max_payload_bytes(stack: &StackFacts) -> usize {
    let mtu: usize = stack.config_value("mtu").parse().unwrap_or(1500);
    mtu.saturating_sub(28)
}

/// Returns the interface at the other end of the link, or a placeholder.
fn peer_interface(stack: &StackFacts) -> &str {
    stack.peer_interface.as_deref().unwrap_or("INTERFACE")
}

fn sender_hint(stack: &StackFacts) -> &'static str {
    match stack.peer_interface {
        Some(_) => "",
        None => " at the sender, for the interface that it sends on",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_alone_is_reported_with_its_remedy() {
        assert!(stack_warnings(&StackFacts::default()).is_empty());
        for row in LOSS_WARNINGS {
            for (protocol, name) in row.counters {
                let mut stack = StackFacts {
                    device: "packet:eth0".to_owned(),
                    peer_interface: Some("veth1".to_owned()),
                    ..StackFacts::default()
                };
                let off = ["ip.reassembly", "ip.fragmentation"].map(|key| (key, "off"));
                stack.configuration = [off[0], off[1], ("mtu", "1500")]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into();
                let protocol_counters = stack.counters.entry((*protocol).to_owned()).or_default();
                protocol_counters.insert((*name).to_owned(), 1_234);
                let warnings = stack_warnings(&stack);
                let ids: Vec<_> = warnings.iter().map(|warning| warning.id.clone()).collect();
                assert_eq!(ids, [row.id]);
                assert!(warnings[0].reason.contains("1,234"), "{warnings:?}");
                let names_mtu = warnings[0].reason.contains("`ip link set veth1 mtu 1500`");
                assert_eq!(names_mtu, row.id == CaveatId::FramesTooLong, "{warnings:?}");
                let remedies = ["--set", "set ip.", "ethtool -K veth1 ", "with --ip"];
                let has_remedy = remedies
                    .iter()
                    .any(|text| warnings[0].reason.contains(text));
                assert!(
                    has_remedy && !warnings[0].reason.contains("   "),
                    "{warnings:?}"
                );
            }
        }
    }

    #[test]
    fn spinning_real_time_threads_are_reported() {
        let mut stack = StackFacts::default();
        let set = |stack: &mut StackFacts, key: &str, value: &str| {
            stack.configuration.insert(key.to_owned(), value.to_owned())
        };
        set(&mut stack, "poll.interval", "spin");
        assert!(stack_warnings(&stack).is_empty());
        set(&mut stack, "threads.application.sched", "fifo:50");
        assert_eq!(stack_warnings(&stack)[0].id, CaveatId::RtThrottle);
        set(&mut stack, "poll.interval", "125us");
        assert!(stack_warnings(&stack).is_empty());
    }

    #[test]
    fn the_largest_buffer_needs_no_remedy() {
        let mut stack = StackFacts::default();
        let ip = stack.counters.entry("ip".to_owned()).or_default();
        ip.insert("reassembly_too_long".to_owned(), 2);
        let mut warnings = |bytes: &str| {
            let key = "ip.reassembly_buffers.bytes".to_owned();
            stack.configuration.insert(key, bytes.to_owned());
            stack_warnings(&stack).len()
        };
        assert_eq!((warnings("8192"), warnings("65535")), (1, 0));
    }

    #[test]
    fn contradictory_fragments_need_no_setting() {
        let mut stack = StackFacts::default();
        stack
            .configuration
            .insert("ip.reassembly".to_owned(), "on".to_owned());
        let ip = stack.counters.entry("ip".to_owned()).or_default();
        ip.insert("reassembly_errors".to_owned(), 5);
        assert!(stack_warnings(&stack).is_empty());
    }
}
