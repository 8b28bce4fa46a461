//! `linerate runs`: stored results.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use linerate_record::event::ErrorReport;
use linerate_record::exit_codes;
use linerate_record::expect::{FIGURES, FigureUnit};
use linerate_report::ReportError;
use linerate_report::document::Document;
use linerate_report::history::{self, History, HistoryEntry, HistoryFilter, ImportResult};
use linerate_report::store::write_file;
use linerate_report::style::ColorChoice;
use linerate_report::{html, text};
use serde::Serialize;

use crate::args::{ExportFormat, RecordSelection, RunsAction, RunsArgs};
use crate::failure::CommandFailure;
use crate::output::{OutputFormat, check_writable_file, print_failure};
use crate::standard_streams::{list_style, print_stderr, print_stdout, stderr_style, stdout_style};

/// Runs the command and returns the exit code.
pub fn run(args: RunsArgs) -> u8 {
    let json = is_json(&args.action);
    run_action(args.action).unwrap_or_else(|failure| {
        if json {
            print_failure(OutputFormat::Json, &failure, 0);
        } else {
            print_stderr(&text::render_error(&failure.problem, &stderr_style()));
        }
        failure.code
    })
}

fn is_json(action: &RunsAction) -> bool {
    match action {
        RunsAction::List { json, .. }
        | RunsAction::Show { json, .. }
        | RunsAction::Rm { json, .. }
        | RunsAction::Restore { json, .. }
        | RunsAction::Tag { json, .. }
        | RunsAction::Note { json, .. }
        | RunsAction::Trend { json, .. }
        | RunsAction::Import { json, .. } => *json,
        RunsAction::Export { .. } => false,
    }
}

fn run_action(action: RunsAction) -> Result<u8, CommandFailure> {
    let history = History::open_default()?;
    if let Some(warning) = history.index_warning() {
        print_stderr(&format!("warning: {warning}"));
    }
    match action {
        RunsAction::List {
            selection,
            limit,
            json,
        } => list(&history, selection, limit, json),
        RunsAction::Show { id, json } => show(&history, &id, json),
        RunsAction::Rm {
            ids,
            selection,
            dry_run,
            json,
        } => remove(&history, &ids, selection, dry_run, json),
        RunsAction::Restore { ids, json } => restore(&history, &ids, json),
        RunsAction::Tag {
            id,
            tags,
            remove,
            json,
        } => {
            let entry = history.find(&id)?;
            for tag in remove.iter().filter(|tag| !entry.tags.contains(*tag)) {
                print_stderr(&format!("warning: {} has no tag `{tag}`", entry.id));
            }
            history.tag(&entry.id, &tags, &remove)?;
            print_marks(history, &entry.id, json)
        }
        RunsAction::Note {
            id,
            text,
            clear,
            json,
        } => {
            if text.as_ref().is_some_and(|text| text.trim().is_empty()) {
                return Err(CommandFailure::usage(ErrorReport::new(
                    "has no text",
                    "an empty note",
                    "write a text, or remove the notes with --clear",
                )));
            }
            let id = history.find(&id)?.id;
            if clear {
                history.clear_notes(&id)?;
            }
            if let Some(text) = text {
                history.note(&id, Timestamp::now(), &text)?;
            }
            print_marks(history, &id, json)
        }
        RunsAction::Trend {
            figure,
            selection,
            fail_on_change,
            html,
            json,
        } => trend(
            &history,
            &figure,
            selection,
            fail_on_change,
            html.as_deref(),
            json,
        ),
        RunsAction::Export {
            ids,
            selection,
            format,
            output,
        } => export(&history, &ids, selection, format, &output),
        RunsAction::Import {
            files,
            replace,
            tag,
            json,
        } => import(&history, &files, replace, &tag, json),
    }
}

fn print_json<T: Serialize>(value: &T) {
    print_stdout(&serde_json::to_string(value).expect("our documents hold only what JSON can say"));
}

/// Kinds of records.
const KINDS: [&str; 5] = ["throughput", "latency", "forward", "generate", "stack"];

