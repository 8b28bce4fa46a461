//! A single flow uses only one of several cores and queues.

use linerate_metric::finding::Finding;
use linerate_metric::plan::Kind;
use linerate_metric::record::CountedAt;

use super::schedstat;
use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, Way, name};

/// See docs/CAUSES.md#single-flow.
pub struct SingleFlow;

impl Rule for SingleFlow {
    fn id(&self) -> &'static str {
        "single-flow"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        if case.plan.kind != Kind::Throughput || case.plan.streams != 1 || super::is_paced(case) {
            return Vec::new();
        }
        let ways = case.ways.iter();
        ways.filter_map(|way| self.of(case, way)).collect()
    }
}

impl SingleFlow {
    fn of(&self, case: &Case<'_>, way: &Way<'_>) -> Option<Finding> {
        if way.fills_path() {
            return None;
        }
        let (role, time) = super::parts(way)
            .into_iter()
            .filter_map(|(role, part)| Some((role, way.time(part)?)))
            .find(|(_, time)| time.is_saturated())?;
        let cost = case.cpu(role)?;
        let machine = match cost.machine {
            Some(machine) => machine,
            // Of two ends on one machine, one reads the processor times.
            None if case.one_machine() => {
                case.cpu(match role == way.sender {
                    true => way.receiver,
                    false => way.sender,
                })?
                .machine?
            }
            None => return None,
        };
        // Number of idle processors: sum of their idle shares.
        let idle = machine.share(machine.idle_ns)? * f64::from(machine.processors);
        let receiver = way.receives_by();
        let queues = receiver.and_then(|interface| interface.rx_queues);
        if idle < 1.0 || queues.unwrap_or(1) < 2 && idle < 2.0 {
            return None;
        }
        let flows = (idle.floor() as u32 + 1).clamp(2, queues.unwrap_or(8).max(2));
        let part = match role == way.sender {
            true => CountedAt::Sender,
            false => CountedAt::Receiver,
        };
        Draft::limit(self.id(), role)
            .way(way.direction)
            .cost(time.working)
            .says(format!(
                "one flow keeps one processor of the {} busy, and {idle:.1} others were idle",
                name(role)
            ))
            .seen("streams", case.plan.streams, "", "plan")
            .seen("working time", time.working, "share", schedstat(role))
            .seen(
                "idle processors",
                idle,
                "",
                format!("{} /proc/stat", name(role)),
            )
            .seen_if("rx_queues", queues, "", "receiver's interface")
            .remedy("spread the payload over several flows, to use more queues and cores")
            .command(case.again(&format!("-P {flows}")))
            .gain(
                way.time(part).map(|_| f64::from(flows).min(1.0 + idle)),
                "flows, up to one more than the idle processors",
            )
            .found()
    }
}
