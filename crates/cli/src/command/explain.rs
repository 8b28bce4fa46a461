//! `linerate explain`: what limited a stored run.

use std::io::Read;
use std::path::{Path, PathBuf};

use linerate_explain::causes_page::cause_section;
use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;
use linerate_record::finding::Finding;
use linerate_record::record::Record;
use linerate_report::document::Document;
use linerate_report::store::write_file;
use linerate_report::style::TextStyle;
use linerate_report::{html, text};
use serde::Deserialize;

use crate::args::ExplainArgs;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::standard_streams::print_stdout;

/// Maximum bytes of a document: a set of a thousand runs with their histograms.
const MAX_DOCUMENT_BYTES: u64 = 1 << 30;

/// Runs the command and returns the exit code.
pub fn run(args: &ExplainArgs) -> u8 {
    let output = CommandOutput::new(&args.output);
    explain_document(args, &output).unwrap_or_else(|failure| {
        output.report_failure(&failure);
        failure.code
    })
}

fn explain_document(args: &ExplainArgs, output: &CommandOutput) -> Result<u8, CommandFailure> {
    output.check_files()?;
    let section = args.record.parse().ok().and_then(cause_section);
    if let Some(section) = section.filter(|_| !Path::new(&args.record).exists()) {
        print_stdout(&section);
        return Ok(exit_codes::OK);
    }
    let title = format!("linerate explain {}", args.record);
    let has_cause = match read_document(&args.record)? {
        Document::Run(mut record) => {
            crate::findings::add_findings(&mut record);
            output.write_document(&record, |style| text::render_explanation(&record, style))?;
            if let Some(file) = &args.html {
                let runs = std::slice::from_ref(&*record);
                write_file(file, &html::render_report(&title, runs, &[]))?;
            }
            record.findings.iter().any(Finding::is_cause)
        }
        Document::Set(mut set) => {
            crate::findings::add_findings_to_set(&mut set);
            output.write_document(&set, |style| explained_runs(&set.runs, style))?;
            if let Some(file) = &args.html {
                write_file(file, &html::render_set(&title, &set))?;
            }
            let mut findings = set.runs.iter().flat_map(|run| &run.findings);
            findings.any(Finding::is_cause)
        }
    };
    Ok(match args.fail_on_finding && has_cause {
        true => exit_codes::GATE,
        false => exit_codes::OK,
    })
}

fn explained_runs(runs: &[Record], style: &TextStyle) -> String {
    let each = runs.iter().map(|run| text::render_explanation(run, style));
    each.collect::<Vec<_>>().join("\n\n")
}

/// Reads a record or a set.
fn read_document(name: &str) -> Result<Document, CommandFailure> {
    let read_failure = |error: std::io::Error| {
        CommandFailure::failed(ErrorReport::new(
            format!("cannot be read ({error})"),
            name,
            "name a record file, the id of a stored record, or - for standard input",
        ))
    };
    let mut content = String::new();
    if name == "-" {
        let stdin = std::io::stdin().lock();
        stdin
            .take(MAX_DOCUMENT_BYTES)
            .read_to_string(&mut content)
            .map_err(read_failure)?;
    } else {
        let path = path_of(name)?;
        let file = std::fs::File::open(&path).map_err(read_failure)?;
        file.take(MAX_DOCUMENT_BYTES)
            .read_to_string(&mut content)
            .map_err(read_failure)?;
    }
    parse_document(&content).map_err(|why| {
        CommandFailure::failed(ErrorReport::new(
            why,
            name,
            "give a record or a set that --json printed",
        ))
    })
}

/// Returns the file of a name: a path, or an id as in `linerate runs` (a unique start or end of
/// one, `last`, `last~1`).
fn path_of(name: &str) -> Result<PathBuf, CommandFailure> {
    let path = Path::new(name);
    if path.exists() || name.contains('/') || name.ends_with(".json") {
        return Ok(path.to_owned());
    }
    #[cfg(feature = "history")]
    {
        let history = linerate_report::history::History::open_default()?;
        let id = history.find(name)?.id;
        Ok(history.file(&id))
    }
    #[cfg(not(feature = "history"))]
    {
        let store = linerate_report::store::RecordStore::open_default()?;
        Ok(store.file(name))
    }
}

fn parse_document(content: &str) -> Result<Document, String> {
    // A stream of lines ends with the record.
    match content.trim_end().rsplit_once('\n') {
        Some((_, last)) if content.starts_with('{') && last.starts_with('{') => {
            parse_last_event(last)
        }
        _ => match Document::from_json(content) {
            Ok(document) => Ok(document),
            Err(error) => parse_last_event(content).map_err(|_| error.to_string()),
        },
    }
}

/// Parses the last line of `--json-stream`: the event of a finished run, or a set.
fn parse_last_event(line: &str) -> Result<Document, String> {
    #[derive(Deserialize)]
    struct FinishedEvent {
        record: Box<Record>,
    }
    match serde_json::from_str::<FinishedEvent>(line) {
        Ok(finished) => Ok(Document::Run(finished.record)),
        Err(_) => Document::from_json(line).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_documents_are_reported() {
        for (text, why) in [
            ("", "empty"),
            ("{}", "not a record"),
            (r#"{"schema":"linerate/run/9"}"#, "linerate/run/9"),
            (r#"{"schema":"linerate/run/1"}"#, "invalid record"),
            ("[1]", "not a record"),
            // A truncated file and a truncated stream.
            (r#"{"schema":"linerate/ru"#, "truncated"),
            ("{\"event\":\"started\"}\n{\"event\":\"fin", "truncated"),
        ] {
            let error = parse_document(text).expect_err("no record");
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
