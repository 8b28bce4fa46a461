//! Details of an experiment's points from their records: path diagrams, distributions, stages,
//! calls, losses; folded, each under the name of its point.

use std::collections::BTreeMap;

use linerate_metric::experiment::{ExperimentResult, Point, Setting, number};
use linerate_metric::histogram::{Histogram, HistogramData};
use linerate_metric::plan::Kind;
use linerate_metric::record::Record;
use linerate_metric::run_set::RunSet;

use super::{calls, loss_flow, path_section, run_comparison, stages, timeline};
use crate::experiment::setting_words as words;
use crate::svg::escape;

/// Largest number of lines in a chart of distributions: the number of colours.
const LINES: usize = 6;

/// Largest number of further path diagrams; each stands for all points with the same diagram.
const WAYS: usize = 8;

/// Number of points whose losses are drawn: those with the largest losses.
const LOSSES: usize = 6;

/// Name of the lab knob for the number of switches.
const HOPS: &str = "hops";

/// Returns the measured points in order, with their records.
fn measured<'a>(
    result: &'a ExperimentResult,
    set: &'a RunSet,
) -> Vec<(&'a Point, Vec<&'a Record>)> {
    let by_id: BTreeMap<&str, &Record> = set.runs.iter().map(|run| (&*run.id, run)).collect();
    let records = |point: &Point| -> Vec<&'a Record> {
        let runs = point.runs.iter();
        runs.filter_map(|id| by_id.get(&**id).copied()).collect()
    };
    (result.points.iter())
        .map(|point| (point, records(point)))
        .filter(|(_, runs)| !runs.is_empty())
        .collect()
}

fn folded(summary: &str, body: &str) -> String {
    format!(
        "<details><summary>{}</summary>\n{body}</details>\n",
        escape(summary)
    )
}

/// Returns the switches at a point. `between` is the longest path; a shorter chain is its
/// beginning.
fn switches<'a>(result: &'a ExperimentResult, setting: &Setting) -> &'a [String] {
    let all = &result.between[..];
    let hops = setting.get(HOPS).and_then(|value| number(value));
    let count = hops.map_or(all.len(), |hops| all.len().min(hops as usize));
    &all[..count]
}

/// Renders the path diagram of one point, and further diagrams folded.
pub(super) fn ways(result: &ExperimentResult, set: &RunSet) -> String {
    let mut drawn: Vec<(String, Vec<String>, usize)> = Vec::new();
    let mut known: Vec<String> = Vec::new();
    for (point, runs) in measured(result, set) {
        let between = switches(result, &point.setting);
        let way = path_section::through(runs[0], between);
        if way.is_empty() {
            continue;
        }
        let name = words(result, &point.setting);
        let shape = without_names(&way);
        match known.iter().position(|known| *known == shape) {
            Some(at) => drawn[at].1.push(name),
            None => {
                known.push(shape);
                drawn.push((way, vec![name], between.len()));
            }
        }
    }
    // The longest path shows the most components.
    let longest = drawn.iter().map(|(_, _, between)| *between).max();
    let Some(first) = drawn.iter().position(|way| Some(way.2) == longest) else {
        return String::new();
    };
    let (way, names, _) = drawn.remove(first);
    let mut out = format!("<section>\n{way}{}", drawn_at(&names));
    if !drawn.is_empty() {
        let count = drawn.len();
        let mut body: String = (drawn.iter().take(WAYS))
            .map(|(way, names, _)| format!("{way}{}", drawn_at(names)))
            .collect();
        if count > WAYS {
            body.push_str(&format!(
                "<p class=\"muted\">{} more are not drawn; the commands of all points are listed below.</p>\n",
                count - WAYS
            ));
        }
        let summary = match count {
            1 => "1 other path".to_owned(),
            n => format!("{n} other paths"),
        };
        out.push_str(&folded(&summary, &body));
    }
    out.push_str("</section>\n");
    out
}

/// Removes the names of shared memory from a diagram, since they differ between the points of an
/// experiment.
fn without_names(way: &str) -> String {
    const KIND: &str = "shm:";
    let mut parts = way.split(KIND);
    let mut shape = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(['<', ' ', ',', '"']).unwrap_or(part.len());
        shape.push_str(KIND);
        shape.push_str(&part[end..]);
    }
    shape
}

fn drawn_at(names: &[String]) -> String {
    let also = match names.len() {
        1 => String::new(),
        2 => "; 1 other point has the same diagram".to_owned(),
        n => format!("; {} other points have the same diagram", n - 1),
    };
    format!(
        "<p class=\"muted\">Diagram of the point {}{also}.</p>\n",
        escape(&names[0])
    )
}

