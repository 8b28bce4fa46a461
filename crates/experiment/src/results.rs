//! Results of an experiment, merged with the points that the table had before.

use linerate_record::experiment::{ExperimentPoint, ExperimentResult, FigureSpec, KnobValues};
use linerate_record::record::Record;
use linerate_record::run_set::{RunSet, SET_SCHEMA, SetResult};

use crate::file::Experiment;
use crate::location::RunLocation;
use crate::point::has_values;
use crate::point_state::PointState;
use crate::run_options::RunOptions;
use crate::verdict::{add_verdicts, used_knobs};

/// Figures of the experiment, each once.
fn figure_specs(experiment: &Experiment) -> Vec<FigureSpec> {
    let mut figures: Vec<FigureSpec> = Vec::new();
    for figure in &experiment.figures {
        if figures.iter().all(|listed| listed.name != figure.name) {
            figures.push(FigureSpec {
                name: figure.name.clone(),
                unit: figure.unit,
                description: figure.description.clone(),
                exact: figure.is_exact,
            });
        }
    }
    figures
}

/// Builds the set of all results, merged with those that were in the table before.
pub(crate) fn build_set(
    experiment: &Experiment,
    options: &RunOptions<'_>,
    states: Vec<PointState>,
    (rootless, between): (bool, Vec<String>),
    interrupted: bool,
) -> RunSet {
    let missing = missing_figures(experiment, &states, !options.at_points.is_empty());
    let mut points: Vec<ExperimentPoint> = states.iter().map(PointState::to_point).collect();
    let mut runs: Vec<Record> = states.into_iter().flat_map(|point| point.runs).collect();
    if let Some(table) = (options.read_table)() {
        let earlier_points = table.result.experiment.as_ref();
        let earlier_points = earlier_points.map_or(&[][..], |result| &result.points);
        let kept_points = merge_earlier(earlier_points, &mut points, &mut runs, interrupted);
        let kept_ids: Vec<&String> = kept_points.iter().flat_map(|point| &point.runs).collect();
        let earlier_runs = table.runs.into_iter();
        runs.extend(earlier_runs.filter(|run| kept_ids.contains(&&run.id)));
        points.extend(kept_points);
        let position = |point: &ExperimentPoint| {
            let positions = experiment.knobs.iter().map(|knob| {
                let value = point.setting.get(&knob.name);
                knob.values
                    .iter()
                    .position(|listed_value| Some(listed_value) == value)
            });
            positions.collect::<Vec<_>>()
        };
        points.sort_by_key(position);
    }
    let settings: Vec<KnobValues> = points.iter().map(|point| point.setting.clone()).collect();
    let mut result = ExperimentResult {
        name: experiment.name.clone(),
        title: experiment.title.clone(),
        question: experiment.question.clone(),
        label: options.label.clone(),
        quick: options.quick,
        location: match &options.location {
            RunLocation::Lab => "lab".to_owned(),
            RunLocation::Host(remote_host) => remote_host.to_string(),
        },
        switches: between,
        rootless,
        without_root: experiment.without_root.clone(),
        knobs: used_knobs(experiment, &settings),
        figures: figure_specs(experiment),
        points,
        tables: experiment.tables.clone(),
        plots: experiment.plots.clone(),
        published: Vec::new(),
        trends: Vec::new(),
        shapes: Vec::new(),
        missing_figures: missing,
    };
    add_verdicts(experiment, &mut result, &runs, options.cores);
    RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: options.id.clone(),
        kind: "experiment".to_owned(),
        started: options.started,
        interrupted,
        runs,
        result: SetResult {
            experiment: Some(Box::new(result)),
            ..SetResult::default()
        },
    }
}

/// Returns the earlier points that stay in the table, and removes their new versions.
///
/// A new measurement replaces an earlier point unless it failed, or was interrupted with fewer
/// runs:
/// an earlier point may have required manual changes.
fn merge_earlier(
    earlier: &[ExperimentPoint],
    points: &mut Vec<ExperimentPoint>,
    runs: &mut Vec<Record>,
    interrupted: bool,
) -> Vec<ExperimentPoint> {
    let replaces =
        |old: &ExperimentPoint, new: &ExperimentPoint| match (old.runs.len(), new.runs.len()) {
            // The new reason is more current, unless the point was not reached.
            (0, 0) => !new.is_not_reached(),
            (_, 0) => false,
            (old_runs, new_runs) => !interrupted || new_runs >= old_runs,
        };
    let mut kept_points = Vec::new();
    for old in earlier {
        match points.iter().position(|new| new.setting == old.setting) {
            Some(index) if replaces(old, &points[index]) => continue,
            Some(index) => {
                let new = points.remove(index);
                runs.retain(|run| !new.runs.contains(&run.id));
            }
            None => {}
        }
        kept_points.push(old.clone());
    }
    kept_points
}

