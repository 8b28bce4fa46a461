//! Rounds over points of which one does not respond at first; a script replaces the measuring
//! program.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use linerate_experiment::{
    Experiment, ExperimentError, PointMeasurement, Progress, RunLocation, RunOptions, run,
};
use linerate_record::run_set::RunSet;

const EXPERIMENT_FILE: &str = r#"
name = "small"
title = "Small"
question = "Which host replies, and how fast?"
without_root = "All of it."

[[knobs]]
name = "far"
values = ["there", "late"]

[[measure]]
host = "client"
run = "latency {far}"

[[figures]]
name = "goodput"
from = ["/summary/goodput_bps"]
unit = "bit-rate"
description = "payload that arrived"

[[figures]]
name = "slow"
from = ["/summary/slow"]
unit = "count"
description = "responses above a limit, which these records have none of"
"#;

/// The host `late` rejects the first five calls and works afterwards.
const PROGRAM_SCRIPT: &str = r#"#!/bin/sh
cd "${0%/*}" || exit 1
echo "$2" >> calls
if [ "$2" = there ] || [ "$(grep -c late calls)" -gt 5 ]; then
    cat record
else
    echo '{"error": {"situation": "refuses", "object": "late", "next_step": "start it", "retryable": "transient"}}'
    exit 5
fi
"#;

/// Serializes the tests: a script cannot be executed while a process forked meanwhile has it open
/// for writing.
static TEST_LOCK: Mutex<()> = Mutex::new(());

/// Directory with the program and its output.
struct ProgramDir {
    dir: tempfile::TempDir,
    _lock: MutexGuard<'static, ()>,
}

impl ProgramDir {
    fn new() -> Self {
        let lock = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        std::fs::write(&program, PROGRAM_SCRIPT).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let record = include_str!("../../report/tests/fixtures/run-1.json");
        std::fs::write(dir.path().join("record"), record).unwrap();
        Self { dir, _lock: lock }
    }

    /// Number of calls of the program so far.
    fn count_calls(&self) -> usize {
        let calls = std::fs::read_to_string(self.dir.path().join("calls")).unwrap();
        calls.lines().count()
    }

    /// Runs four rounds, without the measurements in `completed`.
    fn run(
        &self,
        only: &[(&str, &str)],
        done: &[PointMeasurement],
        on_progress: impl FnMut(&Progress),
    ) -> RunSet {
        self.run_into(&|| None, only, done, on_progress)
    }

    /// Like `run`, and adds the points to a table.
    fn run_into(
        &self,
        table: &dyn Fn() -> Option<RunSet>,
        only: &[(&str, &str)],
        done: &[PointMeasurement],
        on_progress: impl FnMut(&Progress),
    ) -> RunSet {
        self.try_run(table, only, done, on_progress).unwrap()
    }

    /// Like `run_into`, and returns the error if nothing is measured.
    fn try_run(
        &self,
        table: &dyn Fn() -> Option<RunSet>,
        only: &[(&str, &str)],
        done: &[PointMeasurement],
        on_progress: impl FnMut(&Progress),
    ) -> Result<RunSet, ExperimentError> {
        self.try_run_file(EXPERIMENT_FILE, table, only, done, on_progress)
    }

    /// Like `try_run`, for another experiment file.
    fn try_run_file(
        &self,
        file: &str,
        table: &dyn Fn() -> Option<RunSet>,
        only: &[(&str, &str)],
        done: &[PointMeasurement],
        mut on_progress: impl FnMut(&Progress),
    ) -> Result<RunSet, ExperimentError> {
        let experiment = Experiment::from_toml(file).unwrap();
        let stop = AtomicBool::new(false);
        let options = RunOptions {
            id: "20261121T144042Z-3f9a1c".to_owned(),
            experiment_arg: "small.toml".to_owned(),
            started: jiff::Timestamp::UNIX_EPOCH,
            completed: done,
            quick: false,
            location: RunLocation::Lab,
            at_points: (only.iter())
                .map(|(knob, value)| ((*knob).to_owned(), (*value).to_owned()))
                .collect(),
            repeats: Some(4),
            label: None,
            read_table: table,
            results_dir: self.dir.path().to_owned(),
            program: self.dir.path().join("program"),
            cores: 1,
            measure_distance: || None,
            stop: &stop,
            listener: None,
        };
        let mut on_progress = |progress: &Progress| {
            on_progress(progress);
            Ok(())
        };
        run(&experiment, &options, &mut on_progress)
    }
}

