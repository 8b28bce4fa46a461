//! Comparison of existing results, measured separately.

use jiff::Timestamp;
use linerate_metric::comparison::{Question, SIGNIFICANCE, Side, of_samples};
use linerate_metric::figure;
use linerate_metric::record::Record;

use super::{better, finish, refuse};
use crate::args::CompareArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::stored_results;

/// Returns an option that only applies to new measurements, if one is given.
fn of_halves(args: &CompareArgs) -> Option<&'static str> {
    [
        ("--a", args.a.is_some()),
        ("--b", args.b.is_some()),
        ("--prepare-a", args.prepare_a.is_some()),
        ("--prepare-b", args.prepare_b.is_some()),
        ("--knob-a", !args.knob_a.is_empty()),
        ("--knob-b", !args.knob_b.is_empty()),
    ]
    .into_iter()
    .find_map(|(name, is_said)| is_said.then_some(name))
}

/// Compares two stored results.
pub fn apart(args: &CompareArgs, output: &mut Output) -> Result<u8, Failure> {
    let [a, b] = args.results.as_slice() else {
        return refuse(
            args.results.first().map_or("compare", String::as_str),
            "no second result to compare with",
            "name two results",
        );
    };
    if let Some(option) = of_halves(args) {
        return refuse(
            &format!("{option} with results"),
            "stored results cannot be changed",
            "leave it out, or name a measuring command",
        );
    }
    let sides = [stored_results::runs(a)?, stored_results::runs(b)?];
    for (name, runs) in [(a, &sides[0]), (b, &sides[1])] {
        if runs.is_empty() {
            return refuse(
                name,
                "contains no run",
                "name a record, or a set with runs: sets of other commands store only their numbers",
            );
        }
    }
    let first = sides[0].first().or(sides[1].first());
    let kind = first.map(|run| run.kind);
    let named = args.figure.as_deref().map(figure::named);
    let figure = match (named, kind) {
        (Some(Some(figure)), _) => figure,
        (None, Some(kind)) => figure::of_kind(kind),
        _ => {
            return refuse(
                "--figure",
                "no figure of a run has that name",
                &format!("choose one of {}", figure::names()),
            );
        }
    };
    let values =
        |runs: &[Record]| -> Vec<f64> { runs.iter().filter_map(|run| figure.of(run)).collect() };
    let (of_a, of_b) = (values(&sides[0]), values(&sides[1]));
    for (name, values) in [(a, &of_a), (b, &of_b)] {
        if values.is_empty() {
            return refuse(
                name,
                &format!("has no run with {}", figure.name),
                "choose another --figure",
            );
        }
    }
    let question = Question {
        figure: figure.name.to_owned(),
        better: better(args, figure.name),
        effect: args.until.effect,
        significance: SIGNIFICANCE,
    };
    let side = |label: &str, runs: &[Record]| Side {
        label: label.to_owned(),
        value: None,
        records: runs.iter().map(|run| run.id.clone()).collect(),
    };
    let found = of_samples(
        &question,
        [side(a, &sides[0]), side(b, &sides[1])],
        &of_a,
        &of_b,
    );
    let [mut runs, of_b] = sides;
    for run in &mut runs {
        run.label = Some("A".to_owned());
    }
    runs.extend(of_b.into_iter().map(|run| Record {
        label: Some("B".to_owned()),
        ..run
    }));
    finish(
        found,
        runs,
        Timestamp::now(),
        false,
        None,
        Vec::new(),
        output,
    )
}
