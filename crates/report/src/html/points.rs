//! What the records of an experiment's points show beyond its tables: ways, distributions, stages, calls
//! and losses, folded away and each under the name of its point.

use std::collections::BTreeMap;

use linerate_metric::experiment::{ExperimentResult, Point, Setting, number};
use linerate_metric::histogram::{Histogram, HistogramData};
use linerate_metric::plan::Kind;
use linerate_metric::record::Record;
use linerate_metric::set::RunSet;

use super::{calls, compare, loss_flow, path, stages, timeline};
use crate::experiment::setting_words as words;
use crate::svg::escape;

/// Lines of a chart of distributions at most, as many as there are colours.
const LINES: usize = 6;

/// Drawings of other ways at most: each stands for all points that are drawn alike.
const WAYS: usize = 8;

/// Points whose losses are drawn at most, those that lost most.
const LOSSES: usize = 6;

/// The knob of a lab that says how many switches there are.
const HOPS: &str = "hops";

/// The points that were measured with their records, in their order.
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

/// The switches at a point: `between` is the longest way, of which a chain of fewer hops is the beginning.
fn switches<'a>(result: &'a ExperimentResult, setting: &Setting) -> &'a [String] {
    let all = &result.between[..];
    let hops = setting.get(HOPS).and_then(|value| number(value));
    let count = hops.map_or(all.len(), |hops| all.len().min(hops as usize));
    &all[..count]
}

/// The way of the packets at one point, which is named, and folded away every other way.
pub(super) fn ways(result: &ExperimentResult, set: &RunSet) -> String {
    let mut drawn: Vec<(String, Vec<String>, usize)> = Vec::new();
    let mut known: Vec<String> = Vec::new();
    for (point, runs) in measured(result, set) {
        let between = switches(result, &point.setting);
        let way = path::through(runs[0], between);
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
    // The longest way shows most of what was built.
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
                "<p class=\"muted\">{} more are not drawn; the commands of all points stand below.</p>\n",
                count - WAYS
            ));
        }
        let summary = match count {
            1 => "The other way".to_owned(),
            n => format!("The {n} other ways"),
        };
        out.push_str(&folded(&summary, &body));
    }
    out.push_str("</section>\n");
    out
}

/// A drawing without what its shared memory is called: each point of an experiment has names of its own for it.
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
        2 => "; 1 other point is drawn alike".to_owned(),
        n => format!("; {} other points are drawn alike", n - 1),
    };
    format!(
        "<p class=\"muted\">Drawn at the point {}{also}.</p>\n",
        escape(&names[0])
    )
}

/// What the records of the points tell beyond the tables; nothing where they tell no more.
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
    each("Where the time of a round trip went", &stages::split);
    each("System calls, of one run of each point", &calls::table);
    each("What happened when, in one run of each point", &|run| {
        run.timeline
            .as_ref()
            .map(timeline::picture)
            .unwrap_or_default()
    });
    body.push_str(&losses(result, &points));
    if body.is_empty() {
        return body;
    }
    format!("<section>\n<h2>Behind the figures</h2>\n{body}</section>\n")
}

/// Round-trip times by percentile: a chart for each combination of the knobs that make a line of the first
/// plot, all repeats of a point together.
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
            charts.push_str(&compare::distribution(&title, &runs));
        }
    }
    match charts.is_empty() {
        true => charts,
        false => folded("Round-trip times by percentile", &charts),
    }
}

/// The round trips of all repeats as one record; `None` where none was timed.
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

/// Where packets were lost, of the points that lost most.
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
            format!("Where packets were lost, of the {LOSSES} of {n} points that lost most")
        }
        _ => "Where packets were lost, in the run of each point that lost most".to_owned(),
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
