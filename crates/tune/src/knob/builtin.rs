//! Table of the built-in knobs.

use super::{DEFAULT_VALUE, Knob, KnobContext, KnobTarget};
use crate::guard::SettingKind;

/// Entry of the table: target of the knob and its values in a given context; no values if it does
/// not apply.
struct KnobDefinition {
    name: &'static str,
    ordered: bool,
    /// True if a value may be rejected.
    may_be_rejected: bool,
    target: StaticTarget,
    values: fn(&KnobContext) -> Vec<String>,
}

/// [`KnobTarget`] in a form that a constant can hold.
enum StaticTarget {
    Option(&'static str),
    StackKey(&'static str),
    Sysctl(&'static str),
    InterfaceSetting(SettingKind),
    RemoteSysctl(&'static str),
}

impl StaticTarget {
    fn to_target(&self) -> KnobTarget {
        match self {
            Self::Option(name) => KnobTarget::Option((*name).to_owned()),
            Self::StackKey(name) => KnobTarget::StackKey((*name).to_owned()),
            Self::Sysctl(name) => KnobTarget::HostSetting {
                kind: SettingKind::Sysctl,
                name: (*name).to_owned(),
            },
            Self::InterfaceSetting(kind) => KnobTarget::HostSetting {
                kind: *kind,
                name: String::new(),
            },
            Self::RemoteSysctl(name) => KnobTarget::RemoteSysctl((*name).to_owned()),
        }
    }
}

fn to_strings(values: &[&str]) -> Vec<String> {
    values.iter().map(|&value| value.to_owned()).collect()
}

fn values_if(condition: bool, values: &[&str]) -> Vec<String> {
    if condition {
        to_strings(values)
    } else {
        Vec::new()
    }
}

fn is_bulk(context: &KnobContext) -> bool {
    !context.is_latency && !context.uses_netstack
}

fn is_bulk_tcp(context: &KnobContext) -> bool {
    is_bulk(context) && !context.is_udp
}

/// CPU mask in hexadecimal, as `rps_cpus` and `xps_cpus` take it.
fn cpu_masks(context: &KnobContext) -> Vec<String> {
    let unique_names = context.cpus.iter().filter(|&&cpu| cpu < 32);
    let mask = unique_names.fold(0_u32, |mask, cpu| mask | 1 << cpu);
    values_if(
        context.link_settings && context.cpus.len() > 1,
        &[&format!("{mask:x}")],
    )
}

const fn option_knob(
    name: &'static str,
    ordered: bool,
    values: fn(&KnobContext) -> Vec<String>,
) -> KnobDefinition {
    KnobDefinition {
        name,
        ordered,
        may_be_rejected: false,
        target: StaticTarget::Option(name),
        values,
    }
}

const fn with_name(name: &'static str, knob: KnobDefinition) -> KnobDefinition {
    KnobDefinition { name, ..knob }
}

const fn rejectable(knob: KnobDefinition) -> KnobDefinition {
    KnobDefinition {
        may_be_rejected: true,
        ..knob
    }
}

const fn stack_knob(
    name: &'static str,
    key: &'static str,
    ordered: bool,
    values: fn(&KnobContext) -> Vec<String>,
) -> KnobDefinition {
    KnobDefinition {
        name,
        ordered,
        may_be_rejected: false,
        target: StaticTarget::StackKey(key),
        values,
    }
}

const fn host_knob(
    name: &'static str,
    target: StaticTarget,
    values: fn(&KnobContext) -> Vec<String>,
) -> KnobDefinition {
    KnobDefinition {
        name,
        ordered: true,
        may_be_rejected: true,
        target,
        values,
    }
}

/// Built-in knobs in the order of `--knobs`: process options, the user-space stack, host settings,
/// the remote host.
const BUILTIN_KNOBS: &[KnobDefinition] = &[
    rejectable(option_knob("congestion", false, |context| {
        match context.is_udp || context.uses_netstack {
            true => Vec::new(),
            false => context.congestion_controls.clone(),
        }
    })),
    rejectable(option_knob("wait", false, |context| {
        match (context.uses_netstack, context.is_latency) {
            (true, _) => Vec::new(),
            (_, true) => to_strings(&["block", "spin", "busy-poll", "epoll", "io-uring"]),
            (_, false) => to_strings(&["block", "spin", "block/spin", "epoll", "io-uring"]),
        }
    })),
    with_name(
        "write-size",
        option_knob("length", true, |context| {
            let sizes = &["16K", "64K", "128K", "256K", "1M"];
            values_if(!context.is_latency && !context.is_udp, sizes)
        }),
    ),
    // Not one CPU for both ends: on one machine they would take time from each other.
    rejectable(option_knob("cpu", false, |context| {
        match context.cpus.as_slice() {
            &[first, second, ..] => vec![format!("{first}/{second}"), format!("{second}/{first}")],
            _ => Vec::new(),
        }
    })),
    option_knob("sndbuf", true, |context| {
        values_if(is_bulk(context), &["16K", "64K", "256K", "1M", "4M"])
    }),
    option_knob("rcvbuf", true, |context| {
        values_if(is_bulk(context), &["16K", "64K", "256K", "1M", "4M"])
    }),
    option_knob("rcvlowat", true, |context| {
        values_if(is_bulk_tcp(context), &["64K", "256K"])
    }),
    with_name(
        "streams",
        option_knob("parallel", true, |context| {
            values_if(is_bulk(context), &["2", "4"])
        }),
    ),
    // For TCP only the modes that send without a copy: received data must be read, so `trunc` is
    // left out.
    rejectable(option_knob("offload", false, |context| {
        match (is_bulk(context), context.is_udp) {
            (true, true) => to_strings(&["gso,gro", "gso", "none"]),
            (true, false) => to_strings(&["zerocopy", "sendfile", "splice"]),
            (false, _) => Vec::new(),
        }
    })),
    option_knob("batch", true, |context| {
        values_if(is_bulk(context) && context.is_udp, &["8", "32"])
    }),
    option_knob("no-delay", false, |context| {
        values_if(!context.is_udp && !context.uses_netstack, &["on"])
    }),
    rejectable(option_knob("hold-latency", false, |_| to_strings(&["on"]))),
    rejectable(option_knob("sched", false, |_| {
        to_strings(&["nice:-20", "fifo:50"])
    })),
    stack_knob("stack-sndbuf", "tcp.send_buffer", true, |context| {
        let sizes = &["1K", "2K", "4K", "8K", "16K", "32K", "64K"];
        values_if(context.uses_netstack && !context.is_udp, sizes)
    }),
    stack_knob("stack-rcvbuf", "tcp.receive_window", true, |context| {
        let sizes = &["1K", "2K", "4K", "8K", "16K", "32K", "64K"];
        values_if(context.uses_netstack && !context.is_udp, sizes)
    }),
    stack_knob("stack-queue", "udp.receive_queue", true, |context| {
        values_if(
            context.uses_netstack && context.is_udp,
            &["1", "4", "16", "64", "255"],
        )
    }),
    stack_knob("stack-rx", "rx_descriptors", true, |context| {
        values_if(context.uses_netstack, &["4", "8", "18", "32", "128"])
    }),
    stack_knob("stack-tx", "tx_descriptors", true, |context| {
        values_if(context.uses_netstack, &["4", "8", "18", "32", "128"])
    }),
    stack_knob("stack-nagle", "tcp.nagle", false, |context| {
        values_if(context.uses_netstack && !context.is_udp, &["on", "off"])
    }),
    stack_knob("stack-psh", "tcp.psh", false, |context| {
        let opt_in = &["buffer-empty", "always"];
        values_if(context.uses_netstack && !context.is_udp, opt_in)
    }),
    stack_knob("stack-delayed-ack", "tcp.delayed_ack", false, |context| {
        values_if(context.uses_netstack && !context.is_udp, &["off", "10ms"])
    }),
    // 524280 is the kernel's maximum.
    host_knob(
        "gso-size",
        StaticTarget::InterfaceSetting(SettingKind::SegmentSizes),
        |context| {
            values_if(
                context.link_settings && is_bulk(context),
                &["131072", "262144", "524280"],
            )
        },
    ),
    host_knob(
        "mtu",
        StaticTarget::InterfaceSetting(SettingKind::Mtu),
        |context| {
            values_if(
                context.link_settings && is_bulk(context),
                &["1500", "4000", "9000"],
            )
        },
    ),
    host_knob(
        "offloads",
        StaticTarget::InterfaceSetting(SettingKind::Offloads),
        |context| {
            let (on, off) = (
                "tx=on sg=on tso=on gso=on gro=on",
                "tso=off gso=off gro=off",
            );
            values_if(context.link_settings && !context.uses_netstack, &[on, off])
        },
    ),
    host_knob(
        "rings",
        StaticTarget::InterfaceSetting(SettingKind::Rings),
        |context| {
            values_if(
                context.link_settings,
                &["rx=256 tx=256", "rx=1024 tx=1024", "rx=4096 tx=4096"],
            )
        },
    ),
    host_knob(
        "coalescing",
        StaticTarget::InterfaceSetting(SettingKind::Coalescing),
        |context| {
            let no_delay = "rx-usecs=0 tx-usecs=0 adaptive-rx=off";
            let moderate = "rx-usecs=50 tx-usecs=50 adaptive-rx=off";
            values_if(
                context.link_settings,
                &[no_delay, moderate, "adaptive-rx=on"],
            )
        },
    ),
    host_knob(
        "rps",
        StaticTarget::InterfaceSetting(SettingKind::Rps),
        cpu_masks,
    ),
    host_knob(
        "xps",
        StaticTarget::InterfaceSetting(SettingKind::Xps),
        cpu_masks,
    ),
    host_knob(
        "tcp-rmem",
        StaticTarget::Sysctl("net.ipv4.tcp_rmem"),
        |context| {
            values_if(
                context.host_settings && is_bulk_tcp(context),
                TCP_MEMORY_VALUES,
            )
        },
    ),
    host_knob(
        "tcp-wmem",
        StaticTarget::Sysctl("net.ipv4.tcp_wmem"),
        |context| {
            values_if(
                context.host_settings && is_bulk_tcp(context),
                TCP_MEMORY_VALUES,
            )
        },
    ),
    host_knob(
        "tcp-limit-output",
        StaticTarget::Sysctl("net.ipv4.tcp_limit_output_bytes"),
        |context| {
            values_if(
                context.host_settings && is_bulk_tcp(context),
                &["1048576", "16777216"],
            )
        },
    ),
    host_knob(
        "rmem-max",
        StaticTarget::Sysctl("net.core.rmem_max"),
        |context| values_if(context.host_settings && is_bulk(context), BUFFER_MAX_VALUES),
    ),
    host_knob(
        "wmem-max",
        StaticTarget::Sysctl("net.core.wmem_max"),
        |context| values_if(context.host_settings && is_bulk(context), BUFFER_MAX_VALUES),
    ),
    host_knob(
        "backlog",
        StaticTarget::Sysctl("net.core.netdev_max_backlog"),
        |context| {
            values_if(
                context.host_settings && is_bulk(context),
                &["4096", "16384"],
            )
        },
    ),
    host_knob(
        "busy-read",
        StaticTarget::Sysctl("net.core.busy_read"),
        |context| {
            values_if(
                context.host_settings && context.is_latency && !context.uses_netstack,
                &["50"],
            )
        },
    ),
    host_knob(
        "server-tcp-rmem",
        StaticTarget::RemoteSysctl("net.ipv4.tcp_rmem"),
        |context| {
            values_if(
                context.remote_settings && !context.is_latency && !context.is_udp,
                TCP_MEMORY_VALUES,
            )
        },
    ),
    host_knob(
        "server-tcp-wmem",
        StaticTarget::RemoteSysctl("net.ipv4.tcp_wmem"),
        |context| {
            values_if(
                context.remote_settings && !context.is_latency && !context.is_udp,
                TCP_MEMORY_VALUES,
            )
        },
    ),
    host_knob(
        "server-rmem-max",
        StaticTarget::RemoteSysctl("net.core.rmem_max"),
        |context| {
            values_if(
                context.remote_settings && !context.is_latency,
                BUFFER_MAX_VALUES,
            )
        },
    ),
    host_knob(
        "server-wmem-max",
        StaticTarget::RemoteSysctl("net.core.wmem_max"),
        |context| {
            values_if(
                context.remote_settings && !context.is_latency,
                BUFFER_MAX_VALUES,
            )
        },
    ),
];

/// Values for `net.ipv4.tcp_rmem` and `tcp_wmem`: minimum, default, maximum. The second numbers
/// hold 10 Gb/s over 0.1 and 1 ms.
const TCP_MEMORY_VALUES: &[&str] = &["4096 131072 16777216", "4096 1048576 33554432"];

/// Values for `net.core.rmem_max` and `wmem_max`, bytes.
const BUFFER_MAX_VALUES: &[&str] = &["4194304", "33554432"];

/// Names of all built-in knobs.
#[must_use]
pub fn knob_names() -> Vec<&'static str> {
    BUILTIN_KNOBS
        .iter()
        .map(|definition| definition.name)
        .collect()
}

/// Returns the present name of a knob: `server-rmem-max` was `far-rmem-max`.
#[must_use]
pub fn present_name(name: &str) -> String {
    let renamed = name
        .strip_prefix("far-")
        .map(|rest| format!("server-{rest}"));
    let renamed = renamed.filter(|renamed| knob_names().contains(&renamed.as_str()));
    renamed.unwrap_or_else(|| name.to_owned())
}

/// Target of the built-in knob `name`, in any context.
#[must_use]
pub fn target_of(name: &str) -> Option<KnobTarget> {
    let definition = BUILTIN_KNOBS
        .iter()
        .find(|definition| definition.name == name)?;
    Some(definition.target.to_target())
}

/// Built-in knobs that apply in `context`, each with the start as its first value.
#[must_use]
pub fn applicable_knobs(context: &KnobContext) -> Vec<Knob> {
    BUILTIN_KNOBS
        .iter()
        .filter_map(|definition| {
            let values = (definition.values)(context);
            (!values.is_empty()).then(|| Knob {
                name: definition.name.to_owned(),
                values: std::iter::once(DEFAULT_VALUE.to_owned())
                    .chain(values)
                    .collect(),
                target: definition.target.to_target(),
                ordered: definition.ordered,
                may_be_rejected: definition.may_be_rejected,
                bytes_per_unit: None,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(context: &KnobContext) -> Vec<String> {
        applicable_knobs(context)
            .into_iter()
            .map(|knob| knob.name)
            .collect()
    }

    #[test]
    fn knobs_fit_the_context() {
        let context = KnobContext {
            cpus: vec![0, 1],
            congestion_controls: to_strings(&["cubic"]),
            ..KnobContext::default()
        };
        let has = |context: &KnobContext, name: &str| names_in(context).contains(&name.to_owned());
        assert!(has(&context, "write-size") && has(&context, "congestion"));
        for name in ["gso-size", "rps", "tcp-rmem", "server-tcp-rmem", "stack-rx"] {
            assert!(!has(&context, name), "{name}");
        }
        let latency_context = KnobContext {
            is_udp: true,
            is_latency: true,
            ..context.clone()
        };
        assert!(has(&latency_context, "wait") && !has(&latency_context, "no-delay"));
        for context in [&context, &latency_context] {
            let wait = applicable_knobs(context)
                .into_iter()
                .find(|knob| knob.name == "wait");
            let values = wait.unwrap().values;
            for mode in ["block", "spin", "epoll", "io-uring"] {
                assert!(values.contains(&mode.to_owned()), "{mode}: {values:?}");
            }
        }
        let stack_context = KnobContext {
            uses_netstack: true,
            ..context.clone()
        };
        assert!(has(&stack_context, "stack-sndbuf") && has(&stack_context, "write-size"));
        assert!(!has(&stack_context, "sndbuf") && !has(&stack_context, "wait"));
        let lab_context = KnobContext {
            host_settings: true,
            link_settings: true,
            remote_settings: true,
            ..context
        };
        for name in [
            "gso-size",
            "mtu",
            "rps",
            "rings",
            "tcp-rmem",
            "server-tcp-rmem",
        ] {
            assert!(has(&lab_context, name), "{name}");
        }
        let rps = applicable_knobs(&lab_context)
            .into_iter()
            .find(|knob| knob.name == "rps");
        assert_eq!(rps.unwrap().values, [DEFAULT_VALUE, "3"]);
    }

    #[test]
    fn every_knob_starts_at_its_default_and_has_a_unique_name() {
        let lab_context = KnobContext {
            cpus: vec![0, 1],
            host_settings: true,
            link_settings: true,
            remote_settings: true,
            ..KnobContext::default()
        };
        assert!(
            applicable_knobs(&lab_context)
                .iter()
                .all(|knob| knob.values[0] == DEFAULT_VALUE)
        );
        let mut unique_names = knob_names();
        unique_names.sort_unstable();
        unique_names.dedup();
        assert_eq!(unique_names.len(), knob_names().len());
    }
}
