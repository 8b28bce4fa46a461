//! Verification of each change, and the proof of all changes together.

use std::cell::RefCell;

use linerate_record::comparison::{
    BetterWhen, Comparison, ComparisonSide, ComparisonSpec, ComparisonVerdict, compare_pairs,
    pair_differences,
};
use linerate_record::event::ErrorReport;
use linerate_record::ids::TuneStage;
use linerate_record::record::Record;
use linerate_record::tuning::{RejectedSetting, TuningChange, TuningTrial};
use linerate_stats::statistics::Estimate;
use linerate_stats::units::format_share;
use linerate_tune::pair_scheduler::{PairBudget, PairScheduler, is_clear};
use linerate_tune::search::SearchPoint;

use super::trial_runner::TrialRunner;
use super::{DEFAULT_MAX_PAIRS, TuneState};
use crate::args::TuneArgs;
use crate::command::compare::{MachineState, PairRunner};
use crate::failure::{CommandFailure, SeriesEnd};
use crate::output::CommandOutput;

/// Drops changes that do not matter, and proves the others against the start.
///
/// # Errors
/// As [`TrialRunner::measure`]; earlier results are kept.
pub fn verify_changes(
    args: &TuneArgs,
    seed: u64,
    bench: &mut TrialRunner<'_>,
    state: &mut TuneState,
    best: SearchPoint,
    output: &CommandOutput,
) -> Result<(), SeriesEnd> {
    state.stage = TuneStage::MinimalSet;
    bench.purpose = "verification";
    let start: SearchPoint = vec![0; best.len()];
    let winner = find_minimal_set(args, seed, bench, state, &best, output)?;
    state.winner.clone_from(&winner);
    for (knob, &value) in bench.applier.knobs.iter().zip(&best) {
        let failed = failed_values(&state.trials, &knob.name, &knob.values[1..]);
        let is_listed = |rejected: &RejectedSetting| {
            (state.rejected.iter())
                .any(|listed| listed.knob == rejected.knob && listed.value == rejected.value)
        };
        let unlisted: Vec<RejectedSetting> = failed
            .iter()
            .filter(|rejected| !is_listed(rejected))
            .cloned()
            .collect();
        state.rejected.extend(unlisted);
        let has_failed = |value: &String| failed.iter().any(|rejected| rejected.value == *value);
        let was_tried = |value: &&String| {
            let mut settings = state.trials.iter().map(|trial| &trial.setting);
            settings.any(|setting| setting.get(&knob.name) == Some(*value))
        };
        let other_values = knob.values[1..].iter().filter(|value| !has_failed(value));
        let (tried, untried): (Vec<_>, Vec<_>) = other_values.partition(was_tried);
        if value == 0 && !tried.is_empty() {
            state.rejected.push(RejectedSetting {
                knob: knob.name.clone(),
                value: join(&tried),
                reason: "no gain over the baseline".to_owned(),
            });
        }
        if !untried.is_empty() {
            state
                .untried
                .push(format!("{}={}", knob.name, join(&untried)));
        }
    }
    if winner == start {
        return Ok(());
    }
    state.stage = TuneStage::Proof;
    bench.purpose = "proof";
    output.report_progress(&format!(
        "proof: start (A) against all changes that matter (B: {}), in pairs:",
        bench.describe_setting(&winner)
    ));
    let before = bench.runs;
    let proved = compare_points(
        args,
        seed.wrapping_add(1),
        bench,
        [&start, &winner],
        false,
        output,
    );
    state.spent.proof += bench.runs - before;
    match proved? {
        Ok((compared, runs)) => {
            state.runs = runs;
            state.proof = Some(compared);
        }
        Err(reason) => output.warn(&format!("note: no proof: {reason}")),
    }
    Ok(())
}

