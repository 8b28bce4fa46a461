//! Checks of the network stack.

use std::io;

use linerate_metric::facts::Ability;

use super::inputs::Ground;
use super::{Answer, kernel_feature};
use crate::snapshot::{self, Offload, netlink};
use crate::sys::feature_probes;
use kernel_feature::Presence;

const CONGESTION_CONTROL: &str = "net.ipv4.tcp_congestion_control";
const ALLOWED_CONTROLS: &str = "net.ipv4.tcp_allowed_congestion_control";
const DEFAULT_QDISC: &str = "net.core.default_qdisc";

pub(super) fn congestion_control(ground: &Ground) -> Answer {
    let Some(control) = ground.setting(CONGESTION_CONTROL) else {
        return Answer::unknown(format!("{CONGESTION_CONTROL} is unreadable"));
    };
    let qdisc = ground.setting(DEFAULT_QDISC);
    // Without fq, TCP paces every segment by a timer of its own: on veth, bbr then reaches a third
    // of cubic's throughput, and spurious retransmissions look like loss.
    if !control.starts_with("bbr") || qdisc.as_deref() == Some("fq") {
        return Answer::ok(control);
    }
    let qdisc = qdisc.map_or("default qdisc unknown".to_owned(), |name| {
        format!("the default qdisc is {name}")
    });
    let answer = Answer::limited(format!(
        "{control} without fq ({qdisc}): pacing by TCP timers costs up to two thirds of the throughput on veth"
    ));
    let mut ways = Vec::new();
    let cubic = ground
        .setting(ALLOWED_CONTROLS)
        .is_some_and(|allowed| allowed.split(' ').any(|name| name == "cubic"));
    if cubic || ground.capabilities.has("net_admin") {
        ways.push("`-C cubic`");
    }
    ways.push("`sudo sysctl -w net.ipv4.tcp_congestion_control=cubic`");
    if kernel_feature::FQ.presence(ground) != Presence::Absent {
        ways.push("`sudo tc qdisc replace dev IF root fq`");
    }
    answer.enable(ways.join(" or "))
}

pub(super) fn allowed_congestion_controls(ground: &Ground) -> Answer {
    const AVAILABLE: &str = "net.ipv4.tcp_available_congestion_control";
    let Some(allowed) = ground.setting(ALLOWED_CONTROLS) else {
        return Answer::unknown(format!("{ALLOWED_CONTROLS} is unreadable"));
    };
    let available = ground.setting(AVAILABLE).unwrap_or_else(|| allowed.clone());
    let withheld: Vec<&str> = available
        .split(' ')
        .filter(|name| !allowed.split(' ').any(|other| other == *name))
        .collect();
    if withheld.is_empty() {
        return Answer::ok(allowed);
    }
    if ground.capabilities.has("net_admin") {
        return Answer::ok(format!("{allowed}; {} for root only", withheld.join(" ")));
    }
    Answer::limited(format!("{allowed}; not {}", withheld.join(" "))).enable(format!(
        "`sudo sysctl -w {ALLOWED_CONTROLS}=\"{available}\"`"
    ))
}

pub(super) fn default_qdisc(ground: &Ground) -> Answer {
    let fq = kernel_feature::FQ.presence(ground);
    match (ground.setting(DEFAULT_QDISC), fq) {
        (Some(qdisc), Presence::Absent) => Answer::limited(format!(
            "{qdisc}; the kernel lacks fq, which paces precisely"
        ))
        .enable("a kernel with CONFIG_NET_SCH_FQ"),
        (Some(qdisc), _) => Answer::ok(qdisc),
        (None, _) => Answer::unknown(format!(
            "{DEFAULT_QDISC} is unreadable (visible in the initial network namespace only)"
        )),
    }
}

/// Offloads without which throughput falls by factors: `ethtool -K` option and full name.
const NEEDED: &[(&str, &str)] = &[
    ("tso", "tcp-segmentation-offload"),
    ("gso", "generic-segmentation-offload"),
    ("gro", "generic-receive-offload"),
];

pub(super) fn offloads(_: &Ground) -> Answer {
    let Ok(links) = netlink::links() else {
        return Answer::unknown("the kernel does not list its interfaces");
    };
    let interfaces: Vec<(String, Vec<Offload>)> = links
        .into_iter()
        .filter(|link| link.up && !link.loopback)
        .map(|link| {
            let offloads = snapshot::offloads(&link.name);
            (link.name, offloads)
        })
        .collect();
    offloads_of(&interfaces)
}