/// Kinds of sets.
const SET_KINDS: [&str; 14] = [
    "repeat",
    "demo",
    "sizes",
    "compare-waiting",
    "load-curve",
    "load",
    "search",
    "saturation",
    "shell",
    "capacity",
    "compare",
    "sweep",
    "tune",
    "experiment",
];

/// Rejects unknown kinds, which would match nothing.
fn check_kinds(kinds: &[String]) -> Result<(), CommandFailure> {
    let is_known = |kind: &str| {
        KINDS.contains(&kind)
            || kind == "set"
            || kind
                .strip_prefix("set:")
                .is_some_and(|of| SET_KINDS.contains(&of))
    };
    match kinds.iter().find(|kind| !is_known(kind)) {
        None => Ok(()),
        Some(kind) => Err(CommandFailure::usage(ErrorReport::new(
            "not a kind of record",
            format!("--kind {kind}"),
            format!(
                "use one of {}, set, or set: with one of {}",
                KINDS.join(", "),
                SET_KINDS.join(", ")
            ),
        ))),
    }
}

fn history_filter(
    history: &History,
    selection: RecordSelection,
) -> Result<HistoryFilter, CommandFailure> {
    check_kinds(&selection.kind)?;
    let plan = match selection.like {
        Some(id) => Some(history.find(&id)?.plan),
        None => None,
    };
    Ok(HistoryFilter {
        kinds: selection.kind,
        hosts: selection.host,
        tags: selection.tag,
        label: selection.label,
        since: selection.since,
        until: selection.until,
        plan,
        thresholds: selection.threshold,
        skip_members: !selection.all,
        copies: selection.all,
        limit: None,
    })
}

/// Returns the named or selected entries; without either, all of them.
fn select_entries(
    history: &History,
    ids: &[String],
    selection: RecordSelection,
) -> Result<Vec<HistoryEntry>, CommandFailure> {
    if ids.is_empty() {
        return Ok(history.entries(&history_filter(history, selection)?)?);
    }
    let entries_found = ids.iter().map(|id| Ok(history.find(id)?));
    let mut entries = entries_found.collect::<Result<Vec<HistoryEntry>, CommandFailure>>()?;
    entries.sort_by(|a, b| a.id.cmp(&b.id));
    entries.dedup_by(|a, b| a.id == b.id);
    Ok(entries)
}

#[derive(Serialize)]
struct RunsList<'a> {
    schema: &'static str,
    #[serde(rename = "folder")]
    directory: PathBuf,
    entries: &'a [HistoryEntry],
    /// Other files in the directory, with the reason why they are no records.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    unreadable_files: BTreeMap<String, String>,
}

fn list(
    history: &History,
    selection: RecordSelection,
    limit: usize,
    json: bool,
) -> Result<u8, CommandFailure> {
    let mut filter = history_filter(history, selection)?;
    filter.limit = (limit > 0).then_some(limit);
    let entries = history.entries(&filter)?;
    let unreadable = history.unreadable_files()?;
    if json {
        let dir = history.file("x");
        print_json(&RunsList {
            schema: "linerate/runs/1",
            directory: dir.parent().unwrap_or(Path::new("/")).to_owned(),
            entries: &entries,
            unreadable_files: unreadable.into_iter().collect(),
        });
        return Ok(exit_codes::OK);
    }
    if entries.is_empty() && history.is_empty()? {
        let dir = history.file("x");
        let dir = dir.parent().unwrap_or(Path::new("/"));
        print_stdout(&text::history::empty_store_text(&dir.display().to_string()));
    } else {
        print_stdout(&text::history::render_list(&entries, &list_style()));
    }
    for (name, why) in unreadable {
        print_stderr(&format!(
            "warning: {} is not a record and is left out: {why}; move it away if it is not needed",
            history.file(name.trim_end_matches(".json")).display()
        ));
    }
    Ok(exit_codes::OK)
}

fn stdout_text_style() -> linerate_report::TextStyle {
    stdout_style(ColorChoice::Auto, true)
}

