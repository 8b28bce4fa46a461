//! A stored document: one run, or several that belong together.

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use linerate_metric::experiment::ExperimentResult;
use linerate_metric::record::{RUN_SCHEMA, Record};
use linerate_metric::set::{RunSet, SET_SCHEMA};
use serde::Deserialize;

use crate::ReportError;

/// What a file of the store holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    /// One run.
    Run(Box<Record>),
    /// Several runs with what follows from them.
    Set(Box<RunSet>),
}

/// Why a text is no document of ours.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// Not JSON, or JSON of another shape.
    #[error("no record ({0})")]
    Shape(#[from] serde_json::Error),
    /// JSON of another program, or of a version that came later.
    #[error("of schema `{found}`; this version reads {RUN_SCHEMA} and {SET_SCHEMA}")]
    Schema {
        /// The schema it names.
        found: String,
    },
}

impl Document {
    /// Reads a run or a set; fields that this version does not know are skipped.
    ///
    /// # Errors
    /// [`DocumentError`] when it is neither.
    pub fn from_json(text: &str) -> Result<Self, DocumentError> {
        #[derive(Deserialize)]
        struct Named {
            schema: String,
        }
        let named: Named = serde_json::from_str(text)?;
        match named.schema.as_str() {
            RUN_SCHEMA => Ok(Self::Run(serde_json::from_str(text)?)),
            SET_SCHEMA => Ok(Self::Set(serde_json::from_str(text)?)),
            _ => Err(DocumentError::Schema {
                found: named.schema,
            }),
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Run(run) => &run.id,
            Self::Set(set) => &set.id,
        }
    }

    /// When its first payload was sent.
    #[must_use]
    pub fn started(&self) -> Timestamp {
        match self {
            Self::Run(run) => run.started,
            Self::Set(set) => set.started,
        }
    }

    /// What it says as an experiment; `None` for what is none.
    #[must_use]
    pub fn experiment(&self) -> Option<&ExperimentResult> {
        match self {
            Self::Run(_) => None,
            Self::Set(set) => set.result.experiment.as_deref(),
        }
    }

    /// Its runs.
    #[must_use]
    pub fn runs(&self) -> &[Record] {
        match self {
            Self::Run(run) => std::slice::from_ref(run),
            Self::Set(set) => &set.runs,
        }
    }
}

/// Reads a run or a set from a file.
///
/// # Errors
/// [`ReportError::Read`], [`ReportError::Foreign`].
pub fn read_document(path: &Path) -> Result<Document, ReportError> {
    let text = fs::read_to_string(path).map_err(|source| ReportError::Read {
        path: path.to_owned(),
        source,
    })?;
    Document::from_json(&text).map_err(|error: DocumentError| ReportError::Foreign {
        path: path.to_owned(),
        why: error.to_string(),
    })
}
