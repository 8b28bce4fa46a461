//! Evaluation of sums of figures at a setting.

use linerate_record::expect::FigureUnit;
use linerate_record::experiment::{
    CoreDistance, ExperimentPoint, ExperimentResult, KnobAxis, KnobValues, combine_values,
    parse_number,
};
use linerate_stats::statistics::{median, theil_sen_slope};

use crate::rule::{Aggregate, AssertionRule, RuleSum, RuleTerm};

pub(crate) fn format_value(unit: FigureUnit, value: f64) -> String {
    match unit {
        // Differences and slopes may be negative, and the unit's own format has no sign.
        _ if value < 0.0 => format!("-{}", format_value(unit, -value)),
        FigureUnit::Count => format!("{value:.6}")
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned(),
        unit => unit.format(value),
    }
}

fn open_knobs<'a>(rule: &AssertionRule, knobs: &'a [KnobAxis]) -> Vec<&'a KnobAxis> {
    let is_open = |knob: &&KnobAxis| {
        rule.terms().any(|term| {
            let is_aggregated = term
                .over
                .as_ref()
                .is_some_and(|(_, over)| *over == knob.name);
            !is_aggregated && !term.setting.contains_key(&knob.name)
        })
    };
    knobs.iter().filter(is_open).collect()
}

/// Returns the combinations of the values of the knobs that a term of the rule leaves open.
pub(crate) fn open_settings(rule: &AssertionRule, knobs: &[KnobAxis]) -> Vec<KnobValues> {
    let open = open_knobs(rule, knobs).into_iter();
    combine_values(open.map(|knob| (knob.name.as_str(), &knob.values[..])))
}

/// Results, with the CPU distance to which they are restricted.
pub(crate) type RestrictedResult<'a> = (&'a ExperimentResult, Option<CoreDistance>);

pub(crate) fn evaluate_sum(
    sum: &RuleSum,
    setting: &KnobValues,
    restricted: RestrictedResult<'_>,
    rule: &AssertionRule,
) -> Option<f64> {
    let mut total = sum.constant;
    for term in &sum.terms {
        // With one point only, first and last, or maximum and minimum, are the same figure.
        let same_points = rule
            .terms()
            .filter(|term_of_rule| has_same_points(term, term_of_rule, setting));
        let min_points = if same_points.count() > 1 { 2 } else { 1 };
        total += term.factor * evaluate_term(term, setting, restricted, min_points)?;
    }
    Some(total)
}

/// Returns whether two terms under a setting aggregate one figure over one knob at the same points.
fn has_same_points(first: &RuleTerm, second: &RuleTerm, setting: &KnobValues) -> bool {
    let Some((_, knob)) = &first.over else {
        return false;
    };
    let fixed_setting = |term: &RuleTerm| {
        let mut fixed_setting = setting.clone();
        fixed_setting.extend(term.setting.clone());
        fixed_setting.remove(knob);
        fixed_setting
    };
    let same_knob = second
        .over
        .as_ref()
        .is_some_and(|(_, same_knob)| same_knob == knob);
    same_knob && first.figure == second.figure && fixed_setting(first) == fixed_setting(second)
}

/// Values of a figure in the runs of a point that count.
fn values_at_distance(
    point: &ExperimentPoint,
    figure: &str,
    core_distance: Option<CoreDistance>,
) -> Vec<f64> {
    match core_distance {
        None => point.run_values(figure),
        Some(core_distance) => {
            let values = point
                .values_at
                .get(&core_distance)
                .and_then(|all| all.get(figure));
            values.cloned().unwrap_or_default()
        }
    }
}

/// Value of a term under a setting.
///
/// `None` if a point was not measured at the required CPU distance, or if an aggregate has fewer
/// than `min_points` points.
fn evaluate_term(
    term: &RuleTerm,
    setting: &KnobValues,
    (result, core_distance): RestrictedResult<'_>,
    min_points: usize,
) -> Option<f64> {
    let mut term_setting = setting.clone();
    term_setting.extend(term.setting.clone());
    let has_figure = |point: &&ExperimentPoint| point.figures.contains_key(&term.figure);
    let values = |point: &ExperimentPoint| values_at_distance(point, &term.figure, core_distance);
    let Some((aggregate, knob)) = &term.over else {
        return median(&values(
            result.matching_points(&term_setting).find(has_figure)?,
        ));
    };
    let knob = result.knobs.iter().find(|axis| axis.name == *knob)?;
    let values_by_x: Vec<(f64, Vec<f64>)> = knob
        .values
        .iter()
        .enumerate()
        .filter_map(|(position, value)| {
            term_setting.insert(knob.name.clone(), value.clone());
            let point = result.matching_points(&term_setting).find(has_figure)?;
            Some((
                parse_number(value).unwrap_or(position as f64),
                values(point),
            ))
        })
        .collect();
    if values_by_x.len() < min_points {
        return None;
    }
    let medians: Option<Vec<f64>> = values_by_x
        .iter()
        .map(|(_, values)| median(values))
        .collect();
    let mut medians = medians?.into_iter();
    match aggregate {
        Aggregate::Max => medians.reduce(f64::max),
        Aggregate::Min => medians.reduce(f64::min),
        Aggregate::First => medians.next(),
        Aggregate::Last => medians.next_back(),
        Aggregate::Slope => {
            let runs = |(x, values): &(f64, Vec<f64>)| {
                let x = *x;
                values.clone().into_iter().map(move |value| (x, value))
            };
            theil_sen_slope(&values_by_x.iter().flat_map(runs).collect::<Vec<_>>())
        }
    }
}
