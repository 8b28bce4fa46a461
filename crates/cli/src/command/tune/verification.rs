//! Verification of each change, and the proof of all changes together.

use std::cell::RefCell;

use linerate_metric::comparison::{
    Better, Comparison, Question, Side, Verdict, differences, of_pairs,
};
use linerate_metric::event::Problem;
use linerate_metric::record::Record;
use linerate_metric::statistics::Estimate;
use linerate_metric::tuning::{Change, Trial, Vain};
use linerate_metric::units::format_share;
use linerate_tune::pair_scheduler::{Amount, Interleave, is_clear};
use linerate_tune::search::Point;

use super::trial_runner::Bench;
use super::{Found, MOST_PAIRS, Stage};
use crate::args::TuneArgs;
use crate::command::compare::{Machine, Turns};
use crate::command::series::Ended;
use crate::failure::Failure;
use crate::output::Output;

/// Drops changes that do not matter, and proves the others against the start.
///
/// # Errors
/// As [`Bench::measure`]; earlier results are kept.
pub fn prove(
    args: &TuneArgs,
    seed: u64,
    bench: &mut Bench<'_>,
    found: &mut Found,
    searched: Point,
    output: &Output,
) -> Result<(), Ended> {
    found.stage = Stage::MinimalSet;
    bench.purpose = "verification";
    let start: Point = vec![0; searched.len()];
    let winner = minimal(args, seed, bench, found, &searched, output)?;
    found.winner.clone_from(&winner);
    for (knob, &value) in bench.turner.knobs.iter().zip(&searched) {
        let failed = failed(&found.trials, &knob.name, &knob.values[1..]);
        let told = |vain: &Vain| {
            (found.vain.iter()).any(|known| known.knob == vain.knob && known.value == vain.value)
        };
        let fresh: Vec<Vain> = failed.iter().filter(|vain| !told(vain)).cloned().collect();
        found.vain.extend(fresh);
        let has_failed = |value: &String| failed.iter().any(|vain| vain.value == *value);
        let was_tried = |value: &&String| {
            let mut settings = found.trials.iter().map(|trial| &trial.setting);
            settings.any(|setting| setting.get(&knob.name) == Some(*value))
        };
        let others = knob.values[1..].iter().filter(|value| !has_failed(value));
        let (tried, untried): (Vec<_>, Vec<_>) = others.partition(was_tried);
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
    let proved = pairs(
        args,
        seed.wrapping_add(1),
        bench,
        [&start, &winner],
        false,
        output,
    );
    found.spent.proof += bench.runs - before;
    match proved? {
        Ok((compared, runs)) => {
            found.runs = runs;
            found.proof = Some(compared);
        }
        Err(unfit) => output.remark(&format!("note: no proof: {unfit}")),
    }
    Ok(())
}

/// Returns the values of a knob that failed in each run, with the reason.
fn failed(trials: &[Trial], knob: &str, values: &[String]) -> Vec<Vain> {
    let of = |value: &String| {
        let with = |trial: &&Trial| trial.setting.get(knob) == Some(value);
        let mut own = trials.iter().filter(with);
        let last = own.clone().next_back()?;
        let failed = own.all(|trial| trial.value.is_none());
        failed.then(|| Vain {
            knob: knob.to_owned(),
            value: value.clone(),
            why: format!(
                "failed in all runs: {}",
                last.refused.as_deref().unwrap_or("no result")
            ),
        })
    };
    values.iter().filter_map(of).collect()
}

/// Reason why a setting cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Unfit {
    /// Too much memory.
    Memory(String),
    /// Failed twice.
    Failed(String),
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Memory(why) | Self::Failed(why)) = self;
        f.write_str(why)
    }
}

/// Decision on a change.
#[derive(Clone, Debug, PartialEq)]
enum Fate {
    /// Kept; `without` is the ratio of the figure without the change to that with it.
    Stays {
        without: Option<Estimate>,
        undecided: bool,
    },
    /// Dropped, with the reason.
    Goes(String),
}

