//! Verdicts: evaluation of assertions and comparison with published figures.

use std::collections::BTreeSet;

use linerate_metric::expect::Unit;
use linerate_metric::experiment::{
    Distance, ExperimentResult, Knob, Point, Published, Setting, Shape, ShapeState, Trend, number,
};
use linerate_metric::record::Record;
use linerate_metric::statistics::{median, slope};

use crate::caveats::Ground;
use crate::file::{Experiment, ShapeOf};
use crate::rule::{Along, Rule, Sum, Term};
use crate::run::INTERRUPTED;

/// Maximum number of combinations listed in a verdict.
const LISTED: usize = 4;

/// Fills in the verdicts and the values measured for published figures.
pub(crate) fn judge(
    experiment: &Experiment,
    result: &mut ExperimentResult,
    runs: &[Record],
    cores: usize,
) {
    result.shapes = experiment
        .shapes
        .iter()
        .map(|shape| verdict(experiment, shape, result, runs, cores))
        .collect();
    result.published = experiment
        .published
        .iter()
        .map(|published| {
            let mut fitting = result.fitting(&published.setting);
            let measured = fitting.find_map(|point| point.figures.get(&published.figure));
            Published {
                setting: published.setting.clone(),
                figure: published.figure.clone(),
                value: experiment
                    .value_of(published)
                    .expect("it was read when the file was checked"),
                on: published.on.clone(),
                measured: measured.map(|figure| figure.median),
            }
        })
        .collect();
    let mut trends = trends(experiment, &result.published);
    for trend in trends.iter_mut().filter(|trend| trend.agrees.is_some()) {
        let mut ground = Ground::new(experiment, runs);
        for value in [&trend.from, &trend.to] {
            let mut setting = trend.at.clone();
            setting.insert(trend.knob.clone(), value.clone());
            ground.rests_on(result, &setting, &trend.figure);
        }
        trend.doubts = ground.doubts();
    }
    result.trends = trends;
}

/// Ratio below which a change counts as none.
const SAME: f64 = 1.1;

/// Direction of a change: 1 up, -1 down, 0 neither.
fn way(ratio: f64) -> i8 {
    i8::from(ratio > SAME) - i8::from(ratio < 1.0 / SAME)
}

/// Trends of published figures: the change from the first figure that differs by one knob.
fn trends(experiment: &Experiment, published: &[Published]) -> Vec<Trend> {
    let mut trends = Vec::new();
    for (position, after) in published.iter().enumerate() {
        let earlier = published[..position].iter().enumerate();
        let moved = earlier.filter(|(_, before)| {
            before.figure == after.figure && before.on == after.on && before.value > 0.0
        });
        let moved = moved.filter_map(|(at, before)| {
            let knob = only_difference(&before.setting, &after.setting)?;
            Some((at, before, knob))
        });
        let mut seen: Vec<String> = Vec::new();
        for (at, before, knob) in moved {
            if seen.contains(&knob) {
                continue;
            }
            seen.push(knob.clone());
            trends.push(trend(experiment, (at, before), (position, after), knob));
        }
    }
    trends
}

/// Trend of a published figure with one knob, compared with the measured one.
fn trend(
    experiment: &Experiment,
    (at, before): (usize, &Published),
    (position, after): (usize, &Published),
    knob: String,
) -> Trend {
    let there = after.value / before.value;
    let here = (before.measured.zip(after.measured))
        .filter(|(before, _)| *before > 0.0)
        .map(|(before, after)| after / before);
    let agrees = here.map(|here| way(here) == way(there));
    let mut stands = after.setting.clone();
    stands.remove(&knob);
    let why = [position, at].map(|place| experiment.published[place].why.as_str());
    let why = why.into_iter().find(|why| !why.is_empty());
    Trend {
        figure: after.figure.clone(),
        at: stands,
        from: before.setting[&knob].clone(),
        to: after.setting[&knob].clone(),
        knob,
        published: there,
        measured: here,
        agrees,
        doubts: Vec::new(),
        why: match agrees {
            Some(false) => why.unwrap_or_default().to_owned(),
            _ => String::new(),
        },
    }
}

/// Knob in which two settings of the same knobs differ, if it is exactly one.
fn only_difference(one: &Setting, other: &Setting) -> Option<String> {
    if !one.keys().eq(other.keys()) {
        return None;
    }
    let mut differ = one.iter().filter(|(knob, value)| other[*knob] != **value);
    let (knob, _) = differ.next()?;
    differ.next().is_none().then(|| knob.clone())
}

