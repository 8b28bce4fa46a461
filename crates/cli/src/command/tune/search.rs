//! First measurement and its findings, check of possible values, and the search.

use linerate_metric::event::Problem;
use linerate_metric::figure;
use linerate_metric::tuning::{Best, Pointed, Trial, Vain};
use linerate_tune::finding_knobs::{self, pointers};
use linerate_tune::knob::{Knob, Set, set_of};
use linerate_tune::search::{Dial, FAILURES, Point, Search};

use super::request::says;
use super::trial_runner::{Bench, Seen};
use super::{Found, Stage};
use crate::args::TuneArgs;
use crate::command::series::Ended;
use crate::failure::Failure;
use crate::knobs::is_default;
use crate::output::Output;

/// Time of a run that only checks whether a value is possible.
const CHECK: &str = "100ms";

/// Divisor of --effect for the search: settings within that fraction count as equal, so that the
/// losses of the search and of dropped changes together stay below --effect.
const WITHIN: f64 = 2.0;

/// Maximum number of findings that are printed.
const TOLD: usize = 5;

/// Measures the start, and prints the knobs that its findings point at.
///
/// # Errors
/// As [`Bench::measure`].
pub fn first(
    bench: &mut Bench<'_>,
    start: &Point,
    found: &mut Found,
    output: &Output,
) -> Result<Seen, Ended> {
    // Without a working start there is nothing to compare with.
    if let Err(why) = bench.turner.apply(start)? {
        return Err(Ended::Over(Failure::failed(Problem::new(
            why,
            "the start",
            "run its command by itself to see its output, or put a working value first",
        ))));
    }
    let mut seen = bench.measure(start, None)?;
    found.spent.search += 1;
    note(bench, start, &seen, found, "first measurement", output);
    let Some(record) = seen.record.as_mut() else {
        return Ok(seen);
    };
    if record.findings.is_empty() {
        linerate_explain::complete(record);
    }
    let names: Vec<&str> = (bench.turner.knobs.iter())
        .map(|knob| knob.name.as_str())
        .collect();
    let pointers = pointers(&record.findings, &names);
    for pointer in pointers.iter().take(TOLD) {
        let knobs = pointed_at(pointer, &names, &bench.words);
        output.progress(&format!(
            "  {} (costs {:.0} %) points at: {knobs}",
            pointer.cause,
            pointer.cost * 100.0
        ));
    }
    if pointers.is_empty() {
        output.progress("  no finding: the search starts with all knobs");
    }
    found.pointed = pointers
        .into_iter()
        .map(|pointer| Pointed {
            cause: pointer.cause,
            cost: pointer.cost,
            what: pointer.what,
            knobs: pointer.knobs,
        })
        .collect();
    order(bench, found, output);
    Ok(seen)
}

/// Returns the knobs that a finding points at, and those that the command line fixes, which
/// `compare` can try.
fn pointed_at(pointer: &finding_knobs::Pointer, turned: &[&str], words: &[String]) -> String {
    let mut said = match pointer.knobs.is_empty() {
        true => "no knob that can be set here".to_owned(),
        false => pointer.knobs.join(", "),
    };
    let given: Vec<&str> = (finding_knobs::of_cause(&pointer.cause).iter().copied())
        .filter(|knob| !turned.contains(knob))
        .filter(|knob| set_of(knob).is_some_and(|set| says(words, &set)))
        .collect();
    if !given.is_empty() {
        said.push_str(&format!(
            "; fixed by the command line: {}",
            given.join(", ")
        ));
    }
    said
}

/// Moves the knobs that findings point at to the front.
fn order(bench: &mut Bench<'_>, found: &Found, output: &Output) {
    let pointers: Vec<_> = (found.pointed.iter())
        .map(|pointed| finding_knobs::Pointer {
            cause: pointed.cause.clone(),
            cost: pointed.cost,
            what: pointed.what.clone(),
            knobs: pointed.knobs.clone(),
        })
        .collect();
    let first = finding_knobs::first(&pointers);
    let place = |name: &str| first.iter().position(|known| known == name);
    (bench.turner.knobs).sort_by_key(|knob| place(&knob.name).unwrap_or(usize::MAX));
    if !first.is_empty() {
        output.progress(&format!("tried first: {}", first.join(", ")));
    }
}

