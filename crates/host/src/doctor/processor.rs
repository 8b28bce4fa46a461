//! Checks of the processors: number, clock, frequency, idle states, cache distance, steal time.

use std::thread;
use std::time::Duration;

use linerate_sys::{clock, cpu};

use super::inputs::DoctorInputs;
use super::{CheckOutcome, cache_line};
use crate::settings::idle_hold::CPU_DMA_LATENCY_PATH;
use crate::snapshot::{
    SystemFiles, format_cpu_list, parse_cpu_list, read_idle_states as states_of,
};
use crate::steal::StealTicks;

pub(super) fn check_processors(inputs: &DoctorInputs) -> CheckOutcome {
    let cpu = &inputs.host.cpu;
    let Ok(usable) = cpu::list_usable() else {
        return CheckOutcome::unknown("the affinity of this process could not be read");
    };
    let list = format_cpu_list(&usable);
    let total = cpu.logical.map_or(usable.len(), |logical| logical as usize);
    let mut detail = format!("{} of {total} usable ({list})", usable.len());
    if let Some(cores) = cpu.cores {
        detail += &format!(", {cores} cores");
    }
    if let Some(hypervisor) = &cpu.hypervisor {
        detail += &format!(", under {hypervisor}");
    }
    if let Some(quota) = &cpu.quota {
        return CheckOutcome::limited(format!(
            "{detail}, but a cgroup quota limits this process to {} ms of processor time each {} ms \
             ({:.2} processors, {}): its threads stop until the next period when it is used up",
            quota.quota_ns as f64 / 1e6,
            quota.period_ns as f64 / 1e6,
            quota.cpus(),
            quota.file
        ))
        .with_enable(format!(
            "`{}` as root, or start the container without a limit (`docker run` without `--cpus`, \
             Kubernetes without `limits.cpu`)",
            quota.lift_command()
        ));
    }
    if usable.len() < total {
        return CheckOutcome::limited(detail)
            .with_enable(format!("`taskset -c 0-{} linerate …`", total - 1));
    }
    if usable.len() < 2 {
        return CheckOutcome::limited(format!("{detail}: client and server share it"))
            .with_enable("use a machine with two CPUs or more");
    }
    CheckOutcome::ok(detail)
}

pub(super) fn check_clock_source(inputs: &DoctorInputs) -> CheckOutcome {
    const DIRECTORY: &str = "/sys/devices/system/clocksource/clocksource0";
    let available = inputs
        .files
        .read_text(&format!("{DIRECTORY}/available_clocksource"))
        .unwrap_or_default();
    assess_clock_source(
        inputs.host.clock_source.as_deref(),
        &available,
        measure_clock_read_ns(),
    )
}

fn assess_clock_source(name: Option<&str>, available: &str, read_ns: u64) -> CheckOutcome {
    // Through the vDSO a read takes 20 to 50 ns, through a system call or a device 150 ns and more.
    const SLOW_NS: u64 = 120;
    let detail = format!("{}, {read_ns} ns per read", name.unwrap_or("unnamed"));
    if read_ns < SLOW_NS {
        return CheckOutcome::ok(detail);
    }
    let result = CheckOutcome::limited(format!(
        "{detail}: a timestamp costs as much as the call it times"
    ));
    let tsc = available.split_whitespace().any(|source| source == "tsc");
    match tsc && name != Some("tsc") {
        true => result.with_enable(
            "`echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource`",
        ),
        false => result.with_enable("boot with `tsc=reliable` if the CPU has an invariant TSC"),
    }
}

/// Measures the time of one clock read: the minimum of several batches, so that interruptions do
/// not count.
fn measure_clock_read_ns() -> u64 {
    const BATCHES: usize = 20;
    const READS: u64 = 500;
    (0..BATCHES)
        .map(|_| {
            let before = clock::now();
            for _ in 0..READS {
                std::hint::black_box(clock::now());
            }
            (clock::now() - before) / READS
        })
        .min()
        .expect("there are batches")
}

pub(super) fn check_cache_line(inputs: &DoctorInputs) -> CheckOutcome {
    let usable = cpu::list_usable().unwrap_or_default();
    let Some((first, second)) = choose_pair(&inputs.files, &usable) else {
        return CheckOutcome::unknown("needs two CPUs");
    };
    match cache_line::measure_cache_line(first, second) {
        Some(time) => assess_cache_line(first, second, time),
        None => CheckOutcome::unknown(format!(
            "CPUs {first} and {second} did not run at the same time"
        )),
    }
}

/// Measures the median round trip of a cache line between two usable processors, of different cores
/// if possible. Both are busy for 50 ms. `None` with one processor, or if they never ran at the
/// same time.
#[must_use]
pub fn measure_processor_distance() -> Option<Duration> {
    let (first, second) = choose_pair(&SystemFiles::of_machine(), &cpu::list_usable().ok()?)?;
    cache_line::measure_cache_line(first, second)
}

