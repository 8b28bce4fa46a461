//! Self-contained HTML page: no network access, no other files, light and dark theme, usable on
//! phones, in print and without script.

mod calls;
mod capacity;
mod costs;
mod experiment;
mod experiment_points;
mod figure;
mod findings;
mod forward;
mod generate;
mod hosts;
mod loss_flow;
mod paired_comparison;
mod path_section;
mod run;
mod run_comparison;
mod series;
mod stages;
mod sweep;
mod timeline;
#[cfg(feature = "history")]
mod trend;
mod tuning;

use linerate_record::comparison::Comparison;
use linerate_record::expect::FigureUnit;
use linerate_record::record::Record;
use linerate_record::run_set::RunSet;
use linerate_stats::statistics::median;

#[cfg(feature = "history")]
pub use trend::render_trend;

use crate::comparison::DocumentComparison;
use crate::document::Document;
use crate::model;
use crate::svg::{self, escape_markup};
use crate::{conclusions, differences, phrases, rate_search};

/// Head of the page. The content security policy forbids loading external resources.
const PAGE_HEAD: &str = "<meta charset=\"utf-8\">\n\
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n\
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
<meta name=\"color-scheme\" content=\"light dark\">\n";
const PAGE_STYLE: &str = include_str!("style.css");
const PAGE_SCRIPT: &str = concat!(include_str!("script.js"), include_str!("timeline.js"));

/// Renders a page about some runs: headline, hosts, comparison, each run.
///
/// `notes` are sentences about the set as a whole, such as measurements that failed and the reason.
#[must_use]
pub fn render_report(title: &str, runs: &[Record], notes: &[String]) -> String {
    let shown = ShownRuns::of_document(runs, runs.len());
    render_page(
        title,
        &shown,
        notes,
        &phrases::run_headlines(runs),
        "",
        RunKindOnPage::Measurement,
    )
}

/// Renders a comparison of documents: figures with intervals, differences in options and hosts,
/// then each run. Experiments have many runs, so only their caveats are shown.
#[must_use]
pub fn render_comparison(
    title: &str,
    sides: &DocumentComparison,
    documents: &[Document],
) -> String {
    let mut body = String::from("<section>\n<h2>Figures</h2>\n");
    let two = sides.documents.len() == 2;
    let mut headings = vec!["figure".to_owned()];
    headings.extend(sides.names());
    headings.extend(two.then(|| "second/first".to_owned()));
    let rows = sides.figures().map(|figure_row| {
        let name = figure_row.key();
        let mut row = vec![name.clone()];
        row.extend(sides.documents.iter().map(|side| {
            let value = side.figures.get(&name);
            model::or_unknown(value, |value| {
                model::format_estimate(figure_row.unit, value)
            })
        }));
        let ratio = sides.ratio(&name);
        row.extend(two.then(|| model::or_unknown(ratio, model::format_ratio)));
        row
    });
    body.push_str(&figure::render_grid(&model::Grid {
        headings,
        rows: rows.collect(),
        left_columns: 1,
    }));
    body.push_str(&format!(
        "<p class=\"muted\">{}</p>\n</section>\n",
        escape_markup(&model::INTERVAL_LEGEND.replace("In brackets", "Below a figure"))
    ));
    body.push_str("<section>\n<h2>Differences</h2>\n");
    match sides.differences.is_empty() {
        true => body.push_str(&format!("<p>{}</p>\n", differences::NO_DIFFERENCES)),
        false => {
            let (headings, rows) =
                differences::difference_table(&sides.differences, &sides.names());
            body.push_str(&figure::render_grid(&model::Grid {
                headings,
                rows,
                left_columns: usize::MAX,
            }));
        }
    }
    body.push_str("</section>\n");
    let mut notes = Vec::new();
    for (side, document) in sides.documents.iter().zip(documents) {
        if document.experiment().is_some() {
            notes.extend((side.caveats.iter()).map(|why| format!("{}: {why}", side.name)));
        }
    }
    let shown = ShownRuns::of_documents(sides, documents);
    render_page(
        title,
        &shown,
        &notes,
        &sides.verdict,
        &body,
        RunKindOnPage::Measurement,
    )
}

