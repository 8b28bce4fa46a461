//! `linerate run`: a whole experiment with its tables, report and records.

mod journal;
mod results_dir;
mod table;

use std::cell::RefCell;
use std::fs::create_dir_all;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use linerate_experiment::builtin::{SHIPPED, shipped};
use linerate_experiment::file::KnobOf;
use linerate_experiment::{Experiment, ExperimentError, Options, Place, Progress, run as measure};
use linerate_host::doctor::{cache_line::NEAR_BELOW, processors_apart};
use linerate_host::sys::readiness::{Ready, poll};
use linerate_host::sys::terminal::forget_typed;
use linerate_metric::event::Problem;
use linerate_metric::exit;
use linerate_metric::experiment::{Distance, Setting};
use linerate_metric::run_set::RunSet;
use linerate_metric::units::parse_seconds;
use linerate_report::html;
use linerate_report::store::{Store, write_file};
use linerate_tune::knob::{Knob, Set};

use self::journal::{Asked, Keeper, resumed};
use self::results_dir::{Folder, Table, check, hold, table_in};
use self::table::{check_table, table_of};
use super::measure::stop_on_signals;
use crate::args::RunArgs;
use crate::failure::Failure;
use crate::knob_applier::{Turner, left_note};
use crate::knobs::Knobs;
use crate::live;
use crate::output::{Output, list_style, print};
use crate::ui_update::{Part, Scene};

impl From<ExperimentError> for Failure {
    fn from(error: ExperimentError) -> Self {
        Self {
            problem: error.problem(),
            code: error.exit_code(),
        }
    }
}

/// Time between two checks for a stop while a manual step is awaited.
const LOOK: Duration = Duration::from_millis(100);

/// Runs the command and returns the exit code.
pub fn run(args: &RunArgs) -> u8 {
    let mut output = Output::new(&args.output);
    act(args, &mut output).unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    })
}

