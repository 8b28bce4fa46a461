//! The hypervisor takes processor time away.

use linerate_record::facts::Role;
use linerate_record::finding::Finding;
use linerate_record::ids::CauseId;
use linerate_record::plan::RunKind;
use linerate_stats::units::format_share;

use crate::Rule;
use crate::finding_builder::FindingBuilder;
use crate::reference::{CauseReference, detection, percent};
use crate::run_view::RunView;

/// Smallest share of the time of all processors that matters.
const MIN_RELEVANT_SHARE: f64 = 0.08;

/// See docs/CAUSES.md#steal.
pub struct Steal;

impl Rule for Steal {
    fn id(&self) -> CauseId {
        CauseId::Steal
    }

    fn reference(&self) -> CauseReference {
        CauseReference {
            meaning: "The hypervisor gives CPU time to others.",
            shown_when: vec![detection(
                "every run",
                [format!(
                    "steal in /proc/stat is {} of the time of all CPUs or more",
                    percent(MIN_RELEVANT_SHARE)
                )],
            )],
            unknown_when: vec![
                "streams and round trips: an end is a virtual machine and does not report it"
                    .into(),
            ],
            not_when: vec![
                "the path is full".into(),
                "streams: the requested rate was received".into(),
            ],
            evidence: &[
                ("steal", "ns"),
                ("steal over all processors", "share"),
                ("hypervisor", ""),
            ],
            cost: vec!["Stolen share of the time.".into()],
            remedy: vec![
                "Measure when the host is quiet, or with dedicated CPUs.".into(),
                "Compare only runs with the same steal.".into(),
            ],
            wrong_when: vec!["a hypervisor counts wake-ups as steal".into()],
            ..CauseReference::cause()
        }
    }

    fn evaluate(&self, run: &RunView<'_>) -> Vec<Finding> {
        let roles = [Role::Client, Role::Server];
        let mut findings: Vec<_> = roles
            .iter()
            .filter_map(|&role| self.evaluate_end(run, role))
            .collect();
        // Runs without a server have no threads with counted time.
        let between_sockets = matches!(run.plan.kind, RunKind::Throughput | RunKind::Latency);
        if findings.is_empty() && between_sockets && !run.is_third_party_client() {
            findings.extend(self.evaluate_unknown(run));
        }
        findings
    }
}

impl Steal {
    fn evaluate_end(&self, run: &RunView<'_>, role: Role) -> Option<Finding> {
        let machine = run.cpu(role)?.machine?;
        let share = machine.share_of_total(machine.steal_ns)?;
        // The requested rate was received.
        if run.plan.kind == RunKind::Throughput && super::met_requested_rate(run) {
            return None;
        }
        if share < MIN_RELEVANT_SHARE
            || run
                .directions
                .iter()
                .any(|direction| direction.fills_path())
        {
            return None;
        }
        let hypervisor = run
            .host(role)
            .and_then(|host| host.cpu.hypervisor.as_deref());
        FindingBuilder::cause(self.id(), role)
            .cost(share)
            .summary(format!(
                "the hypervisor took {} of the {}'s CPU time (steal)",
                format_share(share),
                role.as_str()
            ))
            .evidence(
                "steal",
                machine.steal_ns,
                "ns",
                format!("{} /proc/stat", role.as_str()),
            )
            .evidence(
                "steal over all processors",
                share,
                "share",
                format!("{} /proc/stat", role.as_str()),
            )
            .evidence_if(
                "hypervisor",
                hypervisor,
                "",
                format!("{} CPUID", role.as_str()),
            )
            .remedy(
                "measure when the host is quiet, or on a machine with dedicated CPUs; \
                 compare only runs with the same steal",
            )
            .command("linerate doctor")
            .estimated_gain(Some(1.0 / (1.0 - share).max(0.1)), "1 / (1 - stolen share)")
            .build()
    }

    /// A virtual machine did not report its steal time.
    fn evaluate_unknown(&self, run: &RunView<'_>) -> Option<Finding> {
        let has_machine_time = |role| run.cpu(role).is_some_and(|cost| cost.machine.is_some());
        let hosts = [Role::Client, Role::Server].into_iter();
        let role = hosts
            .filter(|&role| !has_machine_time(role) && !run.is_one_machine())
            .find(|&role| {
                run.host(role)
                    .is_some_and(|host| host.cpu.hypervisor.is_some())
            })?;
        FindingBuilder::unknown(self.id(), role)
            .summary(format!(
                "the steal time of the {} is unknown: /proc/stat was not read there",
                role.as_str()
            ))
            .missing_evidence(
                "steal",
                &format!("{} /proc/stat", role.as_str()),
                "that end did not report it",
            )
            .remedy("watch the steal column there during a run")
            .command("vmstat 1")
            .build()
    }
}