/// Returns the values of a knob that no run with them permitted, with the reason: each failed, or
/// exceeded a limit such as --under.
fn failed_values(trials: &[TuningTrial], knob: &str, values: &[String]) -> Vec<RejectedSetting> {
    let of = |value: &String| {
        let with = |trial: &&TuningTrial| trial.setting.get(knob) == Some(value);
        let mut with_value = trials.iter().filter(with);
        let last = with_value.clone().next_back()?;
        let is_unfit = |trial: &TuningTrial| trial.value.is_none() || trial.rejected.is_some();
        let unfit = with_value.all(is_unfit);
        let reason = last.rejected.as_deref().unwrap_or("no result");
        unfit.then(|| RejectedSetting {
            knob: knob.to_owned(),
            value: value.clone(),
            reason: match last.value {
                Some(_) => reason.to_owned(),
                None => format!("failed in all runs: {reason}"),
            },
        })
    };
    values.iter().filter_map(of).collect()
}

/// Reason why a setting cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
enum UnfitSetting {
    /// Too much memory.
    Memory(String),
    /// Failed twice.
    Failed(String),
}

impl std::fmt::Display for UnfitSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Memory(why) | Self::Failed(why)) = self;
        f.write_str(why)
    }
}

/// Decision on a change.
#[derive(Clone, Debug, PartialEq)]
enum ChangeDecision {
    /// Kept; `without` is the ratio of the figure without the change to that with it.
    Kept {
        without: Option<Estimate>,
        undecided: bool,
    },
    /// Dropped, with the reason.
    Dropped(String),
}

/// Decides whether a change matters, from a comparison of all changes (A) with all but this one
/// (B).
///
/// Noise alone drops no change: one that loses at least the effect size is kept, decided or not,
/// because kept changes are proved together at the end, and dropped ones are not measured again.
/// The same applies to a change that loses as much together with those dropped before
/// (`dropped_loss`, a fraction), because each of several losses may be small.
fn decide(compared: Result<&Comparison, &UnfitSetting>, dropped_loss: f64) -> ChangeDecision {
    let compared = match compared {
        Ok(compared) => compared,
        // Without this change the setting takes too much memory, so the change is needed.
        Err(UnfitSetting::Memory(_)) => {
            return ChangeDecision::Kept {
                without: None,
                undecided: false,
            };
        }
        Err(UnfitSetting::Failed(_)) => {
            return ChangeDecision::Kept {
                without: None,
                undecided: true,
            };
        }
    };
    let effect = compared.effect;
    // A loss below half of the effect size counts as noise.
    let large = loss_without(compared).is_some_and(|loss| {
        loss >= effect || (loss >= effect / 2.0 && dropped_loss + loss >= effect)
    });
    match compared.verdict {
        ComparisonVerdict::Slower if compared.regression || large => ChangeDecision::Kept {
            without: compared.ratio,
            undecided: false,
        },
        ComparisonVerdict::Undecided if large => ChangeDecision::Kept {
            without: compared.ratio,
            undecided: !is_clear(&compared.pairs, effect),
        },
        ComparisonVerdict::Slower => ChangeDecision::Dropped(format!(
            "difference below the effect size of {}",
            format_share(effect)
        )),
        ComparisonVerdict::Undecided => ChangeDecision::Dropped(
            "no difference could be shown with the other changes".to_owned(),
        ),
        ComparisonVerdict::NoDifference => {
            ChangeDecision::Dropped("no difference with the other changes".to_owned())
        }
        ComparisonVerdict::Faster => {
            ChangeDecision::Dropped("worse with the other changes".to_owned())
        }
    }
}

/// Returns the loss without a change as a fraction; negative if it is better without. If a run has
/// a value of zero there is no ratio: then it is a fraction of the larger side.
fn loss_without(compared: &Comparison) -> Option<f64> {
    let share = match compared.ratio {
        Some(ratio) => ratio.median - 1.0,
        None => {
            let scale = pair_differences(&compared.pairs).scale;
            compared.difference?.median / scale.filter(|scale| *scale > 0.0)?
        }
    };
    Some(match compared.better {
        BetterWhen::Higher => -share,
        BetterWhen::Lower => share,
    })
}

fn join(values: &[&String]) -> String {
    let values: Vec<&str> = values.iter().map(|value| value.as_str()).collect();
    values.join(", ")
}

