//! Facts of the processors of a host.

use std::collections::{BTreeMap, BTreeSet};

use linerate_record::facts::{CpuFacts, IdleState};
use linerate_sys as sys;

use super::{SystemFiles, cpu_quota, hypervisor};

const CPU_DIR: &str = "/sys/devices/system/cpu";

pub(super) fn read_cpu(files: &SystemFiles) -> CpuFacts {
    let cpuinfo = files.read_text("/proc/cpuinfo").unwrap_or_default();
    let online = files
        .read_text(&format!("{CPU_DIR}/online"))
        .and_then(|text| parse_cpu_list(&text));
    let logical = match &online {
        Some(list) => nonzero_count(list.len()),
        None => nonzero_count(count_processors(&cpuinfo)),
    };
    // Without the list, processors are numbered consecutively, as in /proc/cpuinfo.
    let numbers = online.unwrap_or_else(|| (0..logical.unwrap_or(0)).collect());
    let topology = |file: &str| -> BTreeSet<String> {
        numbers
            .iter()
            .filter_map(|cpu| files.read_text(&format!("{CPU_DIR}/cpu{cpu}/topology/{file}")))
            // -1: unknown to the kernel.
            .filter(|text| text != "-1")
            .collect()
    };
    CpuFacts {
        model: read_model(files, &cpuinfo),
        usable: files
            .read_text("/proc/thread-self/status")
            .and_then(|status| parse_usable(&status)),
        quota: cpu_quota::read_cpu_quota_from(files),
        logical,
        // Siblings of one core have the same text, so the distinct values count cores.
        cores: nonzero_count(topology("thread_siblings_list").len()),
        sockets: nonzero_count(topology("physical_package_id").len()),
        numa_nodes: files
            .read_text("/sys/devices/system/node/online")
            .and_then(|text| nonzero_count(parse_cpu_list(&text)?.len())),
        hypervisor: hypervisor::detect(
            files,
            sys::cpuid::hypervisor_signature().as_deref(),
            &cpuinfo,
        ),
        governor: files.read_text(&format!("{CPU_DIR}/cpu0/cpufreq/scaling_governor")),
        frequency_hz: None,
        frequency_max_hz: None,
        idle: describe_idle_driver(files),
        idle_states: read_idle_states(files),
        mitigations: read_mitigations(files),
    }
}

/// Returns current and maximum frequency, Hz, of that of `cpus` which runs closest to its maximum;
/// `None` where the kernel does not scale. Lower ones may have been idle.
pub(super) fn read_frequency(files: &SystemFiles, cpus: &[u32]) -> Option<(u64, u64)> {
    let hz = |cpu: u32, file: &str| {
        let khz: u64 = files.read_number(&format!("{CPU_DIR}/cpu{cpu}/cpufreq/{file}"))?;
        khz.checked_mul(1_000)
    };
    let frequencies = cpus.iter().filter_map(|&cpu| {
        let now = hz(cpu, "scaling_cur_freq")?;
        Some((now, hz(cpu, "cpuinfo_max_freq")?))
    });
    frequencies
        .max_by_key(|&(now, maximum)| u128::from(now) * 1_000_000 / u128::from(maximum.max(1)))
}

fn nonzero_count(count: usize) -> Option<u32> {
    u32::try_from(count).ok().filter(|&count| count > 0)
}

/// Parses a kernel list of processors or nodes (`0-3,8,10-11`); `None` when malformed.
#[must_use]
pub fn parse_cpu_list(text: &str) -> Option<Vec<u32>> {
    // Above the limit of any kernel; bounds the memory that a malformed file can cost.
    const MAX_CPUS: u32 = 1 << 16;
    let mut list = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= MAX_CPUS {
            return None;
        }
        list.extend(first..=last);
    }
    Some(list)
}

/// Formats a sorted list of processors as [`parse_cpu_list`] reads it.
#[must_use]
pub fn format_cpu_list(list: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &cpu in list {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(cpu) => *last = cpu,
            _ => parts.push((cpu, cpu)),
        }
    }
    let texts: Vec<String> = parts
        .into_iter()
        .map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        })
        .collect();
    texts.join(",")
}

/// Number of processors that a thread may run on, from its status file.
fn parse_usable(status: &str) -> Option<u32> {
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    nonzero_count(parse_cpu_list(list)?.len())
}

fn count_processors(cpuinfo: &str) -> usize {
    split_fields(cpuinfo)
        .filter(|(name, value)| *name == "processor" && value.parse::<u32>().is_ok())
        .count()
}

