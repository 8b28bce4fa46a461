//! Verdicts: evaluation of assertions and comparison with published figures.

use std::collections::BTreeSet;

use linerate_record::expect::FigureUnit;
use linerate_record::experiment::{
    CoreDistance, ExpectedShape, ExperimentPoint, ExperimentResult, KnobAxis, KnobValues,
    PublishedFigure, PublishedTrend, ShapeState,
};
use linerate_record::record::Record;

use crate::caveats::CaveatCollector;
use crate::conclusion::ConclusionSentence;
use crate::evaluation::{evaluate_sum, format_value, open_settings};
use crate::file::{Experiment, ShapeAssertion};
use crate::rule::AssertionRule;

/// Maximum number of combinations listed in a verdict.
const MAX_LISTED: usize = 4;

/// Fills in the verdicts and the values measured for published figures.
pub(crate) fn add_verdicts(
    experiment: &Experiment,
    result: &mut ExperimentResult,
    runs: &[Record],
    cores: usize,
) {
    result.shapes = experiment
        .shapes
        .iter()
        .map(|shape| evaluate_shape(experiment, shape, result, runs, cores))
        .collect();
    result.published = experiment
        .published
        .iter()
        .map(|published| {
            let mut fitting = result.matching_points(&published.setting);
            let measured = fitting.find_map(|point| point.figures.get(&published.figure));
            PublishedFigure {
                setting: published.setting.clone(),
                figure: published.figure.clone(),
                value: experiment
                    .published_value(published)
                    .expect("it was read when the file was checked"),
                on: published.measured_on.clone(),
                measured: measured.map(|figure| figure.median),
            }
        })
        .collect();
    let mut trends = published_trends(experiment, &result.published);
    for trend in trends.iter_mut().filter(|trend| trend.agrees.is_some()) {
        let mut caveats = CaveatCollector::new(experiment, runs);
        for value in [&trend.from, &trend.to] {
            let mut setting = trend.at.clone();
            setting.insert(trend.knob.clone(), value.clone());
            caveats.add_runs(result, &setting, &trend.figure);
        }
        trend.caveats = caveats.summarize();
    }
    result.trends = trends;
}

/// Ratio below which a change counts as none.
const MIN_CHANGE_RATIO: f64 = 1.1;

/// Direction of a change: 1 up, -1 down, 0 neither.
fn change_direction(ratio: f64) -> i8 {
    i8::from(ratio > MIN_CHANGE_RATIO) - i8::from(ratio < 1.0 / MIN_CHANGE_RATIO)
}

/// Trends of published figures: the change from the first figure that differs by one knob.
fn published_trends(experiment: &Experiment, published: &[PublishedFigure]) -> Vec<PublishedTrend> {
    let mut trends = Vec::new();
    for (position, after) in published.iter().enumerate() {
        let earlier = published[..position].iter().enumerate();
        let candidates = earlier.filter(|(_, before)| {
            before.figure == after.figure && before.on == after.on && before.value > 0.0
        });
        let candidates = candidates.filter_map(|(at, before)| {
            let knob = only_difference(&before.setting, &after.setting)?;
            Some((at, before, knob))
        });
        let mut knobs: Vec<String> = Vec::new();
        for (at, before, knob) in candidates {
            if knobs.contains(&knob) {
                continue;
            }
            knobs.push(knob.clone());
            trends.push(compare_trend(
                experiment,
                (at, before),
                (position, after),
                knob,
            ));
        }
    }
    trends
}

/// Trend of a published figure with one knob, compared with the measured one.
fn compare_trend(
    experiment: &Experiment,
    (index_before, before): (usize, &PublishedFigure),
    (index_after, after): (usize, &PublishedFigure),
    knob: String,
) -> PublishedTrend {
    let published_ratio = after.value / before.value;
    let measured_ratio = (before.measured.zip(after.measured))
        .filter(|(before, _)| *before > 0.0)
        .map(|(before, after)| after / before);
    let agrees = measured_ratio.map(|measured_ratio| {
        change_direction(measured_ratio) == change_direction(published_ratio)
    });
    let mut fixed_values = after.setting.clone();
    fixed_values.remove(&knob);
    let reason =
        [index_after, index_before].map(|index| experiment.published[index].reason.as_str());
    let reason = reason.into_iter().find(|reason| !reason.is_empty());
    PublishedTrend {
        figure: after.figure.clone(),
        at: fixed_values,
        from: before.setting[&knob].clone(),
        to: after.setting[&knob].clone(),
        knob,
        published: published_ratio,
        measured: measured_ratio,
        agrees,
        caveats: Vec::new(),
        why: match agrees {
            Some(false) => reason.unwrap_or_default().to_owned(),
            _ => String::new(),
        },
    }
}