/// Reports a run and stores its trial.
fn note(
    bench: &Bench<'_>,
    point: &Point,
    seen: &Seen,
    found: &mut Found,
    what: &str,
    output: &Output,
) {
    let said = match (&seen.refused, seen.value) {
        (Some(why), None) => why.clone(),
        (Some(why), Some(value)) => {
            format!("{}, but {why}", figure::format(bench.figure.name, value))
        }
        (None, Some(value)) => figure::format(bench.figure.name, value),
        (None, None) => format!("no {}", bench.figure.name),
    };
    found.trials.push(Trial {
        setting: bench.setting(point),
        value: seen.value,
        memory_bytes: seen.memory_bytes,
        record: seen.record.as_ref().map(|record| record.id.clone()),
        refused: seen.refused.clone(),
    });
    output.progress(&format!("{what}: {}: {said}", bench.said(point)));
}

/// Finds impossible values before the search: by a short run each, or for settings of hosts by an
/// attempt to set them.
///
/// # Errors
/// As [`Bench::measure`].
pub fn check(bench: &mut Bench<'_>, found: &mut Found, output: &Output) -> Result<(), Ended> {
    found.stage = Stage::Check;
    bench.purpose = "check";
    let start: Point = vec![0; bench.turner.knobs.len()];
    let mut refused: Vec<(usize, usize, String)> = Vec::new();
    let uncertain: Vec<usize> = (0..start.len())
        .filter(|&knob| bench.turner.knobs[knob].uncertain)
        .collect();
    let runs: usize = (uncertain.iter())
        .map(|&knob| &bench.turner.knobs[knob])
        .filter(|knob| matches!(knob.set, Set::Option(_) | Set::StackKey(_)))
        .map(|knob| knob.values.len() - 1)
        .sum();
    if runs > 0 {
        output.progress(&format!(
            "checking which values are possible: {runs} runs of {CHECK} each"
        ));
    }
    for knob in uncertain {
        let measured = matches!(
            bench.turner.knobs[knob].set,
            Set::Option(_) | Set::StackKey(_)
        );
        for value in 1..bench.turner.knobs[knob].values.len() {
            let mut point = start.clone();
            point[knob] = value;
            let why = match measured {
                true => {
                    let seen = bench.measure(&point, Some(CHECK))?;
                    found.spent.check += 1;
                    seen.refused.filter(|_| seen.record.is_none())
                }
                false => bench.turner.apply(&point)?.err(),
            };
            refused.extend(why.map(|why| (knob, value, why)));
        }
        // A value may have been applied only in part.
        bench.turner.apply(&start)?.ok();
    }
    let mut not_to_be_had: Vec<Vain> = Vec::new();
    for (knob, value, why) in refused.into_iter().rev() {
        let knob = &mut bench.turner.knobs[knob];
        let value = knob.values.remove(value);
        // Values with the same reason share one line.
        match (not_to_be_had.iter_mut()).find(|vain| vain.knob == knob.name && vain.why == why) {
            Some(vain) => vain.value = format!("{value}, {}", vain.value),
            None => not_to_be_had.push(Vain {
                knob: knob.name.clone(),
                value,
                why,
            }),
        }
    }
    for vain in &not_to_be_had {
        output.progress(&format!(
            "not possible: {}={}: {}",
            vain.knob, vain.value, vain.why
        ));
    }
    found.vain.extend(not_to_be_had);
    // An option of the start stays one of the command, even if no other value is possible.
    let is_said = |knob: &Knob| {
        let of_command = matches!(knob.set, Set::Option(_) | Set::StackKey(_));
        of_command && knob.values.iter().any(|value| !is_default(value))
    };
    (bench.turner.knobs).retain(|knob| knob.values.len() > 1 || is_said(knob));
    Ok(())
}

