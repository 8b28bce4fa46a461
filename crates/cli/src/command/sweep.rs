//! `linerate sweep`: measures every combination of option values in random order, and finds the
//! best ones.

use std::path::PathBuf;

use jiff::Timestamp;
use linerate_host::stop_flag::Stop;
use linerate_metric::event::Problem;
use linerate_metric::exit;
use linerate_metric::experiment::{Knob as Axis, Setting};
use linerate_metric::figure;
use linerate_metric::record::{Record, new_id};
use linerate_metric::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_metric::statistics::{estimate, median};
use linerate_metric::sweep::{Sweep, SweepPoint, buffer_bytes};
use linerate_tune::TuneError;
use linerate_tune::journal::{Journal, folder};
use linerate_tune::knob::Knob;
use linerate_tune::matrix;
use linerate_tune::search::Point;
use linerate_tune::sweep_axis::Over;
use serde::{Deserialize, Serialize};

use super::measure::stop_on_signals;
use super::measuring_command::{fresh_seed, kind_of, timed};
use super::series::Ended;
use crate::args::SweepArgs;
use crate::failure::Failure;
use crate::knob_applier::{self, Turner};
use crate::knobs::Knobs;
use crate::output::Output;
use crate::printer::Teller;
use crate::ui_update::Part;
use crate::{child_process, live, shell_words};

/// Runs the command and returns the exit code.
pub fn run(args: &SweepArgs) -> u8 {
    let mut output =
        Output::new(&args.output).with_page(args.many.html.as_deref(), "linerate sweep");
    let result = sweep(args, &mut output);
    result.unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    })
}

fn refuse<T>(object: &str, situation: &str, next_step: &str) -> Result<T, Failure> {
    Err(Failure::usage(Problem::new(situation, object, next_step)))
}

/// Definition of a sweep: the first line of its journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Asked {
    id: String,
    command: Vec<String>,
    axes: Vec<Knob>,
    figure: String,
    repeats: u32,
    seed: u64,
    started: Timestamp,
}

/// Result of a run: a further line of the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Done {
    /// Index of the run in the order.
    step: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    record: Option<Box<Record>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

fn sweep(args: &SweepArgs, output: &mut Output) -> Result<u8, Failure> {
    output.check_file()?;
    live::check(args.screen.is_asked())?;
    let (asked, mut done, mut journal) = match &args.resume {
        Some(name) => resumed(name)?,
        None => {
            child_process::check_page("sweep", &args.command)?;
            begun(args)?
        }
    };
    let points = points(&asked)?;
    let commands = commands(&asked, &points)?;
    let order = order(&asked, points.len())?;
    check_done(&asked, &done, order.len())?;
    let known = Knobs::of(&args.knobs, &asked.command)?;
    check_may(&asked, &known)?;
    let stop = stop_on_signals()?;
    knob_applier::left_note()
        .iter()
        .for_each(|note| output.remark(note));
    let mut turner = Turner::new(asked.axes.clone(), &known, &asked.command, &stop)?;
    output.progress(&format!(
        "sweep {}: {} points x {} repeats = {} runs in random order, seed {}; to resume after a crash: linerate sweep --resume {}",
        asked.id,
        points.len(),
        asked.repeats,
        order.len(),
        asked.seed,
        asked.id
    ));
    let measured = Plan {
        asked: &asked,
        commands: &commands,
        places: &points
            .iter()
            .map(|point| place(&asked, point))
            .collect::<Vec<_>>(),
        order: &order,
        stop: &stop,
    };
    let title = format!("sweep of {}", shell_words::join(&asked.command));
    let ended = live::series(args.screen.is_asked(), &title, &stop, output, |output| {
        measured.run(&mut turner, &mut done, journal.as_mut(), output)
    })?;
    let notes = turner
        .back()
        .into_iter()
        .map(|why| format!("could not be restored: {why}"));
    let mut notes: Vec<String> = notes.collect();
    let interrupted = done.len() < order.len();
    let failure = match ended {
        Err(Ended::Over(failure)) => Some(failure),
        Err(Ended::Stopped) | Ok(()) => None,
    };
    if done.iter().all(|done| done.record.is_none()) {
        knob_applier::warn_of(&notes, output);
        // No run has a result, so there is nothing to resume.
        if !interrupted && let Some(journal) = journal {
            journal.remove().map_err(unusable)?;
        }
        let why = done.iter().find_map(|done| done.failed.clone());
        return Err(failure.unwrap_or_else(|| match why {
            Some(why) => Failure::failed(Problem::new(
                why,
                "every point",
                "run the measuring command by itself to see its output",
            )),
            None => Failure::from(linerate_measure::MeasureError::Interrupted),
        }));
    }
    if interrupted && journal.is_some() {
        notes.push(format!("to resume: linerate sweep --resume {}", asked.id));
    }
    let set = set_of(&asked, points, &order, done, interrupted, notes);
    output.set(&set, &[])?;
    if !interrupted && let Some(journal) = journal {
        journal.remove().map_err(unusable)?;
    }
    if let Some(failure) = failure {
        output.after_result(&failure);
        return Ok(failure.code);
    }
    Ok(match stop.is_set() {
        true => exit::INTERRUPTED,
        false => exit::OK,
    })
}

