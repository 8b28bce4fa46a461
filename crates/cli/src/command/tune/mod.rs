//! `linerate tune`: searches for better settings, verifies each change, and restores the old
//! settings at the end.

mod request;
mod result_set;
mod search;
mod trial_runner;
mod verification;

use jiff::Timestamp;
use linerate_metric::comparison::{Better, Comparison, Verdict};
use linerate_metric::event::Problem;
use linerate_metric::exit;
use linerate_metric::figure;
use linerate_metric::record::Record;
use linerate_metric::tuning::{Best, Change, Pointed, Spent, Trial, Vain};
use linerate_metric::units::format_bytes;
use linerate_tune::guard::Key;
use linerate_tune::knob::Set;
use linerate_tune::search::Point;
use linerate_tune::snippet::Turned;

use self::trial_runner::Bench;
use super::compare;
use super::measure::stop_on_signals;
use super::measuring_command::fresh_seed;
use super::series::Ended;
use crate::args::TuneArgs;
use crate::failure::Failure;
use crate::knob_applier::{self, Turner};
use crate::knobs::Knobs;
use crate::output::Output;
use crate::{child_process, live, shell_words};

/// Default maximum of pairs per comparison.
const MOST_PAIRS: usize = 30;

/// Runs the command and returns the exit code.
pub fn run(args: &TuneArgs) -> u8 {
    let mut output =
        Output::new(&args.output).with_page(args.many.html.as_deref(), "linerate tune");
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

/// Restores the settings that a killed search left changed.
fn restore(output: &Output) -> Result<u8, Failure> {
    let restored = knob_applier::restore_left()?;
    for pid in &restored.running {
        output.remark(&format!(
            "note: process {pid} is still running and restores its changes itself"
        ));
    }
    let mut elsewhere: Vec<String> = restored.moved.iter().map(moved).collect();
    elsewhere.dedup();
    for moved in &elsewhere {
        output.progress(moved);
    }
    let gone = match restored.gone {
        0 => None,
        1 => {
            Some("1 setting no longer exists, because its network or interface is gone".to_owned())
        }
        n => Some(format!(
            "{n} settings no longer exist, because their networks or interfaces are gone"
        )),
    };
    if let Some(gone) = &gone {
        output.progress(&format!(
            "{gone} (for example a lab that was taken down): nothing to restore there"
        ));
    }
    let back = match restored.settings {
        0 if !restored.wrong.is_empty() || gone.is_some() => None,
        0 => Some("nothing to restore".to_owned()),
        1 => Some("1 setting restored".to_owned()),
        n => Some(format!("{n} settings restored")),
    };
    back.iter().for_each(|back| output.progress(back));
    let Some(first) = restored.wrong.first() else {
        return Ok(exit::OK);
    };
    let count = match restored.wrong.len() {
        1 => "1 setting".to_owned(),
        n => format!("{n} settings"),
    };
    let journals = restored
        .journals
        .iter()
        .map(|path| path.display().to_string());
    Err(Failure::failed(Problem::new(
        format!("{count} could not be restored: {first}"),
        "settings that a killed command left",
        format!(
            "run it as the same user in the network namespace of the settings (`linerate lab exec LAB/HOST -- linerate tune \
             --restore`); if that network no longer exists, remove {}",
            journals.collect::<Vec<_>>().join(", ")
        ),
    )))
}

/// Returns a note on an interface that was renamed or moved since its settings were changed.
fn moved((was, is): &(Key, Key)) -> String {
    let [was_called, is_called] = [was, is].map(|key| key.interface().unwrap_or(&key.name));
    match was.is_of(is.namespace, is.cookie) {
        true => format!(
            "{was_called} of {} is named {is_called} now: its settings are restored there",
            was.host
        ),
        false => format!(
            "{was_called} of {} is {is_called} of {} now: its settings are restored there",
            was.host, is.host
        ),
    }
}

/// Stage of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Check,
    Search,
    MinimalSet,
    Proof,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Search => "search",
            Self::MinimalSet => "minimal-set",
            Self::Proof => "proof",
        }
    }
}

/// State and results of a search.
#[derive(Default)]
struct Found {
    stage: Stage,
    spent: Spent,
    pointed: Vec<Pointed>,
    trials: Vec<Trial>,
    best_seen: Option<Best>,
    vain: Vec<Vain>,
    untried: Vec<String>,
    changes: Vec<Change>,
    turned: Vec<Turned>,
    proof: Option<Comparison>,
    runs: Vec<Record>,
    winner: Point,
}