fn split_fields(cpuinfo: &str) -> impl Iterator<Item = (&str, &str)> {
    cpuinfo.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.trim(), value.trim()))
    })
}

/// Name of the model; its field in /proc/cpuinfo differs by architecture.
fn read_model(files: &SystemFiles, cpuinfo: &str) -> Option<String> {
    parse_model(cpuinfo).or_else(|| {
        let board = files.read_text("/proc/device-tree/model")?;
        Some(board.trim_end_matches('\0').to_owned())
    })
}

fn parse_model(cpuinfo: &str) -> Option<String> {
    // x86 and LoongArch, MIPS, POWER and s390, SPARC, RISC-V; ARM has numbers instead.
    const NAMES: [&str; 6] = [
        "model name",
        "Model Name",
        "cpu model",
        "cpu",
        "uarch",
        "Hardware",
    ];
    let field = |field_name: &str| {
        split_fields(cpuinfo)
            .find(|(name, value)| *name == field_name && !value.is_empty())
            .map(|(_, value)| value)
    };
    if let (Some(implementer), Some(part)) = (field("CPU implementer"), field("CPU part")) {
        let arm_part = ARM_PARTS
            .iter()
            .find(|(i, p, _)| *i == implementer && *p == part);
        return Some(match arm_part {
            Some((_, _, name)) => (*name).to_owned(),
            None => format!("ARM implementer {implementer} part {part}"),
        });
    }
    NAMES
        .iter()
        .find_map(|name| field(name))
        .map(|value| value.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// ARM implementer and part (main ID register) of common processors in servers and boards.
const ARM_PARTS: &[(&str, &str, &str)] = &[
    ("0x41", "0xc07", "ARM Cortex-A7"),
    ("0x41", "0xc09", "ARM Cortex-A9"),
    ("0x41", "0xc0f", "ARM Cortex-A15"),
    ("0x41", "0xd03", "ARM Cortex-A53"),
    ("0x41", "0xd04", "ARM Cortex-A35"),
    ("0x41", "0xd05", "ARM Cortex-A55"),
    ("0x41", "0xd07", "ARM Cortex-A57"),
    ("0x41", "0xd08", "ARM Cortex-A72"),
    ("0x41", "0xd09", "ARM Cortex-A73"),
    ("0x41", "0xd0a", "ARM Cortex-A75"),
    ("0x41", "0xd0b", "ARM Cortex-A76"),
    ("0x41", "0xd0c", "ARM Neoverse-N1"),
    ("0x41", "0xd40", "ARM Neoverse-V1"),
    ("0x41", "0xd41", "ARM Cortex-A78"),
    ("0x41", "0xd49", "ARM Neoverse-N2"),
    ("0x41", "0xd4f", "ARM Neoverse-V2"),
    ("0xc0", "0xac3", "Ampere-1"),
    ("0xc0", "0xac4", "Ampere-1a"),
];

/// Idle driver and its states: `intel_idle: POLL, C1, C6`.
fn describe_idle_driver(files: &SystemFiles) -> Option<String> {
    let driver = files
        .read_text(&format!("{CPU_DIR}/cpuidle/current_driver"))
        .filter(|driver| driver != "none")?;
    let states: Vec<String> = read_idle_states(files)
        .into_iter()
        .map(|state| state.name)
        .collect();
    Some(match states.is_empty() {
        true => driver,
        false => format!("{driver}: {}", states.join(", ")),
    })
}

/// Reads the idle states of processor 0, lightest first.
pub(crate) fn read_idle_states(files: &SystemFiles) -> Vec<IdleState> {
    let directory = format!("{CPU_DIR}/cpu0/cpuidle");
    let mut numbers: Vec<u32> = files
        .list_names(&directory)
        .iter()
        .filter_map(|name| name.strip_prefix("state")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
        .into_iter()
        .filter_map(|number| {
            let state = format!("{directory}/state{number}");
            Some(IdleState {
                name: files.read_text(&format!("{state}/name"))?,
                latency_us: files.read_number(&format!("{state}/latency")),
                disabled: files.read_number::<u64>(&format!("{state}/disable")) == Some(1),
            })
        })
        .collect()
}

/// Mitigations by vulnerability, without those that do not affect the processor.
fn read_mitigations(files: &SystemFiles) -> BTreeMap<String, String> {
    let directory = format!("{CPU_DIR}/vulnerabilities");
    files
        .list_names(&directory)
        .into_iter()
        .filter_map(|name| {
            let text = files.read_text(&format!("{directory}/{name}"))?;
            (text != "Not affected").then_some((name, text))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::system_files::tree;
    use super::*;

    #[test]
    fn lists_of_processors() {
        let table: [(&str, Option<&[u32]>); 9] = [
            ("0-1\n", Some(&[0, 1])),
            ("0", Some(&[0])),
            ("0-3,8,10-11", Some(&[0, 1, 2, 3, 8, 10, 11])),
            ("", Some(&[])),
            ("3-1", None),
            ("a", None),
            ("0-4000000000", None),
            ("-1", None),
            ("1-2-3", None),
        ];
        for (text, expected) in table {
            assert_eq!(parse_cpu_list(text).as_deref(), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_list_reads_back(set in prop::collection::btree_set(0_u32..300, 0..40)) {
            let list: Vec<u32> = set.into_iter().collect();
            prop_assert_eq!(parse_cpu_list(&format_cpu_list(&list)), Some(list));
        }
    }

    #[test]
    fn models_by_architecture() {
        let table = [
            (
                "processor\t: 0\nmodel\t\t: 2\nmodel name\t: AMD  EPYC 9004\n",
                Some("AMD EPYC 9004"),
            ),
            (
                "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n",
                Some("ARM Neoverse-N1"),
            ),
            (
                "CPU implementer\t: 0x48\nCPU part\t: 0xd02\nHardware\t: X\n",
                Some("ARM implementer 0x48 part 0xd02"),
            ),
            (
                "processor\t: 0\ncpu\t\t: POWER9, altivec supported\n",
                Some("POWER9, altivec supported"),
            ),
            (
                "system type\t: MT7621\ncpu model\t\t: MIPS 1004Kc V2.15\n",
                Some("MIPS 1004Kc V2.15"),
            ),
            (
                "processor\t: 0\nisa\t: rv64imafdc\nuarch\t: sifive,u74-mc\n",
                Some("sifive,u74-mc"),
            ),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(parse_model(text).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn two_sockets_of_two_cores_with_two_threads() {
        let mut layout = vec![
            (
                "/sys/devices/system/cpu/online".to_owned(),
                "0-7".to_owned(),
            ),
            (
                "/sys/devices/system/node/online".to_owned(),
                "0-1".to_owned(),
            ),
            (
                "/proc/thread-self/status".to_owned(),
                "Name:\tx\nCpus_allowed:\tf0\nCpus_allowed_list:\t4-6\n".to_owned(),
            ),
        ];
        for cpu in 0..8 {
            let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
            layout.push((
                format!("{topology}/thread_siblings_list"),
                format!("{},{}", cpu % 4, cpu % 4 + 4),
            ));
            layout.push((
                format!("{topology}/physical_package_id"),
                (cpu % 2).to_string(),
            ));
        }
        let layout: Vec<(&str, &str)> = layout
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .collect();
        let (_directory, files) = tree(&layout);
        let cpu = read_cpu(&files);
        assert_eq!(
            (cpu.usable, cpu.logical, cpu.cores, cpu.sockets),
            (Some(3), Some(8), Some(4), Some(2))
        );
        assert_eq!(cpu.numa_nodes, Some(2));
    }

    #[test]
    fn idle_states_and_mitigations() {
        let (_directory, files) = tree(&[
            (
                "/sys/devices/system/cpu/cpuidle/current_driver",
                "intel_idle\n",
            ),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state10/name", "C6\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state2/name", "C1\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state2/latency", "2\n"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state2/disable", "1\n"),
            (
                "/sys/devices/system/cpu/vulnerabilities/l1tf",
                "Not affected\n",
            ),
            (
                "/sys/devices/system/cpu/vulnerabilities/spectre_v1",
                "Mitigation: x\n",
            ),
        ]);
        assert_eq!(
            describe_idle_driver(&files).as_deref(),
            Some("intel_idle: POLL, C1, C6")
        );
        assert_eq!(
            read_idle_states(&files)[1],
            IdleState {
                name: "C1".to_owned(),
                latency_us: Some(2),
                disabled: true
            }
        );
        assert_eq!(
            read_mitigations(&files),
            BTreeMap::from([("spectre_v1".to_owned(), "Mitigation: x".to_owned())])
        );
    }

    #[test]
    fn nothing_readable_is_all_absent() {
        let (_directory, files) = tree(&[]);
        let facts = read_cpu(&files);
        assert_eq!(
            CpuFacts {
                hypervisor: None,
                ..facts
            },
            CpuFacts::default()
        );
    }
}
