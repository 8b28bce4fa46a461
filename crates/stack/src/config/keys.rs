//! Table of configuration keys.

use std::time::Duration;

use linerate_record::plan::CpuList;

use super::value::{
    format_duration, format_keyword, format_switch, parse_duration_within, parse_keyword,
    parse_size, parse_switch,
};
use super::{ChecksumMode, CongestionAlgorithm, PshPolicy, StackConfig};
use crate::error::StackError;

/// Configuration key.
pub struct ConfigKey {
    /// Dotted name.
    pub name: &'static str,
    /// Meaning, in one line of help.
    pub description: &'static str,
    /// Accepted values, as errors and help show them.
    pub accepted_values: &'static str,
    format: fn(&StackConfig) -> String,
    parse: fn(&mut StackConfig, &str) -> Option<()>,
}

impl ConfigKey {
    pub(super) fn format(&self, config: &StackConfig) -> String {
        (self.format)(config)
    }

    pub(super) fn parse(&self, config: &mut StackConfig, value: &str) -> Result<(), StackError> {
        (self.parse)(config, value).ok_or_else(|| StackError::BadValue {
            key: self.name.to_owned(),
            value: value.to_owned(),
            accepted_values: self.accepted_values.to_owned(),
        })
    }
}

const CHECKSUM_MODES: &[(&str, ChecksumMode)] = &[
    ("software", ChecksumMode::Software),
    ("offload", ChecksumMode::Offload),
];
const PSH_POLICIES: &[(&str, PshPolicy)] = &[
    ("buffer-empty", PshPolicy::BufferEmpty),
    ("always", PshPolicy::Always),
    ("never", PshPolicy::Never),
];
const CONGESTION_CONTROLS: &[(&str, CongestionAlgorithm)] = &[
    ("none", CongestionAlgorithm::None),
    ("reno", CongestionAlgorithm::Reno),
    ("cubic", CongestionAlgorithm::Cubic),
];

/// Chosen from the table in `tests/it/probes.rs`.
const DEFAULT_TAIL_PROBE: Duration = Duration::from_millis(10);

const MICROSECOND: Duration = Duration::from_micros(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

macro_rules! number {
    ($name:literal, $about:literal, $takes:literal, $least:literal..=$most:literal, $($field:ident).+) => {
        ConfigKey {
            name: $name,
            description: $about,
            accepted_values: $takes,
            format: |config| config.$($field).+.to_string(),
            parse: |config, text| {
                config.$($field).+ = parse_size(text, $least, $most)?.try_into().ok()?;
                Some(())
            },
        }
    };
}

macro_rules! switch {
    ($name:literal, $about:literal, $($field:ident).+) => {
        ConfigKey {
            name: $name,
            description: $about,
            accepted_values: "on or off",
            format: |config| format_switch(config.$($field).+),
            parse: |config, text| {
                config.$($field).+ = parse_switch(text)?;
                Some(())
            },
        }
    };
}

macro_rules! keyword {
    ($name:literal, $about:literal, $takes:literal, $words:ident, $($field:ident).+) => {
        ConfigKey {
            name: $name,
            description: $about,
            accepted_values: $takes,
            format: |config| format_keyword(config.$($field).+, $words),
            parse: |config, text| {
                config.$($field).+ = parse_keyword(text, $words)?;
                Some(())
            },
        }
    };
}

macro_rules! duration {
    ($name:literal, $about:literal, $takes:literal, $least:expr, $most:expr, $($field:ident).+) => {
        ConfigKey {
            name: $name,
            description: $about,
            accepted_values: $takes,
            format: |config| format_duration(config.$($field).+),
            parse: |config, text| {
                config.$($field).+ = parse_duration_within(text, $least, $most)?;
                Some(())
            },
        }
    };
}

macro_rules! optional_duration {
    ($name:literal, $about:literal, $takes:literal, $without:literal, $least:expr, $most:expr, $($field:ident).+) => {
        ConfigKey {
            name: $name,
            description: $about,
            accepted_values: $takes,
            format: |config| config.$($field).+.map_or_else(|| $without.to_owned(), format_duration),
            parse: |config, text| {
                config.$($field).+ = match text {
                    $without => None,
                    _ => Some(parse_duration_within(text, $least, $most)?),
                };
                Some(())
            },
        }
    };
}

macro_rules! parsed {
    ($name:literal, $about:literal, $takes:literal, $($field:ident).+) => {
        ConfigKey {
            name: $name,
            description: $about,
            accepted_values: $takes,
            format: |config| config.$($field).+.to_string(),
            parse: |config, text| {
                config.$($field).+ = text.parse().ok()?;
                Some(())
            },
        }
    };
}

macro_rules! cpus {
    ($name:literal, $about:literal, $($field:ident).+) => {
        ConfigKey {
            name: $name,
            description: $about,
            accepted_values: "any, or CPU numbers such as 0 or 0-3",
            format: |config| config.$($field).+.to_string(),
            parse: |config, text| {
                config.$($field).+ = match text {
                    "any" => CpuList::default(),
                    _ => text.parse().ok()?,
                };
                Some(())
            },
        }
    };
}

/// Configuration keys, in the order of help and records.
pub const KEYS: &[ConfigKey] = &[
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
    keyword!(
        "checksum",
        "where checksums are computed: by the stack, or offloaded to the port",
        "software or offload",
        CHECKSUM_MODES,
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
    optional_duration!(
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
    keyword!(
        "tcp.psh",
        "when the PSH flag is set",
        "buffer-empty, always or never",
        PSH_POLICIES,
        tcp.psh
    ),
    keyword!(
        "tcp.congestion_control",
        "congestion control",
        "none, reno or cubic",
        CONGESTION_CONTROLS,
        tcp.congestion_control
    ),
    duration!(
        "tcp.min_rto",
        "minimum retransmission timeout",
        "1ms to 1s",
        MILLISECOND,
        SECOND,
        tcp.min_rto
    ),
    ConfigKey {
        name: "tcp.tail_probe",
        description: "tail loss probe: time after two round trips without an acknowledgement",
        accepted_values: "off, on (10ms), or 1us to 1s",
        format: |config| match config.tcp.tail_probe {
            None => "off".to_owned(),
            Some(DEFAULT_TAIL_PROBE) => "on".to_owned(),
            Some(slack) => format_duration(slack),
        },
        parse: |config, text| {
            config.tcp.tail_probe = match text {
                "off" => None,
                "on" => Some(DEFAULT_TAIL_PROBE),
                _ => Some(parse_duration_within(text, MICROSECOND, SECOND)?),
            };
            Some(())
        },
    },
    // The lower bound is that of Linux's TCP_MAXSEG; the upper one is a packet of 64 KiB.
    ConfigKey {
        name: "tcp.mss",
        description: "maximum segment size, for sending and receiving",
        accepted_values: "mtu (derived from the MTU), or 88 to 65495 bytes",
        format: |config| {
            let mss = config.tcp.mss;
            mss.map_or_else(|| "mtu".to_owned(), |bytes| bytes.to_string())
        },
        parse: |config, text| {
            config.tcp.mss = match text {
                "mtu" => None,
                _ => Some(parse_size(text, 88, 65_495)?.try_into().ok()?),
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
    duration!(
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
    optional_duration!(
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
