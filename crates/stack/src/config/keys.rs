//! Table of configuration keys.

use std::time::Duration;

use linerate_metric::plan::Cpus;

use super::value::{size, span, span_text, switch, switch_text, word, word_of};
use super::{Checksum, Config, CongestionControl, Psh};
use crate::error::StackError;

/// Configuration key.
pub struct Key {
    /// Dotted name.
    pub name: &'static str,
    /// Meaning, in one line of help.
    pub about: &'static str,
    /// Accepted values, as errors and help show them.
    pub takes: &'static str,
    read: fn(&Config) -> String,
    write: fn(&mut Config, &str) -> Option<()>,
}

impl Key {
    pub(super) fn read(&self, config: &Config) -> String {
        (self.read)(config)
    }

    pub(super) fn write(&self, config: &mut Config, value: &str) -> Result<(), StackError> {
        (self.write)(config, value).ok_or_else(|| StackError::BadValue {
            key: self.name.to_owned(),
            value: value.to_owned(),
            wanted: self.takes.to_owned(),
        })
    }
}

const CHECKSUMS: &[(&str, Checksum)] = &[
    ("software", Checksum::Software),
    ("offload", Checksum::Offload),
];
const PSHS: &[(&str, Psh)] = &[
    ("buffer-empty", Psh::BufferEmpty),
    ("always", Psh::Always),
    ("never", Psh::Never),
];
const CONTROLS: &[(&str, CongestionControl)] = &[
    ("none", CongestionControl::None),
    ("reno", CongestionControl::Reno),
    ("cubic", CongestionControl::Cubic),
];

/// Chosen from the table in `tests/probes.rs`.
const PROBE_SLACK: Duration = Duration::from_millis(10);

