//! A cgroup's quota of processor time stops the threads.

use linerate_record::facts::Role;
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::RunKind;
use linerate_stats::units::{format_count, format_nanos};

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::RunView;

/// Fewest throttled periods that matter.
const MIN_THROTTLED_PERIODS: u64 = 2;

/// Smallest share of the time without processor time that matters.
const MIN_RELEVANT_SHARE: f64 = 0.03;

/// Upper bound of the share, so that the gain 1 / (1 - share) stays finite.
const MAX_SHARE: f64 = 0.99;

/// See docs/CAUSES.md#cpu-quota.
pub struct QuotaLimit;

impl Rule for QuotaLimit {
    fn id(&self) -> CauseId {
        CauseId::CpuQuota
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "A cgroup's quota of processor time is used up: all threads of a container stop \
                      until the next period.",
            shown_when: vec![detection(
                "every run",
                [
                    format!("{MIN_THROTTLED_PERIODS} periods or more were throttled (cpu.stat)"),
                    format!(
                        "threads were stopped for {} of the time or more",
                        percent(MIN_RELEVANT_SHARE)
                    ),
                ],
            )],
            not_when: vec![
                "the path is full".into(),
                "streams: the requested rate was received".into(),
            ],
            evidence: &[
                ("nr_throttled", "periods"),
                ("nr_periods", "periods"),
                ("throttled time", "ns"),
                ("quota", "processors"),
                ("period", "ns"),
            ],
            cost: vec![
                "Share of the time for which threads were stopped. Of the throttled time, a sum over \
                 processors, or of the throttled periods less the quota."
                    .into(),
            ],
            notes: vec![
                "The counters are those of the cgroup, with all of its programs. A quota of a cgroup \
                 above it counts too."
                    .into(),
            ],
            remedy: vec![
                "Raise the quota, or remove it: `cpu.max`, `cpu.cfs_quota_us`; `docker run --cpus`, \
                 Kubernetes `limits.cpu`, systemd `CPUQuota=`."
                    .into(),
                "Let both ends block (`--wait block`), or idle forwarding threads sleep (`--idle \
                 sleep:50us`): spinning uses up the quota."
                    .into(),
            ],
            wrong_when: vec!["another program of the cgroup used up the quota".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        [Role::Client, Role::Server]
            .into_iter()
            .filter_map(|role| self.evaluate_end(run, role))
            .collect()
    }
}

impl QuotaLimit {
    fn evaluate_end(&self, run: &RunView<'_>, role: Role) -> Option<Finding> {
        let throttling = run.throttling(role)?;
        let cpu = &run.host(role)?.cpu;
        let quota = cpu.quota.as_ref()?;
        let wall_ns = run.record.summary.duration_ns.filter(|&ns| ns > 0)? as f64;
        let processors = f64::from(cpu.usable.or(cpu.logical).unwrap_or(1));
        let stopped = throttling.throttled_ns as f64 / (wall_ns * processors);
        // The rest of each period is the least for which a thread that always runs was stopped.
        let throttled_part = throttling.throttled_periods as f64 / throttling.periods.max(1) as f64;
        let share = stopped
            .max(throttled_part * (1.0 - quota.cpus()))
            .min(MAX_SHARE);
        if throttling.throttled_periods < MIN_THROTTLED_PERIODS
            || share < MIN_RELEVANT_SHARE
            || (run.plan.kind == RunKind::Throughput && super::met_requested_rate(run))
            || (run.directions.iter()).any(|direction| direction.fills_path())
        {
            return None;
        }
        let end = role.as_str();
        let directory = quota.file.rsplit_once('/').map_or("", |(path, _)| path);
        let source = format!("{end} {directory}/cpu.stat");
        FindingBuilder::cause(self.id(), role)
            .cost(share)
            .summary(format!(
                "a cgroup limits the {end} to {:.2} processors: the quota was used up in {} of {} \
                 periods of {}, and its threads stopped until the next one",
                quota.cpus(),
                format_count(throttling.throttled_periods),
                format_count(throttling.periods),
                format_nanos(quota.period_ns as f64),
            ))
            .evidence(
                "nr_throttled",
                throttling.throttled_periods,
                "periods",
                source.clone(),
            )
            .evidence("nr_periods", throttling.periods, "periods", source.clone())
            .evidence("throttled time", throttling.throttled_ns, "ns", source)
            .evidence(
                "quota",
                quota.cpus(),
                "processors",
                format!("{end} {}", quota.file),
            )
            .evidence(
                "period",
                quota.period_ns,
                "ns",
                format!("{end} {}", quota.file),
            )
            .remedy(match run.plan.kind {
                RunKind::Forward => {
                    "raise the quota or remove it (container: its CPU limit); until then let idle \
                     threads sleep (--idle sleep:50us), because polling uses up the quota"
                }
                RunKind::Generate => {
                    "raise the quota or remove it (container: its CPU limit): a generator polls all \
                     of the time"
                }
                _ => {
                    "raise the quota or remove it (container: its CPU limit); until then let both \
                     ends block (--wait block), because spinning uses up the quota"
                }
            })
            .command(run.command_at(role, &quota.lift_command()))
            .gain(
                Some(1.0 / (1.0 - share)),
                "1 / (1 - share of the time stopped)",
            )
            .build()
    }
}
