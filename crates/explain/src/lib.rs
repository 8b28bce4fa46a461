//! Explains a run: a record in, findings out.
//!
//! Nothing here measures or reads the machine, so records of other hosts can be explained as well.
//! Each rule is a pure function in a file of [`rules`] and attaches the evidence to its finding.
//! Values that could not be read are reported as missing.
#![forbid(unsafe_code)]

pub mod finding_builder;
pub mod rule;
pub mod rules;
pub mod run_view;

mod host_names;
mod ranking;

pub use ranking::FOLLOWS;
pub use rule::Rule;
pub use rules::RULES;

use linerate_metric::finding::Finding;
use linerate_metric::record::Record;
use linerate_metric::run_set::RunSet;

use crate::run_view::Case;

/// Explains why a run was not faster: findings sorted by cost, each followed by its consequences.
///
/// Causes come before limits, limits before unknowns.
#[must_use]
pub fn explain(record: &Record) -> Vec<Finding> {
    if record.interrupted && record.summary.duration_ns.is_none() {
        return Vec::new();
    }
    let places = host_names::places(record);
    let named = host_names::by_their_parts(record, &places);
    let mut case = Case::new(named.as_ref().unwrap_or(record));
    case.places = places;
    let found = RULES.iter().flat_map(|rule| rule.examine(&case));
    let mut found: Vec<Finding> = found.collect();
    for finding in &mut found {
        name_far_end(&case, finding);
    }
    ranking::rank(found, case.one_machine())
}

/// Adds a note to the remedy if its command needs our server instead of the third-party server of
/// the run.
fn name_far_end(case: &Case<'_>, finding: &mut Finding) {
    let Some(dialect) = case
        .plan
        .dialect
        .as_deref()
        .filter(|_| !case.is_of_a_guest())
    else {
        return;
    };
    let asks = |command: &String| {
        let words: Vec<&str> = command.split_whitespace().collect();
        let asks = ["throughput", "latency"]
            .iter()
            .any(|kind| words.contains(kind));
        asks && !words.iter().any(|word| word.starts_with("--peer"))
    };
    if finding.command.as_ref().is_some_and(asks) {
        let remedy = &mut finding.remedy;
        remedy.push_str(&format!(
            "; {dialect} does not support that: run `linerate server` on the server host instead"
        ));
    }
}

/// Replaces the findings of a record.
pub fn complete(record: &mut Record) {
    record.findings = explain(record);
}

/// Replaces the findings of each run of a set.
pub fn complete_set(set: &mut RunSet) {
    for run in &mut set.runs {
        complete(run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::facts::Role;
    use linerate_metric::finding::End;
    use linerate_metric::plan::{Direction, Kind, Plan, Protocol};
    use linerate_metric::record::{DirectionFigures, Summary};

    /// Returns the client's record of a run with another tool's server.
    fn foreign(dialect: &str, direction: Direction, plan: Plan, summary: Summary) -> Record {
        let text = include_str!("../../report/tests/fixtures/run-1.json");
        let mut record: Record = serde_json::from_str(text).expect("a record");
        record.kind = plan.kind;
        record.plan = plan;
        record.plan.dialect = Some(dialect.to_owned());
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
    fn the_end_that_tells_nothing_is_named_by_its_part() {
        for (direction, cause) in [
            (Direction::Send, "receiver-cpu"),
            (Direction::Receive, "sender-cpu"),
        ] {
            let plan = Plan::new(Kind::Throughput, Protocol::Tcp, "10.0.0.1");
            let summary = Summary {
                goodput_bps: Some(1e8),
                duration_ns: Some(1_000_000_000),
                ..Summary::default()
            };
            let record = foreign("nuttcp", direction, plan, summary);
            let found = explain(&record);
            let names: Vec<_> = found.iter().map(|f| (f.cause.as_str(), f.end)).collect();
            assert!(names.contains(&(cause, End::Server)), "{names:?}");
            let told = found.iter().find(|found| found.end == End::Server);
            let remedy = &told.expect("a finding for the server").remedy;
            let back = direction == Direction::Receive;
            let asks = format!(
                "`linerate throughput 10.0.0.1{}` here",
                if back { " -R" } else { "" }
            );
            assert!(remedy.contains(&asks), "{remedy}");
        }
    }

    #[test]
    fn what_nobody_counted_is_not_said_to_have_arrived() {
        for (protocol, loss, told) in [
            (Protocol::Udp, Some(0.0), true),
            (Protocol::Udp, None, false),
            (Protocol::Tcp, None, true),
        ] {
            let mut plan = Plan::new(Kind::Throughput, protocol, "10.0.0.1");
            plan.rate_bps = Some(10_000_000);
            let summary = Summary {
                goodput_bps: Some(10e6),
                duration_ns: Some(1_000_000_000),
                loss_fraction: loss,
                ..Summary::default()
            };
            let record = foreign("discard", Direction::Send, plan, summary);
            let found = explain(&record);
            let arrived = found
                .iter()
                .any(|f| f.what.contains("all of it was received"));
            assert_eq!(arrived, told, "{protocol} {loss:?}");
            assert!(found.iter().all(|found| found.cause != "path-loss"));
        }
    }

    #[test]
    fn a_command_for_our_own_server_says_so() {
        let plan = Plan::new(Kind::Throughput, Protocol::Tcp, "10.0.0.1");
        let record = foreign("ttcp", Direction::Receive, plan, Summary::default());
        let case = Case::new(&record);
        for (command, says) in [
            (case.again("-P 2"), true),
            (
                "linerate throughput 10.0.0.1 -p 5001 --peer ttcp -l 8K".to_owned(),
                false,
            ),
            ("linerate ttcp -r --buffer 4M".to_owned(), false),
            ("linerate server".to_owned(), false),
        ] {
            let draft = finding_builder::Draft::limit("single-flow", Role::Client);
            let draft = draft.seen("x", 1_u64, "", "here").remedy("more flows");
            let mut finding = draft.command(command.clone()).found().expect("evidence");
            name_far_end(&case, &mut finding);
            assert_eq!(finding.remedy != "more flows", says, "{command}");
        }
    }
}
