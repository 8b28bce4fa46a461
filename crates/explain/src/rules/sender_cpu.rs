//! The sending threads have no time left.

use linerate_metric::finding::Finding;
use linerate_metric::plan::Kind;
use linerate_metric::record::CountedAt;

use super::receiver_cpu::saturated;
use crate::Rule;
use crate::case::Case;
use crate::draft::Draft;

/// Share of a processor that a forwarding thread has at least that has no time left.
const BUSY: f64 = 0.85;

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
    // A thread that did not have its processor for itself, or sleeps, is at no end of it.
    let least = figures.cores.iter().map(|core| core.cpu_share).fold(1.0, f64::min);
    if rounds == 0 || share > 0.1 || least < BUSY {
        return None;
    }
    // A thread without a stream would have nothing to do.
    let (threads, streams) = (figures.cores.len(), figures.streams.len());
    let (remedy, command) = match threads < streams {
        true => ("add threads, each on a core of its own", case.again(&format!("--cores {}", threads + 1))),
        false => (
            "add queues, and a thread on a core of its own for each",
            case.again(&format!("--rxq 2 --txq 2 --cores {}", (2 * streams).min(threads + 1))),
        ),
    };
    Draft::limit(id, linerate_metric::finding::End::Client)
        .cost(1.0 - share)
        .says("the forwarding threads found frames in nearly every round: they can do no more")
        .seen("idle_rounds", idle, "rounds", "forwarding threads")
        .seen("rounds", rounds, "rounds", "forwarding threads")
        .seen("cpu_share", least, "share", "forwarding threads, the least")
        .remedy(remedy)
        .command(command)
        .tried((figures.cores.len() > 1).then(|| format!("--cores {}", figures.cores.len())))
        .found()
}
