//! `linerate tune`: which changes make it better, each with its proof, and all settings back at the end.

use std::cell::RefCell;
use std::path::PathBuf;

use jiff::Timestamp;
use linerate_host::stop::Stop;
use linerate_host::sys::cpu;
use linerate_metric::comparison::{Better, Comparison, Question, Side, Verdict, of_pairs};
use linerate_metric::event::Problem;
use linerate_metric::exit;
use linerate_metric::experiment::Setting;
use linerate_metric::figure;
use linerate_metric::record::{Record, new_id};
use linerate_metric::set::{RunSet, SET_SCHEMA, SetResult};
use linerate_metric::statistics::median;
use linerate_metric::sweep::buffer_bytes;
use linerate_metric::tuning::{Change, Trial, Tuning, Vain};
use linerate_metric::units::ByteSize;
use linerate_tune::guard::{Guard, restore_left};
use linerate_tune::interleave::{Amount, Interleave};
use linerate_tune::journal::folder;
use linerate_tune::knob::{self, DEFAULT, Ground, Knob, Set};
use linerate_tune::search::{Dial, Point, Search};

use super::compare::{Machine, Turns, fresh_seed, kind_of};
use super::measure::stop_on_signals;
use super::series::Ended;
use crate::args::TuneArgs;
use crate::failure::Failure;
use crate::machine::{self, Hosts};
use crate::output::Output;
use crate::{child, words};

/// Time of a run that only tells whether a value can be had.
const CHECK: &str = "100ms";

/// Runs it; gives the exit code.
pub fn run(args: &TuneArgs) -> u8 {
    let mut output = Output::new(&args.output).with_page(args.html.as_deref(), "linerate tune");
    let result = match args.restore {
        true => restore(&output),
        false => tune(args, &mut output),
    };
    result.unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    })
}

fn refuse<T>(object: &str, situation: &str, next_step: &str) -> Result<T, Failure> {
    Err(Failure::usage(Problem::new(situation, object, next_step)))
}

fn journals() -> Result<PathBuf, Failure> {
    folder("tune").ok_or_else(|| {
        Failure::failed(Problem::new(
            "there is no folder for it",
            "the journal of changes",
            "set HOME or XDG_STATE_HOME to an absolute path",
        ))
    })
}

/// Sets back what a killed search left.
fn restore(output: &Output) -> Result<u8, Failure> {
    let hosts = Hosts::of_lab().or_else(Hosts::own).ok_or_else(|| {
        Failure::failed(Problem::new(
            "cannot be seen",
            "this network",
            "mount /proc",
        ))
    })?;
    let restored = restore_left(&journals()?, &hosts, &machine::boot(), machine::runs);
    let restored = restored.map_err(|error| {
        Failure::failed(Problem::new(
            error.to_string(),
            "a journal",
            "see who may read it",
        ))
    })?;
    for pid in &restored.running {
        output.remark(&format!(
            "note: process {pid} still runs and sets back what it changed itself"
        ));
    }
    output.progress(&match restored.settings {
        0 => "nothing is left to set back".to_owned(),
        1 => "1 setting is back".to_owned(),
        n => format!("{n} settings are back"),
    });
    match restored.wrong.first() {
        None => Ok(exit::OK),
        Some(first) => Err(Failure::failed(Problem::new(
            format!(
                "{} settings could not be set back: {first}",
                restored.wrong.len()
            ),
            "settings",
            "run it as the same user in the same network (`lab exec`); the journal stays",
        ))),
    }
}

/// Knobs with what turns them, and the runs that were made.
struct Bench<'a> {
    words: Vec<String>,
    knobs: Vec<Knob>,
    hosts: Option<&'a Hosts>,
    guard: Option<Guard<'a, Hosts>>,
    figure: &'static linerate_metric::expect::Figure,
    memory_limit: Option<u64>,
    stop: &'a Stop,
    /// What knobs of hosts and of the user's own stand at.
    at: Point,
    /// Whether commands of the user's were run at all: their start is set before the first run.
    begun: bool,
    runs: u32,
}

struct Seen {
    value: Option<f64>,
    memory_bytes: Option<f64>,
    record: Option<Record>,
    refused: Option<String>,
}