const MICROSECOND: Duration = Duration::from_micros(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

macro_rules! number {
    ($name:literal, $about:literal, $takes:literal, $least:literal..=$most:literal, $($field:ident).+) => {
        Key {
            name: $name,
            about: $about,
            takes: $takes,
            read: |config| config.$($field).+.to_string(),
            write: |config, text| {
                config.$($field).+ = size(text, $least, $most)?.try_into().ok()?;
                Some(())
            },
        }
    };
}

macro_rules! switch {
    ($name:literal, $about:literal, $($field:ident).+) => {
        Key {
            name: $name,
            about: $about,
            takes: "on or off",
            read: |config| switch_text(config.$($field).+),
            write: |config, text| {
                config.$($field).+ = switch(text)?;
                Some(())
            },
        }
    };
}

macro_rules! word {
    ($name:literal, $about:literal, $takes:literal, $words:ident, $($field:ident).+) => {
        Key {
            name: $name,
            about: $about,
            takes: $takes,
            read: |config| word_of(config.$($field).+, $words),
            write: |config, text| {
                config.$($field).+ = word(text, $words)?;
                Some(())
            },
        }
    };
}

macro_rules! span {
    ($name:literal, $about:literal, $takes:literal, $least:expr, $most:expr, $($field:ident).+) => {
        Key {
            name: $name,
            about: $about,
            takes: $takes,
            read: |config| span_text(config.$($field).+),
            write: |config, text| {
                config.$($field).+ = span(text, $least, $most)?;
                Some(())
            },
        }
    };
}

macro_rules! optional_span {
    ($name:literal, $about:literal, $takes:literal, $without:literal, $least:expr, $most:expr, $($field:ident).+) => {
        Key {
            name: $name,
            about: $about,
            takes: $takes,
            read: |config| config.$($field).+.map_or_else(|| $without.to_owned(), span_text),
            write: |config, text| {
                config.$($field).+ = match text {
                    $without => None,
                    _ => Some(span(text, $least, $most)?),
                };
                Some(())
            },
        }
    };
}

macro_rules! parsed {
    ($name:literal, $about:literal, $takes:literal, $($field:ident).+) => {
        Key {
            name: $name,
            about: $about,
            takes: $takes,
            read: |config| config.$($field).+.to_string(),
            write: |config, text| {
                config.$($field).+ = text.parse().ok()?;
                Some(())
            },
        }
    };
}

macro_rules! cpus {
    ($name:literal, $about:literal, $($field:ident).+) => {
        Key {
            name: $name,
            about: $about,
            takes: "any, or CPU numbers such as 0 or 0-3",
            read: |config| config.$($field).+.to_string(),
            write: |config, text| {
                config.$($field).+ = match text {
                    "any" => Cpus::default(),
                    _ => text.parse().ok()?,
                };
                Some(())
            },
        }
    };
}

/// Configuration keys, in the order of help and records.
pub const KEYS: &[Key] = &[
    number!(
        "rx_descriptors",
        "maximum frames received by one poll; receive descriptors",
        "1 to 65536",
        1..=65_536,
        rx_descriptors
    ),
    number!(
        "tx_descriptors",
        "maximum frames sent by one poll; transmit descriptors",
        "1 to 65536",
        1..=65_536,
        tx_descriptors
    ),
    // RFC 791: every host accepts 576 bytes; the upper bound is that of a port's URL.
    number!(
        "mtu",
        "largest IP packet in a frame, in bytes",
        "576 to 65500 bytes",
        576..=65_500,
        mtu
    ),
    word!(
        "checksum",
        "where checksums are computed: by the stack, or offloaded to the port",
        "software or offload",
        CHECKSUMS,
        checksum
    ),
    // smoltcp's windows end at 1 GiB (RFC 7323).
    number!(
        "tcp.send_buffer",
        "send buffer of a connection, in bytes: queued and unacknowledged",
        "256 B to 1G",
        256..=0x4000_0000,
        tcp.send_buffer
    ),
    number!(
        "tcp.receive_window",
        "receive buffer of a connection, in bytes",
        "256 B to 1G",
        256..=0x4000_0000,
        tcp.receive_window
    ),
    optional_span!(
        "tcp.delayed_ack",
        "time that an acknowledgement may be delayed",
        "off, or 1us to 1s",
        "off",
        MICROSECOND,
        SECOND,
        tcp.delayed_ack
    ),
    switch!(
        "tcp.nagle",
        "Nagle's algorithm: hold a small segment while another is unacknowledged",
        tcp.nagle
    ),
    word!(
        "tcp.psh",
        "when the PSH flag is set",
        "buffer-empty, always or never",
        PSHS,
        tcp.psh
    ),
    word!(
        "tcp.congestion_control",
        "congestion control",
        "none, reno or cubic",
        CONTROLS,
        tcp.congestion_control
    ),
    span!(
        "tcp.min_rto",
        "minimum retransmission timeout",
        "1ms to 1s",
        MILLISECOND,
        SECOND,
        tcp.min_rto
    ),
    Key {
        name: "tcp.tail_probe",
        about: "tail loss probe: time after two round trips without an acknowledgement",
        takes: "off, on (10ms), or 1us to 1s",
        read: |config| match config.tcp.tail_probe {
            None => "off".to_owned(),
            Some(PROBE_SLACK) => "on".to_owned(),
            Some(slack) => span_text(slack),
        },
        write: |config, text| {
            config.tcp.tail_probe = match text {
                "off" => None,
                "on" => Some(PROBE_SLACK),
                _ => Some(span(text, MICROSECOND, SECOND)?),
            };
            Some(())
        },
    },
    // The lower bound is that of Linux's TCP_MAXSEG; the upper one is a packet of 64 KiB.
    Key {
        name: "tcp.mss",
        about: "maximum segment size, for sending and receiving",
        takes: "mtu (derived from the MTU), or 88 to 65495 bytes",
        read: |config| {
            let mss = config.tcp.mss;
            mss.map_or_else(|| "mtu".to_owned(), |bytes| bytes.to_string())
        },
        write: |config, text| {
            config.tcp.mss = match text {
                "mtu" => None,
                _ => Some(size(text, 88, 65_495)?.try_into().ok()?),
            };
            Some(())
        },
    },
    number!(
        "udp.receive_queue",
        "receive queue of a socket, in packets",
        "1 to 65536",
        1..=65_536,
        udp.receive_queue
    ),
    number!(
        "udp.buffers",
        "packets in all receive queues together",
        "1 to 1048576",
        1..=1_048_576,
        udp.buffers
    ),
    number!(
        "ip.tos",
        "type of service or traffic class of packets sent",
        "0 to 255",
        0..=255,
        ip.tos
    ),
    switch!(
        "ip.fragmentation",
        "send datagrams longer than the MTU in fragments",
        ip.fragmentation
    ),
    switch!(
        "ip.reassembly",
        "reassemble received fragments",
        ip.reassembly
    ),
    number!(
        "ip.reassembly_buffers.count",
        "datagrams in reassembly, or reassembled and not yet read",
        "1 to 4096",
        1..=4_096,
        ip.reassembly_count
    ),
    number!(
        "ip.reassembly_buffers.bytes",
        "longest reassembled datagram, without its IP header",
        "1480 to 65535 bytes",
        1_480..=65_535,
        ip.reassembly_bytes
    ),
    span!(
        "ip.reassembly_buffers.timeout",
        "time until an incomplete datagram is dropped",
        "1ms to 60s",
        MILLISECOND,
        MINUTE,
        ip.reassembly_timeout
    ),
    number!(
        "arp.cache",
        "capacity of the neighbour cache (ARP and neighbour discovery)",
        "1 to 65536",
        1..=65_536,
        arp_cache
    ),
    optional_span!(
        "poll.interval",
        "time from one poll to the next",
        "spin, or 1us to 1s",
        "spin",
        MICROSECOND,
        SECOND,
        poll_interval
    ),
    number!(
        "sockets.tcp",
        "maximum number of TCP connections",
        "1 to 65535",
        1..=65_535,
        tcp_sockets
    ),
    number!(
        "sockets.udp",
        "maximum number of UDP sockets",
        "1 to 65535",
        1..=65_535,
        udp_sockets
    ),
    number!(
        "threads.count",
        "1: one thread for driver and application; 2: one each, with a ring between them",
        "1 or 2",
        1..=2,
        threads
    ),
    parsed!(
        "threads.driver.sched",
        "scheduling of the driver thread (with threads.count=2)",
        "inherited, nice:-20 to nice:19, fifo:1 to fifo:99 or rr:1 to rr:99",
        driver.sched
    ),
    cpus!(
        "threads.driver.cpus",
        "CPUs of the driver thread",
        driver.cpus
    ),
    parsed!(
        "threads.application.sched",
        "scheduling of the application thread",
        "inherited, nice:-20 to nice:19, fifo:1 to fifo:99 or rr:1 to rr:99",
        application.sched
    ),
    cpus!(
        "threads.application.cpus",
        "CPUs of the application thread",
        application.cpus
    ),
];