/// Chooses two processors, of different cores if possible.
fn choose_pair(files: &SystemFiles, usable: &[u32]) -> Option<(u32, u32)> {
    let (&first, rest) = usable.split_first()?;
    let siblings = files
        .read_text(&format!(
            "/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list"
        ))
        .and_then(|text| parse_cpu_list(&text))
        .unwrap_or_default();
    let second = rest
        .iter()
        .find(|cpu| !siblings.contains(cpu))
        .or(rest.first())?;
    Some((first, *second))
}

fn assess_cache_line(first: u32, second: u32, time: Duration) -> CheckOutcome {
    let detail = format!(
        "{} ns round trip between CPUs {first} and {second}",
        time.as_nanos()
    );
    match time < cache_line::NEAR_LIMIT {
        true => CheckOutcome::ok(format!("{detail} (fast: they share a cache)")),
        false => CheckOutcome::limited(format!("{detail} (slow: no shared cache, or other load)"))
            .with_enable(
                "pin both ends to CPUs that share a cache; \
             on a virtual machine measure again, because its host moves the CPUs",
            ),
    }
}

pub(super) fn check_frequency_scaling(inputs: &DoctorInputs) -> CheckOutcome {
    const DIRECTORY: &str = "/sys/devices/system/cpu/cpu0/cpufreq";
    let files = &inputs.files;
    let Some(governor) = inputs.host.cpu.governor.as_deref() else {
        return match files.exists("/sys/devices/system/cpu/cpu0") {
            true => CheckOutcome::ok(
                "no frequency scaling by the kernel; firmware or hypervisor may scale",
            ),
            false => CheckOutcome::unknown("/sys does not show the CPUs"),
        };
    };
    let mhz = |file: &str| {
        files
            .read_number::<u64>(&format!("{DIRECTORY}/{file}"))
            .map(|khz| khz / 1000)
    };
    let range = mhz("scaling_min_freq")
        .zip(mhz("scaling_max_freq"))
        .map_or(String::new(), |(least, most)| {
            format!(", {least} to {most} MHz")
        });
    let driver = files
        .read_text(&format!("{DIRECTORY}/scaling_driver"))
        .map_or(String::new(), |driver| format!(" ({driver})"));
    let detail = format!("governor {governor}{driver}{range}");
    match governor {
        "performance" => CheckOutcome::ok(detail),
        _ => CheckOutcome::limited(detail).with_enable(
            "`echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor`",
        ),
    }
}

pub(super) fn check_idle_states(inputs: &DoctorInputs) -> CheckOutcome {
    let writable = std::fs::OpenOptions::new()
        .write(true)
        // Opened only: the kernel takes no request before a write.
        .open(inputs.files.path(CPU_DMA_LATENCY_PATH));
    assess_idle_states(inputs, writable.err().map(|error| error.kind()))
}

fn assess_idle_states(
    inputs: &DoctorInputs,
    open_error: Option<std::io::ErrorKind>,
) -> CheckOutcome {
    let states = states_of(&inputs.files);
    let names: Vec<String> = states
        .iter()
        .filter(|state| !state.disabled)
        .map(|state| match state.latency_us {
            Some(us) if us > 0 => format!("{} {us} us", state.name),
            _ => state.name.clone(),
        })
        .collect();
    let driver = inputs.host.cpu.idle.as_deref();
    let detail = match (driver.and_then(|text| text.split(':').next()), names.len()) {
        (Some(driver), 1..) => format!("{driver}: {}", names.join(", ")),
        (Some(driver), 0) => driver.to_owned(),
        (None, _) => "without an idle driver, idle CPUs halt".to_owned(),
    };
    // The POLL state is a loop without wake-up cost: there is nothing to disable.
    if !states.is_empty()
        && states
            .iter()
            .all(|state| state.disabled || state.name == "POLL")
    {
        return CheckOutcome::ok(detail);
    }
    match open_error {
        None => CheckOutcome::ok(format!("{detail}; --hold-latency can disable them")),
        Some(std::io::ErrorKind::NotFound) => CheckOutcome::limited(format!(
            "{detail}; no {CPU_DMA_LATENCY_PATH} to disable them"
        ))
        .with_enable("in a container `--device /dev/cpu_dma_latency`, else boot with `idle=poll`"),
        Some(_) => CheckOutcome::limited(format!(
            "{detail}; {CPU_DMA_LATENCY_PATH} is not writable by this user"
        ))
        .with_enable(format!(
            "run with sudo, or `sudo chmod o+w {CPU_DMA_LATENCY_PATH}`"
        )),
    }
}

pub(super) fn check_steal(inputs: &DoctorInputs) -> CheckOutcome {
    // Twenty ticks per processor.
    const MIN_SAMPLE_TIME: Duration = Duration::from_millis(200);
    thread::sleep(MIN_SAMPLE_TIME.saturating_sub(inputs.started_at.elapsed()));
    let stolen = StealTicks::read()
        .zip(inputs.start_ticks)
        .and_then(|(now, before)| now.stolen_fraction_since(&before));
    match stolen {
        Some(fraction) => assess_steal(fraction, inputs.started_at.elapsed()),
        None => CheckOutcome::unknown("/proc/stat does not count steal time"),
    }
}

