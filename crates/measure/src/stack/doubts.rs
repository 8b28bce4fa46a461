//! What a stack has dropped that its sender could be made to send otherwise, and how; and what else speaks against
//! its figures.

use linerate_metric::record::Doubt;
use linerate_metric::stack::StackFacts;
use linerate_metric::units::format_count;

use super::schedule;

/// A kind of loss: its name, the counters of which one must have moved, and what is said of so many.
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
        // No datagram is longer than the longest buffer: what says so is no good one.
        holds: |stack| stack.key("ip.reassembly_buffers.bytes") != LONGEST_BUFFER,
        says: |stack, count| {
            format!(
                "{count} fragments were of datagrams above {} B, which no buffer holds, and these \
                 were dropped: set ip.reassembly_buffers.bytes higher",
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
                "{count} fragments were dropped because all {} buffers held datagrams that nobody had \
                 fetched yet: start the stack with --set ip.reassembly_buffers.count=N, higher than that, or \
                 send {} B at most, which are no fragments",
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
                "{count} fragments came, of datagrams longer than a packet, and were dropped: this stack \
                 puts none together. Start it with --set ip.reassembly=on, or send {} B at most",
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
                "{count} datagrams that a packet does not hold were not sent: this stack cuts none. Start it \
                 with --set ip.fragmentation=on, or ask for {} B at most",
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
                "{count} datagrams found no buffer: with a vnet header, where each frame has room for 64 KiB, 256 wait \
                 at most, whatever udp.receive_queue and udp.buffers are. Open {} without vnet and with --set \
                 checksum=software",
                stack.device
            ),
            false => format!(
                "{count} datagrams found no buffer: all sockets together hold {} at most, whatever \
                 udp.receive_queue ({} here) is. Start the stack with --set udp.buffers=N, higher than that",
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
                "{count} frames were longer than {} takes, and were dropped: their sender leaves segments \
                 together for a device to cut. Have it cut them itself: `ethtool -K {} tso off gso off`{}. Or its \
                 MTU is larger than the stack's, and all of a link are to have one: `ip link set {} mtu {}`",
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
                "{count} packets were dropped because their sender had left their checksums to a device, \
                 which did not make them. Have it make them itself: `ethtool -K {} tx off`{}",
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
                "{count} packets waited in vain for an Ethernet address on {}: nobody answered for the address that they \
                 were for, or for the gateway's. See that the far end is up and in the network of the stack's \
                 address, which is set with --ip",
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
                "another host on the link has an address of this stack's, {}, and said so {count} times: what is \
                 for one of them may go to the other. Give one of them another with --ip",
                stack.addresses.join(" or ")
            )
        },
    },
];

/// The largest value of `ip.reassembly_buffers.bytes`.
const LONGEST_BUFFER: &str = "65535";

/// What a stack's counters say of losses that its sender can prevent, and what its threads meet.
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

/// Real-time threads that never sleep.
fn throttled(stack: &StackFacts) -> Option<Doubt> {
    schedule::never_sleeps(stack).then(|| {
        Doubt::new(
            "rt-throttle",
            "a real-time thread of our own stack that spins meets the kernel's throttle \
             (kernel.sched_rt_runtime_us): holes of some 50 ms a second; use --set poll.interval=125us with it, or \
             set threads.driver.sched and threads.application.sched to inherited",
        )
    })
}

/// The longest payload of a datagram over IPv4 that is one packet.
fn most_payload(stack: &StackFacts) -> usize {
    let mtu: usize = stack.key("mtu").parse().unwrap_or(1500);
    mtu.saturating_sub(28)
}

/// The interface at the other end, where it is known.
fn far(stack: &StackFacts) -> &str {
    stack.far_interface.as_deref().unwrap_or("INTERFACE")
}

fn at_the_sender(stack: &StackFacts) -> &'static str {
    match stack.far_interface {
        Some(_) => "",
        None => " at the sender, with the interface that it sends on",
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
