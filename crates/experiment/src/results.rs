//! Results of an experiment, merged with the points that the table had before.

use linerate_metric::experiment::{ExperimentResult, FigureOf, Point, Setting};
use linerate_metric::record::Record;
use linerate_metric::run_set::{RunSet, SET_SCHEMA, SetResult};

use crate::file::Experiment;
use crate::location::Place;
use crate::point::fits;
use crate::run::{INTERRUPTED, Kept, Options};
use crate::verdict::{judge, knobs_of};

/// Figures of the experiment, each once.
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

/// Builds the set of all results, merged with those that were in the table before.
pub(crate) fn set(
    experiment: &Experiment,
    options: &Options<'_>,
    kept: Vec<Kept>,
    (rootless, between): (bool, Vec<String>),
    interrupted: bool,
) -> RunSet {
    let unread = unread(experiment, &kept, !options.only.is_empty());
    let mut points: Vec<Point> = kept.iter().map(Kept::point).collect();
    let mut runs: Vec<Record> = kept.into_iter().flat_map(|point| point.runs).collect();
    if let Some(before) = (options.before)() {
        let earlier = before.result.experiment.as_ref();
        let earlier = earlier.map_or(&[][..], |result| &result.points);
        let staying = staying(earlier, &mut points, &mut runs, interrupted);
        let ids: Vec<&String> = staying.iter().flat_map(|point| &point.runs).collect();
        let theirs = before.runs.into_iter();
        runs.extend(theirs.filter(|run| ids.contains(&&run.id)));
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
            Place::Host(far) => far.to_string(),
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
    judge(experiment, &mut result, &runs, options.cores);
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
fn staying(
    earlier: &[Point],
    points: &mut Vec<Point>,
    runs: &mut Vec<Record>,
    interrupted: bool,
) -> Vec<Point> {
    let replaces = |old: &Point, new: &Point| match (old.runs.len(), new.runs.len()) {
        // The new reason is more current, unless the point was not reached.
        (0, 0) => new.skipped.as_deref() != Some(INTERRUPTED),
        (_, 0) => false,
        (had, has) => !interrupted || has >= had,
    };
    let mut staying = Vec::new();
    for old in earlier {
        match points.iter().position(|new| new.setting == old.setting) {
            Some(at) if replaces(old, &points[at]) => continue,
            Some(at) => {
                let new = points.remove(at);
                runs.retain(|run| !new.runs.contains(&run.id));
            }
            None => {}
        }
        staying.push(old.clone());
    }
    staying
}

/// Figures missing in each record that should have them, for example because of a pointer that
/// matches nothing.
///
/// `in_part`: only some points were selected, so a figure without `when` may belong to the others.
fn unread(experiment: &Experiment, kept: &[Kept], in_part: bool) -> Vec<String> {
    let measured: Vec<&Kept> = kept.iter().filter(|kept| !kept.runs.is_empty()).collect();
    let mut unread: Vec<String> = Vec::new();
    for figure in &experiment.figures {
        let read = |kept: &&Kept| kept.values.contains_key(&figure.name);
        let elsewhere = in_part && figure.when.is_empty();
        if measured.is_empty() || elsewhere || measured.iter().any(read) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use linerate_metric::plan::{Kind, Plan, Protocol};

    fn point(size: &str, runs: &[&str]) -> Point {
        Point {
            setting: [("size".to_owned(), size.to_owned())].into(),
            runs: runs.iter().map(|&id| id.to_owned()).collect(),
            ..Point::default()
        }
    }

    #[test]
    fn why_a_point_has_no_run_is_told_as_it_is_now() {
        let skipped = |why: &str| Point {
            skipped: Some(why.to_owned()),
            ..point("64", &[])
        };
        let earlier = [skipped("it refuses")];
        for (now, told) in [
            ("it has no address", "it has no address"),
            // The point was not reached.
            (INTERRUPTED, "it refuses"),
        ] {
            let mut points = vec![skipped(now)];
            let staying = staying(&earlier, &mut points, &mut Vec::new(), true);
            points.extend(staying);
            let whys: Vec<_> = points
                .iter()
                .map(|point| point.skipped.as_deref())
                .collect();
            assert_eq!(whys, [Some(told)], "{now}");
        }
    }

    #[test]
    fn an_earlier_point_goes_once_its_replacement_is_measured() {
        let earlier = [
            point("64", &["a", "b"]),
            point("1K", &["c"]),
            point("8K", &["d"]),
        ];
        for (now, interrupted, table) in [
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
            let mut points = now.clone();
            let mut runs: Vec<Record> = (now.iter().flat_map(|point| &point.runs))
                .map(|id| {
                    let plan = Plan::new(Kind::Latency, Protocol::Udp, "far.example");
                    Record::new(id.clone(), Timestamp::UNIX_EPOCH, plan)
                })
                .collect();
            let staying = staying(&earlier, &mut points, &mut runs, interrupted);
            let left: usize = points.iter().map(|point| point.runs.len()).sum();
            assert_eq!(runs.len(), left, "no run without its point: {table}");
            points.extend(staying);
            points.sort_by_key(|point| point.setting["size"].clone());
            let mut told: Vec<String> = (points.iter())
                .map(|point| format!("{}={}", point.setting["size"], point.runs.join("+")))
                .collect();
            let mut wanted: Vec<&str> = table.split(' ').collect();
            told.sort();
            wanted.sort_unstable();
            assert_eq!(told, wanted, "{now:?}");
        }
    }
}