#[derive(Serialize)]
struct StoredDocument<'a> {
    schema: &'static str,
    file: PathBuf,
    #[serde(flatten)]
    entry: &'a HistoryEntry,
    document: serde_json::Value,
}

fn show(history: &History, id: &str, json: bool) -> Result<u8, CommandFailure> {
    let entry = history.find(id)?;
    let document = history.document(&entry.id)?;
    if json {
        let document = match &document {
            Document::Run(run) => serde_json::to_value(run),
            Document::Set(set) => serde_json::to_value(set),
        };
        print_json(&StoredDocument {
            schema: "linerate/stored/1",
            file: history.file(&entry.id),
            entry: &entry,
            document: document.expect("a record holds only what JSON can say"),
        });
        return Ok(exit_codes::OK);
    }
    let style = stdout_text_style();
    let mut out = match &document {
        Document::Run(run) => text::render_summary(run, &style),
        Document::Set(set) => text::render_set(set, &style),
    };
    let marks = text::history::render_marks(&entry, &style);
    if !marks.is_empty() {
        out.push_str("\n\n");
        out.push_str(&marks);
    }
    out.push_str(&format!(
        "\n\nstarted {}, stored as {}",
        entry.started.strftime("%Y-%m-%d %H:%M:%S UTC"),
        history.file(&entry.id).display()
    ));
    print_stdout(&out);
    Ok(exit_codes::OK)
}

/// Prints the tags and notes of a document.
fn print_marks(history: History, id: &str, json: bool) -> Result<u8, CommandFailure> {
    let entry = history.reopen()?.find(id)?;
    if json {
        print_json(&entry);
    } else {
        let marks = text::history::render_marks(&entry, &stdout_text_style());
        match marks.is_empty() {
            true => print_stdout(&format!("{id} has no tag and no note")),
            false => print_stdout(&format!("{id}\n{marks}")),
        }
    }
    Ok(exit_codes::OK)
}

/// Restored documents.
#[derive(Serialize)]
struct RestoredList {
    schema: &'static str,
    restored: Vec<String>,
}

#[derive(Serialize)]
struct RemovedList {
    schema: &'static str,
    removed: Vec<String>,
    dry_run: bool,
}

fn remove(
    history: &History,
    ids: &[String],
    selection: RecordSelection,
    dry_run: bool,
    json: bool,
) -> Result<u8, CommandFailure> {
    let entries = select_entries(history, ids, selection).map_err(|mut failure| {
        // All ids are resolved before the first removal.
        failure.problem.situation.push_str("; nothing was removed");
        failure
    })?;
    let mut removed = Vec::new();
    let mut members = Vec::new();
    for entry in entries {
        if !dry_run {
            let result = history.remove(&entry.id);
            result.map_err(|error| failure_after(error, &removed, "removed"))?;
        }
        members.extend(entry.members);
        removed.push(entry.id);
    }
    if json {
        print_json(&RemovedList {
            schema: "linerate/removed/1",
            removed,
            dry_run,
        });
        return Ok(exit_codes::OK);
    }
    let action = if dry_run { "would remove" } else { "removed" };
    members.retain(|id| !removed.contains(id) && history.find(id).is_ok());
    match removed.is_empty() {
        true => print_stdout("no record matches"),
        false => print_stdout(&format!(
            "{action} {}{}{}",
            removed.join(" "),
            remaining_runs_note(members.len()),
            match dry_run {
                true => "",
                false => "; `linerate runs restore` undoes it for a day",
            }
        )),
    }
    Ok(exit_codes::OK)
}

/// Restores removed documents and prints their ids.
fn restore(history: &History, ids: &[String], json: bool) -> Result<u8, CommandFailure> {
    let restored = history.restore(ids)?;
    if json {
        print_json(&RestoredList {
            schema: "linerate/restored/1",
            restored,
        });
        return Ok(exit_codes::OK);
    }
    print_stdout(&match restored.is_empty() {
        true => "nothing was removed within a day".to_owned(),
        false => format!("restored {}", restored.join(" ")),
    });
    Ok(exit_codes::OK)
}

