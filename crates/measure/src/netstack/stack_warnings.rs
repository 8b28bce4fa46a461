//! Warnings about a stack: losses that the sender or a setting can prevent, and real-time
//! throttling.

use linerate_metric::record::Doubt;
use linerate_metric::stack::StackFacts;
use linerate_metric::units::format_count;

use super::thread_schedule;

/// A kind of loss: its id, the counters of which one must be above zero, and the text for a count.
struct Row {
    doubt: &'static str,
    counted: &'static [(&'static str, &'static str)],
    holds: fn(&StackFacts) -> bool,
    says: fn(&StackFacts, &str) -> String,
}

const ROWS: &[Row] = &[
    Row {
        doubt: "reassembly-too-long",
        counted: &[("ip", "reassembly_too_long")],
        // With the largest buffers no setting helps, because no valid datagram is longer.
        holds: |stack| stack.key("ip.reassembly_buffers.bytes") != LONGEST_BUFFER,
        says: |stack, count| {
            format!(
                "{count} fragments were dropped: their datagrams are longer than {} B; set \
                 ip.reassembly_buffers.bytes higher",
                stack.key("ip.reassembly_buffers.bytes")
            )
        },
    },
    Row {
        doubt: "reassembly-buffers",
        counted: &[("ip", "reassembly_no_buffer")],
        holds: |_| true,
        says: |stack, count| {
            format!(
                "{count} fragments were dropped because all {} reassembly buffers held datagrams that the \
                 application had not received yet: start the stack with a higher \
                 --set ip.reassembly_buffers.count=N, or send at most {} B, which needs no fragments",
                stack.key("ip.reassembly_buffers.count"),
                most_payload(stack)
            )
        },
    },
    Row {
        doubt: "reassembly-off",
        counted: &[("ip", "reassembly_errors")],
        holds: |stack| stack.key("ip.reassembly") == "off",
        says: |stack, count| {
            format!(
                "{count} fragments were dropped: reassembly is off in this stack. Start it with \
                 --set ip.reassembly=on, or send at most {} B",
                most_payload(stack)
            )
        },
    },
    Row {
        doubt: "fragmentation-off",
        counted: &[("ip", "fragmented_fails")],
        holds: |stack| stack.key("ip.fragmentation") == "off",
        says: |stack, count| {
            format!(
                "{count} datagrams longer than a packet were not sent: fragmentation is off in this stack. \
                 Start it with --set ip.fragmentation=on, or request at most {} B",
                most_payload(stack)
            )
        },
    },
    Row {
        doubt: "udp-buffers",
        counted: &[("udp", "no_buffer")],
        holds: |_| true,
        says: |stack, count| match stack.device.split(',').any(|option| option == "vnet") {
            true => format!(
                "{count} datagrams were dropped for lack of a buffer: with a vnet header each frame takes 64 KiB, and \
                 at most 256 can wait, regardless of udp.receive_queue and udp.buffers. Open {} without vnet and with \
                 --set checksum=software",
                stack.device
            ),
            false => format!(
                "{count} datagrams were dropped for lack of a buffer: all sockets together have {}, regardless of \
                 udp.receive_queue ({} here). Start the stack with a higher --set udp.buffers=N",
                stack.key("udp.buffers"),
                stack.key("udp.receive_queue")
            ),
        },
    },
    Row {
        doubt: "frames-too-long",
        counted: &[("link", "port_too_long")],
        holds: |_| true,
        says: |stack, count| {
            format!(
                "{count} frames longer than {} accepts were dropped: their sender leaves segmentation to a device \
                 (TSO, GSO). Disable that: `ethtool -K {} tso off gso off`{}. Or its MTU is larger than the stack's, \
                 and all hosts of a link need the same: `ip link set {} mtu {}`",
                stack.device,
                far(stack),
                at_the_sender(stack),
                far(stack),
                stack.key("mtu"),
            )
        },
    },
    Row {
        doubt: "checksums-left-open",
        counted: &[
            ("udp", "open_checksum_drops"),
            ("tcp", "open_checksum_drops"),
        ],
        holds: |_| true,
        says: |stack, count| {
            format!(
                "{count} packets were dropped because their sender left the checksums to a device, which did \
                 not compute them. Disable that: `ethtool -K {} tx off`{}",
                far(stack),
                at_the_sender(stack)
            )
        },
    },
    Row {
        doubt: "neighbour-silent",
        counted: &[("link", "out_unresolved")],
        holds: |_| true,
        says: |stack, count| {
            format!(
                "{count} packets on {} were not sent: no ARP or ND reply for their destination or the gateway. \
                 Check that the remote host is up and in the network of the stack's address, which is set with \
                 --ip",
                stack.device
            )
        },
    },
    Row {
        doubt: "duplicate-address",
        counted: &[("link", "in_address_conflicts")],
        holds: |_| true,
        says: |stack, count| {
            format!(
                "another host on the link uses an address of this stack, {} (announced {count} times): packets \
                 for one of them may reach the other. Change one of the addresses with --ip",
                stack.addresses.join(" or ")
            )
        },
    },
];

