//! A real-time thread that never sleeps is taken off its processor.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::Wait;
use linerate_metric::units::format_nanos;

use super::{at_end, other_end, schedstat};
use crate::Rule;
use crate::case::{Case, name};
use crate::draft::Draft;

/// The period of the throttle (kernel.sched_rt_period_us) where nobody told, us.
const PERIOD_US: f64 = 1_000_000.0;

/// A hole of the throttle, or of the fair server of newer kernels, is not shorter than this.
const HOLE_NS: u64 = 2_000_000;

/// See docs/CAUSES.md#rt-throttle.
pub struct RtThrottle;

impl Rule for RtThrottle {
    fn id(&self) -> &'static str {
        "rt-throttle"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        super::of_ends(case, |role| self.of(case, role))
    }
}

impl RtThrottle {
    fn of(&self, case: &Case<'_>, role: Role) -> Option<Finding> {
        let sched = case.sched(role);
        let spins = case.wait(role) == Some(Wait::Spin);
        if !sched.is_real_time() || !spins || case.plan.round_trip.yields() {
            return None;
        }
        let runtime = case.host(role)?.sysctls.get("kernel.sched_rt_runtime_us")?;
        let runtime: f64 = runtime.parse().ok()?;
        let period = case.sysctl(role, "kernel.sched_rt_period_us").map_or(PERIOD_US, |period| period as f64);
        if !(0.0..period).contains(&runtime) {
            return None;
        }
        let share = 1.0 - runtime / period;
        // That it may be taken off is no sign that it was: a thread that was ready to run for a good part of the
        // hole and did not is, and, of round trips, one of them that fell into it and a thread that waited as long.
        let worst = case.record.summary.rtt_ns.map(|rtt| rtt.max);
        let time = case.time(role);
        let waited = time.map(|time| time.runnable);
        let waited_ns = time.map(|time| time.runnable * time.wall_ns as f64 * time.threads as f64);
        let hit = match case.is_latency() {
            true => worst.is_some_and(|worst| {
                worst >= HOLE_NS && waited_ns.is_none_or(|waited| waited >= worst as f64 / 2.0)
            }),
            false => waited.is_some_and(|waited| waited >= share / 2.0),
        };
        if !hit {
            return None;
        }
        // How often our own stack looks at its port is a key of its own, and no word of this option.
        let other = case.wait(other_end(role)).filter(|wait| !matches!(wait, Wait::Interval { .. }));
        let other = other.unwrap_or(Wait::Block);
        let pushed = case.cpu(role).map(|cost| cost.involuntary_switches);
        Draft::cause(self.id(), role)
            .cost(share)
            .says(format!(
                "a real-time thread of the {} spins: the kernel takes it off its processor for up to {} of each second",
                name(role),
                format_nanos(share * 1e9)
            ))
            .seen("kernel.sched_rt_runtime_us", runtime, "us", format!("{} sysctl", name(role)))
            .seen("scheduling", sched.to_string(), "", case.sched_read(role))
            .seen("waiting", "spin", "", "plan")
            .seen_if("rtt_ns.max", worst, "ns", "client")
            .seen_if("ready to run and not running", waited, "share", schedstat(role))
            .seen_if("involuntary switches", pushed, "", format!("{} getrusage", name(role)))
            .remedy(match case.is_own_stack(role) {
                true => "have our own stack sleep between two looks at its port (poll.interval), or switch the throttle off where nothing else needs the core",
                false => "let real-time threads sleep (--wait block), give up a part of the time before it is taken (--rt-yield), or switch the throttle off where nothing else needs the core",
            })
            .command(match case.is_own_stack(role) {
                true => case.again_with_key(role, "poll.interval", "125us"),
                false => case.again(&format!("--wait {}", at_end(role, "block", &other.to_string()))),
            })
            .tried(case.plan.round_trip.rt_yield.then(|| "--rt-yield".to_owned()))
            .gain(Some(1.0 / (1.0 - share)), "1 / (sched_rt_runtime_us / period)")
            .found()
    }
}
