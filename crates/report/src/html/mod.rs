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
mod tuning;

use linerate_metric::comparison::Comparison;
use linerate_metric::expect::Unit;
use linerate_metric::record::Record;
use linerate_metric::run_set::RunSet;
use linerate_metric::statistics::median;

use crate::comparison::SideBySide;
use crate::document::Document;
use crate::svg::{self, escape};
use crate::{differences, markdown, phrases, text};

/// Head of the page. The content security policy forbids loading external resources.
const HEAD: &str = "<meta charset=\"utf-8\">\n\
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n\
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
<meta name=\"color-scheme\" content=\"light dark\">\n";
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = concat!(include_str!("script.js"), include_str!("timeline.js"));

/// Renders a page about some runs: headline, hosts, comparison, each run.
///
/// `notes` are sentences about the set as a whole, such as measurements that failed and the reason.
#[must_use]
pub fn report(title: &str, runs: &[Record], notes: &[String]) -> String {
    let shown = Shown::of(runs, runs.len());
    page(
        title,
        &shown,
        notes,
        &phrases::headline(runs),
        "",
        Each::Run,
    )
}

/// Renders a comparison of documents: figures with intervals, differences in options and hosts,
/// then each run. Experiments have many runs, so only their caveats are shown.
#[must_use]
pub fn side_by_side(title: &str, sides: &SideBySide, documents: &[Document]) -> String {
    let mut own = String::from("<section>\n<h2>Figures</h2>\n");
    let two = sides.sides.len() == 2;
    let mut headings = vec!["figure".to_owned()];
    headings.extend(sides.names());
    headings.extend(two.then(|| "second/first".to_owned()));
    let rows = sides.figures().map(|known| {
        let name = known.name();
        let mut row = vec![name.clone()];
        row.extend(sides.sides.iter().map(|side| {
            let value = side.figures.get(&name);
            phrases::or_unknown(value, |value| markdown::figure(known.unit, value))
        }));
        let ratio = sides.ratio(&name);
        row.extend(two.then(|| phrases::or_unknown(ratio, phrases::ratio)));
        row
    });
    own.push_str(&figure::grid(&text::Grid {
        headings,
        rows: rows.collect(),
        left: 1,
    }));
    own.push_str(&format!(
        "<p class=\"muted\">{}</p>\n</section>\n",
        escape(&markdown::INTERVALS.replace("In brackets", "Below a figure"))
    ));
    own.push_str("<section>\n<h2>Differences</h2>\n");
    match sides.differences.is_empty() {
        true => own.push_str(&format!("<p>{}</p>\n", differences::NONE)),
        false => {
            let (headings, rows) = differences::grid(&sides.differences, &sides.names());
            own.push_str(&figure::grid(&text::Grid {
                headings,
                rows,
                left: usize::MAX,
            }));
        }
    }
    own.push_str("</section>\n");
    let mut notes = Vec::new();
    for (side, document) in sides.sides.iter().zip(documents) {
        if document.experiment().is_some() {
            notes.extend((side.doubts.iter()).map(|why| format!("{}: {why}", side.name)));
        }
    }
    let shown = Shown::beside(sides, documents);
    page(title, &shown, &notes, &sides.verdict, &own, Each::Run)
}

/// Runs that a page shows one by one.
struct Shown {
    runs: Vec<Record>,
    /// Number of runs per document; ratios are only made within a document.
    lengths: Vec<usize>,
    /// Number of runs made, including those not shown.
    made: usize,
    /// HTML of the series of each document.
    series: String,
}

impl Shown {
    /// Runs of one document, with the number of runs made.
    fn of(runs: &[Record], made: usize) -> Self {
        Self {
            runs: runs.to_vec(),
            lengths: vec![runs.len()],
            made,
            series: series::section("", runs),
        }
    }