fn offloads_of(interfaces: &[(String, Vec<Offload>)]) -> Answer {
    let (mut whole, mut silent) = (Vec::new(), Vec::new());
    let (mut found, mut enable) = (Vec::new(), Vec::new());
    for (name, offloads) in interfaces {
        let state = |full: &str| offloads.iter().find(|offload| offload.name == full);
        let off: Vec<(&str, bool)> = NEEDED
            .iter()
            .filter_map(|(short, full)| {
                let offload = state(full)?;
                (!offload.on).then_some((*short, offload.changeable))
            })
            .collect();
        if offloads.is_empty() {
            silent.push(name.as_str());
        } else if off.is_empty() {
            whole.push(name.as_str());
        } else {
            let texts: Vec<String> = off
                .iter()
                .map(|(short, changeable)| match changeable {
                    true => format!("{short} off"),
                    false => format!("no {short}"),
                })
                .collect();
            found.push(format!("{name}: {}", texts.join(", ")));
            let switches: Vec<String> = off
                .iter()
                .filter(|(_, changeable)| *changeable)
                .map(|(short, _)| format!("{short} on"))
                .collect();
            if !switches.is_empty() {
                enable.push(format!("`sudo ethtool -K {name} {}`", switches.join(" ")));
            }
        }
    }
    let ability = match (found.is_empty(), whole.is_empty(), silent.is_empty()) {
        (false, _, _) => Ability::Limited,
        (true, true, false) => Ability::Unknown,
        (true, _, _) => Ability::Ok,
    };
    if !whole.is_empty() {
        found.push(format!("{}: tso, gso and gro on", whole.join(", ")));
    }
    if !silent.is_empty() {
        found.push(format!("{}: offloads unknown", silent.join(", ")));
    }
    if found.is_empty() {
        found.push("no interface is up except loopback".to_owned());
    }
    Answer {
        ability,
        found: found.join("; "),
        enable: (!enable.is_empty()).then(|| enable.join(" and ")),
    }
}

pub(super) fn socket_buffers(ground: &Ground) -> Answer {
    // Bandwidth-delay product of 10 Gb/s and 3 ms; also the default of recent kernels.
    const ENOUGH: i64 = 4 << 20;
    const SETTINGS: [&str; 2] = ["net.core.rmem_max", "net.core.wmem_max"];
    let values = SETTINGS.map(|name| ground.number(name));
    let [Some(receive), Some(send)] = values else {
        return Answer::unknown(
            "net.core.rmem_max and net.core.wmem_max are unreadable (visible in the initial network namespace only)",
        );
    };
    let found = format!("receive up to {receive} B, send up to {send} B");
    let small: Vec<String> = SETTINGS
        .iter()
        .zip([receive, send])
        .filter(|(_, value)| *value < ENOUGH)
        .map(|(name, _)| format!("{name}=16777216"))
        .collect();
    if small.is_empty() {
        return Answer::ok(found);
    }
    Answer::limited(found).enable(format!("`sudo sysctl -w {}`", small.join(" ")))
}

pub(super) fn af_xdp(ground: &Ground) -> Answer {
    af_xdp_of(ground, feature_probes::af_xdp())
}

fn af_xdp_of(ground: &Ground, outcome: io::Result<()>) -> Answer {
    const NEEDED: [&str; 3] = ["net_raw", "net_admin", "bpf"];
    let lacking: Vec<&str> = NEEDED
        .into_iter()
        .filter(|name| !ground.capabilities.has(name))
        .collect();
    let number = outcome.as_ref().err().and_then(io::Error::raw_os_error);
    match (outcome, number) {
        (Ok(()), _) if lacking.is_empty() => Answer::ok("sockets can be created"),
        (Ok(()), _) => {
            Answer::limited("sockets can be created, but no XDP program can be attached")
                .enable(ground.capabilities.grant(&lacking))
        }
        (Err(_), Some(libc::EAFNOSUPPORT)) => {
            Answer::missing("not in this kernel").enable("a kernel with CONFIG_XDP_SOCKETS")
        }
        (Err(_), Some(libc::EPERM | libc::EACCES)) => {
            Answer::missing("needs capabilities").enable(ground.capabilities.grant(&lacking))
        }
        (Err(error), _) => Answer::unknown(format!("could not be tested: {error}")),
    }
}

