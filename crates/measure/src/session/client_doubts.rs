//! Warnings about the figures that are known before the measurement.

use linerate_metric::plan::{Kind, Plan, Wait};
use linerate_metric::record::Doubt;

use crate::workload::AWAKE_NS;

/// Returns the warnings for a plan, on a machine with `logical` CPUs.
pub(super) fn doubts_before(plan: &Plan, shares_cores: bool, logical: Option<u32>) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    let usable = linerate_host::sys::cpu::usable().map_or(1, |cpus| cpus.len());
    // The other end may run on CPUs that this process may not use.
    let cores = usable.max(logical.map_or(1, |logical| logical as usize));
    let threads = plan.threads.as_ref();
    let threads = threads.map_or(2 * plan.streams, |threads| threads.near + threads.far) as usize;
    let busy = threads * plan.directions.len();
    let spins = |wait: Wait| wait == Wait::Spin;
    // Paced threads sleep between departures: contention shows afterwards (`core-shared`).
    let sleeps = plan.rate_bps.is_some()
        && !(plan.wait.as_ref()).is_some_and(|wait| spins(wait.near) || spins(wait.far));
    if shares_cores && busy > cores && plan.kind == Kind::Throughput && !sleeps {
        doubts.push(Doubt::new(
            "shared-cores",
            format!("both ends run on this machine: {busy} busy threads on {cores} cores"),
        ));
    }
    doubts.extend(awake(plan, usable, shares_cores));
    let throttled = plan.wait.as_ref().is_some_and(|wait| {
        (plan.sched.near.is_real_time() && spins(wait.near))
            || (plan.sched.far.is_real_time() && spins(wait.far))
    });
    if throttled && (!plan.round_trip.yields() || !plan.stamps.is_none()) {
        doubts.push(Doubt::new(
            "rt-throttle",
            "the kernel throttles a spinning real-time thread (kernel.sched_rt_runtime_us): \
             gaps of some 50 ms per second; use --wait block with it, or --rt-yield",
        ));
    }
    doubts
}

/// Warns when open-loop threads, which are awake before each departure, exceed the available CPUs.
fn awake(plan: &Plan, usable: usize, shares_cores: bool) -> Option<Doubt> {
    let rate = plan.round_trip.rate_per_second?;
    let share = (rate as f64 * AWAKE_NS as f64 / 1e9).min(1.0);
    let threads = (plan.threads.as_ref()).map_or(plan.streams, |threads| threads.near);
    let busy = f64::from(threads) * share;
    // With both ends on one machine, the responding threads need a CPU too.
    let room = usable as f64 - f64::from(u8::from(shares_cores));
    // A single thread waits only for its own departures.
    (threads > 1 && busy > room.max(1.0)).then(|| {
        Doubt::new(
            "awake-threads",
            format!(
                "an open-loop thread is awake {} us before each departure: \
                 {threads} of them keep {busy:.1} CPUs busy, and this end has {usable}; requests leave late; \
                 use fewer streams at a higher --rate",
                AWAKE_NS / 1_000,
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::plan::{Ends, Protocol};

    fn spinning(change: impl FnOnce(&mut Plan)) -> Vec<String> {
        let mut plan = Plan::new(Kind::Latency, Protocol::Udp, "far".to_owned());
        plan.wait = Some(Ends::both(Wait::Spin));
        plan.sched = Ends::both("fifo:50".parse().expect("a scheduling class"));
        change(&mut plan);
        let doubts = doubts_before(&plan, true, Some(2));
        doubts.into_iter().map(|doubt| doubt.doubt).collect()
    }

    #[test]
    fn the_throttle_is_doubted_unless_threads_really_yield() {
        let throttled = |found: Vec<String>| found.contains(&"rt-throttle".to_owned());
        assert!(throttled(spinning(|_| {})));
        assert!(!throttled(spinning(|plan| plan.round_trip.rt_yield = true)));
        // A schedule has no pauses to yield in.
        assert!(throttled(spinning(|plan| {
            plan.round_trip.rt_yield = true;
            plan.round_trip.rate_per_second = Some(1_000);
        })));
        assert!(throttled(spinning(|plan| {
            plan.round_trip.rt_yield = true;
            plan.stamps = linerate_metric::plan::Stamping::Scheduler;
        })));
    }

    #[test]
    fn ends_on_processors_of_their_own_share_none() {
        let shared_with = |streams: u32, logical: u32, change: fn(&mut Plan)| {
            let mut plan = Plan::new(Kind::Throughput, Protocol::Tcp, "far".to_owned());
            plan.streams = streams;
            change(&mut plan);
            let doubts = doubts_before(&plan, true, Some(logical));
            doubts.iter().any(|doubt| doubt.doubt == "shared-cores")
        };
        let shared = |streams, logical| shared_with(streams, logical, |_| ());
        // Two threads and enough CPUs, even if this process may use only some of them.
        assert!(!shared(1, 1_024) && !shared(512, 1_024));
        assert!(shared(513, 1_024));
        // Paced threads sleep, unless they spin.
        assert!(!shared_with(513, 1_024, |plan| plan.rate_bps = Some(1_000_000)));
        assert!(shared_with(513, 1_024, |plan| {
            plan.rate_bps = Some(1_000_000);
            plan.wait = Some(Ends {
                near: Wait::Block,
                far: Wait::Spin,
            });
        }));
    }

    #[test]
    fn more_awake_threads_than_cores_are_doubted() {
        let awake = |streams: u32, rate: u64| {
            let mut plan = Plan::new(Kind::Latency, Protocol::Udp, "far".to_owned());
            plan.streams = streams;
            plan.round_trip.rate_per_second = Some(rate);
            awake(&plan, 4, true).is_some()
        };
        assert!(awake(5, 10_000) && awake(100, 1_000));
        // Awake for 15 % of the time each, or no more threads than CPUs.
        assert!(!awake(5, 1_000) && !awake(3, 1_000_000) && !awake(1, 1_000_000));
    }
}
