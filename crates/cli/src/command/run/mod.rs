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

use linerate_experiment::builtin::{BUILTIN_EXPERIMENTS, builtin_text};
use linerate_experiment::file::ExperimentKnob;
use linerate_experiment::{
    Experiment, ExperimentError, Progress, RunLocation, RunOptions, run as measure,
};
use linerate_host::doctor::{cache_line::NEAR_LIMIT, measure_processor_distance};
use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;
use linerate_record::experiment::{CoreDistance, KnobValues};
use linerate_record::run_set::RunSet;
use linerate_report::html;
use linerate_report::store::{RecordStore, write_file};
use linerate_stats::units::parse_seconds;
use linerate_sys::readiness::{Readiness, poll};
use linerate_sys::terminal::discard_input;
use linerate_tune::knob::{Knob, KnobTarget};

use self::journal::{ExperimentRequest, PointLog, resume_experiment};
use self::results_dir::{ResultsDir, ResultsTable, check_results, lock_table_dir, table_in};
use self::table::{check_table, find_table};
use super::measure::stop_on_signals;
use crate::args::RunArgs;
use crate::failure::CommandFailure;
use crate::knob_applier::KnobApplier;
use crate::knobs::AvailableKnobs;
use crate::live;
use crate::output::CommandOutput;
use crate::standard_streams::{list_style, print_stdout};
use crate::ui_update::{SeriesPart, UiUpdate};
use crate::unrestored_settings;

impl From<ExperimentError> for CommandFailure {
    fn from(error: ExperimentError) -> Self {
        Self {
            problem: error.to_report(),
            code: error.exit_code(),
        }
    }
}

/// Time between two checks for a stop while a manual step is awaited.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the command and returns the exit code.
pub fn run(args: &RunArgs) -> u8 {
    let mut output = CommandOutput::new(&args.output);
    run_experiment(args, &mut output).unwrap_or_else(|failure| {
        output.report_failure(&failure);
        failure.code
    })
}