/// Progress events of four rounds, and the number of runs of each point.
fn run_four_rounds(only: &[(&str, &str)]) -> (String, Vec<usize>) {
    let mut events: Vec<&str> = Vec::new();
    let set = ProgramDir::new().run(only, &[], |progress| {
        events.push(match progress {
            Progress::Point { .. } => "point",
            Progress::Measured { .. } => "measured",
            Progress::Retry { .. } => "again",
            Progress::Skipped {
                reason: because, ..
            } => {
                assert!(because.contains("refuses"), "{because}");
                "left"
            }
            _ => return,
        });
    });
    let points = set.result.experiment.unwrap().points;
    assert!(points.iter().all(|point| point.skipped.is_none()));
    let runs = points.iter().map(|point| point.runs.len()).collect();
    (events.join(" "), runs)
}

#[test]
fn a_missing_figure_is_reported_if_all_points_were_selected() {
    let missing_figures = |only: &[(&str, &str)]| {
        let set = ProgramDir::new().run(only, &[], |_| ());
        set.result.experiment.unwrap().missing_figures
    };
    assert_eq!(missing_figures(&[]), ["slow (/summary/slow)"]);
    assert_eq!(missing_figures(&[("far", "there")]), [""; 0]);
}

#[test]
fn an_unreachable_point_is_tried_once_a_round_until_it_responds() {
    let (events, runs) = run_four_rounds(&[]);
    let expected = [
        "point measured point again again again left",
        "point measured point left",
        "point measured point measured",
        "point measured point measured",
    ];
    assert_eq!(events, expected.join(" "));
    assert_eq!(runs, [4, 2]);
}

/// With a single point the experiment does not conclude that the host is absent.
#[test]
fn the_only_point_may_come_late_too() {
    let (events, runs) = run_four_rounds(&[("far", "late")]);
    let expected = [
        "point again again again left",
        "point left",
        "point measured",
        "point measured",
    ];
    assert_eq!(events, expected.join(" "));
    assert_eq!(runs, [2]);
}

/// Measurements of a killed process are not repeated, in any round.
#[test]
fn points_that_were_measured_before_are_not_measured_again() {
    let dir = ProgramDir::new();
    let mut measurements: Vec<PointMeasurement> = Vec::new();
    let first = dir.run(&[], &[], |progress| {
        if let Progress::Measured {
            measurement: measured,
            ..
        } = progress
        {
            measurements.push((**measured).clone());
        }
    });
    assert_eq!(first.runs.len(), 6, "four of the one, two of the other");
    // Through JSON, as in the journal.
    let text = serde_json::to_string(&measurements[..3]).unwrap();
    let done: Vec<PointMeasurement> = serde_json::from_str(&text).unwrap();
    let before = dir.count_calls();
    let mut numbers = Vec::new();
    let second = dir.run(&[], &done, |progress| {
        if let Progress::Point {
            number, total: of, ..
        } = progress
        {
            numbers.push((*number, *of));
        }
    });
    assert_eq!(dir.count_calls() - before, numbers.len());
    assert_eq!(numbers, [(2, 8), (4, 8), (6, 8), (7, 8), (8, 8)]);
    let points = second.result.experiment.unwrap().points;
    let runs: Vec<usize> = points.iter().map(|point| point.runs.len()).collect();
    assert_eq!(runs, [4, 4]);
    assert_eq!(points[0].figures["goodput"].runs, 4);
}

/// Two processes add points to one table at the same time: the later one keeps the points of the
/// other.
#[test]
fn points_that_others_added_meanwhile_stay_in_the_table() {
    let other_set = ProgramDir::new().run(&[("far", "there")], &[], |_| ());
    let dir = ProgramDir::new();
    let measured = std::cell::Cell::new(false);
    let table = || measured.get().then(|| other_set.clone());
    let set = dir.run_into(&table, &[("far", "late")], &[], |progress| {
        measured.set(matches!(progress, Progress::Measured { .. }) || measured.get());
    });
    let points = set.result.experiment.unwrap().points;
    let runs: Vec<usize> = points.iter().map(|point| point.runs.len()).collect();
    assert_eq!((runs, set.runs.len()), (vec![4, 2], 6));
}

