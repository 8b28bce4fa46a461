//! Explains a run: a record in, findings out.
//!
//! Nothing here measures or reads the machine, so records of other hosts can be explained as well.
//! Each rule is a pure function in a file of [`rules`] and attaches the evidence to its finding.
//! Values that could not be read are reported as missing.
#![forbid(unsafe_code)]

pub mod causes_page;
pub mod finding_builder;
pub mod reference;
pub mod rule;
pub mod rules;
pub mod run_view;

mod host_names;
mod ranking;

pub use ranking::CONSEQUENCES;
pub use reference::CauseReference;
pub use rule::Rule;
pub use rules::RULES;

use linerate_record::finding::Finding;
use linerate_record::record::Record;
use linerate_record::run_set::RunSet;

use crate::run_view::RunView;

/// Explains why a run was not faster: findings sorted by cost, each followed by its consequences.
///
/// Causes come before limits, limits before unknowns.
#[must_use]
pub fn explain(record: &Record) -> Vec<Finding> {
    if record.interrupted && record.summary.duration_ns.is_none() {
        return Vec::new();
    }
    let host_names = host_names::host_names(record);
    let renamed = host_names::with_role_names(record, &host_names);
    let mut run = RunView::new(renamed.as_ref().unwrap_or(record));
    run.host_names = host_names;
    let findings = RULES.iter().flat_map(|rule| rule.evaluate(&run));
    let mut findings: Vec<Finding> = findings.collect();
    for finding in &mut findings {
        note_required_server(&run, finding);
        drop_same_command(&run, finding);
    }
    ranking::rank(findings, run.is_one_machine())
}

/// Removes the command that was just run: repeating it shows nothing new.
fn drop_same_command(run: &RunView<'_>, finding: &mut Finding) {
    fn tokens(command: &str) -> Vec<&str> {
        let mut tokens: Vec<_> = command.split_whitespace().collect();
        tokens.sort_unstable();
        tokens
    }
    let same = run.rerun_command("");
    finding
        .command
        .take_if(|command| tokens(command) == tokens(&same));
}

/// Adds a note to the remedy if its command needs our server instead of the third-party server of
/// the run.
fn note_required_server(run: &RunView<'_>, finding: &mut Finding) {
    let Some(protocol) = run
        .plan
        .peer_protocol
        .as_deref()
        .filter(|_| !run.is_third_party_client())
    else {
        return;
    };
    let needs_server = |command: &String| {
        let tokens: Vec<&str> = command.split_whitespace().collect();
        let needs_server = ["throughput", "latency"]
            .iter()
            .any(|kind| tokens.contains(kind));
        needs_server && !tokens.iter().any(|token| token.starts_with("--peer"))
    };
    if finding.command.as_ref().is_some_and(needs_server) {
        finding.needs_our_server = true;
        let remedy = &mut finding.remedy;
        remedy.push_str(&format!(
            "; {protocol} does not support that: run `linerate server` on the server host instead"
        ));
    }
}

/// Replaces the findings of a record.
pub fn add_findings(record: &mut Record) {
    record.findings = explain(record);
}

/// Replaces the findings of each run of a set.
pub fn add_findings_to_set(set: &mut RunSet) {
    for run in &mut set.runs {
        add_findings(run);
    }
}

#[cfg(test)]
mod tests {
    use super::finding_builder::FindingBuilder;
    use super::*;
    use linerate_record::facts::Role;
    use linerate_record::finding::FindingLocation;
    use linerate_record::ids::CauseId;
    use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
    use linerate_record::record::{DirectionFigures, Summary};

    /// Returns the client's record of a run with another tool's server.
    fn third_party_record(
        protocol: &str,
        direction: Direction,
        plan: Plan,
        summary: Summary,
    ) -> Record {
        let text = include_str!("../../report/tests/fixtures/run-1.json");
        let mut record: Record = serde_json::from_str(text).expect("a record");
        record.kind = plan.kind;
        record.plan = plan;
        record.plan.peer_protocol = Some(protocol.to_owned());
        record.plan.directions = vec![direction];
        record.command = None;
        record.hosts.retain(|host| host.role == Some(Role::Client));
        (record.intervals, record.losses) = (Vec::new(), Vec::new());
        record.counters.clear();
        record.summary = summary.clone();
        record.directions = vec![DirectionFigures {
            direction,
            summary,
            streams: Vec::new(),
        }];
        record
    }

