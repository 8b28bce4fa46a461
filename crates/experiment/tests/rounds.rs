//! Rounds over points of which one does not answer at first, with a script in place of the program that
//! measures.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicBool;

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

#[test]
fn a_point_that_does_not_answer_is_asked_once_a_round_and_measured_when_it_does() {
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
        only: std::collections::BTreeMap::new(),
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
    let rounds = [
        "point measured point again again again left",
        "point measured point left",
        "point measured point measured",
        "point measured point measured",
    ];
    assert_eq!(told.join(" "), rounds.join(" "));
    let points = set.result.experiment.unwrap().points;
    let runs: Vec<usize> = points.iter().map(|point| point.runs.len()).collect();
    assert_eq!(runs, [4, 2]);
    assert!(points.iter().all(|point| point.skipped.is_none()));
}
