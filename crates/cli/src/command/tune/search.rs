//! First measurement and its findings, check of possible values, and the search.

use linerate_record::event::ErrorReport;
use linerate_record::figure;
use linerate_record::ids::TuneStage;
use linerate_record::tuning::{BestTrial, FindingHint, RejectedSetting, TuningTrial};
use linerate_tune::finding_knobs::{self, knobs_for_findings};
use linerate_tune::knob::{Knob, KnobTarget, target_of};
use linerate_tune::search::{KnobSpace, MAX_VALUE_FAILURES, Search, SearchPoint};

use super::TuneState;
use super::request::sets_option_or_key;
use super::trial_runner::{MeasuredTrial, TrialRunner};
use crate::args::TuneArgs;
use crate::failure::{CommandFailure, SeriesEnd};
use crate::knobs::is_default;
use crate::output::CommandOutput;

/// Time of a run that only checks whether a value is possible.
const CHECK_TIME: &str = "100ms";

/// Divisor of --effect for the search: settings within that fraction count as equal, so that the
/// losses of the search and of dropped changes together stay below --effect.
const EFFECT_DIVISOR: f64 = 2.0;

/// Maximum number of findings that are printed.
const MAX_PRINTED_FINDINGS: usize = 5;

/// Measures the start, and prints the knobs that its findings point at.
///
/// # Errors
/// As [`TrialRunner::measure`].
pub fn measure_start(
    bench: &mut TrialRunner<'_>,
    start: &SearchPoint,
    state: &mut TuneState,
    output: &CommandOutput,
) -> Result<MeasuredTrial, SeriesEnd> {
    // Without a working start there is nothing to compare with.
    if let Err(why) = bench.applier.apply(start)? {
        return Err(SeriesEnd::Failed(CommandFailure::failed(ErrorReport::new(
            why,
            "the baseline",
            "run its command by itself to see its output, or put a working value first",
        ))));
    }
    let mut result = bench.measure(start, None)?;
    state.spent.search += 1;
    record_trial(bench, start, &result, state, "baseline", output);
    let Some(record) = result.record.as_mut() else {
        return Ok(result);
    };
    if record.findings.is_empty() {
        crate::findings::add_findings(record);
    }
    let names: Vec<&str> = (bench.applier.knobs.iter())
        .map(|knob| knob.name.as_str())
        .collect();
    let hints = knobs_for_findings(&record.findings, &names);
    for hint in hints.iter().take(MAX_PRINTED_FINDINGS) {
        let knobs = describe_hint(hint, &names, &bench.command);
        output.report_progress(&format!(
            "  {} ({:.0} %): {knobs}",
            hint.cause,
            hint.cost * 100.0
        ));
    }
    if hints.is_empty() {
        output.report_progress("  no finding: the search starts with all knobs");
    }
    state.finding_hints = hints
        .into_iter()
        .map(|hint| FindingHint {
            cause: hint.cause,
            cost: hint.cost,
            summary: hint.summary,
            knobs: hint.knobs,
        })
        .collect();
    order_knobs(bench, state, output);
    Ok(result)
}

/// Returns the knobs that a finding points at, and those that the command line fixes, which
/// `compare` can try.
fn describe_hint(hint: &finding_knobs::FindingKnobs, searched: &[&str], args: &[String]) -> String {
    let mut text = match hint.knobs.len() {
        0 => "no knob that can be set here".to_owned(),
        1 => format!("knob {}", hint.knobs[0]),
        _ => format!("knobs {}", hint.knobs.join(", ")),
    };
    let fixed: Vec<&str> = (finding_knobs::knobs_for_cause(&hint.cause).iter().copied())
        .filter(|knob| !searched.contains(knob))
        .filter(|knob| target_of(knob).is_some_and(|set| sets_option_or_key(args, &set)))
        .collect();
    if !fixed.is_empty() {
        text.push_str(&format!(
            "; fixed by the command line: {}",
            fixed.join(", ")
        ));
    }
    text
}

/// Moves the knobs that findings point at to the front.
fn order_knobs(bench: &mut TrialRunner<'_>, state: &TuneState, output: &CommandOutput) {
    let hints: Vec<_> = (state.finding_hints.iter())
        .map(|hint| finding_knobs::FindingKnobs {
            cause: hint.cause.clone(),
            cost: hint.cost,
            summary: hint.summary.clone(),
            knobs: hint.knobs.clone(),
        })
        .collect();
    let first = finding_knobs::first_knobs(&hints);
    let rank = |name: &str| first.iter().position(|known_name| known_name == name);
    (bench.applier.knobs).sort_by_key(|knob| rank(&knob.name).unwrap_or(usize::MAX));
    if !first.is_empty() {
        output.report_progress(&format!(
            "knobs of the findings, tried first: {}",
            first.join(", ")
        ));
    }
}