/// Runs that a page shows one by one.
struct ShownRuns {
    runs: Vec<Record>,
    /// Number of runs per document; ratios are only made within a document.
    runs_per_document: Vec<usize>,
    /// Number of runs made, including those not shown.
    total_runs: usize,
    /// HTML of the series of each document.
    series: String,
}

impl ShownRuns {
    /// Runs of one document, with the number of runs made.
    fn of_document(runs: &[Record], total_runs: usize) -> Self {
        Self {
            runs: runs.to_vec(),
            runs_per_document: vec![runs.len()],
            total_runs,
            series: series::series_section("", runs),
        }
    }

    /// Runs of several documents, labelled with the documents' names. Runs of experiments are left
    /// out.
    fn of_documents(sides: &DocumentComparison, documents: &[Document]) -> Self {
        let mut shown = Self {
            runs: Vec::new(),
            runs_per_document: Vec::new(),
            total_runs: 0,
            series: String::new(),
        };
        for (side, document) in sides.documents.iter().zip(documents) {
            if document.experiment().is_some() {
                continue;
            }
            let runs = document.runs();
            let name = |run: &Record| match phrases::run_name(run) {
                _ if runs.len() == 1 => side.name.clone(),
                name if name == side.name => name,
                name => format!("{}: {name}", side.name),
            };
            shown.runs_per_document.push(runs.len());
            shown.total_runs += runs.len();
            shown.series += &series::series_section(&side.name, runs);
            shown.runs.extend(runs.iter().map(|run| Record {
                label: Some(name(run)),
                ..run.clone()
            }));
        }
        shown
    }
}

/// Note on the page of an interrupted set.
const INTERRUPTED_NOTE: &str = "Interrupted: these are the results up to the interruption.";

/// Renders a page about a set of runs, with its conclusions.
#[must_use]
pub fn render_set(title: &str, set: &RunSet) -> String {
    if let Some(result) = &set.result.experiment {
        let body = experiment::page_body(result, set) + &render_footer(&set.runs);
        return frame_page(title, &body);
    }
    let conclusions = conclusions::conclusions_of(&set.result);
    // Of many similar runs, one per name is shown; of a sweep, the points on the front.
    let mut runs = set.runs.clone();
    if let Some(conclusion) = &set.result.sweep {
        runs = sweep::runs_on_front(conclusion, &set.runs);
        runs.truncate(MAX_SIMILAR_RUNS);
    } else if set.result.has_uniform_runs() {
        runs = typical_runs(&set.runs, paired_comparison::comparison_of(&set.result));
        runs.truncate(MAX_SIMILAR_RUNS);
    }
    let mut sentences = phrases::set_headlines(&set.result, &runs);
    let mut shown = ShownRuns::of_document(&runs, set.runs.len());
    if set.result.waiting_costs.is_some() {
        // One round per wait mode is shown; sentences and chart cover all rounds.
        shown.runs = typical_runs(&set.runs, None);
        shown.runs_per_document = vec![shown.runs.len()];
        sentences = phrases::set_headlines(&set.result, &set.runs);
    }
    let mut sections = set
        .result
        .capacity
        .as_deref()
        .map_or_else(String::new, capacity::capacity_section);
    if let Some(search) = &set.result.search {
        sections.push_str(&format!(
            "<section>\n<h2>Trials of the search</h2>\n{}</section>\n",
            figure::render_grid(&rate_search::trial_table(search))
        ));
    }
    sections.push_str(&forward::saturation_section(&set.result.saturation));
    if !conclusions.is_empty() && sections.is_empty() {
        let conclusions = conclusions.iter().map(|conclusion| {
            let grid = conclusion
                .grid
                .as_ref()
                .map_or_else(String::new, figure::render_grid);
            match conclusion.explanation.is_empty() {
                true => grid,
                false => format!(
                    "{grid}<p>{}</p>\n",
                    mark_code(&with_micro_sign(&conclusion.explanation))
                ),
            }
        });
        sections = format!(
            "<section>\n<h2>Conclusions</h2>\n{}</section>\n",
            conclusions.collect::<String>()
        );
    }
    sections.push_str(&tuning::tuning_section(set));
    sections.push_str(&paired_comparison::pair_section(set));
    sections.push_str(&tuning::rejected_section(set));
    sections.push_str(&sweep::sweep_section(set));
    let result = &set.result;
    let mut notes = result.notes.clone();
    if set.interrupted {
        notes.insert(0, INTERRUPTED_NOTE.to_owned());
    }
    let kind_on_page = match (
        result.capacity.is_some() || result.search.is_some() || !result.saturation.is_empty(),
        result.load_curve.is_some(),
    ) {
        (true, _) => RunKindOnPage::SearchStep,
        (_, true) => RunKindOnPage::CurvePoint,
        _ => RunKindOnPage::Measurement,
    };
    render_page(title, &shown, &notes, &sentences, &sections, kind_on_page)
}