impl Bench<'_> {
    /// The measuring command of a setting.
    fn command(&self, point: &Point) -> Result<Vec<String>, Failure> {
        let mut words = self.words.clone();
        for (knob, &value) in self.knobs.iter().zip(point) {
            if let Set::Option(option) = &knob.set
                && knob.values[value] != DEFAULT
            {
                words::set_option(&mut words, option, &knob.values[value])?;
            }
        }
        Ok(words)
    }

    /// Turns what is not part of the measuring command.
    fn apply(&mut self, point: &Point) -> Result<Result<(), String>, Ended> {
        for (number, &value) in point.iter().enumerate() {
            let knob = &self.knobs[number];
            let text = &knob.values[value];
            let stays = self.at[number] == value;
            match &knob.set {
                Set::Option(_) => {}
                Set::Command(line) => {
                    if stays && self.begun {
                        continue;
                    }
                    child::shell(&line.replace("{}", text), self.stop)?;
                }
                Set::Host { kind, name } => {
                    let (Some(hosts), Some(guard)) = (self.hosts, self.guard.as_mut()) else {
                        continue;
                    };
                    for key in hosts.keys(*kind, name).into_iter().filter(|_| !stays) {
                        let set = match text.as_str() {
                            DEFAULT => guard.reset(&key),
                            text => guard.set(&key, text),
                        };
                        if let Err(why) = set {
                            return Ok(Err(format!("{} of {}: {why}", key.name, key.host)));
                        }
                    }
                }
            }
            self.at[number] = value;
        }
        self.begun = true;
        Ok(Ok(()))
    }

    fn own_memory(&self, point: &Point) -> f64 {
        let each = self.knobs.iter().zip(point).filter_map(|(knob, &value)| {
            let size: ByteSize = knob.values[value].parse().ok()?;
            Some(knob.memory? * size.0 as f64)
        });
        each.sum()
    }

    fn measure(&mut self, point: &Point, time: Option<&str>) -> Result<Seen, Ended> {
        let refused = |why: String| Seen {
            value: None,
            memory_bytes: None,
            record: None,
            refused: Some(why),
        };
        let mut words = self.command(point).map_err(Ended::Over)?;
        if let Some(time) = time {
            words::set_option(&mut words, "time", time).map_err(Ended::Over)?;
        }
        if let Err(failure) = kind_of(&words) {
            return Ok(refused(failure.problem.to_string()));
        }
        if let Err(why) = self.apply(point)? {
            return Ok(refused(why));
        }
        self.runs += 1;
        let record = match child::measure(&words, self.stop) {
            Ok(record) => record,
            Err(Ended::Over(failure)) if failure.code != exit::PEER => {
                return Ok(refused(failure.problem.to_string()));
            }
            Err(ended) => return Err(ended),
        };
        let memory_bytes = buffer_bytes(&record).map(|bytes| bytes + self.own_memory(point));
        let over = (self.memory_limit)
            .filter(|&limit| memory_bytes.is_none_or(|bytes| bytes > limit as f64));
        Ok(Seen {
            value: self.figure.of(&record),
            memory_bytes,
            record: Some(record),
            refused: over.map(|_| "takes more memory than it may".to_owned()),
        })
    }

    fn score(&self, value: f64) -> f64 {
        match self.figure.better() {
            Better::Higher => value.max(f64::MIN_POSITIVE).ln(),
            Better::Lower => -value.max(f64::MIN_POSITIVE).ln(),
        }
    }

    fn setting(&self, point: &Point) -> Setting {
        (self.knobs.iter().zip(point))
            .filter(|(_, value)| **value != 0)
            .map(|(knob, &value)| (knob.name.clone(), knob.values[value].clone()))
            .collect()
    }

    fn said(&self, point: &Point) -> String {
        let parts: Vec<_> = (self.setting(point).iter())
            .map(|(knob, value)| format!("{knob}={value}"))
            .collect();
        match parts.is_empty() {
            true => "start".to_owned(),
            false => parts.join(" "),
        }
    }

    /// The commands that make a change outside of a measurement.
    fn commands(&self, knob: &Knob, value: &str) -> Vec<String> {
        match (&knob.set, self.hosts) {
            (Set::Option(_), _) | (_, None) => match &knob.set {
                Set::Command(line) => vec![line.replace("{}", value)],
                _ => Vec::new(),
            },
            (Set::Command(line), _) => vec![line.replace("{}", value)],
            (Set::Host { kind, name }, Some(hosts)) => {
                let sizes = format!("{value} {value} {value} {value}");
                let value = match kind {
                    linerate_tune::guard::Kind::SegmentSizes => sizes.as_str(),
                    linerate_tune::guard::Kind::Sysctl => value,
                };
                (hosts.keys(*kind, name).iter())
                    .map(|key| format!("{}  # {}", key.command(value), key.host))
                    .collect()
            }
        }
    }

    /// All back to the start: settings by their guard, knobs of the user's by their command.
    fn back(&mut self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (number, knob) in self.knobs.iter().enumerate() {
            if let Set::Command(line) = &knob.set
                && self.begun
                && self.at[number] != 0
            {
                let line = line.replace("{}", &knob.values[0]);
                // What was asked to stop still has to leave things as they were.
                if let Err(Ended::Over(failure)) = child::shell(&line, &Stop::new()) {
                    wrong.push(failure.problem.to_string());
                }
            }
        }
        if let Some(guard) = self.guard.as_mut() {
            wrong.extend(guard.restore());
        }
        wrong
    }
}

