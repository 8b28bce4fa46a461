//! Checks of the network stack.

use std::io;

use linerate_record::facts::Support;
use linerate_sys::feature_probes;

use super::inputs::DoctorInputs;
use super::{CheckOutcome, kernel_feature};
use crate::doctor::kernel_feature::FeaturePresence;
use crate::netlink;
use crate::snapshot::{self, OffloadState};

const CONGESTION_CONTROL: &str = "net.ipv4.tcp_congestion_control";
const ALLOWED_CONTROLS: &str = "net.ipv4.tcp_allowed_congestion_control";
const DEFAULT_QDISC: &str = "net.core.default_qdisc";

pub(super) fn check_congestion_control(inputs: &DoctorInputs) -> CheckOutcome {
    let Some(control) = inputs.sysctl(CONGESTION_CONTROL) else {
        return CheckOutcome::unknown(format!("{CONGESTION_CONTROL} is unreadable"));
    };
    let qdisc = inputs.sysctl(DEFAULT_QDISC);
    // Without fq, TCP paces every segment by a timer of its own: on veth, bbr then reaches a third
    // of cubic's throughput, and spurious retransmissions look like loss.
    if !control.starts_with("bbr") || qdisc.as_deref() == Some("fq") {
        return CheckOutcome::ok(control);
    }
    let qdisc = qdisc.map_or("default qdisc unknown".to_owned(), |name| {
        format!("the default qdisc is {name}")
    });
    let result = CheckOutcome::limited(format!(
        "{control} without fq ({qdisc}): pacing by TCP timers costs up to two thirds of the throughput on veth"
    ));
    let mut commands = Vec::new();
    let cubic = inputs
        .sysctl(ALLOWED_CONTROLS)
        .is_some_and(|allowed| allowed.split(' ').any(|name| name == "cubic"));
    if cubic || inputs.capabilities.has("net_admin") {
        commands.push("`-C cubic`");
    }
    commands.push("`sudo sysctl -w net.ipv4.tcp_congestion_control=cubic`");
    if kernel_feature::FQ.detect(inputs) != FeaturePresence::Absent {
        commands.push("`sudo tc qdisc replace dev IF root fq`");
    }
    result.with_enable(commands.join(" or "))
}

pub(super) fn check_allowed_congestion_controls(inputs: &DoctorInputs) -> CheckOutcome {
    const AVAILABLE: &str = "net.ipv4.tcp_available_congestion_control";
    let Some(allowed) = inputs.sysctl(ALLOWED_CONTROLS) else {
        return CheckOutcome::unknown(format!("{ALLOWED_CONTROLS} is unreadable"));
    };
    let available = inputs.sysctl(AVAILABLE).unwrap_or_else(|| allowed.clone());
    let disallowed: Vec<&str> = available
        .split(' ')
        .filter(|name| !allowed.split(' ').any(|allowed_name| allowed_name == *name))
        .collect();
    if disallowed.is_empty() {
        return CheckOutcome::ok(allowed);
    }
    if inputs.capabilities.has("net_admin") {
        return CheckOutcome::ok(format!("{allowed}; {} for root only", disallowed.join(" ")));
    }
    CheckOutcome::limited(format!("{allowed}; not {}", disallowed.join(" "))).with_enable(format!(
        "`sudo sysctl -w {ALLOWED_CONTROLS}=\"{available}\"`"
    ))
}

pub(super) fn check_default_qdisc(inputs: &DoctorInputs) -> CheckOutcome {
    let fq = kernel_feature::FQ.detect(inputs);
    match (inputs.sysctl(DEFAULT_QDISC), fq) {
        (Some(qdisc), FeaturePresence::Absent) => CheckOutcome::limited(format!(
            "{qdisc}; the kernel lacks fq, which paces precisely"
        ))
        .with_enable("boot a kernel with CONFIG_NET_SCH_FQ"),
        (Some(qdisc), _) => CheckOutcome::ok(qdisc),
        (None, _) => CheckOutcome::unknown(format!(
            "{DEFAULT_QDISC} is unreadable (visible in the initial network namespace only)"
        )),
    }
}

