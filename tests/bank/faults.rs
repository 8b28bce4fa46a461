//! Faults that one machine can inject, each with its exact setup.

/// Fault and how it is injected.
pub struct InjectedFault {
    /// Name of the record.
    pub name: &'static str,
    /// Finding that must come first; `healthy`: none of kind `cause`.
    pub expected: &'static str,
    /// Links between the hosts, as in a lab file; empty: the command needs no lab.
    pub links: &'static str,
    /// Shell lines by host, run before the server starts.
    pub setup: &'static [(&'static str, &'static str)],
    /// Shell lines by host that run in the background until the lab ends, started after the server.
    pub background: &'static [(&'static str, &'static str)],
    /// Command that measures.
    pub run: &'static str,
    /// True when the measuring threads get a higher priority than other programs; false when
    /// competition is the fault.
    pub has_priority: bool,
}

pub const PLAIN: &str = "[[links]]\nbetween = [\"client\", \"server\"]\n";
pub const ONE_SWITCH: &str = "[switches.s1]\n[[links]]\nbetween = [\"client\", \"s1\"]\n[[links]]\nbetween = [\"s1\", \"server\"]\n";
const LOSSY_MIDDLE: &str = "[switches.s1]\n[switches.s2]\n[[links]]\nbetween = [\"client\", \"s1\"]\n[[links]]\nbetween = [\"s1\", \"s2\"]\nrate=\"50M\"\ndelay=\"10ms\"\nloss=0.001\n[[links]]\nbetween = [\"s2\", \"server\"]\n";
const NO_SEGMENTATION: &str =
    "[[links]]\nbetween = [\"client\", \"server\"]\noffloads = { tso = false, gso = false }\n";
const LARGE_GSO: &str = "[[links]]\nbetween = [\"client\", \"server\"]\ngso = \"512K\"\n";

/// Returns a fault without shell lines.
pub const fn fault(
    name: &'static str,
    expected: &'static str,
    links: &'static str,
    run: &'static str,
) -> InjectedFault {
    InjectedFault {
        name,
        expected,
        links,
        setup: &[],
        background: &[],
        run,
        has_priority: true,
    }
}

