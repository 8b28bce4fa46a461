//! Details of an experiment's points from their records: path diagrams, distributions, stages,
//! calls, losses; folded, each under the name of its point.

use std::collections::BTreeMap;

use linerate_record::experiment::{ExperimentPoint, ExperimentResult, KnobValues, parse_number};
use linerate_record::plan::RunKind;
use linerate_record::record::Record;
use linerate_record::run_set::RunSet;
use linerate_stats::histogram::{Histogram, HistogramData};

use super::{calls, loss_flow, path_section, run_comparison, stages, timeline};
use crate::experiment::describe_setting;
use crate::svg::escape_markup;

/// Largest number of lines in a chart of distributions: the number of colours.
const MAX_LINES: usize = 6;

/// Largest number of further path diagrams; each stands for all points with the same diagram.
const MAX_PATHS: usize = 8;

/// Number of points whose losses are drawn: those with the largest losses.
const MAX_LOSS_POINTS: usize = 6;

/// Name of the lab knob for the number of switches.
const HOPS_KNOB: &str = "hops";

/// Returns the measured points in order, with their records.
fn measured_points<'a>(
    result: &'a ExperimentResult,
    set: &'a RunSet,
) -> Vec<(&'a ExperimentPoint, Vec<&'a Record>)> {
    let by_id: BTreeMap<&str, &Record> = set.runs.iter().map(|run| (&*run.id, run)).collect();
    let records = |point: &ExperimentPoint| -> Vec<&'a Record> {
        let runs = point.runs.iter();
        runs.filter_map(|id| by_id.get(&**id).copied()).collect()
    };
    (result.points.iter())
        .map(|point| (point, records(point)))
        .filter(|(_, runs)| !runs.is_empty())
        .collect()
}

fn render_folded(summary: &str, body: &str) -> String {
    format!(
        "<details><summary>{}</summary>\n{body}</details>\n",
        escape_markup(summary)
    )
}

/// Returns the switches at a point: the beginning of the longest path.
fn switches_at<'a>(result: &'a ExperimentResult, setting: &KnobValues) -> &'a [String] {
    let all_switches = &result.switches[..];
    let hops = setting.get(HOPS_KNOB).and_then(|value| parse_number(value));
    let count = hops.map_or(all_switches.len(), |hops| {
        all_switches.len().min(hops as usize)
    });
    &all_switches[..count]
}

/// Renders the path diagram of one point, and further diagrams folded.
pub(super) fn path_diagrams(result: &ExperimentResult, set: &RunSet) -> String {
    let mut diagrams: Vec<(String, Vec<String>, usize)> = Vec::new();
    let mut distinct_shapes: Vec<String> = Vec::new();
    for (point, runs) in measured_points(result, set) {
        let between = switches_at(result, &point.setting);
        let diagram = path_section::path_via(runs[0], between);
        if diagram.is_empty() {
            continue;
        }
        let name = describe_setting(result, &point.setting);
        let shape = without_memory_names(&diagram);
        match distinct_shapes
            .iter()
            .position(|distinct_shapes| *distinct_shapes == shape)
        {
            Some(position) => diagrams[position].1.push(name),
            None => {
                distinct_shapes.push(shape);
                diagrams.push((diagram, vec![name], between.len()));
            }
        }
    }
    // The longest path shows the most components.
    let longest = diagrams.iter().map(|(_, _, between)| *between).max();
    let Some(first) = diagrams
        .iter()
        .position(|diagram| Some(diagram.2) == longest)
    else {
        return String::new();
    };
    let (diagram, names, _) = diagrams.remove(first);
    let mut out = format!("<section>\n{diagram}{}", diagram_caption(&names));
    if !diagrams.is_empty() {
        let count = diagrams.len();
        let mut body: String = (diagrams.iter().take(MAX_PATHS))
            .map(|(diagram, names, _)| format!("{diagram}{}", diagram_caption(names)))
            .collect();
        if count > MAX_PATHS {
            body.push_str(&format!(
                "<p class=\"muted\">{} more are not drawn; the commands of all points are listed below.</p>\n",
                count - MAX_PATHS
            ));
        }
        let summary = match count {
            1 => "1 other path".to_owned(),
            n => format!("{n} other paths"),
        };
        out.push_str(&render_folded(&summary, &body));
    }
    out.push_str("</section>\n");
    out
}

/// Removes the names of shared memory from a diagram, since they differ between the points of an
/// experiment.
fn without_memory_names(diagram: &str) -> String {
    const KIND: &str = "shm:";
    let mut parts = diagram.split(KIND);
    let mut shape = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(['<', ' ', ',', '"']).unwrap_or(part.len());
        shape.push_str(KIND);
        shape.push_str(&part[end..]);
    }
    shape
}

fn diagram_caption(names: &[String]) -> String {
    let others = match names.len() {
        1 => String::new(),
        2 => "; 1 other point has the same diagram".to_owned(),
        n => format!("; {} other points have the same diagram", n - 1),
    };
    format!(
        "<p class=\"muted\">Diagram of the point {}{others}.</p>\n",
        escape_markup(&names[0])
    )
}

