//! Rounds over points of which one does not respond at first; a script replaces the measuring
//! program.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use linerate_experiment::{Experiment, ExperimentError, Measured, Options, Place, Progress, run};
use linerate_metric::run_set::RunSet;

const FILE: &str = r#"
name = "small"
title = "Small"
question = "Who is asked, and how often?"
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
says = "payload that arrived"

[[figures]]
name = "slow"
from = ["/summary/slow"]
unit = "count"
says = "answers above a limit, which these records have none of"
"#;

/// The host `late` rejects the first five calls and works afterwards.
const PROGRAM: &str = r#"#!/bin/sh
cd "${0%/*}" || exit 1
echo "$2" >> calls
if [ "$2" = there ] || [ "$(grep -c late calls)" -gt 5 ]; then
    cat record
else
    echo '{"error": {"situation": "refuses", "object": "late", "next_step": "start it", "again": "may-pass"}}'
    exit 5
fi
"#;

/// Serializes the tests: a script cannot be executed while a process forked meanwhile has it open
/// for writing.
static ALONE: Mutex<()> = Mutex::new(());

/// Directory with the program and its output.
struct Room {
    folder: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Room {
    fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let room = tempfile::tempdir().unwrap();
        let program = room.path().join("program");
        std::fs::write(&program, PROGRAM).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let record = include_str!("../../report/tests/fixtures/run-1.json");
        std::fs::write(room.path().join("record"), record).unwrap();
        Self {
            folder: room,
            _alone: alone,
        }
    }

    /// Number of calls of the program so far.
    fn calls(&self) -> usize {
        let calls = std::fs::read_to_string(self.folder.path().join("calls")).unwrap();
        calls.lines().count()
    }

    /// Runs four rounds, without the measurements in `done`.
    fn run(&self, only: &[(&str, &str)], done: &[Measured], hear: impl FnMut(&Progress)) -> RunSet {
        self.run_into(&|| None, only, done, hear)
    }

    /// Like `run`, and adds the points to a table.
    fn run_into(
        &self,
        table: &dyn Fn() -> Option<RunSet>,
        only: &[(&str, &str)],
        done: &[Measured],
        hear: impl FnMut(&Progress),
    ) -> RunSet {
        self.attempt(table, only, done, hear).unwrap()
    }

    /// Like `run_into`, and returns the error if nothing is measured.
    fn attempt(
        &self,
        table: &dyn Fn() -> Option<RunSet>,
        only: &[(&str, &str)],
        done: &[Measured],
        hear: impl FnMut(&Progress),
    ) -> Result<RunSet, ExperimentError> {
        self.attempt_of(FILE, table, only, done, hear)
    }

    /// Like `attempt`, for another experiment file.
    fn attempt_of(
        &self,
        file: &str,
        table: &dyn Fn() -> Option<RunSet>,
        only: &[(&str, &str)],
        done: &[Measured],
        mut hear: impl FnMut(&Progress),
    ) -> Result<RunSet, ExperimentError> {
        let experiment = Experiment::from_toml(file).unwrap();
        let stop = AtomicBool::new(false);
        let options = Options {
            id: "20261121T144042Z-3f9a1c".to_owned(),
            file: "small.toml".to_owned(),
            started: jiff::Timestamp::UNIX_EPOCH,
            done,
            quick: false,
            place: Place::Lab,
            only: (only.iter())
                .map(|(knob, value)| ((*knob).to_owned(), (*value).to_owned()))
                .collect(),
            repeats: Some(4),
            label: None,
            before: table,
            dir: self.folder.path().to_owned(),
            program: self.folder.path().join("program"),
            cores: 1,
            distance: || None,
            stop: &stop,
            listener: None,
        };
        let mut hear = |progress: &Progress| {
            hear(progress);
            Ok(())
        };
        run(&experiment, &options, &mut hear)
    }
}