/// What a search has come to.
#[derive(Default)]
struct Found {
    trials: Vec<Trial>,
    vain: Vec<Vain>,
    changes: Vec<Change>,
    proof: Option<Comparison>,
    runs: Vec<Record>,
    winner: Point,
}

fn tune(args: &TuneArgs, output: &mut Output) -> Result<u8, Failure> {
    output.check_file()?;
    let stop = stop_on_signals()?;
    let hosts = match args.try_host {
        true => Hosts::of_lab().or_else(Hosts::own),
        false => Hosts::of_lab(),
    };
    let words = words_of(args)?;
    kind_of(&words)?;
    let knobs = knobs_of(args, &words, hosts.as_ref())?;
    let journals = journals()?;
    let figure = figure::named(args.goal.figure()).expect("every goal is a figure");
    let seed = args.seed.unwrap_or_else(|| u64::from(fresh_seed()));
    output.progress(&format!(
        "linerate {}\ngoal: {}, {} better; seed {seed}\nknobs: {}",
        words::join(&words),
        figure.name,
        match figure.better() {
            Better::Higher => "higher is",
            Better::Lower => "lower is",
        },
        (knobs
            .iter()
            .map(|knob| knob.name.as_str())
            .collect::<Vec<_>>())
        .join(", ")
    ));
    let mut bench = Bench {
        at: vec![0; knobs.len()],
        begun: false,
        words,
        guard: hosts
            .as_ref()
            .map(|hosts| Guard::new(hosts, &journals, machine::owner())),
        hosts: hosts.as_ref(),
        knobs,
        figure,
        memory_limit: args.under.map(|under| under.memory_bytes),
        stop: &stop,
        runs: 0,
    };
    let started = Timestamp::now();
    let mut found = Found::default();
    let ended = search(args, seed, &mut bench, &mut found, output);
    let complete = ended.is_ok();
    let mut notes = Vec::new();
    if args.keep && complete && found.proof.is_some() {
        let point = found.winner.clone();
        // Settings stand at the last half of the proof, which may have been the start.
        if let Ok(Err(why)) = bench.apply(&point) {
            notes.push(format!("not all could be kept: {why}"));
        }
        if let Some(guard) = bench.guard.take() {
            guard.keep();
        }
    } else {
        for why in bench.back() {
            notes.push(format!(
                "could not be set back: {why} (`linerate tune --restore` tries again)"
            ));
        }
    }
    let failure = match ended {
        Err(Ended::Over(failure)) => Some(failure),
        _ => None,
    };
    if found.trials.iter().all(|trial| trial.value.is_none()) {
        return Err(failure.unwrap_or_else(|| match stop.is_set() {
            true => Failure::from(linerate_measure::MeasureError::Interrupted),
            false => Failure::failed(Problem::new(
                found
                    .trials
                    .first()
                    .and_then(|trial| trial.refused.clone())
                    .unwrap_or_else(|| "no run gave the figure".to_owned()),
                "the start",
                "run the measuring command alone to see what it says",
            )),
        }));
    }
    let set = set_of(args, seed, bench, found, started, !complete, notes);
    output.set(&set, &[])?;
    if let Some(failure) = failure {
        output.after_result(&failure);
        return Ok(failure.code);
    }
    Ok(match complete {
        true => exit::OK,
        false => exit::INTERRUPTED,
    })
}