/// Reports a run and stores its trial.
fn record_trial(
    bench: &TrialRunner<'_>,
    point: &SearchPoint,
    result: &MeasuredTrial,
    state: &mut TuneState,
    run_name: &str,
    output: &CommandOutput,
) {
    let text = match (&result.rejection, result.value) {
        (Some(why), None) => why.clone(),
        (Some(why), Some(value)) => {
            format!("{}, but {why}", figure::format(bench.figure.name, value))
        }
        (None, Some(value)) => figure::format(bench.figure.name, value),
        (None, None) => format!("no {}", bench.figure.name),
    };
    state.trials.push(TuningTrial {
        setting: bench.setting(point),
        value: result.value,
        memory_bytes: result.memory_bytes,
        record: result.record.as_ref().map(|record| record.id.clone()),
        rejected: result.rejection.clone(),
    });
    let setting = bench.describe_setting(point);
    output.report_step(&match setting == run_name {
        true => format!("{run_name}: {text}"),
        // The figure stands first: a narrow terminal cuts the end of the line.
        false => format!("{run_name}: {text}, {setting}"),
    });
}

/// Finds impossible values before the search: by a short run each, or for settings of hosts by an
/// attempt to set them.
///
/// # Errors
/// As [`TrialRunner::measure`].
pub fn check_values(
    bench: &mut TrialRunner<'_>,
    state: &mut TuneState,
    output: &CommandOutput,
) -> Result<(), SeriesEnd> {
    state.stage = TuneStage::Check;
    bench.purpose = "check";
    let start: SearchPoint = vec![0; bench.applier.knobs.len()];
    let mut rejections: Vec<(usize, usize, String)> = Vec::new();
    let uncertain: Vec<usize> = (0..start.len())
        .filter(|&knob| bench.applier.knobs[knob].may_be_rejected)
        .collect();
    let runs: usize = (uncertain.iter())
        .map(|&knob| &bench.applier.knobs[knob])
        .filter(|knob| matches!(knob.target, KnobTarget::Option(_) | KnobTarget::StackKey(_)))
        .map(|knob| knob.values.len() - 1)
        .sum();
    if runs > 0 {
        output.report_progress(&format!(
            "checking which values are possible: {runs} runs of 100 ms each"
        ));
    }
    for knob in uncertain {
        let measured = matches!(
            bench.applier.knobs[knob].target,
            KnobTarget::Option(_) | KnobTarget::StackKey(_)
        );
        for value in 1..bench.applier.knobs[knob].values.len() {
            let mut point = start.clone();
            point[knob] = value;
            let why = match measured {
                true => {
                    let result = bench.measure(&point, Some(CHECK_TIME))?;
                    state.spent.check += 1;
                    result.rejection.filter(|_| result.record.is_none())
                }
                false => bench.applier.apply(&point)?.err(),
            };
            rejections.extend(why.map(|why| (knob, value, why)));
        }
        // A value may have been applied only in part.
        bench.applier.apply(&start)?.ok();
    }
    let mut impossible: Vec<RejectedSetting> = Vec::new();
    for (knob, value, why) in rejections.into_iter().rev() {
        let knob = &mut bench.applier.knobs[knob];
        let value = knob.values.remove(value);
        // Values with the same reason share one line.
        match (impossible.iter_mut())
            .find(|rejected| rejected.knob == knob.name && rejected.reason == why)
        {
            Some(rejected) => rejected.value = format!("{value}, {}", rejected.value),
            None => impossible.push(RejectedSetting {
                knob: knob.name.clone(),
                value,
                reason: why,
            }),
        }
    }
    for rejected in &impossible {
        output.report_progress(&format!(
            "not possible: {}={}: {}",
            rejected.knob, rejected.value, rejected.reason
        ));
    }
    state.rejected.extend(impossible);
    // An option of the start stays one of the command, even if no other value is possible.
    let is_option = |knob: &Knob| {
        let of_command = matches!(knob.target, KnobTarget::Option(_) | KnobTarget::StackKey(_));
        of_command && knob.values.iter().any(|value| !is_default(value))
    };
    (bench.applier.knobs).retain(|knob| knob.values.len() > 1 || is_option(knob));
    Ok(())
}

