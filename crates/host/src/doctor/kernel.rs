//! Checks of the kernel version and of what the kernel allows this process.

use linerate_sys::feature_probes;
use linerate_sys::feature_probes::UserNamespaceSupport;

use super::CheckOutcome;
use super::capability::USEFUL_CAPABILITIES;
use super::inputs::DoctorInputs;

/// Features that older kernels lack: first release and feature.
const MILESTONES: &[((u32, u32), &str)] = &[
    ((4, 18), "UDP segmentation offload"),
    ((5, 0), "UDP receive offload"),
    ((5, 4), "AF_XDP without a system call per burst"),
    ((6, 3), "IPv4 segmentation above 64 KiB"),
];

pub(super) fn check_kernel(inputs: &DoctorInputs) -> CheckOutcome {
    match &inputs.host.kernel {
        Some(release) => assess_kernel(release),
        None => CheckOutcome::unknown("uname gives no release"),
    }
}

fn assess_kernel(release: &str) -> CheckOutcome {
    let Some(version) = parse_version(release) else {
        return CheckOutcome::unknown(format!("{release} is not a known Linux release"));
    };
    let missing: Vec<&str> = MILESTONES
        .iter()
        .filter(|(first, _)| version < *first)
        .map(|(_, feature)| *feature)
        .collect();
    match (missing.as_slice(), MILESTONES.last()) {
        ([_, ..], Some(((major, minor), _))) => {
            CheckOutcome::limited(format!("{release}, without {}", missing.join(", ")))
                .with_enable(format!("boot a kernel of {major}.{minor} or later"))
        }
        _ => CheckOutcome::ok(release),
    }
}

fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|character: char| !character.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

pub(super) fn check_privileges(inputs: &DoctorInputs) -> CheckOutcome {
    if !inputs.capabilities.is_known() {
        return CheckOutcome::unknown("/proc does not show the capabilities of this process");
    }
    let user = rustix::process::geteuid();
    let user_text = match (user.is_root(), inputs.capabilities.in_user_namespace) {
        (true, false) => "root".to_owned(),
        (true, true) => "root of a user namespace".to_owned(),
        (false, _) => format!("user {}", user.as_raw()),
    };
    let missing = inputs.capabilities.missing();
    if missing.is_empty() {
        return CheckOutcome::ok(format!("{user_text}, with all useful capabilities"));
    }
    let detail = match missing.len() == USEFUL_CAPABILITIES.len() {
        true => format!("{user_text}, without capabilities"),
        false => format!("{user_text}, without {}", missing.join(", ")),
    };
    CheckOutcome::limited(detail).with_enable(inputs.capabilities.grant_instruction(&missing))
}

pub(super) fn check_user_namespaces(inputs: &DoctorInputs) -> CheckOutcome {
    match feature_probes::probe_user_namespace() {
        Ok(probe_result) => assess_user_namespaces(inputs, probe_result),
        Err(error) => CheckOutcome::unknown(format!("could not be tested: {error}")),
    }
}

fn assess_user_namespaces(
    inputs: &DoctorInputs,
    probe_result: UserNamespaceSupport,
) -> CheckOutcome {
    const BENEFIT: &str = "labs need no root";
    const MAX: &str = "user.max_user_namespaces";
    const CLONE: &str = "kernel.unprivileged_userns_clone";
    const APPARMOR: &str = "kernel.apparmor_restrict_unprivileged_userns";
    let set_command = |name: &str, value: u32| format!("`sudo sysctl -w {name}={value}`");
    let is_set_to = |name: &str, value: i64| inputs.sysctl_number(name) == Some(value);
    let privileged = inputs.capabilities.has("sys_admin");
    // Unavailable to this process, but root needs no user namespace to build a lab.
    let unavailable = |detail: String| match privileged && inputs.capabilities.has("net_admin") {
        true => CheckOutcome::limited(format!("{detail}; root builds labs without them")),
        false => CheckOutcome::missing(detail),
    };
    match probe_result {
        UserNamespaceSupport::Full if privileged && is_set_to(CLONE, 0) => {
            CheckOutcome::limited(format!("root only: {CLONE} = 0"))
                .with_enable(set_command(CLONE, 1))
        }
        UserNamespaceSupport::Full if privileged && is_set_to(APPARMOR, 1) => {
            CheckOutcome::limited(format!(
                "root and programs with an AppArmor profile only: {APPARMOR} = 1"
            ))
            .with_enable(set_command(APPARMOR, 0))
        }
        UserNamespaceSupport::Full => CheckOutcome::ok(format!("available: {BENEFIT}")),
        UserNamespaceSupport::Restricted(_) => {
            let detail = match is_set_to(APPARMOR, 1) {
                true => format!("grant no capabilities: {APPARMOR} = 1"),
                false => "grant no capabilities: restricted by a security module".to_owned(),
            };
            unavailable(detail).with_enable(format!(
                "{}, or give linerate an AppArmor profile with `userns,`",
                set_command(APPARMOR, 0)
            ))
        }
        UserNamespaceSupport::Unavailable(_) if is_set_to(MAX, 0) => {
            unavailable(format!("{MAX} = 0")).with_enable(set_command(MAX, 10_000))
        }
        UserNamespaceSupport::Unavailable(_) if is_set_to(CLONE, 0) => {
            unavailable(format!("{CLONE} = 0")).with_enable(set_command(CLONE, 1))
        }
        UserNamespaceSupport::Unavailable(libc::ENOSPC | libc::EUSERS) => {
            unavailable("limit on their number or nesting depth reached".to_owned()).with_enable(
                format!("{}, or leave a namespace", set_command(MAX, 10_000)),
            )
        }
        UserNamespaceSupport::Unavailable(libc::EINVAL | libc::ENOSYS) => {
            unavailable("not supported by this kernel".to_owned())
                .with_enable("a kernel with CONFIG_USER_NS")
        }
        UserNamespaceSupport::Unavailable(error) => {
            let error = std::io::Error::from_raw_os_error(error);
            unavailable(format!("rejected: {error}")).with_enable(
                "in a container, start it with `--privileged` or `--security-opt seccomp=unconfined`; \
                 in a chroot, leave it",
            )
        }
    }
}