/// Verifies each change in turn; dropped changes are left out of the following comparisons.
fn find_minimal_set(
    args: &TuneArgs,
    seed: u64,
    bench: &mut TrialRunner<'_>,
    state: &mut TuneState,
    best: &SearchPoint,
    output: &CommandOutput,
) -> Result<SearchPoint, SeriesEnd> {
    let mut winner = best.clone();
    let changed: Vec<usize> = (0..winner.len())
        .filter(|&knob| winner[knob] != 0)
        .collect();
    if !changed.is_empty() {
        let max_runs = max_runs(args);
        output.report_progress(&format!(
            "search finished; now {} in pairs: at most {max_runs} runs for each, and {max_runs} to verify all changes together \
             (--max-pairs {})",
            match changed.len() {
                1 => "1 change is verified".to_owned(),
                n => format!("{n} changes are verified"),
            },
            max_pairs(args)
        ));
    }
    // Total loss of the dropped changes. Gains by noise offset losses by noise, but nothing more.
    let mut dropped_loss = 0.0_f64;
    for (number, &index) in changed.iter().enumerate() {
        let mut without = winner.clone();
        without[index] = 0;
        let knob = bench.applier.knobs[index].clone();
        let value = knob.values[winner[index]].clone();
        output.report_progress(&format!(
            "verification {} of {}: all changes (A) against all but {}={value} (B), in pairs:",
            number + 1,
            changed.len(),
            knob.name
        ));
        let before = bench.runs;
        let compared = compare_points(args, seed, bench, [&winner, &without], true, output);
        state.spent.minimal_set += bench.runs - before;
        let compared = compared?.map(|(compared, _)| compared);
        match decide(compared.as_ref(), dropped_loss) {
            ChangeDecision::Kept { without, undecided } => {
                if let Err(reason) = &compared {
                    output.report_progress(&format!(
                        "kept: {}={value}: without it: {reason}",
                        knob.name
                    ));
                }
                state
                    .applied
                    .push(bench.applier.applied_change(&knob, &value));
                state.changes.push(TuningChange {
                    commands: bench.applier.shell_commands(&knob, &value),
                    from: knob.values[0].clone(),
                    knob: knob.name,
                    to: value,
                    without,
                    undecided,
                });
            }
            ChangeDecision::Dropped(why) => {
                output.report_progress(&format!("dropped: {}={value}", knob.name));
                winner = without;
                dropped_loss = (dropped_loss
                    + compared.ok().as_ref().and_then(loss_without).unwrap_or(0.0))
                .max(0.0);
                state.rejected.push(RejectedSetting {
                    knob: knob.name,
                    value,
                    reason: why,
                });
            }
        }
    }
    Ok(winner)
}

/// Returns the maximum number of pairs of a comparison.
fn max_pairs(args: &TuneArgs) -> usize {
    args.pairs_until.max_pairs.unwrap_or(DEFAULT_MAX_PAIRS)
}

/// Returns the number of pairs of a comparison.
pub fn pair_amount(args: &TuneArgs) -> PairBudget {
    PairBudget::UntilDecided {
        limit: max_pairs(args),
    }
}

/// Returns the maximum number of runs of a comparison.
pub fn max_runs(args: &TuneArgs) -> usize {
    max_pairs(args).saturating_mul(2)
}