fn verdict(
    experiment: &Experiment,
    shape: &ShapeOf,
    result: &ExperimentResult,
    runs: &[Record],
    cores: usize,
) -> Shape {
    let mut verdict = Shape {
        says: shape.says.clone(),
        rule: shape.rule.clone(),
        state: ShapeState::Untested,
        measured: String::new(),
        doubts: Vec::new(),
        why: String::new(),
    };
    if cores < shape.cores {
        let needs = shape.cores;
        verdict.measured = format!("needs {needs} processors, this machine has {cores}");
        return verdict;
    }
    let rule = Rule::parse(&shape.rule).expect("it was read when the file was checked");
    let mut told = Vec::new();
    let mut missed = Vec::new();
    let mut ground = Ground::new(experiment, runs);
    for setting in combinations(&open_knobs(&rule, &result.knobs)) {
        let (Some(left), Some(right)) = (
            add_up(&rule.left, &setting, (result, shape.processors), &rule),
            add_up(&rule.right, &setting, (result, shape.processors), &rule),
        ) else {
            continue;
        };
        for term in rule.terms() {
            let mut asked = setting.clone();
            if let Some((_, over)) = &term.over {
                asked.remove(over);
            }
            asked.extend(term.setting.clone());
            ground.rests_on(result, &asked, &term.figure);
        }
        let unit = rule.terms().next().map_or(Unit::Count, |term| {
            result.figure(&term.figure).map_or(Unit::Count, |f| f.unit)
        });
        let holds = rule.sign.holds(left, right);
        let named: Vec<String> = setting.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let place = match named.is_empty() {
            true => String::new(),
            false => format!("{}: ", named.join(" ")),
        };
        let sign = match holds {
            true => rule.sign.text().to_owned(),
            false => format!("is not {}", rule.sign.text()),
        };
        let text = match ratio(&rule, left, right) {
            Some((than, measured, asked)) => format!(
                "{place}{} is {measured} times {}; {} {asked} was expected",
                written(unit, left),
                written(unit, than),
                rule.sign.words()
            ),
            None => format!(
                "{place}{} {sign} {}",
                written(unit, left),
                written(unit, right)
            ),
        };
        match holds {
            true => told.push(text),
            false => missed.push(text),
        }
    }
    let listed = if missed.is_empty() { &told } else { &missed };
    verdict.state = match (missed.is_empty(), told.is_empty()) {
        (false, _) => ShapeState::Misses,
        (true, false) => ShapeState::Holds,
        (true, true) => ShapeState::Untested,
    };
    verdict.doubts = ground.doubts();
    verdict.measured = listed[..listed.len().min(LISTED)].join("; ");
    if listed.len() > LISTED {
        verdict
            .measured
            .push_str(&format!("; {} more", listed.len() - LISTED));
    }
    match verdict.state {
        ShapeState::Untested => verdict.measured = unmeasured(&rule, result, shape.processors),
        ShapeState::Misses => verdict.why.clone_from(&shape.why),
        ShapeState::Holds => {}
    }
    verdict
}

/// Reason why an assertion could not be evaluated.
///
/// A term without any measured point is the reason, whatever the distance of the CPUs was.
fn unmeasured(rule: &Rule, result: &ExperimentResult, processors: Option<Distance>) -> String {
    let left_out = rule.terms().find_map(|term| {
        let points: Vec<&Point> = result.fitting(&term.setting).collect();
        let measured = |point: &&Point| point.figures.contains_key(&term.figure);
        let because = || points.iter().find_map(|point| point.skipped.as_deref());
        (!points.iter().any(measured)).then(because).flatten()
    });
    let said = match (left_out, processors) {
        (Some(because), _) if because == INTERRUPTED => "its points were not measured",
        (Some(because), _) => return format!("its points were not measured: {because}"),
        (None, None) => "its points were not measured",
        (None, Some(Distance::Near)) => {
            "its points were not measured while the processors were near each other"
        }
        (None, Some(Distance::Far)) => {
            "its points were not measured while the processors were far apart"
        }
    };
    said.to_owned()
}