/// Renders details from the records of the points; empty if there are none.
pub(super) fn section(result: &ExperimentResult, set: &RunSet) -> String {
    let points = measured(result, set);
    let mut body = distributions(result, &points);
    let mut each = |summary: &str, show: &dyn Fn(&Record) -> String| {
        let shown: String = points
            .iter()
            .filter_map(|(point, runs)| {
                let shown = runs.iter().map(|run| show(run)).find(|s| !s.is_empty())?;
                let name = escape(&words(result, &point.setting));
                Some(format!("<h3>{name}</h3>\n{shown}"))
            })
            .collect();
        if !shown.is_empty() {
            body.push_str(&folded(summary, &shown));
        }
    };
    each("Stages of a round trip", &stages::split);
    each("System calls of one run per point", &calls::table);
    each("Timeline of one run per point", &|run| {
        run.timeline
            .as_ref()
            .map(timeline::picture)
            .unwrap_or_default()
    });
    body.push_str(&losses(result, &points));
    if body.is_empty() {
        return body;
    }
    format!("<section>\n<h2>Details of the points</h2>\n{body}</section>\n")
}

/// Renders round-trip times by percentile, with all repeats of a point merged: one chart per
/// combination of the knobs that form a line of the first plot.
fn distributions(result: &ExperimentResult, points: &[(&Point, Vec<&Record>)]) -> String {
    let series: &[String] = result.plots.first().map_or(&[], |plot| &plot.series);
    let mut groups: Vec<(Setting, Vec<Record>)> = Vec::new();
    for (point, runs) in points {
        let Some(mut run) = together(runs) else {
            continue;
        };
        let mut group = point.setting.clone();
        group.retain(|knob, _| series.contains(knob));
        let mut own = point.setting.clone();
        own.retain(|knob, _| !series.contains(knob));
        run.label = Some(words(result, &own));
        match groups.iter_mut().find(|(known, _)| *known == group) {
            Some((_, runs)) => runs.push(run),
            None => groups.push((group, vec![run])),
        }
    }
    let mut charts = String::new();
    for (group, runs) in &groups {
        for runs in runs.chunks(LINES) {
            let runs: Vec<&Record> = runs.iter().collect();
            let title = match words(result, group) {
                name if name.is_empty() => "Round-trip times by percentile".to_owned(),
                name => format!("Round-trip times by percentile, {name}"),
            };
            charts.push_str(&run_comparison::distribution(&title, &runs));
        }
    }
    match charts.is_empty() {
        true => charts,
        false => folded("Round-trip times by percentile", &charts),
    }
}

/// Merges the round trips of all repeats into one record; `None` without timed round trips.
fn together(runs: &[&Record]) -> Option<Record> {
    let mut all = Histogram::new();
    for run in runs.iter().filter(|run| run.kind == Kind::Latency) {
        all.add(&Histogram::from(run.histograms.get("rtt_ns")?));
    }
    if all.count() == 0 {
        return None;
    }
    let mut run = Record::clone(runs.first()?);
    let data = HistogramData::from(&all);
    run.histograms.insert("rtt_ns".to_owned(), data);
    Some(run)
}

/// Renders the places of loss for the points with the largest losses.
fn losses(result: &ExperimentResult, points: &[(&Point, Vec<&Record>)]) -> String {
    let lost = |run: &Record| run.losses.iter().map(|loss| loss.packets).sum::<u64>();
    let mut worst: Vec<(u64, String, &Record)> = points
        .iter()
        .filter_map(|(point, runs)| {
            let run = runs.iter().copied().max_by_key(|run| lost(run))?;
            let name = words(result, &point.setting);
            (lost(run) > 0).then(|| (lost(run), name, run))
        })
        .collect();
    worst.sort_by_key(|(lost, _, _)| std::cmp::Reverse(*lost));
    let shown: String = (worst.iter())
        .map(|(_, name, run)| (name, loss_flow::flows(run)))
        .filter(|(_, flow)| !flow.is_empty())
        .take(LOSSES)
        .map(|(name, flow)| format!("<h3>{}</h3>\n{flow}", escape(name)))
        .collect();
    if shown.is_empty() {
        return shown;
    }
    let summary = match worst.len() {
        n if n > LOSSES => {
            format!("Places of packet loss, for the {LOSSES} of {n} points with the largest loss")
        }
        _ => "Places of packet loss, for the run with the largest loss of each point".to_owned(),
    };
    folded(&summary, &shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_shared_memory_make_no_other_way() {
        let way = |name: &str| {
            format!(
                "<text>0 shm:x{name}</text><title>shm:x{name}, queue 0</title><text>shm:x…</text>"
            )
        };
        assert_eq!(
            without_names(&way("6627-7")),
            without_names(&way("6627-12"))
        );
        assert_ne!(
            without_names(&way("1")),
            without_names("<text>0 ring:0</text>")
        );
        assert_eq!(
            without_names("<text>0 ring:0</text>"),
            "<text>0 ring:0</text>"
        );
    }
}
