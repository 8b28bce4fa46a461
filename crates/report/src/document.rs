//! Stored document: one run, or a set of runs.

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use linerate_record::experiment::ExperimentResult;
use linerate_record::record::{RUN_SCHEMA, Record};
use linerate_record::run_set::{RunSet, SET_SCHEMA};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::ReportError;
use crate::external_text::parse_json;

/// Content of a file of the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Document {
    /// A single run.
    Run(Box<Record>),
    /// Several runs with their common result.
    Set(Box<RunSet>),
}

/// Error for a text that is not a document of this program.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The JSON is truncated (line number).
    #[error("truncated: the JSON ends early, at line {0}")]
    Truncated(usize),
    #[error("empty")]
    Empty,
    #[error("not JSON ({0})")]
    Json(serde_json::Error),
    /// JSON without a schema id.
    #[error("JSON without a `schema` field, so not a record")]
    MissingSchema,
    /// JSON that does not match the schema it names.
    #[error("an incomplete or invalid record ({0})")]
    InvalidRecord(serde_json::Error),
    /// JSON of another program or of a newer version.
    #[error("of schema `{schema}`; this version reads {RUN_SCHEMA} and {SET_SCHEMA}")]
    UnsupportedSchema {
        /// Schema id in the document.
        schema: String,
    },
}

impl Document {
    /// Parses a run or a set; unknown fields are skipped. Its texts are cleaned ([`parse_json`]): it
    /// may be somebody else's.
    ///
    /// # Errors
    /// [`DocumentError`] when the text is neither.
    pub fn from_json(text: &str) -> Result<Self, DocumentError> {
        /// Reads the schema id from JSON of any structure.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum SchemaProbe {
            WithSchema { schema: String },
            WithoutSchema(IgnoredAny),
        }
        if text.trim().is_empty() {
            return Err(DocumentError::Empty);
        }
        let named = serde_json::from_str(text).map_err(|error| match error.is_eof() {
            true => DocumentError::Truncated(error.line()),
            false => DocumentError::Json(error),
        })?;
        let SchemaProbe::WithSchema { schema } = named else {
            return Err(DocumentError::MissingSchema);
        };
        match schema.as_str() {
            RUN_SCHEMA => parse_json(text).map(Self::Run),
            SET_SCHEMA => parse_json(text).map(Self::Set),
            _ => return Err(DocumentError::UnsupportedSchema { schema }),
        }
        .map_err(DocumentError::InvalidRecord)
    }

    /// Id of the run or set.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Run(run) => &run.id,
            Self::Set(set) => &set.id,
        }
    }

    /// Time of the first payload.
    #[must_use]
    pub fn started(&self) -> Timestamp {
        match self {
            Self::Run(run) => run.started,
            Self::Set(set) => set.started,
        }
    }

    /// Result of the experiment; `None` for a run and for other sets.
    #[must_use]
    pub fn experiment(&self) -> Option<&ExperimentResult> {
        match self {
            Self::Run(_) => None,
            Self::Set(set) => set.result.experiment.as_deref(),
        }
    }

    /// Runs of the document: one, or those of the set.
    #[must_use]
    pub fn runs(&self) -> &[Record] {
        match self {
            Self::Run(run) => std::slice::from_ref(run),
            Self::Set(set) => &set.runs,
        }
    }
}

/// Reads a file that should hold a document.
///
/// # Errors
/// [`ReportError::Read`] on failure; [`ReportError::Table`] for an exported table, which holds no
/// records; [`ReportError::NotARecord`] for bytes that are not UTF-8.
pub(crate) fn read_text(path: &Path) -> Result<String, ReportError> {
    let bytes = fs::read(path).map_err(|source| ReportError::Read {
        path: path.to_owned(),
        source,
    })?;
    let table = |format| ReportError::Table {
        path: path.to_owned(),
        format,
    };
    // Magic number of Parquet, and the first columns of our CSV export.
    if bytes.starts_with(b"PAR1") {
        return Err(table("Parquet"));
    }
    if bytes.starts_with(b"id,kind,started,") {
        return Err(table("CSV"));
    }
    String::from_utf8(bytes).map_err(|_| ReportError::NotARecord {
        path: path.to_owned(),
        why: "not UTF-8 text".to_owned(),
    })
}

/// Reads a run or a set from a file.
///
/// # Errors
/// [`ReportError::Read`], [`ReportError::NotARecord`].
pub fn read_document(path: &Path) -> Result<Document, ReportError> {
    let text = read_text(path)?;
    Document::from_json(&text).map_err(|error: DocumentError| ReportError::NotARecord {
        path: path.to_owned(),
        why: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_record_is_described() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        for (bytes, said, next) in [
            (&b""[..], "empty", "name a file that"),
            (b" \n", "empty", "name a file that"),
            (b"{\"schema\":\n", "truncated", "name a file that"),
            (b"{}", "without a `schema`", "name a file that"),
            (b"[]", "without a `schema`", "name a file that"),
            (b"nonsense", "not JSON", "name a file that"),
            (b"\xff\xfe", "not UTF-8", "name a file that"),
            (
                b"{\"schema\":\"other/1\"}",
                "of schema `other/1`",
                "name a file that",
            ),
            (
                b"{\"schema\":\"linerate/run/1\"}",
                "incomplete or invalid record (missing field `id`",
                "name a file that",
            ),
            (
                b"PAR1\x15\x04\xff",
                "a Parquet table",
                "runs export -o FILE",
            ),
            (
                b"id,kind,started,label\n",
                "a CSV table",
                "runs export -o FILE",
            ),
        ] {
            fs::write(&file, bytes).unwrap();
            let problem = read_document(&file).unwrap_err().to_report();
            let input = String::from_utf8_lossy(bytes);
            assert!(problem.situation.contains(said), "{input}: {problem}");
            assert!(problem.next_step.contains(next), "{input}: {problem}");
        }
    }
}
