//! `linerate explain`: what limited a stored run.

use std::io::Read;
use std::path::{Path, PathBuf};

use linerate_metric::event::Problem;
use linerate_metric::exit;
use linerate_metric::finding::Finding;
use linerate_metric::record::Record;
use linerate_report::document::Document;
use linerate_report::store::write_file;
use linerate_report::style::Style;
use linerate_report::{html, text};
use serde::Deserialize;

use crate::args::ExplainArgs;
use crate::failure::Failure;
use crate::output::Output;

/// Maximum bytes of a document: a set of a thousand runs with their histograms.
const LARGEST_BYTES: u64 = 1 << 30;

/// Runs the command and returns the exit code.
pub fn run(args: &ExplainArgs) -> u8 {
    let output = Output::new(&args.output);
    explain(args, &output).unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.code
    })
}

fn explain(args: &ExplainArgs, output: &Output) -> Result<u8, Failure> {
    output.check_file()?;
    let title = format!("linerate explain {}", args.record);
    let has_cause = match read(&args.record)? {
        Document::Run(mut record) => {
            linerate_explain::complete(&mut record);
            output.document(&record, |style| text::explained(&record, style))?;
            if let Some(file) = &args.html {
                let runs = std::slice::from_ref(&*record);
                write_file(file, &html::report(&title, runs, &[]))?;
            }
            record.findings.iter().any(Finding::is_cause)
        }
        Document::Set(mut set) => {
            linerate_explain::complete_set(&mut set);
            output.document(&set, |style| of_runs(&set.runs, style))?;
            if let Some(file) = &args.html {
                write_file(file, &html::of_set(&title, &set))?;
            }
            let mut findings = set.runs.iter().flat_map(|run| &run.findings);
            findings.any(Finding::is_cause)
        }
    };
    Ok(match args.fail_on_finding && has_cause {
        true => exit::GATE,
        false => exit::OK,
    })
}

fn of_runs(runs: &[Record], style: &Style) -> String {
    let each = runs.iter().map(|run| text::explained(run, style));
    each.collect::<Vec<_>>().join("\n\n")
}

/// Reads a record or a set.
fn read(named: &str) -> Result<Document, Failure> {
    let unreadable = |error: std::io::Error| {
        Failure::failed(Problem::new(
            format!("cannot be read ({error})"),
            named,
            "name a record file, the id of a stored record, or - for standard input",
        ))
    };
    let mut content = String::new();
    if named == "-" {
        let stdin = std::io::stdin().lock();
        stdin
            .take(LARGEST_BYTES)
            .read_to_string(&mut content)
            .map_err(unreadable)?;
    } else {
        let path = path_of(named)?;
        let file = std::fs::File::open(&path).map_err(unreadable)?;
        file.take(LARGEST_BYTES)
            .read_to_string(&mut content)
            .map_err(unreadable)?;
    }
    parse(&content).map_err(|why| {
        Failure::failed(Problem::new(
            why,
            named,
            "give a record or a set that --json printed",
        ))
    })
}

/// Returns the file of a name: a path, or an id as in `linerate runs` (a unique start or end of
/// one, `last`, `last~1`).
fn path_of(named: &str) -> Result<PathBuf, Failure> {
    let path = Path::new(named);
    if path.exists() || named.contains('/') || named.ends_with(".json") {
        return Ok(path.to_owned());
    }
    #[cfg(feature = "history")]
    {
        let history = linerate_report::history::History::open_default()?;
        let id = history.find(named)?.id;
        Ok(history.file(&id))
    }
    #[cfg(not(feature = "history"))]
    {
        let store = linerate_report::store::Store::open_default()?;
        Ok(store.folder().join(format!("{named}.json")))
    }
}

fn parse(content: &str) -> Result<Document, String> {
    // A stream of lines ends with the record.
    match content.trim_end().rsplit_once('\n') {
        Some((_, last)) if content.starts_with('{') && last.starts_with('{') => of_event(last),
        _ => match Document::from_json(content) {
            Ok(document) => Ok(document),
            Err(error) => of_event(content).map_err(|_| error.to_string()),
        },
    }
}

/// Parses the last line of `--json-stream`: the event of a finished run, or a set.
fn of_event(line: &str) -> Result<Document, String> {
    #[derive(Deserialize)]
    struct Finished {
        record: Box<Record>,
    }
    match serde_json::from_str::<Finished>(line) {
        Ok(finished) => Ok(Document::Run(finished.record)),
        Err(_) => Document::from_json(line).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_record_is_told() {
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
            let told = parse(text).expect_err("no record");
            assert!(told.contains(why), "{text:?}: {told}");
        }
    }
}
