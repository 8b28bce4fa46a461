//! `linerate compare`: A/B comparison in interleaved pairs.

mod pair_runner;
mod pair_source;
mod stored_results;

pub use pair_runner::{Machine, Turns};

use std::cell::RefCell;

use jiff::Timestamp;
use linerate_metric::comparison::{
    Better, Comparison, Question, Side, Test, Verdict, fewest, of_pairs,
};
use linerate_metric::event::Problem;
use linerate_metric::exit;
use linerate_metric::figure;
use linerate_metric::record::{Record, new_id};
use linerate_metric::run_set::{RunSet, SET_SCHEMA, SetResult};
use linerate_tune::knob::Knob;
use linerate_tune::pair_scheduler::{Amount, Interleave, TRIES};
use linerate_tune::search::Point;
use regex_lite::Regex;

use self::pair_source::Half;
use super::measure::stop_on_signals;
use super::measuring_command::{fresh_seed, kind_of, timed};
use super::series::Ended;
use crate::args::{CompareArgs, PairArgs};
use crate::failure::Failure;
use crate::knob_applier::{self, Turner};
use crate::knobs::{self, Knobs};
use crate::output::Output;
use crate::ui_update::Part;
use crate::{child_process, live, shell_words};

/// Default maximum of pairs.
const MOST_PAIRS: usize = 100;

/// Runs the command and returns the exit code.
pub fn run(args: &CompareArgs) -> u8 {
    let mut output =
        Output::new(&args.output).with_page(args.many.html.as_deref(), "linerate compare");
    let result = compare(args, &mut output);
    result.unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    })
}

fn refuse<T>(object: &str, situation: &str, next_step: &str) -> Result<T, Failure> {
    Err(Failure::usage(Problem::new(situation, object, next_step)))
}

