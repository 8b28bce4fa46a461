//! The kernel's receive work runs on the application's core.

use linerate_record::facts::Role;
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::RunKind;
use linerate_stats::units::format_share;

use super::schedstat_source;
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::RunView;

/// Smallest share of a processor used by interrupts that matters.
const MIN_RELEVANT_SHARE: f64 = 0.2;

/// Largest idle share of a processor that is full, and smallest share of the receive rounds of the
/// processor that handles most of them.
const MAX_IDLE_SHARE: f64 = 0.15;
const MIN_RECEIVE_ROUNDS: f64 = 0.5;

/// Idle share of a processor that could have done the work.
const MIN_IDLE_SHARE: f64 = 0.5;

/// See docs/CAUSES.md#softirq-core.
pub struct SoftirqCore;

impl Rule for SoftirqCore {
    fn id(&self) -> CauseId {
        CauseId::SoftirqCore
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The kernel's receive work (NAPI) takes the CPU that the application needs, \
                      while another one is idle.",
            shown_when: vec![detection(
                "every run",
                [
                    "the threads of the end run on one CPU".into(),
                    format!(
                        "interrupts take {} of it or more (/proc/stat)",
                        percent(MIN_RELEVANT_SHARE)
                    ),
                    format!(
                        "it has {} of the NET_RX rounds or more (/proc/softirqs), and {} idle time \
                         at most",
                        percent(MIN_RECEIVE_ROUNDS),
                        percent(MAX_IDLE_SHARE)
                    ),
                    format!(
                        "another CPU is idle for more than {}",
                        percent(MIN_IDLE_SHARE)
                    ),
                ],
            )],
            not_when: vec![
                "the requested rate was received".into(),
                "the path is full".into(),
            ],
            evidence: &[
                ("softirq and irq", "share"),
                ("NET_RX", "rounds"),
                ("idle", "share"),
                ("runnable and not running", "share"),
            ],
            cost: vec!["Share of the CPU that interrupts take.".into()],
            remedy: vec![
                "Move the application to another CPU that shares its cache.".into(),
                "Or move the interrupt (`/proc/irq/N/smp_affinity`), or use RPS.".into(),
            ],
            wrong_when: vec!["the CPUs do not share a cache: then the hand-over costs more".into()],
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

impl SoftirqCore {
    fn evaluate_end(&self, run: &RunView<'_>, role: Role) -> Option<Finding> {
        // A saturated path needs no more processor time.
        let full = run.plan.kind == RunKind::Throughput
            && run
                .directions
                .iter()
                .all(|direction| direction.fills_path());
        // A rate that was received needs no more processor time either.
        if full || super::met_requested_rate(run) {
            return None;
        }
        let cpu_cost = run.cpu(role)?;
        // Of two ends on one machine, one reads the processor times.
        let other_role = match role {
            Role::Client => Role::Server,
            Role::Server => Role::Client,
        };
        let processors = match cpu_cost.processors.is_empty() && run.is_one_machine() {
            true => &run.cpu(other_role)?.processors,
            false => &cpu_cost.processors,
        };
        let assigned = run.cpus(role).0.clone();
        let sampled = cpu_cost
            .threads
            .iter()
            .filter_map(|thread| thread.cpus.as_ref());
        let mut cores: Vec<u32> = match assigned.is_empty() {
            true => sampled.flat_map(|cpus| cpus.0.iter().copied()).collect(),
            false => assigned,
        };
        cores.sort_unstable();
        cores.dedup();
        let [core] = cores[..] else { return None };
        let usage = processors.iter().find(|processor| processor.cpu == core)?;
        let total_ns = |at: &linerate_record::cost::ProcessorTime| {
            (at.program_ns + at.interrupt_ns + at.steal_ns + at.idle_ns).max(1) as f64
        };
        let share = usage.interrupt_ns as f64 / total_ns(usage);
        let free = usage.idle_ns as f64 / total_ns(usage);
        let elsewhere = processors.iter().find(|other| {
            other.cpu != core && other.idle_ns as f64 / total_ns(other) > MIN_IDLE_SHARE
        })?;
        let rounds: u64 = processors
            .iter()
            .map(|processor| processor.receive_rounds)
            .sum();
        let received_here = usage.receive_rounds as f64 / rounds.max(1) as f64;
        if share < MIN_RELEVANT_SHARE || free > MAX_IDLE_SHARE || received_here < MIN_RECEIVE_ROUNDS
        {
            return None;
        }
        let time = run.thread_time(role)?;
        let builder = FindingBuilder::cause(self.id(), role)
            .cost(share)
            .summary(format!(
                "receive interrupts used {} of CPU {core}, on which the {}'s thread runs, \
                 while CPU {} was idle",
                format_share(share),
                role.as_str(),
                elsewhere.cpu
            ))
            .evidence(
                "softirq and irq",
                share,
                "share",
                format!("/proc/stat cpu{core}"),
            )
            .evidence(
                "NET_RX",
                usage.receive_rounds,
                "rounds",
                format!("/proc/softirqs CPU{core}"),
            )
            .evidence(
                "idle",
                elsewhere.idle_ns as f64 / total_ns(elsewhere),
                "share",
                format!("/proc/stat cpu{}", elsewhere.cpu),
            )
            .evidence(
                "runnable and not running",
                time.core_wait + time.wakeup,
                "share",
                schedstat_source(role),
            )
            .remedy(
                "move the application to a CPU next to the one that handles the interface's \
                 interrupts, or steer the interrupts (or RPS) to another CPU",
            )
            .estimated_gain(
                Some(1.0 / (1.0 - share).max(0.1)),
                "Amdahl: 1 / (1 - share of the CPU used by interrupts)",
            );
        match run.interface(role) {
            Some(interface) => builder.command(run.command_at(
                role,
                &format!(
                    "echo {} > /sys/class/net/{}/queues/rx-0/rps_cpus",
                    cpu_mask(elsewhere.cpu),
                    interface.name
                ),
            )),
            None => builder,
        }
        .build()
    }
}

/// Formats a CPU mask for one processor as the kernel parses it: groups of 32 bits, the highest
/// first.
fn cpu_mask(cpu: u32) -> String {
    format!(
        "{:x}{}",
        1_u32 << (cpu % 32),
        ",00000000".repeat((cpu / 32) as usize)
    )
}

#[cfg(test)]
mod tests {
    use super::cpu_mask;

    #[test]
    fn masks_of_many_processors_are_words_of_32_bits() {
        for (cpu, expected) in [
            (0, "1"),
            (5, "20"),
            (31, "80000000"),
            (32, "1,00000000"),
            (70, "40,00000000,00000000"),
        ] {
            assert_eq!(cpu_mask(cpu), expected);
        }
    }
}
