//! The first measurement and what it points at, what can be had at all, and the search.

use linerate_metric::event::Problem;
use linerate_metric::figure;
use linerate_metric::tuning::{Best, Pointed, Trial, Vain};
use linerate_tune::knob::{Knob, Set, set_of};
use linerate_tune::point::{self, pointers};
use linerate_tune::search::{Dial, FAILURES, Point, Search};

use super::asked::says;
use super::bench::{Bench, Seen};
use super::{Found, Stage};
use crate::args::TuneArgs;
use crate::command::series::Ended;
use crate::failure::Failure;
use crate::knobs::is_default;
use crate::output::Output;

/// Time of a run that only tells whether a value can be had.
const CHECK: &str = "100ms";

/// Part of --effect within which settings are as good as each other for the search: what it leaves and what is dropped
/// after it are to stay within the whole of it together.
const WITHIN: f64 = 2.0;

/// Findings that are told; the others point at little.
const TOLD: usize = 5;

/// Measures the start, and tells what its findings point at.
///
/// # Errors
/// As [`Bench::measure`].
pub fn first(
    bench: &mut Bench<'_>,
    start: &Point,
    found: &mut Found,
    output: &Output,
) -> Result<Seen, Ended> {
    // Nothing can be compared with a start that cannot be set.
    if let Err(why) = bench.turner.apply(start)? {
        return Err(Ended::Over(Failure::failed(Problem::new(
            why,
            "the start",
            "run its command alone to see what it says, or begin its values with one that it takes",
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
        output.progress("  no finding: all knobs are tried alike");
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

/// The knobs that a finding points at, and those of the command line, which stand as they were given: `compare`
/// tries them.
fn pointed_at(pointer: &point::Pointer, turned: &[&str], words: &[String]) -> String {
    let mut said = match pointer.knobs.is_empty() {
        true => "no knob that can be turned here".to_owned(),
        false => pointer.knobs.join(", "),
    };
    let given: Vec<&str> = (point::of_cause(&pointer.cause).iter().copied())
        .filter(|knob| !turned.contains(knob))
        .filter(|knob| set_of(knob).is_some_and(|set| says(words, &set)))
        .collect();
    if !given.is_empty() {
        said.push_str(&format!("; as it was given stays {}", given.join(", ")));
    }
    said
}

/// Puts the knobs that findings point at before the others.
fn order(bench: &mut Bench<'_>, found: &Found, output: &Output) {
    let pointers: Vec<_> = (found.pointed.iter())
        .map(|pointed| point::Pointer {
            cause: pointed.cause.clone(),
            cost: pointed.cost,
            what: pointed.what.clone(),
            knobs: pointed.knobs.clone(),
        })
        .collect();
    let first = point::first(&pointers);
    let place = |name: &str| first.iter().position(|known| known == name);
    (bench.turner.knobs).sort_by_key(|knob| place(&knob.name).unwrap_or(usize::MAX));
    if !first.is_empty() {
        output.progress(&format!("tried first: {}", first.join(", ")));
    }
}

/// Tells of a run, and keeps it.
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

/// Values that cannot be had here are known before the search: a short run each, or for settings of hosts
/// an attempt to set them.
///
/// # Errors
/// As [`Bench::measure`].
pub fn check(bench: &mut Bench<'_>, found: &mut Found, output: &Output) -> Result<(), Ended> {
    found.stage = Stage::Check;
    bench.purpose = "can it be had";
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
            "checking what can be had: {runs} runs of {CHECK} each"
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
        // What could not be set by half stands at neither.
        bench.turner.apply(&start)?.ok();
    }
    let mut not_to_be_had: Vec<Vain> = Vec::new();
    for (knob, value, why) in refused.into_iter().rev() {
        let knob = &mut bench.turner.knobs[knob];
        let value = knob.values.remove(value);
        // Values that are refused for one reason are one line.
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
            "not to be had: {}={}: {}",
            vain.knob, vain.value, vain.why
        ));
    }
    found.vain.extend(not_to_be_had);
    // What is an option of the start stays one where nothing else can be had in its place.
    let is_said = |knob: &Knob| {
        let of_command = matches!(knob.set, Set::Option(_) | Set::StackKey(_));
        of_command && knob.values.iter().any(|value| !is_default(value))
    };
    (bench.turner.knobs).retain(|knob| knob.values.len() > 1 || is_said(knob));
    Ok(())
}

/// Searches; gives the best setting, or `None` where none has the figure.
///
/// # Errors
/// As [`Bench::measure`]; what was seen until then is kept.
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
    // The first measurement is the first run of the start.
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
        // One in which nothing moved has no ratio to any other.
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

/// Tells that a value is not tried any more, and why.
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
        "given up: {}={}: it failed {FAILURES} times and never gave a result: {why}",
        knob.name, knob.values[value]
    ));
    found.vain.push(Vain {
        knob: knob.name.clone(),
        value: knob.values[value].clone(),
        why: format!("given up after {FAILURES} failures: {why}"),
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
                "wait; as it was given stays cpu",
            ),
            (
                "shared-core",
                &[],
                "throughput h --cpu=0/0 --wait spin",
                "no knob that can be turned here; as it was given stays cpu, wait",
            ),
            (
                "shared-core",
                &["cpu", "wait"],
                "throughput h -u",
                "cpu, wait",
            ),
            // Knobs that are called otherwise than their options.
            (
                "small-writes",
                &["batch"],
                "throughput h --length 64",
                "batch; as it was given stays write-size",
            ),
            (
                "delayed-ack",
                &["stack-psh"],
                "throughput h --set tcp.nagle=on;tcp.send_buffer=1K",
                "stack-psh; as it was given stays stack-sndbuf",
            ),
            // What an option of sockets says is a key of our stack, too.
            (
                "delayed-ack",
                &["stack-psh"],
                "throughput h --dev tap:t0 --ip 10.0.0.2/24 -w 64K",
                "stack-psh; as it was given stays stack-sndbuf",
            ),
        ] {
            let pointer = point::Pointer {
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