fn run_experiment(args: &RunArgs, output: &mut CommandOutput) -> Result<u8, CommandFailure> {
    if args.list {
        let mut list = Vec::new();
        for (_, text) in BUILTIN_EXPERIMENTS {
            let experiment = Experiment::from_toml(text)?;
            list.push((experiment.name, experiment.question));
        }
        print_stdout(&linerate_report::text::render_named_list(
            &list,
            &list_style(),
        ));
        return Ok(exit_codes::OK);
    }
    let (request, experiment, done, journal) = match (&args.resume, &args.experiment) {
        (Some(name), _) => {
            let (request, done, journal) = resume_experiment(name)?;
            let experiment = parse_experiment(&request.text, &request.file)?;
            (request, experiment, done, Some(journal))
        }
        (None, Some(name)) if args.print => {
            print_stdout(experiment_text(name)?.trim_end());
            return Ok(exit_codes::OK);
        }
        (None, Some(name)) => {
            let text = experiment_text(name)?;
            let experiment = parse_experiment(&text, name)?;
            let request = ExperimentRequest::from_args(args, text, &experiment);
            (request, experiment, Vec::new(), None)
        }
        (None, None) => return Err(no_experiment_named()),
    };
    if args.print_lab {
        print_stdout(lab_file_of(&experiment)?.trim_end());
        return Ok(exit_codes::OK);
    }
    let location = match &request.on {
        Some(host) => RunLocation::Host(host.parse()?),
        None => RunLocation::Lab,
    };
    // Checked first, so that an impossible experiment leaves no directory and no journal.
    let expected_files = expected_files(&experiment, &request)?;
    experiment.check_location(&location, request.quick, &request.point)?;
    check_commands(&experiment, request.quick, &request.file)?;
    output.check_files()?;
    live::check_terminal(args.screen.is_enabled())?;
    let dir = &request.dir;
    let label = request.label.as_deref();
    // Dropped after all files are written.
    let table = ResultsTable {
        name: &experiment.name,
        label,
        is_resumed: args.resume.is_some(),
    };
    let _results_dir = ResultsDir::prepare(dir, table, &expected_files)?;
    // Before the first thread: only a single-threaded process can enter a user namespace.
    if experiment.lab.is_some() && request.on.is_none() && !linerate_lab::privileged() {
        linerate_lab::enter_user_namespace()?;
    }
    let table = || find_table(dir, &experiment.name, label?);
    if let Some(before) = table() {
        check_table(&before, &request)?;
    }
    // Held from the second read until the table is written with the points of this run.
    let table_lock = RefCell::new(None);
    let locked_table = || {
        if request.label.is_some() && table_lock.borrow().is_none() {
            *table_lock.borrow_mut() = lock_table_dir(dir);
        }
        table()
    };
    let stop = stop_on_signals()?;
    unrestored_settings::warn(output);
    let flag = stop.atomic();
    let program = std::env::current_exe().map_err(|error| {
        CommandFailure::failed(ErrorReport::new(
            format!("cannot find its own program file ({error})"),
            "linerate",
            "run it from its installed path",
        ))
    })?;
    let options = RunOptions {
        id: request.id.clone(),
        experiment_arg: request.file.clone(),
        started: request.started,
        completed: &done,
        quick: request.quick,
        location,
        at_points: request.point.clone(),
        repeats: request.repeat,
        label: request.label.clone(),
        read_table: &locked_table,
        results_dir: dir.clone(),
        program,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        measure_distance: cache_distance,
        stop: &flag,
        listener: None,
    };
    let knobs: Vec<Knob> = (experiment.knobs.iter()).filter_map(command_knob).collect();
    let available = (!knobs.is_empty())
        .then(AvailableKnobs::for_commands)
        .transpose()?;
    let applier = available.as_ref();
    let applier = applier.map(|available| KnobApplier::new(knobs, available, &[], &stop));
    let mut applier = applier.transpose()?;
    let journal_result = journal.map_or_else(|| PointLog::create_journal(&request), Ok);
    if let Err(why) = &journal_result {
        output.warn(&format!(
            "warning: {why}; points are lost if this process is killed"
        ));
    }
    if let Some(note) = lab_addresses_note(&experiment, &request)? {
        output.warn(&note);
    }
    let mut point_log = PointLog::new(journal_result.ok(), !args.output.no_store);
    if point_log.has_journal() {
        let resume = request.resume_command();
        output.report_status(&match done.len() {
            0 => format!("each point is stored when measured; to resume after a crash: {resume}"),
            n => format!("{n} points were measured before"),
        });
    }
    let mut has_points = !done.is_empty();
    let title = format!("experiment {}", experiment.name);
    let measured = live::run_series(args.screen.is_enabled(), &title, &stop, output, |output| {
        let mut options = options;
        if let Some(screen) = output.event_sender().cloned() {
            if experiment.lab.is_some() && request.on.is_none() {
                screen.show(UiUpdate::LabHosts);
            }
            options.listener = Some(Arc::new(move |event| screen.send(event)));
        }
        measure(&experiment, &options, &mut |progress| {
            if let (Progress::SetKnob { knob, value }, Some(applier)) = (progress, &mut applier) {
                return applier.set_knob(&knob.name, value);
            }
            // Written to the journal before it is reported.
            if let Progress::Measured {
                measurement: measured,
                ..
            } = progress
            {
                has_points = true;
                let (journal, store) = point_log.write_point(measured);
                if let Some(why) = journal {
                    output.warn(&format!("warning: {why}"));
                }
                if let Some(error) = store {
                    output.report_store_failure(&error);
                }
            }
            report_progress(output, &flag, progress);
            Ok(())
        })
    })?;
    for why in applier.iter_mut().flat_map(KnobApplier::restore) {
        output.warn(&format!("warning: could not be restored: {why}"));
    }
    if !has_points {
        // Nothing was measured, so there is nothing to resume.
        point_log.remove_journal();
        point_log = PointLog::new(None, false);
    }
    let written_set = measured.map_err(CommandFailure::from).and_then(|set| {
        // A report without runs must not replace one with runs.
        let written = match set.runs.is_empty() {
            true => Ok(None),
            false => write_results(dir, &set, point_log.has_journal()),
        };
        // Released before printing, which a slow reader may delay: other processes wait only for
        // the table.
        drop(table_lock.take());
        output.write_set(&set, &[])?;
        written.map(|before| (set, before))
    });
    let unfinished = !matches!(&written_set, Ok((set, _)) if !set.interrupted);
    match (unfinished, point_log.has_journal()) {
        (true, true) => output.report_status(&format!("to resume: {}", request.resume_command())),
        (true, false) => {}
        (false, _) => point_log.remove_journal(),
    }
    let (set, before) = written_set?;
    if !output.is_quiet() && !set.runs.is_empty() {
        output.warn(&format!("report: {}", dir.join("report.html").display()));
        if let Some(id) = before {
            output.warn(&format!(
                "it replaces an earlier one: `linerate report {id} --html FILE` writes that again"
            ));
        }
    }
    let has_misses = set
        .result
        .experiment
        .as_ref()
        .is_some_and(|result| result.has_missed_shape());
    Ok(match (stop.is_set(), has_misses) {
        (true, _) => exit_codes::INTERRUPTED,
        (_, true) => exit_codes::GATE,
        _ => exit_codes::OK,
    })
}