/// Decides whether a change matters, from a comparison of all changes (A) with all but this one
/// (B).
///
/// Noise alone drops no change: one that loses at least the effect size is kept, decided or not,
/// because kept changes are proved together at the end, and dropped ones are not measured again.
/// The same applies to a change that loses as much together with those dropped before (`gone`, a
/// fraction), because each of several losses may be small.
fn fate(compared: Result<&Comparison, &Unfit>, gone: f64) -> Fate {
    let compared = match compared {
        Ok(compared) => compared,
        // Without this change the setting takes too much memory, so the change is needed.
        Err(Unfit::Memory(_)) => {
            return Fate::Stays {
                without: None,
                undecided: false,
            };
        }
        Err(Unfit::Failed(_)) => {
            return Fate::Stays {
                without: None,
                undecided: true,
            };
        }
    };
    let effect = compared.effect;
    // A loss below half of the effect size counts as noise.
    let large = loss(compared)
        .is_some_and(|loss| loss >= effect || (loss >= effect / 2.0 && gone + loss >= effect));
    match compared.verdict {
        Verdict::Slower if compared.regression || large => Fate::Stays {
            without: compared.ratio,
            undecided: false,
        },
        Verdict::Undecided if large => Fate::Stays {
            without: compared.ratio,
            undecided: !is_clear(&compared.pairs, effect),
        },
        Verdict::Slower => Fate::Goes(format!(
            "difference below the effect size of {}",
            format_share(effect)
        )),
        Verdict::Undecided => {
            Fate::Goes("no difference could be shown with the other changes".to_owned())
        }
        Verdict::NoDifference => Fate::Goes("no difference with the other changes".to_owned()),
        Verdict::Faster => Fate::Goes("worse with the other changes".to_owned()),
    }
}

/// Returns the loss without a change as a fraction; negative if it is better without. If a run has
/// a value of zero there is no ratio: then it is a fraction of the larger side.
fn loss(compared: &Comparison) -> Option<f64> {
    let share = match compared.ratio {
        Some(ratio) => ratio.median - 1.0,
        None => {
            let scale = differences(&compared.pairs).scale;
            compared.difference?.median / scale.filter(|scale| *scale > 0.0)?
        }
    };
    Some(match compared.better {
        Better::Higher => -share,
        Better::Lower => share,
    })
}

fn join(values: &[&String]) -> String {
    let values: Vec<&str> = values.iter().map(|value| value.as_str()).collect();
    values.join(", ")
}

/// Verifies each change in turn; dropped changes are left out of the following comparisons.
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
        let most = most_runs(args);
        output.progress(&format!(
            "search finished; now {} in pairs: at most {most} runs for each, and {most} for the proof of all changes \
             (--max-pairs {})",
            match changed.len() {
                1 => "1 change is verified".to_owned(),
                n => format!("{n} changes are verified"),
            },
            most_pairs(args)
        ));
    }
    // Total loss of the dropped changes. Gains by noise offset losses by noise, but nothing more.
    let mut gone = 0.0_f64;
    for (number, &place) in changed.iter().enumerate() {
        let mut without = winner.clone();
        without[place] = 0;
        let knob = bench.turner.knobs[place].clone();
        let value = knob.values[winner[place]].clone();
        output.progress(&format!(
            "verification {} of {}: all changes (A) against all but {}={value} (B), in pairs:",
            number + 1,
            changed.len(),
            knob.name
        ));
        let before = bench.runs;
        let compared = pairs(args, seed, bench, [&winner, &without], true, output);
        found.spent.minimal_set += bench.runs - before;
        let compared = compared?.map(|(compared, _)| compared);
        match fate(compared.as_ref(), gone) {
            Fate::Stays { without, undecided } => {
                if let Err(unfit) = &compared {
                    output.progress(&format!("kept: {}={value}: without it: {unfit}", knob.name));
                }
                found.turned.push(bench.turner.turned(&knob, &value));
                found.changes.push(Change {
                    commands: bench.turner.commands(&knob, &value),
                    from: knob.values[0].clone(),
                    knob: knob.name,
                    to: value,
                    without,
                    undecided,
                });
            }
            Fate::Goes(why) => {
                output.progress(&format!("dropped: {}={value}", knob.name));
                winner = without;
                gone = (gone + compared.ok().as_ref().and_then(loss).unwrap_or(0.0)).max(0.0);
                found.vain.push(Vain {
                    knob: knob.name,
                    value,
                    why,
                });
            }
        }
    }
    Ok(winner)
}