fn assess_steal(fraction: f64, duration: Duration) -> CheckOutcome {
    // Below this, the throughput of repeated runs agreed within its usual spread.
    const MAX_STEAL_FRACTION: f64 = 0.01;
    let detail = format!(
        "{:.1} % of CPU time over {} ms",
        100.0 * fraction,
        duration.as_millis()
    );
    match fraction < MAX_STEAL_FRACTION {
        true => CheckOutcome::ok(detail),
        false => CheckOutcome::limited(format!("{detail}: the hypervisor runs other machines"))
            .with_enable(
                "use a less loaded host, or dedicated CPUs (dedicated instance, vCPU pinning)",
            ),
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::facts::Support;

    use super::*;
    use crate::snapshot::tree;

    #[test]
    fn a_quota_limits_the_processors() {
        let (_directory, files) = tree(&[
            ("/proc/thread-self/cgroup", "0::/box"),
            (
                "/proc/thread-self/mountinfo",
                "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
            ),
            ("/sys/fs/cgroup/box/cpu.max", "30000 100000"),
        ]);
        let result = check_processors(&DoctorInputs::from_files(files));
        assert_eq!(result.support, Support::Limited);
        let detail = result.detail;
        assert!(
            detail.contains("30 ms") && detail.contains("0.30"),
            "{detail}"
        );
        let enable = result.enable.unwrap_or_default();
        assert!(
            enable.contains("echo max > /sys/fs/cgroup/box/cpu.max"),
            "{enable}"
        );
    }

    #[test]
    fn slow_clocks_are_limited() {
        let table = [
            (Some("tsc"), "tsc hpet", 22, Support::Ok, ""),
            (None, "", 30, Support::Ok, ""),
            (Some("hpet"), "tsc hpet", 900, Support::Limited, "echo tsc"),
            (Some("xen"), "xen", 300, Support::Limited, "tsc=reliable"),
        ];
        for (name, available, read_ns, support, enable) in table {
            let result = assess_clock_source(name, available, read_ns);
            assert_eq!(result.support, support, "{name:?}");
            assert!(
                result.enable.unwrap_or_default().contains(enable),
                "{name:?}"
            );
        }
    }

    #[test]
    fn distance_and_steal_are_assessed() {
        let ns = Duration::from_nanos;
        assert_eq!(assess_cache_line(0, 1, ns(110)).support, Support::Ok);
        assert_eq!(assess_cache_line(0, 1, ns(500)).support, Support::Limited);
        assert_eq!(assess_steal(0.0, ns(1)).support, Support::Ok);
        assert_eq!(assess_steal(0.5, ns(1)).support, Support::Limited);
    }

    #[test]
    fn a_sibling_is_not_another_core() {
        let (_directory, files) = tree(&[(
            "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
            "0-1\n",
        )]);
        let inputs = DoctorInputs::from_files(files);
        assert_eq!(choose_pair(&inputs.files, &[0, 1, 2]), Some((0, 2)));
        assert_eq!(choose_pair(&inputs.files, &[0, 1]), Some((0, 1)));
        assert_eq!(choose_pair(&inputs.files, &[0]), None);
        assert_eq!(choose_pair(&inputs.files, &[]), None);
    }

    #[test]
    fn governors() {
        const GOVERNOR: &str = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
        let table: [(&[(&str, &str)], Support); 4] = [
            (&[(GOVERNOR, "performance\n")], Support::Ok),
            (&[(GOVERNOR, "powersave\n")], Support::Limited),
            (&[("/sys/devices/system/cpu/cpu0/uevent", "")], Support::Ok),
            (&[], Support::Unknown),
        ];
        for (layout, support) in table {
            let (_directory, files) = tree(layout);
            assert_eq!(
                check_frequency_scaling(&DoctorInputs::from_files(files)).support,
                support,
                "{layout:?}"
            );
        }
    }

    #[test]
    fn idle_states_that_cannot_be_disabled_are_limited() {
        use std::io::ErrorKind;
        const DRIVER: (&str, &str) = ("/sys/devices/system/cpu/cpuidle/current_driver", "x\n");
        const POLL: (&str, &str) = ("/sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL\n");
        const C1: (&str, &str) = ("/sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C1\n");
        const C1_OFF: (&str, &str) = ("/sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "1\n");
        type IdleStatesCase<'a> = (&'a [(&'a str, &'a str)], Option<ErrorKind>, Support);
        let open_error = Some(ErrorKind::PermissionDenied);
        let table: [IdleStatesCase; 6] = [
            (&[DRIVER, POLL, C1], None, Support::Ok),
            (&[DRIVER, POLL, C1], open_error, Support::Limited),
            (&[DRIVER, POLL, C1, C1_OFF], open_error, Support::Ok),
            (&[DRIVER, POLL], open_error, Support::Ok),
            (&[], open_error, Support::Limited),
            (&[DRIVER, C1], Some(ErrorKind::NotFound), Support::Limited),
        ];
        for (layout, refused, support) in table {
            let (_directory, files) = tree(layout);
            let result = assess_idle_states(&DoctorInputs::from_files(files), refused);
            assert_eq!(result.support, support, "{layout:?} {result:?}");
        }
    }
}