/// Compares two settings in interleaved pairs; the inner error is a setting that fails or, if
/// `limited`, takes too much memory.
fn compare_points(
    args: &TuneArgs,
    seed: u64,
    bench: &mut TrialRunner<'_>,
    points: [&SearchPoint; 2],
    limited: bool,
    output: &CommandOutput,
) -> Result<Result<(Comparison, Vec<Record>), UnfitSetting>, SeriesEnd> {
    let labels = points.map(|point| bench.describe_setting(point));
    let name = bench.figure.name;
    let better = bench.figure.better_when();
    let bench = RefCell::new(bench);
    let runs = RefCell::new(Vec::new());
    let rejection = RefCell::new(None);
    let amount = pair_amount(args);
    let order = PairScheduler::new(amount, args.pairs_until.effect, seed);
    let mut pair_runner = PairRunner {
        // For a single change, the first clear pairs suffice; the proof of all has a p-value.
        order: match limited {
            true => order.until_clear(),
            false => order,
        },
        machine: MachineState::new(),
        pairs: Vec::new(),
        significance: amount.significance(),
    };
    let measure_side = |_, side: usize| -> Result<f64, SeriesEnd> {
        let mut trial = bench.borrow_mut().measure(points[side], None)?;
        if trial.value.is_none() {
            // A single failure among many runs may be chance.
            trial = bench.borrow_mut().measure(points[side], None)?;
        }
        if let Some(mut record) = trial.record {
            record.label = Some(["A", "B"][side].to_owned());
            runs.borrow_mut().push(record);
        }
        // The start may exceed the memory limit: it is only the baseline.
        if let Some(value) = trial
            .value
            .filter(|_| !limited || trial.rejection.is_none())
        {
            return Ok(value);
        }
        let why = trial.rejection.unwrap_or_else(|| format!("no {name}"));
        *rejection.borrow_mut() = Some(match trial.value {
            Some(_) => UnfitSetting::Memory(why.clone()),
            None => UnfitSetting::Failed(format!("{}: {why}", labels[side])),
        });
        Err(SeriesEnd::Failed(CommandFailure::failed(ErrorReport::new(
            why,
            labels[side].clone(),
            "check what limits it",
        ))))
    };
    let end = pair_runner.run(measure_side, |number, pair| {
        output.report_step(&format!(
            "  {}",
            linerate_report::text::describe_pair(number, name, pair, 100)
        ));
    });
    if let (Err(SeriesEnd::Failed(_)), Some(reason)) = (&end, rejection.into_inner()) {
        return Ok(Err(reason));
    }
    end?;
    let runs = runs.into_inner();
    let side = |at: usize, letter: &str| ComparisonSide {
        label: labels[at].clone(),
        records: (runs.iter())
            .filter(|run: &&Record| run.label.as_deref() == Some(letter))
            .map(|run| run.id.clone())
            .collect(),
        ..ComparisonSide::default()
    };
    let test = ComparisonSpec {
        figure: name.to_owned(),
        better,
        effect: args.pairs_until.effect,
        significance: pair_runner.significance,
    };
    let mut compared = compare_pairs(&test, [side(0, "A"), side(1, "B")], pair_runner.pairs);
    compared.seed = Some(seed);
    Ok(Ok((compared, runs)))
}

#[cfg(test)]
mod tests {
    use linerate_record::comparison::{LAST_SIGNIFICANCE, RunPair};

    use super::*;

    fn compared(better: BetterWhen, ratios: &[f64]) -> Comparison {
        let side = |label: &str| ComparisonSide {
            label: label.to_owned(),
            ..ComparisonSide::default()
        };
        let pairs = ratios.iter().map(|ratio| RunPair {
            a: 100.0,
            b: 100.0 * ratio,
            b_first: false,
            cache_line_rtt_ns: None,
            dropped: None,
        });
        let test = ComparisonSpec {
            figure: "goodput".to_owned(),
            better,
            effect: 0.05,
            significance: LAST_SIGNIFICANCE,
        };
        compare_pairs(&test, [side("all"), side("without")], pairs.collect())
    }