/// Knob in which two settings of the same knobs differ, if it is exactly one.
fn only_difference(first: &KnobValues, second: &KnobValues) -> Option<String> {
    if !first.keys().eq(second.keys()) {
        return None;
    }
    let mut differ = first
        .iter()
        .filter(|(knob, value)| second[*knob] != **value);
    let (knob, _) = differ.next()?;
    differ.next().is_none().then(|| knob.clone())
}

fn evaluate_shape(
    experiment: &Experiment,
    shape: &ShapeAssertion,
    result: &ExperimentResult,
    runs: &[Record],
    cores: usize,
) -> ExpectedShape {
    let mut verdict = ExpectedShape {
        description: shape.description.clone(),
        rule: shape.rule.clone(),
        state: ShapeState::Untested,
        measured: String::new(),
        conclusion: String::new(),
        caveats: Vec::new(),
        why: String::new(),
    };
    if cores < shape.min_cores {
        let required = shape.min_cores;
        verdict.measured = format!("needs {required} CPUs, this machine has {cores}");
        return verdict;
    }
    let rule = AssertionRule::parse(&shape.rule).expect("it was read when the file was checked");
    let mut held = Vec::new();
    let mut missed = Vec::new();
    let mut caveats = CaveatCollector::new(experiment, runs);
    for setting in open_settings(&rule, &result.knobs) {
        let (Some(left), Some(right)) = (
            evaluate_sum(&rule.left, &setting, (result, shape.core_distance), &rule),
            evaluate_sum(&rule.right, &setting, (result, shape.core_distance), &rule),
        ) else {
            continue;
        };
        for term in rule.terms() {
            let mut expected = setting.clone();
            if let Some((_, knob)) = &term.over {
                expected.remove(knob);
            }
            expected.extend(term.setting.clone());
            caveats.add_runs(result, &expected, &term.figure);
        }
        let unit = rule.terms().next().map_or(FigureUnit::Count, |term| {
            result
                .figure(&term.figure)
                .map_or(FigureUnit::Count, |f| f.unit)
        });
        let holds = rule.comparison.holds(left, right);
        let assignments: Vec<String> = setting.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let prefix = match assignments.is_empty() {
            true => String::new(),
            false => format!("{}: ", assignments.join(" ")),
        };
        let comparison = match holds {
            true => rule.comparison.symbol().to_owned(),
            false => format!("is not {}", rule.comparison.symbol()),
        };
        let text = match compare_multiple(&rule, left, right) {
            Some((base, measured, expected)) => format!(
                "{prefix}{} is {measured} times {}; {} {expected} was expected",
                format_value(unit, left),
                format_value(unit, base),
                rule.comparison.describe()
            ),
            None => format!(
                "{prefix}{} {comparison} {}",
                format_value(unit, left),
                format_value(unit, right)
            ),
        };
        match holds {
            true => held.push(text),
            false => missed.push(text),
        }
    }
    let listed = if missed.is_empty() { &held } else { &missed };
    verdict.state = match (missed.is_empty(), held.is_empty()) {
        (false, _) => ShapeState::Misses,
        (true, false) => ShapeState::Holds,
        (true, true) => ShapeState::Untested,
    };
    verdict.caveats = caveats.summarize();
    verdict.measured = listed[..listed.len().min(MAX_LISTED)].join("; ");
    if listed.len() > MAX_LISTED {
        verdict
            .measured
            .push_str(&format!("; {} more", listed.len() - MAX_LISTED));
    }
    match verdict.state {
        ShapeState::Untested => {
            verdict.measured = untested_reason(&rule, result, shape.core_distance)
        }
        ShapeState::Misses => verdict.why.clone_from(&shape.reason),
        ShapeState::Holds => {
            let conclusion = ConclusionSentence::parse(&shape.conclusion);
            let conclusion = conclusion.expect("it was read when the file was checked");
            let sentence = conclusion.fill(result, shape.core_distance);
            verdict.conclusion = sentence.unwrap_or_default();
        }
    }
    verdict
}

