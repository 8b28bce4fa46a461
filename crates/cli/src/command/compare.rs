//! `linerate compare`: two sides in turn, and whether they differ.

use std::cell::RefCell;

use clap::FromArgMatches;
use jiff::Timestamp;
use linerate_host::doctor::cache_line::{NEAR_BELOW, cache_line_round_trip};
use linerate_host::stop::Stop;
use linerate_host::sys::cpu;
use linerate_metric::comparison::{
    Better, Comparison, Pair, Question, SIGNIFICANCE, Side, of_pairs, of_samples,
};
use linerate_metric::event::Problem;
use linerate_metric::exit;
use linerate_metric::figure;
use linerate_metric::record::{Record, new_id};
use linerate_metric::set::{RunSet, SET_SCHEMA, SetResult};
use linerate_tune::interleave::{Amount, Interleave, Next};
use regex_lite::Regex;

use super::measure::stop_on_signals;
use super::series::Ended;
use crate::args::{self, Cli, Command, CompareArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::{child, plan, stored, words};

/// Runs it; gives the exit code.
pub fn run(args: &CompareArgs) -> u8 {
    let mut output = Output::new(&args.output).with_page(args.html.as_deref(), "linerate compare");
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
    if !(args.effect > 0.0 && args.effect < 10.0) {
        return refuse("--effect", "no difference to look for", "give 0.1% to 900%");
    }
    if args.pairs == Some(0) || args.max_pairs == 0 {
        return refuse("--pairs", "there is nothing to compare", "give 1 or more");
    }
    let ways = [
        !args.results.is_empty(),
        !args.command.is_empty(),
        args.command_a.is_some(),
    ];
    match ways {
        [true, false, false] => apart(args, output),
        [false, true, false] => {
            let measured = [&args.a, &args.b].map(|side| measuring(&args.command, side.as_deref()));
            let [a, b] = measured;
            let (a, b) = (a?, b?);
            if a == b && args.prepare_a == args.prepare_b {
                output.remark("note: both sides are the same: this shows what noise does");
            }
            let kind = kind_of(&a)?;
            kind_of(&b)?;
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
                return refuse("--command-a", "there is no other side", "add --command-b");
            };
            let figure = args.figure.clone().unwrap_or_else(|| "output".to_owned());
            let expression = match (figure::named(&figure), &args.figure) {
                (Some(_), _) | (None, None) => None,
                (None, Some(text)) => match Regex::new(text) {
                    Ok(expression) => Some(expression),
                    Err(error) => {
                        return refuse(
                            &format!("--figure {text}"),
                            &format!("neither the name of a figure nor an expression ({error})"),
                            &format!("choose one of {}, or mend the expression", figure::names()),
                        );
                    }
                },
            };
            let halves = [a, b].map(|line| Half::Command(line.clone()));
            in_turn(args, &figure, expression.as_ref(), halves, output)
        }
        [false, false, false] => refuse(
            "compare",
            "there is nothing to compare",
            "name two results, or a measuring command with --a and --b, or --command-a and --command-b",
        ),
        _ => refuse(
            "compare",
            "results, a measuring command and --command-a are three ways to compare",
            "use one of them",
        ),
    }
}

/// The whole command of a side. Its own options take the place of those that both sides have.
fn measuring(command: &[String], options: Option<&str>) -> Result<Vec<String>, Failure> {
    let mut all = command.to_vec();
    let own = words::split(options.unwrap_or_default()).map_err(|error| {
        Failure::usage(Problem::new(
            error,
            options.unwrap_or_default(),
            "close the quote",
        ))
    })?;
    words::add(&mut all, &own);
    timed(&mut all);
    Ok(all)
}

/// Gives a measuring command that names neither a time nor an amount a second.
pub fn timed(all: &mut Vec<String>) {
    let says = |word: &String| {
        ["-t", "-n", "--time=", "--bytes=", "--count="]
            .iter()
            .any(|start| word.starts_with(start))
            || ["--time", "--bytes", "--count"].contains(&word.as_str())
    };
    let takes_time = all.first().is_some_and(|name| name != "ttcp");
    if takes_time && !all.iter().any(says) {
        all.extend(["-t".to_owned(), "1".to_owned()]);
    }
}

