//! Checks of the kernel's tracing and profiling interfaces.

use std::io;

use super::Answer;
use super::inputs::Ground;
use crate::sys::feature_probes::{self, PerfEvent};

const PARANOID: &str = "kernel.perf_event_paranoid";

pub(super) fn perf_events(ground: &Ground) -> Answer {
    perf_events_of(
        ground.number(PARANOID),
        feature_probes::perf_event(PerfEvent::TaskClockUser),
        feature_probes::perf_event(PerfEvent::TaskClockKernel),
        feature_probes::perf_event(PerfEvent::Cycles),
    )
}

fn perf_events_of(
    paranoid: Option<i64>,
    user: io::Result<()>,
    kernel: io::Result<()>,
    cycles: io::Result<()>,
) -> Answer {
    let level = paranoid.map_or(String::new(), |level| format!(" ({PARANOID} = {level})"));
    let allow = format!("`sudo sysctl -w {PARANOID}=1`, or run with sudo");
    if let Err(error) = user {
        return match error.raw_os_error() {
            Some(libc::ENOSYS) => Answer::missing("not in this kernel, or blocked by a system-call filter")
                .enable("a kernel with CONFIG_PERF_EVENTS; in a container `--cap-add PERFMON --security-opt seccomp=unconfined`"),
            Some(libc::EACCES | libc::EPERM) => {
                Answer::missing(format!("forbidden{level}")).enable(allow)
            }
            _ => Answer::unknown(format!("could not be tested: {error}")),
        };
    }
    if kernel.is_err() {
        return Answer::limited(format!("user-space events only{level}")).enable(allow);
    }
    if cycles.is_err() {
        return Answer::limited(format!(
            "software events{level}; no hardware cycle counter"
        ))
        .enable(
            "on a virtual machine, its host must pass the counters through (QEMU: `-cpu host,pmu=on`)",
        );
    }
    Answer::ok(format!("software and hardware events{level}"))
}

pub(super) fn tracefs(ground: &Ground) -> Answer {
    const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
    const MOUNT: &str = "`sudo mount -t tracefs tracefs /sys/kernel/tracing`";
    let files = &ground.files;
    let mut forbidden = None;
    for place in PLACES {
        match std::fs::read(files.path(&format!("{place}/available_events"))) {
            Ok(events) => {
                let count = events.iter().filter(|&&byte| byte == b'\n').count();
                return Answer::ok(format!("{count} events at {place}"));
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                forbidden.get_or_insert(place);
            }
            Err(_) => {}
        }
    }
    if let Some(place) = forbidden {
        return Answer::missing(format!("{place} is not readable by this user")).enable(format!(
            "run with sudo, or `sudo mount -o remount,mode=755 {place}`"
        ));
    }
    match files.text("/proc/filesystems").map(|text| {
        text.lines()
            .any(|line| line.split_whitespace().last() == Some("tracefs"))
    }) {
        Some(true) => Answer::missing("not mounted").enable(MOUNT),
        Some(false) => {
            Answer::missing("not supported by this kernel").enable("a kernel with CONFIG_TRACING")
        }
        None => Answer::unknown("not found, and /proc/filesystems is unreadable"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tree;
    use linerate_metric::facts::Ability;

    #[test]
    fn perf_by_what_could_be_opened() {
        let error = |number| Err(io::Error::from_raw_os_error(number));
        let table = [
            (Ok(()), Ok(()), Ok(()), Ability::Ok),
            (Ok(()), Ok(()), error(libc::ENOENT), Ability::Limited),
            (
                Ok(()),
                error(libc::EACCES),
                error(libc::ENOENT),
                Ability::Limited,
            ),
            (
                error(libc::EACCES),
                error(libc::EACCES),
                error(libc::EACCES),
                Ability::Missing,
            ),
            (
                error(libc::ENOSYS),
                error(libc::ENOSYS),
                error(libc::ENOSYS),
                Ability::Missing,
            ),
            (
                error(libc::EMFILE),
                error(libc::EMFILE),
                error(libc::EMFILE),
                Ability::Unknown,
            ),
        ];
        for (row, (user, kernel, cycles, ability)) in table.into_iter().enumerate() {
            assert_eq!(
                perf_events_of(Some(2), user, kernel, cycles).ability,
                ability,
                "row {row}"
            );
        }
    }

    #[test]
    fn tracefs_where_it_is() {
        type Row<'a> = (&'a [(&'a str, &'a str)], Ability, &'a str);
        let table: [Row; 4] = [
            (
                &[(
                    "/sys/kernel/debug/tracing/available_events",
                    "net:netif_rx\nnet:net_dev_xmit\n",
                )],
                Ability::Ok,
                "2 events",
            ),
            (
                &[("/proc/filesystems", "nodev\tproc\nnodev\ttracefs\n")],
                Ability::Missing,
                "not mounted",
            ),
            (
                &[("/proc/filesystems", "nodev\tproc\n")],
                Ability::Missing,
                "not supported by this kernel",
            ),
            (&[], Ability::Unknown, ""),
        ];
        for (layout, ability, found) in table {
            let (_directory, files) = tree(layout);
            let answer = tracefs(&Ground::on(files));
            assert_eq!(answer.ability, ability, "{layout:?}");
            assert!(answer.found.contains(found), "{layout:?}: {}", answer.found);
        }
    }
}
