//! Processors run below their maximum frequency.

use linerate_record::facts::Role;
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::RunKind;
use linerate_stats::units::format_share;

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::RunView;

/// Largest share of the frequency that may be missing.
const MIN_RELEVANT_SHARE: f64 = 0.15;

/// Largest missing share with governor `performance`: it requests the maximum all the time.
const MAX_PERFORMANCE_SHARE: f64 = 2.0 * MIN_RELEVANT_SHARE;

/// Smallest part of a round trip that counts as work.
const MIN_WORK_SHARE: f64 = 0.5;

/// See docs/CAUSES.md#cpu-frequency.
pub struct CpuFrequency;

impl Rule for CpuFrequency {
    fn id(&self) -> CauseId {
        CauseId::CpuFrequency
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The CPU runs below the frequency that it could have.",
            shown_when: vec![detection(
                "every run",
                [
                    format!(
                        "`scaling_cur_freq` is {} below `cpuinfo_max_freq` or more; {} with governor \
                         `performance`",
                        percent(MIN_RELEVANT_SHARE),
                        percent(MAX_PERFORMANCE_SHARE)
                    ),
                    "it is read at the end of the run, of the usable CPU that is nearest to \
                     its maximum"
                        .into(),
                    "streams: the end is saturated".into(),
                ],
            )],
            not_when: vec![
                "streams: the requested rate was received".into(),
                "streams: the path is full".into(),
                "`stack`, which has no requested load".into(),
            ],
            evidence: &[
                ("scaling_governor", ""),
                ("scaling_cur_freq", "Hz"),
                ("cpuinfo_max_freq", "Hz"),
                ("working time", "share"),
            ],
            cost: vec![
                "Missing share of the frequency.".into(),
                format!(
                    "Of round trips, that for the time at work, {} at least.",
                    percent(MIN_WORK_SHARE)
                ),
            ],
            remedy: vec![
                "Keep the frequency high: `cpupower frequency-set -g performance`.".into(),
                "With that governor, check for heat, a power limit or battery operation.".into(),
            ],
            wrong_when: vec![
                "only a single CPU may have the maximum frequency".into(),
                "all CPUs slowed down when the run was over".into(),
            ],
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

impl CpuFrequency {
    fn evaluate_end(&self, run: &RunView<'_>, role: Role) -> Option<Finding> {
        let cpu = &run.host(role)?.cpu;
        let governor = cpu.governor.as_deref()?;
        let (now, most) = (cpu.frequency_hz? as f64, cpu.frequency_max_hz? as f64);
        let missing = 1.0 - now / most.max(1.0);
        if missing < MIN_RELEVANT_SHARE
            || governor == "performance" && missing < MAX_PERFORMANCE_SHARE
        {
            return None;
        }
        // Frequency matters if the processor does: for threads without idle time, and for round
        // trips.
        let time = run.thread_time(role)?;
        let is_relevant = match run.plan.kind {
            RunKind::Latency => true,
            RunKind::Forward | RunKind::Generate => true,
            // A host with services has no requested load.
            RunKind::Stack => false,
            RunKind::Throughput => {
                time.is_saturated()
                    && !super::met_requested_rate(run)
                    && !run
                        .directions
                        .iter()
                        .all(|direction| direction.fills_path())
            }
        };
        if !is_relevant {
            return None;
        }
        let share = match run.plan.kind {
            RunKind::Latency => missing * (time.working + time.spinning).max(MIN_WORK_SHARE),
            _ => missing,
        };
        FindingBuilder::cause(self.id(), role)
            .cost(share)
            .summary(format!(
                "a CPU of the {} ran at {:.2} GHz of {:.2} GHz ({governor})",
                role.as_str(),
                now / 1e9,
                most / 1e9
            ))
            .evidence(
                "scaling_governor",
                governor,
                "",
                format!("{} /sys/devices/system/cpu/cpu0/cpufreq", role.as_str()),
            )
            .evidence(
                "scaling_cur_freq",
                now,
                "Hz",
                format!("{} /sys/devices/system/cpu/cpu*/cpufreq", role.as_str()),
            )
            .evidence(
                "cpuinfo_max_freq",
                most,
                "Hz",
                format!("{} /sys/devices/system/cpu/cpu*/cpufreq", role.as_str()),
            )
            .evidence(
                "working time",
                time.working,
                "share",
                super::schedstat_source(role),
            )
            .remedy(match governor {
                "performance" => {
                    "the governor requests the maximum: check for heat, a power limit, or battery \
                     operation"
                }
                _ => "keep the frequency high during the run",
            })
            .command("cpupower frequency-set -g performance")
            .tried((governor == "performance").then(|| "governor performance".to_owned()))
            .gain(
                Some(1.0 / (1.0 - share).max(0.1)),
                format!(
                    "maximum over current frequency, for the CPU's share ({})",
                    format_share(share)
                ),
            )
            .build()
    }
}
