//! A single flow uses only one of several cores and queues.

use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::RunKind;
use linerate_record::record::FlowEnd;

use super::schedstat_source;
use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection};
use crate::run_view::{DirectionView, RunView};

/// Idle processors from which more flows help, if the receiving interface has several queues, and
/// if it has one.
const MIN_IDLE_PROCESSORS: f64 = 1.0;
const MIN_IDLE_PROCESSORS_ONE_QUEUE: f64 = 2.0;

/// See docs/CAUSES.md#single-flow.
pub struct SingleFlow;

impl Rule for SingleFlow {
    fn id(&self) -> CauseId {
        CauseId::SingleFlow
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "One flow uses one CPU and one queue, while others are idle.",
            shown_when: vec![detection(
                "TCP and UDP, one flow",
                [
                    "an end is saturated".into(),
                    format!(
                        "the sum of idle CPU time is {MIN_IDLE_PROCESSORS_ONE_QUEUE} \
                         CPUs or more, or {MIN_IDLE_PROCESSORS} if the receiving interface \
                         has several queues"
                    ),
                ],
            )],
            not_when: vec![
                "a rate was requested".into(),
                "the path is full".into(),
                "the run is too short for /proc/stat, which counts in ticks".into(),
            ],
            evidence: &[
                ("streams", ""),
                ("working time", "share"),
                ("idle processors", ""),
                ("rx_queues", ""),
            ],
            cost: vec!["Working time of the threads.".into()],
            remedy: vec!["Use several flows (`-P N`).".into()],
            wrong_when: vec!["one flow is the subject of the measurement".into()],
            ..CauseReference::limit()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        if run.plan.kind != RunKind::Throughput || run.plan.streams != 1 || super::is_paced(run) {
            return Vec::new();
        }
        let directions = run.directions.iter();
        directions
            .filter_map(|direction| self.evaluate_direction(run, direction))
            .collect()
    }
}

impl SingleFlow {
    fn evaluate_direction(
        &self,
        run: &RunView<'_>,
        direction: &DirectionView<'_>,
    ) -> Option<Finding> {
        if direction.fills_path() {
            return None;
        }
        let (role, time) = super::flow_ends(direction)
            .into_iter()
            .filter_map(|(role, part)| Some((role, direction.thread_time(part)?)))
            .find(|(_, time)| time.is_saturated())?;
        let cost = run.cpu(role)?;
        let machine = match cost.machine {
            Some(machine) => machine,
            // Of two ends on one machine, one reads the processor times.
            None if run.is_one_machine() => {
                run.cpu(match role == direction.sender {
                    true => direction.receiver,
                    false => direction.sender,
                })?
                .machine?
            }
            None => return None,
        };
        // Number of idle processors: sum of their idle shares.
        let idle = machine.share_of_total(machine.idle_ns)? * f64::from(machine.processors);
        let receiver = direction.receiver_interface();
        let queues = receiver.and_then(|interface| interface.rx_queues);
        if idle < MIN_IDLE_PROCESSORS
            || queues.unwrap_or(1) < 2 && idle < MIN_IDLE_PROCESSORS_ONE_QUEUE
        {
            return None;
        }
        let flows = (idle.floor() as u32 + 1).clamp(2, queues.unwrap_or(8).max(2));
        let part = match role == direction.sender {
            true => FlowEnd::Sender,
            false => FlowEnd::Receiver,
        };
        FindingBuilder::limit(self.id(), role)
            .direction(direction.direction)
            .cost(time.working)
            .summary(format!(
                "one flow keeps one CPU of the {} busy, and {idle:.1} others were idle",
                role.as_str()
            ))
            .evidence("streams", run.plan.streams, "", "plan")
            .evidence(
                "working time",
                time.working,
                "share",
                schedstat_source(role),
            )
            .evidence(
                "idle processors",
                idle,
                "",
                format!("{} /proc/stat", role.as_str()),
            )
            .evidence_if("rx_queues", queues, "", "receiver's interface")
            .remedy("spread the payload over several flows, to use more queues and CPUs")
            .command(run.rerun_command(&format!("-P {flows}")))
            .estimated_gain(
                direction
                    .thread_time(part)
                    .map(|_| f64::from(flows).min(1.0 + idle)),
                "flows, up to one more than the idle CPUs",
            )
            .build()
    }
}