    #[test]
    fn an_end_without_facts_is_named_by_its_role() {
        for (direction, cause) in [
            (Direction::Send, CauseId::ReceiverCpu),
            (Direction::Receive, CauseId::SenderCpu),
        ] {
            let plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "10.0.0.1");
            let summary = Summary {
                goodput_bps: Some(1e8),
                duration_ns: Some(1_000_000_000),
                ..Summary::default()
            };
            let record = third_party_record("nuttcp", direction, plan, summary);
            let findings = explain(&record);
            let names: Vec<_> = findings.iter().map(|f| (&f.cause, f.end)).collect();
            assert!(
                names.contains(&(&cause.into(), FindingLocation::Server)),
                "{names:?}"
            );
            let server_finding = findings
                .iter()
                .find(|findings| findings.end == FindingLocation::Server);
            let remedy = &server_finding.expect("a finding for the server").remedy;
            let back = direction == Direction::Receive;
            let command = format!(
                "`linerate throughput 10.0.0.1{}` here",
                if back { " -R" } else { "" }
            );
            assert!(remedy.contains(&command), "{remedy}");
        }
    }

    #[test]
    fn the_command_of_the_run_is_not_proposed() {
        let plan = Plan::new(RunKind::Throughput, TransportProtocol::Udp, "10.0.0.1");
        let record = third_party_record("iperf3", Direction::Send, plan, Summary::default());
        let run = RunView::new(&record);
        let same = run.rerun_command("");
        let reordered: Vec<_> = same.split(' ').rev().collect();
        for (command, expected) in [
            (same.clone(), None),
            (reordered.join(" "), None),
            (run.rerun_command("-b 2M"), Some(run.rerun_command("-b 2M"))),
        ] {
            let builder = FindingBuilder::limit(CauseId::ShapedLink, FindingLocation::Path)
                .summary("a limit");
            let finding = builder
                .evidence("goodput_bps", 1e6, "bit/s", "receiver")
                .remedy("raise it")
                .command(command.clone())
                .build();
            let mut finding = finding.expect("a finding");
            drop_same_command(&run, &mut finding);
            assert_eq!(finding.command, expected, "{command}");
        }
    }

    #[test]
    fn uncounted_datagrams_are_not_reported_as_received() {
        for (protocol, loss, expected) in [
            (TransportProtocol::Udp, Some(0.0), true),
            (TransportProtocol::Udp, None, false),
            (TransportProtocol::Tcp, None, true),
        ] {
            let mut plan = Plan::new(RunKind::Throughput, protocol, "10.0.0.1");
            plan.rate_bps = Some(10_000_000);
            let summary = Summary {
                goodput_bps: Some(10e6),
                duration_ns: Some(1_000_000_000),
                loss_fraction: loss,
                ..Summary::default()
            };
            let record = third_party_record("discard", Direction::Send, plan, summary);
            let findings = explain(&record);
            let arrived = findings.iter().any(|f| {
                f.summary
                    .starts_with("the requested 10.0 Mb/s were received")
            });
            assert_eq!(arrived, expected, "{protocol} {loss:?}");
            assert!(
                findings
                    .iter()
                    .all(|found| found.cause != CauseId::PathLoss)
            );
        }
    }

    #[test]
    fn a_server_without_a_warm_up_stays() {
        let plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "10.0.0.1");
        let record = third_party_record("discard", Direction::Send, plan, Summary::default());
        let command = RunView::new(&record).rerun_command("-t 30 -O 5");
        assert!(
            command.contains("--peer discard") && command.contains("-t 30"),
            "{command}"
        );
        assert!(!command.contains("-O"), "{command}");
    }

    #[test]
    fn a_command_for_our_server_names_it() {
        let plan = Plan::new(RunKind::Throughput, TransportProtocol::Tcp, "10.0.0.1");
        let record = third_party_record("ttcp", Direction::Receive, plan, Summary::default());
        let run = RunView::new(&record);
        for (command, names_server) in [
            (run.rerun_command("-P 2"), true),
            (
                "linerate throughput 10.0.0.1 -p 5001 --peer ttcp -l 8K".to_owned(),
                false,
            ),
            ("linerate ttcp -r --buffer 4M".to_owned(), false),
            ("linerate server".to_owned(), false),
        ] {
            let builder = finding_builder::FindingBuilder::limit(CauseId::SingleFlow, Role::Client);
            let builder = builder
                .evidence("x", 1_u64, "", "here")
                .remedy("more flows");
            let mut finding = builder.command(command.clone()).build().expect("evidence");
            note_required_server(&run, &mut finding);
            assert_eq!(finding.remedy != "more flows", names_server, "{command}");
            assert_eq!(finding.needs_our_server, names_server, "{command}");
        }
    }
}
