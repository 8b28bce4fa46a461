//! Table of the built-in knobs.

use super::{DEFAULT, Ground, Knob, Set};
use crate::guard::Kind;

/// Entry of the table: target of the knob and its values in a given context; no values if it does
/// not apply.
struct Line {
    name: &'static str,
    ordered: bool,
    /// True if a value may be rejected.
    uncertain: bool,
    set: Turned,
    values: fn(&Ground) -> Vec<String>,
}

/// [`Set`] in a form that a constant can hold.
enum Turned {
    Option(&'static str),
    StackKey(&'static str),
    Sysctl(&'static str),
    Interfaces(Kind),
    Far(&'static str),
}

impl Turned {
    fn set(&self) -> Set {
        match self {
            Self::Option(name) => Set::Option((*name).to_owned()),
            Self::StackKey(name) => Set::StackKey((*name).to_owned()),
            Self::Sysctl(name) => Set::Host {
                kind: Kind::Sysctl,
                name: (*name).to_owned(),
            },
            Self::Interfaces(kind) => Set::Host {
                kind: *kind,
                name: String::new(),
            },
            Self::Far(name) => Set::Far((*name).to_owned()),
        }
    }
}

fn list(values: &[&str]) -> Vec<String> {
    values.iter().map(|&value| value.to_owned()).collect()
}

fn when(holds: bool, values: &[&str]) -> Vec<String> {
    if holds { list(values) } else { Vec::new() }
}

fn bulk(ground: &Ground) -> bool {
    !ground.latency && !ground.own_stack
}

fn bulk_tcp(ground: &Ground) -> bool {
    bulk(ground) && !ground.udp
}

/// CPU mask in hexadecimal, as `rps_cpus` and `xps_cpus` take it.
fn masks(ground: &Ground) -> Vec<String> {
    let all = ground.processors.iter().filter(|&&cpu| cpu < 32);
    let mask = all.fold(0_u32, |mask, cpu| mask | 1 << cpu);
    when(
        ground.links && ground.processors.len() > 1,
        &[&format!("{mask:x}")],
    )
}

const fn option(name: &'static str, ordered: bool, values: fn(&Ground) -> Vec<String>) -> Line {
    Line {
        name,
        ordered,
        uncertain: false,
        set: Turned::Option(name),
        values,
    }
}

const fn called(name: &'static str, line: Line) -> Line {
    Line { name, ..line }
}

const fn uncertain(line: Line) -> Line {
    Line {
        uncertain: true,
        ..line
    }
}

const fn stack(
    name: &'static str,
    key: &'static str,
    ordered: bool,
    values: fn(&Ground) -> Vec<String>,
) -> Line {
    Line {
        name,
        ordered,
        uncertain: false,
        set: Turned::StackKey(key),
        values,
    }
}

const fn host(name: &'static str, set: Turned, values: fn(&Ground) -> Vec<String>) -> Line {
    Line {
        name,
        ordered: true,
        uncertain: true,
        set,
        values,
    }
}

/// Built-in knobs in the order of `--knobs`: process options, the user-space stack, host settings,
/// the remote host.
const KNOBS: &[Line] = &[
    uncertain(option("congestion", false, |ground| {
        match ground.udp || ground.own_stack {
            true => Vec::new(),
            false => ground.congestion.clone(),
        }
    })),
    uncertain(option("wait", false, |ground| {
        match (ground.own_stack, ground.latency) {
            (true, _) => Vec::new(),
            (_, true) => list(&["block", "spin", "busy-poll", "epoll", "io-uring"]),
            (_, false) => list(&["block", "spin", "block/spin", "epoll", "io-uring"]),
        }
    })),
    called(
        "write-size",
        option("length", true, |ground| {
            let sizes = &["16K", "64K", "128K", "256K", "1M"];
            when(!ground.latency && !ground.udp, sizes)
        }),
    ),
    uncertain(option("cpu", false, |ground| {
        match ground.processors.as_slice() {
            &[first, second, ..] => vec![format!("{first}/{second}"), format!("{first}/{first}")],
            _ => Vec::new(),
        }
    })),
    option("sndbuf", true, |ground| {
        when(bulk(ground), &["16K", "64K", "256K", "1M", "4M"])
    }),
    option("rcvbuf", true, |ground| {
        when(bulk(ground), &["16K", "64K", "256K", "1M", "4M"])
    }),
    option("rcvlowat", true, |ground| {
        when(bulk_tcp(ground), &["64K", "256K"])
    }),
    called(
        "streams",
        option("parallel", true, |ground| when(bulk(ground), &["2", "4"])),
    ),
    // For TCP only the modes that send without a copy: received data must be read, so `trunc` is
    // left out.
    uncertain(option("offload", false, |ground| {
        match (bulk(ground), ground.udp) {
            (true, true) => list(&["gso,gro", "gso", "none"]),
            (true, false) => list(&["zerocopy", "sendfile", "splice"]),
            (false, _) => Vec::new(),
        }
    })),
    option("batch", true, |ground| {
        when(bulk(ground) && ground.udp, &["8", "32"])
    }),
    option("no-delay", false, |ground| {
        when(!ground.udp && !ground.own_stack, &["on"])
    }),
    uncertain(option("hold-latency", false, |_| list(&["on"]))),
    uncertain(option("sched", false, |_| list(&["nice:-20", "fifo:50"]))),
    stack("stack-sndbuf", "tcp.send_buffer", true, |ground| {
        let sizes = &["1K", "2K", "4K", "8K", "16K", "32K", "64K"];
        when(ground.own_stack && !ground.udp, sizes)
    }),
    stack("stack-rcvbuf", "tcp.receive_window", true, |ground| {
        let sizes = &["1K", "2K", "4K", "8K", "16K", "32K", "64K"];
        when(ground.own_stack && !ground.udp, sizes)
    }),
    stack("stack-queue", "udp.receive_queue", true, |ground| {
        when(
            ground.own_stack && ground.udp,
            &["1", "4", "16", "64", "255"],
        )
    }),
    stack("stack-rx", "rx_descriptors", true, |ground| {
        when(ground.own_stack, &["4", "8", "18", "32", "128"])
    }),
    stack("stack-tx", "tx_descriptors", true, |ground| {
        when(ground.own_stack, &["4", "8", "18", "32", "128"])
    }),
    stack("stack-nagle", "tcp.nagle", false, |ground| {
        when(ground.own_stack && !ground.udp, &["on", "off"])
    }),
    stack("stack-psh", "tcp.psh", false, |ground| {
        let when_asked = &["buffer-empty", "always"];
        when(ground.own_stack && !ground.udp, when_asked)
    }),
    stack("stack-delayed-ack", "tcp.delayed_ack", false, |ground| {
        when(ground.own_stack && !ground.udp, &["off", "10ms"])
    }),
    // 524280 is the kernel's maximum.
    host(
        "gso-size",
        Turned::Interfaces(Kind::SegmentSizes),
        |ground| {
            when(
                ground.links && bulk(ground),
                &["131072", "262144", "524280"],
            )
        },
    ),
    host("mtu", Turned::Interfaces(Kind::Mtu), |ground| {
        when(ground.links && bulk(ground), &["1500", "4000", "9000"])
    }),
    host("offloads", Turned::Interfaces(Kind::Offloads), |ground| {
        let (on, off) = (
            "tx=on sg=on tso=on gso=on gro=on",
            "tso=off gso=off gro=off",
        );
        when(ground.links && !ground.own_stack, &[on, off])
    }),
    host("rings", Turned::Interfaces(Kind::Rings), |ground| {
        when(
            ground.links,
            &["rx=256 tx=256", "rx=1024 tx=1024", "rx=4096 tx=4096"],
        )
    }),
    host(
        "coalescing",
        Turned::Interfaces(Kind::Coalescing),
        |ground| {
            let none = "rx-usecs=0 tx-usecs=0 adaptive-rx=off";
            let some = "rx-usecs=50 tx-usecs=50 adaptive-rx=off";
            when(ground.links, &[none, some, "adaptive-rx=on"])
        },
    ),
    host("rps", Turned::Interfaces(Kind::Rps), masks),
    host("xps", Turned::Interfaces(Kind::Xps), masks),
    host("tcp-rmem", Turned::Sysctl("net.ipv4.tcp_rmem"), |ground| {
        when(ground.hosts && bulk_tcp(ground), TCP_MEMORY)
    }),
    host("tcp-wmem", Turned::Sysctl("net.ipv4.tcp_wmem"), |ground| {
        when(ground.hosts && bulk_tcp(ground), TCP_MEMORY)
    }),
    host(
        "tcp-limit-output",
        Turned::Sysctl("net.ipv4.tcp_limit_output_bytes"),
        |ground| when(ground.hosts && bulk_tcp(ground), &["1048576", "16777216"]),
    ),
    host("rmem-max", Turned::Sysctl("net.core.rmem_max"), |ground| {
        when(ground.hosts && bulk(ground), LARGEST_BUFFERS)
    }),
    host("wmem-max", Turned::Sysctl("net.core.wmem_max"), |ground| {
        when(ground.hosts && bulk(ground), LARGEST_BUFFERS)
    }),
    host(
        "backlog",
        Turned::Sysctl("net.core.netdev_max_backlog"),
        |ground| when(ground.hosts && bulk(ground), &["4096", "16384"]),
    ),
    host(
        "busy-read",
        Turned::Sysctl("net.core.busy_read"),
        |ground| when(ground.hosts && ground.latency && !ground.own_stack, &["50"]),
    ),
    host("far-tcp-rmem", Turned::Far("net.ipv4.tcp_rmem"), |ground| {
        when(ground.far && !ground.latency && !ground.udp, TCP_MEMORY)
    }),
    host("far-tcp-wmem", Turned::Far("net.ipv4.tcp_wmem"), |ground| {
        when(ground.far && !ground.latency && !ground.udp, TCP_MEMORY)
    }),
    host("far-rmem-max", Turned::Far("net.core.rmem_max"), |ground| {
        when(ground.far && !ground.latency, LARGEST_BUFFERS)
    }),
    host("far-wmem-max", Turned::Far("net.core.wmem_max"), |ground| {
        when(ground.far && !ground.latency, LARGEST_BUFFERS)
    }),
];

/// Values for `net.ipv4.tcp_rmem` and `tcp_wmem`: minimum, default, maximum. The second numbers
/// hold 10 Gb/s over 0.1 and 1 ms.
const TCP_MEMORY: &[&str] = &["4096 131072 16777216", "4096 1048576 33554432"];

/// Values for `net.core.rmem_max` and `wmem_max`, bytes.
const LARGEST_BUFFERS: &[&str] = &["4194304", "33554432"];

/// Names of all built-in knobs.
#[must_use]
pub fn names() -> Vec<&'static str> {
    KNOBS.iter().map(|line| line.name).collect()
}

/// Target of the built-in knob `name`, in any context.
#[must_use]
pub fn set_of(name: &str) -> Option<Set> {
    let line = KNOBS.iter().find(|line| line.name == name)?;
    Some(line.set.set())
}

/// Built-in knobs that apply in `ground`, each with the start as its first value.
#[must_use]
pub fn knobs(ground: &Ground) -> Vec<Knob> {
    KNOBS
        .iter()
        .filter_map(|line| {
            let values = (line.values)(ground);
            (!values.is_empty()).then(|| Knob {
                name: line.name.to_owned(),
                values: std::iter::once(DEFAULT.to_owned()).chain(values).collect(),
                set: line.set.set(),
                ordered: line.ordered,
                uncertain: line.uncertain,
                memory: None,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_on(ground: &Ground) -> Vec<String> {
        knobs(ground).into_iter().map(|knob| knob.name).collect()
    }

    #[test]
    fn knobs_fit_the_ground() {
        let ground = Ground {
            processors: vec![0, 1],
            congestion: list(&["cubic"]),
            ..Ground::default()
        };
        let has = |ground: &Ground, name: &str| names_on(ground).contains(&name.to_owned());
        assert!(has(&ground, "write-size") && has(&ground, "congestion"));
        for name in ["gso-size", "rps", "tcp-rmem", "far-tcp-rmem", "stack-rx"] {
            assert!(!has(&ground, name), "{name}");
        }
        let trips = Ground {
            udp: true,
            latency: true,
            ..ground.clone()
        };
        assert!(has(&trips, "wait") && !has(&trips, "no-delay"));
        for ground in [&ground, &trips] {
            let wait = knobs(ground).into_iter().find(|knob| knob.name == "wait");
            let values = wait.unwrap().values;
            for way in ["block", "spin", "epoll", "io-uring"] {
                assert!(values.contains(&way.to_owned()), "{way}: {values:?}");
            }
        }
        let stack = Ground {
            own_stack: true,
            ..ground.clone()
        };
        assert!(has(&stack, "stack-sndbuf") && has(&stack, "write-size"));
        assert!(!has(&stack, "sndbuf") && !has(&stack, "wait"));
        let lab = Ground {
            hosts: true,
            links: true,
            far: true,
            ..ground
        };
        for name in [
            "gso-size",
            "mtu",
            "rps",
            "rings",
            "tcp-rmem",
            "far-tcp-rmem",
        ] {
            assert!(has(&lab, name), "{name}");
        }
        let rps = knobs(&lab).into_iter().find(|knob| knob.name == "rps");
        assert_eq!(rps.unwrap().values, [DEFAULT, "3"]);
    }

    #[test]
    fn every_knob_starts_as_it_is_and_has_a_name_of_its_own() {
        let lab = Ground {
            processors: vec![0, 1],
            hosts: true,
            links: true,
            far: true,
            ..Ground::default()
        };
        assert!(knobs(&lab).iter().all(|knob| knob.values[0] == DEFAULT));
        let mut all = names();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), names().len());
    }
}