/// Progress events of four rounds, and the number of runs of each point.
fn rounds(only: &[(&str, &str)]) -> (String, Vec<usize>) {
    let mut told: Vec<&str> = Vec::new();
    let set = Room::new().run(only, &[], |progress| {
        told.push(match progress {
            Progress::Point { .. } => "point",
            Progress::Measured { .. } => "measured",
            Progress::Again { .. } => "again",
            Progress::Skipped { because, .. } => {
                assert!(because.contains("refuses"), "{because}");
                "left"
            }
            _ => return,
        });
    });
    let points = set.result.experiment.unwrap().points;
    assert!(points.iter().all(|point| point.skipped.is_none()));
    let runs = points.iter().map(|point| point.runs.len()).collect();
    (told.join(" "), runs)
}

#[test]
fn a_figure_that_no_record_has_is_told_where_all_points_were_asked_for() {
    let unread = |only: &[(&str, &str)]| {
        let set = Room::new().run(only, &[], |_| ());
        set.result.experiment.unwrap().unread
    };
    assert_eq!(unread(&[]), ["slow (/summary/slow)"]);
    assert_eq!(unread(&[("far", "there")]), [""; 0]);
}

#[test]
fn a_point_that_does_not_answer_is_asked_once_a_round_and_measured_when_it_does() {
    let (told, runs) = rounds(&[]);
    let wanted = [
        "point measured point again again again left",
        "point measured point left",
        "point measured point measured",
        "point measured point measured",
    ];
    assert_eq!(told, wanted.join(" "));
    assert_eq!(runs, [4, 2]);
}

/// With a single point the experiment does not conclude that the host is absent.
#[test]
fn the_only_point_may_come_late_too() {
    let (told, runs) = rounds(&[("far", "late")]);
    let wanted = [
        "point again again again left",
        "point left",
        "point measured",
        "point measured",
    ];
    assert_eq!(told, wanted.join(" "));
    assert_eq!(runs, [2]);
}

/// Measurements of a killed process are not repeated, in any round.
#[test]
fn points_that_were_measured_before_are_not_measured_again() {
    let room = Room::new();
    let mut kept: Vec<Measured> = Vec::new();
    let first = room.run(&[], &[], |progress| {
        if let Progress::Measured { measured, .. } = progress {
            kept.push((**measured).clone());
        }
    });
    assert_eq!(first.runs.len(), 6, "four of the one, two of the other");
    // Through JSON, as in the journal.
    let text = serde_json::to_string(&kept[..3]).unwrap();
    let done: Vec<Measured> = serde_json::from_str(&text).unwrap();
    let before = room.calls();
    let mut numbers = Vec::new();
    let again = room.run(&[], &done, |progress| {
        if let Progress::Point { number, of, .. } = progress {
            numbers.push((*number, *of));
        }
    });
    assert_eq!(room.calls() - before, numbers.len());
    assert_eq!(numbers, [(2, 8), (4, 8), (6, 8), (7, 8), (8, 8)]);
    let points = again.result.experiment.unwrap().points;
    let runs: Vec<usize> = points.iter().map(|point| point.runs.len()).collect();
    assert_eq!(runs, [4, 4]);
    assert_eq!(points[0].figures["goodput"].runs, 4);
}

/// Two processes add points to one table at the same time: the later one keeps the points of the
/// other.
#[test]
fn what_others_put_into_the_table_meanwhile_stays_in_it() {
    let other = Room::new().run(&[("far", "there")], &[], |_| ());
    let room = Room::new();
    let measured = std::cell::Cell::new(false);
    let table = || measured.get().then(|| other.clone());
    let set = room.run_into(&table, &[("far", "late")], &[], |progress| {
        measured.set(matches!(progress, Progress::Measured { .. }) || measured.get());
    });
    let points = set.result.experiment.unwrap().points;
    let runs: Vec<usize> = points.iter().map(|point| point.runs.len()).collect();
    assert_eq!((runs, set.runs.len()), (vec![4, 2], 6));
}

