//! Checks of resource limits of a process.

use linerate_sys::memory_info;
use rustix::process::{Resource, Rlimit, getrlimit};

use super::CheckOutcome;
use super::inputs::DoctorInputs;

const MIB: u64 = 1 << 20;

pub(super) fn check_open_files(_: &DoctorInputs) -> CheckOutcome {
    assess_open_files(getrlimit(Resource::Nofile))
}

fn assess_open_files(limit: Rlimit) -> CheckOutcome {
    // A thousand streams with both ends in one process, and as many descriptors again for watches
    // and files.
    const MIN_OPEN_FILES: u64 = 4096;
    let detail = format!(
        "{} (hard limit {})",
        format_limit(limit.current, 1, ""),
        format_limit(limit.maximum, 1, "")
    );
    if limit
        .current
        .is_none_or(|current| current >= MIN_OPEN_FILES)
    {
        return CheckOutcome::ok(detail);
    }
    CheckOutcome::limited(detail).with_enable(match limit.maximum {
        Some(maximum) if maximum < MIN_OPEN_FILES => {
            "`ulimit -n 65536` as root, or `* - nofile 65536` in /etc/security/limits.conf"
                .to_owned()
        }
        maximum => format!(
            "`ulimit -n {}`",
            maximum.map_or(65536, |most| most.min(65536))
        ),
    })
}

pub(super) fn check_locked_memory(inputs: &DoctorInputs) -> CheckOutcome {
    assess_locked_memory(
        getrlimit(Resource::Memlock),
        inputs.capabilities.has("ipc_lock"),
    )
}

fn assess_locked_memory(limit: Rlimit, exempt: bool) -> CheckOutcome {
    // Frames of one AF_XDP port: 16384 of 4 KiB.
    const MIN_LOCKED_BYTES: u64 = 64 * MIB;
    let detail = format_limit(limit.current, MIB, " MiB");
    if exempt {
        return CheckOutcome::ok(format!("{detail}, not enforced for this process"));
    }
    if limit
        .current
        .is_none_or(|current| current >= MIN_LOCKED_BYTES)
    {
        return CheckOutcome::ok(detail);
    }
    CheckOutcome::limited(detail).with_enable(
        "`ulimit -l unlimited` as root, `* - memlock unlimited` in /etc/security/limits.conf, \
         or `LimitMEMLOCK=infinity` in a unit",
    )
}

fn format_limit(limit: Option<u64>, unit: u64, name: &str) -> String {
    match limit {
        Some(limit) => format!("{}{name}", limit / unit),
        None => "unlimited".to_owned(),
    }
}

pub(super) fn check_hugepages(inputs: &DoctorInputs) -> CheckOutcome {
    let Some(meminfo) = inputs.files.read_text("/proc/meminfo") else {
        return CheckOutcome::unknown("/proc/meminfo is unreadable");
    };
    let transparent = inputs
        .files
        .read_text("/sys/kernel/mm/transparent_hugepage/enabled")
        .and_then(|text| bracketed_value(&text))
        .map_or(String::new(), |mode| {
            format!("; transparent huge pages: {mode}")
        });
    let result = assess_hugepages(&meminfo);
    CheckOutcome {
        detail: result.detail + &transparent,
        ..result
    }
}

fn assess_hugepages(meminfo: &str) -> CheckOutcome {
    const RESERVE: &str = "`sudo sysctl -w vm.nr_hugepages=64`";
    let counts = memory_info::parse_count(meminfo, "HugePages_Total")
        .zip(memory_info::parse_count(meminfo, "HugePages_Free"));
    let size = memory_info::parse_bytes(meminfo, "Hugepagesize")
        .map_or(String::new(), |bytes| format!(" of {} KiB", bytes / 1024));
    let pages = format!("huge pages{size}");
    match counts {
        None => CheckOutcome::missing("not supported by this kernel")
            .with_enable("boot a kernel with CONFIG_HUGETLBFS"),
        Some((0, _)) => {
            CheckOutcome::missing(format!("{pages}: none reserved")).with_enable(RESERVE)
        }
        Some((total, 0)) => CheckOutcome::limited(format!("{pages}: {total} reserved, all in use"))
            .with_enable(RESERVE),
        Some((total, free)) => CheckOutcome::ok(format!("{pages}: {total} reserved, {free} free")),
    }
}

/// Returns the value in brackets: `madvise` of `always [madvise] never`.
fn bracketed_value(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use linerate_record::facts::Support;

    use super::*;

    #[test]
    fn low_limits_have_instructions() {
        let limit = |current, maximum| Rlimit { current, maximum };
        let file_limits = [
            (limit(Some(1024), Some(1_048_576)), Some("ulimit -n 65536`")),
            (limit(Some(1024), Some(4096)), Some("ulimit -n 4096`")),
            (limit(Some(1024), Some(1024)), Some("limits.conf")),
            (limit(Some(20000), Some(20000)), None),
            (limit(None, None), None),
        ];
        for (limit, enable) in file_limits {
            let text = format!("{:?} {:?}", limit.current, limit.maximum);
            let result = assess_open_files(limit);
            assert_eq!(result.enable.is_some(), enable.is_some(), "{text}");
            assert!(
                result
                    .enable
                    .unwrap_or_default()
                    .contains(enable.unwrap_or_default()),
                "{text}"
            );
        }
        let memory_limits = [
            (Some(8 * MIB), false, Support::Limited),
            (Some(8 * MIB), true, Support::Ok),
            (Some(64 * MIB), false, Support::Ok),
            (None, false, Support::Ok),
        ];
        for (current, exempt, support) in memory_limits {
            let result = assess_locked_memory(limit(current, current), exempt);
            assert_eq!(result.support, support, "{current:?} {exempt}");
        }
    }

    #[test]
    fn hugepage_counts_are_assessed() {
        let table = [
            (
                "HugePages_Total: 0\nHugePages_Free: 0\nHugepagesize: 2048 kB\n",
                Support::Missing,
                "huge pages of 2048 KiB: none reserved",
            ),
            (
                "HugePages_Total: 8\nHugePages_Free: 0\nHugepagesize: 2048 kB\n",
                Support::Limited,
                "huge pages of 2048 KiB: 8 reserved, all in use",
            ),
            (
                "HugePages_Total: 8\nHugePages_Free: 6\nHugepagesize: 1048576 kB\n",
                Support::Ok,
                "huge pages of 1048576 KiB: 8 reserved, 6 free",
            ),
            (
                "MemTotal: 1 kB\n",
                Support::Missing,
                "not supported by this kernel",
            ),
        ];
        for (meminfo, support, detail) in table {
            let result = assess_hugepages(meminfo);
            assert_eq!((result.support, result.detail.as_str()), (support, detail));
        }
        assert_eq!(
            bracketed_value("always [madvise] never").as_deref(),
            Some("madvise")
        );
        assert_eq!(bracketed_value("never"), None);
    }
}
