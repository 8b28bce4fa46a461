//! All points together, with those that were in the table before.

use jiff::Timestamp;
use linerate_metric::experiment::{ExperimentResult, FigureOf, Point, Setting};
use linerate_metric::record::{Record, new_id};
use linerate_metric::set::{RunSet, SET_SCHEMA, SetResult};

use crate::file::Experiment;
use crate::judge::{judge, knobs_of};
use crate::point::fits;
use crate::run::{Kept, Options, Place};

/// The figures, each once.
fn figures_of(experiment: &Experiment) -> Vec<FigureOf> {
    let mut figures: Vec<FigureOf> = Vec::new();
    for figure in &experiment.figures {
        if figures.iter().all(|known| known.name != figure.name) {
            figures.push(FigureOf {
                name: figure.name.clone(),
                unit: figure.unit,
                says: figure.says.clone(),
                exact: figure.exact,
            });
        }
    }
    figures
}

/// All that came out, with what was in the table before.
pub(crate) fn set(
    experiment: &Experiment,
    options: &Options<'_>,
    kept: Vec<Kept>,
    (rootless, between): (bool, Vec<String>),
    started: Timestamp,
    interrupted: bool,
) -> RunSet {
    let unread = unread(experiment, &kept);
    let mut points: Vec<Point> = kept.iter().map(Kept::point).collect();
    let mut runs: Vec<Record> = kept.into_iter().flat_map(|point| point.runs).collect();
    if let Some(before) = options.before {
        let earlier = before.result.experiment.as_ref();
        let earlier = earlier.map_or(&[][..], |result| &result.points);
        let now: Vec<Setting> = points.iter().map(|point| point.setting.clone()).collect();
        // A point that is measured again takes the place of the earlier one.
        let stays = |point: &&Point| !now.contains(&point.setting);
        let staying: Vec<Point> = earlier.iter().filter(stays).cloned().collect();
        let ids: Vec<&String> = staying.iter().flat_map(|point| &point.runs).collect();
        runs.extend(
            before
                .runs
                .iter()
                .filter(|run| ids.contains(&&run.id))
                .cloned(),
        );
        points.extend(staying);
        let order = |point: &Point| {
            let places = experiment.knobs.iter().map(|knob| {
                let value = point.setting.get(&knob.name);
                knob.values.iter().position(|known| Some(known) == value)
            });
            places.collect::<Vec<_>>()
        };
        points.sort_by_key(order);
    }
    let all: Vec<Setting> = points.iter().map(|point| point.setting.clone()).collect();
    let mut result = ExperimentResult {
        name: experiment.name.clone(),
        title: experiment.title.clone(),
        question: experiment.question.clone(),
        label: options.label.clone(),
        quick: options.quick,
        place: match &options.place {
            Place::Lab => "lab".to_owned(),
            Place::Host(host) => host.clone(),
        },
        between,
        rootless,
        without_root: experiment.without_root.clone(),
        knobs: knobs_of(experiment, &all),
        figures: figures_of(experiment),
        points,
        tables: experiment.tables.clone(),
        plots: experiment.plots.clone(),
        published: Vec::new(),
        trends: Vec::new(),
        shapes: Vec::new(),
        unread,
    };
    judge(experiment, &mut result, options.cores);
    RunSet {
        schema: SET_SCHEMA.to_owned(),
        id: new_id(started),
        kind: "experiment".to_owned(),
        started,
        interrupted,
        runs,
        result: SetResult {
            experiment: Some(Box::new(result)),
            ..SetResult::default()
        },
    }
}

/// Figures that no record had of the points that should have them: a pointer that leads nowhere, or
/// something that no run could tell.
fn unread(experiment: &Experiment, kept: &[Kept]) -> Vec<String> {
    let measured: Vec<&Kept> = kept.iter().filter(|kept| !kept.runs.is_empty()).collect();
    let mut unread: Vec<String> = Vec::new();
    for figure in &experiment.figures {
        let read = |kept: &&Kept| kept.values.contains_key(&figure.name);
        if measured.is_empty() || measured.iter().any(read) {
            continue;
        }
        if measured
            .iter()
            .any(|kept| fits(&figure.when, &kept.setting))
        {
            unread.push(format!("{} ({})", figure.name, figure.from.join(", ")));
        }
    }
    unread
}
