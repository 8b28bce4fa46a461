//! What an experiment has measured so far, on the disk: each point before the next one begins.

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

/// What was asked for: the first line of a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    pub id: String,
    pub started: Timestamp,
    /// The experiment as it was named.
    pub file: String,
    /// Its text: what is gone on with is what was begun, whatever became of the file.
    pub text: String,
    pub quick: bool,
    pub point: Setting,
    pub label: Option<String>,
    pub on: Option<String>,
    pub repeat: Option<u32>,
    /// The folder of the results, and from where that is seen.
    pub dir: PathBuf,
    pub from: PathBuf,
}

impl Asked {
    /// What the options say.
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

    /// The command that goes on with it.
    pub fn resume(&self) -> String {
        format!("linerate run --resume {}", self.id)
    }
}

fn unusable(error: &TuneError) -> Failure {
    Failure::failed(match error {
        TuneError::InUse { path } => Problem::new(
            "in use: another process measures it",
            path.display().to_string(),
            "wait for that one, or end it",
        ),
        TuneError::Shape { path, why } => Problem::new(
            format!("no journal of this version ({why})"),
            path.display().to_string(),
            "begin anew, `linerate run NAME`: what was measured is in `linerate runs list`",
        ),
        TuneError::Journal { path, source } => Problem::new(
            format!("cannot be read and written ({source})"),
            path.display().to_string(),
            "see who may, and whether its disk is full",
        ),
        other => Problem::new(other.to_string(), "the journal", "begin anew"),
    })
}

/// Why a line is not in a journal.
fn unwritable(error: &TuneError) -> String {
    match error {
        TuneError::Journal { path, source } => {
            format!(
                "the journal {} cannot be written ({source})",
                path.display()
            )
        }
        other => other.to_string(),
    }
}

/// An experiment that was ended half-way: what was asked, what was measured, and where to go on writing.
///
/// # Errors
/// There is none of that name.
pub fn resumed(name: &str) -> Result<(Asked, Vec<Measured>, Journal), Failure> {
    let path = PathBuf::from(name);
    let path = match (path.is_file(), folder("run")) {
        (false, Some(folder)) if !name.contains('/') => folder.join(format!("{name}.jsonl")),
        _ => path,
    };
    if !path.is_file() {
        let left = left();
        return Err(Failure::failed(Problem::new(
            "there is no experiment of that name to go on with",
            format!("--resume {name}"),
            match left.is_empty() {
                true => "none is left half-way: begin one, `linerate run NAME`".to_owned(),
                false => format!("left half-way: {}", left.join(", ")),
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

/// Experiments that were ended half-way, the newest first: `ID (udp-hops)`.
fn left() -> Vec<String> {
    let entries = folder("run").and_then(|folder| std::fs::read_dir(folder).ok());
    let mut paths: Vec<PathBuf> = (entries.into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        // What another process measures now is not left half-way.
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

/// Keeps what is measured as soon as it is.
pub struct Keeper {
    journal: Option<Journal>,
    /// Whether the journal took a line in part: nothing may follow it.
    is_cut: bool,
    store: Option<Store>,
}

impl Keeper {
    /// Keeps points in this journal, and their records in the store unless they are not to be there.
    pub fn new(journal: Option<Journal>, stores: bool) -> Self {
        let store = stores.then(Store::open_default).and_then(Result::ok);
        Self {
            journal,
            is_cut: false,
            store,
        }
    }

    /// Begins a journal.
    ///
    /// # Errors
    /// Why there is none: nothing can be gone on with then.
    pub fn begin(asked: &Asked) -> Result<Journal, String> {
        let folder =
            folder("run").ok_or("neither XDG_STATE_HOME nor HOME holds an absolute path")?;
        let path = folder.join(format!("{}.jsonl", asked.id));
        let begun = Journal::create(&path, asked);
        begun.map_err(|error| {
            // Half a first line is no journal.
            let _ = std::fs::remove_file(&path);
            unwritable(&error)
        })
    }

    /// Puts a point on the disk. What could not be put there is said once: of the journal, and of the store.
    pub fn keep(&mut self, measured: &Measured) -> (Option<String>, Option<ReportError>) {
        let mut said = (None, None);
        if !self.is_cut
            && let Some(journal) = &mut self.journal
            && let Err(error) = journal.append(measured)
        {
            let error = unwritable(&error);
            said.0 = Some(format!(
                "{error}; what is measured from now on is lost if this is killed"
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

    /// Whether points are kept so that somebody can go on with them.
    pub fn is_kept(&self) -> bool {
        self.journal.is_some()
    }

    /// Takes the journal away: all of it is where it belongs.
    pub fn done(self) {
        if let Some(journal) = self.journal {
            // A file that stays takes room and harms nobody.
            let _ = journal.remove();
        }
    }
}
