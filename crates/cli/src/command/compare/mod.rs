//! `linerate compare`: A/B comparison in interleaved pairs.

mod pair_runner;
mod pair_source;
mod stored_results;

use std::cell::{Cell, RefCell};

use jiff::Timestamp;
use linerate_record::comparison::{
    BetterWhen, Comparison, ComparisonSide, ComparisonSpec, ComparisonVerdict, RankTest,
    compare_pairs, min_samples,
};
use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;
use linerate_record::figure;
use linerate_record::record::{Record, new_id};
use linerate_record::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_tune::knob::Knob;
use linerate_tune::pair_scheduler::{MAX_TRIES_PER_PAIR, PairBudget, PairScheduler};
use linerate_tune::search::SearchPoint;
use regex_lite::Regex;

use self::pair_source::PairSource;
use super::measure::stop_on_signals;
use super::measuring_command::{add_default_time, fresh_seed, kind_of};
use crate::args::{CompareArgs, PairArgs};
use crate::failure::{CommandFailure, SeriesEnd};
use crate::knob_applier::{self, KnobApplier};
use crate::knobs::{self, AvailableKnobs};
use crate::output::CommandOutput;
use crate::ui_update::SeriesPart;
use crate::{child_process, live, shell_words, unrestored_settings};

pub use pair_runner::{MachineState, PairRunner};

/// Default maximum of pairs.
const DEFAULT_MAX_PAIRS: usize = 100;

/// Runs the command and returns the exit code.
pub fn run(args: &CompareArgs) -> u8 {
    let mut output =
        CommandOutput::new(&args.output).with_report(args.many.html.as_deref(), "linerate compare");
    let result = run_compare(args, &mut output);
    result.unwrap_or_else(|failure| {
        output.report_failure(&failure);
        failure.code
    })
}

fn reject<T>(object: &str, situation: &str, next_step: &str) -> Result<T, CommandFailure> {
    Err(CommandFailure::usage(ErrorReport::new(
        situation, object, next_step,
    )))
}

fn run_compare(args: &CompareArgs, output: &mut CommandOutput) -> Result<u8, CommandFailure> {
    output.check_files()?;
    live::check_terminal(args.screen.is_enabled())?;
    check_pair_args(&args.pairs_until)?;
    if args.pairs == Some(0) {
        return reject("--pairs", "no pair to measure", "give 1 or more");
    }
    child_process::check_report_option("compare", &args.command)?;
    let has_source = [
        !args.results.is_empty(),
        !args.command.is_empty(),
        args.command_a.is_some(),
    ];
    match has_source {
        [true, false, false] => stored_results::compare_stored(args, output),
        [false, true, false] => {
            let measured =
                [&args.a, &args.b].map(|side| side_command(&args.command, side.as_deref()));
            let [a, b] = measured;
            let (a, b) = (a?, b?);
            let has_same_settings = args.prepare_a == args.prepare_b && args.knob_a == args.knob_b;
            if a == b && has_same_settings {
                output.warn("note: both sides are equal: the result shows the noise");
            }
            let kind = kind_of("compare", &a)?;
            kind_of("compare", &b)?;
            let figure = args
                .figure
                .clone()
                .unwrap_or_else(|| figure::default_for(kind).name.to_owned());
            if figure::find(&figure).is_none() {
                return reject(
                    &format!("--figure {figure}"),
                    "no figure of a run has that name",
                    &format!("choose one of {}", figure::names()),
                );
            }
            compare_interleaved(
                args,
                &figure,
                None,
                [PairSource::Measure(a), PairSource::Measure(b)],
                output,
            )
        }
        [false, false, true] => {
            let (Some(a), Some(b)) = (&args.command_a, &args.command_b) else {
                return reject("--command-a", "needs a second side", "add --command-b");
            };
            let figure = args.figure.clone().unwrap_or_else(|| "output".to_owned());
            let pattern = match (figure::find(&figure), &args.figure) {
                (Some(_), _) | (None, None) => None,
                (None, Some(text)) => match Regex::new(text) {
                    Ok(pattern) => Some(pattern),
                    Err(error) => {
                        return reject(
                            &format!("--figure {text}"),
                            &format!(
                                "neither the name of a figure nor a regular expression ({error})"
                            ),
                            &format!(
                                "choose one of {}, or correct the expression",
                                figure::names()
                            ),
                        );
                    }
                },
            };
            let sources = [a, b].map(|line| PairSource::Command(line.clone()));
            compare_interleaved(args, &figure, pattern.as_ref(), sources, output)
        }
        [false, false, false] => reject(
            "compare",
            "nothing to compare",
            "name two results, or a measuring command with --a and --b, or --command-a and --command-b",
        ),
        _ => reject(
            "compare",
            "results, a measuring command and --command-a exclude each other",
            "use one of them",
        ),
    }
}