#[test]
fn the_first_failure_gives_the_next_step_if_nothing_was_measured() {
    let dir = ProgramDir::new();
    let program = "#!/bin/sh\necho '{\"error\": {\"situation\": \"lacks a thing\", \"object\": \"far\", \"next_step\": \"mend it\"}}'\nexit 4\n";
    std::fs::write(dir.dir.path().join("program"), program).unwrap();
    let failed = dir.try_run(&|| None, &[], &[], |_| ()).unwrap_err();
    assert_eq!(failed.exit_code(), 4, "{failed}");
    let problem = failed.to_report();
    assert_eq!(problem.next_step, "mend it");
    assert!(
        problem.situation.contains("far: lacks a thing"),
        "{problem}"
    );
}

/// A missing interface is requested once and reported with the next step.
#[test]
fn points_that_name_a_missing_object_are_skipped_together() {
    let file = EXPERIMENT_FILE.replace(
        "[[measure]]",
        "[[knobs]]\nname = \"size\"\nvalues = [\"1\", \"2\", \"3\"]\n\n[[measure]]",
    );
    let file = file.replace("latency {far}", "latency {far} -l {size}");
    let program = "#!/bin/sh\ncd \"${0%/*}\" || exit 1\necho \"$2\" >> calls\n[ \"$2\" = late ] && exec cat record\necho '{\"error\": {\"situation\": \"no such interface\", \"object\": \"there\", \"next_step\": \"use another\", \"again\": \"stays-for-object\"}}'\nexit 1\n";
    let run_points = |only: &[(&str, &str)]| {
        let dir = ProgramDir::new();
        std::fs::write(dir.dir.path().join("program"), program).unwrap();
        let mut run_points = Vec::new();
        let result = dir.try_run_file(&file, &|| None, only, &[], |progress| match progress {
            Progress::Skipped {
                reason: because, ..
            } => run_points.push(because.clone()),
            Progress::SkippedGroup {
                points, next_step, ..
            } => run_points.push(format!("{points} others: {next_step}")),
            _ => {}
        });
        (result, run_points, dir.count_calls())
    };
    let (result, messages, calls) = run_points(&[]);
    assert_eq!(
        messages,
        ["there: no such interface", "2 others: use another"]
    );
    assert_eq!(
        calls,
        1 + 4 * 3,
        "one in vain, and four rounds over the others"
    );
    let points = result.unwrap().result.experiment.unwrap().points;
    let skipped = points.iter().filter(|point| point.skipped.is_some());
    assert_eq!(skipped.count(), 3);
    // Without other points the run ends.
    let (result, _, calls) = run_points(&[("far", "there")]);
    assert_eq!((result.unwrap_err().exit_code(), calls), (1, 1));
}

/// A transient failure of a point is forgotten when the point is skipped with others.
#[test]
fn a_point_skipped_with_others_is_not_retried() {
    let file = EXPERIMENT_FILE.replace(
        "[[measure]]",
        "[[knobs]]\nname = \"size\"\nvalues = [\"1\", \"2\"]\n\n[[measure]]",
    );
    let file = file.replace("latency {far}", "latency {far} -l {size}");
    let program = "#!/bin/sh\ncd \"${0%/*}\" || exit 1\necho \"$2 $4\" >> calls\n[ \"$2\" = late ] && exec cat record\n[ \"$4\" = 1 ] && again=may-pass || again=stays-for-object\necho \"{\\\"error\\\": {\\\"situation\\\": \\\"no\\\", \\\"object\\\": \\\"there\\\", \\\"next_step\\\": \\\"mend it\\\", \\\"again\\\": \\\"$again\\\"}}\"\nexit 1\n";
    let dir = ProgramDir::new();
    std::fs::write(dir.dir.path().join("program"), program).unwrap();
    let mut group_sizes = Vec::new();
    let result = dir.try_run_file(&file, &|| None, &[], &[], |progress| {
        if let Progress::SkippedGroup { points, .. } = progress {
            group_sizes.push(*points);
        }
    });
    assert_eq!(group_sizes, [1]);
    // The first point four times in the first round, the other once, and four rounds over the rest.
    assert_eq!(dir.count_calls(), 4 + 1 + 4 * 2);
    let points = result.unwrap().result.experiment.unwrap().points;
    let skipped = points.iter().filter(|point| point.skipped.is_some());
    assert_eq!(skipped.count(), 2);
}
