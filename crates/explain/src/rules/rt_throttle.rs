//! The kernel throttles a real-time thread that never sleeps.

use linerate_record::facts::Role;
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::WaitMode;
use linerate_stats::units::format_nanos;

use super::{other_role, per_end_option, schedstat_source};
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, duration, percent};
use crate::run_view::RunView;

/// Default period of the throttle (kernel.sched_rt_period_us), us.
const DEFAULT_PERIOD_US: f64 = 1_000_000.0;

/// Shortest interruption by the throttle, or by the fair server of newer kernels.
const MIN_THROTTLE_NS: u64 = 2_000_000;

/// Part of the slowest round trip, and of the throttled time, that the thread must have waited.
const WAITED_PART: f64 = 2.0;

/// See docs/CAUSES.md#rt-throttle.
pub struct RtThrottle;

impl Rule for RtThrottle {
    fn id(&self) -> CauseId {
        CauseId::RtThrottle
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The kernel takes a real-time thread that never sleeps off its CPU for \
                      a part of each second.",
            shown_when: vec![
                detection(
                    "round trips",
                    [
                        format!(
                            "the slowest takes {} or more",
                            duration(MIN_THROTTLE_NS as f64)
                        ),
                        format!(
                            "a runnable thread did not run for {} of that or more",
                            percent(1.0 / WAITED_PART)
                        ),
                    ],
                ),
                detection(
                    "TCP and UDP",
                    [format!(
                        "a runnable thread did not run for {} of the throttled share or more",
                        percent(1.0 / WAITED_PART)
                    )],
                ),
            ],
            not_when: vec![
                "the end has no real-time policy, neither requested nor from its start (`chrt`)"
                    .into(),
                "the end does not spin, or yields in time (`--rt-yield`)".into(),
                "the throttle is off (`kernel.sched_rt_runtime_us`)".into(),
            ],
            evidence: &[
                ("kernel.sched_rt_runtime_us", "us"),
                ("scheduling", ""),
                ("wait mode", ""),
                ("rtt_ns.max", "ns"),
                ("runnable and not running", "share"),
                ("involuntary switches", ""),
            ],
            cost: vec!["Share of each period that the throttle takes.".into()],
            notes: vec![
                "`--rt-yield` works with one outstanding request.".into(),
                "Newer kernels have a fair server in place of the throttle.".into(),
            ],
            remedy: vec![
                "Let the threads sleep (`--wait block`), or yield (`--rt-yield`).".into(),
                "Set `poll.interval` of the user-space stack.".into(),
                "Or disable the throttle if nothing else needs the CPU.".into(),
            ],
            wrong_when: vec!["the slowest round trip, or the waiting, has another reason".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        super::evaluate_ends(run, |role| self.evaluate_end(run, role))
    }
}

impl RtThrottle {
    fn evaluate_end(&self, run: &RunView<'_>, role: Role) -> Option<Finding> {
        let sched = run.sched(role);
        let spins = run.wait(role) == Some(WaitMode::Spin);
        if !sched.is_real_time() || !spins || run.plan.round_trip.yields() {
            return None;
        }
        let runtime = run.host(role)?.sysctls.get("kernel.sched_rt_runtime_us")?;
        let runtime: f64 = runtime.parse().ok()?;
        let period = run
            .sysctl(role, "kernel.sched_rt_period_us")
            .map_or(DEFAULT_PERIOD_US, |period| period as f64);
        if !(0.0..period).contains(&runtime) {
            return None;
        }
        let share = 1.0 - runtime / period;
        // The limit alone is no evidence. It needs a thread that was runnable without running for a
        // large part of the throttled time. For round trips it needs a slow one, and a thread that
        // waited as long.
        let worst = run.record.summary.rtt_ns.map(|rtt| rtt.max);
        let time = run.thread_time(role);
        let waited = time.map(|time| time.core_wait);
        let waited_ns = time.map(|time| time.core_wait * time.wall_ns as f64 * time.threads as f64);
        let hit = match run.is_latency() {
            true => worst.is_some_and(|worst| {
                worst >= MIN_THROTTLE_NS
                    && waited_ns.is_none_or(|waited| waited >= worst as f64 / WAITED_PART)
            }),
            false => waited.is_some_and(|waited| waited >= share / WAITED_PART),
        };
        if !hit {
            return None;
        }
        // The poll interval of our stack is a configuration key and not a value of this option.
        let other_wait = run
            .wait(other_role(role))
            .filter(|wait| !matches!(wait, WaitMode::Interval { .. }));
        let other_wait = other_wait.unwrap_or(WaitMode::Block);
        let pushed = run.cpu(role).map(|cost| cost.involuntary_switches);
        FindingBuilder::cause(self.id(), role)
            .cost(share)
            .summary(format!(
                "a real-time thread of the {} spins: the kernel throttles it for up to {} of each \
                 second",
                role.as_str(),
                format_nanos(share * 1e9)
            ))
            .evidence(
                "kernel.sched_rt_runtime_us",
                runtime,
                "us",
                format!("{} sysctl", role.as_str()),
            )
            .evidence("scheduling", sched.to_string(), "", run.sched_source(role))
            .evidence("wait mode", "spin", "", "plan")
            .evidence_if("rtt_ns.max", worst, "ns", "client")
            .evidence_if(
                "runnable and not running",
                waited,
                "share",
                schedstat_source(role),
            )
            .evidence_if(
                "involuntary switches",
                pushed,
                "",
                format!("{} getrusage", role.as_str()),
            )
            .remedy(match run.uses_netstack(role) {
                true => {
                    "let the user-space stack sleep between polls (poll.interval), or disable the throttle \
                     if nothing else needs the CPU"
                }
                false => {
                    "let real-time threads sleep (--wait block), let them yield before they are \
                     throttled (--rt-yield), or disable the throttle if nothing else needs the \
                     CPU"
                }
            })
            .command(match run.uses_netstack(role) {
                true => run.rerun_with_key(role, "poll.interval", "125us"),
                false => run.rerun_command(&format!(
                    "--wait {}",
                    per_end_option(role, "block", &other_wait.to_string())
                )),
            })
            .tried(
                run.plan
                    .round_trip
                    .rt_yield
                    .then(|| "--rt-yield".to_owned()),
            )
            .gain(
                Some(1.0 / (1.0 - share)),
                "1 / (sched_rt_runtime_us / period)",
            )
            .build()
    }
}