/// What a measuring command measures; refuses what makes no sense before anything runs.
pub fn kind_of(command: &[String]) -> Result<linerate_metric::plan::Kind, Failure> {
    use linerate_metric::plan::Kind;
    let line = std::iter::once("linerate").chain(command.iter().map(String::as_str));
    let parsed = args::command()
        .try_get_matches_from(line)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let refused = |situation: String| {
        let next = "put options of `compare` before the measuring command, its own after it";
        Failure::usage(Problem::new(situation, words::join(command), next))
    };
    let cli = parsed.map_err(|error| {
        let text = error.to_string();
        let first: Vec<_> = text
            .lines()
            .map(str::trim)
            .take_while(|line| !line.is_empty())
            .collect();
        refused(first.join(" ").trim_start_matches("error: ").to_owned())
    })?;
    match cli.command {
        Command::Throughput(args) => plan::throughput(&args).map(|_| Kind::Throughput),
        Command::Latency(args) => match plan::latency(&args)? {
            plan::LatencySeries::One(_) => Ok(Kind::Latency),
            _ => Err(refused("makes several runs, and one is needed".to_owned())),
        },
        Command::Ttcp(_) => Ok(Kind::Throughput),
        Command::Forward(_) => Ok(Kind::Forward),
        Command::Generate(_) => Ok(Kind::Generate),
        _ => Err(refused(format!(
            "measures nothing: {} do",
            words::MEASURING.join(", ")
        ))),
    }
}

/// How a half of a pair is measured.
enum Half {
    Measure(Vec<String>),
    Command(String),
}

impl Half {
    fn label(&self) -> String {
        match self {
            Self::Measure(words) => words::join(words),
            Self::Command(line) => line.clone(),
        }
    }

    /// Its figure, and its record where it has one.
    fn run(
        &self,
        name: &str,
        expression: Option<&Regex>,
        stop: &Stop,
    ) -> Result<(f64, Option<Record>), Ended> {
        let text = match self {
            Self::Measure(words) => {
                let record = child::measure(words, stop)?;
                return of_record(record, name, &self.label());
            }
            Self::Command(line) => child::shell(line, stop)?,
        };
        if let (None, Ok(record)) = (expression, serde_json::from_str::<Record>(&text)) {
            return of_record(record, name, &self.label());
        }
        let found = match expression {
            Some(expression) => expression.captures(&text).and_then(|found| {
                let number = found.get(1).or_else(|| found.get(0))?;
                number.as_str().trim().parse::<f64>().ok()
            }),
            None => text.trim().parse::<f64>().ok(),
        };
        let missing = || {
            Failure::failed(Problem::new(
                format!("printed no number for `{name}`"),
                self.label(),
                "let it print a number alone, a record, or give --figure an expression whose first \
                 group is the number",
            ))
        };
        let value = found
            .filter(|value| value.is_finite())
            .ok_or_else(missing)?;
        Ok((value, None))
    }
}

fn of_record(record: Record, name: &str, label: &str) -> Result<(f64, Option<Record>), Ended> {
    let name = match name {
        "output" => figure::of_kind(record.kind).name,
        name => name,
    };
    let value = figure::named(name).and_then(|figure| figure.of(&record));
    match value {
        Some(value) => Ok((value, Some(record))),
        None => Err(Ended::Over(Failure::failed(Problem::new(
            format!("a run of it has no {name}"),
            label.to_owned(),
            "choose another --figure",
        )))),
    }
}

