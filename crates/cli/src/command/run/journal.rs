//! Journal of an experiment: each point is on the disk before the next one starts.

use std::path::PathBuf;

use jiff::Timestamp;
use linerate_experiment::{Experiment, Measured};
use linerate_metric::event::Problem;
use linerate_metric::experiment::Setting;
use linerate_metric::record::new_id;
use linerate_report::ReportError;
use linerate_report::store::Store;
use linerate_tune::TuneError;
use linerate_tune::journal::{self, Journal, folder};
use serde::{Deserialize, Serialize};

use crate::args::RunArgs;
use crate::failure::Failure;

/// Request of an experiment: the first line of a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    pub id: String,
    pub started: Timestamp,
    /// Name of the experiment, as given.
    pub file: String,
    /// Text of the experiment, so that a resumed run does not depend on the file.
    pub text: String,
    pub quick: bool,
    pub point: Setting,
    pub label: Option<String>,
    pub on: Option<String>,
    pub repeat: Option<u32>,
    /// Directory of the results, and the working directory that it is relative to.
    pub dir: PathBuf,
    pub from: PathBuf,
}

impl Asked {
    /// Builds the request from the options.
    pub fn of(args: &RunArgs, text: String, experiment: &Experiment) -> Self {
        let started = Timestamp::now();
        let named = || match &args.label {
            Some(label) => format!("linerate-{}-{label}", experiment.name),
            None => format!("linerate-{}", experiment.name),
        };
        let dir = args.dir.clone().unwrap_or_else(|| named().into());
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
    pub fn resume(&self) -> String {
        format!("linerate run --resume {}", self.id)
    }
}

fn unusable(error: &TuneError) -> Failure {
    Failure::failed(match error {
        TuneError::InUse { path } => Problem::new(
            "in use by another process that measures it",
            path.display().to_string(),
            "wait until it ends, or end it",
        ),
        TuneError::Shape { path, why } => Problem::new(
            format!("not a journal of this version ({why})"),
            path.display().to_string(),
            "start again with `linerate run NAME`; earlier results are in `linerate runs list`",
        ),
        TuneError::Journal { path, source } => Problem::new(
            format!("cannot be read or written ({source})"),
            path.display().to_string(),
            "check its permissions and the free space of its disk",
        ),
        other => Problem::new(other.to_string(), "the journal", "start again"),
    })
}

/// Returns why a line could not be written to a journal.
fn unwritable(error: &TuneError) -> String {
    match error {
        TuneError::Journal { path, source } => {
            format!("cannot write the journal {} ({source})", path.display())
        }
        other => other.to_string(),
    }
}

/// Opens an unfinished experiment: the request, the measured points, and the journal to continue.
///
/// # Errors
/// Fails if there is none of that name.
pub fn resumed(name: &str) -> Result<(Asked, Vec<Measured>, Journal), Failure> {
    let path = PathBuf::from(name);
    let path = match (path.is_file(), folder("run")) {
        (false, Some(folder)) if !name.contains('/') => folder.join(format!("{name}.jsonl")),
        _ => path,
    };
    if !path.is_file() {
        let left = left();
        return Err(Failure::failed(Problem::new(
            "no experiment of that name to resume",
            format!("--resume {name}"),
            match left.is_empty() {
                true => {
                    "no experiment is unfinished: start one with `linerate run NAME`".to_owned()
                }
                false => format!("unfinished: {}", left.join(", ")),
            },
        )));
    }
    let resumed = Journal::resume(&path).map_err(|error| unusable(&error));
    let (mut asked, done, journal): (Asked, _, _) = resumed?;
    if std::env::current_dir().is_ok_and(|here| here != asked.from) {
        asked.dir = asked.from.join(&asked.dir);
    }
    Ok((asked, done, journal))
}

/// Returns unfinished experiments, newest first: `ID (udp-hops)`.
fn left() -> Vec<String> {
    let entries = folder("run").and_then(|folder| std::fs::read_dir(folder).ok());
    let mut paths: Vec<PathBuf> = (entries.into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        // An experiment that another process is measuring is not unfinished.
        .filter(|path| !journal::is_held(path))
        .collect();
    paths.sort_unstable_by(|a, b| b.cmp(a));
    let named = paths.iter().filter_map(|path| {
        let (asked, done, _) = journal::read::<Asked, serde_json::Value>(path).ok()?;
        let points = match done.len() {
            1 => "1 point".to_owned(),
            n => format!("{n} points"),
        };
        Some(format!("{} ({}, {points} measured)", asked.id, asked.file))
    });
    named.collect()
}

/// Writes each point to the journal and the store.
pub struct Keeper {
    journal: Option<Journal>,
    /// The journal has an incomplete last line, so nothing may follow.
    is_cut: bool,
    store: Option<Store>,
}

impl Keeper {
    /// Writes points to this journal, and their records to the store if `stores`.
    pub fn new(journal: Option<Journal>, stores: bool) -> Self {
        let store = stores.then(Store::open_default).and_then(Result::ok);
        Self {
            journal,
            is_cut: false,
            store,
        }
    }

    /// Creates a journal.
    ///
    /// # Errors
    /// Returns why there is none: the experiment cannot be resumed then.
    pub fn begin(asked: &Asked) -> Result<Journal, String> {
        let folder = folder("run").ok_or("neither XDG_STATE_HOME nor HOME is an absolute path")?;
        let path = folder.join(format!("{}.jsonl", asked.id));
        let begun = Journal::create(&path, asked);
        begun.map_err(|error| {
            // An incomplete first line is not a journal.
            let _ = std::fs::remove_file(&path);
            unwritable(&error)
        })
    }

    /// Writes a point. Each failure of the journal and of the store is returned once.
    pub fn keep(&mut self, measured: &Measured) -> (Option<String>, Option<ReportError>) {
        let mut said = (None, None);
        if !self.is_cut
            && let Some(journal) = &mut self.journal
            && let Err(error) = journal.append(measured)
        {
            let error = unwritable(&error);
            said.0 = Some(format!(
                "{error}; points measured from now on are lost if this process is killed"
            ));
            self.is_cut = true;
        }
        if let Some(store) = &self.store
            && let Err(error) = measured
                .runs
                .iter()
                .try_for_each(|run| store.store(run).map(drop))
        {
            said.1 = Some(error);
            self.store = None;
        }
        said
    }

    /// Returns whether the experiment can be resumed.
    pub fn is_kept(&self) -> bool {
        self.journal.is_some()
    }

    /// Removes the journal of a finished experiment.
    pub fn done(self) {
        if let Some(journal) = self.journal {
            // A leftover file only takes space.
            let _ = journal.remove();
        }
    }
}