/// Returns a note that runs of a removed set stay as documents of their own.
fn remaining_runs_note(runs: usize) -> String {
    match runs {
        0 => String::new(),
        1 => "; its run stays in the history".to_owned(),
        runs => format!("; its {runs} runs stay in the history"),
    }
}

/// Returns the failure of a change of many documents, with those changed before it.
fn failure_after<I: AsRef<str>>(error: ReportError, done: &[I], verb: &str) -> CommandFailure {
    let mut failure = CommandFailure::from(error);
    let done: Vec<&str> = done.iter().map(AsRef::as_ref).collect();
    let earlier = match done.len() {
        0 => format!("nothing was {verb} before"),
        _ => format!("{verb} before that: {}", done.join(" ")),
    };
    failure.problem.situation.push_str(&format!("; {earlier}"));
    failure
}

fn trend(
    history: &History,
    figure: &str,
    selection: RecordSelection,
    fail_on_change: bool,
    page: Option<&Path>,
    json: bool,
) -> Result<u8, CommandFailure> {
    let name = figure_name(figure);
    let mut filter = history_filter(history, selection)?;
    // The figure of a set is the median of runs that are in the history themselves; points of an
    // experiment have their own figures.
    filter.skip_members = false;
    let mut entries = history.entries(&filter)?;
    let unit = match FIGURES
        .iter()
        .find(|known_figure| known_figure.name == name)
    {
        Some(known_figure) => {
            entries.retain(|entry| !entry.kind.starts_with("set:"));
            known_figure.unit
        }
        None => {
            entries.retain(|entry| entry.experiment.is_some() && entry.figures.contains_key(&name));
            match entries.last() {
                Some(entry) => figure_unit(history, entry, &name)?,
                None => return Err(unknown_figure(history, figure)?),
            }
        }
    };
    entries.retain(|entry| !entry.interrupted);
    let trend = history::trend(&name, unit, &entries);
    if fail_on_change && trend.points.is_empty() {
        // Without a record the check would always pass.
        return Err(CommandFailure::failed(ErrorReport::new(
            format!("no matching record has {name}, so a change cannot be detected"),
            "--fail-on-change",
            "`linerate runs list` with the same filters shows the matching records",
        )));
    }
    if let Some(page) = page {
        check_writable_file(page)?;
        write_file(page, &html::render_trend(&trend))?;
    }
    if json {
        print_json(&trend);
    } else {
        print_stdout(&text::history::render_trend(&trend, &stdout_text_style()));
    }
    Ok(match fail_on_change && trend.levels.len() > 1 {
        true => exit_codes::GATE,
        false => exit_codes::OK,
    })
}

/// Returns the name of a figure of `--expect`, also written as in records (`p99_9`); names of
/// experiment figures are returned unchanged.
fn figure_name(figure: &str) -> String {
    let known_figure = figure.replace("p99_", "p99.");
    match FIGURES.iter().any(|figure| figure.name == known_figure) {
        true => known_figure,
        false => figure.to_owned(),
    }
}

/// Returns the unit of a figure of an experiment point.
fn figure_unit(
    history: &History,
    entry: &HistoryEntry,
    name: &str,
) -> Result<FigureUnit, CommandFailure> {
    let document = history.document(&entry.id)?;
    let figure = name.rsplit(' ').next().unwrap_or(name);
    let unit = document
        .experiment()
        .and_then(|experiment| Some(experiment.figure(figure)?.unit));
    Ok(unit.unwrap_or(FigureUnit::Count))
}

/// Returns the error for an unknown figure, with the known names.
fn unknown_figure(history: &History, figure: &str) -> Result<CommandFailure, CommandFailure> {
    let names: Vec<_> = FIGURES
        .iter()
        .map(|known_figure| known_figure.name)
        .collect();
    let entries = history.entries(&HistoryFilter::default())?;
    let experiment = entries.iter().rev().find(|e| e.experiment.is_some());
    let example = experiment.and_then(|entry| entry.figures.keys().next());
    let points = example.map_or_else(String::new, |name| {
        format!("; or a figure of an experiment point, for example '{name}'")
    });
    Ok(CommandFailure::usage(ErrorReport::new(
        "not a figure",
        format!("`{figure}`"),
        format!("use one of {}{points}", names.join(", ")),
    )))
}