fn act(args: &RunArgs, output: &mut Output) -> Result<u8, Failure> {
    if args.list {
        let mut list = Vec::new();
        for (_, text) in SHIPPED {
            let experiment = Experiment::from_toml(text)?;
            list.push((experiment.name, experiment.question));
        }
        print(&linerate_report::text::named(&list, &list_style()));
        return Ok(exit::OK);
    }
    let (asked, experiment, done, journal) = match (&args.resume, &args.experiment) {
        (Some(name), _) => {
            let (asked, done, journal) = resumed(name)?;
            let experiment = experiment_in(&asked.text, &asked.file)?;
            (asked, experiment, done, Some(journal))
        }
        (None, Some(name)) if args.print => {
            print(text_of(name)?.trim_end());
            return Ok(exit::OK);
        }
        (None, Some(name)) => {
            let text = text_of(name)?;
            let experiment = experiment_in(&text, name)?;
            let asked = Asked::of(args, text, &experiment);
            (asked, experiment, Vec::new(), None)
        }
        (None, None) => return Err(nothing_named()),
    };
    if args.print_lab {
        print(lab_of(&experiment)?.trim_end());
        return Ok(exit::OK);
    }
    let place = match &asked.on {
        Some(host) => Place::Host(host.parse()?),
        None => Place::Lab,
    };
    // Checked first, so that an impossible experiment leaves no directory and no journal.
    let left = files_left(&experiment, &asked)?;
    experiment.check_place(&place, asked.quick, &asked.point)?;
    check_commands(&experiment, asked.quick, &asked.file)?;
    output.check_file()?;
    live::check(args.screen.is_asked())?;
    let dir = &asked.dir;
    let label = asked.label.as_deref();
    // Dropped after all files are written.
    let table = Table {
        name: &experiment.name,
        label,
        resumes: args.resume.is_some(),
    };
    let _folder = Folder::prepare(dir, table, &left)?;
    // Before the first thread: only a single-threaded process can enter a user namespace.
    if experiment.lab.is_some() && asked.on.is_none() && !linerate_lab::privileged() {
        linerate_lab::enter_user_namespace()?;
    }
    let table = || table_of(dir, &experiment.name, label?);
    if let Some(before) = table() {
        check_table(&before, &asked)?;
    }
    // Held from the second read until the table is written with the points of this run.
    let held = RefCell::new(None);
    let held_table = || {
        if asked.label.is_some() && held.borrow().is_none() {
            *held.borrow_mut() = hold(dir);
        }
        table()
    };
    let stop = stop_on_signals()?;
    left_note().iter().for_each(|note| output.remark(note));
    let flag = stop.as_flag();
    let program = std::env::current_exe().map_err(|error| {
        Failure::failed(Problem::new(
            format!("cannot find its own program file ({error})"),
            "linerate",
            "run it from its installed path",
        ))
    })?;
    let options = Options {
        id: asked.id.clone(),
        file: asked.file.clone(),
        started: asked.started,
        done: &done,
        quick: asked.quick,
        place,
        only: asked.point.clone(),
        repeats: asked.repeat,
        label: asked.label.clone(),
        before: &held_table,
        dir: dir.clone(),
        program,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        distance,
        stop: &flag,
        listener: None,
    };
    let knobs: Vec<Knob> = (experiment.knobs.iter())
        .filter_map(turned_by_command)
        .collect();
    let known = (!knobs.is_empty()).then(Knobs::of_commands).transpose()?;
    let turner = known.as_ref();
    let turner = turner.map(|known| Turner::new(knobs, known, &[], &stop));
    let mut turner = turner.transpose()?;
    let begun = journal.map_or_else(|| Keeper::begin(&asked), Ok);
    if let Err(why) = &begun {
        output.remark(&format!(
            "warning: {why}; points are lost if this process is killed"
        ));
    }
    if let Some(note) = strange_addresses(&experiment, &asked)? {
        output.remark(&note);
    }
    let mut keeper = Keeper::new(begun.ok(), !args.output.no_store);
    if keeper.is_kept() {
        let resume = asked.resume();
        output.told(&match done.len() {
            0 => format!("each point is stored when measured; to resume after a crash: {resume}"),
            n => format!("{n} points were measured before"),
        });
    }
    let mut any = !done.is_empty();
    let title = format!("experiment {}", experiment.name);
    let measured = live::series(args.screen.is_asked(), &title, &stop, output, |output| {
        let mut options = options;
        if let Some(screen) = output.teller().cloned() {
            if experiment.lab.is_some() && asked.on.is_none() {
                screen.show(Scene::Elsewhere);
            }
            options.listener = Some(Arc::new(move |event| screen.tell(event)));
        }
        measure(&experiment, &options, &mut |progress| {
            if let (Progress::Turn { knob, value }, Some(turner)) = (progress, &mut turner) {
                return turner.turn_one(&knob.name, value);
            }
            // Written to the journal before it is reported.
            if let Progress::Measured { measured, .. } = progress {
                any = true;
                let (journal, store) = keeper.keep(measured);
                if let Some(why) = journal {
                    output.remark(&format!("warning: {why}"));
                }
                if let Some(error) = store {
                    output.unstored(&error);
                }
            }
            tell(output, &flag, progress);
            Ok(())
        })
    })?;
    for why in turner.iter_mut().flat_map(Turner::back) {
        output.remark(&format!("warning: could not be restored: {why}"));
    }
    if !any {
        // Nothing was measured, so there is nothing to resume.
        keeper.done();
        keeper = Keeper::new(None, false);
    }
    let put = measured.map_err(Failure::from).and_then(|set| {
        // A report without runs must not replace one with runs.
        let written = match set.runs.is_empty() {
            true => Ok(None),
            false => write_folder(dir, &set, keeper.is_kept()),
        };
        // Released before printing, which a slow reader may delay: other processes wait only for
        // the table.
        drop(held.take());
        output.set(&set, &[])?;
        written.map(|before| (set, before))
    });
    let unfinished = !matches!(&put, Ok((set, _)) if !set.interrupted);
    match (unfinished, keeper.is_kept()) {
        (true, true) => output.told(&format!("to resume: {}", asked.resume())),
        (true, false) => {}
        (false, _) => keeper.done(),
    }
    let (set, before) = put?;
    if !output.is_quiet() && !set.runs.is_empty() {
        output.remark(&format!("report: {}", dir.join("report.html").display()));
        if let Some(id) = before {
            output.remark(&format!(
                "it replaces an earlier one: `linerate report {id} --html FILE` writes that again"
            ));
        }
    }
    let misses = set
        .result
        .experiment
        .as_ref()
        .is_some_and(|result| result.misses());
    Ok(match (stop.is_set(), misses) {
        (true, _) => exit::INTERRUPTED,
        (_, true) => exit::GATE,
        _ => exit::OK,
    })
}

/// Returns the error for a missing experiment name, with the shipped ones.
fn nothing_named() -> Failure {
    Failure::usage(Problem::new(
        "no experiment is named",
        "linerate run",
        format!(
            "give a file, or a shipped experiment: {}; `linerate run --list` describes them",
            names().join(", ")
        ),
    ))
}

