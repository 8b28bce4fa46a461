//! Stored document: one run, or a set of runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use linerate_record::event::ErrorReport;
use linerate_record::experiment::ExperimentResult;
use linerate_record::record::{RUN_SCHEMA, Record};
use linerate_record::run_set::{RunSet, SET_SCHEMA};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::ReportError;
use crate::external_text::{clean, parse_json};

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
    /// Document of a command that failed (situation and object).
    #[error("the error of a run: {0}: {1}")]
    FailedRun(String, String),
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
            OfFailure { error: ErrorReport },
            WithoutSchema(IgnoredAny),
        }
        if text.trim().is_empty() {
            return Err(DocumentError::Empty);
        }
        let named = serde_json::from_str(text).map_err(|error| match error.is_eof() {
            true => DocumentError::Truncated(error.line()),
            false => DocumentError::Json(error),
        })?;
        let schema = match named {
            SchemaProbe::WithSchema { schema } => schema,
            SchemaProbe::OfFailure { error } => {
                return Err(DocumentError::FailedRun(
                    clean(&error.object),
                    clean(&error.situation),
                ));
            }
            SchemaProbe::WithoutSchema(_) => return Err(DocumentError::MissingSchema),
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

/// Returns the `.json` files of a directory in the order of their names; a file is itself the list.
///
/// # Errors
/// [`ReportError::Read`]; [`ReportError::NotARecord`] for a directory without such files.
pub(crate) fn json_files(path: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let fail = |source| ReportError::Read {
        path: path.to_owned(),
        source,
    };
    if !fs::metadata(path).map_err(fail)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(fail)? {
        let entry = entry.map_err(fail)?.path();
        if entry
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            files.push(entry);
        }
    }
    if files.is_empty() {
        return Err(ReportError::NotARecord {
            path: path.to_owned(),
            why: "a directory without .json files".to_owned(),
        });
    }
    files.sort();
    Ok(files)
}

/// Documents of a directory.
#[derive(Debug)]
pub struct DirectoryDocuments {
    /// Documents, the oldest first. Runs of a set that is there too are left out.
    pub documents: Vec<Document>,
    /// Errors of files that are no records.
    pub errors: Vec<ReportError>,
}

/// Reads all `.json` files of a directory, without its subdirectories.
///
/// # Errors
/// [`ReportError::Read`] if the directory cannot be read, [`ReportError::NotARecord`] if it has no
/// `.json` file.
pub fn read_directory(dir: &Path) -> Result<DirectoryDocuments, ReportError> {
    let mut documents = Vec::new();
    let mut errors = Vec::new();
    for file in json_files(dir)? {
        match read_document(&file) {
            Ok(document) => documents.push(document),
            Err(error) => errors.push(error),
        }
    }
    let sets = (documents.iter()).filter(|document| matches!(document, Document::Set(_)));
    let members: BTreeSet<String> = sets
        .flat_map(Document::runs)
        .map(|run| run.id.clone())
        .collect();
    documents.retain(|document| {
        matches!(document, Document::Set(_)) || !members.contains(document.id())
    });
    documents.sort_by_key(|document| (document.started(), document.id().to_owned()));
    Ok(DirectoryDocuments { documents, errors })
}

#[cfg(test)]
mod tests {
    use linerate_record::run_set::SetResult;

    use super::*;

    #[test]
    fn a_directory_gives_its_records_and_names_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let run = |id: &str| {
            let text = include_str!("../tests/fixtures/run-1.json");
            let mut run: Record = serde_json::from_str(text).unwrap();
            run.id = id.to_owned();
            run
        };
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("b.json", &run("alone").to_json());
        write("a.json", &run("member").to_json());
        let set = RunSet {
            schema: SET_SCHEMA.to_owned(),
            id: "set".to_owned(),
            kind: "demo".to_owned(),
            started: run("member").started,
            interrupted: false,
            runs: vec![run("member")],
            result: SetResult::default(),
        };
        write("c.json", &serde_json::to_string(&set).unwrap());
        write("package.json", "{}");
        write("page.html", "<p>");
        let found = read_directory(dir.path()).unwrap();
        let ids: Vec<&str> = found.documents.iter().map(Document::id).collect();
        assert_eq!(ids, ["alone", "set"]);
        let errors: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains("package.json"), "{errors:?}");
        assert!(read_directory(&dir.path().join("absent")).is_err());
    }

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
            (
                br#"{"error":{"situation":"no route","object":"192.0.2.1","next_step":""}}"#,
                "the error of a run: 192.0.2.1: no route",
                "name a file that",
            ),
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