fn in_turn(
    args: &CompareArgs,
    name: &str,
    expression: Option<&Regex>,
    halves: [Half; 2],
    output: &mut Output,
) -> Result<u8, Failure> {
    let stop = stop_on_signals()?;
    let seed = args.seed.unwrap_or_else(|| u64::from(fresh_seed()));
    let amount = match args.pairs {
        Some(pairs) => Amount::Exactly(pairs),
        None => Amount::UntilDecided {
            limit: args.max_pairs,
        },
    };
    let better = better(args, name);
    let labels = [halves[0].label(), halves[1].label()];
    output.progress(&format!(
        "A: {}\nB: {}\nin random order, seed {seed}",
        labels[0], labels[1]
    ));
    let prepare = [&args.prepare_a, &args.prepare_b];
    let runs = RefCell::new(Vec::new());
    let half = |side: usize| -> Result<f64, Ended> {
        if let Some(line) = prepare[side] {
            child::shell(line, &stop)?;
        }
        let (value, record) = halves[side].run(name, expression, &stop)?;
        if let Some(mut record) = record {
            record.label = Some(["A", "B"][side].to_owned());
            runs.borrow_mut().push(record);
        }
        Ok(value)
    };
    let mut turns = Turns {
        order: Interleave::new(amount, args.effect, seed),
        machine: Machine::new(),
        pairs: Vec::new(),
        significance: SIGNIFICANCE,
    };
    let started = Timestamp::now();
    let ended = turns.run(half, |number, pair| {
        output.progress(&linerate_report::text::pair(number, name, pair, 100));
    });
    let runs = runs.into_inner();
    if turns.pairs.is_empty() {
        return Err(match ended {
            Err(Ended::Over(failure)) => failure,
            _ => Failure::from(linerate_measure::MeasureError::Interrupted),
        });
    }
    let ids = |label: &str| -> Vec<String> {
        (runs
            .iter()
            .filter(|run| run.label.as_deref() == Some(label)))
        .map(|run| run.id.clone())
        .collect()
    };
    let question = Question {
        figure: name.to_owned(),
        better,
        effect: args.effect,
        significance: turns.significance,
    };
    let side = |position: usize, letter: &str| Side {
        label: labels[position].clone(),
        value: None,
        records: ids(letter),
    };
    let mut found = of_pairs(&question, [side(0, "A"), side(1, "B")], turns.pairs);
    found.seed = Some(seed);
    let failure = match ended {
        Err(Ended::Over(failure)) => Some(failure),
        _ => None,
    };
    finish(found, runs, started, stop.is_set(), failure, output)
}

/// Pairs that are measured one after the other.
pub struct Turns {
    /// Decides on order and number.
    pub order: Interleave,
    /// Which state the processors are in.
    pub machine: Machine,
    /// The pairs so far.
    pub pairs: Vec<Pair>,
    /// At which the pairs are to be judged.
    pub significance: f64,
}

impl Turns {
    /// Measures until there are enough; `half` is asked for side 0 or 1.
    ///
    /// # Errors
    /// What ended it before; the pairs until then are there.
    pub fn run(
        &mut self,
        half: impl Fn(usize) -> Result<f64, Ended>,
        mut tell: impl FnMut(usize, &Pair),
    ) -> Result<(), Ended> {
        let mut before = self.machine.line_rtt_ns();
        loop {
            let b_first = match self.order.next(&self.pairs) {
                Next::Judge { significance } => {
                    self.significance = significance;
                    return Ok(());
                }
                Next::Measure { b_first } => b_first,
            };
            let first = half(usize::from(b_first))?;
            let second = half(usize::from(!b_first))?;
            let after = self.machine.line_rtt_ns();
            let line_rtt_ns = before.zip(after).map(|(before, after)| [before, after]);
            let moved = line_rtt_ns.is_some_and(|[before, after]| Machine::moved(before, after));
            let (a, b) = match b_first {
                true => (second, first),
                false => (first, second),
            };
            let pair = Pair {
                a,
                b,
                b_first,
                line_rtt_ns,
                dropped: moved.then(|| "machine-state".to_owned()),
            };
            tell(self.pairs.len() + 1, &pair);
            self.pairs.push(pair);
            before = after;
        }
    }
}

/// The two processors whose distance says in which state a virtual machine is.
pub struct Machine {
    processors: Option<(u32, u32)>,
}

impl Machine {
    /// The first two that this process may use.
    pub fn new() -> Self {
        let usable = cpu::usable().unwrap_or_default();
        let processors = match usable.as_slice() {
            &[first, second, ..] => Some((first, second)),
            _ => None,
        };
        Self { processors }
    }

