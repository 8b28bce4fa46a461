//! Checks of the kernel version and of what the kernel allows this process.

use super::Answer;
use super::capability::WANTED;
use super::inputs::Ground;
use crate::sys::feature_probes::{self, UserNamespace};

/// Features that older kernels lack: first release and feature.
const MILESTONES: &[((u32, u32), &str)] = &[
    ((4, 18), "UDP segmentation offload"),
    ((5, 0), "UDP receive offload"),
    ((5, 4), "AF_XDP without a system call per burst"),
    ((6, 3), "IPv4 segmentation above 64 KiB"),
];

pub(super) fn kernel(ground: &Ground) -> Answer {
    match &ground.host.kernel {
        Some(release) => kernel_of(release),
        None => Answer::unknown("uname gives no release"),
    }
}

fn kernel_of(release: &str) -> Answer {
    let Some(version) = version_of(release) else {
        return Answer::unknown(format!("{release} is not a known Linux release"));
    };
    let lacking: Vec<&str> = MILESTONES
        .iter()
        .filter(|(first, _)| version < *first)
        .map(|(_, what)| *what)
        .collect();
    match (lacking.as_slice(), MILESTONES.last()) {
        ([_, ..], Some(((major, minor), _))) => {
            Answer::limited(format!("{release}, without {}", lacking.join(", ")))
                .enable(format!("a kernel of {major}.{minor} or later"))
        }
        _ => Answer::ok(release),
    }
}

fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|character: char| !character.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

pub(super) fn privileges(ground: &Ground) -> Answer {
    if !ground.capabilities.known() {
        return Answer::unknown("/proc does not show the capabilities of this process");
    }
    let user = rustix::process::geteuid();
    let who = match (user.is_root(), ground.capabilities.confined) {
        (true, false) => "root".to_owned(),
        (true, true) => "root of a user namespace".to_owned(),
        (false, _) => format!("user {}", user.as_raw()),
    };
    let lacking = ground.capabilities.lacking();
    if lacking.is_empty() {
        return Answer::ok(format!("{who}, with all useful capabilities"));
    }
    let found = match lacking.len() == WANTED.len() {
        true => format!("{who}, without capabilities"),
        false => format!("{who}, without {}", lacking.join(", ")),
    };
    Answer::limited(found).enable(ground.capabilities.grant(&lacking))
}

pub(super) fn user_namespaces(ground: &Ground) -> Answer {
    match feature_probes::user_namespace() {
        Ok(outcome) => user_namespaces_of(ground, outcome),
        Err(error) => Answer::unknown(format!("could not be tested: {error}")),
    }
}

fn user_namespaces_of(ground: &Ground, outcome: UserNamespace) -> Answer {
    const NEED: &str = "labs need no root";
    const MAX: &str = "user.max_user_namespaces";
    const CLONE: &str = "kernel.unprivileged_userns_clone";
    const APPARMOR: &str = "kernel.apparmor_restrict_unprivileged_userns";
    let set = |name: &str, value: u32| format!("`sudo sysctl -w {name}={value}`");
    let is = |name: &str, value: i64| ground.number(name) == Some(value);
    let privileged = ground.capabilities.has("sys_admin");
    // Unavailable to this process, but root needs no user namespace to build a lab.
    let refused = |found: String| match privileged && ground.capabilities.has("net_admin") {
        true => Answer::limited(format!("{found}; root builds labs without them")),
        false => Answer::missing(found),
    };
    match outcome {
        UserNamespace::Works if privileged && is(CLONE, 0) => {
            Answer::limited(format!("root only: {CLONE} = 0")).enable(set(CLONE, 1))
        }
        UserNamespace::Works if privileged && is(APPARMOR, 1) => Answer::limited(format!(
            "root and programs with an AppArmor profile only: {APPARMOR} = 1"
        ))
        .enable(set(APPARMOR, 0)),
        UserNamespace::Works => Answer::ok(format!("available: {NEED}")),
        UserNamespace::Powerless(_) => {
            let found = match is(APPARMOR, 1) {
                true => format!("grant no capabilities: {APPARMOR} = 1"),
                false => "grant no capabilities: restricted by a security module".to_owned(),
            };
            refused(found).enable(format!(
                "{}, or give linerate an AppArmor profile with `userns,`",
                set(APPARMOR, 0)
            ))
        }
        UserNamespace::Refused(_) if is(MAX, 0) => {
            refused(format!("{MAX} = 0")).enable(set(MAX, 10_000))
        }
        UserNamespace::Refused(_) if is(CLONE, 0) => {
            refused(format!("{CLONE} = 0")).enable(set(CLONE, 1))
        }
        UserNamespace::Refused(libc::ENOSPC | libc::EUSERS) => {
            refused("limit on their number or nesting depth reached".to_owned())
                .enable(format!("{}, or leave a namespace", set(MAX, 10_000)))
        }
        UserNamespace::Refused(libc::EINVAL | libc::ENOSYS) => {
            refused("not supported by this kernel".to_owned())
                .enable("a kernel with CONFIG_USER_NS")
        }
        UserNamespace::Refused(error) => {
            let error = std::io::Error::from_raw_os_error(error);
            refused(format!("rejected: {error}")).enable(
                "in a container, start it with `--privileged` or `--security-opt seccomp=unconfined`; \
                 in a chroot, leave it",
            )
        }
    }
}