/// Kind of the runs on a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RunKindOnPage {
    /// Separate measurements, shown in full.
    Measurement,
    /// Points of a curve: compared in a chart, folded individually.
    CurvePoint,
    /// Steps of a sweep or search: folded, because their result is shown above.
    SearchStep,
}

/// Returns one run per name: the one closest to the median of its name.
fn typical_runs(runs: &[Record], comparison: Option<&Comparison>) -> Vec<Record> {
    let mut names: Vec<&Option<String>> = Vec::new();
    for run in runs {
        if !names.contains(&&run.label) {
            names.push(&run.label);
        }
    }
    if comparison.is_some() {
        // The order of the sides was random.
        names.sort();
    }
    let value = |run: &Record| {
        let figure = comparison.map_or_else(
            || Some(linerate_record::figure::default_for(run.kind)),
            |found| linerate_record::figure::find(&found.figure),
        );
        figure
            .and_then(|figure| figure.value_in(run))
            .unwrap_or(0.0)
    };
    // The median of a comparison leaves out excluded pairs.
    let value_of_side = |name: &Option<String>| match (comparison, name.as_deref()) {
        (Some(found), Some("A")) => found.a.value,
        (Some(found), Some("B")) => found.b.value,
        _ => None,
    };
    let closest_to_median = |name: &Option<String>| {
        let runs_of_name = || runs.iter().filter(|run| run.label == *name);
        let values: Vec<f64> = runs_of_name().map(value).collect();
        let center = value_of_side(name).map_or_else(
            || median(&values),
            |value_of_side| Some(value_of_side.median),
        )?;
        let distance = |run: &&Record| (value(run) - center).abs();
        runs_of_name()
            .min_by(|left, right| distance(left).total_cmp(&distance(right)))
            .cloned()
    };
    names.into_iter().filter_map(closest_to_median).collect()
}

/// Largest number of runs shown of a set of similar runs.
const MAX_SIMILAR_RUNS: usize = 8;

fn render_page(
    title: &str,
    shown: &ShownRuns,
    notes: &[String],
    sentences: &[String],
    conclusions: &str,
    kind: RunKindOnPage,
) -> String {
    let runs = &phrases::with_distinct_labels(&shown.runs)[..];
    let mut body = String::new();
    body.push_str(&render_header(
        title,
        (runs, shown.total_runs),
        notes,
        sentences,
    ));
    body.push_str(conclusions);
    let paths: Vec<String> = runs.iter().map(path_section::path_section).collect();
    let first = paths.iter().find(|path| !path.is_empty());
    if let Some(path) = first {
        body.push_str(&format!("<section>\n{path}</section>\n"));
    }
    body.push_str(&hosts::host_section(runs));
    let mut run_sections = String::new();
    for (number, (run, path)) in runs.iter().zip(&paths).enumerate() {
        // The path diagram shown above is not repeated.
        let run_path = if Some(path) == first { "" } else { path };
        run_sections.push_str(&run::run_section(run, &run_anchor(runs, number), run_path));
    }
    if kind != RunKindOnPage::SearchStep {
        body.push_str(&run_comparison::comparison_section(
            runs,
            &shown.runs_per_document,
            &shown.series,
        ));
    }
    if kind == RunKindOnPage::Measurement {
        body.push_str(&run_sections);
    } else {
        body.push_str(&format!(
            "<section>\n<details class=\"steps\"><summary>All {} runs</summary>\n{run_sections}</details>\n</section>\n",
            runs.len()
        ));
    }
    body.push_str(&render_footer(runs));
    frame_page(title, &body)
}