    /// Runs of several documents, labelled with the documents' names. Runs of experiments are left
    /// out.
    fn beside(sides: &SideBySide, documents: &[Document]) -> Self {
        let mut shown = Self {
            runs: Vec::new(),
            lengths: Vec::new(),
            made: 0,
            series: String::new(),
        };
        for (side, document) in sides.sides.iter().zip(documents) {
            if document.experiment().is_some() {
                continue;
            }
            let runs = document.runs();
            let name = |run: &Record| match phrases::name(run) {
                _ if runs.len() == 1 => side.name.clone(),
                name if name == side.name => name,
                name => format!("{}: {name}", side.name),
            };
            shown.lengths.push(runs.len());
            shown.made += runs.len();
            shown.series += &series::section(&side.name, runs);
            shown.runs.extend(runs.iter().map(|run| Record {
                label: Some(name(run)),
                ..run.clone()
            }));
        }
        shown
    }
}

/// Note on the page of an interrupted set.
const INTERRUPTED: &str = "Interrupted: these are the results up to the interruption.";

/// Renders a page about a set of runs, with its conclusions.
#[must_use]
pub fn of_set(title: &str, set: &RunSet) -> String {
    if let Some(result) = &set.result.experiment {
        let body = experiment::body(result, set) + &footer(&set.runs);
        return framed(title, &body);
    }
    let follows = text::conclusions_of(&set.result);
    // Of many similar runs, one per name is shown; of a sweep, the points on the front.
    let mut runs = set.runs.clone();
    if let Some(found) = &set.result.sweep {
        runs = sweep::shown(found, &set.runs);
        runs.truncate(SHOWN_ALIKE);
    } else if set.result.is_many_alike() {
        runs = typical(&set.runs, paired_comparison::of(&set.result));
        runs.truncate(SHOWN_ALIKE);
    }
    let mut sentences = phrases::set_headline(&set.result, &runs);
    let mut shown = Shown::of(&runs, set.runs.len());
    if set.result.waiting_costs.is_some() {
        // One round per wait mode is shown; sentences and chart cover all rounds.
        shown.runs = typical(&set.runs, None);
        shown.lengths = vec![shown.runs.len()];
        sentences = phrases::set_headline(&set.result, &set.runs);
    }
    let mut own = set
        .result
        .capacity
        .as_deref()
        .map_or_else(String::new, capacity::section);
    if let Some(search) = &set.result.search {
        own.push_str(&format!(
            "<section>\n<h2>Trials of the search</h2>\n{}</section>\n",
            figure::grid(&text::trials(search))
        ));
    }
    own.push_str(&forward::saturation(&set.result.saturation));
    if !follows.is_empty() && own.is_empty() {
        let follows = follows.iter().map(|found| {
            let grid = found.grid.as_ref().map_or_else(String::new, figure::grid);
            match found.said.is_empty() {
                true => grid,
                false => format!("{grid}<p>{}</p>\n", ticked(&pretty(&found.said))),
            }
        });
        own = format!(
            "<section>\n<h2>Conclusions</h2>\n{}</section>\n",
            follows.collect::<String>()
        );
    }
    own.push_str(&tuning::section(set));
    own.push_str(&paired_comparison::section(set));
    own.push_str(&tuning::in_vain(set));
    own.push_str(&sweep::section(set));
    let result = &set.result;
    let mut notes = result.notes.clone();
    if set.interrupted {
        notes.insert(0, INTERRUPTED.to_owned());
    }
    let each = match (
        result.capacity.is_some() || result.search.is_some() || !result.saturation.is_empty(),
        result.load_curve.is_some(),
    ) {
        (true, _) => Each::Step,
        (_, true) => Each::Point,
        _ => Each::Run,
    };
    page(title, &shown, &notes, &sentences, &own, each)
}

/// Kind of the runs on a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Each {
    /// Separate measurements, shown in full.
    Run,
    /// Points of a curve: compared in a chart, folded individually.
    Point,
    /// Steps of a sweep or search: folded, because their result is shown above.
    Step,
}

