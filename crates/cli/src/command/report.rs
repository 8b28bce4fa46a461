//! `linerate report`: reports, tables and timelines from stored records.

use std::borrow::Cow;
use std::path::Path;

use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;
use linerate_record::record::Record;
use linerate_report::comparison::DocumentComparison;
use linerate_report::document::{Document, read_directory, read_document};
#[cfg(feature = "history")]
use linerate_report::history;
use linerate_report::store::{write_bytes, write_file};
use linerate_report::{csv, html, markdown, text, trace};

use crate::args::{ReportArgs, ReportFormat};
use crate::failure::CommandFailure;
use crate::output::{OutputFormat, print_failure};
use crate::standard_streams::{print_stderr, print_stdout, stderr_style, stdout_style};

/// Runs the command and returns the exit code.
pub fn run(args: &ReportArgs) -> u8 {
    let format = format_of(args);
    write_report(args, format).unwrap_or_else(|failure| {
        match format {
            ReportFormat::Json => print_failure(OutputFormat::Json, &failure, 0),
            _ => print_stderr(&text::render_error(&failure.problem, &stderr_style())),
        }
        failure.code
    })
}

fn format_of(args: &ReportArgs) -> ReportFormat {
    match (args.markdown, args.json) {
        (true, _) => ReportFormat::Markdown,
        (_, true) => ReportFormat::Json,
        _ => args.format,
    }
}

fn write_report(args: &ReportArgs, form: ReportFormat) -> Result<u8, CommandFailure> {
    let documents = load_documents(&args.records)?;
    if let Some(file) = &args.trace {
        write_trace(file, &documents)?;
    }
    let title = args
        .title
        .clone()
        .unwrap_or_else(|| default_title(&documents));
    if let Some(file) = &args.html {
        write_file(file, &html_page(&title, &documents))?;
    }
    let text_out = match form {
        // With only files requested, no text is printed.
        ReportFormat::Text
            if args.output.is_none() && (args.html.is_some() || args.trace.is_some()) =>
        {
            return Ok(exit_codes::OK);
        }
        ReportFormat::Text => {
            let style = stdout_style(args.color, args.output.is_none());
            match &documents[..] {
                #[cfg(feature = "history")]
                many if is_series(many) => {
                    text::history::render_over_time(&history::trends_by_plan(many), &style)
                }
                [Document::Run(run)] => text::render_summary(run, &style),
                [Document::Set(set)] => text::render_set(set, &style),
                _ => text::render_comparison(&DocumentComparison::compare(&documents), &style),
            }
        }
        ReportFormat::Markdown => markdown_of(&documents),
        ReportFormat::Csv => {
            csv::render_comparison(&DocumentComparison::compare(&expand_set(&documents)))
        }
        ReportFormat::Json => match &documents[..] {
            [Document::Run(run)] => run.to_json(),
            [Document::Set(set)] => json(set),
            _ => json(&DocumentComparison::compare(&documents)),
        },
        ReportFormat::Html => html_page(&title, &documents),
    };
    match &args.output {
        Some(file) => write_file(file, &format!("{}\n", text_out.trim_end()))?,
        None => print_stdout(text_out.trim_end()),
    }
    Ok(exit_codes::OK)
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("our documents hold only what JSON can say")
}

/// Returns the runs of a set without common figures, so that each gets its own row; else the
/// documents.
fn expand_set(documents: &[Document]) -> Cow<'_, [Document]> {
    let [Document::Set(set)] = documents else {
        return Cow::Borrowed(documents);
    };
    if set.result.experiment.is_some() || !set.result.figures.is_empty() {
        return Cow::Borrowed(documents);
    }
    let runs = set.runs.iter().cloned();
    Cow::Owned(runs.map(|run| Document::Run(Box::new(run))).collect())
}

fn markdown_of(documents: &[Document]) -> String {
    #[cfg(feature = "history")]
    if is_series(documents) {
        return markdown::render_over_time(&history::trends_by_plan(documents));
    }
    if let [Document::Set(set)] = documents
        && let Some(result) = &set.result.experiment
    {
        return markdown::render_experiment(result, set);
    }
    if let [Document::Set(set)] = documents
        && let Some(search) = &set.result.search
    {
        return markdown::render_search(search);
    }
    markdown::render_comparison(&DocumentComparison::compare(&expand_set(documents)))
}