/// For a comparison with a multiple of another figure: that figure, the measured factor and the
/// expected one.
fn ratio(rule: &Rule, left: f64, right: f64) -> Option<(f64, String, String)> {
    let ([one], [other]) = (&rule.left.terms[..], &rule.right.terms[..]) else {
        return None;
    };
    let plain = rule.left.constant == 0.0 && rule.right.constant == 0.0;
    let than = right / other.factor;
    if !plain || one.factor != 1.0 || other.factor == 1.0 || than.is_nan() || than <= 0.0 {
        return None;
    }
    let times = |ratio: f64| match ratio {
        r if r >= 10.0 => format!("{r:.0}"),
        r if r >= 0.1 || r == 0.0 => written(Unit::Count, (r * 100.0).round() / 100.0),
        r if r < 0.001 => "less than 0.001".to_owned(),
        r => written(Unit::Count, (r * 1e3).round() / 1e3),
    };
    let (measured, asked) = apart(left / than, other.factor, times);
    Some((than, measured, asked))
}

/// Formats two numbers, with more digits if they differ but would look equal.
fn apart(one: f64, other: f64, text: impl Fn(f64) -> String) -> (String, String) {
    let short = (text(one), text(other));
    if short.0 != short.1 {
        return short;
    }
    let mut longer = (1..=6).map(|digits| (format!("{one:.digits$}"), format!("{other:.digits$}")));
    longer.find(|(one, other)| one != other).unwrap_or(short)
}

fn written(unit: Unit, value: f64) -> String {
    match unit {
        // Differences and slopes may be negative, and the unit's own format has no sign.
        _ if value < 0.0 => format!("-{}", written(unit, -value)),
        Unit::Count => format!("{value:.6}")
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned(),
        unit => unit.format(value),
    }
}

/// Knobs that a term of the rule leaves open.
fn open_knobs<'a>(rule: &Rule, knobs: &'a [Knob]) -> Vec<&'a Knob> {
    let open = |knob: &&Knob| {
        rule.terms().any(|term| {
            let along = term
                .over
                .as_ref()
                .is_some_and(|(_, over)| *over == knob.name);
            !along && !term.setting.contains_key(&knob.name)
        })
    };
    knobs.iter().filter(open).collect()
}

/// Combinations of the values of some knobs, the first varying slowest.
fn combinations(knobs: &[&Knob]) -> Vec<Setting> {
    let mut settings = vec![Setting::new()];
    for knob in knobs {
        settings = settings
            .iter()
            .flat_map(|setting| {
                knob.values.iter().map(|value| {
                    let mut setting = setting.clone();
                    setting.insert(knob.name.clone(), value.clone());
                    setting
                })
            })
            .collect();
    }
    settings
}

/// Results, with the CPU distance to which they are restricted.
type Seen<'a> = (&'a ExperimentResult, Option<Distance>);

fn add_up(sum: &Sum, setting: &Setting, seen: Seen<'_>, rule: &Rule) -> Option<f64> {
    let mut total = sum.constant;
    for term in &sum.terms {
        // With one point only, first and last, or maximum and minimum, are the same figure.
        let twice = rule
            .terms()
            .filter(|other| is_of_same_points(term, other, setting));
        let least = if twice.count() > 1 { 2 } else { 1 };
        total += term.factor * read(term, setting, seen, least)?;
    }
    Some(total)
}

/// Returns whether two terms under a setting aggregate one figure over one knob at the same points.
fn is_of_same_points(one: &Term, other: &Term, setting: &Setting) -> bool {
    let Some((_, knob)) = &one.over else {
        return false;
    };
    let at = |term: &Term| {
        let mut at = setting.clone();
        at.extend(term.setting.clone());
        at.remove(knob);
        at
    };
    let over = other.over.as_ref().is_some_and(|(_, over)| over == knob);
    over && one.figure == other.figure && at(one) == at(other)
}

/// Values of a figure in the runs of a point that count.
fn each(point: &Point, figure: &str, processors: Option<Distance>) -> Vec<f64> {
    match processors {
        None => point.each(figure),
        Some(processors) => {
            let values = point
                .values_at
                .get(&processors)
                .and_then(|all| all.get(figure));
            values.cloned().unwrap_or_default()
        }
    }
}