/// Figures missing in each record that should have them, for example because of a pointer that
/// matches nothing.
///
/// `in_part`: only some points were selected, so a figure without `at_points` may belong to the
/// others.
fn missing_figures(experiment: &Experiment, states: &[PointState], in_part: bool) -> Vec<String> {
    let measured: Vec<&PointState> = states
        .iter()
        .filter(|states| !states.runs.is_empty())
        .collect();
    let mut missing: Vec<String> = Vec::new();
    for figure in &experiment.figures {
        let has_value = |states: &&PointState| states.values.contains_key(&figure.name);
        let may_be_elsewhere = in_part && figure.at_points.is_empty();
        if measured.is_empty() || may_be_elsewhere || measured.iter().any(has_value) {
            continue;
        }
        if measured
            .iter()
            .any(|states| has_values(&figure.at_points, &states.setting))
        {
            missing.push(format!("{} ({})", figure.name, figure.pointers.join(", ")));
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use linerate_record::plan::{Plan, RunKind, TransportProtocol};

    use super::*;

    fn point(size: &str, runs: &[&str]) -> ExperimentPoint {
        ExperimentPoint {
            setting: [("size".to_owned(), size.to_owned())].into(),
            runs: runs.iter().map(|&id| id.to_owned()).collect(),
            ..ExperimentPoint::default()
        }
    }

    #[test]
    fn the_reason_of_a_skipped_point_is_updated() {
        let skipped = |reason: &str| ExperimentPoint {
            skipped: Some(reason.to_owned()),
            ..point("64", &[])
        };
        let earlier = [skipped("it refuses")];
        for (new_reason, expected) in [
            ("it has no address", "it has no address"),
            // The point was not reached.
            (ExperimentPoint::NOT_REACHED, "it refuses"),
        ] {
            let mut points = vec![skipped(new_reason)];
            let kept_points = merge_earlier(&earlier, &mut points, &mut Vec::new(), true);
            points.extend(kept_points);
            let reasons: Vec<_> = points
                .iter()
                .map(|point| point.skipped.as_deref())
                .collect();
            assert_eq!(reasons, [Some(expected)], "{new_reason}");
        }
    }

    #[test]
    fn an_earlier_point_is_replaced_once_its_new_version_is_measured() {
        let earlier = [
            point("64", &["a", "b"]),
            point("1K", &["c"]),
            point("8K", &["d"]),
        ];
        for (new_points, interrupted, table) in [
            // Measured again completely.
            (vec![point("64", &["e", "f"])], false, "64=e+f 1K=c 8K=d"),
            // Fewer repeats were requested.
            (vec![point("64", &["e"])], false, "64=e 1K=c 8K=d"),
            // Interrupted after the first repeat; the second point was not reached.
            (
                vec![point("64", &["e"]), point("1K", &[])],
                true,
                "64=a+b 1K=c 8K=d",
            ),
            (
                vec![point("1K", &["e"]), point("9K", &[])],
                true,
                "64=a+b 1K=e 8K=d 9K=",
            ),
            // The point could not be measured this time.
            (vec![point("8K", &[])], false, "64=a+b 1K=c 8K=d"),
        ] {
            let mut points = new_points.clone();
            let mut runs: Vec<Record> = (new_points.iter().flat_map(|point| &point.runs))
                .map(|id| {
                    let plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "far.example");
                    Record::new(id.clone(), Timestamp::UNIX_EPOCH, plan)
                })
                .collect();
            let kept_points = merge_earlier(&earlier, &mut points, &mut runs, interrupted);
            let runs_of_points: usize = points.iter().map(|point| point.runs.len()).sum();
            assert_eq!(
                runs.len(),
                runs_of_points,
                "no run without its point: {table}"
            );
            points.extend(kept_points);
            points.sort_by_key(|point| point.setting["size"].clone());
            let mut actual: Vec<String> = (points.iter())
                .map(|point| format!("{}={}", point.setting["size"], point.runs.join("+")))
                .collect();
            let mut expected: Vec<&str> = table.split(' ').collect();
            actual.sort();
            expected.sort_unstable();
            assert_eq!(actual, expected, "{new_points:?}");
        }
    }
}