fn html_page(title: &str, documents: &[Document]) -> String {
    if let [Document::Set(set)] = documents {
        return html::render_set(title, set);
    }
    match documents {
        #[cfg(feature = "history")]
        many if is_series(many) => html::render_over_time(title, &history::trends_by_plan(many)),
        [_] => html::render_report(title, &all_runs(documents), &[]),
        many => html::render_comparison(title, &DocumentComparison::compare(many), many),
    }
}

/// Most documents that are shown side by side; more are shown as series over time.
#[cfg(feature = "history")]
const MAX_COLUMNS: usize = 8;

/// Returns whether documents are shown as series over time. Experiments have points, which a
/// comparison shows.
#[cfg(feature = "history")]
fn is_series(documents: &[Document]) -> bool {
    documents.len() > MAX_COLUMNS && documents.iter().all(|one| one.experiment().is_none())
}

fn all_runs(documents: &[Document]) -> Vec<Record> {
    let runs = documents.iter().flat_map(Document::runs);
    runs.cloned().collect()
}

fn default_title(documents: &[Document]) -> String {
    match documents {
        [document] => format!("linerate {}", document.id()),
        many => format!("linerate: {} records", many.len()),
    }
}

/// Finds records by id or path. Names that look like a path, or are files, are paths. A directory
/// stands for the table in it, or without one for all of its records.
fn load_documents(names: &[String]) -> Result<Vec<Document>, CommandFailure> {
    #[cfg(feature = "history")]
    let mut history = None;
    let mut documents = Vec::new();
    for name in names {
        let table = Path::new(name).join("result.json");
        let path = match table.is_file() {
            true => &table,
            false => Path::new(name),
        };
        if Path::new(name).is_dir() && !table.is_file() {
            documents.extend(records_of_directory(Path::new(name))?);
            continue;
        }
        let is_path = name.contains('/') || name.ends_with(".json") || path.is_file();
        #[cfg(feature = "history")]
        if !is_path {
            let history = match &mut history {
                Some(history) => history,
                empty => empty.insert(linerate_report::history::History::open_default()?),
            };
            let entry = history.find(name)?;
            documents.push(history.document(&entry.id)?);
            continue;
        }
        #[cfg(not(feature = "history"))]
        if !is_path {
            return Err(CommandFailure::usage(ErrorReport::new(
                "this build of linerate has no history and cannot find ids",
                name,
                "name a file: $XDG_DATA_HOME/linerate/runs/ID.json",
            )));
        }
        documents.push(read_document(path)?);
    }
    Ok(documents)
}

/// Returns the records of a directory, and prints a warning for each other `.json` file.
fn records_of_directory(dir: &Path) -> Result<Vec<Document>, CommandFailure> {
    let found = read_directory(dir)?;
    for error in &found.errors {
        print_stderr(&format!("warning: left out: {error}"));
    }
    if found.documents.is_empty() {
        return Err(CommandFailure::failed(ErrorReport::new(
            "has no record",
            dir.display().to_string(),
            "name a directory with files that --json, -o or the store wrote",
        )));
    }
    Ok(found.documents)
}

/// Writes the first stored timeline.
fn write_trace(file: &Path, documents: &[Document]) -> Result<(), CommandFailure> {
    let mut timelines = documents
        .iter()
        .flat_map(Document::runs)
        .filter_map(|run| run.timeline.as_ref());
    let Some(timeline) = timelines.next() else {
        return Err(CommandFailure::failed(ErrorReport::new(
            "has no stored timeline",
            documents.first().map_or("", Document::id),
            "measure with --trace FILE, which stores one",
        )));
    };
    if file.extension().is_some_and(|end| end == "json") {
        write_file(file, &trace::chrome(timeline))?;
    } else {
        write_bytes(file, &trace::perfetto(timeline))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use linerate_record::run_set::{RunSet, SET_SCHEMA, SetResult};

    use super::*;

    #[test]
    fn runs_of_a_set_without_figures_have_rows_of_their_own() {
        let text = include_str!("../../../report/tests/fixtures/run-1.json");
        let run: Record = serde_json::from_str(text).expect("a record");
        let set = Document::Set(Box::new(RunSet {
            schema: SET_SCHEMA.to_owned(),
            id: "20261101T000000Z-000001".to_owned(),
            kind: "sweep".to_owned(),
            started: run.started,
            interrupted: false,
            runs: vec![run.clone()],
            result: SetResult::default(),
        }));
        let single = [Document::Run(Box::new(run))];
        let rows = |documents: &[Document]| {
            csv::render_comparison(&DocumentComparison::compare(&expand_set(documents)))
        };
        assert!(rows(&single).lines().count() > 1);
        assert_eq!(rows(&[set]), rows(&single));
    }
}
