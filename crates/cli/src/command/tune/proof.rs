//! Which changes matter, and the proof of all of them together.

use std::cell::RefCell;

use linerate_metric::comparison::{Comparison, Question, SIGNIFICANCE, Side, Verdict, of_pairs};
use linerate_metric::event::Problem;
use linerate_metric::record::Record;
use linerate_metric::tuning::{Change, Vain};
use linerate_tune::interleave::{Amount, Interleave};
use linerate_tune::search::Point;

use super::bench::Bench;
use super::{Found, MOST_PAIRS, Stage};
use crate::args::TuneArgs;
use crate::command::compare::{Machine, Turns};
use crate::command::series::Ended;
use crate::failure::Failure;
use crate::output::Output;

/// Drops what does not matter, and proves the rest against the start.
///
/// # Errors
/// As [`Bench::measure`]; what was found until then is kept.
pub fn prove(
    args: &TuneArgs,
    seed: u64,
    bench: &mut Bench<'_>,
    found: &mut Found,
    searched: Point,
    output: &Output,
) -> Result<(), Ended> {
    found.stage = Stage::MinimalSet;
    bench.purpose = "does each change matter";
    let start: Point = vec![0; searched.len()];
    let winner = minimal(args, seed, bench, found, &searched, output)?;
    found.winner.clone_from(&winner);
    for (knob, &value) in bench.turner.knobs.iter().zip(&searched) {
        let was_tried = |value: &&String| {
            let mut settings = found.trials.iter().map(|trial| &trial.setting);
            settings.any(|setting| setting.get(&knob.name) == Some(*value))
        };
        let others = &knob.values[1..];
        let (tried, untried): (Vec<_>, Vec<_>) = others.iter().partition(was_tried);
        if value == 0 && !tried.is_empty() {
            found.vain.push(Vain {
                knob: knob.name.clone(),
                value: join(&tried),
                why: "no gain over the start".to_owned(),
            });
        }
        if !untried.is_empty() {
            found
                .untried
                .push(format!("{}={}", knob.name, join(&untried)));
        }
    }
    if winner == start {
        return Ok(());
    }
    found.stage = Stage::Proof;
    bench.purpose = "proof";
    output.progress(&format!(
        "proof: start (A) against all changes that matter (B: {}), in pairs:",
        bench.said(&winner)
    ));
    let before = bench.runs;
    let proved = pairs(args, seed + 1, bench, [&start, &winner], false, output);
    found.spent.proof += bench.runs - before;
    if let Ok((compared, runs)) = proved? {
        found.runs = runs;
        found.proof = Some(compared);
    }
    Ok(())
}

fn join(values: &[&String]) -> String {
    let values: Vec<&str> = values.iter().map(|value| value.as_str()).collect();
    values.join(", ")
}

/// Each change has to show that it matters; the ones that were dropped are gone for the next.
fn minimal(
    args: &TuneArgs,
    seed: u64,
    bench: &mut Bench<'_>,
    found: &mut Found,
    searched: &Point,
    output: &Output,
) -> Result<Point, Ended> {
    let mut winner = searched.clone();
    let changed: Vec<usize> = (0..winner.len())
        .filter(|&knob| winner[knob] != 0)
        .collect();
    if !changed.is_empty() {
        let most = 2 * most_pairs(args);
        output.progress(&format!(
            "the search is over; now {} in pairs: {most} runs at most for each, and {most} for the proof of all \
             (--max-pairs {})",
            match changed.len() {
                1 => "1 change has to show that it matters,".to_owned(),
                n => format!("each of {n} changes has to show that it matters,"),
            },
            most_pairs(args)
        ));
    }
    for (number, &place) in changed.iter().enumerate() {
        let mut without = winner.clone();
        without[place] = 0;
        let knob = bench.turner.knobs[place].clone();
        let value = knob.values[winner[place]].clone();
        output.progress(&format!(
            "does it matter? {} of {}: all changes (A) against all but {}={value} (B), in pairs:",
            number + 1,
            changed.len(),
            knob.name
        ));
        let before = bench.runs;
        let compared = pairs(args, seed, bench, [&winner, &without], true, output);
        found.spent.minimal_set += bench.runs - before;
        let matters = match compared? {
            Ok((compared, _)) if compared.verdict == Verdict::Slower => Some(compared.ratio),
            Ok(_) => None,
            // The start of this knob takes too much: the change is needed for that.
            Err(_) => Some(None),
        };
        match matters {
            Some(ratio) => {
                found.turned.push(bench.turner.turned(&knob, &value));
                found.changes.push(Change {
                    commands: bench.turner.commands(&knob, &value),
                    from: knob.values[0].clone(),
                    knob: knob.name,
                    to: value,
                    without: ratio,
                });
            }
            None => {
                output.progress(&format!("dropped: {}={value}", knob.name));
                winner = without;
                found.vain.push(Vain {
                    knob: knob.name,
                    value,
                    why: "makes no difference beside the others".to_owned(),
                });
            }
        }
    }
    Ok(winner)
}

/// Pairs that a question takes at most.
pub fn most_pairs(args: &TuneArgs) -> usize {
    args.until.max_pairs.unwrap_or(MOST_PAIRS).max(1)
}

/// Two settings in turn; the inner `Err` when one of them fails or, where that counts, takes more than it may.
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
    let limit = most_pairs(args);
    let mut turns = Turns {
        order: Interleave::new(Amount::UntilDecided { limit }, args.until.effect, seed),
        machine: Machine::new(),
        pairs: Vec::new(),
        significance: SIGNIFICANCE,
    };
    let half = |_, side: usize| -> Result<f64, Ended> {
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
        records: (runs.iter())
            .filter(|run: &&Record| run.label.as_deref() == Some(letter))
            .map(|run| run.id.clone())
            .collect(),
    };
    let question = Question {
        figure: name.to_owned(),
        better,
        effect: args.until.effect,
        significance: turns.significance,
    };
    let mut compared = of_pairs(&question, [side(0, "A"), side(1, "B")], turns.pairs);
    compared.seed = Some(seed);
    Ok(Ok((compared, runs)))
}
