//! Comparison of existing results, measured separately.

use jiff::Timestamp;
use linerate_record::comparison::{ComparisonSide, ComparisonSpec, SIGNIFICANCE, compare_samples};
use linerate_record::figure;
use linerate_record::record::Record;

use super::{better_direction, finish_comparison, reject};
use crate::args::CompareArgs;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::stored_results;

/// Returns an option that only applies to new measurements, if one is given.
fn measuring_option(args: &CompareArgs) -> Option<&'static str> {
    [
        ("--a", args.a.is_some()),
        ("--b", args.b.is_some()),
        ("--prepare-a", args.prepare_a.is_some()),
        ("--prepare-b", args.prepare_b.is_some()),
        ("--knob-a", !args.knob_a.is_empty()),
        ("--knob-b", !args.knob_b.is_empty()),
    ]
    .into_iter()
    .find_map(|(name, is_given)| is_given.then_some(name))
}

/// Compares two stored results.
pub fn compare_stored(
    args: &CompareArgs,
    output: &mut CommandOutput,
) -> Result<u8, CommandFailure> {
    let [a, b] = args.results.as_slice() else {
        return reject(
            args.results.first().map_or("compare", String::as_str),
            "no second result to compare with",
            "name two results",
        );
    };
    if let Some(option) = measuring_option(args) {
        return reject(
            &format!("{option} with results"),
            "stored results cannot be changed",
            "leave it out, or name a measuring command",
        );
    }
    let sides = [stored_results::load_runs(a)?, stored_results::load_runs(b)?];
    for (name, runs) in [(a, &sides[0]), (b, &sides[1])] {
        if runs.is_empty() {
            return reject(
                name,
                "contains no run",
                "name a record, or a set with runs: sets of other commands store only their numbers",
            );
        }
    }
    let first = sides[0].first().or(sides[1].first());
    let kind = first.map(|run| run.kind);
    let named = args.figure.as_deref().map(figure::find);
    let figure = match (named, kind) {
        (Some(Some(figure)), _) => figure,
        (None, Some(kind)) => figure::default_for(kind),
        _ => {
            return reject(
                "--figure",
                "no figure of a run has that name",
                &format!("choose one of {}", figure::names()),
            );
        }
    };
    let values = |runs: &[Record]| -> Vec<f64> {
        runs.iter().filter_map(|run| figure.value_in(run)).collect()
    };
    let (values_a, values_b) = (values(&sides[0]), values(&sides[1]));
    for (name, values) in [(a, &values_a), (b, &values_b)] {
        if values.is_empty() {
            return reject(
                name,
                &format!("has no run with {}", figure.name),
                "choose another --figure",
            );
        }
    }
    let test = ComparisonSpec {
        figure: figure.name.to_owned(),
        better: better_direction(args, figure.name),
        effect: args.pairs_until.effect,
        significance: SIGNIFICANCE,
    };
    let side = |label: &str, name: &Option<String>, runs: &[Record]| ComparisonSide {
        name: name.clone(),
        label: label.to_owned(),
        records: runs.iter().map(|run| run.id.clone()).collect(),
        ..ComparisonSide::default()
    };
    let comparison = compare_samples(
        &test,
        [
            side(a, &args.name_a, &sides[0]),
            side(b, &args.name_b, &sides[1]),
        ],
        &values_a,
        &values_b,
    );
    let [mut runs, values_b] = sides;
    for run in &mut runs {
        run.label = Some("A".to_owned());
    }
    runs.extend(values_b.into_iter().map(|run| Record {
        label: Some("B".to_owned()),
        ..run
    }));
    finish_comparison(
        comparison,
        runs,
        Timestamp::now(),
        false,
        None,
        Vec::new(),
        output,
    )
}
