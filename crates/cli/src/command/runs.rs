//! `linerate runs`: stored results.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use linerate_metric::event::Problem;
use linerate_metric::exit;
use linerate_metric::expect::{FIGURES, Unit};
use linerate_report::ReportError;
use linerate_report::document::Document;
use linerate_report::history::{self, Arrived, Entry, Filter, History};
use linerate_report::store::write_file;
use linerate_report::style::ColorChoice;
use linerate_report::text;
use serde::Serialize;

use crate::args::{ExportForm, RunsAction, RunsArgs, Selection};
use crate::failure::Failure;
use crate::output::{Form, complain, list_style, print, print_failure, stderr_style, stdout_style};

/// Runs the command and returns the exit code.
pub fn run(args: RunsArgs) -> u8 {
    let json = is_json(&args.action);
    act(args.action).unwrap_or_else(|failure| {
        if json {
            print_failure(Form::Json, &failure, 0);
        } else {
            complain(&text::problem(&failure.problem, &stderr_style()));
        }
        failure.code
    })
}

fn is_json(action: &RunsAction) -> bool {
    match action {
        RunsAction::List { json, .. }
        | RunsAction::Show { json, .. }
        | RunsAction::Rm { json, .. }
        | RunsAction::Tag { json, .. }
        | RunsAction::Note { json, .. }
        | RunsAction::Trend { json, .. }
        | RunsAction::Import { json, .. } => *json,
        RunsAction::Export { .. } => false,
    }
}