/// Offloads without which throughput falls by factors: `ethtool -K` option and full name.
const NEEDED_OFFLOADS: &[(&str, &str)] = &[
    ("tso", "tcp-segmentation-offload"),
    ("gso", "generic-segmentation-offload"),
    ("gro", "generic-receive-offload"),
];

pub(super) fn check_offloads(_: &DoctorInputs) -> CheckOutcome {
    let Ok(links) = netlink::list_links() else {
        return CheckOutcome::unknown("the kernel does not list its interfaces");
    };
    let interfaces: Vec<(String, Vec<OffloadState>)> = links
        .into_iter()
        .filter(|link| link.up && !link.loopback)
        .map(|link| {
            let offloads = snapshot::read_offloads(&link.name);
            (link.name, offloads)
        })
        .collect();
    assess_offloads(&interfaces)
}

fn assess_offloads(interfaces: &[(String, Vec<OffloadState>)]) -> CheckOutcome {
    let (mut all_on, mut unreadable) = (Vec::new(), Vec::new());
    let (mut details, mut enable) = (Vec::new(), Vec::new());
    for (name, offloads) in interfaces {
        let state = |full: &str| offloads.iter().find(|offload| offload.name == full);
        let off: Vec<(&str, bool)> = NEEDED_OFFLOADS
            .iter()
            .filter_map(|(short, full)| {
                let offload = state(full)?;
                (!offload.on).then_some((*short, offload.changeable))
            })
            .collect();
        if offloads.is_empty() {
            unreadable.push(name.as_str());
        } else if off.is_empty() {
            all_on.push(name.as_str());
        } else {
            let texts: Vec<String> = off
                .iter()
                .map(|(short, changeable)| match changeable {
                    true => format!("{short} off"),
                    false => format!("no {short}"),
                })
                .collect();
            details.push(format!("{name}: {}", texts.join(", ")));
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
    let support = match (details.is_empty(), all_on.is_empty(), unreadable.is_empty()) {
        (false, _, _) => Support::Limited,
        (true, true, false) => Support::Unknown,
        (true, _, _) => Support::Ok,
    };
    if !all_on.is_empty() {
        details.push(format!("{}: tso, gso and gro on", all_on.join(", ")));
    }
    if !unreadable.is_empty() {
        details.push(format!("{}: offloads unknown", unreadable.join(", ")));
    }
    if details.is_empty() {
        details.push("no interface is up except loopback".to_owned());
    }
    CheckOutcome {
        support,
        detail: details.join("; "),
        enable: (!enable.is_empty()).then(|| enable.join(" and ")),
    }
}

pub(super) fn check_socket_buffers(inputs: &DoctorInputs) -> CheckOutcome {
    // Bandwidth-delay product of 10 Gb/s and 3 ms; also the default of recent kernels.
    const MIN_BUFFER_BYTES: i64 = 4 << 20;
    const SETTINGS: [&str; 2] = ["net.core.rmem_max", "net.core.wmem_max"];
    let values = SETTINGS.map(|name| inputs.sysctl_number(name));
    let [Some(receive), Some(send)] = values else {
        return CheckOutcome::unknown(
            "net.core.rmem_max and net.core.wmem_max are unreadable (visible in the initial network namespace only)",
        );
    };
    let detail = format!("receive up to {receive} B, send up to {send} B");
    let small: Vec<String> = SETTINGS
        .iter()
        .zip([receive, send])
        .filter(|(_, value)| *value < MIN_BUFFER_BYTES)
        .map(|(name, _)| format!("{name}=16777216"))
        .collect();
    if small.is_empty() {
        return CheckOutcome::ok(detail);
    }
    CheckOutcome::limited(detail).with_enable(format!("`sudo sysctl -w {}`", small.join(" ")))
}

pub(super) fn check_af_xdp(inputs: &DoctorInputs) -> CheckOutcome {
    assess_af_xdp(inputs, feature_probes::probe_af_xdp())
}

fn assess_af_xdp(inputs: &DoctorInputs, probe_result: io::Result<()>) -> CheckOutcome {
    const NEEDED_CAPABILITIES: [&str; 3] = ["net_raw", "net_admin", "bpf"];
    let lacking: Vec<&str> = NEEDED_CAPABILITIES
        .into_iter()
        .filter(|name| !inputs.capabilities.has(name))
        .collect();
    let number = probe_result
        .as_ref()
        .err()
        .and_then(io::Error::raw_os_error);
    match (probe_result, number) {
        (Ok(()), _) if lacking.is_empty() => CheckOutcome::ok("sockets can be created"),
        (Ok(()), _) => {
            CheckOutcome::limited("sockets can be created, but no XDP program can be attached")
                .with_enable(inputs.capabilities.grant_instruction(&lacking))
        }
        (Err(_), Some(libc::EAFNOSUPPORT)) => CheckOutcome::missing("not in this kernel")
            .with_enable("boot a kernel with CONFIG_XDP_SOCKETS"),
        (Err(_), Some(libc::EPERM | libc::EACCES)) => CheckOutcome::missing("needs capabilities")
            .with_enable(inputs.capabilities.grant_instruction(&lacking)),
        (Err(error), _) => CheckOutcome::unknown(format!("could not be tested: {error}")),
    }
}

pub(super) fn check_netem(inputs: &DoctorInputs) -> CheckOutcome {
    match kernel_feature::NETEM.detect(inputs) {
        FeaturePresence::Ready => {
            CheckOutcome::ok("in the kernel: lab links support delay, loss and reordering")
        }
        FeaturePresence::Loadable => CheckOutcome::ok("kernel module, loaded on first use"),
        FeaturePresence::Absent => {
            CheckOutcome::missing("not in this kernel: lab links cannot delay, lose or reorder").with_enable(
                "install the package with sch_netem (Fedora, RHEL: kernel-modules-extra), or boot a kernel with CONFIG_NET_SCH_NETEM",
            )
        }
        FeaturePresence::Unknown => {
            CheckOutcome::unknown("presence in the kernel is unknown: try a lab link with a delay")
        }
    }
}

pub(super) fn check_tun(inputs: &DoctorInputs) -> CheckOutcome {
    const DEVICE: &str = "/dev/net/tun";
    let files = &inputs.files;
    let registered = files.read_text("/proc/misc").is_some_and(|text| {
        text.lines()
            .any(|line| line.split_whitespace().nth(1) == Some("tun"))
    });
    let device_exists = files.exists(DEVICE);
    if !registered {
        // Opening the device would load the module, and checks change nothing.
        return match (kernel_feature::TUN.detect(inputs), device_exists) {
            (FeaturePresence::Loadable, true) => {
                CheckOutcome::ok(format!("{DEVICE}, kernel module loaded on first use"))
            }
            (FeaturePresence::Loadable | FeaturePresence::Ready, false) => {
                missing_tun_device(DEVICE)
            }
            (FeaturePresence::Absent, _) => CheckOutcome::missing("not in this kernel")
                .with_enable("boot a kernel with CONFIG_TUN"),
            _ => CheckOutcome::unknown(format!("unknown whether {DEVICE} works")),
        };
    }
    match std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(files.path(DEVICE))
    {
        Ok(_) if inputs.capabilities.has("net_admin") => CheckOutcome::ok(DEVICE),
        Ok(_) => CheckOutcome::ok(format!(
            "{DEVICE}; creating an interface needs net_admin, as in a lab"
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => missing_tun_device(DEVICE),
        Err(error) => CheckOutcome::missing(format!("{DEVICE}: {error}")).with_enable(format!(
            "`sudo chmod a+rw {DEVICE}`; in a container `--device {DEVICE}`"
        )),
    }
}

fn missing_tun_device(device: &str) -> CheckOutcome {
    CheckOutcome::missing(format!("supported by the kernel, but {device} does not exist")).with_enable(format!(
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
    fn bbr_without_fq_is_limited() {
        let table: [(&[(&str, &str)], Support); 5] = [
            (&[(CONTROL, "cubic"), (QDISC, "pfifo_fast")], Support::Ok),
            (&[(CONTROL, "bbr"), (QDISC, "fq")], Support::Ok),
            (&[(CONTROL, "bbr"), (QDISC, "fq_codel")], Support::Limited),
            (&[(CONTROL, "bbr")], Support::Limited),
            (&[], Support::Unknown),
        ];
        for (layout, support) in table {
            let (_directory, files) = tree(layout);
            let result = check_congestion_control(&DoctorInputs::from_files(files));
            assert_eq!(result.support, support, "{layout:?} {result:?}");
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
        let result = check_allowed_congestion_controls(&DoctorInputs::from_files(files));
        assert_eq!(result.support, Support::Limited);
        assert!(
            result.detail.ends_with("not cubic bbr"),
            "{}",
            result.detail
        );
        let root = [
            settings[0],
            settings[1],
            ("/proc/thread-self/status", "CapEff:\t000001ffffffffff\n"),
        ];
        let (_directory, files) = tree(&root);
        assert_eq!(
            check_allowed_congestion_controls(&DoctorInputs::from_files(files)).support,
            Support::Ok
        );
    }

    #[test]
    fn offloads_that_are_off_are_named_with_their_switch() {
        let interface = |name: &str, states: &[(&'static str, bool, bool)]| {
            let offloads = states.iter().map(|&(name, on, changeable)| OffloadState {
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
        let result = assess_offloads(&[eth0.clone(), eth1, wg0.clone()]);
        assert_eq!(
            result,
            CheckOutcome::limited(
                "eth1: no tso, gso off; eth0: tso, gso and gro on; wg0: offloads unknown"
            )
            .with_enable("`sudo ethtool -K eth1 gso on`")
        );
        assert_eq!(assess_offloads(&[eth0]).support, Support::Ok);
        assert_eq!(assess_offloads(&[wg0]).support, Support::Unknown);
        assert_eq!(
            assess_offloads(&[]),
            CheckOutcome::ok("no interface is up except loopback")
        );
    }

    #[test]
    fn small_buffers_name_the_sysctl() {
        const RECEIVE: &str = "/proc/sys/net/core/rmem_max";
        const SEND: &str = "/proc/sys/net/core/wmem_max";
        let (_directory, files) = tree(&[(RECEIVE, "212992"), (SEND, "16777216")]);
        assert_eq!(
            check_socket_buffers(&DoctorInputs::from_files(files)),
            CheckOutcome::limited("receive up to 212992 B, send up to 16777216 B")
                .with_enable("`sudo sysctl -w net.core.rmem_max=16777216`")
        );
        let (_directory, files) = tree(&[(RECEIVE, "4194304"), (SEND, "4194304")]);
        assert_eq!(
            check_socket_buffers(&DoctorInputs::from_files(files)).support,
            Support::Ok
        );
        let (_directory, files) = tree(&[]);
        assert_eq!(
            check_socket_buffers(&DoctorInputs::from_files(files)).support,
            Support::Unknown
        );
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
            (&root, Ok(()), Support::Ok),
            (&user, Ok(()), Support::Limited),
            (&user, error(libc::EPERM), Support::Missing),
            (&root, error(libc::EAFNOSUPPORT), Support::Missing),
            (&root, error(libc::EMFILE), Support::Unknown),
        ];
        for (row, (layout, probe_result, support)) in table.into_iter().enumerate() {
            let (_directory, files) = tree(layout);
            assert_eq!(
                assess_af_xdp(&DoctorInputs::from_files(files), probe_result).support,
                support,
                "row {row}"
            );
        }
    }

    #[test]
    fn tun_is_opened_only_where_that_loads_nothing() {
        let table: [(&[(&str, &str)], Support); 4] = [
            (
                &[("/proc/misc", "200 tun\n"), ("/dev/net/tun", "")],
                Support::Ok,
            ),
            (&[("/proc/misc", "200 tun\n")], Support::Missing),
            (
                &[
                    ("/proc/misc", "229 fuse\n"),
                    ("/proc/kallsyms", "0 t other\n"),
                    ("/proc/self/stat", "1"),
                ],
                Support::Missing,
            ),
            (&[("/dev/net/tun", "")], Support::Unknown),
        ];
        for (layout, support) in table {
            let (_directory, files) = tree(layout);
            let result = check_tun(&DoctorInputs::from_files(files));
            assert_eq!(result.support, support, "{layout:?} {result:?}");
        }
    }
}