    /// Time of a cache line from one to the other and back.
    fn line_rtt_ns(&self) -> Option<f64> {
        let (first, second) = self.processors?;
        cache_line_round_trip(first, second).map(|time| time.as_nanos() as f64)
    }

    /// Whether the processors were near before and far after, or the other way round.
    fn moved(before: f64, after: f64) -> bool {
        let near = NEAR_BELOW.as_nanos() as f64;
        (before < near) != (after < near)
    }
}

/// A seed short enough to be typed again.
pub fn fresh_seed() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let state = std::collections::hash_map::RandomState::new();
    let mut hasher = state.build_hasher();
    hasher.write_u32(std::process::id());
    (hasher.finish() % 1_000_000) as u32
}

fn better(args: &CompareArgs, name: &str) -> Better {
    let own = figure::named(name).map(linerate_metric::expect::Figure::better);
    args.better.or(own).unwrap_or(Better::Higher)
}

/// Results that were measured apart.
fn apart(args: &CompareArgs, output: &mut Output) -> Result<u8, Failure> {
    let [a, b] = args.results.as_slice() else {
        return refuse(
            args.results.first().map_or("compare", String::as_str),
            "there is nothing to compare it with",
            "name two results",
        );
    };
    if [&args.a, &args.b, &args.prepare_a, &args.prepare_b]
        .iter()
        .any(|option| option.is_some())
    {
        return refuse(
            "--a, --b or --prepare with results",
            "what was measured cannot be changed any more",
            "leave them out, or name a measuring command",
        );
    }
    let sides = [stored::runs(a)?, stored::runs(b)?];
    let first = sides[0].first().or(sides[1].first());
    let kind = first.map(|run| run.kind);
    let named = args.figure.as_deref().map(figure::named);
    let figure = match (named, kind) {
        (Some(Some(figure)), _) => figure,
        (None, Some(kind)) => figure::of_kind(kind),
        _ => {
            return refuse(
                "--figure",
                "no figure of a run has that name",
                &format!("choose one of {}", figure::names()),
            );
        }
    };
    let values =
        |runs: &[Record]| -> Vec<f64> { runs.iter().filter_map(|run| figure.of(run)).collect() };
    let (of_a, of_b) = (values(&sides[0]), values(&sides[1]));
    for (name, values) in [(a, &of_a), (b, &of_b)] {
        if values.is_empty() {
            return refuse(
                name,
                &format!("none of its runs has {}", figure.name),
                "choose another --figure",
            );
        }
    }
    let question = Question {
        figure: figure.name.to_owned(),
        better: better(args, figure.name),
        effect: args.effect,
        significance: SIGNIFICANCE,
    };
    let side = |label: &str, runs: &[Record]| Side {
        label: label.to_owned(),
        value: None,
        records: runs.iter().map(|run| run.id.clone()).collect(),
    };
    let found = of_samples(
        &question,
        [side(a, &sides[0]), side(b, &sides[1])],
        &of_a,
        &of_b,
    );
    let [mut runs, of_b] = sides;
    for run in &mut runs {
        run.label = Some("A".to_owned());
    }
    runs.extend(of_b.into_iter().map(|run| Record {
        label: Some("B".to_owned()),
        ..run
    }));
    finish(found, runs, Timestamp::now(), false, None, output)
}

fn finish(
    found: Comparison,
    runs: Vec<Record>,
    started: Timestamp,
    interrupted: bool,
    failure: Option<Failure>,
    output: &mut Output,
) -> Result<u8, Failure> {
    let regression = found.regression;
    let set = RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: new_id(started),
        kind: "compare".to_owned(),
        started,
        interrupted: interrupted || failure.is_some(),
        runs,
        result: SetResult {
            comparison: Some(Box::new(found)),
            ..SetResult::default()
        },
    };
    output.set(&set, &[])?;
    if let Some(failure) = failure {
        output.after_result(&failure);
        return Ok(failure.code);
    }
    Ok(match (interrupted, regression) {
        (true, _) => exit::INTERRUPTED,
        (false, true) => exit::GATE,
        (false, false) => exit::OK,
    })
}