/// Returns one run per name: the one closest to the median of its name.
fn typical(runs: &[Record], compared: Option<&Comparison>) -> Vec<Record> {
    let mut names: Vec<&Option<String>> = Vec::new();
    for run in runs {
        if !names.contains(&&run.label) {
            names.push(&run.label);
        }
    }
    if compared.is_some() {
        // The order of the sides was random.
        names.sort();
    }
    let value = |run: &Record| {
        let figure = compared.map_or_else(
            || Some(linerate_metric::figure::of_kind(run.kind)),
            |found| linerate_metric::figure::named(&found.figure),
        );
        figure.and_then(|figure| figure.of(run)).unwrap_or(0.0)
    };
    // The median of a comparison leaves out excluded pairs.
    let side = |name: &Option<String>| match (compared, name.as_deref()) {
        (Some(found), Some("A")) => found.a.value,
        (Some(found), Some("B")) => found.b.value,
        _ => None,
    };
    let of = |name: &Option<String>| {
        let alike = || runs.iter().filter(|run| run.label == *name);
        let values: Vec<f64> = alike().map(value).collect();
        let middle = side(name).map_or_else(|| median(&values), |side| Some(side.median))?;
        let off = |run: &&Record| (value(run) - middle).abs();
        alike()
            .min_by(|one, other| off(one).total_cmp(&off(other)))
            .cloned()
    };
    names.into_iter().filter_map(of).collect()
}

/// Largest number of runs shown of a set of similar runs.
const SHOWN_ALIKE: usize = 8;

fn page(
    title: &str,
    shown: &Shown,
    notes: &[String],
    sentences: &[String],
    follows: &str,
    kind: Each,
) -> String {
    let runs = &phrases::told_apart(&shown.runs)[..];
    let mut body = String::new();
    body.push_str(&header(title, (runs, shown.made), notes, sentences));
    body.push_str(follows);
    let ways: Vec<String> = runs.iter().map(path_section::section).collect();
    let first = ways.iter().find(|way| !way.is_empty());
    if let Some(way) = first {
        body.push_str(&format!("<section>\n{way}</section>\n"));
    }
    body.push_str(&hosts::section(runs));
    let mut each = String::new();
    for (number, (run, way)) in runs.iter().zip(&ways).enumerate() {
        // The path diagram shown above is not repeated.
        let own = if Some(way) == first { "" } else { way };
        each.push_str(&run::section(run, &anchor(runs, number), own));
    }
    if kind != Each::Step {
        body.push_str(&run_comparison::section(
            runs,
            &shown.lengths,
            &shown.series,
        ));
    }
    if kind == Each::Run {
        body.push_str(&each);
    } else {
        body.push_str(&format!(
            "<section>\n<details class=\"steps\"><summary>All {} runs</summary>\n{each}</details>\n</section>\n",
            runs.len()
        ));
    }
    body.push_str(&footer(runs));
    framed(title, &body)
}

/// Wraps the body in the page frame.
fn framed(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n{HEAD}<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        escape(title)
    )
}

fn header(
    title: &str,
    (runs, made): (&[Record], usize),
    notes: &[String],
    sentences: &[String],
) -> String {
    let mut out = format!(
        "<header>\n<p class=\"brand\">linerate</p>\n<h1>{}</h1>\n",
        escape(title)
    );
    for sentence in sentences {
        out.push_str(&format!(
            "<p class=\"lead\">{}</p>\n",
            stressed(&pretty(sentence))
        ));
    }
    if let [run] = runs {
        out.push_str(&findings::verdict(run));
    }
    if sentences.is_empty() {
        out.push_str("<p class=\"lead\">No run has a result.</p>\n");
    }
    if let Some(first) = runs.first() {
        let count = phrases::amount(made as u64, "run");
        let shown = match runs.len() {
            n if n == made => String::new(),
            n => format!(" ({n} shown)"),
        };
        out.push_str(&format!(
            "<p class=\"muted\">{count}{shown}, started {}</p>\n",
            first.started.strftime("%Y-%m-%d %H:%M:%S UTC")
        ));
    }
    for note in notes {
        out.push_str(&format!("<p class=\"callout\">{}</p>\n", ticked(note)));
    }
    out.push_str("</header>\n");
    out
}

fn footer(runs: &[Record]) -> String {
    let mut tools: Vec<_> = runs
        .iter()
        .map(|run| format!("{} {}", run.tool.name, run.tool.version))
        .collect();
    tools.dedup();
    format!(
        "<footer>Made by {}. A dash marks an unknown value. Rates are payload unless a layer is named, in SI units (1 Gb/s = 10<sup>9</sup> bit/s), sizes in IEC units (1 KiB = 1024 B).</footer>\n",
        escape(&if tools.is_empty() {
            "linerate".to_owned()
        } else {
            tools.join(", ")
        })
    )
}

