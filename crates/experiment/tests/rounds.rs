//! Rounds over points of which one does not answer at first, with a script in place of the program that
//! measures.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use linerate_experiment::{Experiment, Options, Place, Progress, run};

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
"#;

/// The host `late` refuses five times, and is there from then on.
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

/// Four rounds: what was told, and the runs of each point.
fn rounds(only: &[(&str, &str)]) -> (String, Vec<usize>) {
    // A script that is open for writing in a process that somebody else starts meanwhile cannot be run.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let room = tempfile::tempdir().unwrap();
    let program = room.path().join("program");
    std::fs::write(&program, PROGRAM).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let record = include_str!("../../report/tests/fixtures/run-1.json");
    std::fs::write(room.path().join("record"), record).unwrap();
    let experiment = Experiment::from_toml(FILE).unwrap();
    let stop = AtomicBool::new(false);
    let options = Options {
        quick: false,
        place: Place::Lab,
        only: (only.iter())
            .map(|(knob, value)| ((*knob).to_owned(), (*value).to_owned()))
            .collect(),
        repeats: Some(4),
        label: None,
        before: None,
        dir: room.path().to_owned(),
        program,
        cores: 1,
        stop: &stop,
        listener: None,
    };
    let mut told: Vec<&str> = Vec::new();
    let set = run(&experiment, &options, &mut |progress| {
        told.push(match progress {
            Progress::Point { .. } => "point",
            Progress::Measured { .. } => "measured",
            Progress::Again { .. } => "again",
            Progress::Skipped { because, .. } => {
                assert!(because.contains("refuses"), "{because}");
                "left"
            }
            _ => return Ok(()),
        });
        Ok(())
    })
    .unwrap();
    let points = set.result.experiment.unwrap().points;
    assert!(points.iter().all(|point| point.skipped.is_none()));
    let runs = points.iter().map(|point| point.runs.len()).collect();
    (told.join(" "), runs)
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

/// Alone it is no reason to take nobody to be there.
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
