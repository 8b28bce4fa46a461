//! `linerate report`: reports, tables and timelines from stored records.

use std::borrow::Cow;
use std::path::Path;

use linerate_metric::event::Problem;
use linerate_metric::exit;
use linerate_metric::record::Record;
use linerate_report::comparison::SideBySide;
use linerate_report::document::{Document, read_document};
use linerate_report::store::{write_bytes, write_file};
use linerate_report::{csv, html, markdown, text, trace};

use crate::args::{ReportArgs, ReportForm};
use crate::failure::Failure;
use crate::output::{Form, complain, print, print_failure, stderr_style, stdout_style};

/// Runs the command and returns the exit code.
pub fn run(args: &ReportArgs) -> u8 {
    let form = form(args);
    report(args, form).unwrap_or_else(|failure| {
        match form {
            ReportForm::Json => print_failure(Form::Json, &failure, 0),
            _ => complain(&text::problem(&failure.problem, &stderr_style())),
        }
        failure.code
    })
}

fn form(args: &ReportArgs) -> ReportForm {
    match (args.markdown, args.json) {
        (true, _) => ReportForm::Markdown,
        (_, true) => ReportForm::Json,
        _ => args.format,
    }
}

fn report(args: &ReportArgs, form: ReportForm) -> Result<u8, Failure> {
    let documents = documents(&args.records)?;
    if let Some(file) = &args.trace {
        write_trace(file, &documents)?;
    }
    let title = args.title.clone().unwrap_or_else(|| title(&documents));
    if let Some(file) = &args.html {
        write_file(file, &page(&title, &documents))?;
    }
    let out = match form {
        // With only files requested, no text is printed.
        ReportForm::Text
            if args.output.is_none() && (args.html.is_some() || args.trace.is_some()) =>
        {
            return Ok(exit::OK);
        }
        ReportForm::Text => {
            let style = stdout_style(args.color, args.output.is_none());
            match &documents[..] {
                [Document::Run(run)] => text::summary(run, &style),
                [Document::Set(set)] => text::set(set, &style),
                _ => text::side_by_side(&SideBySide::of(&documents), &style),
            }
        }
        ReportForm::Markdown => markdown_of(&documents),
        ReportForm::Csv => csv::side_by_side(&SideBySide::of(&each(&documents))),
        ReportForm::Json => match &documents[..] {
            [Document::Run(run)] => run.to_json(),
            [Document::Set(set)] => json(set),
            _ => json(&SideBySide::of(&documents)),
        },
        ReportForm::Html => page(&title, &documents),
    };
    match &args.output {
        Some(file) => write_file(file, &format!("{}\n", out.trim_end()))?,
        None => print(out.trim_end()),
    }
    Ok(exit::OK)
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("our documents hold only what JSON can say")
}

/// Returns the runs of a set without common figures, so that each gets its own row; else the
/// documents.
fn each(documents: &[Document]) -> Cow<'_, [Document]> {
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
    if let [Document::Set(set)] = documents
        && let Some(result) = &set.result.experiment
    {
        return markdown::experiment(result, set);
    }
    if let [Document::Set(set)] = documents
        && let Some(search) = &set.result.search
    {
        return markdown::search(search);
    }
    markdown::side_by_side(&SideBySide::of(&each(documents)))
}

fn page(title: &str, documents: &[Document]) -> String {
    if let [Document::Set(set)] = documents {
        return html::of_set(title, set);
    }
    match documents {
        [_] => html::report(title, &runs(documents), &[]),
        several => html::side_by_side(title, &SideBySide::of(several), several),
    }
}

fn runs(documents: &[Document]) -> Vec<Record> {
    let runs = documents.iter().flat_map(Document::runs);
    runs.cloned().collect()
}

fn title(documents: &[Document]) -> String {
    match documents {
        [one] => format!("linerate {}", one.id()),
        several => format!("linerate: {} records", several.len()),
    }
}

/// Finds records by id or path. Names that look like a path, or are files, are paths; for a
/// directory of results it is the table in it.
fn documents(names: &[String]) -> Result<Vec<Document>, Failure> {
    #[cfg(feature = "history")]
    let mut history = None;
    let mut documents = Vec::new();
    for name in names {
        let table = Path::new(name).join("result.json");
        let path = match table.is_file() {
            true => &table,
            false => Path::new(name),
        };
        let is_path = name.contains('/') || name.ends_with(".json") || path.is_file();
        #[cfg(feature = "history")]
        if !is_path {
            let history = match &mut history {
                Some(history) => history,
                none => none.insert(linerate_report::history::History::open_default()?),
            };
            let entry = history.find(name)?;
            documents.push(history.document(&entry.id)?);
            continue;
        }
        #[cfg(not(feature = "history"))]
        if !is_path {
            return Err(Failure::usage(Problem::new(
                "this build of linerate has no history and cannot find ids",
                name,
                "name a file: $XDG_DATA_HOME/linerate/runs/ID.json",
            )));
        }
        documents.push(read_document(path)?);
    }
    Ok(documents)
}

/// Writes the first stored timeline.
fn write_trace(file: &Path, documents: &[Document]) -> Result<(), Failure> {
    let mut timelines = documents
        .iter()
        .flat_map(Document::runs)
        .filter_map(|run| run.timeline.as_ref());
    let Some(timeline) = timelines.next() else {
        return Err(Failure::failed(Problem::new(
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
    use linerate_metric::run_set::{RunSet, SET_SCHEMA, SetResult};

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
        let alone = [Document::Run(Box::new(run))];
        let rows = |documents: &[Document]| csv::side_by_side(&SideBySide::of(&each(documents)));
        assert!(rows(&alone).lines().count() > 1);
        assert_eq!(rows(&[set]), rows(&alone));
    }
}