fn words_of(args: &TuneArgs) -> Result<Vec<String>, Failure> {
    let round_trips = matches!(args.goal.figure(), "p50" | "p99");
    let Some(host) = &args.host else {
        return refuse(
            "tune",
            "there is no far end",
            "name the host where `linerate server` runs",
        );
    };
    if args.goal.figure() == "pps" && !args.udp {
        return refuse(
            "--goal pps",
            "TCP has no datagrams",
            "add -u, or take another goal",
        );
    }
    let name = if round_trips { "latency" } else { "throughput" };
    let mut words = vec![name.to_owned(), host.clone()];
    if let Some(port) = args.port {
        words.extend(["-p".to_owned(), port.to_string()]);
    }
    if args.udp {
        words.push("-u".to_owned());
    }
    words.extend([
        "-t".to_owned(),
        format!("{}ms", args.time.as_millis().max(1)),
    ]);
    words::add(&mut words, &args.options);
    Ok(words)
}

fn knobs_of(
    args: &TuneArgs,
    words: &[String],
    hosts: Option<&Hosts>,
) -> Result<Vec<Knob>, Failure> {
    let read = |name: &str| std::fs::read_to_string(name).unwrap_or_default();
    let udp = args.udp || words.iter().any(|word| word == "-u" || word == "--udp");
    let ground = Ground {
        latency: words.first().is_some_and(|name| name == "latency"),
        udp,
        processors: cpu::usable().unwrap_or_default(),
        congestion: read("/proc/sys/net/ipv4/tcp_available_congestion_control")
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
        hosts: hosts.is_some(),
        links: hosts.is_some_and(Hosts::has_links),
    };
    let mut all = knob::knobs(&ground);
    let mut known: Vec<String> = knob::names().into_iter().map(str::to_owned).collect();
    if let Some(file) = &args.knob_file {
        let wrong = |why: String| {
            Failure::usage(Problem::new(
                why,
                file.display().to_string(),
                "see `linerate tune --help`",
            ))
        };
        let text = std::fs::read_to_string(file)
            .map_err(|error| wrong(format!("cannot be read ({error})")))?;
        let own = knob::from_toml(file, &text).map_err(|error| wrong(error.to_string()))?;
        if hosts.is_none() && own.iter().any(|knob| matches!(knob.set, Set::Host { .. })) {
            return refuse(
                "a knob with sysctl",
                "settings of this host are not to be changed",
                "add --try-host, or run it in a lab",
            );
        }
        known.extend(own.iter().map(|knob| knob.name.clone()));
        all.extend(own);
    }
    // What is said on the command line is not for us to turn.
    let said = |knob: &Knob| match &knob.set {
        Set::Option(option) => words::names(words, option),
        _ => false,
    };
    all.retain(|knob| !said(knob));
    if !args.knobs.is_empty() {
        for name in &args.knobs {
            if !known.contains(name) {
                return refuse(
                    &format!("--knobs {name}"),
                    "no such knob",
                    &format!("choose from {}", known.join(", ")),
                );
            }
        }
        all.retain(|knob| args.knobs.contains(&knob.name));
    }
    match all.is_empty() {
        true => refuse(
            "--knobs",
            "none of these can be turned here",
            "settings of hosts need a lab or --try-host; options that are given stay as they are",
        ),
        false => Ok(all),
    }
}