fn begun(args: &SweepArgs) -> Result<(Asked, Vec<Done>, Option<Journal>), Failure> {
    if args.over.is_empty() {
        return refuse("--over", "no option to vary", "give --over NAME=VALUES");
    }
    if args.command.is_empty() {
        return refuse(
            "sweep",
            "no measuring command",
            "end with one: throughput HOST, latency HOST",
        );
    }
    if args.repeats == 0 {
        return refuse("--repeats 0", "no run to measure", "give 1 or more");
    }
    for (position, axis) in args.over.iter().enumerate() {
        if args.over[..position]
            .iter()
            .any(|other| other.name == axis.name)
        {
            return refuse(
                &format!("--over {}", axis.name),
                "given twice",
                "give all values in one --over",
            );
        }
    }
    let mut command = args.command.clone();
    timed(&mut command);
    let known = Knobs::of(&args.knobs, &command)?;
    known.check_limits()?;
    let axes = (args.over.iter()).map(|over| known.named(over, &command));
    let axes = axes.collect::<Result<Vec<_>, _>>()?;
    let first = axes.iter().map(|axis| (axis, axis.values[0].as_str()));
    let kind = kind_of("sweep", &with(&command, first)?)?;
    let figure = match &args.figure {
        Some(name) => figure::named(name),
        None => Some(figure::of_kind(kind)),
    };
    let Some(figure) = figure else {
        return refuse(
            "--figure",
            "no figure of a run has that name",
            &format!("choose one of {}", figure::names()),
        );
    };
    let started = Timestamp::now();
    let asked = Asked {
        id: new_id(started),
        command,
        axes,
        figure: figure.name.to_owned(),
        repeats: args.repeats,
        seed: args.many.seed.unwrap_or_else(|| u64::from(fresh_seed())),
        started,
    };
    // Checked before the journal is created.
    let points = points(&asked)?;
    commands(&asked, &points)?;
    order(&asked, points.len())?;
    let journal = match folder("sweep") {
        Some(folder) => {
            let path = folder.join(format!("{}.jsonl", asked.id));
            Some(Journal::create(&path, &asked).map_err(unusable)?)
        }
        None => None,
    };
    Ok((asked, Vec::new(), journal))
}

fn resumed(name: &str) -> Result<(Asked, Vec<Done>, Option<Journal>), Failure> {
    let path = PathBuf::from(name);
    let path = match (path.is_file(), folder("sweep")) {
        (false, Some(folder)) if !name.contains('/') => folder.join(format!("{name}.jsonl")),
        _ => path,
    };
    if !path.is_file() {
        let left = left();
        return Err(Failure::failed(Problem::new(
            "no sweep of that name to resume",
            format!("--resume {name}"),
            match left.is_empty() {
                true => "no sweep is unfinished: start a new one with --over".to_owned(),
                false => format!("unfinished: {}", left.join(", ")),
            },
        )));
    }
    let (asked, done, journal) = Journal::resume(&path).map_err(|error| {
        Failure::failed(Problem::new(
            error.to_string(),
            format!("--resume {name}"),
            ANEW,
        ))
    })?;
    Ok((asked, done, Some(journal)))
}