/// Replaces the ASCII unit `us` by `µs`.
fn pretty(text: &str) -> String {
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
fn ticked(text: &str) -> String {
    let parts: Vec<String> = text.split('`').map(escape).collect();
    // An unpaired backtick is literal.
    if parts.len().is_multiple_of(2) {
        return escape(text);
    }
    let part = |(number, part): (usize, &String)| match number % 2 {
        0 => part.clone(),
        _ => format!("<code>{part}</code>"),
    };
    parts.iter().enumerate().map(part).collect()
}

/// Escapes the text and sets figures with their units in bold.
fn stressed(text: &str) -> String {
    const UNITS: &[&str] = &[
        "b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s", "/s", "k/s", "M/s", "G/s", "ns", "µs", "ms", "s",
        "%",
    ];
    let words: Vec<&str> = text.split(' ').collect();
    let bare = |word: &str| word.trim_end_matches([',', '.', ':', ';', ')']).to_owned();
    let is_number = |word: &str| word.trim_start_matches(['<', '(']).parse::<f64>().is_ok();
    let mut out = Vec::new();
    let mut position = 0;
    while position < words.len() {
        let word = words[position];
        let next = words.get(position + 1).copied().unwrap_or("");
        let unit = bare(next);
        if is_number(word) && UNITS.contains(&unit.as_str()) {
            let (before, word) = match word.strip_prefix('(') {
                Some(word) => ("(", word),
                None => ("", word),
            };
            out.push(format!(
                "{before}<b>{}&nbsp;{}</b>{}",
                escape(word),
                escape(&unit),
                escape(&next[unit.len()..])
            ));
            position += 2;
            continue;
        }
        let ratio = word.strip_suffix('x').is_some_and(is_number);
        out.push(if ratio {
            format!("<b>{}</b>", escape(word))
        } else {
            escape(word)
        });
        position += 1;
    }
    out.join(" ")
}

/// Returns the axis unit of a figure.
fn unit(of: Unit, highest: f64) -> svg::Unit {
    match of {
        Unit::BitRate => svg::Unit::of_rate(highest),
        Unit::Nanos => svg::Unit::of_time(highest),
        Unit::PerSecond => svg::Unit::of_frequency(highest),
        Unit::Share | Unit::Count | Unit::Bytes => svg::Unit::COUNT,
    }
}

/// Returns the HTML id of a run; the record may be on the page twice.
fn anchor(runs: &[Record], number: usize) -> String {
    let id = &runs[number].id;
    let before = runs[..number].iter().filter(|run| run.id == *id).count();
    match before {
        0 => format!("run-{}", escape(id)),
        n => format!("run-{}-{}", escape(id), n + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_runs_that_are_alike_the_middle_one_is_shown() {
        let text = include_str!("../../tests/fixtures/run-1.json");
        let record: Record = serde_json::from_str(text).expect("a record");
        let made = |label: &str, goodput: f64| {
            let mut run = record.clone();
            run.label = Some(label.to_owned());
            run.summary.goodput_bps = Some(goodput);
            run
        };
        let runs = [
            made("B", 9.0),
            made("A", 1.0),
            made("B", 5.0),
            made("A", 3.0),
            made("B", 4.0),
            made("A", 2.0),
        ];
        let shown = typical(&runs, None);
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
            assert_eq!(pretty(text), page);
        }
    }

    #[test]
    fn what_stands_in_backticks_is_code() {
        for (text, page) in [
            ("give it `fq` & more", "give it <code>fq</code> &amp; more"),
            ("`a<b`", "<code>a&lt;b</code>"),
            ("one ` alone", "one ` alone"),
            ("none", "none"),
        ] {
            assert_eq!(ticked(text), page);
        }
    }

    #[test]
    fn figures_in_sentences_are_stressed_and_the_rest_escaped() {
        assert_eq!(
            stressed("higher (-32 % to +30 %)."),
            "higher (<b>-32&nbsp;%</b> to <b>+30&nbsp;%</b>)."
        );
        assert_eq!(
            stressed("TCP <b> carried 61.5 Gb/s, 7.9x more with 0.26 % lost."),
            "TCP &lt;b&gt; carried <b>61.5&nbsp;Gb/s</b>, <b>7.9x</b> more with <b>0.26&nbsp;%</b> lost."
        );
    }
}
