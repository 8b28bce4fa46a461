//! Faults injected by kernel settings, and by links that reorder, lose and delay.

use super::faults::{InjectedFault, ONE_SWITCH, PLAIN, fault};

const REORDERING_LINK: &str =
    "[[links]]\nbetween = [\"client\", \"server\"]\nreorder = 0.05\ndelay = \"2ms\"\n";
const LOSSY_LINK: &str = "[[links]]\nbetween = [\"client\", \"server\"]\nloss = 0.02\n";
const LONG_LINK: &str = "[[links]]\nbetween = [\"client\", \"server\"]\ndelay = \"10ms\"\n";

/// All faults of this file.
pub const SETTING_FAULTS: &[InjectedFault] = &[
    // Windows that stay small.
    InjectedFault {
        setup: &[("server", "sysctl -qw net.ipv4.tcp_moderate_rcvbuf=0")],
        ..fault(
            "receive-window-untuned",
            "receive-window",
            PLAIN,
            "throughput HOST -t 1 -i 0.25 -C cubic",
        )
    },
    InjectedFault {
        setup: &[("client", "sysctl -qw net.ipv4.tcp_moderate_rcvbuf=0")],
        ..fault(
            "receive-window-untuned-back",
            "receive-window",
            ONE_SWITCH,
            "throughput HOST -t 1 -i 0.25 -C reno -R",
        )
    },
    InjectedFault {
        setup: &[("server", "sysctl -qw net.ipv4.tcp_window_scaling=0")],
        ..fault(
            "receive-window-unscaled",
            "receive-window",
            PLAIN,
            "throughput HOST -t 1 -i 0.25 -C cubic",
        )
    },
    InjectedFault {
        setup: &[("server", "sysctl -qw net.ipv4.tcp_window_scaling=0")],
        ..fault(
            "receive-window-unscaled-back",
            "receive-window",
            LONG_LINK,
            "throughput HOST -t 1 -i 0.25 -C reno -R",
        )
    },
    // Loss without selective acknowledgements.
    InjectedFault {
        setup: &[("server", "sysctl -qw net.ipv4.tcp_sack=0")],
        ..fault(
            "path-loss-unselective",
            "path-loss",
            LOSSY_LINK,
            "throughput HOST -t 2 -i 0.25 -C cubic",
        )
    },
    // A stream without timestamps is healthy.
    InjectedFault {
        setup: &[("server", "sysctl -qw net.ipv4.tcp_timestamps=0")],
        ..fault(
            "healthy-without-time-stamps",
            "healthy",
            PLAIN,
            "throughput HOST -t 1 -i 0.25 -C cubic",
        )
    },
    InjectedFault {
        setup: &[("client", "ip link set dev eth0 gso_max_segs 8")],
        ..fault(
            "gso-size-few-segments",
            "gso-size",
            PLAIN,
            "throughput HOST -t 1 -i 0.25 -C cubic",
        )
    },
    // Packets that overtake each other.
    fault(
        "reordering-live",
        "reordering",
        REORDERING_LINK,
        "throughput HOST -t 2 -i 0.25 -C cubic",
    ),
    fault(
        "reordering-udp-live",
        "reordering",
        REORDERING_LINK,
        "throughput HOST -u -b 30M -t 1 -i 0.25 -R",
    ),
    fault(
        "reordering-back-live",
        "reordering",
        "[[links]]\nbetween = [\"client\", \"server\"]\nreorder = 0.05\ndelay = \"4ms\"\n",
        "throughput HOST -t 2 -i 0.25 -C reno -R",
    ),
    // Datagrams of many packets.
    fault(
        "fragment-loss-live",
        "fragment-loss",
        LOSSY_LINK,
        "throughput HOST -u -b 30M -l 5888 -t 1 -i 0.25",
    ),
    fault(
        "fragment-loss-back-live",
        "fragment-loss",
        LOSSY_LINK,
        "throughput HOST -u -b 60M -l 20000 -t 1 -i 0.25 -R",
    ),
    // Buffers too small for a long path.
    InjectedFault {
        setup: &[(
            "server",
            "sysctl -qw net.ipv4.tcp_rmem='4096 131072 524288'",
        )],
        ..fault(
            "path-delay-window-live",
            "path-delay",
            LONG_LINK,
            "throughput HOST -t 2 -i 0.25 -C cubic",
        )
    },
    fault(
        "send-buffer-own-stack-long",
        "send-buffer",
        LONG_LINK,
        "throughput HOST --dev packet:eth0 --ip 10.77.0.9/24 --set tcp.send_buffer=1K -t 1 -i 0.25",
    ),
    fault(
        "send-buffer-own-stack-longer",
        "send-buffer",
        LONG_LINK,
        "throughput HOST --dev packet:eth0 --ip 10.77.0.9/24 --set tcp.send_buffer=32K -t 2 -i 0.25",
    ),
    // A link that goes down and comes back.
    InjectedFault {
        background: &[(
            "server",
            "sleep 0.8; ip link set eth0 down; sleep 0.3; ip link set eth0 up; sleep 60",
        )],
        ..fault(
            "link-down-live",
            "link-down",
            PLAIN,
            "throughput HOST -u -b 50M -t 3 -i 0.25",
        )
    },
    InjectedFault {
        background: &[(
            "server",
            "sleep 0.8; ip link set eth0 down; sleep 0.5; ip link set eth0 up; sleep 60",
        )],
        ..fault(
            "link-down-tcp-live",
            "link-down",
            ONE_SWITCH,
            "throughput HOST -t 3 -i 0.25 -C cubic",
        )
    },
    // A real-time thread that never sleeps, with other threads that want to run.
    InjectedFault {
        background: &[
            ("server", "while :; do :; done"),
            ("client", "while :; do :; done"),
        ],
        has_priority: false,
        ..fault(
            "rt-throttle-live",
            "rt-throttle",
            PLAIN,
            "latency HOST -u -t 3 --wait spin --sched fifo:50",
        )
    },
];