/// Runs the search; returns the best setting, or `None` if no run has the figure.
///
/// # Errors
/// As [`Bench::measure`]; earlier trials are kept.
pub fn search(
    args: &TuneArgs,
    seed: u64,
    bench: &mut Bench<'_>,
    found: &mut Found,
    first: Seen,
    output: &Output,
) -> Result<Option<Point>, Ended> {
    found.stage = Stage::Search;
    bench.purpose = "search";
    let dials = (bench.turner.knobs.iter())
        .map(|knob| Dial {
            values: knob.values.len(),
            ordered: knob.ordered,
        })
        .collect();
    let pointed = |name: &str| {
        let mut knobs = found.pointed.iter().flat_map(|pointed| &pointed.knobs);
        knobs.any(|known| known == name)
    };
    let before: Vec<usize> = (0..bench.turner.knobs.len())
        .filter(|&knob| pointed(&bench.turner.knobs[knob].name))
        .collect();
    let mut search = Search::new(dials, args.runs, seed)
        .beginning_with(&before)
        .worth((args.until.effect / WITHIN).ln_1p());
    // The first measurement counts as the first run of the start.
    let mut first = Some(first);
    let mut ended = Ok(());
    while let Some(point) = search.propose() {
        let mut ran = true;
        let seen = match first.take() {
            Some(seen) => seen,
            None => {
                let before = bench.runs;
                let seen = match bench.measure(&point, None) {
                    Ok(seen) => seen,
                    Err(stopped) => {
                        ended = Err(stopped);
                        break;
                    }
                };
                ran = bench.runs > before;
                found.spent.search += u32::from(ran);
                let what = match ran {
                    true => format!("search run {} of {} at most", found.spent.search, args.runs),
                    false => "no run".to_owned(),
                };
                note(bench, &point, &seen, found, &what, output);
                seen
            }
        };
        // A value of zero has no ratio to others.
        match seen.value.filter(|value| *value > 0.0) {
            Some(value) => {
                let score = seen.refused.is_none().then(|| bench.score(value));
                search.tell(&point, score);
            }
            None => {
                if let Some(value) = search.fail(&point, ran) {
                    give_up(bench, value, seen.refused, found, output);
                }
            }
        }
    }
    let start: Point = vec![0; bench.turner.knobs.len()];
    let best = search.best();
    if let Some((point, (score, runs))) = best
        .as_ref()
        .and_then(|best| Some((best, search.seen(best)?)))
    {
        found.best_seen = Some(Best {
            setting: bench.setting(point),
            value: bench.value(score),
            runs: u32::try_from(runs).unwrap_or(u32::MAX),
            start: search.seen(&start).map(|(score, _)| bench.value(score)),
        });
    }
    ended.map(|()| best)
}

/// Reports that a value is not tried any more.
fn give_up(
    bench: &Bench<'_>,
    (knob, value): (usize, usize),
    refused: Option<String>,
    found: &mut Found,
    output: &Output,
) {
    let knob = &bench.turner.knobs[knob];
    let why = refused.unwrap_or_else(|| format!("no {}", bench.figure.name));
    output.progress(&format!(
        "excluded: {}={}: it failed {FAILURES} times without a result: {why}",
        knob.name, knob.values[value]
    ));
    found.vain.push(Vain {
        knob: knob.name.clone(),
        value: knob.values[value].clone(),
        why: format!("excluded after {FAILURES} failures: {why}"),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_told_beside_what_can_be_turned() {
        for (cause, knobs, command, said) in [
            (
                "shared-core",
                &["wait"][..],
                "throughput h --cpu 0/0",
                "wait; fixed by the command line: cpu",
            ),
            (
                "shared-core",
                &[],
                "throughput h --cpu=0/0 --wait spin",
                "no knob that can be set here; fixed by the command line: cpu, wait",
            ),
            (
                "shared-core",
                &["cpu", "wait"],
                "throughput h -u",
                "cpu, wait",
            ),
            // Knobs whose names differ from their options.
            (
                "small-writes",
                &["batch"],
                "throughput h --length 64",
                "batch; fixed by the command line: write-size",
            ),
            (
                "delayed-ack",
                &["stack-psh"],
                "throughput h --set tcp.nagle=on;tcp.send_buffer=1K",
                "stack-psh; fixed by the command line: stack-sndbuf",
            ),
            // Socket options also set keys of our stack.
            (
                "delayed-ack",
                &["stack-psh"],
                "throughput h --dev tap:t0 --ip 10.0.0.2/24 -w 64K",
                "stack-psh; fixed by the command line: stack-sndbuf",
            ),
        ] {
            let pointer = finding_knobs::Pointer {
                cause: cause.to_owned(),
                cost: 0.3,
                what: String::new(),
                knobs: knobs.iter().map(ToString::to_string).collect(),
            };
            let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
            assert_eq!(pointed_at(&pointer, knobs, &words), said, "{command}");
        }
    }
}
