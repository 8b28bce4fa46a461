//! A stored document: one run, or several that belong together.

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use linerate_metric::experiment::ExperimentResult;
use linerate_metric::record::{RUN_SCHEMA, Record};
use linerate_metric::set::{RunSet, SET_SCHEMA};
use serde::Deserialize;
use serde::de::IgnoredAny;

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
    /// It ends before the JSON in it does.
    #[error("cut off: it ends in the middle of its JSON, at line {0}")]
    Cut(usize),
    /// There is nothing in it.
    #[error("empty")]
    Empty,
    /// No JSON.
    #[error("no JSON ({0})")]
    Json(serde_json::Error),
    /// JSON that says nothing of its schema.
    #[error("JSON that is no record (it names no `schema`)")]
    Other,
    /// JSON of our schema, and not of its shape.
    #[error("no whole record ({0})")]
    Shape(serde_json::Error),
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
        /// What is read of JSON of any shape.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Named {
            Some { schema: String },
            None(IgnoredAny),
        }
        if text.trim().is_empty() {
            return Err(DocumentError::Empty);
        }
        let named = serde_json::from_str(text).map_err(|error| match error.is_eof() {
            true => DocumentError::Cut(error.line()),
            false => DocumentError::Json(error),
        })?;
        let Named::Some { schema } = named else {
            return Err(DocumentError::Other);
        };
        match schema.as_str() {
            RUN_SCHEMA => serde_json::from_str(text).map(Self::Run),
            SET_SCHEMA => serde_json::from_str(text).map(Self::Set),
            _ => return Err(DocumentError::Schema { found: schema }),
        }
        .map_err(DocumentError::Shape)
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

/// Reads a file that should be of ours.
///
/// # Errors
/// [`ReportError::Read`]; [`ReportError::Table`] for tables that were exported, from which no record can be
/// made again; [`ReportError::Foreign`] for what is no text.
pub(crate) fn read_text(path: &Path) -> Result<String, ReportError> {
    let bytes = fs::read(path).map_err(|source| ReportError::Read {
        path: path.to_owned(),
        source,
    })?;
    let table = |form| ReportError::Table {
        path: path.to_owned(),
        form,
    };
    // The magic number of the format, and the first columns of ours.
    if bytes.starts_with(b"PAR1") {
        return Err(table("Parquet"));
    }
    if bytes.starts_with(b"id,kind,started,") {
        return Err(table("CSV"));
    }
    String::from_utf8(bytes).map_err(|_| ReportError::Foreign {
        path: path.to_owned(),
        why: "no text, so no JSON".to_owned(),
    })
}

/// Reads a run or a set from a file.
///
/// # Errors
/// [`ReportError::Read`], [`ReportError::Foreign`].
pub fn read_document(path: &Path) -> Result<Document, ReportError> {
    let text = read_text(path)?;
    Document::from_json(&text).map_err(|error: DocumentError| ReportError::Foreign {
        path: path.to_owned(),
        why: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_record_is_told_for_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        for (bytes, said, next) in [
            (&b""[..], "empty", "name a file that"),
            (b" \n", "empty", "name a file that"),
            (b"{\"schema\":\n", "cut off", "name a file that"),
            (b"{}", "names no `schema`", "name a file that"),
            (b"[]", "names no `schema`", "name a file that"),
            (b"nonsense", "no JSON", "name a file that"),
            (b"\xff\xfe", "no text", "name a file that"),
            (
                b"{\"schema\":\"other/1\"}",
                "of schema `other/1`",
                "name a file that",
            ),
            (
                b"{\"schema\":\"linerate/run/1\"}",
                "no whole record (missing field `id`",
                "name a file that",
            ),
            (
                b"PAR1\x15\x04\xff",
                "a table in Parquet",
                "runs export -o FILE",
            ),
            (
                b"id,kind,started,label\n",
                "a table in CSV",
                "runs export -o FILE",
            ),
        ] {
            fs::write(&file, bytes).unwrap();
            let problem = read_document(&file).unwrap_err().problem();
            let what = String::from_utf8_lossy(bytes);
            assert!(problem.situation.contains(said), "{what}: {problem}");
            assert!(problem.next_step.contains(next), "{what}: {problem}");
        }
    }
}