/// Reason why an assertion could not be evaluated.
///
/// A term without any measured point is the reason, whatever the distance of the CPUs was.
fn untested_reason(
    rule: &AssertionRule,
    result: &ExperimentResult,
    core_distance: Option<CoreDistance>,
) -> String {
    let skip_reason = rule.terms().find_map(|term| {
        let points: Vec<&ExperimentPoint> = result.matching_points(&term.setting).collect();
        let measured = |point: &&ExperimentPoint| point.figures.contains_key(&term.figure);
        let reason = || points.iter().find_map(|point| point.skipped.as_deref());
        (!points.iter().any(measured)).then(reason).flatten()
    });
    let message = match (skip_reason, core_distance) {
        (Some(ExperimentPoint::NOT_REACHED), _) => "its points were not measured",
        (Some(reason), _) => return format!("its points were not measured: {reason}"),
        (None, None) => "its points were not measured",
        (None, Some(CoreDistance::Near)) => {
            "its points were not measured while the CPUs shared a cache"
        }
        (None, Some(CoreDistance::Far)) => {
            "its points were not measured while the CPUs shared no cache"
        }
    };
    message.to_owned()
}

/// For a comparison with a multiple of another figure: that figure, the measured factor and the
/// expected one.
fn compare_multiple(rule: &AssertionRule, left: f64, right: f64) -> Option<(f64, String, String)> {
    let ([left_term], [right_term]) = (&rule.left.terms[..], &rule.right.terms[..]) else {
        return None;
    };
    let is_plain = rule.left.constant == 0.0 && rule.right.constant == 0.0;
    let base = right / right_term.factor;
    if !is_plain
        || left_term.factor != 1.0
        || right_term.factor == 1.0
        || base.is_nan()
        || base <= 0.0
    {
        return None;
    }
    let format_factor = |ratio: f64| match ratio {
        r if r >= 10.0 => format!("{r:.0}"),
        r if r >= 0.1 || r == 0.0 => format_value(FigureUnit::Count, (r * 100.0).round() / 100.0),
        r if r < 0.001 => "less than 0.001".to_owned(),
        r => format_value(FigureUnit::Count, (r * 1e3).round() / 1e3),
    };
    let (measured, expected) = format_distinct(left / base, right_term.factor, format_factor);
    Some((base, measured, expected))
}

/// Formats two numbers, with more digits if they differ but would look equal.
fn format_distinct(first: f64, second: f64, text: impl Fn(f64) -> String) -> (String, String) {
    let short = (text(first), text(second));
    if short.0 != short.1 {
        return short;
    }
    let mut with_digits =
        (1..=6).map(|digits| (format!("{first:.digits$}"), format!("{second:.digits$}")));
    with_digits
        .find(|(first, second)| first != second)
        .unwrap_or(short)
}

