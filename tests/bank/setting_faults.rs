//! Faults injected by kernel settings, and by links that reorder, lose and delay.

use super::faults::{HOP, PLAIN, Plant, plant};

const REORDERING: &str =
    "[[links]]\nbetween = [\"client\", \"server\"]\nreorder = 0.05\ndelay = \"2ms\"\n";
const LOSING: &str = "[[links]]\nbetween = [\"client\", \"server\"]\nloss = 0.02\n";
const LONG: &str = "[[links]]\nbetween = [\"client\", \"server\"]\ndelay = \"10ms\"\n";

/// All faults of this file.
pub const PLANTS: &[Plant] = &[
    // Windows that stay small.
    Plant {
        before: &[("server", "sysctl -qw net.ipv4.tcp_moderate_rcvbuf=0")],
        ..plant(
            "receive-window-untuned",
            "receive-window",
            PLAIN,
            "throughput HOST -t 1 -i 0.25 -C cubic",
        )
    },
    Plant {
        before: &[("client", "sysctl -qw net.ipv4.tcp_moderate_rcvbuf=0")],
        ..plant(
            "receive-window-untuned-back",
            "receive-window",
            HOP,
            "throughput HOST -t 1 -i 0.25 -C reno -R",
        )
    },
    Plant {
        before: &[("server", "sysctl -qw net.ipv4.tcp_window_scaling=0")],
        ..plant(
            "receive-window-unscaled",
            "receive-window",
            PLAIN,
            "throughput HOST -t 1 -i 0.25 -C cubic",
        )
    },
    Plant {
        before: &[("server", "sysctl -qw net.ipv4.tcp_window_scaling=0")],
        ..plant(
            "receive-window-unscaled-back",
            "receive-window",
            LONG,
            "throughput HOST -t 1 -i 0.25 -C reno -R",
        )
    },
    // Loss without selective acknowledgements.
    Plant {
        before: &[("server", "sysctl -qw net.ipv4.tcp_sack=0")],
        ..plant(
            "path-loss-unselective",
            "path-loss",
            LOSING,
            "throughput HOST -t 2 -i 0.25 -C cubic",
        )
    },
    // A stream without timestamps is healthy.
    Plant {
        before: &[("server", "sysctl -qw net.ipv4.tcp_timestamps=0")],
        ..plant(
            "healthy-without-time-stamps",
            "healthy",
            PLAIN,
            "throughput HOST -t 1 -i 0.25 -C cubic",
        )
    },
    Plant {
        before: &[("client", "ip link set dev eth0 gso_max_segs 8")],
        ..plant(
            "gso-size-few-segments",
            "gso-size",
            PLAIN,
            "throughput HOST -t 1 -i 0.25 -C cubic",
        )
    },
    // Packets that overtake each other.
    plant(
        "reordering-live",
        "reordering",
        REORDERING,
        "throughput HOST -t 2 -i 0.25 -C cubic",
    ),
    plant(
        "reordering-udp-live",
        "reordering",
        REORDERING,
        "throughput HOST -u -b 30M -t 1 -i 0.25 -R",
    ),
    plant(
        "reordering-back-live",
        "reordering",
        "[[links]]\nbetween = [\"client\", \"server\"]\nreorder = 0.05\ndelay = \"4ms\"\n",
        "throughput HOST -t 2 -i 0.25 -C reno -R",
    ),
    // Datagrams of many packets.
    plant(
        "fragment-loss-live",
        "fragment-loss",
        LOSING,
        "throughput HOST -u -b 30M -l 5888 -t 1 -i 0.25",
    ),
    plant(
        "fragment-loss-back-live",
        "fragment-loss",
        LOSING,
        "throughput HOST -u -b 60M -l 20000 -t 1 -i 0.25 -R",
    ),
    // Buffers too small for a long path.
    Plant {
        before: &[(
            "server",
            "sysctl -qw net.ipv4.tcp_rmem='4096 131072 524288'",
        )],
        ..plant(
            "path-delay-window-live",
            "path-delay",
            LONG,
            "throughput HOST -t 2 -i 0.25 -C cubic",
        )
    },
    plant(
        "send-buffer-own-stack-long",
        "send-buffer",
        LONG,
        "throughput HOST --dev packet:eth0 --ip 10.77.0.9/24 --set tcp.send_buffer=1K -t 1 -i 0.25",
    ),
    plant(
        "send-buffer-own-stack-longer",
        "send-buffer",
        LONG,
        "throughput HOST --dev packet:eth0 --ip 10.77.0.9/24 --set tcp.send_buffer=32K -t 2 -i 0.25",
    ),
    // A link that goes down and comes back.
    Plant {
        beside: &[(
            "server",
            "sleep 0.8; ip link set eth0 down; sleep 0.3; ip link set eth0 up; sleep 60",
        )],
        ..plant(
            "link-down-live",
            "link-down",
            PLAIN,
            "throughput HOST -u -b 50M -t 3 -i 0.25",
        )
    },
    Plant {
        beside: &[(
            "server",
            "sleep 0.8; ip link set eth0 down; sleep 0.5; ip link set eth0 up; sleep 60",
        )],
        ..plant(
            "link-down-tcp-live",
            "link-down",
            HOP,
            "throughput HOST -t 3 -i 0.25 -C cubic",
        )
    },
    // A real-time thread that never sleeps, with other threads that want to run.
    Plant {
        beside: &[
            ("server", "while :; do :; done"),
            ("client", "while :; do :; done"),
        ],
        calm: false,
        ..plant(
            "rt-throttle-live",
            "rt-throttle",
            PLAIN,
            "latency HOST -u -t 3 --wait spin --sched fifo:50",
        )
    },
];
