//! The kernel's receive work runs on the application's core.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::Kind;
use linerate_metric::units::format_share;

use super::schedstat;
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, name};

/// Smallest share of a processor used by interrupts that matters.
const MATTERS: f64 = 0.2;

/// Idle share of a processor that could have done the work.
const IDLE: f64 = 0.5;

/// See docs/CAUSES.md#softirq-core.
pub struct SoftirqCore;

impl Rule for SoftirqCore {
    fn id(&self) -> &'static str {
        "softirq-core"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        [Role::Client, Role::Server]
            .into_iter()
            .filter_map(|role| self.of(case, role))
            .collect()
    }
}

impl SoftirqCore {
    fn of(&self, case: &Case<'_>, role: Role) -> Option<Finding> {
        // A saturated path needs no more processor time.
        let full =
            case.plan.kind == Kind::Throughput && case.ways.iter().all(|way| way.fills_path());
        // A rate that was received needs no more processor time either.
        if full || super::kept_its_rate(case) {
            return None;
        }
        let own = case.cpu(role)?;
        // Of two ends on one machine, one reads the processor times.
        let other = match role {
            Role::Client => Role::Server,
            Role::Server => Role::Client,
        };
        let processors = match own.processors.is_empty() && case.one_machine() {
            true => &case.cpu(other)?.processors,
            false => &own.processors,
        };
        let put = case.cpus(role).0.clone();
        let seen = own.threads.iter().filter_map(|thread| thread.cpus.as_ref());
        let mut cores: Vec<u32> = match put.is_empty() {
            true => seen.flat_map(|cpus| cpus.0.iter().copied()).collect(),
            false => put,
        };
        cores.sort_unstable();
        cores.dedup();
        let [core] = cores[..] else { return None };
        let here = processors.iter().find(|processor| processor.cpu == core)?;
        let whole = |at: &linerate_metric::cost::ProcessorTime| {
            (at.program_ns + at.interrupt_ns + at.steal_ns + at.idle_ns).max(1) as f64
        };
        let share = here.interrupt_ns as f64 / whole(here);
        let free = here.idle_ns as f64 / whole(here);
        let elsewhere = processors
            .iter()
            .find(|other| other.cpu != core && other.idle_ns as f64 / whole(other) > IDLE)?;
        let rounds: u64 = processors.iter().map(|other| other.receive_rounds).sum();
        let received_here = here.receive_rounds as f64 / rounds.max(1) as f64;
        if share < MATTERS || free > 0.15 || received_here < 0.5 {
            return None;
        }
        let time = case.time(role)?;
        let draft = Draft::cause(self.id(), role)
            .cost(share)
            .says(format!(
                "receive interrupts used {} of processor {core}, on which the {}'s thread runs, \
                 while processor {} was idle",
                format_share(share),
                name(role),
                elsewhere.cpu
            ))
            .seen(
                "softirq and irq",
                share,
                "share",
                format!("/proc/stat cpu{core}"),
            )
            .seen(
                "NET_RX",
                here.receive_rounds,
                "rounds",
                format!("/proc/softirqs CPU{core}"),
            )
            .seen(
                "idle",
                elsewhere.idle_ns as f64 / whole(elsewhere),
                "share",
                format!("/proc/stat cpu{}", elsewhere.cpu),
            )
            .seen(
                "runnable and not running",
                time.runnable + time.waking,
                "share",
                schedstat(role),
            )
            .remedy(
                "move the application to a core next to the one that handles the interface's \
                 interrupts, or steer the interrupts (or RPS) to another core",
            )
            .gain(
                Some(1.0 / (1.0 - share).max(0.1)),
                "Amdahl: 1 / (1 - share of the core used by interrupts)",
            );
        match case.interface(role) {
            Some(interface) => draft.command(case.at(
                role,
                &format!(
                    "echo {} > /sys/class/net/{}/queues/rx-0/rps_cpus",
                    mask(elsewhere.cpu),
                    interface.name
                ),
            )),
            None => draft,
        }
        .found()
    }
}

/// Formats a CPU mask for one processor as the kernel parses it: groups of 32 bits, the highest
/// first.
fn mask(cpu: u32) -> String {
    format!(
        "{:x}{}",
        1_u32 << (cpu % 32),
        ",00000000".repeat((cpu / 32) as usize)
    )
}

#[cfg(test)]
mod tests {
    use super::mask;

    #[test]
    fn masks_of_many_processors_are_words_of_32_bits() {
        for (cpu, want) in [
            (0, "1"),
            (5, "20"),
            (31, "80000000"),
            (32, "1,00000000"),
            (70, "40,00000000,00000000"),
        ] {
            assert_eq!(mask(cpu), want);
        }
    }
}