pub(super) fn io_uring(ground: &Ground) -> Answer {
    const SETTING: &str = "kernel.io_uring_disabled";
    let error = match feature_probes::io_uring() {
        Ok(()) => return Answer::ok("rings can be created"),
        Err(error) => error,
    };
    match (error.raw_os_error(), ground.number(SETTING)) {
        (_, Some(level @ 1..)) => Answer::missing(format!("{SETTING} = {level}"))
            .enable(format!("`sudo sysctl -w {SETTING}=0`")),
        (Some(libc::ENOSYS), _) => Answer::missing(
            "not in this kernel, or blocked by the container's system-call filter",
        )
        .enable(
            "a kernel with CONFIG_IO_URING; in a container `--security-opt seccomp=unconfined`",
        ),
        (Some(libc::EPERM | libc::EACCES), _) => {
            Answer::missing("forbidden by a system-call filter or security module")
                .enable("in a container `--security-opt seccomp=unconfined`")
        }
        (Some(libc::ENOMEM), _) => Answer::limited("rings exceed the locked-memory limit")
            .enable("`ulimit -l unlimited` as root"),
        _ => Answer::unknown(format!("could not be tested: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tree;
    use linerate_metric::facts::Ability;

    #[test]
    fn releases() {
        let table = [
            ("6.18.44-fc-v657", Ability::Ok, 0),
            ("6.3.0", Ability::Ok, 0),
            ("7.0-rc1", Ability::Ok, 0),
            ("5.15.0-91-generic", Ability::Limited, 1),
            ("4.9.337", Ability::Limited, 4),
            ("weird", Ability::Unknown, 0),
            ("", Ability::Unknown, 0),
        ];
        for (release, ability, lacking) in table {
            let answer = kernel_of(release);
            assert_eq!(answer.ability, ability, "{release}");
            let named = MILESTONES
                .iter()
                .filter(|(_, what)| answer.found.contains(what))
                .count();
            assert_eq!(named, lacking, "{release}: {}", answer.found);
        }
    }

    #[test]
    fn what_keeps_user_namespaces_away_is_named() {
        const ROOT: &str = "CapEff:\t000001ffffffffff\n";
        const USER: &str = "CapEff:\t0000000000000000\n";
        const MAX: &str = "/proc/sys/user/max_user_namespaces";
        const CLONE: &str = "/proc/sys/kernel/unprivileged_userns_clone";
        const APPARMOR: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
        type Row = (
            &'static str,
            &'static [(&'static str, &'static str)],
            UserNamespace,
            Ability,
            &'static str,
        );
        let table: [Row; 10] = [
            (USER, &[], UserNamespace::Works, Ability::Ok, ""),
            (ROOT, &[(CLONE, "1")], UserNamespace::Works, Ability::Ok, ""),
            (
                ROOT,
                &[(CLONE, "0")],
                UserNamespace::Works,
                Ability::Limited,
                "unprivileged_userns_clone=1",
            ),
            (
                ROOT,
                &[(APPARMOR, "1")],
                UserNamespace::Works,
                Ability::Limited,
                "apparmor_restrict_unprivileged_userns=0",
            ),
            (
                USER,
                &[(APPARMOR, "1")],
                UserNamespace::Powerless(libc::EPERM),
                Ability::Missing,
                "apparmor_restrict_unprivileged_userns=0",
            ),
            (
                USER,
                &[(CLONE, "0")],
                UserNamespace::Refused(libc::EPERM),
                Ability::Missing,
                "unprivileged_userns_clone=1",
            ),
            (
                USER,
                &[(MAX, "0")],
                UserNamespace::Refused(libc::ENOSPC),
                Ability::Missing,
                "max_user_namespaces=10000",
            ),
            (
                ROOT,
                &[(MAX, "0")],
                UserNamespace::Refused(libc::ENOSPC),
                Ability::Limited,
                "max_user_namespaces=10000",
            ),
            (
                USER,
                &[],
                UserNamespace::Refused(libc::EINVAL),
                Ability::Missing,
                "CONFIG_USER_NS",
            ),
            (
                USER,
                &[],
                UserNamespace::Refused(libc::EPERM),
                Ability::Missing,
                "seccomp=unconfined",
            ),
        ];
        for (status, layout, outcome, ability, enable) in table {
            let mut layout = layout.to_vec();
            layout.push(("/proc/thread-self/status", status));
            let (_directory, files) = tree(&layout);
            let answer = user_namespaces_of(&Ground::on(files), outcome);
            assert_eq!(answer.ability, ability, "{layout:?} {answer:?}");
            let how = answer.enable.unwrap_or_default();
            assert!(how.contains(enable), "{layout:?} {how}");
        }
    }
}