/// Returns the maximum number of pairs of a comparison.
fn most_pairs(args: &TuneArgs) -> usize {
    args.until.max_pairs.unwrap_or(MOST_PAIRS)
}

/// Returns the number of pairs of a comparison.
pub fn amount(args: &TuneArgs) -> Amount {
    Amount::UntilDecided {
        limit: most_pairs(args),
    }
}

/// Returns the maximum number of runs of a comparison.
pub fn most_runs(args: &TuneArgs) -> usize {
    most_pairs(args).saturating_mul(2)
}

/// Compares two settings in interleaved pairs; the inner error is a setting that fails or, if
/// `limited`, takes too much memory.
fn pairs(
    args: &TuneArgs,
    seed: u64,
    bench: &mut Bench<'_>,
    points: [&Point; 2],
    limited: bool,
    output: &Output,
) -> Result<Result<(Comparison, Vec<Record>), Unfit>, Ended> {
    let labels = points.map(|point| bench.said(point));
    let name = bench.figure.name;
    let better = bench.figure.better();
    let bench = RefCell::new(bench);
    let runs = RefCell::new(Vec::new());
    let refused = RefCell::new(None);
    let amount = amount(args);
    let order = Interleave::new(amount, args.until.effect, seed);
    let mut turns = Turns {
        // For a single change, the first clear pairs suffice; the proof of all has a p-value.
        order: match limited {
            true => order.until_clear(),
            false => order,
        },
        machine: Machine::new(),
        pairs: Vec::new(),
        significance: amount.significance(),
    };
    let half = |_, side: usize| -> Result<f64, Ended> {
        let mut seen = bench.borrow_mut().measure(points[side], None)?;
        if seen.value.is_none() {
            // A single failure among many runs may be chance.
            seen = bench.borrow_mut().measure(points[side], None)?;
        }
        if let Some(mut record) = seen.record {
            record.label = Some(["A", "B"][side].to_owned());
            runs.borrow_mut().push(record);
        }
        // The start may exceed the memory limit: it is only the baseline.
        if let Some(value) = seen.value.filter(|_| !limited || seen.refused.is_none()) {
            return Ok(value);
        }
        let why = seen.refused.unwrap_or_else(|| format!("no {name}"));
        *refused.borrow_mut() = Some(match seen.value {
            Some(_) => Unfit::Memory(why.clone()),
            None => Unfit::Failed(format!("{}: {why}", labels[side])),
        });
        Err(Ended::Over(Failure::failed(Problem::new(
            why,
            labels[side].clone(),
            "check what limits it",
        ))))
    };
    let ended = turns.run(half, |number, pair| {
        output.progress(&format!(
            "  {}",
            linerate_report::text::pair(number, name, pair, 100)
        ));
    });
    if let (Err(Ended::Over(_)), Some(unfit)) = (&ended, refused.into_inner()) {
        return Ok(Err(unfit));
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

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::comparison::{LAST_SIGNIFICANCE, Pair};

    fn compared(better: Better, ratios: &[f64]) -> Comparison {
        let side = |label: &str| Side {
            label: label.to_owned(),
            value: None,
            records: Vec::new(),
        };
        let pairs = ratios.iter().map(|ratio| Pair {
            a: 100.0,
            b: 100.0 * ratio,
            b_first: false,
            line_rtt_ns: None,
            dropped: None,
        });
        let question = Question {
            figure: "goodput".to_owned(),
            better,
            effect: 0.05,
            significance: LAST_SIGNIFICANCE,
        };
        of_pairs(&question, [side("all"), side("without")], pairs.collect())
    }

    #[test]
    fn a_change_goes_only_where_it_does_not_matter() {
        // Ratios of each pair: without the change over with it.
        for (better, ratios, stays, undecided) in [
            // Thirty times slower in seven pairs: too few for a rank test, but clear.
            (Better::Higher, &[0.03; 7][..], true, false),
            (Better::Lower, &[1.8; 4][..], true, false),
            (Better::Lower, &[1.8; 3][..], true, true),
            (Better::Higher, &[0.9; 12][..], true, false),
            // Significant but small.
            (Better::Higher, &[0.997; 12][..], false, false),
            (Better::Higher, &[1.0; 12][..], false, false),
            (Better::Higher, &[1.3; 12][..], false, false),
            (Better::Lower, &[0.7; 12][..], false, false),
            // Noisy, with a median within the effect size; then beyond it.
            (
                Better::Higher,
                &[0.6, 1.5, 0.98, 1.02, 0.7, 1.4, 0.99, 1.0][..],
                false,
                false,
            ),
            (
                Better::Higher,
                &[0.5, 1.1, 0.7, 0.8, 0.6, 1.05, 0.9, 0.85][..],
                true,
                true,
            ),
            // Each second run without the change moves no data.
            (
                Better::Higher,
                &[0.0, 0.9, 0.0, 1.0, 0.0, 1.1, 0.0, 0.95][..],
                true,
                true,
            ),
        ] {
            let compared = compared(better, ratios);
            match fate(Ok(&compared), 0.0) {
                Fate::Stays {
                    without,
                    undecided: seen,
                } => {
                    assert!(stays, "{ratios:?}: {compared:?}");
                    assert_eq!(seen, undecided, "{ratios:?}: {compared:?}");
                    assert_eq!(without, compared.ratio);
                }
                Fate::Goes(why) => {
                    assert!(!stays, "{ratios:?}: {why}: {compared:?}");
                    let worse = compared.verdict == Verdict::Faster;
                    assert_eq!(why.contains("worse"), worse, "{ratios:?}: {why}");
                }
            }
        }
        let stays = |undecided| Fate::Stays {
            without: None,
            undecided,
        };
        let of = |unfit: Unfit| fate(Err(&unfit), 0.0);
        assert_eq!(of(Unfit::Memory("much".to_owned())), stays(false));
        assert_eq!(of(Unfit::Failed("gone".to_owned())), stays(true));
    }

    #[test]
    fn what_always_failed_is_not_called_without_gain() {
        let trial = |value: &str, came_to: Option<f64>| Trial {
            setting: std::iter::once(("window".to_owned(), value.to_owned())).collect(),
            value: came_to,
            memory_bytes: None,
            record: None,
            refused: came_to.is_none().then(|| format!("no {value}")),
        };
        let trials = [
            trial("4096", None),
            trial("65536", None),
            trial("4096", Some(1.0)),
            trial("65536", None),
        ];
        let values = ["4096", "65536", "99999"].map(str::to_owned);
        let failed = failed(&trials, "window", &values);
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert_eq!(failed[0].value, "65536");
        assert!(failed[0].why.contains("no 65536"), "{failed:?}");
    }

    #[test]
    fn small_changes_do_not_go_one_after_the_other_until_much_is_lost() {
        // A significant and an undecided small loss, both with a median of 3 %.
        let sure = [0.97; 12];
        let wild = [0.9, 1.05, 0.97, 0.97, 0.88, 1.02, 0.99, 0.96];
        for ratios in [&sure[..], &wild[..]] {
            for (gone, stays) in [(0.0, false), (0.01, false), (0.03, true)] {
                let compared = compared(Better::Higher, ratios);
                let is_kept = matches!(fate(Ok(&compared), gone), Fate::Stays { .. });
                assert_eq!(is_kept, stays, "{gone}: {ratios:?}: {compared:?}");
            }
        }
        // A change without a difference is dropped, whatever was dropped before.
        let compared = compared(
            Better::Higher,
            &[0.99, 1.01, 1.0, 1.0, 0.99, 1.0, 1.01, 1.0],
        );
        assert!(matches!(fate(Ok(&compared), 0.045), Fate::Goes(_)));
    }
}