fn act(action: RunsAction) -> Result<u8, Failure> {
    let history = History::open_default()?;
    if let Some(remark) = history.remark() {
        complain(&format!("warning: {remark}"));
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
        RunsAction::Tag {
            id,
            tags,
            remove,
            json,
        } => {
            let entry = history.find(&id)?;
            for tag in remove.iter().filter(|tag| !entry.tags.contains(*tag)) {
                complain(&format!("warning: {} has no tag `{tag}`", entry.id));
            }
            history.tag(&entry.id, &tags, &remove)?;
            marked(history, &entry.id, json)
        }
        RunsAction::Note {
            id,
            text,
            clear,
            json,
        } => {
            if text.as_ref().is_some_and(|text| text.trim().is_empty()) {
                return Err(Failure::usage(Problem::new(
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
            marked(history, &id, json)
        }
        RunsAction::Trend {
            figure,
            selection,
            fail_on_change,
            json,
        } => trend(&history, &figure, selection, fail_on_change, json),
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
    print(&serde_json::to_string(value).expect("our documents hold only what JSON can say"));
}

/// Kinds of records.
const KINDS: [&str; 5] = ["throughput", "latency", "forward", "generate", "stack"];

/// Kinds of sets.
const SETS: [&str; 14] = [
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
fn check_kinds(kinds: &[String]) -> Result<(), Failure> {
    let known = |kind: &str| {
        KINDS.contains(&kind)
            || kind == "set"
            || kind
                .strip_prefix("set:")
                .is_some_and(|of| SETS.contains(&of))
    };
    match kinds.iter().find(|kind| !known(kind)) {
        None => Ok(()),
        Some(kind) => Err(Failure::usage(Problem::new(
            "not a kind of record",
            format!("--kind {kind}"),
            format!(
                "use one of {}, set, or set: with one of {}",
                KINDS.join(", "),
                SETS.join(", ")
            ),
        ))),
    }
}

fn filter(history: &History, selection: Selection) -> Result<Filter, Failure> {
    check_kinds(&selection.kind)?;
    let plan = match selection.like {
        Some(id) => Some(history.find(&id)?.plan),
        None => None,
    };
    Ok(Filter {
        kinds: selection.kind,
        hosts: selection.host,
        tags: selection.tag,
        label: selection.label,
        since: selection.since,
        until: selection.until,
        plan,
        thresholds: selection.threshold,
        whole: !selection.all,
        copies: selection.all,
        limit: None,
    })
}

/// Returns the named or selected entries; without either, all of them.
fn named(history: &History, ids: &[String], selection: Selection) -> Result<Vec<Entry>, Failure> {
    if ids.is_empty() {
        return Ok(history.entries(&filter(history, selection)?)?);
    }
    let found = ids.iter().map(|id| Ok(history.find(id)?));
    let mut entries = found.collect::<Result<Vec<Entry>, Failure>>()?;
    entries.sort_by(|a, b| a.id.cmp(&b.id));
    entries.dedup_by(|a, b| a.id == b.id);
    Ok(entries)
}

#[derive(Serialize)]
struct Listed<'a> {
    schema: &'static str,
    folder: PathBuf,
    entries: &'a [Entry],
    /// Other files in the directory, with the reason why they are no records.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    strange: BTreeMap<String, String>,
}

fn list(history: &History, selection: Selection, limit: usize, json: bool) -> Result<u8, Failure> {
    let mut filter = filter(history, selection)?;
    filter.limit = (limit > 0).then_some(limit);
    let entries = history.entries(&filter)?;
    let strange = history.strange()?;
    if json {
        let folder = history.file("x");
        print_json(&Listed {
            schema: "linerate/runs/1",
            folder: folder.parent().unwrap_or(Path::new("/")).to_owned(),
            entries: &entries,
            strange: strange.into_iter().collect(),
        });
        return Ok(exit::OK);
    }
    if entries.is_empty() && history.is_empty()? {
        let folder = history.file("x");
        let folder = folder.parent().unwrap_or(Path::new("/"));
        print(&text::history::nothing_yet(&folder.display().to_string()));
    } else {
        print(&text::history::runs(&entries, &list_style()));
    }
    for (name, why) in strange {
        complain(&format!(
            "warning: {} is not a record and is left out: {why}; move it away if it is not needed",
            history.file(name.trim_end_matches(".json")).display()
        ));
    }
    Ok(exit::OK)
}

fn style() -> linerate_report::Style {
    stdout_style(ColorChoice::Auto, true)
}

#[derive(Serialize)]
struct Shown<'a> {
    schema: &'static str,
    file: PathBuf,
    #[serde(flatten)]
    entry: &'a Entry,
    document: serde_json::Value,
}

fn show(history: &History, id: &str, json: bool) -> Result<u8, Failure> {
    let entry = history.find(id)?;
    let document = history.document(&entry.id)?;
    if json {
        let document = match &document {
            Document::Run(run) => serde_json::to_value(run),
            Document::Set(set) => serde_json::to_value(set),
        };
        print_json(&Shown {
            schema: "linerate/stored/1",
            file: history.file(&entry.id),
            entry: &entry,
            document: document.expect("a record holds only what JSON can say"),
        });
        return Ok(exit::OK);
    }
    let style = style();
    let mut out = match &document {
        Document::Run(run) => text::summary(run, &style),
        Document::Set(set) => text::set(set, &style),
    };
    let marks = text::history::marks(&entry, &style);
    if !marks.is_empty() {
        out.push_str("\n\n");
        out.push_str(&marks);
    }
    out.push_str(&format!(
        "\n\nstarted {}, stored as {}",
        entry.started.strftime("%Y-%m-%d %H:%M:%S UTC"),
        history.file(&entry.id).display()
    ));
    print(&out);
    Ok(exit::OK)
}

/// Prints the tags and notes of a document.
fn marked(history: History, id: &str, json: bool) -> Result<u8, Failure> {
    let entry = history.reopen()?.find(id)?;
    if json {
        print_json(&entry);
    } else {
        let marks = text::history::marks(&entry, &style());
        match marks.is_empty() {
            true => print(&format!("{id} has no tag and no note")),
            false => print(&format!("{id}\n{marks}")),
        }
    }
    Ok(exit::OK)
}

#[derive(Serialize)]
struct Removed {
    schema: &'static str,
    removed: Vec<String>,
    dry_run: bool,
}

fn remove(
    history: &History,
    ids: &[String],
    selection: Selection,
    dry_run: bool,
    json: bool,
) -> Result<u8, Failure> {
    let entries = named(history, ids, selection).map_err(|mut failure| {
        // All ids are resolved before the first removal.
        failure.problem.situation.push_str("; nothing was removed");
        failure
    })?;
    let mut removed = Vec::new();
    let mut members = Vec::new();
    for entry in entries {
        if !dry_run {
            let gone = history.remove(&entry.id);
            gone.map_err(|error| ended_after(error, &removed, "removed"))?;
        }
        members.extend(entry.members);
        removed.push(entry.id);
    }
    if json {
        print_json(&Removed {
            schema: "linerate/removed/1",
            removed,
            dry_run,
        });
        return Ok(exit::OK);
    }
    let what = if dry_run { "would remove" } else { "removed" };
    members.retain(|id| !removed.contains(id) && history.find(id).is_ok());
    match removed.is_empty() {
        true => print("no record matches"),
        false => print(&format!(
            "{what} {}{}",
            removed.join(" "),
            stays(members.len())
        )),
    }
    Ok(exit::OK)
}

/// Returns a note that runs of a removed set stay as documents of their own.
fn stays(runs: usize) -> String {
    match runs {
        0 => String::new(),
        1 => "; its run stays in the history".to_owned(),
        runs => format!("; its {runs} runs stay in the history"),
    }
}

/// Returns the failure of a change of many documents, with those changed before it.
fn ended_after<I: AsRef<str>>(error: ReportError, done: &[I], how: &str) -> Failure {
    let mut failure = Failure::from(error);
    let done: Vec<&str> = done.iter().map(AsRef::as_ref).collect();
    let before = match done.len() {
        0 => format!("nothing was {how} before"),
        _ => format!("{how} before that: {}", done.join(" ")),
    };
    failure.problem.situation.push_str(&format!("; {before}"));
    failure
}

fn trend(
    history: &History,
    figure: &str,
    selection: Selection,
    fail_on_change: bool,
    json: bool,
) -> Result<u8, Failure> {
    let name = name_of(figure);
    let mut filter = filter(history, selection)?;
    // The figure of a set is the median of runs that are in the history themselves; points of an
    // experiment have their own figures.
    filter.whole = false;
    let mut entries = history.entries(&filter)?;
    let unit = match FIGURES.iter().find(|known| known.name == name) {
        Some(known) => {
            entries.retain(|entry| !entry.kind.starts_with("set:"));
            known.unit
        }
        None => {
            entries.retain(|entry| entry.experiment.is_some() && entry.figures.contains_key(&name));
            match entries.last() {
                Some(entry) => unit_of(history, entry, &name)?,
                None => return Err(no_figure(history, figure)?),
            }
        }
    };
    entries.retain(|entry| !entry.interrupted);
    let trend = history::trend(&name, unit, &entries);
    if fail_on_change && trend.points.is_empty() {
        // Without a record the check would always pass.
        return Err(Failure::failed(Problem::new(
            format!("no matching record has {name}, so a change cannot be detected"),
            "--fail-on-change",
            "`linerate runs list` with the same filters shows the matching records",
        )));
    }
    if json {
        print_json(&trend);
    } else {
        print(&text::history::trend(&trend, &style()));
    }
    Ok(match fail_on_change && trend.levels.len() > 1 {
        true => exit::GATE,
        false => exit::OK,
    })
}

/// Returns the name of a figure of `--expect`, also written as in records (`p99_9`); names of
/// experiment figures are returned unchanged.
fn name_of(figure: &str) -> String {
    let known = figure.replace("p99_", "p99.");
    match FIGURES.iter().any(|figure| figure.name == known) {
        true => known,
        false => figure.to_owned(),
    }
}

/// Returns the unit of a figure of an experiment point.
fn unit_of(history: &History, entry: &Entry, name: &str) -> Result<Unit, Failure> {
    let document = history.document(&entry.id)?;
    let figure = name.rsplit(' ').next().unwrap_or(name);
    let unit = document
        .experiment()
        .and_then(|experiment| Some(experiment.figure(figure)?.unit));
    Ok(unit.unwrap_or(Unit::Count))
}

/// Returns the error for an unknown figure, with the known names.
fn no_figure(history: &History, figure: &str) -> Result<Failure, Failure> {
    let names: Vec<_> = FIGURES.iter().map(|known| known.name).collect();
    let entries = history.entries(&Filter::default())?;
    let experiment = entries.iter().rev().find(|e| e.experiment.is_some());
    let example = experiment.and_then(|entry| entry.figures.keys().next());
    let points = example.map_or_else(String::new, |name| {
        format!("; or a figure of an experiment point, for example '{name}'")
    });
    Ok(Failure::usage(Problem::new(
        "not a figure",
        format!("`{figure}`"),
        format!("use one of {}{points}", names.join(", ")),
    )))
}

fn export(
    history: &History,
    ids: &[String],
    selection: Selection,
    format: ExportForm,
    output: &Path,
) -> Result<u8, Failure> {
    let entries = match ids.is_empty() {
        true => {
            let mut filter = filter(history, selection)?;
            // As JSON, sets contain their runs; as rows, each run has its own.
            filter.whole &= format == ExportForm::Json;
            history.entries(&filter)?
        }
        false => named(history, ids, selection)?,
    };
    let replaces = output != Path::new("-") && output.is_file();
    match format {
        ExportForm::Json => write_file(output, &(history.export_json(&entries)? + "\n"))?,
        ExportForm::Csv => write_file(output, &history::csv(&entries))?,
        #[cfg(feature = "parquet")]
        ExportForm::Parquet => {
            linerate_report::store::write_bytes(output, &history::parquet(&entries)?)?
        }
    }
    if output != Path::new("-") {
        // As JSON, the runs of sets count too.
        let mut ids: BTreeSet<&str> = entries.iter().map(|entry| &*entry.id).collect();
        if format == ExportForm::Json {
            ids.extend(entries.iter().flat_map(|e| &e.members).map(String::as_str));
        }
        let replaced = match replaces {
            true => ", replacing the old file",
            false => "",
        };
        complain(&format!(
            "{} records in {}{replaced}",
            ids.len(),
            output.display()
        ));
    }
    Ok(exit::OK)
}

#[derive(Serialize)]
struct Imported<'a> {
    schema: &'static str,
    records: BTreeMap<&'a str, Arrived>,
}

fn import(
    history: &History,
    files: &[PathBuf],
    replace: bool,
    tags: &[String],
    json: bool,
) -> Result<u8, Failure> {
    let mut arrived = Vec::new();
    for file in files {
        history
            .import(file, replace, tags, &mut arrived)
            .map_err(|error| {
                let taken = arrived.iter().filter(|(_, state)| *state == Arrived::Taken);
                let taken: BTreeSet<&str> = taken.map(|(id, _)| id.as_str()).collect();
                ended_after(error, &taken.into_iter().collect::<Vec<_>>(), "imported")
            })?;
    }
    // A run that came both alone and in its set counts once.
    let mut records: BTreeMap<&str, Arrived> = BTreeMap::new();
    for (id, state) in &arrived {
        let known = records.entry(id).or_insert_with(|| state.clone());
        if *known == Arrived::Same {
            known.clone_from(state);
        }
    }
    let count = |state: Arrived| records.values().filter(|s| **s == state).count();
    let (taken, same, differ) = (
        count(Arrived::Taken),
        count(Arrived::Same),
        count(Arrived::Differs),
    );
    if json {
        print_json(&Imported {
            schema: "linerate/imported/1",
            records,
        });
    } else {
        print(&format!(
            "{taken} records imported, {same} were present already"
        ));
    }
    if differ > 0 {
        complain(&format!(
            "warning: {differ} were left out, because a different record has their id; --replace \
             imports them"
        ));
    }
    Ok(exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_file_keep_their_names() {
        assert_eq!(name_of("p99_9"), "p99.9");
        assert_eq!(name_of("p99.9"), "p99.9");
        assert_eq!(name_of("goodput"), "goodput");
        for point in ["size=64 p99_9", "answer=p99_9 trip"] {
            assert_eq!(name_of(point), point);
        }
    }
}