/// Value of a term under a setting.
///
/// `None` if a point was not measured at the required CPU distance, or if an aggregate has fewer
/// than
/// `least` points.
fn read(
    term: &Term,
    setting: &Setting,
    (result, processors): Seen<'_>,
    least: usize,
) -> Option<f64> {
    let mut asked = setting.clone();
    asked.extend(term.setting.clone());
    let has = |point: &&Point| point.figures.contains_key(&term.figure);
    let each = |point: &Point| each(point, &term.figure, processors);
    let Some((along, knob)) = &term.over else {
        return median(&each(result.fitting(&asked).find(has)?));
    };
    let knob = result.knobs.iter().find(|known| known.name == *knob)?;
    let known: Vec<(f64, Vec<f64>)> = knob
        .values
        .iter()
        .enumerate()
        .filter_map(|(position, value)| {
            asked.insert(knob.name.clone(), value.clone());
            let point = result.fitting(&asked).find(has)?;
            Some((number(value).unwrap_or(position as f64), each(point)))
        })
        .collect();
    if known.len() < least {
        return None;
    }
    let medians: Option<Vec<f64>> = known.iter().map(|(_, values)| median(values)).collect();
    let mut medians = medians?.into_iter();
    match along {
        Along::Max => medians.reduce(f64::max),
        Along::Min => medians.reduce(f64::min),
        Along::First => medians.next(),
        Along::Last => medians.next_back(),
        Along::Slope => {
            let runs = |(x, values): &(f64, Vec<f64>)| {
                let x = *x;
                values.clone().into_iter().map(move |value| (x, value))
            };
            slope(&known.iter().flat_map(runs).collect::<Vec<_>>())
        }
    }
}

