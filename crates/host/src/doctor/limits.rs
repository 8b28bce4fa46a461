//! Checks of resource limits of a process.

use rustix::process::{Resource, Rlimit, getrlimit};

use super::Answer;
use super::inputs::Ground;
use crate::snapshot::{meminfo_bytes, meminfo_count};

const MIB: u64 = 1 << 20;

pub(super) fn open_files(_: &Ground) -> Answer {
    open_files_of(getrlimit(Resource::Nofile))
}

fn open_files_of(limit: Rlimit) -> Answer {
    // A thousand streams with both ends in one process, and as many descriptors again for watches
    // and files.
    const ENOUGH: u64 = 4096;
    let found = format!(
        "{} (hard limit {})",
        text_of(limit.current, 1, ""),
        text_of(limit.maximum, 1, "")
    );
    if limit.current.is_none_or(|current| current >= ENOUGH) {
        return Answer::ok(found);
    }
    Answer::limited(found).enable(match limit.maximum {
        Some(maximum) if maximum < ENOUGH => {
            "`ulimit -n 65536` as root, or `* - nofile 65536` in /etc/security/limits.conf"
                .to_owned()
        }
        maximum => format!(
            "`ulimit -n {}`",
            maximum.map_or(65536, |most| most.min(65536))
        ),
    })
}

pub(super) fn locked_memory(ground: &Ground) -> Answer {
    locked_memory_of(
        getrlimit(Resource::Memlock),
        ground.capabilities.has("ipc_lock"),
    )
}

fn locked_memory_of(limit: Rlimit, unbound: bool) -> Answer {
    // Frames of one AF_XDP port: 16384 of 4 KiB.
    const ENOUGH: u64 = 64 * MIB;
    let found = text_of(limit.current, MIB, " MiB");
    if unbound {
        return Answer::ok(format!("{found}, not enforced for this process"));
    }
    if limit.current.is_none_or(|current| current >= ENOUGH) {
        return Answer::ok(found);
    }
    Answer::limited(found).enable(
        "`ulimit -l unlimited` as root, `* - memlock unlimited` in /etc/security/limits.conf, \
         or `LimitMEMLOCK=infinity` in a unit",
    )
}

fn text_of(limit: Option<u64>, unit: u64, name: &str) -> String {
    match limit {
        Some(limit) => format!("{}{name}", limit / unit),
        None => "unlimited".to_owned(),
    }
}

pub(super) fn hugepages(ground: &Ground) -> Answer {
    let Some(meminfo) = ground.files.text("/proc/meminfo") else {
        return Answer::unknown("/proc/meminfo is unreadable");
    };
    let transparent = ground
        .files
        .text("/sys/kernel/mm/transparent_hugepage/enabled")
        .and_then(|text| chosen(&text))
        .map_or(String::new(), |chosen| {
            format!("; transparent huge pages: {chosen}")
        });
    let answer = hugepages_of(&meminfo);
    Answer {
        found: answer.found + &transparent,
        ..answer
    }
}

fn hugepages_of(meminfo: &str) -> Answer {
    const RESERVE: &str = "`sudo sysctl -w vm.nr_hugepages=64`";
    let counts =
        meminfo_count(meminfo, "HugePages_Total").zip(meminfo_count(meminfo, "HugePages_Free"));
    let size = meminfo_bytes(meminfo, "Hugepagesize")
        .map_or(String::new(), |bytes| format!(" of {} KiB", bytes / 1024));
    match counts {
        None => {
            Answer::missing("not supported by this kernel").enable("a kernel with CONFIG_HUGETLBFS")
        }
        Some((0, _)) => Answer::missing(format!("none{size} reserved")).enable(RESERVE),
        Some((total, 0)) => {
            Answer::limited(format!("{total}{size} reserved, all in use")).enable(RESERVE)
        }
        Some((total, free)) => Answer::ok(format!("{total}{size} reserved, {free} free")),
    }
}

/// Returns the value in brackets: `madvise` of `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::facts::Ability;

    #[test]
    fn limits_that_bind_say_how_to_lift_them() {
        let limit = |current, maximum| Rlimit { current, maximum };
        let files = [
            (limit(Some(1024), Some(1_048_576)), Some("ulimit -n 65536`")),
            (limit(Some(1024), Some(4096)), Some("ulimit -n 4096`")),
            (limit(Some(1024), Some(1024)), Some("limits.conf")),
            (limit(Some(20000), Some(20000)), None),
            (limit(None, None), None),
        ];
        for (limit, enable) in files {
            let text = format!("{:?} {:?}", limit.current, limit.maximum);
            let answer = open_files_of(limit);
            assert_eq!(answer.enable.is_some(), enable.is_some(), "{text}");
            assert!(
                answer
                    .enable
                    .unwrap_or_default()
                    .contains(enable.unwrap_or_default()),
                "{text}"
            );
        }
        let memory = [
            (Some(8 * MIB), false, Ability::Limited),
            (Some(8 * MIB), true, Ability::Ok),
            (Some(64 * MIB), false, Ability::Ok),
            (None, false, Ability::Ok),
        ];
        for (current, unbound, ability) in memory {
            let answer = locked_memory_of(limit(current, current), unbound);
            assert_eq!(answer.ability, ability, "{current:?} {unbound}");
        }
    }

    #[test]
    fn reserved_pages() {
        let table = [
            (
                "HugePages_Total: 0\nHugePages_Free: 0\nHugepagesize: 2048 kB\n",
                Ability::Missing,
                "none of 2048 KiB reserved",
            ),
            (
                "HugePages_Total: 8\nHugePages_Free: 0\nHugepagesize: 2048 kB\n",
                Ability::Limited,
                "8 of 2048 KiB reserved, all in use",
            ),
            (
                "HugePages_Total: 8\nHugePages_Free: 6\nHugepagesize: 1048576 kB\n",
                Ability::Ok,
                "8 of 1048576 KiB reserved, 6 free",
            ),
            (
                "MemTotal: 1 kB\n",
                Ability::Missing,
                "not supported by this kernel",
            ),
        ];
        for (meminfo, ability, found) in table {
            let answer = hugepages_of(meminfo);
            assert_eq!((answer.ability, answer.found.as_str()), (ability, found));
        }
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!(chosen("never"), None);
    }
}
