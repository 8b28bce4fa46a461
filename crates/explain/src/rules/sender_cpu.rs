//! The sending threads have no time left.

use linerate_metric::finding::Finding;
use linerate_metric::plan::Kind;
use linerate_metric::record::CountedAt;

use super::receiver_cpu::saturated;
use crate::Rule;
use crate::case::Case;
use crate::draft::Draft;

/// See docs/CAUSES.md#sender-cpu.
pub struct SenderCpu;

impl Rule for SenderCpu {
    fn id(&self) -> &'static str {
        "sender-cpu"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        match case.plan.kind {
            Kind::Throughput => saturated(case, self.id(), CountedAt::Sender),
            Kind::Forward => forwarding(case, self.id()).into_iter().collect(),
            _ => Vec::new(),
        }
    }
}

/// Poll-mode threads that never found their ports empty.
fn forwarding(case: &Case<'_>, id: &str) -> Option<Finding> {
    let figures = case.record.forward.as_ref()?;
    let rounds: u64 = figures.cores.iter().map(|core| core.rounds).sum();
    let idle: u64 = figures.cores.iter().map(|core| core.idle_rounds).sum();
    let share = idle as f64 / rounds.max(1) as f64;
    if rounds == 0 || share > 0.1 {
        return None;
    }
    Draft::limit(id, linerate_metric::finding::End::Client)
        .cost(1.0 - share)
        .says("the forwarding threads found frames in nearly every round: they can do no more")
        .seen("idle_rounds", idle, "rounds", "forwarding threads")
        .seen("rounds", rounds, "rounds", "forwarding threads")
        .remedy("add threads, each on a core of its own")
        .command(format!("linerate forward --cores {}", figures.cores.len() + 1))
        .tried((figures.cores.len() > 1).then(|| format!("--cores {}", figures.cores.len())))
        .found()
}