pub(super) fn check_io_uring(inputs: &DoctorInputs) -> CheckOutcome {
    const SETTING: &str = "kernel.io_uring_disabled";
    let error = match feature_probes::probe_io_uring() {
        Ok(()) => return CheckOutcome::ok("rings can be created"),
        Err(error) => error,
    };
    match (error.raw_os_error(), inputs.sysctl_number(SETTING)) {
        (_, Some(level @ 1..)) => CheckOutcome::missing(format!("{SETTING} = {level}"))
            .with_enable(format!("`sudo sysctl -w {SETTING}=0`")),
        (Some(libc::ENOSYS), _) => CheckOutcome::missing(
            "not in this kernel, or blocked by the container's system-call filter",
        )
        .with_enable(
            "a kernel with CONFIG_IO_URING; in a container `--security-opt seccomp=unconfined`",
        ),
        (Some(libc::EPERM | libc::EACCES), _) => {
            CheckOutcome::missing("forbidden by a system-call filter or security module")
                .with_enable("in a container `--security-opt seccomp=unconfined`")
        }
        (Some(libc::ENOMEM), _) => CheckOutcome::limited("rings exceed the locked-memory limit")
            .with_enable("`ulimit -l unlimited` as root"),
        _ => CheckOutcome::unknown(format!("could not be tested: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::facts::Support;

    use super::*;
    use crate::snapshot::tree;

    #[test]
    fn kernel_releases_are_assessed() {
        let table = [
            ("6.18.44-fc-v657", Support::Ok, 0),
            ("6.3.0", Support::Ok, 0),
            ("7.0-rc1", Support::Ok, 0),
            ("5.15.0-91-generic", Support::Limited, 1),
            ("4.9.337", Support::Limited, 4),
            ("weird", Support::Unknown, 0),
            ("", Support::Unknown, 0),
        ];
        for (release, support, missing) in table {
            let result = assess_kernel(release);
            assert_eq!(result.support, support, "{release}");
            let named = MILESTONES
                .iter()
                .filter(|(_, feature)| result.detail.contains(feature))
                .count();
            assert_eq!(named, missing, "{release}: {}", result.detail);
        }
    }

    #[test]
    fn causes_of_missing_user_namespaces_are_named() {
        const ROOT: &str = "CapEff:\t000001ffffffffff\n";
        const USER: &str = "CapEff:\t0000000000000000\n";
        const MAX: &str = "/proc/sys/user/max_user_namespaces";
        const CLONE: &str = "/proc/sys/kernel/unprivileged_userns_clone";
        const APPARMOR: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
        type NamespaceCase = (
            &'static str,
            &'static [(&'static str, &'static str)],
            UserNamespaceSupport,
            Support,
            &'static str,
        );
        let table: [NamespaceCase; 10] = [
            (USER, &[], UserNamespaceSupport::Full, Support::Ok, ""),
            (
                ROOT,
                &[(CLONE, "1")],
                UserNamespaceSupport::Full,
                Support::Ok,
                "",
            ),
            (
                ROOT,
                &[(CLONE, "0")],
                UserNamespaceSupport::Full,
                Support::Limited,
                "unprivileged_userns_clone=1",
            ),
            (
                ROOT,
                &[(APPARMOR, "1")],
                UserNamespaceSupport::Full,
                Support::Limited,
                "apparmor_restrict_unprivileged_userns=0",
            ),
            (
                USER,
                &[(APPARMOR, "1")],
                UserNamespaceSupport::Restricted(libc::EPERM),
                Support::Missing,
                "apparmor_restrict_unprivileged_userns=0",
            ),
            (
                USER,
                &[(CLONE, "0")],
                UserNamespaceSupport::Unavailable(libc::EPERM),
                Support::Missing,
                "unprivileged_userns_clone=1",
            ),
            (
                USER,
                &[(MAX, "0")],
                UserNamespaceSupport::Unavailable(libc::ENOSPC),
                Support::Missing,
                "max_user_namespaces=10000",
            ),
            (
                ROOT,
                &[(MAX, "0")],
                UserNamespaceSupport::Unavailable(libc::ENOSPC),
                Support::Limited,
                "max_user_namespaces=10000",
            ),
            (
                USER,
                &[],
                UserNamespaceSupport::Unavailable(libc::EINVAL),
                Support::Missing,
                "CONFIG_USER_NS",
            ),
            (
                USER,
                &[],
                UserNamespaceSupport::Unavailable(libc::EPERM),
                Support::Missing,
                "seccomp=unconfined",
            ),
        ];
        for (status, layout, probe_result, support, enable) in table {
            let mut layout = layout.to_vec();
            layout.push(("/proc/thread-self/status", status));
            let (_directory, files) = tree(&layout);
            let result = assess_user_namespaces(&DoctorInputs::from_files(files), probe_result);
            assert_eq!(result.support, support, "{layout:?} {result:?}");
            let instruction = result.enable.unwrap_or_default();
            assert!(instruction.contains(enable), "{layout:?} {instruction}");
        }
    }
}
