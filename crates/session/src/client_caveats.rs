//! Warnings about the figures that are known before the measurement.

use linerate_record::ids::CaveatId;
use linerate_record::plan::{Plan, RunKind, WaitMode};
use linerate_record::record::Caveat;
use linerate_transport::SPIN_BEFORE_DEPARTURE_NS;

use crate::thread_plan::count_usable_cpus;

/// Returns the warnings for a plan, on a machine with `logical_cpus` CPUs.
pub(super) fn warnings_before(
    plan: &Plan,
    shares_cores: bool,
    logical_cpus: Option<u32>,
) -> Vec<Caveat> {
    let mut warnings = Vec::new();
    let usable_cpus = count_usable_cpus();
    // The other end may run on CPUs that this process may not use.
    let cores = usable_cpus.max(logical_cpus.map_or(1, |logical_cpus| logical_cpus as usize));
    let threads = plan.threads.as_ref();
    let threads =
        threads.map_or(2 * plan.streams, |threads| threads.client + threads.server) as usize;
    let busy = threads * plan.directions.len();
    let spins = |wait: WaitMode| wait == WaitMode::Spin;
    // Paced threads sleep between departures: contention shows afterwards (`core-shared`).
    let sleeps = plan.rate_bps.is_some()
        && !(plan.wait.as_ref()).is_some_and(|wait| spins(wait.client) || spins(wait.server));
    if shares_cores && busy > cores && plan.kind == RunKind::Throughput && !sleeps {
        warnings.push(Caveat::new(
            CaveatId::SharedCores,
            format!("both ends run on this machine: {busy} busy threads on {cores} CPUs"),
        ));
    }
    warnings.extend(awake_threads_warning(plan, usable_cpus, shares_cores));
    let throttled = plan.wait.as_ref().is_some_and(|wait| {
        (plan.sched.client.is_real_time() && spins(wait.client))
            || (plan.sched.server.is_real_time() && spins(wait.server))
    });
    if throttled && (!plan.round_trip.yields() || !plan.timestamps.is_none()) {
        warnings.push(Caveat::new(
            CaveatId::RtThrottle,
            "the kernel throttles a spinning real-time thread (kernel.sched_rt_runtime_us): \
             gaps of some 50 ms per second; use --wait block with it, or --rt-yield",
        ));
    }
    warnings
}

/// Warns when open-loop threads, which are awake before each departure, exceed the available CPUs.
fn awake_threads_warning(plan: &Plan, usable_cpus: usize, shares_cores: bool) -> Option<Caveat> {
    let rate = plan.round_trip.rate_per_second?;
    let awake_fraction = (rate as f64 * SPIN_BEFORE_DEPARTURE_NS as f64 / 1e9).min(1.0);
    let threads = (plan.threads.as_ref()).map_or(plan.streams, |threads| threads.client);
    let busy = f64::from(threads) * awake_fraction;
    // With both ends on one machine, the responding threads need a CPU too.
    let available = usable_cpus as f64 - f64::from(u8::from(shares_cores));
    // A single thread waits only for its own departures.
    (threads > 1 && busy > available.max(1.0)).then(|| {
        Caveat::new(
            CaveatId::AwakeThreads,
            format!(
                "an open-loop thread is awake {} us before each departure: \
                 {threads} of them keep {busy:.1} CPUs busy, and this end has {usable_cpus}; requests leave late; \
                 use fewer flows at a higher --rate",
                SPIN_BEFORE_DEPARTURE_NS / 1_000,
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_record::ids::StoredId;
    use linerate_record::plan::{PerEnd, TransportProtocol};

    fn warnings_of_spinning(change: impl FnOnce(&mut Plan)) -> Vec<StoredId<CaveatId>> {
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "far".to_owned());
        plan.wait = Some(PerEnd::same(WaitMode::Spin));
        plan.sched = PerEnd::same("fifo:50".parse().expect("a scheduling class"));
        change(&mut plan);
        let caveats = warnings_before(&plan, true, Some(2));
        caveats.into_iter().map(|caveat| caveat.id).collect()
    }

    #[test]
    fn the_throttle_is_reported_unless_threads_yield() {
        let throttled =
            |caveats: Vec<StoredId<CaveatId>>| caveats.contains(&CaveatId::RtThrottle.into());
        assert!(throttled(warnings_of_spinning(|_| {})));
        assert!(!throttled(warnings_of_spinning(|plan| plan
            .round_trip
            .rt_yield =
            true)));
        // A schedule has no pauses to yield in.
        assert!(throttled(warnings_of_spinning(|plan| {
            plan.round_trip.rt_yield = true;
            plan.round_trip.rate_per_second = Some(1_000);
        })));
        assert!(throttled(warnings_of_spinning(|plan| {
            plan.round_trip.rt_yield = true;
            plan.timestamps = linerate_record::plan::TimestampLevel::Scheduler;
        })));
    }

    #[test]
    fn ends_on_separate_cpus_share_none() {
        let shared_with = |streams: u32, logical: u32, change: fn(&mut Plan)| {
            let mut plan = Plan::new(
                RunKind::Throughput,
                TransportProtocol::Tcp,
                "far".to_owned(),
            );
            plan.streams = streams;
            change(&mut plan);
            let caveats = warnings_before(&plan, true, Some(logical));
            caveats
                .iter()
                .any(|caveat| caveat.id == CaveatId::SharedCores)
        };
        let shared = |streams, logical| shared_with(streams, logical, |_| ());
        // Two threads and enough CPUs, even if this process may use only some of them.
        assert!(!shared(1, 1_024) && !shared(512, 1_024));
        assert!(shared(513, 1_024));
        // Paced threads sleep, unless they spin.
        assert!(!shared_with(513, 1_024, |plan| plan.rate_bps = Some(1_000_000)));
        assert!(shared_with(513, 1_024, |plan| {
            plan.rate_bps = Some(1_000_000);
            plan.wait = Some(PerEnd {
                client: WaitMode::Block,
                server: WaitMode::Spin,
            });
        }));
    }

    #[test]
    fn more_awake_threads_than_cores_are_reported() {
        let awake = |streams: u32, rate: u64| {
            let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "far".to_owned());
            plan.streams = streams;
            plan.round_trip.rate_per_second = Some(rate);
            awake_threads_warning(&plan, 4, true).is_some()
        };
        assert!(awake(5, 10_000) && awake(100, 1_000));
        // Awake for 15 % of the time each, or no more threads than CPUs.
        assert!(!awake(5, 1_000) && !awake(3, 1_000_000) && !awake(1, 1_000_000));
    }
}
