//! Checks of the processors: number, clock, frequency, idle states, cache distance, steal time.

use std::thread;
use std::time::Duration;

use super::inputs::Ground;
use super::{Answer, cache_line};
use crate::settings::idle_hold::DMA_LATENCY;
use crate::snapshot::{Files, cpu_list, idle_states as states_of, text_of_cpu_list};
use crate::steal::Ticks;
use crate::sys::{clock, cpu};

pub(super) fn processors(ground: &Ground) -> Answer {
    let cpu = &ground.host.cpu;
    let Ok(usable) = cpu::usable() else {
        return Answer::unknown("the affinity of this process could not be read");
    };
    let list = text_of_cpu_list(&usable);
    let total = cpu.logical.map_or(usable.len(), |logical| logical as usize);
    let mut found = format!("{} of {total} usable ({list})", usable.len());
    if let Some(cores) = cpu.cores {
        found += &format!(", {cores} cores");
    }
    if let Some(hypervisor) = &cpu.hypervisor {
        found += &format!(", under {hypervisor}");
    }
    if let Some(quota) = quota(ground) {
        return Answer::limited(format!(
            "{found}, but a cgroup limits this process to {quota:.1} processors: threads are throttled when the quota is used up"
        ))
        .enable("lift the cgroup's cpu.max (`docker run` without `--cpus`)");
    }
    if usable.len() < total {
        return Answer::limited(found).enable(format!("`taskset -c 0-{} linerate …`", total - 1));
    }
    if usable.len() < 2 {
        return Answer::limited(format!("{found}: client and server share it"))
            .enable("a machine with two processors or more");
    }
    Answer::ok(found)
}

/// Returns the smallest quota of the cgroups (version 2) above this process, in processors.
fn quota(ground: &Ground) -> Option<f64> {
    let cgroups = ground.files.text("/proc/thread-self/cgroup")?;
    let mut path = cgroups
        .lines()
        .find_map(|line| line.strip_prefix("0::"))?
        .trim_end_matches('/');
    let mut least: Option<f64> = None;
    loop {
        let quota = ground
            .files
            .text(&format!("/sys/fs/cgroup{path}/cpu.max"))
            .and_then(|text| quota_of(&text));
        least = match (least, quota) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        match path.rsplit_once('/') {
            Some((above, _)) => path = above,
            None => return least,
        }
    }
}

/// Parses `150000 100000`: µs of processor time per period, and the period in µs.
fn quota_of(cpu_max: &str) -> Option<f64> {
    let (quota, period) = cpu_max.split_once(' ')?;
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.trim().parse().ok()?);
    (period > 0).then(|| quota as f64 / period as f64)
}

pub(super) fn clock_source(ground: &Ground) -> Answer {
    const DIRECTORY: &str = "/sys/devices/system/clocksource/clocksource0";
    let available = ground
        .files
        .text(&format!("{DIRECTORY}/available_clocksource"))
        .unwrap_or_default();
    clock_source_of(
        ground.host.clock_source.as_deref(),
        &available,
        clock_read_ns(),
    )
}

fn clock_source_of(name: Option<&str>, available: &str, read_ns: u64) -> Answer {
    // Through the vDSO a read takes 20 to 50 ns, through a system call or a device 150 ns and more.
    const SLOW_NS: u64 = 120;
    let found = format!("{}, {read_ns} ns per read", name.unwrap_or("unnamed"));
    if read_ns < SLOW_NS {
        return Answer::ok(found);
    }
    let answer = Answer::limited(format!(
        "{found}: a timestamp costs as much as the call it times"
    ));
    let tsc = available.split_whitespace().any(|source| source == "tsc");
    match tsc && name != Some("tsc") {
        true => answer.enable(
            "`echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource`",
        ),
        false => answer.enable("boot with `tsc=reliable` if the processor has an invariant TSC"),
    }
}