/// Wraps the body in the page frame.
fn frame_page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n{PAGE_HEAD}<title>{}</title>\n<style>\n{PAGE_STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n<script>\n{PAGE_SCRIPT}</script>\n</body>\n</html>\n",
        escape_markup(title)
    )
}

fn render_header(
    title: &str,
    (runs, total_runs): (&[Record], usize),
    notes: &[String],
    sentences: &[String],
) -> String {
    let mut out = format!(
        "<header>\n<p class=\"brand\">linerate</p>\n<h1>{}</h1>\n",
        escape_markup(title)
    );
    for sentence in sentences {
        out.push_str(&format!(
            "<p class=\"lead\">{}</p>\n",
            mark_figures(&with_micro_sign(sentence))
        ));
    }
    if let [run] = runs {
        out.push_str(&findings::costliest_finding(run));
    }
    if sentences.is_empty() {
        out.push_str("<p class=\"lead\">No run has a result.</p>\n");
    }
    if let Some(first) = runs.first() {
        let count = model::count_of(total_runs as u64, "run");
        let shown = match runs.len() {
            n if n == total_runs => String::new(),
            n => format!(" ({n} shown)"),
        };
        out.push_str(&format!(
            "<p class=\"muted\">{count}{shown}, started {}</p>\n",
            first.started.strftime("%Y-%m-%d %H:%M:%S UTC")
        ));
    }
    for note in notes {
        out.push_str(&format!("<p class=\"callout\">{}</p>\n", mark_code(note)));
    }
    out.push_str("</header>\n");
    out
}

fn render_footer(runs: &[Record]) -> String {
    let mut tools: Vec<_> = runs
        .iter()
        .map(|run| format!("{} {}", run.tool.name, run.tool.version))
        .collect();
    tools.dedup();
    format!(
        "<footer>Made by {}. A dash marks an unknown value. Rates are payload unless a layer is named, in SI units (1 Gb/s = 10<sup>9</sup> bit/s), sizes in IEC units (1 KiB = 1024 B).</footer>\n",
        escape_markup(&if tools.is_empty() {
            "linerate".to_owned()
        } else {
            tools.join(", ")
        })
    )
}

/// Replaces the ASCII unit `us` by `µs`.
fn with_micro_sign(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut parts = text.split(" us");
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        // "5 us" is a time; "5 users" and "let us" are not.
        let is_unit = out.ends_with(|last: char| last.is_ascii_digit())
            && !part.starts_with(char::is_alphanumeric);
        out.push_str(if is_unit { " µs" } else { " us" });
        out.push_str(part);
    }
    out
}

/// Escapes the text and marks parts between backticks as code.
fn mark_code(text: &str) -> String {
    let parts: Vec<String> = text.split('`').map(escape_markup).collect();
    // An unpaired backtick is literal.
    if parts.len().is_multiple_of(2) {
        return escape_markup(text);
    }
    let part = |(number, part): (usize, &String)| match number % 2 {
        0 => part.clone(),
        _ => format!("<code>{part}</code>"),
    };
    parts.iter().enumerate().map(part).collect()
}