/// Checks the smallest difference and the maximum of pairs.
pub fn check_pair_args(until: &PairArgs) -> Result<(), CommandFailure> {
    if !(until.effect > 0.0 && until.effect < 10.0) {
        return reject("--effect", "out of range", "give 0.1% to 900%");
    }
    match until.max_pairs {
        Some(0) => reject("--max-pairs", "no pair to measure", "give 1 or more"),
        _ => Ok(()),
    }
}

/// Returns the full command of a side. Its own options replace those of both sides.
fn side_command(command: &[String], options: Option<&str>) -> Result<Vec<String>, CommandFailure> {
    let mut all = command.to_vec();
    let own_args = shell_words::split_args(options.unwrap_or_default()).map_err(|error| {
        CommandFailure::usage(ErrorReport::new(
            error,
            options.unwrap_or_default(),
            "close the quote",
        ))
    })?;
    shell_words::add_args(&mut all, &own_args);
    add_default_time(&mut all);
    Ok(all)
}

/// Returns the knobs of both sides, and the point of each side. A knob that only one side names has
/// its start value on the other.
fn side_knobs(
    args: &CompareArgs,
    available: &AvailableKnobs,
) -> Result<(Vec<Knob>, [SearchPoint; 2]), CommandFailure> {
    let sides = [&args.knob_a, &args.knob_b].map(|side| {
        let pairs = side.iter().map(|text| knobs::parse_knob_value(text));
        pairs.collect::<Result<Vec<_>, _>>()
    });
    let [a, b] = sides;
    let sides = [a?, b?];
    let mut all: Vec<Knob> = Vec::new();
    let mut points = [SearchPoint::new(), SearchPoint::new()];
    for (side, overs) in sides.iter().enumerate() {
        for over in overs {
            let mut knob = available.resolve(over, &args.command)?;
            let index = match all.iter().position(|available| available.name == knob.name) {
                Some(index) => index,
                None => {
                    let start = available.initial_value(&knob);
                    knob.values = vec![start];
                    all.push(knob);
                    points.iter_mut().for_each(|point| point.push(0));
                    all.len() - 1
                }
            };
            let value = &over.values[0];
            let values = &mut all[index].values;
            points[side][index] = match values.iter().position(|available| available == value) {
                Some(number) => number,
                None => {
                    values.push(value.clone());
                    values.len() - 1
                }
            };
        }
    }
    Ok((all, points))
}