fn export(
    history: &History,
    ids: &[String],
    selection: RecordSelection,
    format: ExportFormat,
    output: &Path,
) -> Result<u8, CommandFailure> {
    let entries = match ids.is_empty() {
        true => {
            let mut filter = history_filter(history, selection)?;
            // As JSON, sets contain their runs; as rows, each run has its own.
            filter.skip_members &= format == ExportFormat::Json;
            history.entries(&filter)?
        }
        false => select_entries(history, ids, selection)?,
    };
    let replaces = output != Path::new("-") && output.is_file();
    match format {
        ExportFormat::Json => write_file(output, &(history.export_json(&entries)? + "\n"))?,
        ExportFormat::Csv => write_file(output, &history::entries_to_csv(&entries))?,
        #[cfg(feature = "parquet")]
        ExportFormat::Parquet => {
            linerate_report::store::write_bytes(output, &history::entries_to_parquet(&entries)?)?
        }
    }
    if output != Path::new("-") {
        // As JSON, the runs of sets count too.
        let mut ids: BTreeSet<&str> = entries.iter().map(|entry| &*entry.id).collect();
        if format == ExportFormat::Json {
            ids.extend(entries.iter().flat_map(|e| &e.members).map(String::as_str));
        }
        let replaced = match replaces {
            true => ", replacing the old file",
            false => "",
        };
        print_stderr(&format!(
            "{} records in {}{replaced}",
            ids.len(),
            output.display()
        ));
    }
    Ok(exit_codes::OK)
}

#[derive(Serialize)]
struct ImportedList<'a> {
    schema: &'static str,
    records: BTreeMap<&'a str, ImportResult>,
}

fn import(
    history: &History,
    files: &[PathBuf],
    replace: bool,
    tags: &[String],
    json: bool,
) -> Result<u8, CommandFailure> {
    let mut arrived = Vec::new();
    for file in files {
        history
            .import(file, replace, tags, &mut arrived)
            .map_err(|error| {
                let imported = arrived
                    .iter()
                    .filter(|(_, state)| *state == ImportResult::Imported);
                let imported: BTreeSet<&str> = imported.map(|(id, _)| id.as_str()).collect();
                failure_after(error, &imported.into_iter().collect::<Vec<_>>(), "imported")
            })?;
    }
    // A run that came both alone and in its set counts once.
    let mut records: BTreeMap<&str, ImportResult> = BTreeMap::new();
    for (id, state) in &arrived {
        let entry_state = records.entry(id).or_insert_with(|| state.clone());
        if *entry_state == ImportResult::Unchanged {
            entry_state.clone_from(state);
        }
    }
    let count = |state: ImportResult| records.values().filter(|s| **s == state).count();
    let (imported, unchanged, differ) = (
        count(ImportResult::Imported),
        count(ImportResult::Unchanged),
        count(ImportResult::Conflict),
    );
    if json {
        print_json(&ImportedList {
            schema: "linerate/imported/1",
            records,
        });
    } else {
        print_stdout(&format!(
            "{imported} records imported, {unchanged} were present already"
        ));
    }
    if differ > 0 {
        print_stderr(&format!(
            "warning: {differ} were left out, because a different record has their id; --replace \
             imports them"
        ));
    }
    Ok(exit_codes::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_file_keep_their_names() {
        assert_eq!(figure_name("p99_9"), "p99.9");
        assert_eq!(figure_name("p99.9"), "p99.9");
        assert_eq!(figure_name("goodput"), "goodput");
        for point in ["size=64 p99_9", "answer=p99_9 trip"] {
            assert_eq!(figure_name(point), point);
        }
    }
}