/// Escapes the text and sets figures with their units in bold.
fn mark_figures(text: &str) -> String {
    const UNITS: &[&str] = &[
        "b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s", "/s", "k/s", "M/s", "G/s", "ns", "µs", "ms", "s",
        "%",
    ];
    let tokens: Vec<&str> = text.split(' ').collect();
    let without_punctuation =
        |token: &str| token.trim_end_matches([',', '.', ':', ';', ')']).to_owned();
    let is_number = |token: &str| token.trim_start_matches(['<', '(']).parse::<f64>().is_ok();
    let mut out = Vec::new();
    let mut position = 0;
    while position < tokens.len() {
        let token = tokens[position];
        let next = tokens.get(position + 1).copied().unwrap_or("");
        let unit = without_punctuation(next);
        if is_number(token) && UNITS.contains(&unit.as_str()) {
            let (before, token) = match token.strip_prefix('(') {
                Some(token) => ("(", token),
                None => ("", token),
            };
            out.push(format!(
                "{before}<b>{}&nbsp;{}</b>{}",
                escape_markup(token),
                escape_markup(&unit),
                escape_markup(&next[unit.len()..])
            ));
            position += 2;
            continue;
        }
        let ratio = token.strip_suffix('x').is_some_and(is_number);
        out.push(if ratio {
            format!("<b>{}</b>", escape_markup(token))
        } else {
            escape_markup(token)
        });
        position += 1;
    }
    out.join(" ")
}

/// Returns the axis unit of a figure.
fn axis_unit(figure_unit: FigureUnit, highest: f64) -> svg::AxisUnit {
    match figure_unit {
        FigureUnit::BitRate => svg::AxisUnit::for_bit_rate(highest),
        FigureUnit::Nanos => svg::AxisUnit::for_time(highest),
        FigureUnit::PerSecond => svg::AxisUnit::for_packet_rate(highest),
        FigureUnit::Share | FigureUnit::Count | FigureUnit::Bytes => svg::AxisUnit::COUNT,
    }
}

/// Returns the HTML id of a run; the record may be on the page twice.
fn run_anchor(runs: &[Record], number: usize) -> String {
    let id = &runs[number].id;
    let previous = runs[..number].iter().filter(|run| run.id == *id).count();
    match previous {
        0 => format!("run-{}", escape_markup(id)),
        n => format!("run-{}-{}", escape_markup(id), n + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_closest_to_the_median_is_shown() {
        let text = include_str!("../../tests/fixtures/run-1.json");
        let record: Record = serde_json::from_str(text).expect("a record");
        let run_with = |label: &str, goodput: f64| {
            let mut run = record.clone();
            run.label = Some(label.to_owned());
            run.summary.goodput_bps = Some(goodput);
            run
        };
        let runs = [
            run_with("B", 9.0),
            run_with("A", 1.0),
            run_with("B", 5.0),
            run_with("A", 3.0),
            run_with("B", 4.0),
            run_with("A", 2.0),
        ];
        let shown = typical_runs(&runs, None);
        let values: Vec<_> = (shown.iter())
            .map(|run| (run.label.as_deref(), run.summary.goodput_bps))
            .collect();
        assert_eq!(values, [(Some("B"), Some(5.0)), (Some("A"), Some(2.0))]);
    }

    #[test]
    fn times_are_pretty_and_words_are_left_alone() {
        for (text, page) in [
            ("12.3 us", "12.3 µs"),
            ("1 us, 20 us to 30 us)", "1 µs, 20 µs to 30 µs)"),
            (
                "where it is used by 5 users of us",
                "where it is used by 5 users of us",
            ),
            ("5 us used", "5 µs used"),
        ] {
            assert_eq!(with_micro_sign(text), page);
        }
    }

    #[test]
    fn text_between_backticks_is_code() {
        for (text, page) in [
            ("give it `fq` & more", "give it <code>fq</code> &amp; more"),
            ("`a<b`", "<code>a&lt;b</code>"),
            ("one ` alone", "one ` alone"),
            ("none", "none"),
        ] {
            assert_eq!(mark_code(text), page);
        }
    }

    #[test]
    fn figures_in_sentences_are_bold_and_the_rest_is_escaped() {
        assert_eq!(
            mark_figures("higher (-32 % to +30 %)."),
            "higher (<b>-32&nbsp;%</b> to <b>+30&nbsp;%</b>)."
        );
        assert_eq!(
            mark_figures("TCP <b> carried 61.5 Gb/s, 7.9x more with 0.26 % lost."),
            "TCP &lt;b&gt; carried <b>61.5&nbsp;Gb/s</b>, <b>7.9x</b> more with <b>0.26&nbsp;%</b> lost."
        );
    }
}