fn compare_interleaved(
    args: &CompareArgs,
    name: &str,
    pattern: Option<&Regex>,
    sources: [PairSource; 2],
    output: &mut CommandOutput,
) -> Result<u8, CommandFailure> {
    let available = AvailableKnobs::collect(&args.knobs, &args.command)?;
    available.check_limits()?;
    let (knobs, points) = side_knobs(args, &available)?;
    let stop = stop_on_signals()?;
    unrestored_settings::warn(output);
    let applier = RefCell::new(KnobApplier::new(knobs, &available, &args.command, &stop)?);
    let seed = args.many.seed.unwrap_or_else(|| u64::from(fresh_seed()));
    let amount = match args.pairs {
        Some(pairs) => PairBudget::Exactly(pairs),
        None => PairBudget::UntilDecided {
            limit: args.pairs_until.max_pairs.unwrap_or(DEFAULT_MAX_PAIRS),
        },
    };
    let better = better_direction(args, name);
    let side_knobs = [&args.knob_a, &args.knob_b].map(|knobs| knobs.join(" "));
    let labels = [0, 1].map(|side| {
        let label = sources[side].label();
        match side_knobs[side].is_empty() {
            true => label,
            false => format!("{label} ({})", side_knobs[side]),
        }
    });
    let prepare = [&args.prepare_a, &args.prepare_b];
    let announced = [0, 1].map(|side| match prepare[side] {
        Some(line) => format!("{} (after: {line})", labels[side]),
        None => labels[side].clone(),
    });
    output.report_progress(&format!(
        "A: {}\nB: {}\n{}, in random order, seed {seed}",
        announced[0],
        announced[1],
        describe_amount(amount)
    ));
    warn_if_too_few(amount, output);
    let names = [&args.name_a, &args.name_b];
    let runs = RefCell::new(Vec::new());
    let last_prepared: Cell<Option<&String>> = Cell::new(None);
    let measure_side =
        |output: &CommandOutput, number: usize, side: usize| -> Result<f64, SeriesEnd> {
            output.show_part(SeriesPart {
                name: "pair",
                number,
                total: Some(amount.max_pairs()),
                at_most: true,
                settings: format!("{}: {}", ["A", "B"][side], labels[side]),
            });
            let mut applier = applier.borrow_mut();
            if let Err(why) = applier.apply(&points[side])? {
                return Err(SeriesEnd::Failed(CommandFailure::failed(ErrorReport::new(
                    why,
                    labels[side].clone(),
                    "choose another value",
                ))));
            }
            if let Some(line) = prepare[side] {
                child_process::run_shell(line, &stop)?;
                last_prepared.set(Some(line));
            }
            let source = match &sources[side] {
                PairSource::Measure(command) => {
                    PairSource::Measure(applier.measuring_command(command, &points[side])?)
                }
                PairSource::Command(line) => PairSource::Command(line.clone()),
            };
            let (value, record) = source.run(name, pattern, &stop, output.event_sender())?;
            if let Some(mut record) = record {
                record.label = Some(["A", "B"][side].to_owned());
                runs.borrow_mut().push(record);
            }
            Ok(value)
        };
    let mut pair_runner = PairRunner {
        order: PairScheduler::new(amount, args.pairs_until.effect, seed),
        machine: MachineState::new(),
        pairs: Vec::new(),
        significance: amount.significance(),
    };
    let started = Timestamp::now();
    let title = format!("compare by {name}");
    let end = live::run_series(args.screen.is_enabled(), &title, &stop, output, |output| {
        pair_runner.run(
            |number, side| measure_side(output, number, side),
            |number, pair| {
                output.report_progress(&linerate_report::text::describe_pair(
                    number, name, pair, 100,
                ));
            },
        )
    })?;
    let mut notes: Vec<String> = (applier.into_inner().restore().into_iter())
        .map(|why| format!("could not be restored: {why}"))
        .collect();
    // Only the user knows what a command changed.
    notes.extend(
        last_prepared.get().map(|line| {
            format!("what the last preparation changed is not set back: it was `{line}`")
        }),
    );
    let runs = runs.into_inner();
    if pair_runner.pairs.is_empty() {
        knob_applier::report_unrestored(&notes, output);
        return Err(match end {
            Err(SeriesEnd::Failed(failure)) => failure,
            _ => CommandFailure::interrupted(),
        });
    }
    let ids = |label: &str| -> Vec<String> {
        (runs
            .iter()
            .filter(|run: &&Record| run.label.as_deref() == Some(label)))
        .map(|run| run.id.clone())
        .collect()
    };
    let test = ComparisonSpec {
        figure: name.to_owned(),
        better,
        effect: args.pairs_until.effect,
        significance: pair_runner.significance,
    };
    let side = |position: usize, letter: &str| ComparisonSide {
        label: labels[position].clone(),
        name: names[position].clone(),
        prepare: prepare[position].clone(),
        records: ids(letter),
        ..ComparisonSide::default()
    };
    let mut comparison = compare_pairs(&test, [side(0, "A"), side(1, "B")], pair_runner.pairs);
    comparison.seed = Some(seed);
    notes.extend(too_few_counted(amount, &comparison).filter(|_| end.is_ok()));
    let failure = match end {
        Err(SeriesEnd::Failed(failure)) => Some(failure),
        _ => None,
    };
    finish_comparison(
        comparison,
        runs,
        started,
        stop.is_set(),
        failure,
        notes,
        output,
    )
}

