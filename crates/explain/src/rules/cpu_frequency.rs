//! Processors run below their maximum frequency.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::Kind;
use linerate_metric::units::format_share;

use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, name};

/// Largest share of the frequency that may be missing.
const MATTERS: f64 = 0.15;

/// See docs/CAUSES.md#cpu-frequency.
pub struct CpuFrequency;

impl Rule for CpuFrequency {
    fn id(&self) -> &'static str {
        "cpu-frequency"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        [Role::Client, Role::Server]
            .into_iter()
            .filter_map(|role| self.of(case, role))
            .collect()
    }
}

impl CpuFrequency {
    fn of(&self, case: &Case<'_>, role: Role) -> Option<Finding> {
        let cpu = &case.host(role)?.cpu;
        let governor = cpu.governor.as_deref()?;
        let (now, most) = (cpu.frequency_hz? as f64, cpu.frequency_max_hz? as f64);
        let missing = 1.0 - now / most.max(1.0);
        if missing < MATTERS || governor == "performance" && missing < 2.0 * MATTERS {
            return None;
        }
        // Frequency matters if the processor does: for threads without idle time, and for round
        // trips.
        let time = case.time(role)?;
        let matters = match case.plan.kind {
            Kind::Latency => true,
            Kind::Forward | Kind::Generate => true,
            // A host with services has no requested load.
            Kind::Stack => false,
            Kind::Throughput => {
                time.is_saturated()
                    && !super::kept_its_rate(case)
                    && !case.ways.iter().all(|way| way.fills_path())
            }
        };
        if !matters {
            return None;
        }
        let share = match case.plan.kind {
            Kind::Latency => missing * (time.working + time.turning).max(0.5),
            _ => missing,
        };
        Draft::cause(self.id(), role)
            .cost(share)
            .says(format!(
                "a processor of the {} ran at {:.2} GHz of {:.2} GHz ({governor})",
                name(role),
                now / 1e9,
                most / 1e9
            ))
            .seen(
                "scaling_governor",
                governor,
                "",
                format!("{} /sys/devices/system/cpu/cpu0/cpufreq", name(role)),
            )
            .seen(
                "scaling_cur_freq",
                now,
                "Hz",
                format!("{} /sys/devices/system/cpu/cpu*/cpufreq", name(role)),
            )
            .seen(
                "cpuinfo_max_freq",
                most,
                "Hz",
                format!("{} /sys/devices/system/cpu/cpu*/cpufreq", name(role)),
            )
            .seen(
                "working time",
                time.working,
                "share",
                super::schedstat(role),
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
                    "maximum over current frequency, for the processor's share ({})",
                    format_share(share)
                ),
            )
            .found()
    }
}