pub(super) fn netem(ground: &Ground) -> Answer {
    match kernel_feature::NETEM.presence(ground) {
        Presence::Ready => {
            Answer::ok("in the kernel: lab links support delay, loss and reordering")
        }
        Presence::Loadable => Answer::ok("kernel module, loaded on first use"),
        Presence::Absent => {
            Answer::missing("not in this kernel: lab links cannot delay, lose or reorder").enable(
                "the package with sch_netem (Fedora, RHEL: kernel-modules-extra), or a kernel with CONFIG_NET_SCH_NETEM",
            )
        }
        Presence::Unknown => {
            Answer::unknown("presence in the kernel is unknown: try a lab link with a delay")
        }
    }
}

pub(super) fn tun(ground: &Ground) -> Answer {
    const DEVICE: &str = "/dev/net/tun";
    let files = &ground.files;
    let registered = files.text("/proc/misc").is_some_and(|text| {
        text.lines()
            .any(|line| line.split_whitespace().nth(1) == Some("tun"))
    });
    let here = files.exists(DEVICE);
    if !registered {
        // Opening the device would load the module, and checks change nothing.
        return match (kernel_feature::TUN.presence(ground), here) {
            (Presence::Loadable, true) => {
                Answer::ok(format!("{DEVICE}, kernel module loaded on first use"))
            }
            (Presence::Loadable | Presence::Ready, false) => no_tun_device(DEVICE),
            (Presence::Absent, _) => {
                Answer::missing("not in this kernel").enable("a kernel with CONFIG_TUN")
            }
            _ => Answer::unknown(format!("unknown whether {DEVICE} works")),
        };
    }
    match std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(files.path(DEVICE))
    {
        Ok(_) if ground.capabilities.has("net_admin") => Answer::ok(DEVICE),
        Ok(_) => Answer::ok(format!(
            "{DEVICE}; creating an interface needs net_admin, as in a lab"
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => no_tun_device(DEVICE),
        Err(error) => Answer::missing(format!("{DEVICE}: {error}")).enable(format!(
            "`sudo chmod a+rw {DEVICE}`; in a container `--device {DEVICE}`"
        )),
    }
}

fn no_tun_device(device: &str) -> Answer {
    Answer::missing(format!("supported by the kernel, but {device} does not exist")).enable(format!(
        "`sudo mkdir -p /dev/net && sudo mknod -m 666 {device} c 10 200`; in a container `--device {device}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tree;

    const CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
    const QDISC: &str = "/proc/sys/net/core/default_qdisc";

    #[test]
    fn bbr_wants_fq() {
        let table: [(&[(&str, &str)], Ability); 5] = [
            (&[(CONTROL, "cubic"), (QDISC, "pfifo_fast")], Ability::Ok),
            (&[(CONTROL, "bbr"), (QDISC, "fq")], Ability::Ok),
            (&[(CONTROL, "bbr"), (QDISC, "fq_codel")], Ability::Limited),
            (&[(CONTROL, "bbr")], Ability::Limited),
            (&[], Ability::Unknown),
        ];
        for (layout, ability) in table {
            let (_directory, files) = tree(layout);
            let answer = congestion_control(&Ground::on(files));
            assert_eq!(answer.ability, ability, "{layout:?} {answer:?}");
        }
    }

    #[test]
    fn withheld_congestion_controls_are_named() {
        let settings = [
            ("/proc/sys/net/ipv4/tcp_allowed_congestion_control", "reno"),
            (
                "/proc/sys/net/ipv4/tcp_available_congestion_control",
                "reno cubic bbr",
            ),
        ];
        let (_directory, files) = tree(&settings);
        let answer = allowed_congestion_controls(&Ground::on(files));
        assert_eq!(answer.ability, Ability::Limited);
        assert!(answer.found.ends_with("not cubic bbr"), "{}", answer.found);
        let root = [
            settings[0],
            settings[1],
            ("/proc/thread-self/status", "CapEff:\t000001ffffffffff\n"),
        ];
        let (_directory, files) = tree(&root);
        assert_eq!(
            allowed_congestion_controls(&Ground::on(files)).ability,
            Ability::Ok
        );
    }

    #[test]
    fn offloads_that_are_off_are_named_with_their_switch() {
        let interface = |name: &str, states: &[(&'static str, bool, bool)]| {
            let offloads = states.iter().map(|&(name, on, changeable)| Offload {
                name,
                on,
                changeable,
            });
            (name.to_owned(), offloads.collect::<Vec<_>>())
        };
        let eth0 = interface(
            "eth0",
            &[
                ("tcp-segmentation-offload", true, true),
                ("generic-segmentation-offload", true, true),
                ("generic-receive-offload", true, true),
            ],
        );
        let eth1 = interface(
            "eth1",
            &[
                ("tcp-segmentation-offload", false, false),
                ("generic-segmentation-offload", false, true),
                ("generic-receive-offload", true, true),
            ],
        );
        let wg0 = interface("wg0", &[]);
        let answer = offloads_of(&[eth0.clone(), eth1, wg0.clone()]);
        assert_eq!(
            answer,
            Answer::limited(
                "eth1: no tso, gso off; eth0: tso, gso and gro on; wg0: offloads unknown"
            )
            .enable("`sudo ethtool -K eth1 gso on`")
        );
        assert_eq!(offloads_of(&[eth0]).ability, Ability::Ok);
        assert_eq!(offloads_of(&[wg0]).ability, Ability::Unknown);
        assert_eq!(
            offloads_of(&[]),
            Answer::ok("no interface is up except loopback")
        );
    }

    #[test]
    fn small_buffers_say_what_to_set() {
        const RECEIVE: &str = "/proc/sys/net/core/rmem_max";
        const SEND: &str = "/proc/sys/net/core/wmem_max";
        let (_directory, files) = tree(&[(RECEIVE, "212992"), (SEND, "16777216")]);
        assert_eq!(
            socket_buffers(&Ground::on(files)),
            Answer::limited("receive up to 212992 B, send up to 16777216 B")
                .enable("`sudo sysctl -w net.core.rmem_max=16777216`")
        );
        let (_directory, files) = tree(&[(RECEIVE, "4194304"), (SEND, "4194304")]);
        assert_eq!(socket_buffers(&Ground::on(files)).ability, Ability::Ok);
        let (_directory, files) = tree(&[]);
        assert_eq!(socket_buffers(&Ground::on(files)).ability, Ability::Unknown);
    }

    #[test]
    fn af_xdp_needs_more_than_its_socket() {
        let status = |text| vec![("/proc/thread-self/status", text)];
        let (root, user) = (
            status("CapEff:\t000001ffffffffff\n"),
            status("CapEff:\t0\n"),
        );
        let error = |number| Err(io::Error::from_raw_os_error(number));
        let table = [
            (&root, Ok(()), Ability::Ok),
            (&user, Ok(()), Ability::Limited),
            (&user, error(libc::EPERM), Ability::Missing),
            (&root, error(libc::EAFNOSUPPORT), Ability::Missing),
            (&root, error(libc::EMFILE), Ability::Unknown),
        ];
        for (row, (layout, outcome, ability)) in table.into_iter().enumerate() {
            let (_directory, files) = tree(layout);
            assert_eq!(
                af_xdp_of(&Ground::on(files), outcome).ability,
                ability,
                "row {row}"
            );
        }
    }

    #[test]
    fn tun_is_opened_only_where_that_loads_nothing() {
        let table: [(&[(&str, &str)], Ability); 4] = [
            (
                &[("/proc/misc", "200 tun\n"), ("/dev/net/tun", "")],
                Ability::Ok,
            ),
            (&[("/proc/misc", "200 tun\n")], Ability::Missing),
            (
                &[
                    ("/proc/misc", "229 fuse\n"),
                    ("/proc/kallsyms", "0 t other\n"),
                    ("/proc/self/stat", "1"),
                ],
                Ability::Missing,
            ),
            (&[("/dev/net/tun", "")], Ability::Unknown),
        ];
        for (layout, ability) in table {
            let (_directory, files) = tree(layout);
            let answer = tun(&Ground::on(files));
            assert_eq!(answer.ability, ability, "{layout:?} {answer:?}");
        }
    }
}