#[test]
fn where_nothing_could_be_measured_the_first_failure_says_what_to_do() {
    let room = Room::new();
    let program = "#!/bin/sh\necho '{\"error\": {\"situation\": \"lacks a thing\", \"object\": \"far\", \"next_step\": \"mend it\"}}'\nexit 4\n";
    std::fs::write(room.folder.path().join("program"), program).unwrap();
    let failed = room.attempt(&|| None, &[], &[], |_| ()).unwrap_err();
    assert_eq!(failed.exit_code(), 4, "{failed}");
    let problem = failed.problem();
    assert_eq!(problem.next_step, "mend it");
    assert!(
        problem.situation.contains("far: lacks a thing"),
        "{problem}"
    );
}

/// A missing interface is requested once and reported with the next step.
#[test]
fn points_that_name_what_is_not_to_be_had_are_left_out_together() {
    let file = FILE.replace(
        "[[measure]]",
        "[[knobs]]\nname = \"size\"\nvalues = [\"1\", \"2\", \"3\"]\n\n[[measure]]",
    );
    let file = file.replace("latency {far}", "latency {far} -l {size}");
    let program = "#!/bin/sh\ncd \"${0%/*}\" || exit 1\necho \"$2\" >> calls\n[ \"$2\" = late ] && exec cat record\necho '{\"error\": {\"situation\": \"no such interface\", \"object\": \"there\", \"next_step\": \"use another\", \"again\": \"stays-for-object\"}}'\nexit 1\n";
    let told = |only: &[(&str, &str)]| {
        let room = Room::new();
        std::fs::write(room.folder.path().join("program"), program).unwrap();
        let mut told = Vec::new();
        let result = room.attempt_of(&file, &|| None, only, &[], |progress| match progress {
            Progress::Skipped { because, .. } => told.push(because.clone()),
            Progress::Alike {
                points, next_step, ..
            } => told.push(format!("{points} others: {next_step}")),
            _ => {}
        });
        (result, told, room.calls())
    };
    let (result, said, calls) = told(&[]);
    assert_eq!(said, ["there: no such interface", "2 others: use another"]);
    assert_eq!(
        calls,
        1 + 4 * 3,
        "one in vain, and four rounds over the others"
    );
    let points = result.unwrap().result.experiment.unwrap().points;
    let skipped = points.iter().filter(|point| point.skipped.is_some());
    assert_eq!(skipped.count(), 3);
    // Without other points the run ends.
    let (result, _, calls) = told(&[("far", "there")]);
    assert_eq!((result.unwrap_err().exit_code(), calls), (1, 1));
}

/// A transient failure of a point is forgotten when the point is skipped with others.
#[test]
fn a_point_that_was_left_out_with_others_is_not_tried_again() {
    let file = FILE.replace(
        "[[measure]]",
        "[[knobs]]\nname = \"size\"\nvalues = [\"1\", \"2\"]\n\n[[measure]]",
    );
    let file = file.replace("latency {far}", "latency {far} -l {size}");
    let program = "#!/bin/sh\ncd \"${0%/*}\" || exit 1\necho \"$2 $4\" >> calls\n[ \"$2\" = late ] && exec cat record\n[ \"$4\" = 1 ] && again=may-pass || again=stays-for-object\necho \"{\\\"error\\\": {\\\"situation\\\": \\\"no\\\", \\\"object\\\": \\\"there\\\", \\\"next_step\\\": \\\"mend it\\\", \\\"again\\\": \\\"$again\\\"}}\"\nexit 1\n";
    let room = Room::new();
    std::fs::write(room.folder.path().join("program"), program).unwrap();
    let mut others = Vec::new();
    let result = room.attempt_of(&file, &|| None, &[], &[], |progress| {
        if let Progress::Alike { points, .. } = progress {
            others.push(*points);
        }
    });
    assert_eq!(others, [1]);
    // The first point four times in the first round, the other once, and four rounds over the rest.
    assert_eq!(room.calls(), 4 + 1 + 4 * 2);
    let points = result.unwrap().result.experiment.unwrap().points;
    let skipped = points.iter().filter(|point| point.skipped.is_some());
    assert_eq!(skipped.count(), 2);
}