impl Found {
    fn is_proven(&self) -> bool {
        (self.proof.as_ref()).is_some_and(|proof| proof.verdict == Verdict::Faster)
    }
}

fn tune(args: &TuneArgs, output: &mut Output) -> Result<u8, Failure> {
    output.check_file()?;
    live::check(args.screen.is_asked())?;
    compare::check_until(&args.until)?;
    if args.runs == 0 {
        return refuse("--runs 0", "no run to search with", "give 1 or more");
    }
    let words = request::words_of(args)?;
    child_process::check_page("tune", &words)?;
    request::check(&words)?;
    let known = Knobs::of(&args.knobs, &words)?;
    let knobs = request::knobs_of(args, &words, &known)?;
    let figure = figure::named(args.goal.figure()).expect("every goal is a figure");
    let seed = (args.many.seed).unwrap_or_else(|| u64::from(fresh_seed()));
    let stop = stop_on_signals()?;
    let names: Vec<_> = knobs.iter().map(|knob| knob.name.clone()).collect();
    let most = verification::most_runs(args);
    output.progress(&format!(
        "linerate {}\ngoal: {}, {} better; seed {seed}\nruns: at most {} for the search, then at most {most} for each \
         change that it finds, and {most} for the proof of all changes\nknobs: {}",
        shell_words::join(&words),
        figure.name,
        match figure.better() {
            Better::Higher => "higher is",
            Better::Lower => "lower is",
        },
        args.runs,
        names.join(", ")
    ));
    compare::too_few(verification::amount(args), output);
    knob_applier::left_note()
        .iter()
        .for_each(|note| output.remark(note));
    let turner = Turner::new(knobs, &known, &words, &stop)?;
    let limit = args.under.map(|under| under.memory_bytes);
    let mut bench = Bench::new(turner, words, figure, limit, &stop);
    let started = Timestamp::now();
    let mut found = Found::default();
    let title = format!(
        "tune {} for {}",
        shell_words::join(&bench.words),
        figure.name
    );
    let ended = live::series(args.screen.is_asked(), &title, &stop, output, |output| {
        bench.screen = output.teller().cloned();
        let ended = all(args, seed, &mut bench, &mut found, output);
        bench.screen = None;
        ended
    })?;
    let complete = ended.is_ok();
    let mut notes = Vec::new();
    // Settings of the remote host are restored when its connection closes.
    let stands = |turned: &Turned| matches!(turned.set, Set::Host { .. } | Set::Command { .. });
    let is_far = |turned: &Turned| matches!(turned.set, Set::Far(_));
    let mut stuck = Vec::new();
    let proven = complete && found.is_proven();
    let keeps = args.keep && proven && found.turned.iter().any(stands);
    if args.keep && proven && found.turned.iter().any(is_far) {
        notes.push("--keep does not apply to the remote host: make its changes there".to_owned());
    }
    if args.keep && !keeps {
        notes.push(
            match proven {
                true => "--keep kept nothing here: the verified changes are options of the command or settings of the \
                         remote host",
                false => "--keep kept nothing: no change was verified",
            }
            .to_owned(),
        );
    }
    // The last measurement of the proof may have been the start.
    let not_made = (keeps.then(|| bench.turner.apply(&found.winner))).and_then(not_made);
    let keeps = keeps && not_made.is_none();
    notes.extend(not_made.map(|why| format!("--keep kept nothing: {why}")));
    let wrong = if keeps {
        let (ways_back, wrong) = bench.turner.keep(&found.winner);
        let each = ways_back.into_iter();
        notes.extend(each.map(|line| format!("to restore it: {line}")));
        wrong
    } else {
        let wrong = bench.turner.back();
        if !complete && wrong.is_empty() {
            output.progress("all settings are restored");
        }
        wrong
    };
    stuck.extend(
        wrong
            .into_iter()
            .map(|why| format!("could not be restored: {why}")),
    );
    let failure = match ended {
        Err(Ended::Over(failure)) => Some(failure),
        _ => None,
    };
    if found.trials.iter().all(|trial| trial.value.is_none()) {
        knob_applier::warn_of(&stuck, output);
        return Err(failure.unwrap_or_else(|| match stop.is_set() {
            true => Failure::from(linerate_measure::MeasureError::Interrupted),
            false => Failure::failed(Problem::new(
                (found.trials.first())
                    .and_then(|trial| trial.refused.clone())
                    .unwrap_or_else(|| "no run has the figure".to_owned()),
                "the start",
                "run the measuring command by itself to see its output",
            )),
        }));
    }
    notes.extend(stuck);
    notes.extend(limit.and_then(|limit| none_fits(&found.trials, limit)));
    let set = result_set::set_of(&bench, found, seed, started, (!complete, keeps), notes);
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

/// Returns why verified settings could not be applied again, if so.
fn not_made(made: Result<Result<(), String>, Ended>) -> Option<String> {
    match made {
        Ok(made) => made.err(),
        Err(Ended::Over(failure)) => Some(failure.problem.to_string()),
        Err(Ended::Stopped) => Some("interrupted while the changes were applied again".to_owned()),
    }
}

/// Returns a note if no measured setting is within the memory limit, with the smallest memory of
/// one.
fn none_fits(trials: &[Trial], limit: u64) -> Option<String> {
    let measured = || trials.iter().filter(|trial| trial.value.is_some());
    let fits = |trial: &Trial| trial.refused.is_none();
    let least = measured()
        .filter_map(|trial| trial.memory_bytes)
        .min_by(f64::total_cmp)?;
    (!measured().any(fits) && least > limit as f64).then(|| {
        format!(
            "no measured setting fits --under memory: the smallest takes {} (buffers of both ends, and all memory of our \
             stack), the limit is {}. Raise the limit, or choose a smaller start",
            format_bytes(least.ceil() as u64),
            format_bytes(limit)
        )
    })
}

/// Runs all stages, from the first measurement to the proof.
fn all(
    args: &TuneArgs,
    seed: u64,
    bench: &mut Bench<'_>,
    found: &mut Found,
    output: &Output,
) -> Result<(), Ended> {
    let start: Point = vec![0; bench.turner.knobs.len()];
    bench.purpose = "first measurement";
    let first = search::first(bench, &start, found, output)?;
    search::check(bench, found, output)?;
    let Some(winner) = search::search(args, seed, bench, found, first, output)? else {
        return Ok(());
    };
    verification::prove(args, seed, bench, found, winner, output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_tune::guard::Kind;

    #[test]
    fn what_goes_back_elsewhere_is_told() {
        let of = |host: &str, namespace, kind, name: &str| Key {
            host: host.to_owned(),
            namespace,
            kind,
            ..Key::of_command(name)
        };
        let was = of("this host", 7, Kind::Mtu, "t0");
        assert_eq!(
            moved(&(was.clone(), was.of_interface("t1"))),
            "t0 of this host is named t1 now: its settings are restored there"
        );
        let rule = of("this host", 7, Kind::Flow, "eth0 udp4:7>0");
        let there = of("network 9", 9, Kind::Flow, "eth0 udp4:7>0");
        assert_eq!(
            moved(&(rule, there)),
            "eth0 of this host is eth0 of network 9 now: its settings are restored there"
        );
    }

    fn trial(memory_bytes: f64, refused: bool) -> Trial {
        Trial {
            setting: Default::default(),
            value: Some(1.0),
            memory_bytes: Some(memory_bytes),
            record: None,
            refused: refused.then(|| "too much".to_owned()),
        }
    }

    /// A knob between two values is not the verified setting, and must stay in the journal.
    #[test]
    fn what_could_not_be_made_again_is_not_kept() {
        assert_eq!(not_made(Ok(Ok(()))), None);
        assert!(not_made(Ok(Err("no space".to_owned()))).is_some());
        assert!(not_made(Err(Ended::Stopped)).is_some());
    }

    #[test]
    fn where_nothing_fits_the_least_is_told() {
        let none = none_fits(&[trial(9e4, true), trial(65_536.0, true)], 24 << 10);
        let none = none.expect("a note");
        assert!(none.contains("64 KiB") && none.contains("24 KiB"), "{none}");
        let one = none_fits(&[trial(9e4, true), trial(2e4, false)], 24 << 10);
        assert_eq!(one, None);
        assert_eq!(none_fits(&[], 24 << 10), None);
    }
}