/// The largest value of `ip.reassembly_buffers.bytes`.
const LONGEST_BUFFER: &str = "65535";

/// Returns the warnings about a stack from its counters and configuration.
#[must_use]
pub fn of(stack: &StackFacts) -> Vec<Doubt> {
    let rows = ROWS.iter().filter_map(|row| {
        let counters = row.counted.iter();
        let count: u64 = counters
            .map(|(protocol, name)| stack.counter(protocol, name))
            .sum();
        (count > 0 && (row.holds)(stack))
            .then(|| Doubt::new(row.doubt, (row.says)(stack, &format_count(count))))
    });
    rows.chain(throttled(stack)).collect()
}

/// Warns about a real-time thread that never sleeps.
fn throttled(stack: &StackFacts) -> Option<Doubt> {
    thread_schedule::never_sleeps(stack).then(|| {
        Doubt::new(
            "rt-throttle",
            "a real-time thread of the user-space stack that spins is throttled by the kernel \
             (kernel.sched_rt_runtime_us): gaps of some 50 ms per second; use --set poll.interval=125us with it, or \
             set threads.driver.sched and threads.application.sched to inherited",
        )
    })
}

/// Returns the largest UDP payload over IPv4 that fits in one packet.
fn most_payload(stack: &StackFacts) -> usize {
    let mtu: usize = stack.key("mtu").parse().unwrap_or(1500);
    mtu.saturating_sub(28)
}

/// Returns the interface at the other end of the link, or a placeholder.
fn far(stack: &StackFacts) -> &str {
    stack.far_interface.as_deref().unwrap_or("INTERFACE")
}

fn at_the_sender(stack: &StackFacts) -> &'static str {
    match stack.far_interface {
        Some(_) => "",
        None => " at the sender, for the interface that it sends on",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_is_told_with_its_remedy_and_no_other() {
        assert!(of(&StackFacts::default()).is_empty());
        for row in ROWS {
            for (protocol, name) in row.counted {
                let mut stack = StackFacts {
                    device: "packet:eth0".to_owned(),
                    far_interface: Some("veth1".to_owned()),
                    ..StackFacts::default()
                };
                let off = ["ip.reassembly", "ip.fragmentation"].map(|key| (key, "off"));
                stack.configuration = [off[0], off[1], ("mtu", "1500")]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into();
                let of_protocol = stack.counters.entry((*protocol).to_owned()).or_default();
                of_protocol.insert((*name).to_owned(), 1_234);
                let doubts = of(&stack);
                let names: Vec<_> = doubts.iter().map(|doubt| doubt.doubt.as_str()).collect();
                assert_eq!(names, [row.doubt]);
                assert!(doubts[0].why.contains("1,234"), "{doubts:?}");
                let other = doubts[0].why.contains("`ip link set veth1 mtu 1500`");
                assert_eq!(other, row.doubt == "frames-too-long", "{doubts:?}");
                let remedies = ["--set", "set ip.", "ethtool -K veth1 ", "with --ip"];
                let told = remedies.iter().any(|words| doubts[0].why.contains(words));
                assert!(told && !doubts[0].why.contains("   "), "{doubts:?}");
            }
        }
    }

    #[test]
    fn threads_that_meet_the_throttle_say_so() {
        let mut stack = StackFacts::default();
        let set = |stack: &mut StackFacts, key: &str, value: &str| {
            stack.configuration.insert(key.to_owned(), value.to_owned())
        };
        set(&mut stack, "poll.interval", "spin");
        assert!(of(&stack).is_empty());
        set(&mut stack, "threads.application.sched", "fifo:50");
        assert_eq!(of(&stack)[0].doubt, "rt-throttle");
        set(&mut stack, "poll.interval", "125us");
        assert!(of(&stack).is_empty());
    }

    #[test]
    fn no_buffer_is_asked_for_that_cannot_be_had() {
        let mut stack = StackFacts::default();
        let ip = stack.counters.entry("ip".to_owned()).or_default();
        ip.insert("reassembly_too_long".to_owned(), 2);
        let mut doubts = |bytes: &str| {
            let key = "ip.reassembly_buffers.bytes".to_owned();
            stack.configuration.insert(key, bytes.to_owned());
            of(&stack).len()
        };
        assert_eq!((doubts("8192"), doubts("65535")), (1, 0));
    }

    #[test]
    fn fragments_that_contradict_each_other_need_no_setting() {
        let mut stack = StackFacts::default();
        stack
            .configuration
            .insert("ip.reassembly".to_owned(), "on".to_owned());
        let ip = stack.counters.entry("ip".to_owned()).or_default();
        ip.insert("reassembly_errors".to_owned(), 5);
        assert!(of(&stack).is_empty());
    }
}