/// Next step if a journal cannot be resumed.
const ANEW: &str = "start a new sweep with --over";

/// Rejects a journal that does not fit this sweep or this version.
fn check_done(asked: &Asked, done: &[Done], runs: usize) -> Result<(), Failure> {
    let foreign = done.iter().map(|done| done.step).find(|step| *step >= runs);
    let why = match (figure::named(&asked.figure), foreign) {
        (None, _) => format!("no figure of a run is named `{}`", asked.figure),
        (_, Some(step)) => format!("contains run {} of {runs}", step.saturating_add(1)),
        (Some(_), None) => return Ok(()),
    };
    Err(Failure::failed(Problem::new(
        why,
        format!("the journal of sweep {}", asked.id),
        ANEW,
    )))
}

/// Returns the ids of unfinished sweeps, newest first.
fn left() -> Vec<String> {
    let entries = folder("sweep").and_then(|folder| std::fs::read_dir(folder).ok());
    let names = entries.into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        Some(name.strip_suffix(".jsonl")?.to_owned())
    });
    let mut names: Vec<String> = names.collect();
    names.sort_unstable_by(|a, b| b.cmp(a));
    names
}

/// Checks that a resumed sweep may still change the settings of hosts that it varies.
fn check_may(asked: &Asked, known: &Knobs) -> Result<(), Failure> {
    use linerate_tune::knob::Set;
    let (mut hosts, mut far) = (false, false);
    for axis in &asked.axes {
        hosts |= matches!(axis.set, Set::Host { .. });
        far |= matches!(axis.set, Set::Far(_));
    }
    if (hosts && !known.ground.hosts) || (far && !known.ground.far) {
        return refuse(
            "--resume",
            "the sweep changes settings of hosts, which is not permitted now",
            "repeat its options --try-host, --try-interface, --try-far, or run it in its lab",
        );
    }
    Ok(())
}

fn unusable(error: TuneError) -> Failure {
    Failure::failed(Problem::new(
        error.to_string(),
        "the journal",
        "set XDG_STATE_HOME to a writable directory",
    ))
}

fn points(asked: &Asked) -> Result<Vec<Setting>, Failure> {
    let axes: Vec<Over> = (asked.axes.iter())
        .map(|axis| Over {
            name: axis.name.clone(),
            values: axis.values.clone(),
        })
        .collect();
    match matrix::points(&axes) {
        Some(points) => Ok(points),
        None => refuse(
            "--over",
            &format!("more than {} points", matrix::MOST_POINTS),
            "give fewer values",
        ),
    }
}

/// Returns the point of each run, in random order.
fn order(asked: &Asked, points: usize) -> Result<Vec<usize>, Failure> {
    match matrix::order(points, asked.repeats, asked.seed) {
        Some(order) => Ok(order),
        None => refuse(
            &format!("--repeats {}", asked.repeats),
            &format!("more than {} runs", matrix::MOST_RUNS),
            "give fewer repeats, or fewer values",
        ),
    }
}

/// Returns the measuring command with these values, as far as they are options of it.
fn with<'a>(
    command: &[String],
    values: impl Iterator<Item = (&'a Knob, &'a str)>,
) -> Result<Vec<String>, Failure> {
    use linerate_tune::knob::{DEFAULT, Set};
    let mut words = command.to_vec();
    for (axis, value) in values {
        match &axis.set {
            Set::Option(option) => shell_words::set_option(&mut words, option, value)?,
            Set::StackKey(key) if value != DEFAULT => words.push(format!("--set={key}={value}")),
            _ => {}
        }
    }
    Ok(words)
}

/// Returns the command of each point; an invalid one is rejected before any run.
fn commands(asked: &Asked, points: &[Setting]) -> Result<Vec<Vec<String>>, Failure> {
    points
        .iter()
        .map(|point| {
            let values = asked.axes.iter();
            let values = values.map(|axis| (axis, point[&axis.name].as_str()));
            let words = with(&asked.command, values)?;
            kind_of("sweep", &words)?;
            Ok(words)
        })
        .collect()
}

