//! The kernel throttles a real-time thread that never sleeps.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::Wait;
use linerate_metric::units::format_nanos;

use super::{at_end, other_end, schedstat};
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, name};

/// Default period of the throttle (kernel.sched_rt_period_us), us.
const PERIOD_US: f64 = 1_000_000.0;

/// Shortest interruption by the throttle, or by the fair server of newer kernels.
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
        let period = case
            .sysctl(role, "kernel.sched_rt_period_us")
            .map_or(PERIOD_US, |period| period as f64);
        if !(0.0..period).contains(&runtime) {
            return None;
        }
        let share = 1.0 - runtime / period;
        // The limit alone is no evidence. It needs a thread that was runnable without running for a
        // large part of the throttled time. For round trips it needs a slow one, and a thread that
        // waited as long.
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
        // The poll interval of our stack is a configuration key and not a value of this option.
        let other = case
            .wait(other_end(role))
            .filter(|wait| !matches!(wait, Wait::Interval { .. }));
        let other = other.unwrap_or(Wait::Block);
        let pushed = case.cpu(role).map(|cost| cost.involuntary_switches);
        Draft::cause(self.id(), role)
            .cost(share)
            .says(format!(
                "a real-time thread of the {} spins: the kernel throttles it for up to {} of each \
                 second",
                name(role),
                format_nanos(share * 1e9)
            ))
            .seen(
                "kernel.sched_rt_runtime_us",
                runtime,
                "us",
                format!("{} sysctl", name(role)),
            )
            .seen("scheduling", sched.to_string(), "", case.sched_read(role))
            .seen("wait mode", "spin", "", "plan")
            .seen_if("rtt_ns.max", worst, "ns", "client")
            .seen_if("runnable and not running", waited, "share", schedstat(role))
            .seen_if(
                "involuntary switches",
                pushed,
                "",
                format!("{} getrusage", name(role)),
            )
            .remedy(match case.is_own_stack(role) {
                true => {
                    "let our stack sleep between polls (poll.interval), or disable the throttle \
                     if nothing else needs the core"
                }
                false => {
                    "let real-time threads sleep (--wait block), let them yield before they are \
                     throttled (--rt-yield), or disable the throttle if nothing else needs the \
                     core"
                }
            })
            .command(match case.is_own_stack(role) {
                true => case.again_with_key(role, "poll.interval", "125us"),
                false => case.again(&format!(
                    "--wait {}",
                    at_end(role, "block", &other.to_string())
                )),
            })
            .tried(
                case.plan
                    .round_trip
                    .rt_yield
                    .then(|| "--rt-yield".to_owned()),
            )
            .gain(
                Some(1.0 / (1.0 - share)),
                "1 / (sched_rt_runtime_us / period)",
            )
            .found()
    }
}