/// Knobs with the values that occur in `settings`, in the order of the file.
pub(crate) fn used_knobs(experiment: &Experiment, settings: &[KnobValues]) -> Vec<KnobAxis> {
    experiment
        .knobs
        .iter()
        .map(|knob| {
            let used: BTreeSet<&String> =
                settings.iter().filter_map(|s| s.get(&knob.name)).collect();
            KnobAxis {
                name: knob.name.clone(),
                values: knob
                    .values
                    .iter()
                    .filter(|v| used.contains(v))
                    .cloned()
                    .collect(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use linerate_record::experiment::{ExperimentPoint, FigureSpec};
    use linerate_record::ids::CaveatId;
    use linerate_record::record::Caveat;
    use linerate_stats::statistics::estimate;

    use super::*;

    fn result(points: &[(&str, &str, f64)]) -> ExperimentResult {
        let setting = |hops: &str, socket: &str| {
            KnobValues::from([
                ("hops".into(), hops.into()),
                ("socket".into(), socket.into()),
            ])
        };
        let knob = |name: &str, values: &[&str]| KnobAxis {
            name: name.into(),
            values: values.iter().map(|v| (*v).to_owned()).collect(),
        };
        ExperimentResult {
            knobs: vec![
                knob("hops", &["0", "1", "2"]),
                knob("socket", &["reused", "reopened"]),
            ],
            figures: vec![FigureSpec {
                name: "p50".into(),
                unit: FigureUnit::Nanos,
                description: String::new(),
                exact: false,
            }],
            points: points
                .iter()
                .map(|&(hops, socket, value)| ExperimentPoint {
                    setting: setting(hops, socket),
                    figures: [("p50".to_owned(), estimate(&[value]).unwrap())].into(),
                    ..ExperimentPoint::default()
                })
                .collect(),
            ..ExperimentResult::default()
        }
    }

    const TWO_CORES: usize = 2;

    fn any_experiment() -> Experiment {
        Experiment::from_toml(crate::builtin::BUILTIN_EXPERIMENTS[0].1).unwrap()
    }

    fn state(rule: &str, result: &ExperimentResult) -> ShapeState {
        let shape = ShapeAssertion {
            description: String::new(),
            rule: rule.into(),
            reason: "because".into(),
            conclusion: String::new(),
            min_cores: 0,
            core_distance: None,
        };
        let verdict = evaluate_shape(&any_experiment(), &shape, result, &[], TWO_CORES);
        assert_eq!(verdict.why.is_empty(), verdict.state != ShapeState::Misses);
        verdict.state
    }

    /// The virtual machine had two states, and each median belongs to the state of two of three
    /// runs.
    #[test]
    fn a_slope_is_that_of_the_runs_and_not_of_their_medians() {
        let medians = [("0", 15.4), ("2", 13.5), ("4", 15.2)];
        let each = [[10.4, 15.4, 15.7], [13.5, 13.5, 18.2], [15.2, 15.1, 20.8]];
        let mut result = result(&medians.map(|(hops, p50)| (hops, "reused", p50)));
        let rule = "slope(p50 over hops) > 1.2ns";
        assert_eq!(state(rule, &result), ShapeState::Misses);
        for (point, values) in result.points.iter_mut().zip(each) {
            point.values.insert("p50".to_owned(), values.to_vec());
        }
        assert_eq!(state(rule, &result), ShapeState::Holds);
    }

    #[test]
    fn rules_hold_for_every_combination_that_was_measured() {
        use ShapeState::{Holds, Misses, Untested};
        let result = result(&[
            ("0", "reused", 100e3),
            ("1", "reused", 110e3),
            ("2", "reused", 120e3),
            ("0", "reopened", 150e3),
            ("2", "reopened", 149e3),
        ]);
        for (rule, expected) in [
            ("slope(p50[socket=reused] over hops) > 9us", Holds),
            ("slope(p50 over hops) > 0", Misses),
            ("p50[socket=reopened] > p50[socket=reused]", Holds),
            ("p50[socket=reopened] > 1.4 * p50[socket=reused]", Misses),
            ("p50[hops=1,socket=reopened] > 0", Untested),
            ("max(p50 over hops) <= 150us", Holds),
            (
                "last(p50[socket=reused] over hops) - first(p50[socket=reused] over hops) <= 20us",
                Holds,
            ),
        ] {
            assert_eq!(state(rule, &result), expected, "{rule}");
        }
    }

    /// A single added point is not compared with itself.
    #[test]
    fn one_point_is_not_a_series() {
        use ShapeState::{Holds, Misses, Untested};
        let result = result(&[("1", "reused", 110e3)]);
        for (rule, expected) in [
            (
                "last(p50[socket=reused] over hops) > first(p50[socket=reused] over hops)",
                Untested,
            ),
            ("max(p50 over hops) > 1.5 * min(p50 over hops)", Untested),
            ("slope(p50 over hops) > 0", Untested),
            ("max(p50 over hops) < 120us", Holds),
            ("max(p50 over hops) < 100us", Misses),
            (
                "last(p50[socket=reused] over hops) > first(p50 over hops)",
                Untested,
            ),
        ] {
            assert_eq!(state(rule, &result), expected, "{rule}");
        }
    }

    /// Two series of one point each are compared with one another.
    #[test]
    fn series_of_one_point_each_are_compared() {
        use ShapeState::{Holds, Misses};
        let result = result(&[("1", "reused", 110e3), ("1", "reopened", 150e3)]);
        for (rule, expected) in [
            (
                "max(p50[socket=reopened] over hops) >= 1.2 * max(p50[socket=reused] over hops)",
                Holds,
            ),
            (
                "max(p50[socket=reopened] over hops) >= 1.5 * max(p50[socket=reused] over hops)",
                Misses,
            ),
        ] {
            assert_eq!(state(rule, &result), expected, "{rule}");
        }
    }

    #[test]
    fn a_multiple_is_reported_with_the_measured_factor() {
        let result = result(&[("0", "reused", 100e3), ("0", "reopened", 57e3)]);
        let shape = |rule: &str| {
            let shape = ShapeAssertion {
                description: String::new(),
                rule: rule.into(),
                reason: String::new(),
                conclusion: String::new(),
                min_cores: 0,
                core_distance: None,
            };
            evaluate_shape(&any_experiment(), &shape, &result, &[], TWO_CORES).measured
        };
        assert_eq!(
            shape("p50[hops=0,socket=reopened] <= 1.2 * p50[hops=0,socket=reused]"),
            "57.0 us is 0.57 times 100 us; at most 1.2 was expected"
        );
        assert_eq!(
            shape("p50[hops=0,socket=reused] >= 20 * p50[hops=0,socket=reopened]"),
            "100 us is 1.75 times 57.0 us; at least 20 was expected"
        );
        // Rounded, the measured factor would equal the expected one although it misses it.
        assert_eq!(
            shape("p50[hops=0,socket=reused] >= 1.7547 * p50[hops=0,socket=reopened]"),
            "100 us is 1.754 times 57.0 us; at least 1.755 was expected"
        );
    }

    #[test]
    fn published_directions_are_compared_with_measured_ones() {
        let setting = |hops: &str, socket: &str| {
            KnobValues::from([
                ("hops".into(), hops.into()),
                ("socket".into(), socket.into()),
            ])
        };
        let published = |hops, socket, value, measured| PublishedFigure {
            setting: setting(hops, socket),
            figure: "p50".into(),
            value,
            on: "a board".into(),
            measured,
        };
        let all = [
            published("0", "reused", 495.0, Some(219.0)),
            published("1", "reopened", 1.0, Some(1.0)),
            published("1", "reused", 518.0, Some(122.0)),
            published("2", "reused", 990.0, Some(500.0)),
            published("3", "reused", 990.0, None),
        ];
        let mut experiment = any_experiment();
        let one = experiment.published[0].clone();
        experiment.published = vec![one; all.len()];
        experiment.published[2].reason = "one CPU".into();
        let trends = published_trends(&experiment, &all);
        let actual: Vec<_> = (trends.iter())
            .map(|t| (t.from.as_str(), t.to.as_str(), t.agrees, t.why.as_str()))
            .collect();
        // (1, reopened) differs in two knobs from the first, and (1, reused) in one knob from both.
        assert_eq!(
            actual,
            [
                ("0", "1", Some(false), "one CPU"),
                ("reopened", "reused", Some(true), ""),
                ("0", "2", Some(true), ""),
                ("0", "3", None, "")
            ]
        );
    }

    /// The file gives a reason for each published direction that may differ here.
    #[test]
    fn builtin_experiments_explain_differing_directions() {
        for (name, text) in crate::builtin::BUILTIN_EXPERIMENTS {
            let experiment = Experiment::from_toml(text).unwrap();
            let published: Vec<PublishedFigure> = (experiment.published.iter())
                .map(|published| {
                    let value = experiment.published_value(published).unwrap();
                    PublishedFigure {
                        setting: published.setting.clone(),
                        figure: published.figure.clone(),
                        value,
                        on: published.measured_on.clone(),
                        measured: Some(value.powi(-5)),
                    }
                })
                .collect();
            for trend in published_trends(&experiment, &published) {
                assert_eq!(trend.agrees, Some(false), "{name}: {trend:?}");
                assert!(!trend.why.is_empty(), "{name}: {trend:?}");
            }
        }
    }

    /// A verdict lists the caveats of its own runs only.
    #[test]
    fn a_verdict_names_the_caveats_of_its_own_runs() {
        let text = include_str!("../../report/tests/fixtures/run-1.json");
        let run = |id: &str, caveats: &[CaveatId]| {
            let mut run: Record = serde_json::from_str(text).unwrap();
            run.id = id.to_owned();
            run.validity = (caveats.iter()).map(|&id| Caveat::new(id, "")).collect();
            run
        };
        let runs = [
            run("a", &[CaveatId::Steal, CaveatId::NoStages]),
            run("b", &[CaveatId::Steal, CaveatId::Steal, CaveatId::ThinTail]),
            run("c", &[CaveatId::CoreDisturbed]),
        ];
        let mut result = result(&[
            ("0", "reused", 100e3),
            ("1", "reused", 110e3),
            ("2", "reused", 120e3),
        ]);
        for (point, id) in result.points.iter_mut().zip(["a", "b", "c"]) {
            point.runs = vec![id.to_owned()];
        }
        let caveats_of = |experiment: &Experiment, rule: &str| {
            let shape = ShapeAssertion {
                description: String::new(),
                rule: rule.into(),
                reason: String::new(),
                conclusion: String::new(),
                min_cores: 0,
                core_distance: None,
            };
            evaluate_shape(experiment, &shape, &result, &runs, TWO_CORES).caveats
        };
        let mut experiment = any_experiment();
        let two = "p50[hops=1,socket=reused] > p50[hops=0,socket=reused]";
        assert_eq!(caveats_of(&experiment, two), ["steal in 2 of 2 runs"]);
        let line = "slope(p50[socket=reused] over hops) > 0";
        let all = ["steal in 2 of 3 runs", "core-disturbed in 1 of 3 runs"];
        assert_eq!(caveats_of(&experiment, line), all);
        let one = "p50[hops=1,socket=reused] > 1";
        assert_eq!(caveats_of(&experiment, one), ["steal in its run"]);
        // The same figure read from a tail percentile, then marked as computed.
        experiment.figures[0].name = "p50".to_owned();
        experiment.figures[0].pointers = vec!["/summary/rtt_ns/p99".to_owned()];
        let tail = ["steal in its run", "thin-tail in its run"];
        assert_eq!(caveats_of(&experiment, one), tail);
        experiment.figures[0].is_exact = true;
        assert!(caveats_of(&experiment, one).is_empty());
    }

    #[test]
    fn too_few_processors_are_no_failure() {
        let shape = ShapeAssertion {
            description: String::new(),
            rule: "p50 > 1".into(),
            reason: String::new(),
            conclusion: String::new(),
            min_cores: 64,
            core_distance: None,
        };
        let verdict = evaluate_shape(
            &any_experiment(),
            &shape,
            &result(&[("0", "reused", 1.0)]),
            &[],
            TWO_CORES,
        );
        assert_eq!(verdict.state, ShapeState::Untested);
        assert!(verdict.measured.contains("64 CPUs"));
    }

    #[test]
    fn the_skip_reason_explains_an_untested_shape() {
        let root = "AF_XDP (it takes root)";
        for (reason, core_distance, expected_text) in [
            (Some(root), None, "its points were not measured: AF_XDP"),
            (Some(root), Some(CoreDistance::Near), "not measured: AF_XDP"),
            (
                Some(ExperimentPoint::NOT_REACHED),
                None,
                "its points were not measured",
            ),
            (
                None,
                Some(CoreDistance::Near),
                "while the CPUs shared a cache",
            ),
        ] {
            let mut result = result(&[("0", "reused", 1.0)]);
            result.points.extend(reason.map(|reason| ExperimentPoint {
                setting: KnobValues::from([
                    ("hops".into(), "0".into()),
                    ("socket".into(), "reopened".into()),
                ]),
                skipped: Some(reason.to_owned()),
                ..ExperimentPoint::default()
            }));
            let shape = ShapeAssertion {
                description: String::new(),
                rule: "p50[hops=0,socket=reused] > p50[hops=0,socket=reopened]".into(),
                reason: String::new(),
                conclusion: String::new(),
                min_cores: 0,
                core_distance,
            };
            let verdict = evaluate_shape(&any_experiment(), &shape, &result, &[], TWO_CORES);
            assert_eq!(verdict.state, ShapeState::Untested);
            let measured = verdict.measured;
            assert!(measured.contains(expected_text), "{reason:?}: {measured}");
            assert!(!measured.contains("interrupted"), "{measured}");
        }
    }

    /// A series may have been measured in one state of the machine, and the other in both.
    #[test]
    fn a_shape_of_processors_with_a_shared_cache_uses_their_runs_only() {
        use CoreDistance::{Far, Near};
        use ShapeState::{Holds, Misses, Untested};
        let mut result = result(&[
            ("0", "reused", 1.0),
            ("1", "reused", 1.0),
            ("2", "reused", 1.0),
        ]);
        // Over all runs the medians fall.
        for (point, (near_values, far_values)) in (result.points.iter_mut()).zip([
            (vec![2.0, 2.0], vec![1.0]),
            (vec![4.0], vec![1.0, 1.0]),
            (vec![], vec![5.0]),
        ]) {
            let all = [near_values.clone(), far_values.clone()].concat();
            point.figures = [("p50".to_owned(), estimate(&all).unwrap())].into();
            point.values = [("p50".to_owned(), all)].into();
            let values_by_distance = [(Near, near_values), (Far, far_values)].into_iter();
            let values_by_distance = values_by_distance.filter(|(_, values)| !values.is_empty());
            point.values_at = values_by_distance
                .map(|(distance, values)| (distance, [("p50".to_owned(), values)].into()))
                .collect();
        }
        let scales = "p50[hops=1] >= 2 * p50[hops=0]";
        let highest = "max(p50 over hops) >= 2 * p50[hops=0]";
        for (rule, core_distance, expected, expected_text) in [
            (scales, Some(Near), Holds, "4.00 ns is 2 times 2.00 ns"),
            (scales, Some(Far), Misses, "1.00 ns is 1 times 1.00 ns"),
            (scales, None, Misses, "1.00 ns is 0.5 times 2.00 ns"),
            // The last point, which may be the highest, was not measured in this state.
            (
                highest,
                Some(Near),
                Untested,
                "while the CPUs shared a cache",
            ),
            (highest, Some(Far), Holds, "5.00 ns is 5 times 1.00 ns"),
            (
                "slope(p50 over hops) > 1ns",
                Some(Near),
                Untested,
                "shared a cache",
            ),
            ("slope(p50 over hops) > 1ns", Some(Far), Holds, "2.00 ns"),
        ] {
            let shape = ShapeAssertion {
                description: String::new(),
                rule: rule.into(),
                reason: "because".into(),
                conclusion: String::new(),
                min_cores: 2,
                core_distance,
            };
            let verdict = evaluate_shape(&any_experiment(), &shape, &result, &[], TWO_CORES);
            assert_eq!(
                verdict.state, expected,
                "{rule} {core_distance:?}: {verdict:?}"
            );
            assert!(
                verdict.measured.contains(expected_text),
                "{rule}: {}",
                verdict.measured
            );
        }
        // The distance of the CPUs is unknown.
        result
            .points
            .iter_mut()
            .for_each(|point| point.values_at.clear());
        let shape = ShapeAssertion {
            description: String::new(),
            rule: scales.into(),
            reason: String::new(),
            conclusion: String::new(),
            min_cores: 2,
            core_distance: Some(Far),
        };
        let verdict = evaluate_shape(&any_experiment(), &shape, &result, &[], TWO_CORES);
        assert!(
            verdict.measured.contains("shared no cache"),
            "{}",
            verdict.measured
        );
    }
}