/// All faults of this file. `HOST` is the server's address.
pub const FAULTS: &[InjectedFault] = &[
    // Healthy runs: nothing but limits.
    fault(
        "healthy-tcp-send",
        "healthy",
        PLAIN,
        "throughput HOST -t 1 -i 0.25 -C cubic",
    ),
    fault(
        "healthy-tcp-receive",
        "healthy",
        PLAIN,
        "throughput HOST -t 1 -i 0.25 -C reno -R",
    ),
    fault(
        "healthy-tcp-hop",
        "healthy",
        ONE_SWITCH,
        "throughput HOST -t 1 -i 0.25 -C cubic --wait spin",
    ),
    fault(
        "healthy-tcp-ipv6",
        "healthy",
        PLAIN,
        "throughput fd77::2 -t 1 -i 0.25 -C cubic",
    ),
    fault(
        "healthy-udp-paced",
        "healthy",
        PLAIN,
        "throughput HOST -u -b 100M -t 1 -i 0.25",
    ),
    fault(
        "healthy-udp-paced-receive",
        "healthy",
        ONE_SWITCH,
        "throughput HOST -u -b 20M -l 512 -t 1 -i 0.25 -R",
    ),
    fault(
        "healthy-latency-spin",
        "healthy",
        PLAIN,
        "latency HOST -u -t 1 --wait spin",
    ),
    fault(
        "healthy-latency-spin-tcp",
        "healthy",
        ONE_SWITCH,
        "latency HOST -t 1 -l 1024 --wait spin",
    ),
    fault(
        "healthy-latency-held",
        "healthy",
        PLAIN,
        "latency HOST -u -t 1 -l 256 --hold-latency",
    ),
    // The receiver's window.
    fault(
        "receive-window-4k",
        "receive-window",
        PLAIN,
        "throughput HOST -t 1 -i 0.25 -C cubic --rcvbuf 4K",
    ),
    fault(
        "receive-window-16k-back",
        "receive-window",
        ONE_SWITCH,
        "throughput HOST -t 1 -i 0.25 -C reno --rcvbuf 8K -R",
    ),
    fault(
        "receive-window-bbr",
        "receive-window",
        PLAIN,
        "throughput fd77::2 -t 1 -i 0.25 --rcvbuf 2K",
    ),
    // The send buffer.
    fault(
        "send-buffer-4k",
        "send-buffer",
        PLAIN,
        "throughput HOST -t 1 -i 0.25 -C cubic --sndbuf 4K",
    ),
    fault(
        "send-buffer-2k-back",
        "send-buffer",
        ONE_SWITCH,
        "throughput HOST -t 1 -i 0.25 -C reno --sndbuf 2K -R",
    ),
    // Congestion control.
    fault(
        "congestion-control-bbr",
        "congestion-control",
        PLAIN,
        "throughput HOST -t 1 -i 0.25 -C bbr",
    ),
    fault(
        "congestion-control-bbr-back",
        "congestion-control",
        ONE_SWITCH,
        "throughput HOST -t 1 -i 0.25 -C bbr -R",
    ),
    // Small calls.
    fault(
        "small-writes-1k",
        "small-writes",
        PLAIN,
        "throughput HOST -t 1 -i 0.25 -C cubic -l 1K",
    ),
    fault(
        "small-writes-256-back",
        "small-writes",
        LARGE_GSO,
        "throughput HOST -t 1 -i 0.25 -C reno -l 256 -R",
    ),
    fault(
        "small-writes-udp",
        "small-writes",
        PLAIN,
        "throughput HOST -u -t 1 -i 0.25 --offload none -l 64",
    ),
    // Processors.
    fault(
        "sender-cpu-big-packets",
        "sender-cpu",
        LARGE_GSO,
        "throughput HOST -t 1 -i 0.25 -C cubic --wait block/spin",
    ),
    fault(
        "sender-cpu-back",
        "sender-cpu",
        LARGE_GSO,
        "throughput HOST -t 1 -i 0.25 -C reno -R",
    ),
    // The sender passes pages; only the receiver copies, from more memory than its cache holds.
    fault(
        "receiver-cpu-copies-alone",
        "receiver-cpu",
        LARGE_GSO,
        "throughput HOST -t 1 -i 0.25 -C cubic --offload sendfile -l 16M",
    ),
    // The sender makes one call for 64 datagrams, the receiver two for each.
    fault(
        "receiver-cpu-select",
        "receiver-cpu",
        PLAIN,
        "throughput HOST -u -t 1 -i 0.25 --offload gso -l 200 --wait block/select",
    ),
    fault(
        "receiver-cpu-poll-back",
        "receiver-cpu",
        PLAIN,
        "throughput HOST -u -t 1 -i 0.25 --offload gso -l 700 --wait poll/block -R",
    ),
    fault(
        "gso-size-16k",
        "gso-size",
        "[[links]]\nbetween = [\"client\", \"server\"]\ngso = \"16K\"\n",
        "throughput HOST -t 1 -i 0.25 -C cubic",
    ),
    fault(
        "gso-size-8k-back",
        "gso-size",
        "[[links]]\nbetween = [\"client\", \"server\"]\ngso = \"8K\"\n",
        "throughput HOST -t 1 -i 0.25 -C reno -R",
    ),
    fault(
        "offload-off-tso",
        "offload-off",
        "[[links]]\nbetween = [\"client\", \"server\"]\noffloads = { tso = false }\n",
        "throughput HOST -t 1 -i 0.25 -C cubic",
    ),
    fault(
        "offload-off-gso-back",
        "offload-off",
        "[[links]]\nbetween = [\"client\", \"server\"]\noffloads = { tso = false, gso = false }\n",
        "throughput HOST -t 1 -i 0.25 -C reno -R",
    ),
    fault(
        "shared-core-tcp",
        "shared-core",
        PLAIN,
        "throughput HOST -t 1 -i 0.25 -C cubic --cpu 0/0",
    ),
    fault(
        "shared-core-udp",
        "shared-core",
        PLAIN,
        "throughput HOST -u -t 1 -i 0.25 --cpu 1/1",
    ),
    fault(
        "shared-core-latency",
        "shared-core",
        PLAIN,
        "latency HOST -u -t 1 --wait spin --cpu 1/1",
    ),
    InjectedFault {
        has_priority: false,
        ..fault(
            "idle-wakeup-udp",
            "idle-wakeup",
            PLAIN,
            "latency HOST -u -t 1",
        )
    },
    InjectedFault {
        has_priority: false,
        ..fault(
            "idle-wakeup-tcp",
            "idle-wakeup",
            ONE_SWITCH,
            "latency HOST -t 1 -l 512",
        )
    },
    InjectedFault {
        background: &[
            ("server", "while :; do :; done"),
            ("client", "while :; do :; done"),
            ("client", "while :; do :; done"),
        ],
        has_priority: false,
        ..fault(
            "scheduling-delay-hogs",
            "scheduling-delay",
            PLAIN,
            "latency HOST -u -t 1.5 --wait spin",
        )
    },
    InjectedFault {
        background: &[
            ("server", "while :; do :; done"),
            ("server", "while :; do :; done"),
            ("server", "while :; do :; done"),
            ("server", "while :; do :; done"),
        ],
        has_priority: false,
        ..fault(
            "scheduling-delay-tcp",
            "scheduling-delay",
            PLAIN,
            "throughput HOST -t 1.5 -i 0.25 -C cubic",
        )
    },
    // Links.
    fault(
        "shaped-link-tcp",
        "shaped-link",
        "[[links]]\nbetween = [\"client\", \"server\"]\nrate = \"100M\"\n",
        "throughput HOST -t 1.5 -i 0.25 -C cubic",
    ),
    fault(
        "shaped-link-switch",
        "shaped-link",
        "[switches.s1]\n[[links]]\nbetween = [\"client\", \"s1\"]\n[[links]]\nbetween = [\"s1\", \"server\"]\nrate = \"300M\"\n",
        "throughput HOST -t 1.5 -i 0.25 -C reno",
    ),
    fault(
        "shaped-link-udp",
        "shaped-link",
        "[[links]]\nbetween = [\"client\", \"server\"]\nrate = \"500M\"\n",
        "throughput HOST -u -b 800M -t 1 -i 0.25",
    ),
    fault(
        "shaped-link-back",
        "shaped-link",
        "[[links]]\nbetween = [\"client\", \"server\"]\nrate = \"50M\"\n",
        "throughput HOST -t 1.5 -i 0.25 -R",
    ),
    InjectedFault {
        setup: &[(
            "client",
            "tc qdisc replace dev eth0 root tbf rate 2mbit burst 2k latency 50ms",
        )],
        ..fault(
            "shaped-link-round-trips",
            "shaped-link",
            PLAIN,
            "latency HOST -u -l 1000 -t 1",
        )
    },
    InjectedFault {
        setup: &[(
            "server",
            "tc qdisc replace dev eth0 root tbf rate 10mbit burst 3k latency 50ms",
        )],
        ..fault(
            "shaped-link-answers",
            "shaped-link",
            PLAIN,
            "latency HOST -l 600 -t 1 --outstanding 4",
        )
    },
    InjectedFault {
        setup: &[(
            "client",
            "tc qdisc replace dev eth0 root tbf rate 3gbit burst 64k limit 30k",
        )],
        ..fault(
            "qdisc-drop-short-queue",
            "qdisc-drop",
            PLAIN,
            "throughput HOST -t 1 -i 0.25 -C cubic",
        )
    },
    InjectedFault {
        setup: &[(
            "client",
            "tc qdisc replace dev eth0 root tbf rate 200mbit burst 32k limit 30k",
        )],
        ..fault(
            "qdisc-drop-of-fragments",
            "qdisc-drop",
            PLAIN,
            "throughput HOST -u -b 600M -l 16000 -t 1 -i 0.25 --offload none",
        )
    },
    InjectedFault {
        setup: &[(
            "server",
            "tc qdisc replace dev eth0 root tbf rate 2gbit burst 100k limit 20k",
        )],
        ..fault(
            "qdisc-drop-back",
            "qdisc-drop",
            PLAIN,
            "throughput HOST -t 1 -i 0.25 -C reno -R",
        )
    },
    fault(
        "udp-receive-queue-2k",
        "udp-receive-queue",
        PLAIN,
        "throughput HOST -u -b 200M -t 1 -i 0.25 --rcvbuf 2K --offload none",
    ),
    fault(
        "udp-receive-queue-back",
        "udp-receive-queue",
        PLAIN,
        "throughput HOST -u -b 300M -l 700 -t 1 -i 0.25 --rcvbuf 2K --offload none -R",
    ),
    fault(
        "burst-size-64",
        "burst-size",
        PLAIN,
        "throughput HOST -u -b 100M/64 -t 1 -i 0.25 --rcvbuf 4000 --offload none",
    ),
    fault(
        "burst-size-back",
        "burst-size",
        ONE_SWITCH,
        "throughput HOST -u -b 40M/200 -l 700 -t 1 -i 0.25 --rcvbuf 16K --offload none -R",
    ),
    InjectedFault {
        setup: &[(
            "server",
            "sysctl -qw net.ipv4.ipfrag_low_thresh=0 net.ipv4.ipfrag_high_thresh=4096",
        )],
        ..fault(
            "reassembly-no-memory",
            "reassembly",
            PLAIN,
            "throughput HOST -u -b 20M -l 5888 -t 1 -i 0.25",
        )
    },
    InjectedFault {
        setup: &[(
            "client",
            "sysctl -qw net.ipv4.ipfrag_low_thresh=0 net.ipv4.ipfrag_high_thresh=4096",
        )],
        ..fault(
            "reassembly-back",
            "reassembly",
            PLAIN,
            "throughput HOST -u -b 40M -l 20000 -t 1 -i 0.25 -R",
        )
    },
    InjectedFault {
        setup: &[("server", "ip link set eth0 mtu 1000")],
        ..fault(
            "mtu-black-hole-udp",
            "mtu-black-hole",
            PLAIN,
            "throughput HOST -u -b 20M -l 1400 -t 1 -i 0.25",
        )
    },
    InjectedFault {
        setup: &[(
            "client",
            "tc qdisc replace dev eth0 root tbf rate 50mbit burst 32k latency 20ms",
        )],
        ..fault(
            "asymmetric-path-slow-there",
            "asymmetric-path",
            PLAIN,
            "throughput HOST -t 1.5 -i 0.25 -C cubic --bidir",
        )
    },
    InjectedFault {
        setup: &[(
            "server",
            "tc qdisc replace dev eth0 root tbf rate 200mbit burst 64k latency 20ms",
        )],
        ..fault(
            "asymmetric-path-slow-back",
            "asymmetric-path",
            PLAIN,
            "throughput HOST -t 1.5 -i 0.25 -C reno --bidir",
        )
    },
    InjectedFault {
        setup: &[(
            "server",
            "tc qdisc replace dev eth0 root tbf rate 1mbit burst 3k limit 6000",
        )],
        ..fault(
            "asymmetric-path-answers",
            "asymmetric-path",
            PLAIN,
            "throughput HOST -t 3 -C cubic",
        )
    },
    fault(
        "delayed-ack-question-in-parts",
        "delayed-ack",
        "[[links]]\nbetween = [\"client\", \"server\"]\nrate = \"200M\"\noffloads = { tso = false, gso = false }\n",
        "latency HOST -t 2 --dev packet:eth0 --ip 10.77.0.9/24 -l 4000 --set tcp.send_buffer=1K",
    ),
    // With the rate used up, other short resources are no cause.
    fault(
        "shaped-link-before-short-ring",
        "shaped-link",
        "[[links]]\nbetween = [\"client\", \"server\"]\nrate = \"200M\"\noffloads = { tso = false, gso = false }\n",
        "throughput HOST -t 2 --dev packet:eth0 --ip 10.77.0.9/24 -R -C cubic --set rx_descriptors=4",
    ),
    InjectedFault {
        setup: &[(
            "server",
            "tc qdisc replace dev eth0 root tbf rate 500kbit burst 3k limit 3000",
        )],
        ..fault(
            "shaped-link-both-ways",
            "shaped-link",
            "[[links]]\nbetween = [\"client\", \"server\"]\nrate = \"30M\"\n",
            "throughput HOST -t 3 -C cubic",
        )
    },
    // The user-space stack at one end.
    fault(
        "delayed-ack-own-stack",
        "delayed-ack",
        PLAIN,
        "throughput HOST --dev packet:eth0 --ip 10.77.0.9/24 --profile embedded-default -t 1",
    ),
    fault(
        "receive-window-own-stack",
        "receive-window",
        "[[links]]\nbetween = [\"client\", \"server\"]\noffloads = { tso = false, gso = false }\n",
        "throughput HOST --dev packet:eth0 --ip 10.77.0.9/24 --profile embedded-default -t 1 -i 0.25 -R -C cubic",
    ),
    fault(
        "mtu-black-hole-uncut",
        "mtu-black-hole",
        PLAIN,
        "throughput HOST --dev packet:eth0 --ip 10.77.0.9/24 -t 1 -i 0.25 -R -C cubic",
    ),
    fault(
        "healthy-own-stack-udp",
        "healthy",
        PLAIN,
        "throughput HOST --dev packet:eth0 --ip 10.77.0.9/24 -u -b 20M -t 1 -i 0.25",
    ),
    fault(
        "healthy-own-stack-flood",
        "healthy",
        NO_SEGMENTATION,
        "throughput HOST -t 2 --dev packet:eth0 --ip 10.77.0.9/24 -u",
    ),
    // The kernel retransmits more than the stack, which acknowledges late, ever lost.
    fault(
        "healthy-own-stack-late-answers",
        "healthy",
        NO_SEGMENTATION,
        "throughput HOST -t 1 --dev packet:eth0 --ip 10.77.0.9/24 -R",
    ),
    fault(
        "too-few-descriptors-own-ring",
        "too-few-descriptors",
        NO_SEGMENTATION,
        "throughput HOST -t 2 --dev packet:eth0 --ip 10.77.0.9/24 --set rx_descriptors=1 -R -C cubic",
    ),
    fault(
        "too-few-descriptors-own-ring-udp",
        "too-few-descriptors",
        NO_SEGMENTATION,
        "throughput HOST -t 2 --dev packet:eth0 --ip 10.77.0.9/24 --set rx_descriptors=2 -u -R -b 200M",
    ),
    // Paths that are long, lossy or narrow somewhere.
    // Retransmitted segments had arrived: late acknowledgements are no loss.
    fault(
        "healthy-latency-answered-late",
        "healthy",
        "[[links]]\nbetween = [\"client\", \"server\"]\ndelay = \"1ms\"\n",
        "latency HOST -t 2 -l 10000",
    ),
    // A receiver that is blocked at first and spins later has nearly all of its time left.
    fault(
        "healthy-spinning-from-late-on",
        "healthy",
        "[[links]]\nbetween = [\"client\", \"server\"]\ndelay = \"1ms\"\n",
        "throughput HOST -t 2 -l 100 -C cubic",
    ),
    fault(
        "receive-window-beside-spinning",
        "receive-window",
        "[[links]]\nbetween = [\"client\", \"server\"]\nrate = \"300M\"\ndelay = \"20ms\"\n",
        "throughput HOST -t 4 -C cubic -w 512K",
    ),
    // A half-used link in the middle delays packets while a stream starts, and loses some.
    fault(
        "path-loss-behind-switches",
        "path-loss",
        LOSSY_MIDDLE,
        "throughput HOST -t 4 -C cubic",
    ),
    fault(
        "path-loss-behind-switches-back",
        "path-loss",
        LOSSY_MIDDLE,
        "throughput fd77::2 -t 4 -C reno -R",
    ),
    // So few segments are sent in four seconds that few of them are lost.
    fault(
        "path-loss-narrow-back",
        "path-loss",
        "[[links]]\nbetween = [\"client\", \"server\"]\nrate = \"20M\"\ndelay = \"30ms\"\nloss = 0.005\n",
        "throughput fd77::2 -t 4 -R -C cubic",
    ),
    fault(
        "path-delay-round-trips-live",
        "path-delay",
        "[[links]]\nbetween = [\"client\", \"server\"]\ndelay = \"15ms\"\n",
        "latency HOST -u -t 1 --wait spin",
    ),
    fault(
        "path-loss-udp-live",
        "path-loss",
        "[[links]]\nbetween = [\"client\", \"server\"]\nloss = 0.02\ndelay = \"2ms\"\n",
        "throughput HOST -u -b 30M -t 1 -i 0.25",
    ),
    fault(
        "path-loss-tcp-live",
        "path-loss",
        "[[links]]\nbetween = [\"client\", \"server\"]\nloss = 0.02\ndelay = \"2ms\"\n",
        "throughput HOST -t 2 -i 0.25 -C cubic",
    ),
    InjectedFault {
        setup: &[("server", "ip link set eth0 mtu 576")],
        ..fault(
            "mtu-black-hole-island",
            "mtu-black-hole",
            ONE_SWITCH,
            "throughput HOST -u -b 10M -l 1000 -t 1 -i 0.25",
        )
    },
    fault(
        "shaped-link-many-flows",
        "shaped-link",
        "[switches.s1]\n[switches.s2]\n[[links]]\nbetween = [\"client\", \"s1\"]\n[[links]]\nbetween = [\"s1\", \"s2\"]\nrate = \"80M\"\n[[links]]\nbetween = [\"s2\", \"server\"]\n",
        "throughput HOST -t 2 -i 0.5 -P 8",
    ),
    fault(
        "path-loss-cubic",
        "path-loss",
        "[[links]]\nbetween = [\"client\", \"server\"]\nloss = 0.006\n",
        "throughput HOST -t 2 -i 0.25 -C cubic",
    ),
    fault(
        "path-loss-cubic-back",
        "path-loss",
        "[[links]]\nbetween = [\"client\", \"server\"]\nloss = 0.012\n",
        "throughput HOST -t 2 -C cubic -R",
    ),
    fault(
        "path-loss-reno-two",
        "path-loss",
        "[[links]]\nbetween = [\"client\", \"server\"]\nloss = 0.012\n",
        "throughput HOST -t 2 -i 0.25 -C reno -P 2",
    ),
    fault(
        "path-loss-bbr",
        "path-loss",
        "[[links]]\nbetween = [\"client\", \"server\"]\nloss = 0.03\n",
        "throughput HOST -t 2 -i 0.25",
    ),
    fault(
        "path-loss-asking",
        "path-loss",
        "[[links]]\nbetween = [\"client\", \"server\"]\nloss = 0.012\n",
        "latency HOST -t 2",
    ),
    fault(
        "path-loss-asking-udp",
        "path-loss",
        "[[links]]\nbetween = [\"client\", \"server\"]\nloss = 0.006\n",
        "latency HOST -t 2 -u",
    ),
    fault(
        "receive-window-24k-back",
        "receive-window",
        PLAIN,
        "throughput HOST -t 1 -i 0.25 -C cubic -R --rcvbuf 24K",
    ),
    fault(
        "receive-window-128k-back",
        "receive-window",
        PLAIN,
        "throughput HOST -t 1 -i 0.25 -C cubic -R --rcvbuf 128K",
    ),
    fault(
        "healthy-long-start",
        "healthy",
        "[[links]]\nbetween = [\"client\", \"server\"]\ndelay = \"10ms\"\nrate = \"500M\"\n",
        "throughput HOST -t 2 -i 0.25 -C cubic",
    ),
    fault(
        "slow-receiver-poll",
        "slow-receiver-application",
        PLAIN,
        "latency HOST --dev packet:eth0 --ip 10.77.0.9/24 -u -t 1 --set poll.interval=4ms",
    ),
    fault(
        "too-few-descriptors-poll",
        "too-few-descriptors",
        PLAIN,
        "throughput HOST --dev packet:eth0 --ip 10.77.0.9/24 -u -R -b 100M -t 1 -i 0.25 --set poll.interval=50ms",
    ),
    // Neighbours: one that is flushed repeatedly on a long link, and one whose address changes as
    // if two hosts had the same.
    InjectedFault {
        background: &[(
            "client",
            "while :; do ip neigh flush dev eth0; sleep 0.2; done",
        )],
        ..fault(
            "neighbour-forgotten",
            "neighbour",
            "[[links]]\nbetween = [\"client\", \"server\"]\ndelay = \"20ms\"\n",
            "throughput HOST -u -b 100M -t 2 -i 0.25",
        )
    },
    InjectedFault {
        setup: &[("server", "sysctl -qw net.ipv4.conf.eth0.arp_notify=1")],
        background: &[(
            "server",
            "while :; do for last in 01 02; do ip link set dev eth0 address 02:77:00:00:00:$last; sleep 0.3; done; done",
        )],
        ..fault(
            "neighbour-moved",
            "neighbour",
            ONE_SWITCH,
            "latency HOST -u -t 2 --wait spin",
        )
    },
    // Applications.
    fault(
        "socket-reopened-udp",
        "socket-reopened",
        PLAIN,
        "latency HOST -u -t 1 --wait spin --reopen",
    ),
    fault(
        "socket-reopened-tcp",
        "socket-reopened",
        PLAIN,
        "latency HOST -t 1 --hold-latency --reopen -l 256",
    ),
    fault(
        "slow-sender-asked-tcp",
        "slow-sender-application",
        PLAIN,
        "throughput HOST -t 1 -i 0.25 -b 200M",
    ),
    fault(
        "slow-sender-asked-udp",
        "slow-sender-application",
        ONE_SWITCH,
        "throughput HOST -u -t 1 -i 0.25 -b 50M -l 200",
    ),
    fault(
        "tool-limit-udp",
        "tool-limit",
        PLAIN,
        "throughput HOST -u -b 20G -t 1 -i 0.25 --offload none",
    ),
    fault(
        "tool-limit-udp-back",
        "tool-limit",
        PLAIN,
        "throughput HOST -u -b 10G -l 512 -t 1 -i 0.25 --offload none -R",
    ),
    // A generator with a rate that no processor reaches.
    InjectedFault {
        has_priority: false,
        ..fault(
            "tool-limit-generate",
            "tool-limit",
            PLAIN,
            "generate --dev ring:0 --rate 2000Mpps -t 0.5",
        )
    },
    // Poll mode.
    fault(
        "too-few-in-flight-ring",
        "too-few-in-flight",
        "",
        "forward --dev ring:0 --dev ring:1 --cores 2 --tx-first 1 --burst 2 -t 1",
    ),
    fault(
        "too-few-in-flight-three",
        "too-few-in-flight",
        "",
        "forward --dev ring:0 --dev ring:1 --dev ring:2 --port-topology chained --cores 2 --tx-first 1 --burst 1 -t 1",
    ),
    fault(
        "too-few-descriptors-one",
        "too-few-descriptors",
        "",
        "forward --dev ring:0 --dev ring:1 --cores 1 --rxd 1 --txd 1 --tx-first 1 -t 1",
    ),
    fault(
        "burst-size-one",
        "burst-size",
        "",
        "forward --dev ring:0 --tx-first 64 --burst 1 -t 1",
    ),
    fault(
        "sender-cpu-forward",
        "sender-cpu",
        "",
        "forward --dev ring:0 --tx-first 8 --burst 32 -t 1",
    ),
];