/// Runs the search; returns the best setting, or `None` if no run has the figure.
///
/// # Errors
/// As [`TrialRunner::measure`]; earlier trials are kept.
pub fn run_search(
    args: &TuneArgs,
    seed: u64,
    bench: &mut TrialRunner<'_>,
    state: &mut TuneState,
    first: MeasuredTrial,
    output: &CommandOutput,
) -> Result<Option<SearchPoint>, SeriesEnd> {
    state.stage = TuneStage::Search;
    bench.purpose = "search";
    let knob_spaces = (bench.applier.knobs.iter())
        .map(|knob| KnobSpace {
            value_count: knob.values.len(),
            ordered: knob.ordered,
        })
        .collect();
    let is_hinted = |name: &str| {
        let mut knobs = state
            .finding_hints
            .iter()
            .flat_map(|is_hinted| &is_hinted.knobs);
        knobs.any(|known_name| known_name == name)
    };
    let hinted_knobs: Vec<usize> = (0..bench.applier.knobs.len())
        .filter(|&knob| is_hinted(&bench.applier.knobs[knob].name))
        .collect();
    let mut search = Search::new(knob_spaces, args.runs, seed)
        .with_first_knobs(&hinted_knobs)
        .with_min_difference((args.pairs_until.effect / EFFECT_DIVISOR).ln_1p());
    // The first measurement counts as the first run of the start.
    let mut first = Some(first);
    let mut end = Ok(());
    while let Some(point) = search.propose() {
        let mut has_run = true;
        let result = match first.take() {
            Some(result) => result,
            None => {
                let hinted_knobs = bench.runs;
                let result = match bench.measure(&point, None) {
                    Ok(result) => result,
                    Err(stopped) => {
                        end = Err(stopped);
                        break;
                    }
                };
                has_run = bench.runs > hinted_knobs;
                state.spent.search += u32::from(has_run);
                let run_name = match has_run {
                    true => format!("search run {} of {} at most", state.spent.search, args.runs),
                    false => "no run".to_owned(),
                };
                record_trial(bench, &point, &result, state, &run_name, output);
                result
            }
        };
        // A value of zero has no ratio to others.
        match result.value.filter(|value| *value > 0.0) {
            Some(value) => {
                let score = result.rejection.is_none().then(|| bench.score(value));
                search.record_score(&point, score);
            }
            None => {
                if let Some(value) = search.record_failure(&point, has_run) {
                    exclude_value(bench, value, result.rejection, state, output);
                }
            }
        }
    }
    let start: SearchPoint = vec![0; bench.applier.knobs.len()];
    let best = search.best_point();
    if let Some((point, (score, runs))) = best
        .as_ref()
        .and_then(|best| Some((best, search.raw_score(best)?)))
    {
        state.best_so_far = Some(BestTrial {
            setting: bench.setting(point),
            value: bench.value(score),
            runs: u32::try_from(runs).unwrap_or(u32::MAX),
            start: search
                .raw_score(&start)
                .map(|(score, _)| bench.value(score)),
        });
    }
    end.map(|()| best)
}

/// Reports that a value is not tried any more.
fn exclude_value(
    bench: &TrialRunner<'_>,
    (knob, value): (usize, usize),
    rejection: Option<String>,
    state: &mut TuneState,
    output: &CommandOutput,
) {
    let knob = &bench.applier.knobs[knob];
    let why = rejection.unwrap_or_else(|| format!("no {}", bench.figure.name));
    output.report_progress(&format!(
        "excluded: {}={}: it failed {MAX_VALUE_FAILURES} times without a result: {why}",
        knob.name, knob.values[value]
    ));
    state.rejected.push(RejectedSetting {
        knob: knob.name.clone(),
        value: knob.values[value].clone(),
        reason: format!("excluded after {MAX_VALUE_FAILURES} failures: {why}"),
    });
}

#[cfg(test)]
mod tests {
    use linerate_record::ids::CauseId;

    use super::*;

    #[test]
    fn fixed_knobs_are_listed_after_searchable_ones() {
        for (cause, knobs, command, text) in [
            (
                CauseId::SharedCore,
                &["wait"][..],
                "throughput h --cpu 0/0",
                "knob wait; fixed by the command line: cpu",
            ),
            (
                CauseId::SharedCore,
                &[],
                "throughput h --cpu=0/0 --wait spin",
                "no knob that can be set here; fixed by the command line: cpu, wait",
            ),
            (
                CauseId::SharedCore,
                &["cpu", "wait"],
                "throughput h -u",
                "knobs cpu, wait",
            ),
            // Knobs whose names differ from their options.
            (
                CauseId::SmallWrites,
                &["batch"],
                "throughput h --length 64",
                "knob batch; fixed by the command line: write-size",
            ),
            (
                CauseId::DelayedAck,
                &["stack-psh"],
                "throughput h --set tcp.nagle=on;tcp.send_buffer=1K",
                "knob stack-psh; fixed by the command line: stack-sndbuf",
            ),
            // Socket options also set keys of our stack.
            (
                CauseId::DelayedAck,
                &["stack-psh"],
                "throughput h --dev tap:t0 --ip 10.0.0.2/24 -w 64K",
                "knob stack-psh; fixed by the command line: stack-sndbuf",
            ),
        ] {
            let hint = finding_knobs::FindingKnobs {
                cause: cause.into(),
                cost: 0.3,
                summary: String::new(),
                knobs: knobs.iter().map(ToString::to_string).collect(),
            };
            let args: Vec<String> = command.split(' ').map(str::to_owned).collect();
            assert_eq!(describe_hint(&hint, knobs, &args), text, "{command}");
        }
    }
}