/// Returns the names of the shipped experiments.
fn names() -> Vec<&'static str> {
    SHIPPED.iter().map(|(name, _)| *name).collect()
}

/// Returns the network of an experiment as a lab file.
fn lab_of(experiment: &Experiment) -> Result<String, Failure> {
    experiment.lab_file().ok_or_else(|| {
        Failure::usage(Problem::new(
            match experiment.lab {
                Some(_) => "has no fixed network: a knob sets its number of switches",
                None => "has no network in its file",
            },
            &experiment.name,
            "`linerate lab up --hops N` builds switches between two hosts",
        ))
    })
}

/// Checks all commands of linerate in an experiment, so that a typo is found before the first
/// point.
fn check_commands(experiment: &Experiment, quick: bool, file: &str) -> Result<(), Failure> {
    for words in experiment.command_lines(quick, &Setting::new())? {
        let line = std::iter::once("linerate").chain(words.iter().map(String::as_str));
        if let Err(error) = crate::args::command().try_get_matches_from(line) {
            let text = error.to_string();
            // The message comes first; usage and hints follow an empty line.
            let text = text.split("\n\n").next().unwrap_or_default();
            let words_of_it: Vec<&str> = text.split_whitespace().collect();
            return Err(Failure::usage(Problem::new(
                words_of_it
                    .join(" ")
                    .trim_start_matches("error: ")
                    .to_owned(),
                format!("{file}: `linerate {}`", words.join(" ")),
                "correct the command in the file",
            )));
        }
    }
    Ok(())
}

/// Returns a note if commands for a real host contain addresses of the experiment's own network.
fn strange_addresses(experiment: &Experiment, asked: &Asked) -> Result<Option<String>, Failure> {
    let (Some(_), Some(_)) = (&asked.on, &experiment.lab) else {
        return Ok(None);
    };
    let own = experiment.own_addresses(asked.quick, &asked.point)?;
    let named: Vec<String> = own.iter().map(ToString::to_string).collect();
    let next = match shipped(&asked.file) {
        Some(_) => format!(
            "`linerate run {} --print > mine.toml`, put your addresses and interfaces in it, and run that",
            asked.file
        ),
        None => format!("put your addresses and interfaces in {}", asked.file),
    };
    Ok((!named.is_empty()).then(|| {
        format!(
            "note: its commands use {} of the network that it builds: if yours differs, {next}",
            named.join(", ")
        )
    }))
}

/// Loads an experiment by name or file.
///
/// # Errors
/// Fails if there is no such experiment, or if it is invalid.
pub fn experiment_of(name: &str) -> Result<Experiment, Failure> {
    experiment_in(&text_of(name)?, name)
}

/// Parses the text of an experiment file.
fn experiment_in(text: &str, file: &str) -> Result<Experiment, Failure> {
    Experiment::from_toml(text).map_err(|error| Failure {
        problem: error.problem_in(file),
        code: error.exit_code(),
    })
}

/// Returns the text of a shipped experiment, or of a file.
fn text_of(name: &str) -> Result<String, Failure> {
    if let Some(text) = shipped(name) {
        return Ok(text.to_owned());
    }
    std::fs::read_to_string(name).map_err(|error| {
        Failure::usage(Problem::new(
            format!("neither a shipped experiment nor a readable file ({error})"),
            name,
            format!("give a file, or one of {}", names().join(", ")),
        ))
    })
}

/// Returns a knob of an experiment that is set by a command.
fn turned_by_command(knob: &KnobOf) -> Option<Knob> {
    Some(Knob {
        name: knob.name.clone(),
        values: knob.values.clone(),
        set: Set::Command {
            line: knob.set.clone()?,
            restore: knob.restore.clone(),
            within_s: knob.within.as_deref().and_then(parse_seconds),
        },
        ordered: false,
        uncertain: false,
        memory: knob.memory.map(|bytes| bytes as f64),
    })
}