fn search(
    args: &TuneArgs,
    seed: u64,
    bench: &mut Bench<'_>,
    found: &mut Found,
    output: &Output,
) -> Result<(), Ended> {
    check(bench, found, output)?;
    let dials = (bench.knobs.iter())
        .map(|knob| Dial {
            values: knob.values.len(),
            ordered: knob.ordered,
        })
        .collect();
    let mut search = Search::new(dials, args.runs, seed);
    while let Some(point) = search.propose() {
        let seen = bench.measure(&point, None)?;
        let said = match (&seen.refused, seen.value) {
            (Some(why), _) => why.clone(),
            (None, Some(value)) => figure::format(bench.figure.name, value),
            (None, None) => format!("no {}", bench.figure.name),
        };
        found.trials.push(Trial {
            setting: bench.setting(&point),
            value: seen.value,
            memory_bytes: seen.memory_bytes,
            record: seen.record.as_ref().map(|record| record.id.clone()),
            refused: seen.refused.clone(),
        });
        output.progress(&format!(
            "run {}: {}: {said}",
            found.trials.len(),
            bench.said(&point)
        ));
        let score = seen.value.filter(|_| seen.refused.is_none());
        search.tell(&point, score.map(|value| bench.score(value)));
    }
    let Some(mut winner) = search.best() else {
        return Ok(());
    };
    let start: Point = vec![0; winner.len()];
    let searched = winner.clone();
    // Each change has to show that it matters; the ones that were dropped are gone for the next.
    for knob in 0..winner.len() {
        if winner[knob] == 0 {
            continue;
        }
        let mut without = winner.clone();
        without[knob] = 0;
        let name = bench.knobs[knob].name.clone();
        let value = bench.knobs[knob].values[winner[knob]].clone();
        output.progress(&format!("without {name}={value}:"));
        match pairs(args, seed, bench, [&winner, &without], true, output)? {
            Ok((compared, _)) if compared.verdict == Verdict::Slower => {
                found.changes.push(Change {
                    commands: bench.commands(&bench.knobs[knob], &value),
                    from: bench.knobs[knob].values[0].clone(),
                    knob: name,
                    to: value,
                    without: compared.ratio,
                })
            }
            Ok(_) => {
                winner = without;
                found.vain.push(Vain {
                    knob: name,
                    value,
                    why: "makes no difference beside the others".to_owned(),
                });
            }
            // The start of this knob takes too much: the change is needed for that.
            Err(_) => found.changes.push(Change {
                commands: bench.commands(&bench.knobs[knob], &value),
                from: bench.knobs[knob].values[0].clone(),
                knob: name,
                to: value,
                without: None,
            }),
        }
    }
    found.winner.clone_from(&winner);
    for (knob, &value) in bench.knobs.iter().zip(&searched) {
        if value == 0 {
            found.vain.push(Vain {
                knob: knob.name.clone(),
                value: knob.values[1..].join(", "),
                why: "no gain over the start".to_owned(),
            });
        }
    }
    if winner == start {
        return Ok(());
    }
    output.progress("start (A) against all changes that matter (B):");
    if let Ok((compared, runs)) = pairs(args, seed + 1, bench, [&start, &winner], false, output)? {
        found.runs = runs;
        found.proof = Some(compared);
    }
    Ok(())
}

/// Values that cannot be had here are known before the search: a short run each.
fn check(bench: &mut Bench<'_>, found: &mut Found, output: &Output) -> Result<(), Ended> {
    let start: Point = vec![0; bench.knobs.len()];
    let mut refused: Vec<(usize, usize, String)> = Vec::new();
    for knob in 0..bench.knobs.len() {
        if matches!(bench.knobs[knob].set, Set::Command(_)) {
            continue;
        }
        for value in 1..bench.knobs[knob].values.len() {
            let mut point = start.clone();
            point[knob] = value;
            let seen = bench.measure(&point, Some(CHECK))?;
            if let Some(why) = seen.refused.filter(|_| seen.record.is_none()) {
                refused.push((knob, value, why));
            }
        }
    }
    bench.apply(&start)?.ok();
    for (knob, value, why) in refused.into_iter().rev() {
        let knob = &mut bench.knobs[knob];
        let value = knob.values.remove(value);
        output.progress(&format!("not to be had: {}={value}: {why}", knob.name));
        found.vain.push(Vain {
            knob: knob.name.clone(),
            value,
            why,
        });
    }
    let kept: Vec<bool> = bench
        .knobs
        .iter()
        .map(|knob| knob.values.len() > 1)
        .collect();
    let mut keep = kept.iter();
    bench
        .knobs
        .retain(|_| *keep.next().expect("as many as knobs"));
    bench.at = vec![0; bench.knobs.len()];
    Ok(())
}