/// Returns the error for a missing experiment name, with the shipped ones.
fn no_experiment_named() -> CommandFailure {
    CommandFailure::usage(ErrorReport::new(
        "no experiment is named",
        "linerate run",
        format!(
            "give a file, or a shipped experiment: {}; `linerate run --list` describes them",
            shipped_names().join(", ")
        ),
    ))
}

/// Returns the names of the shipped experiments.
fn shipped_names() -> Vec<&'static str> {
    BUILTIN_EXPERIMENTS.iter().map(|(name, _)| *name).collect()
}

/// Returns the network of an experiment as a lab file.
fn lab_file_of(experiment: &Experiment) -> Result<String, CommandFailure> {
    experiment.to_lab_file().ok_or_else(|| {
        CommandFailure::usage(ErrorReport::new(
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
fn check_commands(experiment: &Experiment, quick: bool, file: &str) -> Result<(), CommandFailure> {
    for command_args in experiment.command_lines(quick, &KnobValues::new())? {
        let line = std::iter::once("linerate").chain(command_args.iter().map(String::as_str));
        if let Err(error) = crate::args::command().try_get_matches_from(line) {
            let text = error.to_string();
            // The message comes first; usage and hints follow an empty line.
            let text = text.split("\n\n").next().unwrap_or_default();
            let message_words: Vec<&str> = text.split_whitespace().collect();
            return Err(CommandFailure::usage(ErrorReport::new(
                message_words
                    .join(" ")
                    .trim_start_matches("error: ")
                    .to_owned(),
                format!("{file}: `linerate {}`", command_args.join(" ")),
                "correct the command in the file",
            )));
        }
    }
    Ok(())
}

/// Returns a note if commands for a real host contain addresses of the experiment's own network.
fn lab_addresses_note(
    experiment: &Experiment,
    request: &ExperimentRequest,
) -> Result<Option<String>, CommandFailure> {
    let (Some(_), Some(_)) = (&request.on, &experiment.lab) else {
        return Ok(None);
    };
    let lab_addresses = experiment.literal_addresses(request.quick, &request.point)?;
    let named: Vec<String> = lab_addresses.iter().map(ToString::to_string).collect();
    let next = match builtin_text(&request.file) {
        Some(_) => format!(
            "`linerate run {} --print > mine.toml`, put your addresses and interfaces in it, and run that",
            request.file
        ),
        None => format!("put your addresses and interfaces in {}", request.file),
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
pub fn load_experiment(name: &str) -> Result<Experiment, CommandFailure> {
    parse_experiment(&experiment_text(name)?, name)
}

/// Parses the text of an experiment file.
fn parse_experiment(text: &str, file: &str) -> Result<Experiment, CommandFailure> {
    Experiment::from_toml(text).map_err(|error| CommandFailure {
        problem: error.to_report_in_file(file),
        code: error.exit_code(),
    })
}

/// Returns the text of a shipped experiment, or of a file.
fn experiment_text(name: &str) -> Result<String, CommandFailure> {
    if let Some(text) = builtin_text(name) {
        return Ok(text.to_owned());
    }
    std::fs::read_to_string(name).map_err(|error| {
        CommandFailure::usage(ErrorReport::new(
            format!("neither a shipped experiment nor a readable file ({error})"),
            name,
            format!("give a file, or one of {}", shipped_names().join(", ")),
        ))
    })
}

/// Returns a knob of an experiment that is set by a command.
fn command_knob(knob: &ExperimentKnob) -> Option<Knob> {
    Some(Knob {
        name: knob.name.clone(),
        values: knob.values.clone(),
        target: KnobTarget::Command {
            command: knob.set_command.clone()?,
            restore: knob.restore_command.clone(),
            timeout_s: knob.timeout.as_deref().and_then(parse_seconds),
        },
        ordered: false,
        may_be_rejected: false,
        bytes_per_unit: knob.bytes_per_unit.map(|bytes| bytes as f64),
    })
}

fn report_progress(output: &CommandOutput, stop: &AtomicBool, progress: &Progress) {
    match progress {
        Progress::Point {
            number,
            total: of,
            setting_text: point_text,
        } => match output.event_sender() {
            Some(_) => output.show_part(SeriesPart {
                name: "point",
                number: *number,
                total: Some(*of),
                settings: point_text.clone(),
                ..SeriesPart::default()
            }),
            None => output.report_status(&format!("point {number} of {of}: {point_text}")),
        },
        Progress::Measured {
            setting_text: point_text,
            figures,
            ..
        } => {
            let figures = figures.iter();
            let figures = figures.map(|(name, value)| format!("{name} {value}"));
            let figures = figures.collect::<Vec<_>>().join(", ");
            output.report_status(&match output.event_sender() {
                Some(_) => format!("{point_text}: {figures}"),
                None => format!("  {figures}"),
            });
        }
        Progress::Retry {
            setting_text: point_text,
            reason: because,
        } => {
            output.report_status(&format!("retried: {point_text}: {because}"));
        }
        Progress::Skipped {
            setting_text: point_text,
            reason: because,
        } => {
            output.warn(&format!("not measured: {point_text}: {because}"));
        }
        Progress::SkippedGroup {
            points,
            object,
            next_step,
        } => {
            let more_points = match points {
                0 => String::new(),
                1 => "also not measured: 1 more point that names ".to_owned(),
                n => format!("also not measured: {n} more points that name "),
            };
            output.warn(&format!("{more_points}{object}: {next_step}"));
        }
        Progress::StartServer { command } => {
            output.warn(&format!("the remote host runs `{command}`"));
        }
        Progress::SetKnob { .. } => {}
        Progress::ManualStep { step: point_text } => {
            if let Some(screen) = output.event_sender() {
                let (done, confirmed) = mpsc::channel();
                screen.show(UiUpdate::ManualStep(point_text.clone(), done));
                // A quit or a signal sets the stop flag and drops the sender.
                while confirmed.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    if stop.load(Relaxed) {
                        return;
                    }
                }
                return;
            }
            use std::io::IsTerminal;
            if !std::io::stdin().is_terminal() {
                output.warn(&format!("assumed done: {point_text}"));
                return;
            }
            // Input typed before the prompt must not confirm it.
            discard_input();
            output.warn(&format!("{point_text}, then press Enter"));
            wait_for_enter(stop);
        }
    }
}

/// Waits for Enter, the end of the terminal, or a stop. It polls, because a blocking read would
/// continue after a signal.
fn wait_for_enter(stop: &AtomicBool) {
    let input = std::io::stdin();
    while !stop.load(Relaxed) {
        match poll(&input, Readiness::Receive, POLL_INTERVAL) {
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
fn cache_distance() -> Option<CoreDistance> {
    measure_processor_distance().map(|time| match time < NEAR_LIMIT {
        true => CoreDistance::Near,
        false => CoreDistance::Far,
    })
}

/// Returns the files that its commands will write to the results directory, without those of points
/// that the table there has.
fn expected_files(
    experiment: &Experiment,
    request: &ExperimentRequest,
) -> Result<Vec<String>, CommandFailure> {
    let mut files = experiment.output_files(request.quick, &request.point)?;
    let before = table_in(&request.dir).and_then(|before| before.result.experiment);
    for point in before.iter().flat_map(|before| &before.points) {
        let tried = point.skipped.is_none() || !point.commands.is_empty();
        let quick = before.as_ref().is_some_and(|before| before.quick);
        // A point that is unknown to this file has none.
        if tried && let Ok(point_files) = experiment.output_files(quick, &point.setting) {
            files.retain(|file| !point_files.contains(file));
        }
    }
    Ok(files)
}

/// Writes the table, its report and its records in place of those of an earlier table of its name.
/// Returns the id of that one, if it is stored and not part of this one. `resumes`: a failure can
/// be resumed.
fn write_results(
    dir: &Path,
    set: &RunSet,
    resumes: bool,
) -> Result<Option<String>, CommandFailure> {
    let result = set.result.experiment.as_deref();
    let result = result.expect("the set of an experiment has its result");
    let label = result.label.as_deref();
    // Another process may have changed or removed the directory meanwhile.
    let table = ResultsTable {
        name: &result.name,
        label,
        is_resumed: resumes,
    };
    check_results(dir, table)?;
    let _ = create_dir_all(dir);
    let previous = table_in(dir);
    for run in &set.runs {
        write_file(dir.join(format!("{}.json", run.id)), &run.to_json())?;
    }
    let json = serde_json::to_string(set).expect("a set holds only what JSON can say");
    write_file(dir.join("result.json"), &(json + "\n"))?;
    write_file(
        dir.join("report.html"),
        &html::render_set(&result.title, set),
    )?;
    let is_current = |id: &str| set.runs.iter().any(|run| run.id == id);
    for run in previous.iter().flat_map(|previous| &previous.runs) {
        // Only plain ids are used as file names, because the file may come from elsewhere.
        if !is_current(&run.id)
            && run
                .id
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '-')
        {
            let _ = std::fs::remove_file(dir.join(format!("{}.json", run.id)));
        }
    }
    let replaced = previous.filter(|previous| label.is_none() && previous.id != set.id);
    Ok(replaced
        .map(|previous| previous.id)
        .filter(|id| is_stored(id)))
}

/// Returns whether a set of this id is in the store.
fn is_stored(id: &str) -> bool {
    let store = RecordStore::open_default();
    store.is_ok_and(|store| store.file(id).is_file())
}