fn compare(args: &CompareArgs, output: &mut Output) -> Result<u8, Failure> {
    output.check_file()?;
    live::check(args.screen.is_asked())?;
    check_until(&args.until)?;
    if args.pairs == Some(0) {
        return refuse("--pairs", "no pair to measure", "give 1 or more");
    }
    child_process::check_page("compare", &args.command)?;
    let ways = [
        !args.results.is_empty(),
        !args.command.is_empty(),
        args.command_a.is_some(),
    ];
    match ways {
        [true, false, false] => stored_results::apart(args, output),
        [false, true, false] => {
            let measured = [&args.a, &args.b].map(|side| measuring(&args.command, side.as_deref()));
            let [a, b] = measured;
            let (a, b) = (a?, b?);
            let same = args.prepare_a == args.prepare_b && args.knob_a == args.knob_b;
            if a == b && same {
                output.remark("note: both sides are equal: the result shows the noise");
            }
            let kind = kind_of("compare", &a)?;
            kind_of("compare", &b)?;
            let figure = args
                .figure
                .clone()
                .unwrap_or_else(|| figure::of_kind(kind).name.to_owned());
            if figure::named(&figure).is_none() {
                return refuse(
                    &format!("--figure {figure}"),
                    "no figure of a run has that name",
                    &format!("choose one of {}", figure::names()),
                );
            }
            in_turn(
                args,
                &figure,
                None,
                [Half::Measure(a), Half::Measure(b)],
                output,
            )
        }
        [false, false, true] => {
            let (Some(a), Some(b)) = (&args.command_a, &args.command_b) else {
                return refuse("--command-a", "needs a second side", "add --command-b");
            };
            let figure = args.figure.clone().unwrap_or_else(|| "output".to_owned());
            let expression = match (figure::named(&figure), &args.figure) {
                (Some(_), _) | (None, None) => None,
                (None, Some(text)) => match Regex::new(text) {
                    Ok(expression) => Some(expression),
                    Err(error) => {
                        return refuse(
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
            let halves = [a, b].map(|line| Half::Command(line.clone()));
            in_turn(args, &figure, expression.as_ref(), halves, output)
        }
        [false, false, false] => refuse(
            "compare",
            "nothing to compare",
            "name two results, or a measuring command with --a and --b, or --command-a and --command-b",
        ),
        _ => refuse(
            "compare",
            "results, a measuring command and --command-a exclude each other",
            "use one of them",
        ),
    }
}

/// Checks the smallest difference and the maximum of pairs.
pub fn check_until(until: &PairArgs) -> Result<(), Failure> {
    if !(until.effect > 0.0 && until.effect < 10.0) {
        return refuse("--effect", "out of range", "give 0.1% to 900%");
    }
    match until.max_pairs {
        Some(0) => refuse("--max-pairs", "no pair to measure", "give 1 or more"),
        _ => Ok(()),
    }
}

/// Returns the full command of a side. Its own options replace those of both sides.
fn measuring(command: &[String], options: Option<&str>) -> Result<Vec<String>, Failure> {
    let mut all = command.to_vec();
    let own = shell_words::split(options.unwrap_or_default()).map_err(|error| {
        Failure::usage(Problem::new(
            error,
            options.unwrap_or_default(),
            "close the quote",
        ))
    })?;
    shell_words::add(&mut all, &own);
    timed(&mut all);
    Ok(all)
}

/// Returns the knobs of both sides, and the point of each side. A knob that only one side names has
/// its start value on the other.
fn turned(args: &CompareArgs, known: &Knobs) -> Result<(Vec<Knob>, [Point; 2]), Failure> {
    let sides = [&args.knob_a, &args.knob_b].map(|side| {
        let pairs = side.iter().map(|text| knobs::pair(text));
        pairs.collect::<Result<Vec<_>, _>>()
    });
    let [a, b] = sides;
    let sides = [a?, b?];
    let mut all: Vec<Knob> = Vec::new();
    let mut points = [Point::new(), Point::new()];
    for (side, overs) in sides.iter().enumerate() {
        for over in overs {
            let mut knob = known.named(over, &args.command)?;
            let place = match all.iter().position(|known| known.name == knob.name) {
                Some(place) => place,
                None => {
                    let start = known.start(&knob);
                    knob.values = vec![start];
                    all.push(knob);
                    points.iter_mut().for_each(|point| point.push(0));
                    all.len() - 1
                }
            };
            let value = &over.values[0];
            let values = &mut all[place].values;
            points[side][place] = match values.iter().position(|known| known == value) {
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

fn in_turn(
    args: &CompareArgs,
    name: &str,
    expression: Option<&Regex>,
    halves: [Half; 2],
    output: &mut Output,
) -> Result<u8, Failure> {
    let known = Knobs::of(&args.knobs, &args.command)?;
    known.check_limits()?;
    let (knobs, points) = turned(args, &known)?;
    let stop = stop_on_signals()?;
    knob_applier::left_note()
        .iter()
        .for_each(|note| output.remark(note));
    let turner = RefCell::new(Turner::new(knobs, &known, &args.command, &stop)?);
    let seed = args.many.seed.unwrap_or_else(|| u64::from(fresh_seed()));
    let amount = match args.pairs {
        Some(pairs) => Amount::Exactly(pairs),
        None => Amount::UntilDecided {
            limit: args.until.max_pairs.unwrap_or(MOST_PAIRS),
        },
    };
    let better = better(args, name);
    let side_knobs = [&args.knob_a, &args.knob_b].map(|knobs| knobs.join(" "));
    let labels = [0, 1].map(|side| {
        let label = halves[side].label();
        match side_knobs[side].is_empty() {
            true => label,
            false => format!("{label} ({})", side_knobs[side]),
        }
    });
    output.progress(&format!(
        "A: {}\nB: {}\n{}, in random order, seed {seed}",
        labels[0],
        labels[1],
        how_many(amount)
    ));
    too_few(amount, output);
    let prepare = [&args.prepare_a, &args.prepare_b];
    let runs = RefCell::new(Vec::new());
    let half = |output: &Output, number: usize, side: usize| -> Result<f64, Ended> {
        output.part(Part {
            name: "pair",
            number,
            of: Some(amount.most()),
            at_most: true,
            words: format!("{}: {}", ["A", "B"][side], labels[side]),
        });
        let mut turner = turner.borrow_mut();
        if let Err(why) = turner.apply(&points[side])? {
            return Err(Ended::Over(Failure::failed(Problem::new(
                why,
                labels[side].clone(),
                "choose another value",
            ))));
        }
        if let Some(line) = prepare[side] {
            child_process::shell(line, &stop)?;
        }
        let turned = match &halves[side] {
            Half::Measure(words) => Half::Measure(turner.command(words, &points[side])?),
            Half::Command(line) => Half::Command(line.clone()),
        };
        let (value, record) = turned.run(name, expression, &stop, output.teller())?;
        if let Some(mut record) = record {
            record.label = Some(["A", "B"][side].to_owned());
            runs.borrow_mut().push(record);
        }
        Ok(value)
    };
    let mut turns = Turns {
        order: Interleave::new(amount, args.until.effect, seed),
        machine: Machine::new(),
        pairs: Vec::new(),
        significance: amount.significance(),
    };
    let started = Timestamp::now();
    let title = format!("compare by {name}");
    let ended = live::series(args.screen.is_asked(), &title, &stop, output, |output| {
        turns.run(
            |number, side| half(output, number, side),
            |number, pair| {
                output.progress(&linerate_report::text::pair(number, name, pair, 100));
            },
        )
    })?;
    let mut notes: Vec<String> = (turner.into_inner().back().into_iter())
        .map(|why| format!("could not be restored: {why}"))
        .collect();
    let runs = runs.into_inner();
    if turns.pairs.is_empty() {
        knob_applier::warn_of(&notes, output);
        return Err(match ended {
            Err(Ended::Over(failure)) => failure,
            _ => Failure::from(linerate_measure::MeasureError::Interrupted),
        });
    }
    let ids = |label: &str| -> Vec<String> {
        (runs
            .iter()
            .filter(|run: &&Record| run.label.as_deref() == Some(label)))
        .map(|run| run.id.clone())
        .collect()
    };
    let question = Question {
        figure: name.to_owned(),
        better,
        effect: args.until.effect,
        significance: turns.significance,
    };
    let side = |position: usize, letter: &str| Side {
        label: labels[position].clone(),
        value: None,
        records: ids(letter),
    };
    let mut found = of_pairs(&question, [side(0, "A"), side(1, "B")], turns.pairs);
    found.seed = Some(seed);
    notes.extend(short_of(amount, &found).filter(|_| ended.is_ok()));
    let failure = match ended {
        Err(Ended::Over(failure)) => Some(failure),
        _ => None,
    };
    finish(found, runs, started, stop.is_set(), failure, notes, output)
}

fn how_many(amount: Amount) -> String {
    match amount {
        Amount::Exactly(1) => "1 pair that counts".to_owned(),
        Amount::Exactly(pairs) => format!(
            "{pairs} pairs that count (2 runs each; {} pairs at most)",
            pairs.saturating_mul(TRIES)
        ),
        Amount::UntilDecided { limit } => {
            format!("pairs (2 runs each) until decided, {limit} at most")
        }
    }
}

/// Reports before the runs that the pairs cannot suffice.
pub fn too_few(amount: Amount, output: &Output) {
    let most = match amount {
        Amount::Exactly(pairs) => pairs,
        Amount::UntilDecided { limit } => limit,
    };
    let fewest = fewest(Test::SignedRank, amount.significance());
    if most < fewest {
        output.remark(&format!(
            "note: {most} pairs cannot prove a difference of any size: at least {fewest} are needed"
        ));
    }
}

/// Returns a note if fewer pairs count than requested.
fn short_of(amount: Amount, found: &Comparison) -> Option<String> {
    let Amount::Exactly(wanted) = amount else {
        return None;
    };
    let counts = found.pairs.iter().filter(|pair| pair.dropped.is_none());
    let counts = counts.count();
    (counts < wanted).then(|| {
        format!(
            "only {counts} of {wanted} pairs count after {} tries, because the machine kept changing its state: \
             repeat it when the machine is quieter",
            found.pairs.len()
        )
    })
}

fn better(args: &CompareArgs, name: &str) -> Better {
    let own = figure::named(name).map(linerate_metric::expect::Figure::better);
    args.better.or(own).unwrap_or(Better::Higher)
}

fn finish(
    found: Comparison,
    runs: Vec<Record>,
    started: Timestamp,
    interrupted: bool,
    failure: Option<Failure>,
    notes: Vec<String>,
    output: &mut Output,
) -> Result<u8, Failure> {
    let (verdict, regression) = (found.verdict, found.regression);
    let set = RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: new_id(started),
        kind: "compare".to_owned(),
        started,
        interrupted: interrupted || failure.is_some(),
        runs,
        result: SetResult {
            comparison: Some(Box::new(found)),
            notes,
            ..SetResult::default()
        },
    };
    output.set(&set, &[])?;
    if let Some(failure) = failure {
        output.after_result(&failure);
        return Ok(failure.code);
    }
    Ok(match verdict {
        _ if interrupted => exit::INTERRUPTED,
        _ if regression => exit::GATE,
        Verdict::Undecided => exit::UNDECIDED,
        Verdict::Faster | Verdict::Slower | Verdict::NoDifference => exit::OK,
    })
}