/// Returns a setting as indices of its values.
fn place(asked: &Asked, setting: &Setting) -> Point {
    let number = |axis: &Knob| {
        let value = &setting[&axis.name];
        axis.values.iter().position(|known| known == value)
    };
    asked
        .axes
        .iter()
        .map(|axis| number(axis).unwrap_or(0))
        .collect()
}

/// Runs to make, and their order.
struct Plan<'a> {
    asked: &'a Asked,
    commands: &'a [Vec<String>],
    places: &'a [Point],
    order: &'a [usize],
    stop: &'a Stop,
}

impl Plan<'_> {
    fn run(
        &self,
        turner: &mut Turner<'_>,
        done: &mut Vec<Done>,
        mut journal: Option<&mut Journal>,
        output: &Output,
    ) -> Result<(), Ended> {
        let figure = figure::named(&self.asked.figure);
        for (step, &point) in self.order.iter().enumerate() {
            if done.iter().any(|done| done.step == step) {
                continue;
            }
            let varied = (self.asked.axes.iter().zip(&self.places[point]))
                .map(|(axis, &number)| format!("{}={}", axis.name, axis.values[number]));
            let varied = varied.collect::<Vec<_>>().join(" ");
            output.part(Part {
                name: "run",
                number: step + 1,
                of: Some(self.order.len()),
                words: varied.clone(),
                ..Part::default()
            });
            let (record, failed) = self.measure(turner, point, output.teller())?;
            let value = record.as_ref().and_then(|record| figure?.of(record));
            let said = match (&failed, value) {
                (Some(why), _) => why.clone(),
                (None, Some(value)) => figure::format(&self.asked.figure, value),
                (None, None) => format!("no {}", self.asked.figure),
            };
            let line = Done {
                step,
                record,
                failed,
            };
            // Written to the journal before it is reported.
            if let Some(journal) = journal.as_deref_mut() {
                journal
                    .append(&line)
                    .map_err(|error| Ended::Over(unusable(error)))?;
            }
            output.progress(&format!(
                "run {} of {}: {varied}: {said}",
                step + 1,
                self.order.len(),
            ));
            done.push(line);
        }
        Ok(())
    }

    /// Measures a point; returns the record, or the reason why there is none.
    fn measure(
        &self,
        turner: &mut Turner<'_>,
        point: usize,
        screen: Option<&Teller>,
    ) -> Result<Measured, Ended> {
        if let Err(why) = turner.apply(&self.places[point])? {
            return Ok((None, Some(why)));
        }
        match child_process::measure(&self.commands[point], self.stop, screen) {
            Ok(record) => Ok((Some(Box::new(record)), None)),
            // A lost server fails all points.
            Err(Ended::Over(failure)) if failure.code != exit::PEER => {
                Ok((None, Some(failure.problem.to_string())))
            }
            Err(ended) => Err(ended),
        }
    }
}

type Measured = (Option<Box<Record>>, Option<String>);