/// Renders details from the records of the points; empty if there are none.
pub(super) fn detail_section(result: &ExperimentResult, set: &RunSet) -> String {
    let points = measured_points(result, set);
    let mut body = distributions(result, &points);
    let mut add_details = |summary: &str, render: &dyn Fn(&Record) -> String| {
        let details: String = points
            .iter()
            .filter_map(|(point, runs)| {
                let details = runs.iter().map(|run| render(run)).find(|s| !s.is_empty())?;
                let name = escape_markup(&describe_setting(result, &point.setting));
                Some(format!("<h3>{name}</h3>\n{details}"))
            })
            .collect();
        if !details.is_empty() {
            body.push_str(&render_folded(summary, &details));
        }
    };
    add_details("Stages of a round trip", &stages::stage_bar);
    add_details("System calls of one run per point", &calls::calls_table);
    add_details("Timeline of one run per point", &|run| {
        run.timeline
            .as_ref()
            .map(timeline::render_timeline)
            .unwrap_or_default()
    });
    body.push_str(&loss_diagrams(result, &points));
    if body.is_empty() {
        return body;
    }
    format!("<section>\n<h2>Details of the points</h2>\n{body}</section>\n")
}

/// Renders round-trip times by percentile, with all repeats of a point merged: one chart per
/// combination of the knobs that form a line of the first plot.
fn distributions(result: &ExperimentResult, points: &[(&ExperimentPoint, Vec<&Record>)]) -> String {
    let series: &[String] = result.plots.first().map_or(&[], |plot| &plot.series);
    let mut groups: Vec<(KnobValues, Vec<Record>)> = Vec::new();
    for (point, runs) in points {
        let Some(mut run) = merge_repeats(runs) else {
            continue;
        };
        let mut group = point.setting.clone();
        group.retain(|knob, _| series.contains(knob));
        let mut other_knobs = point.setting.clone();
        other_knobs.retain(|knob, _| !series.contains(knob));
        run.label = Some(describe_setting(result, &other_knobs));
        match groups
            .iter_mut()
            .find(|(group_setting, _)| *group_setting == group)
        {
            Some((_, runs)) => runs.push(run),
            None => groups.push((group, vec![run])),
        }
    }
    let mut charts = String::new();
    for (group, runs) in &groups {
        for runs in runs.chunks(MAX_LINES) {
            let runs: Vec<&Record> = runs.iter().collect();
            let title = match describe_setting(result, group) {
                name if name.is_empty() => "Round-trip times by percentile".to_owned(),
                name => format!("Round-trip times by percentile, {name}"),
            };
            charts.push_str(&run_comparison::rtt_distribution(&title, &runs));
        }
    }
    match charts.is_empty() {
        true => charts,
        false => render_folded("Round-trip times by percentile", &charts),
    }
}

/// Merges the round trips of all repeats into one record; `None` without timed round trips.
fn merge_repeats(runs: &[&Record]) -> Option<Record> {
    let mut merged = Histogram::new();
    for run in runs.iter().filter(|run| run.kind == RunKind::Latency) {
        merged.add(&Histogram::from(run.histograms.get("rtt_ns")?));
    }
    if merged.count() == 0 {
        return None;
    }
    let mut run = Record::clone(runs.first()?);
    let data = HistogramData::from(&merged);
    run.histograms.insert("rtt_ns".to_owned(), data);
    Some(run)
}

/// Renders the places of loss for the points with the largest losses.
fn loss_diagrams(result: &ExperimentResult, points: &[(&ExperimentPoint, Vec<&Record>)]) -> String {
    let packets_lost = |run: &Record| run.losses.iter().map(|loss| loss.packets).sum::<u64>();
    let mut by_loss: Vec<(u64, String, &Record)> = points
        .iter()
        .filter_map(|(point, runs)| {
            let run = runs.iter().copied().max_by_key(|run| packets_lost(run))?;
            let name = describe_setting(result, &point.setting);
            (packets_lost(run) > 0).then(|| (packets_lost(run), name, run))
        })
        .collect();
    by_loss.sort_by_key(|(packets_lost, _, _)| std::cmp::Reverse(*packets_lost));
    let diagrams: String = (by_loss.iter())
        .map(|(_, name, run)| (name, loss_flow::loss_flows(run)))
        .filter(|(_, flow)| !flow.is_empty())
        .take(MAX_LOSS_POINTS)
        .map(|(name, flow)| format!("<h3>{}</h3>\n{flow}", escape_markup(name)))
        .collect();
    if diagrams.is_empty() {
        return diagrams;
    }
    let summary = match by_loss.len() {
        n if n > MAX_LOSS_POINTS => {
            format!(
                "Places of packet loss, for the {MAX_LOSS_POINTS} of {n} points with the largest loss"
            )
        }
        _ => "Places of packet loss, for the run with the largest loss of each point".to_owned(),
    };
    render_folded(&summary, &diagrams)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_shared_memory_do_not_make_diagrams_differ() {
        let diagram = |name: &str| {
            format!(
                "<text>0 shm:x{name}</text><title>shm:x{name}, queue 0</title><text>shm:x…</text>"
            )
        };
        assert_eq!(
            without_memory_names(&diagram("6627-7")),
            without_memory_names(&diagram("6627-12"))
        );
        assert_ne!(
            without_memory_names(&diagram("1")),
            without_memory_names("<text>0 ring:0</text>")
        );
        assert_eq!(
            without_memory_names("<text>0 ring:0</text>"),
            "<text>0 ring:0</text>"
        );
    }
}