/// Knobs with the values that occur in `settings`, in the order of the file.
pub(crate) fn knobs_of(experiment: &Experiment, settings: &[Setting]) -> Vec<Knob> {
    experiment
        .knobs
        .iter()
        .map(|knob| {
            let used: BTreeSet<&String> =
                settings.iter().filter_map(|s| s.get(&knob.name)).collect();
            Knob {
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
    use super::*;
    use linerate_metric::experiment::{FigureOf, Point};
    use linerate_metric::record::Doubt;
    use linerate_metric::statistics::estimate;

    fn result(points: &[(&str, &str, f64)]) -> ExperimentResult {
        let setting = |hops: &str, socket: &str| {
            Setting::from([
                ("hops".into(), hops.into()),
                ("socket".into(), socket.into()),
            ])
        };
        let knob = |name: &str, values: &[&str]| Knob {
            name: name.into(),
            values: values.iter().map(|v| (*v).to_owned()).collect(),
        };
        ExperimentResult {
            knobs: vec![
                knob("hops", &["0", "1", "2"]),
                knob("socket", &["reused", "reopened"]),
            ],
            figures: vec![FigureOf {
                name: "p50".into(),
                unit: Unit::Nanos,
                says: String::new(),
                exact: false,
            }],
            points: points
                .iter()
                .map(|&(hops, socket, value)| Point {
                    setting: setting(hops, socket),
                    figures: [("p50".to_owned(), estimate(&[value]).unwrap())].into(),
                    ..Point::default()
                })
                .collect(),
            ..ExperimentResult::default()
        }
    }

    const TWO: usize = 2;

    fn any() -> Experiment {
        Experiment::from_toml(crate::builtin::SHIPPED[0].1).unwrap()
    }

    fn state(rule: &str, result: &ExperimentResult) -> ShapeState {
        let shape = ShapeOf {
            says: String::new(),
            rule: rule.into(),
            why: "because".into(),
            cores: 0,
            processors: None,
        };
        let verdict = verdict(&any(), &shape, result, &[], TWO);
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
        for (rule, want) in [
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
            assert_eq!(state(rule, &result), want, "{rule}");
        }
    }

    /// A single added point is not compared with itself.
    #[test]
    fn one_point_is_no_line() {
        use ShapeState::{Holds, Misses, Untested};
        let result = result(&[("1", "reused", 110e3)]);
        for (rule, want) in [
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
            assert_eq!(state(rule, &result), want, "{rule}");
        }
    }

    /// Two series of one point each are compared with one another.
    #[test]
    fn a_line_may_be_one_point_beside_another_line() {
        use ShapeState::{Holds, Misses};
        let result = result(&[("1", "reused", 110e3), ("1", "reopened", 150e3)]);
        for (rule, want) in [
            (
                "max(p50[socket=reopened] over hops) >= 1.2 * max(p50[socket=reused] over hops)",
                Holds,
            ),
            (
                "max(p50[socket=reopened] over hops) >= 1.5 * max(p50[socket=reused] over hops)",
                Misses,
            ),
        ] {
            assert_eq!(state(rule, &result), want, "{rule}");
        }
    }

    #[test]
    fn a_multiple_is_told_with_the_one_that_was_measured() {
        let result = result(&[("0", "reused", 100e3), ("0", "reopened", 57e3)]);
        let shape = |rule: &str| {
            let shape = ShapeOf {
                says: String::new(),
                rule: rule.into(),
                why: String::new(),
                cores: 0,
                processors: None,
            };
            verdict(&any(), &shape, &result, &[], TWO).measured
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
    fn published_directions_are_held_against_those_measured() {
        let setting = |hops: &str, socket: &str| {
            Setting::from([
                ("hops".into(), hops.into()),
                ("socket".into(), socket.into()),
            ])
        };
        let published = |hops, socket, value, measured| Published {
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
        let mut experiment = any();
        let one = experiment.published[0].clone();
        experiment.published = vec![one; all.len()];
        experiment.published[2].why = "one processor".into();
        let trends = trends(&experiment, &all);
        let told: Vec<_> = (trends.iter())
            .map(|t| (t.from.as_str(), t.to.as_str(), t.agrees, t.why.as_str()))
            .collect();
        // (1, reopened) differs in two knobs from the first, and (1, reused) in one knob from both.
        assert_eq!(
            told,
            [
                ("0", "1", Some(false), "one processor"),
                ("reopened", "reused", Some(true), ""),
                ("0", "2", Some(true), ""),
                ("0", "3", None, "")
            ]
        );
    }

    /// The file gives a reason for each published direction that may differ here.
    #[test]
    fn shipped_experiments_say_why_each_direction_may_be_another() {
        for (name, text) in crate::builtin::SHIPPED {
            let experiment = Experiment::from_toml(text).unwrap();
            let published: Vec<Published> = (experiment.published.iter())
                .map(|published| {
                    let value = experiment.value_of(published).unwrap();
                    Published {
                        setting: published.setting.clone(),
                        figure: published.figure.clone(),
                        value,
                        on: published.on.clone(),
                        measured: Some(value.powi(-5)),
                    }
                })
                .collect();
            for trend in trends(&experiment, &published) {
                assert_eq!(trend.agrees, Some(false), "{name}: {trend:?}");
                assert!(!trend.why.is_empty(), "{name}: {trend:?}");
            }
        }
    }

    /// A verdict lists the caveats of its own runs only.
    #[test]
    fn a_verdict_names_the_doubts_of_its_own_runs() {
        let text = include_str!("../../report/tests/fixtures/run-1.json");
        let run = |id: &str, doubts: &[&str]| {
            let mut run: Record = serde_json::from_str(text).unwrap();
            run.id = id.to_owned();
            run.validity = (doubts.iter()).map(|kind| Doubt::new(kind, "")).collect();
            run
        };
        let runs = [
            run("a", &["steal", "no-stages"]),
            run("b", &["steal", "steal", "thin-tail"]),
            run("c", &["core-disturbed"]),
        ];
        let mut result = result(&[
            ("0", "reused", 100e3),
            ("1", "reused", 110e3),
            ("2", "reused", 120e3),
        ]);
        for (point, id) in result.points.iter_mut().zip(["a", "b", "c"]) {
            point.runs = vec![id.to_owned()];
        }
        let told = |experiment: &Experiment, rule: &str| {
            let shape = ShapeOf {
                says: String::new(),
                rule: rule.into(),
                why: String::new(),
                cores: 0,
                processors: None,
            };
            verdict(experiment, &shape, &result, &runs, TWO).doubts
        };
        let mut experiment = any();
        let two = "p50[hops=1,socket=reused] > p50[hops=0,socket=reused]";
        assert_eq!(told(&experiment, two), ["steal in 2 of 2 runs"]);
        let line = "slope(p50[socket=reused] over hops) > 0";
        let all = ["steal in 2 of 3 runs", "core-disturbed in 1 of 3 runs"];
        assert_eq!(told(&experiment, line), all);
        let one = "p50[hops=1,socket=reused] > 1";
        assert_eq!(told(&experiment, one), ["steal in its run"]);
        // The same figure read from a tail percentile, then marked as computed.
        experiment.figures[0].name = "p50".to_owned();
        experiment.figures[0].from = vec!["/summary/rtt_ns/p99".to_owned()];
        let tail = ["steal in its run", "thin-tail in its run"];
        assert_eq!(told(&experiment, one), tail);
        experiment.figures[0].exact = true;
        assert!(told(&experiment, one).is_empty());
    }

    #[test]
    fn too_few_processors_are_no_failure() {
        let shape = ShapeOf {
            says: String::new(),
            rule: "p50 > 1".into(),
            why: String::new(),
            cores: 64,
            processors: None,
        };
        let verdict = verdict(&any(), &shape, &result(&[("0", "reused", 1.0)]), &[], TWO);
        assert_eq!(verdict.state, ShapeState::Untested);
        assert!(verdict.measured.contains("64 processors"));
    }

    #[test]
    fn what_left_points_out_is_why_nothing_can_be_said() {
        let root = "AF_XDP (it takes root)";
        for (because, processors, says) in [
            (Some(root), None, "its points were not measured: AF_XDP"),
            (Some(root), Some(Distance::Near), "not measured: AF_XDP"),
            (Some(INTERRUPTED), None, "its points were not measured"),
            (None, Some(Distance::Near), "while the processors were near"),
        ] {
            let mut result = result(&[("0", "reused", 1.0)]);
            result.points.extend(because.map(|because| Point {
                setting: Setting::from([
                    ("hops".into(), "0".into()),
                    ("socket".into(), "reopened".into()),
                ]),
                skipped: Some(because.to_owned()),
                ..Point::default()
            }));
            let shape = ShapeOf {
                says: String::new(),
                rule: "p50[hops=0,socket=reused] > p50[hops=0,socket=reopened]".into(),
                why: String::new(),
                cores: 0,
                processors,
            };
            let verdict = verdict(&any(), &shape, &result, &[], TWO);
            assert_eq!(verdict.state, ShapeState::Untested);
            let measured = verdict.measured;
            assert!(measured.contains(says), "{because:?}: {measured}");
            assert!(!measured.contains("interrupted"), "{measured}");
        }
    }

    /// A series may have been measured in one state of the machine, and the other in both.
    #[test]
    fn a_shape_of_near_processors_rests_on_what_was_measured_while_they_were() {
        use Distance::{Far, Near};
        use ShapeState::{Holds, Misses, Untested};
        let mut result = result(&[
            ("0", "reused", 1.0),
            ("1", "reused", 1.0),
            ("2", "reused", 1.0),
        ]);
        // Over all runs the medians fall.
        for (point, (near, far)) in (result.points.iter_mut()).zip([
            (vec![2.0, 2.0], vec![1.0]),
            (vec![4.0], vec![1.0, 1.0]),
            (vec![], vec![5.0]),
        ]) {
            let all = [near.clone(), far.clone()].concat();
            point.figures = [("p50".to_owned(), estimate(&all).unwrap())].into();
            point.values = [("p50".to_owned(), all)].into();
            let known = [(Near, near), (Far, far)].into_iter();
            let known = known.filter(|(_, values)| !values.is_empty());
            point.values_at = known
                .map(|(distance, values)| (distance, [("p50".to_owned(), values)].into()))
                .collect();
        }
        let scales = "p50[hops=1] >= 2 * p50[hops=0]";
        let highest = "max(p50 over hops) >= 2 * p50[hops=0]";
        for (rule, processors, want, says) in [
            (scales, Some(Near), Holds, "4.00 ns is 2 times 2.00 ns"),
            (scales, Some(Far), Misses, "1.00 ns is 1 times 1.00 ns"),
            (scales, None, Misses, "1.00 ns is 0.5 times 2.00 ns"),
            // The last point, which may be the highest, was not measured in this state.
            (
                highest,
                Some(Near),
                Untested,
                "while the processors were near",
            ),
            (highest, Some(Far), Holds, "5.00 ns is 5 times 1.00 ns"),
            ("slope(p50 over hops) > 1ns", Some(Near), Untested, "near"),
            ("slope(p50 over hops) > 1ns", Some(Far), Holds, "2.00 ns"),
        ] {
            let shape = ShapeOf {
                says: String::new(),
                rule: rule.into(),
                why: "because".into(),
                cores: 2,
                processors,
            };
            let verdict = verdict(&any(), &shape, &result, &[], TWO);
            assert_eq!(verdict.state, want, "{rule} {processors:?}: {verdict:?}");
            assert!(
                verdict.measured.contains(says),
                "{rule}: {}",
                verdict.measured
            );
        }
        // The distance of the CPUs is unknown.
        result
            .points
            .iter_mut()
            .for_each(|point| point.values_at.clear());
        let shape = ShapeOf {
            says: String::new(),
            rule: scales.into(),
            why: String::new(),
            cores: 2,
            processors: Some(Far),
        };
        let verdict = verdict(&any(), &shape, &result, &[], TWO);
        assert!(
            verdict.measured.contains("far apart"),
            "{}",
            verdict.measured
        );
    }
}