fn set_of(
    asked: &Asked,
    settings: Vec<Setting>,
    order: &[usize],
    done: Vec<Done>,
    interrupted: bool,
    notes: Vec<String>,
) -> RunSet {
    let figure = figure::named(&asked.figure).expect("it was checked when the sweep began");
    let mut runs = Vec::new();
    let mut points: Vec<SweepPoint> = Vec::new();
    for (number, setting) in settings.into_iter().enumerate() {
        let own: Vec<&Done> = done
            .iter()
            .filter(|done| order[done.step] == number)
            .collect();
        let records: Vec<&Record> = own
            .iter()
            .filter_map(|done| done.record.as_deref())
            .collect();
        let of = |read: &dyn Fn(&Record) -> Option<f64>| -> Vec<f64> {
            records.iter().filter_map(|record| read(record)).collect()
        };
        let label: Vec<_> = asked
            .axes
            .iter()
            .map(|axis| format!("{}={}", axis.name, setting[&axis.name]))
            .collect();
        runs.extend(records.iter().map(|record| Record {
            label: Some(label.join(" ")),
            ..(*record).clone()
        }));
        points.push(SweepPoint {
            value: estimate(&of(&|run| figure.of(run))),
            memory_bytes: memory(asked, &setting, median(&of(&buffer_bytes))),
            cpu_ns: median(&of(&|run| figure::CPU.of(run))),
            pareto: false,
            failed: own.iter().find_map(|done| done.failed.clone()),
            records: records.iter().map(|record| record.id.clone()).collect(),
            setting,
        });
    }
    let memory_known = points.iter().any(|point| point.memory_bytes.is_some());
    let costs: Vec<_> = points
        .iter()
        .map(|point| {
            let cost = if memory_known {
                point.memory_bytes
            } else {
                point.cpu_ns
            };
            (point.value.map(|value| value.median), cost)
        })
        .collect();
    for (point, on_front) in points
        .iter_mut()
        .zip(matrix::pareto(figure.better(), &costs))
    {
        point.pareto = on_front;
    }
    let best = best(figure.better(), &points);
    RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: asked.id.clone(),
        kind: "sweep".to_owned(),
        started: asked.started,
        interrupted,
        runs,
        result: SetResult {
            sweep: Some(Box::new(Sweep {
                command: shell_words::join(&asked.command),
                figure: asked.figure.clone(),
                better: figure.better(),
                seed: asked.seed,
                repeats: asked.repeats,
                axes: (asked.axes.iter())
                    .map(|axis| Axis {
                        name: axis.name.clone(),
                        values: axis.values.clone(),
                    })
                    .collect(),
                points,
                best,
            })),
            notes,
            ..SetResult::default()
        },
    }
}

/// Returns the memory of the buffers and of the user's knobs in bytes.
fn memory(asked: &Asked, setting: &Setting, buffers: Option<f64>) -> Option<f64> {
    let own = (asked.axes.iter()).filter_map(|axis| {
        let size: linerate_metric::units::ByteSize = setting[&axis.name].parse().ok()?;
        Some(axis.memory? * size.0 as f64)
    });
    let own: Vec<f64> = own.collect();
    match (buffers, own.is_empty()) {
        (buffers, true) => buffers,
        // A board does not report its buffers: only its knobs count.
        (buffers, false) => Some(buffers.unwrap_or(0.0) + own.iter().sum::<f64>()),
    }
}

fn best(better: linerate_metric::comparison::Better, points: &[SweepPoint]) -> Option<usize> {
    use linerate_metric::comparison::Better;
    let known = points
        .iter()
        .enumerate()
        .filter_map(|(number, point)| Some((number, point.value?.median)));
    let by = |a: &(usize, f64), b: &(usize, f64)| a.1.total_cmp(&b.1);
    match better {
        Better::Higher => known.max_by(by),
        Better::Lower => known.min_by(by),
    }
    .map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(figure: &str) -> Asked {
        Asked {
            id: "20261126T080000Z-000001".to_owned(),
            command: vec!["throughput".to_owned(), "h".to_owned()],
            axes: Vec::new(),
            figure: figure.to_owned(),
            repeats: 2,
            seed: 1,
            started: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_journal_of_something_else_is_refused_before_anything_is_measured() {
        let done = |step| Done {
            step,
            record: None,
            failed: None,
        };
        for (figure, step, said) in [
            ("goodput", 1, None),
            ("goodput", 2, Some("run 3 of 2")),
            ("goodput", usize::MAX, Some("run 18446744073709551615 of 2")),
            ("speed", 0, Some("`speed`")),
        ] {
            let told = check_done(&asked(figure), &[done(0), done(step)], 2).err();
            let told = told.map(|failure| failure.problem.situation);
            assert_eq!(told.is_some(), said.is_some(), "{figure} {step}: {told:?}");
            let says =
                said.is_none_or(|said| told.as_ref().is_some_and(|told| told.contains(said)));
            assert!(says, "{figure} {step}: {told:?}");
        }
    }

    #[test]
    fn more_runs_than_anybody_waits_for_are_refused() {
        let many = Asked {
            repeats: u32::MAX,
            ..asked("goodput")
        };
        let told = order(&many, 4).expect_err("it is too many").problem;
        assert!(told.situation.contains("more than 1000000 runs"), "{told}");
        assert_eq!(
            order(&asked("goodput"), 4).map(|order| order.len()).ok(),
            Some(8)
        );
    }
}