fn tell(output: &Output, stop: &AtomicBool, progress: &Progress) {
    match progress {
        Progress::Point { number, of, words } => match output.teller() {
            Some(_) => output.part(Part {
                name: "point",
                number: *number,
                of: Some(*of),
                words: words.clone(),
                ..Part::default()
            }),
            None => output.told(&format!("[{number}/{of}] {words}")),
        },
        Progress::Measured { words, figures, .. } => {
            if output.teller().is_some() {
                let figures = figures.iter();
                let figures = figures.map(|(name, value)| format!("{name} {value}"));
                output.told(&format!(
                    "{words}: {}",
                    figures.collect::<Vec<_>>().join(", ")
                ));
            }
        }
        Progress::Again { words, because } => {
            output.told(&format!("retried: {words}: {because}"));
        }
        Progress::Skipped { words, because } => {
            output.remark(&format!("not measured: {words}: {because}"));
        }
        Progress::Alike {
            points,
            object,
            next_step,
        } => {
            let others = match points {
                0 => String::new(),
                1 => "also not measured: 1 more point that names ".to_owned(),
                n => format!("also not measured: {n} more points that name "),
            };
            output.remark(&format!("{others}{object}: {next_step}"));
        }
        Progress::Serve { command } => {
            output.remark(&format!("the remote host runs `{command}`"));
        }
        Progress::Turn { .. } => {}
        Progress::Hands { words } => {
            if let Some(screen) = output.teller() {
                let (done, waiting) = mpsc::channel();
                screen.show(Scene::Hands(words.clone(), done));
                // A quit or a signal sets the stop flag and drops the sender.
                while waiting.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                    if stop.load(Relaxed) {
                        return;
                    }
                }
                return;
            }
            use std::io::IsTerminal;
            if !std::io::stdin().is_terminal() {
                output.remark(&format!("assumed done: {words}"));
                return;
            }
            // Input typed before the prompt must not confirm it.
            forget_typed();
            output.remark(&format!("{words}, then press Enter"));
            wait_for_enter(stop);
        }
    }
}

/// Waits for Enter, the end of the terminal, or a stop. It polls, because a blocking read would
/// continue after a signal.
fn wait_for_enter(stop: &AtomicBool) {
    let input = std::io::stdin();
    while !stop.load(Relaxed) {
        match poll(&input, Ready::Receive, LOOK) {
            Ok(false) => continue,
            Ok(true) => {
                let _ = input.read_line(&mut String::new());
            }
            // Without a readable input there is nothing to wait for.
            Err(_) => {}
        }
        return;
    }
}

/// Returns the current distance of two processors.
fn distance() -> Option<Distance> {
    processors_apart().map(|time| match time < NEAR_BELOW {
        true => Distance::Near,
        false => Distance::Far,
    })
}

/// Returns the files that its commands will write to the results directory, without those of points
/// that the table there has.
fn files_left(experiment: &Experiment, asked: &Asked) -> Result<Vec<String>, Failure> {
    let mut files = experiment.files_left(asked.quick, &asked.point)?;
    let before = table_in(&asked.dir).and_then(|before| before.result.experiment);
    for point in before.iter().flat_map(|before| &before.points) {
        let tried = point.skipped.is_none() || !point.commands.is_empty();
        let quick = before.as_ref().is_some_and(|before| before.quick);
        // A point that is unknown to this file has none.
        if tried && let Ok(known) = experiment.files_left(quick, &point.setting) {
            files.retain(|file| !known.contains(file));
        }
    }
    Ok(files)
}

/// Writes the table, its report and its records in place of those of an earlier table of its name.
/// Returns the id of that one, if it is stored and not part of this one. `resumes`: a failure can
/// be resumed.
fn write_folder(dir: &Path, set: &RunSet, resumes: bool) -> Result<Option<String>, Failure> {
    let result = set.result.experiment.as_deref();
    let result = result.expect("the set of an experiment has its result");
    let label = result.label.as_deref();
    // Another process may have changed or removed the directory meanwhile.
    let table = Table {
        name: &result.name,
        label,
        resumes,
    };
    check(dir, table)?;
    let _ = create_dir_all(dir);
    let earlier = table_in(dir);
    for run in &set.runs {
        write_file(dir.join(format!("{}.json", run.id)), &run.to_json())?;
    }
    let json = serde_json::to_string(set).expect("a set holds only what JSON can say");
    write_file(dir.join("result.json"), &(json + "\n"))?;
    write_file(dir.join("report.html"), &html::of_set(&result.title, set))?;
    let is_kept = |id: &str| set.runs.iter().any(|run| run.id == id);
    for run in earlier.iter().flat_map(|earlier| &earlier.runs) {
        // Only plain ids are used as file names, because the file may come from elsewhere.
        if !is_kept(&run.id)
            && run
                .id
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '-')
        {
            let _ = std::fs::remove_file(dir.join(format!("{}.json", run.id)));
        }
    }
    let replaced = earlier.filter(|earlier| label.is_none() && earlier.id != set.id);
    Ok(replaced
        .map(|earlier| earlier.id)
        .filter(|id| is_stored(id)))
}

/// Returns whether a set of this id is in the store.
fn is_stored(id: &str) -> bool {
    let store = Store::open_default();
    store.is_ok_and(|store| store.file(id).is_file())
}
