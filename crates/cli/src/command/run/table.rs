//! Growing tables: points of several runs of an experiment under one label.

use std::path::{Path, PathBuf};

use linerate_record::event::ErrorReport;
use linerate_record::run_set::RunSet;
use linerate_report::document::Document;
use linerate_report::store::RecordStore;

use super::journal::ExperimentRequest;
use crate::failure::CommandFailure;

/// Checks that the points of a table were measured in the same place and with the same duration.
///
/// # Errors
/// Fails if they differ.
pub fn check_table(before: &RunSet, request: &ExperimentRequest) -> Result<(), CommandFailure> {
    let Some(result) = &before.result.experiment else {
        return Ok(());
    };
    let label = request.label.as_deref().unwrap_or_default();
    let describe = |quick, in_lab| match (quick, in_lab) {
        (true, true) => "--quick, in labs of this machine",
        (true, false) => "--quick, on real hosts (--on)",
        (false, true) => "at full length, in labs of this machine",
        (false, false) => "at full length, on real hosts (--on)",
    };
    let measured = describe(result.quick, result.location == "lab");
    match measured == describe(request.quick, request.on.is_none()) {
        true => Ok(()),
        false => Err(CommandFailure::usage(ErrorReport::new(
            format!("its points were measured {measured}"),
            format!("--label {label}"),
            "measure in the same way, or choose another label",
        ))),
    }
}

/// Returns the table of a label: the newest one in the directory or the store.
pub fn find_table(dir: &Path, name: &str, label: &str) -> Option<RunSet> {
    let fits = |set: &RunSet| {
        let result = set.result.experiment.as_ref();
        result.is_some_and(|result| result.name == name && result.label.as_deref() == Some(label))
    };
    let read = |path: PathBuf| match Document::from_json(&std::fs::read_to_string(path).ok()?) {
        Ok(Document::Set(set)) if fits(&set) => Some(*set),
        _ => None,
    };
    let store = RecordStore::open_default().ok();
    let stored = store
        .iter()
        .flat_map(|store| std::fs::read_dir(store.dir()).into_iter());
    let stored = stored
        .flatten()
        .flatten()
        .filter_map(|entry| read(entry.path()));
    newest_table(stored, read(dir.join("result.json")))
}

/// Returns the table that was written last, which has all points. The start time does not decide,
/// because an interrupted table may be resumed later. Of two with the same latest run, `here` was
/// written last, because its directory is locked meanwhile; in the store, which is not locked, the
/// one with more runs counts.
fn newest_table(stored: impl Iterator<Item = RunSet>, here: Option<RunSet>) -> Option<RunSet> {
    let latest = |set: &RunSet| set.runs.iter().map(|run| run.started).max();
    let stored = stored.max_by_key(|set| (latest(set), set.runs.len(), set.started));
    let is_last = |here: &RunSet| latest(here) >= stored.as_ref().and_then(latest);
    here.filter(is_last).or(stored)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use linerate_record::plan::{Plan, RunKind, TransportProtocol};
    use linerate_record::record::Record;

    use super::*;

    /// A table with this start second and runs at these seconds.
    fn table(id: &str, started_s: i64, runs: &[i64]) -> RunSet {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let run = |&second: &i64| {
            let plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "far.example");
            Record::new(second.to_string(), at(second), plan)
        };
        RunSet {
            schema: linerate_record::run_set::SET_SCHEMA.to_owned(),
            id: id.to_owned(),
            kind: "experiment".to_owned(),
            started: at(started_s),
            interrupted: false,
            runs: runs.iter().map(run).collect(),
            result: Default::default(),
        }
    }

    #[test]
    fn the_newest_table_is_the_one_that_was_written_last() {
        for (tables, expected) in [
            (vec![], None),
            // Each point is added to the previous table.
            (
                vec![table("one", 1, &[2]), table("two", 3, &[2, 4])],
                Some("two"),
            ),
            // The first was interrupted, and resumed after the second.
            (
                vec![table("resumed", 1, &[2, 4, 6]), table("two", 3, &[4])],
                Some("resumed"),
            ),
            // The first was started before the second, and written after it.
            (
                vec![table("both", 1, &[4, 5]), table("one", 2, &[5])],
                Some("both"),
            ),
            // A point of the first was measured again and failed: no run is newer.
            (
                vec![table("one", 1, &[2]), table("again", 3, &[2])],
                Some("again"),
            ),
        ] {
            let all: Vec<String> = tables.iter().map(|table| table.id.clone()).collect();
            let found = newest_table(tables.into_iter(), None).map(|table| table.id);
            assert_eq!(found.as_deref(), expected, "{all:?}");
        }
    }

    /// A point that is measured again may have fewer runs.
    #[test]
    fn a_table_with_fewer_runs_may_be_the_one_that_was_written_last() {
        let before = || table("before", 3, &[1, 2, 7]);
        let here = |runs: &[i64]| Some(table("here", 1, runs));
        for (here, expected) in [
            // Started before the other and written after it, with one run in place of two.
            (here(&[6, 7]), "here"),
            // Resumed in another directory since.
            (here(&[1, 2, 6]), "before"),
            (None, "before"),
        ] {
            let found = newest_table([before()].into_iter(), here).map(|table| table.id);
            assert_eq!(found.as_deref(), Some(expected));
        }
        let only = newest_table([].into_iter(), here(&[1])).map(|table| table.id);
        assert_eq!(only.as_deref(), Some("here"));
    }
}
