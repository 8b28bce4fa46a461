//! Checks of the kernel's tracing and profiling interfaces.

use std::io;

use linerate_sys::feature_probes;
use linerate_sys::feature_probes::PerfEventKind;

use super::CheckOutcome;
use super::inputs::DoctorInputs;

const PARANOID: &str = "kernel.perf_event_paranoid";

pub(super) fn check_perf_events(inputs: &DoctorInputs) -> CheckOutcome {
    assess_perf_events(
        inputs.sysctl_number(PARANOID),
        feature_probes::probe_perf_event(PerfEventKind::TaskClockUser),
        feature_probes::probe_perf_event(PerfEventKind::TaskClockKernel),
        feature_probes::probe_perf_event(PerfEventKind::Cycles),
    )
}

fn assess_perf_events(
    paranoid: Option<i64>,
    user: io::Result<()>,
    kernel: io::Result<()>,
    cycles: io::Result<()>,
) -> CheckOutcome {
    let level = paranoid.map_or(String::new(), |level| format!(" ({PARANOID} = {level})"));
    let allow = format!("`sudo sysctl -w {PARANOID}=1`, or run with sudo");
    if let Err(error) = user {
        return match error.raw_os_error() {
            Some(libc::ENOSYS) => CheckOutcome::missing("not in this kernel, or blocked by a system-call filter")
                .with_enable("a kernel with CONFIG_PERF_EVENTS; in a container `--cap-add PERFMON --security-opt seccomp=unconfined`"),
            Some(libc::EACCES | libc::EPERM) => {
                CheckOutcome::missing(format!("forbidden{level}")).with_enable(allow)
            }
            _ => CheckOutcome::unknown(format!("could not be tested: {error}")),
        };
    }
    if kernel.is_err() {
        return CheckOutcome::limited(format!("user-space events only{level}")).with_enable(allow);
    }
    if cycles.is_err() {
        return CheckOutcome::limited(format!(
            "software events{level}; no hardware cycle counter"
        ))
        .with_enable(
            "on a virtual machine, its host must pass the counters through (QEMU: `-cpu host,pmu=on`)",
        );
    }
    CheckOutcome::ok(format!("software and hardware events{level}"))
}

pub(super) fn check_tracefs(inputs: &DoctorInputs) -> CheckOutcome {
    const MOUNT_POINTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
    const MOUNT: &str = "`sudo mount -t tracefs tracefs /sys/kernel/tracing`";
    let files = &inputs.files;
    let mut forbidden = None;
    for mount_point in MOUNT_POINTS {
        match std::fs::read(files.path(&format!("{mount_point}/available_events"))) {
            Ok(events) => {
                let count = events.iter().filter(|&&byte| byte == b'\n').count();
                return CheckOutcome::ok(format!("{count} events at {mount_point}"));
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                forbidden.get_or_insert(mount_point);
            }
            Err(_) => {}
        }
    }
    if let Some(mount_point) = forbidden {
        return CheckOutcome::missing(format!("{mount_point} is not readable by this user"))
            .with_enable(format!(
                "run with sudo, or `sudo mount -o remount,mode=755 {mount_point}`"
            ));
    }
    match files.read_text("/proc/filesystems").map(|text| {
        text.lines()
            .any(|line| line.split_whitespace().last() == Some("tracefs"))
    }) {
        Some(true) => CheckOutcome::missing("not mounted").with_enable(MOUNT),
        Some(false) => CheckOutcome::missing("not supported by this kernel")
            .with_enable("a kernel with CONFIG_TRACING"),
        None => CheckOutcome::unknown("not found, and /proc/filesystems is unreadable"),
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::facts::Support;

    use super::*;
    use crate::snapshot::tree;

    #[test]
    fn perf_by_what_could_be_opened() {
        let error = |number| Err(io::Error::from_raw_os_error(number));
        let table = [
            (Ok(()), Ok(()), Ok(()), Support::Ok),
            (Ok(()), Ok(()), error(libc::ENOENT), Support::Limited),
            (
                Ok(()),
                error(libc::EACCES),
                error(libc::ENOENT),
                Support::Limited,
            ),
            (
                error(libc::EACCES),
                error(libc::EACCES),
                error(libc::EACCES),
                Support::Missing,
            ),
            (
                error(libc::ENOSYS),
                error(libc::ENOSYS),
                error(libc::ENOSYS),
                Support::Missing,
            ),
            (
                error(libc::EMFILE),
                error(libc::EMFILE),
                error(libc::EMFILE),
                Support::Unknown,
            ),
        ];
        for (row, (user, kernel, cycles, support)) in table.into_iter().enumerate() {
            assert_eq!(
                assess_perf_events(Some(2), user, kernel, cycles).support,
                support,
                "row {row}"
            );
        }
    }

    #[test]
    fn tracefs_is_found_at_its_mount_points() {
        type TracefsCase<'a> = (&'a [(&'a str, &'a str)], Support, &'a str);
        let table: [TracefsCase; 4] = [
            (
                &[(
                    "/sys/kernel/debug/tracing/available_events",
                    "net:netif_rx\nnet:net_dev_xmit\n",
                )],
                Support::Ok,
                "2 events",
            ),
            (
                &[("/proc/filesystems", "nodev\tproc\nnodev\ttracefs\n")],
                Support::Missing,
                "not mounted",
            ),
            (
                &[("/proc/filesystems", "nodev\tproc\n")],
                Support::Missing,
                "not supported by this kernel",
            ),
            (&[], Support::Unknown, ""),
        ];
        for (layout, support, detail) in table {
            let (_directory, files) = tree(layout);
            let result = check_tracefs(&DoctorInputs::from_files(files));
            assert_eq!(result.support, support, "{layout:?}");
            assert!(
                result.detail.contains(detail),
                "{layout:?}: {}",
                result.detail
            );
        }
    }
}
