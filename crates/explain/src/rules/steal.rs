//! The hypervisor takes processor time away.

use linerate_metric::facts::Role;
use linerate_metric::finding::Finding;
use linerate_metric::plan::Kind;
use linerate_metric::units::format_share;

use crate::Rule;
use crate::finding_builder::Draft;
use crate::run_view::{Case, name};

/// Smallest share of the time of all processors that matters.
const MATTERS: f64 = 0.08;

/// See docs/CAUSES.md#steal.
pub struct Steal;

impl Rule for Steal {
    fn id(&self) -> &'static str {
        "steal"
    }

    fn examine(&self, case: &Case<'_>) -> Vec<Finding> {
        let ends = [Role::Client, Role::Server];
        let mut found: Vec<_> = ends
            .iter()
            .filter_map(|&role| self.of(case, role))
            .collect();
        // Runs without a server have no threads with counted time.
        let between_sockets = matches!(case.plan.kind, Kind::Throughput | Kind::Latency);
        if found.is_empty() && between_sockets && !case.is_of_a_guest() {
            found.extend(self.not_known(case));
        }
        found
    }
}

impl Steal {
    fn of(&self, case: &Case<'_>, role: Role) -> Option<Finding> {
        let machine = case.cpu(role)?.machine?;
        let share = machine.share(machine.steal_ns)?;
        // The requested rate was received.
        if case.plan.kind == Kind::Throughput && super::kept_its_rate(case) {
            return None;
        }
        if share < MATTERS || case.ways.iter().any(|way| way.fills_path()) {
            return None;
        }
        let hypervisor = case
            .host(role)
            .and_then(|host| host.cpu.hypervisor.as_deref());
        Draft::cause(self.id(), role)
            .cost(share)
            .says(format!(
                "the hypervisor took {} of the {}'s processor time (steal)",
                format_share(share),
                name(role)
            ))
            .seen(
                "steal",
                machine.steal_ns,
                "ns",
                format!("{} /proc/stat", name(role)),
            )
            .seen(
                "steal over all processors",
                share,
                "share",
                format!("{} /proc/stat", name(role)),
            )
            .seen_if(
                "hypervisor",
                hypervisor,
                "",
                format!("{} CPUID", name(role)),
            )
            .remedy(
                "measure when the host is quiet, or on a machine with dedicated processors; \
                 compare only runs with the same steal",
            )
            .command("linerate doctor")
            .gain(Some(1.0 / (1.0 - share).max(0.1)), "1 / (1 - stolen share)")
            .found()
    }

    /// A virtual machine did not report its steal time.
    fn not_known(&self, case: &Case<'_>) -> Option<Finding> {
        let told = |role| case.cpu(role).is_some_and(|cost| cost.machine.is_some());
        let hosts = [Role::Client, Role::Server].into_iter();
        let role = hosts
            .filter(|&role| !told(role) && !case.one_machine())
            .find(|&role| {
                case.host(role)
                    .is_some_and(|host| host.cpu.hypervisor.is_some())
            })?;
        Draft::unknown(self.id(), role)
            .says(format!(
                "the steal time of the {} is unknown: /proc/stat was not read there",
                name(role)
            ))
            .missing(
                "steal",
                &format!("{} /proc/stat", name(role)),
                "that end did not report it",
            )
            .remedy("watch the steal column there during a run")
            .command("vmstat 1")
            .found()
    }
}
