//! Journal of an experiment: each point is on the disk before the next one starts.

use std::path::PathBuf;

use jiff::Timestamp;
use linerate_experiment::{Experiment, PointMeasurement};
use linerate_record::event::ErrorReport;
use linerate_record::experiment::KnobValues;
use linerate_record::record::new_id;
use linerate_report::ReportError;
use linerate_report::store::RecordStore;
use linerate_tune::TuneError;
use linerate_tune::journal::{self, Journal, state_dir};
use serde::{Deserialize, Serialize};

use crate::args::RunArgs;
use crate::failure::CommandFailure;

/// Request of an experiment: the first line of a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExperimentRequest {
    pub id: String,
    pub started: Timestamp,
    /// Name of the experiment, as given.
    pub file: String,
    /// Text of the experiment, so that a resumed run does not depend on the file.
    pub text: String,
    pub quick: bool,
    pub point: KnobValues,
    pub label: Option<String>,
    pub on: Option<String>,
    pub repeat: Option<u32>,
    /// Directory of the results, and the working directory that it is relative to.
    pub dir: PathBuf,
    pub from: PathBuf,
}

impl ExperimentRequest {
    /// Builds the request from the options.
    pub fn from_args(args: &RunArgs, text: String, experiment: &Experiment) -> Self {
        let started = Timestamp::now();
        let default_dir = || match &args.label {
            Some(label) => format!("linerate-{}-{label}", experiment.name),
            None => format!("linerate-{}", experiment.name),
        };
        let dir = args.dir.clone().unwrap_or_else(|| default_dir().into());
        Self {
            id: new_id(started),
            started,
            file: args.experiment.clone().unwrap_or_default(),
            text,
            quick: args.quick,
            point: args.point.iter().cloned().collect(),
            label: args.label.clone(),
            on: args.on.clone(),
            repeat: args.repeat,
            dir,
            from: std::env::current_dir().unwrap_or_default(),
        }
    }

    /// Returns the command that resumes it.
    pub fn resume_command(&self) -> String {
        format!("linerate run --resume {}", self.id)
    }
}

fn journal_failure(error: &TuneError) -> CommandFailure {
    CommandFailure::failed(match error {
        TuneError::JournalLocked { path } => ErrorReport::new(
            "in use by another process that measures it",
            path.display().to_string(),
            "wait until it ends, or end it",
        ),
        TuneError::InvalidJournal { path, reason: why } => ErrorReport::new(
            format!("not a journal of this version ({why})"),
            path.display().to_string(),
            "start again with `linerate run NAME`; earlier results are in `linerate runs list`",
        ),
        TuneError::JournalAccess { path, source } => ErrorReport::new(
            format!("cannot be read or written ({source})"),
            path.display().to_string(),
            "check its permissions and the free space of its disk",
        ),
        other_error => ErrorReport::new(other_error.to_string(), "the journal", "start again"),
    })
}

/// Returns why a line could not be written to a journal.
fn write_failure(error: &TuneError) -> String {
    match error {
        TuneError::JournalAccess { path, source } => {
            format!("cannot write the journal {} ({source})", path.display())
        }
        other_error => other_error.to_string(),
    }
}

/// Opens an unfinished experiment: the request, the measured points, and the journal to continue.
///
/// # Errors
/// Fails if there is none of that name.
pub fn resume_experiment(
    name: &str,
) -> Result<(ExperimentRequest, Vec<PointMeasurement>, Journal), CommandFailure> {
    let path = PathBuf::from(name);
    let path = match (path.is_file(), state_dir("run")) {
        (false, Some(dir)) if !name.contains('/') => dir.join(format!("{name}.jsonl")),
        _ => path,
    };
    if !path.is_file() {
        let unfinished = unfinished_experiments();
        return Err(CommandFailure::failed(ErrorReport::new(
            "no experiment of that name to resume",
            format!("--resume {name}"),
            match unfinished.is_empty() {
                true => {
                    "no experiment is unfinished: start one with `linerate run NAME`".to_owned()
                }
                false => format!("unfinished: {}", unfinished.join(", ")),
            },
        )));
    }
    let resumed = Journal::resume(&path).map_err(|error| journal_failure(&error));
    let (mut request, done, journal): (ExperimentRequest, _, _) = resumed?;
    if std::env::current_dir().is_ok_and(|here| here != request.from) {
        request.dir = request.from.join(&request.dir);
    }
    Ok((request, done, journal))
}

/// Returns unfinished experiments, newest first: `ID (udp-hops)`.
fn unfinished_experiments() -> Vec<String> {
    let entries = state_dir("run").and_then(|dir| std::fs::read_dir(dir).ok());
    let mut paths: Vec<PathBuf> = (entries.into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        // An experiment that another process is measuring is not unfinished.
        .filter(|path| !journal::is_locked(path))
        .collect();
    paths.sort_unstable_by(|a, b| b.cmp(a));
    let descriptions = paths.iter().filter_map(|path| {
        let (request, done, _) =
            journal::read::<ExperimentRequest, serde_json::Value>(path).ok()?;
        let points = match done.len() {
            1 => "1 point".to_owned(),
            n => format!("{n} points"),
        };
        Some(format!(
            "{} ({}, {points} measured)",
            request.id, request.file
        ))
    });
    descriptions.collect()
}

/// Writes each point to the journal and the store.
pub struct PointLog {
    journal: Option<Journal>,
    /// The journal has an incomplete last line, so nothing may follow.
    is_incomplete: bool,
    store: Option<RecordStore>,
}

impl PointLog {
    /// Writes points to this journal, and their records to the store if `stores`.
    pub fn new(journal: Option<Journal>, stores: bool) -> Self {
        let store = stores.then(RecordStore::open_default).and_then(Result::ok);
        Self {
            journal,
            is_incomplete: false,
            store,
        }
    }

    /// Creates a journal.
    ///
    /// # Errors
    /// Returns why there is none: the experiment cannot be resumed then.
    pub fn create_journal(request: &ExperimentRequest) -> Result<Journal, String> {
        let dir = state_dir("run").ok_or("neither XDG_STATE_HOME nor HOME is an absolute path")?;
        let path = dir.join(format!("{}.jsonl", request.id));
        let journal = Journal::create(&path, request);
        journal.map_err(|error| {
            // An incomplete first line is not a journal.
            let _ = std::fs::remove_file(&path);
            write_failure(&error)
        })
    }

    /// Writes a point. Each failure of the journal and of the store is returned once.
    pub fn write_point(
        &mut self,
        measured: &PointMeasurement,
    ) -> (Option<String>, Option<ReportError>) {
        let mut failures = (None, None);
        if !self.is_incomplete
            && let Some(journal) = &mut self.journal
            && let Err(error) = journal.append(measured)
        {
            let error = write_failure(&error);
            failures.0 = Some(format!(
                "{error}; points measured from now on are lost if this process is killed"
            ));
            self.is_incomplete = true;
        }
        if let Some(store) = &self.store
            && let Err(error) = measured
                .runs
                .iter()
                .try_for_each(|run| store.store(run).map(drop))
        {
            failures.1 = Some(error);
            self.store = None;
        }
        failures
    }

    /// Returns whether the experiment can be resumed.
    pub fn has_journal(&self) -> bool {
        self.journal.is_some()
    }

    /// Removes the journal of a finished experiment.
    pub fn remove_journal(self) {
        if let Some(journal) = self.journal {
            // A leftover file only takes space.
            let _ = journal.remove();
        }
    }
}