/// Measures the time of one clock read: the minimum of several batches, so that interruptions do
/// not count.
fn clock_read_ns() -> u64 {
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

pub(super) fn cache_line(ground: &Ground) -> Answer {
    let usable = cpu::usable().unwrap_or_default();
    let Some((a, b)) = pair(&ground.files, &usable) else {
        return Answer::unknown("needs two processors");
    };
    match cache_line::cache_line_round_trip(a, b) {
        Some(time) => cache_line_of(a, b, time),
        None => Answer::unknown(format!(
            "processors {a} and {b} did not run at the same time"
        )),
    }
}

/// Measures the median round trip of a cache line between two usable processors, of different cores
/// if possible. Both are busy for 50 ms. `None` with one processor, or if they never ran at the
/// same time.
#[must_use]
pub fn processors_apart() -> Option<Duration> {
    let (a, b) = pair(&Files::machine(), &cpu::usable().ok()?)?;
    cache_line::cache_line_round_trip(a, b)
}

/// Chooses two processors, of different cores if possible.
fn pair(files: &Files, usable: &[u32]) -> Option<(u32, u32)> {
    let (&first, rest) = usable.split_first()?;
    let siblings = files
        .text(&format!(
            "/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list"
        ))
        .and_then(|text| cpu_list(&text))
        .unwrap_or_default();
    let second = rest
        .iter()
        .find(|cpu| !siblings.contains(cpu))
        .or(rest.first())?;
    Some((first, *second))
}

fn cache_line_of(a: u32, b: u32, time: Duration) -> Answer {
    let found = format!(
        "{} ns round trip between processors {a} and {b}",
        time.as_nanos()
    );
    match time < cache_line::NEAR_BELOW {
        true => Answer::ok(format!("{found} (near: they share a cache)")),
        false => Answer::limited(format!(
            "{found} (far: no shared cache at the moment, or other load)"
        ))
        .enable(
            "pin both ends to processors that share a cache; \
             on a virtual machine measure again, because its host moves the processors",
        ),
    }
}

pub(super) fn frequency_scaling(ground: &Ground) -> Answer {
    const DIRECTORY: &str = "/sys/devices/system/cpu/cpu0/cpufreq";
    let files = &ground.files;
    let Some(governor) = ground.host.cpu.governor.as_deref() else {
        return match files.exists("/sys/devices/system/cpu/cpu0") {
            true => {
                Answer::ok("no frequency scaling by the kernel; firmware or hypervisor may scale")
            }
            false => Answer::unknown("/sys does not show the processors"),
        };
    };
    let mhz = |file: &str| {
        files
            .number::<u64>(&format!("{DIRECTORY}/{file}"))
            .map(|khz| khz / 1000)
    };
    let range = mhz("scaling_min_freq")
        .zip(mhz("scaling_max_freq"))
        .map_or(String::new(), |(least, most)| {
            format!(", {least} to {most} MHz")
        });
    let driver = files
        .text(&format!("{DIRECTORY}/scaling_driver"))
        .map_or(String::new(), |driver| format!(" ({driver})"));
    let found = format!("governor {governor}{driver}{range}");
    match governor {
        "performance" => Answer::ok(found),
        _ => Answer::limited(found).enable(
            "`echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor`",
        ),
    }
}

pub(super) fn idle_states(ground: &Ground) -> Answer {
    let writable = std::fs::OpenOptions::new()
        .write(true)
        // Opened only: the kernel takes no request before a write.
        .open(ground.files.path(DMA_LATENCY));
    idle_states_of(ground, writable.err().map(|error| error.kind()))
}

fn idle_states_of(ground: &Ground, refused: Option<std::io::ErrorKind>) -> Answer {
    let states = states_of(&ground.files);
    let names: Vec<String> = states
        .iter()
        .filter(|state| !state.disabled)
        .map(|state| match state.latency_us {
            Some(us) if us > 0 => format!("{} {us} us", state.name),
            _ => state.name.clone(),
        })
        .collect();
    let driver = ground.host.cpu.idle.as_deref();
    let found = match (driver.and_then(|text| text.split(':').next()), names.len()) {
        (Some(driver), 1..) => format!("{driver}: {}", names.join(", ")),
        (Some(driver), 0) => driver.to_owned(),
        (None, _) => "no idle driver: idle processors halt".to_owned(),
    };
    // The POLL state is a loop without wake-up cost: there is nothing to disable.
    if !states.is_empty()
        && states
            .iter()
            .all(|state| state.disabled || state.name == "POLL")
    {
        return Answer::ok(found);
    }
    match refused {
        None => Answer::ok(format!("{found}; --hold-latency can disable them")),
        Some(std::io::ErrorKind::NotFound) => Answer::limited(format!(
            "{found}; no {DMA_LATENCY} to disable them"
        ))
        .enable("in a container `--device /dev/cpu_dma_latency`, else boot with `idle=poll`"),
        Some(_) => Answer::limited(format!(
            "{found}; {DMA_LATENCY} is not writable by this user"
        ))
        .enable(format!("run with sudo, or `sudo chmod o+w {DMA_LATENCY}`")),
    }
}

pub(super) fn steal(ground: &Ground) -> Answer {
    // Twenty ticks per processor.
    const SPAN: Duration = Duration::from_millis(200);
    thread::sleep(SPAN.saturating_sub(ground.began.elapsed()));
    let stolen = Ticks::now()
        .zip(ground.ticks)
        .and_then(|(now, before)| now.stolen_since(&before));
    match stolen {
        Some(fraction) => steal_of(fraction, ground.began.elapsed()),
        None => Answer::unknown("/proc/stat does not count steal time"),
    }
}

fn steal_of(fraction: f64, span: Duration) -> Answer {
    // Below this, the throughput of repeated runs agreed within its usual spread.
    const TOLERABLE: f64 = 0.01;
    let found = format!(
        "{:.1} % of processor time over {} ms",
        100.0 * fraction,
        span.as_millis()
    );
    match fraction < TOLERABLE {
        true => Answer::ok(found),
        false => Answer::limited(format!("{found}: the hypervisor runs other machines")).enable(
            "a less loaded host, or dedicated processors (dedicated instance, vCPU pinning)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tree;
    use linerate_metric::facts::Ability;

    #[test]
    fn quotas_of_every_cgroup_above_count() {
        assert_eq!(quota_of("max 100000"), None);
        assert_eq!(quota_of("150000 100000"), Some(1.5));
        assert_eq!(quota_of("1 0"), None);
        let (_directory, files) = tree(&[
            ("/proc/thread-self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/b/cpu.max", "400000 100000\n"),
            ("/sys/fs/cgroup/a/cpu.max", "50000 100000\n"),
            ("/sys/fs/cgroup/cpu.max", "max 100000\n"),
        ]);
        assert_eq!(quota(&Ground::on(files)), Some(0.5));
        let (_directory, files) = tree(&[
            ("/proc/thread-self/cgroup", "0::/\n"),
            ("/sys/fs/cgroup/cpu.max", "200000 100000\n"),
        ]);
        assert_eq!(quota(&Ground::on(files)), Some(2.0));
        let (_directory, files) = tree(&[]);
        assert_eq!(quota(&Ground::on(files)), None);
    }

    #[test]
    fn slow_clocks_are_limited() {
        let table = [
            (Some("tsc"), "tsc hpet", 22, Ability::Ok, ""),
            (None, "", 30, Ability::Ok, ""),
            (Some("hpet"), "tsc hpet", 900, Ability::Limited, "echo tsc"),
            (Some("xen"), "xen", 300, Ability::Limited, "tsc=reliable"),
        ];
        for (name, available, read_ns, ability, enable) in table {
            let answer = clock_source_of(name, available, read_ns);
            assert_eq!(answer.ability, ability, "{name:?}");
            assert!(
                answer.enable.unwrap_or_default().contains(enable),
                "{name:?}"
            );
        }
    }

    #[test]
    fn near_and_far_steal_and_none() {
        let ns = Duration::from_nanos;
        assert_eq!(cache_line_of(0, 1, ns(110)).ability, Ability::Ok);
        assert_eq!(cache_line_of(0, 1, ns(500)).ability, Ability::Limited);
        assert_eq!(steal_of(0.0, ns(1)).ability, Ability::Ok);
        assert_eq!(steal_of(0.5, ns(1)).ability, Ability::Limited);
    }

    #[test]
    fn a_sibling_is_not_another_core() {
        let (_directory, files) = tree(&[(
            "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
            "0-1\n",
        )]);
        let ground = Ground::on(files);
        assert_eq!(pair(&ground.files, &[0, 1, 2]), Some((0, 2)));
        assert_eq!(pair(&ground.files, &[0, 1]), Some((0, 1)));
        assert_eq!(pair(&ground.files, &[0]), None);
        assert_eq!(pair(&ground.files, &[]), None);
    }

    #[test]
    fn governors() {
        const GOVERNOR: &str = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
        let table: [(&[(&str, &str)], Ability); 4] = [
            (&[(GOVERNOR, "performance\n")], Ability::Ok),
            (&[(GOVERNOR, "powersave\n")], Ability::Limited),
            (&[("/sys/devices/system/cpu/cpu0/uevent", "")], Ability::Ok),
            (&[], Ability::Unknown),
        ];
        for (layout, ability) in table {
            let (_directory, files) = tree(layout);
            assert_eq!(
                frequency_scaling(&Ground::on(files)).ability,
                ability,
                "{layout:?}"
            );
        }
    }

    #[test]
    fn idle_states_that_cannot_be_held_off_are_limited() {
        use std::io::ErrorKind;
        const DRIVER: (&str, &str) = ("/sys/devices/system/cpu/cpuidle/current_driver", "x\n");
        const POLL: (&str, &str) = ("/sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL\n");
        const C1: (&str, &str) = ("/sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C1\n");
        const C1_OFF: (&str, &str) = ("/sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "1\n");
        type Row<'a> = (&'a [(&'a str, &'a str)], Option<ErrorKind>, Ability);
        let denied = Some(ErrorKind::PermissionDenied);
        let table: [Row; 6] = [
            (&[DRIVER, POLL, C1], None, Ability::Ok),
            (&[DRIVER, POLL, C1], denied, Ability::Limited),
            (&[DRIVER, POLL, C1, C1_OFF], denied, Ability::Ok),
            (&[DRIVER, POLL], denied, Ability::Ok),
            (&[], denied, Ability::Limited),
            (&[DRIVER, C1], Some(ErrorKind::NotFound), Ability::Limited),
        ];
        for (layout, refused, ability) in table {
            let (_directory, files) = tree(layout);
            let answer = idle_states_of(&Ground::on(files), refused);
            assert_eq!(answer.ability, ability, "{layout:?} {answer:?}");
        }
    }
}