fn describe_amount(amount: PairBudget) -> String {
    match amount {
        PairBudget::Exactly(1) => "1 pair that counts".to_owned(),
        PairBudget::Exactly(pairs) => format!(
            "{pairs} pairs that count (2 runs each; {} pairs at most)",
            pairs.saturating_mul(MAX_TRIES_PER_PAIR)
        ),
        PairBudget::UntilDecided { limit } => {
            format!("pairs (2 runs each) until decided, {limit} at most")
        }
    }
}

/// Reports before the runs that the pairs cannot suffice.
pub fn warn_if_too_few(amount: PairBudget, output: &CommandOutput) {
    let max_pairs = match amount {
        PairBudget::Exactly(pairs) => pairs,
        PairBudget::UntilDecided { limit } => limit,
    };
    let min_pairs = min_samples(RankTest::SignedRank, amount.significance());
    if max_pairs < min_pairs {
        output.warn(&format!(
            "note: {max_pairs} pairs cannot prove a difference of any size: at least {min_pairs} are needed"
        ));
    }
}

/// Returns a note if fewer pairs count than requested.
fn too_few_counted(amount: PairBudget, comparison: &Comparison) -> Option<String> {
    let PairBudget::Exactly(requested) = amount else {
        return None;
    };
    let counts = comparison
        .pairs
        .iter()
        .filter(|pair| pair.dropped.is_none());
    let counts = counts.count();
    (counts < requested).then(|| {
        format!(
            "only {counts} of {requested} pairs count after {} tries, because the machine kept changing its state: \
             repeat it when the machine is quieter",
            comparison.pairs.len()
        )
    })
}

fn better_direction(args: &CompareArgs, name: &str) -> BetterWhen {
    let own_direction = figure::find(name).map(linerate_record::expect::NamedFigure::better_when);
    args.better.or(own_direction).unwrap_or(BetterWhen::Higher)
}

fn finish_comparison(
    comparison: Comparison,
    runs: Vec<Record>,
    started: Timestamp,
    interrupted: bool,
    failure: Option<CommandFailure>,
    notes: Vec<String>,
    output: &mut CommandOutput,
) -> Result<u8, CommandFailure> {
    let (verdict, regression) = (comparison.verdict, comparison.regression);
    let set = RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: new_id(started),
        kind: "compare".to_owned(),
        started,
        interrupted: interrupted || failure.is_some(),
        runs,
        result: SetResult {
            comparison: Some(Box::new(comparison)),
            notes,
            ..SetResult::default()
        },
    };
    output.write_set(&set, &[])?;
    if let Some(failure) = failure {
        output.report_late_failure(&failure);
        return Ok(failure.code);
    }
    Ok(match verdict {
        _ if interrupted => exit_codes::INTERRUPTED,
        _ if regression => exit_codes::GATE,
        ComparisonVerdict::Undecided => exit_codes::UNDECIDED,
        ComparisonVerdict::Faster | ComparisonVerdict::Slower | ComparisonVerdict::NoDifference => {
            exit_codes::OK
        }
    })
}