/// Two settings in turn; `Err` when one of them fails or, where that counts, takes more than it may.
fn pairs(
    args: &TuneArgs,
    seed: u64,
    bench: &mut Bench<'_>,
    points: [&Point; 2],
    limited: bool,
    output: &Output,
) -> Result<Result<(Comparison, Vec<Record>), String>, Ended> {
    let labels = points.map(|point| bench.said(point));
    let name = bench.figure.name;
    let better = bench.figure.better();
    let bench = RefCell::new(bench);
    let runs = RefCell::new(Vec::new());
    let refused = RefCell::new(None);
    let limit = args.max_pairs.max(1);
    let mut turns = Turns {
        order: Interleave::new(Amount::UntilDecided { limit }, args.effect, seed),
        machine: Machine::new(),
        pairs: Vec::new(),
        significance: linerate_metric::comparison::SIGNIFICANCE,
    };
    let half = |side: usize| -> Result<f64, Ended> {
        let seen = bench.borrow_mut().measure(points[side], None)?;
        if let Some(mut record) = seen.record {
            record.label = Some(["A", "B"][side].to_owned());
            runs.borrow_mut().push(record);
        }
        // The start may take more than is allowed: it is there to be compared with.
        if let Some(value) = seen.value.filter(|_| !limited || seen.refused.is_none()) {
            return Ok(value);
        }
        let why = seen.refused.unwrap_or_else(|| format!("no {name}"));
        *refused.borrow_mut() = Some(why.clone());
        Err(Ended::Over(Failure::failed(Problem::new(
            why,
            labels[side].clone(),
            "see what limits it",
        ))))
    };
    let ended = turns.run(half, |number, pair| {
        output.progress(&format!(
            "  {}",
            linerate_report::text::pair(number, name, pair, 100)
        ));
    });
    if let (Err(Ended::Over(_)), Some(why)) = (&ended, refused.into_inner()) {
        return Ok(Err(why));
    }
    ended?;
    let runs = runs.into_inner();
    let side = |at: usize, letter: &str| Side {
        label: labels[at].clone(),
        value: None,
        records: (runs
            .iter()
            .filter(|run: &&Record| run.label.as_deref() == Some(letter)))
        .map(|run| run.id.clone())
        .collect(),
    };
    let question = Question {
        figure: name.to_owned(),
        better,
        effect: args.effect,
        significance: turns.significance,
    };
    let mut compared = of_pairs(&question, [side(0, "A"), side(1, "B")], turns.pairs);
    compared.seed = Some(seed);
    Ok(Ok((compared, runs)))
}

fn set_of(
    args: &TuneArgs,
    seed: u64,
    bench: Bench<'_>,
    found: Found,
    started: Timestamp,
    interrupted: bool,
    notes: Vec<String>,
) -> RunSet {
    let proven = (found.proof.as_ref()).is_some_and(|proof| proof.verdict == Verdict::Faster);
    let of = |letter: &str, read: &dyn Fn(&Record) -> Option<f64>| {
        let own = found
            .runs
            .iter()
            .filter(|run| run.label.as_deref() == Some(letter));
        median(&own.filter_map(read).collect::<Vec<_>>())
    };
    let both = |read: &dyn Fn(&Record) -> Option<f64>| [of("A", read), of("B", read)];
    let tuned = match proven {
        true => bench.command(&found.winner).unwrap_or_default(),
        false => bench.words.clone(),
    };
    let mut vain = found.vain;
    let shown = proven || found.proof.is_none();
    if !shown {
        vain.extend(found.changes.iter().map(|change| Vain {
            knob: change.knob.clone(),
            value: change.to.clone(),
            why: "could not be proved against the start".to_owned(),
        }));
    }
    let tuning = Tuning {
        goal: bench.figure.name.to_owned(),
        better: bench.figure.better(),
        memory_limit_bytes: bench.memory_limit,
        command: words::join(&bench.words),
        tuned_command: words::join(&tuned),
        knobs: (bench.knobs.iter())
            .map(|knob| linerate_metric::experiment::Knob {
                name: knob.name.clone(),
                values: knob.values.clone(),
            })
            .collect(),
        changes: if shown { found.changes } else { Vec::new() },
        vain,
        trials: found.trials,
        memory_bytes: both(&buffer_bytes),
        cpu_ns: both(&|run| figure::CPU.of(run)),
        proof: found.proof.map(Box::new),
        runs: bench.runs,
        seed,
        kept: args.keep && !interrupted && proven,
    };
    RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: new_id(started),
        kind: "tune".to_owned(),
        started,
        interrupted,
        runs: found.runs,
        result: SetResult {
            tuning: Some(Box::new(tuning)),
            notes,
            ..SetResult::default()
        },
    }
}