    #[test]
    fn a_change_is_dropped_only_if_it_does_not_matter() {
        // Ratios of each pair: without the change over with it.
        for (better, ratios, expect_kept, undecided) in [
            // Thirty times slower in seven pairs: too few for a rank test, but clear.
            (BetterWhen::Higher, &[0.03; 7][..], true, false),
            (BetterWhen::Lower, &[1.8; 4][..], true, false),
            (BetterWhen::Lower, &[1.8; 3][..], true, true),
            (BetterWhen::Higher, &[0.9; 12][..], true, false),
            // Significant but small.
            (BetterWhen::Higher, &[0.997; 12][..], false, false),
            (BetterWhen::Higher, &[1.0; 12][..], false, false),
            (BetterWhen::Higher, &[1.3; 12][..], false, false),
            (BetterWhen::Lower, &[0.7; 12][..], false, false),
            // Noisy, with a median within the effect size; then beyond it.
            (
                BetterWhen::Higher,
                &[0.6, 1.5, 0.98, 1.02, 0.7, 1.4, 0.99, 1.0][..],
                false,
                false,
            ),
            (
                BetterWhen::Higher,
                &[0.5, 1.1, 0.7, 0.8, 0.6, 1.05, 0.9, 0.85][..],
                true,
                true,
            ),
            // Each second run without the change moves no data.
            (
                BetterWhen::Higher,
                &[0.0, 0.9, 0.0, 1.0, 0.0, 1.1, 0.0, 0.95][..],
                true,
                true,
            ),
        ] {
            let compared = compared(better, ratios);
            match decide(Ok(&compared), 0.0) {
                ChangeDecision::Kept {
                    without,
                    undecided: is_undecided,
                } => {
                    assert!(expect_kept, "{ratios:?}: {compared:?}");
                    assert_eq!(is_undecided, undecided, "{ratios:?}: {compared:?}");
                    assert_eq!(without, compared.ratio);
                }
                ChangeDecision::Dropped(why) => {
                    assert!(!expect_kept, "{ratios:?}: {why}: {compared:?}");
                    let worse = compared.verdict == ComparisonVerdict::Faster;
                    assert_eq!(why.contains("worse"), worse, "{ratios:?}: {why}");
                }
            }
        }
        let expect_kept = |undecided| ChangeDecision::Kept {
            without: None,
            undecided,
        };
        let of = |reason: UnfitSetting| decide(Err(&reason), 0.0);
        assert_eq!(
            of(UnfitSetting::Memory("much".to_owned())),
            expect_kept(false)
        );
        assert_eq!(
            of(UnfitSetting::Failed("gone".to_owned())),
            expect_kept(true)
        );
    }

    #[test]
    fn values_that_always_failed_are_reported_as_failed() {
        let trial = |value: &str, value_or_none: Option<f64>| TuningTrial {
            setting: std::iter::once(("window".to_owned(), value.to_owned())).collect(),
            value: value_or_none,
            memory_bytes: None,
            record: None,
            rejected: value_or_none.is_none().then(|| format!("no {value}")),
        };
        let trials = [
            trial("4096", None),
            trial("65536", None),
            trial("4096", Some(1.0)),
            trial("65536", None),
        ];
        // Fast, and more memory than --under permits.
        let forbidden = TuningTrial {
            rejected: Some("takes 16 MiB".to_owned()),
            ..trial("16M", Some(9.0))
        };
        let trials: Vec<_> = trials.into_iter().chain([forbidden]).collect();
        let values = ["4096", "65536", "16M", "99999"].map(str::to_owned);
        let failed = failed_values(&trials, "window", &values);
        assert_eq!(failed.len(), 2, "{failed:?}");
        assert_eq!(failed[1].reason, "takes 16 MiB");
        assert_eq!(failed[0].value, "65536");
        assert!(failed[0].reason.contains("no 65536"), "{failed:?}");
    }

    #[test]
    fn small_losses_of_dropped_changes_add_up() {
        // A significant and an undecided small loss, both with a median of 3 %.
        let significant = [0.97; 12];
        let noisy = [0.9, 1.05, 0.97, 0.97, 0.88, 1.02, 0.99, 0.96];
        for ratios in [&significant[..], &noisy[..]] {
            for (dropped_loss, expect_kept) in [(0.0, false), (0.01, false), (0.03, true)] {
                let compared = compared(BetterWhen::Higher, ratios);
                let is_kept = matches!(
                    decide(Ok(&compared), dropped_loss),
                    ChangeDecision::Kept { .. }
                );
                assert_eq!(
                    is_kept, expect_kept,
                    "{dropped_loss}: {ratios:?}: {compared:?}"
                );
            }
        }
        // A change without a difference is dropped, whatever was dropped before.
        let compared = compared(
            BetterWhen::Higher,
            &[0.99, 1.01, 1.0, 1.0, 0.99, 1.0, 1.01, 1.0],
        );
        assert!(matches!(
            decide(Ok(&compared), 0.045),
            ChangeDecision::Dropped(_)
        ));
    }
}
