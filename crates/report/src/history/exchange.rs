//! Export and import of records.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::History;
use super::entry::HistoryEntry;
use super::marks::DocumentMarks;
use crate::ReportError;
use crate::document::{Document, json_files, read_document, read_text};
use crate::external_text::parse_json;

/// Schema id of an export.
pub const EXPORT_SCHEMA: &str = "linerate/export/1";

/// Documents with their tags and notes, in one file.
#[derive(Serialize, Deserialize)]
struct ExportFile {
    schema: String,
    entries: Vec<ExportedDocument>,
}

#[derive(Serialize, Deserialize)]
struct ExportedDocument {
    document: Value,
    #[serde(flatten)]
    marks: DocumentMarks,
}

/// Result of importing one document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImportResult {
    /// The document was imported.
    #[serde(rename = "taken")]
    Imported,
    /// An identical document was already stored.
    #[serde(rename = "same")]
    Unchanged,
    /// Another document with this id is stored; it was kept.
    #[serde(rename = "differs")]
    Conflict,
}

impl History {
    /// Exports complete documents with tags and notes, in the format that `import` reads.
    ///
    /// # Errors
    /// [`ReportError::Read`], [`ReportError::NotARecord`].
    pub fn export_json(&self, entries: &[HistoryEntry]) -> Result<String, ReportError> {
        let exported = entries.iter().map(|entry| {
            let path = self.file(&entry.id);
            // The file's JSON is exported, so fields unknown to this version are preserved.
            Ok(ExportedDocument {
                document: read_json(&path)?,
                marks: DocumentMarks {
                    tags: entry.tags.clone(),
                    notes: entry.notes.clone(),
                },
            })
        });
        let export = ExportFile {
            schema: EXPORT_SCHEMA.to_owned(),
            entries: exported.collect::<Result<_, ReportError>>()?,
        };
        Ok(serde_json::to_string(&export).expect("an export has a JSON form"))
    }

    /// Imports the content of a file (a run, a set, an export), or of each `.json` file in a
    /// directory.
    ///
    /// A set brings its runs. A document whose id is already stored is kept, unless `replace` is
    /// set. `tags` are added to all imported documents.
    ///
    /// # Errors
    /// [`ReportError::Read`] or [`ReportError::NotARecord`] before any document of that file is
    /// imported; [`ReportError::Store`]. The results include the documents imported before the
    /// error.
    pub fn import(
        &self,
        path: &Path,
        replace: bool,
        tags: &[String],
        results: &mut Vec<(String, ImportResult)>,
    ) -> Result<(), ReportError> {
        for file in json_files(path)? {
            for exported in read_documents(&file)? {
                self.import_document(exported, &file, replace, tags, results)?;
            }
        }
        Ok(())
    }

    fn import_document(
        &self,
        exported: ExportedDocument,
        file: &Path,
        replace: bool,
        tags: &[String],
        results: &mut Vec<(String, ImportResult)>,
    ) -> Result<(), ReportError> {
        let text = exported.document.to_string();
        let document = Document::from_json(&text).map_err(|error| ReportError::NotARecord {
            path: file.to_owned(),
            why: error.to_string(),
        })?;
        let id = document.id().to_owned();
        let stored = read_document(&self.file(&id)).ok();
        let state = match stored {
            Some(stored) if stored == document => ImportResult::Unchanged,
            Some(_) if !replace => ImportResult::Conflict,
            _ => {
                self.store.put_document(&id, &text)?;
                ImportResult::Imported
            }
        };
        if state != ImportResult::Conflict && !(exported.marks.is_empty() && tags.is_empty()) {
            self.marks.change(&id, |marks| {
                marks.tags.extend(exported.marks.tags);
                marks.tags.extend(tags.iter().cloned());
                for note in exported.marks.notes {
                    if !marks.notes.contains(&note) {
                        marks.notes.push(note);
                    }
                }
                marks.notes.sort_by_key(|note| note.at);
            })?;
        }
        results.push((id, state));
        if let Document::Set(_) = &document {
            for run in exported.document["runs"].as_array().into_iter().flatten() {
                let run = ExportedDocument {
                    document: run.clone(),
                    marks: DocumentMarks::default(),
                };
                self.import_document(run, file, replace, tags, results)?;
            }
        }
        Ok(())
    }
}

fn read_json(path: &Path) -> Result<Value, ReportError> {
    let text = read_text(path)?;
    parse_json(&text).map_err(|error| ReportError::NotARecord {
        path: path.to_owned(),
        // The same description as for other files that are not JSON.
        why: match Document::from_json(&text) {
            Err(why) => why.to_string(),
            Ok(_) => format!("not JSON ({error})"),
        },
    })
}

/// Reads and checks the documents of one file.
fn read_documents(path: &Path) -> Result<Vec<ExportedDocument>, ReportError> {
    let not_a_record = |why: String| ReportError::NotARecord {
        path: path.to_owned(),
        why,
    };
    let value = read_json(path)?;
    let exported = if value["schema"] == EXPORT_SCHEMA {
        let export: ExportFile =
            serde_json::from_value(value).map_err(|error| not_a_record(error.to_string()))?;
        export.entries
    } else {
        vec![ExportedDocument {
            document: value,
            marks: DocumentMarks::default(),
        }]
    };
    for exported in &exported {
        let document = Document::from_json(&exported.document.to_string())
            .map_err(|error| not_a_record(error.to_string()))?;
        if !crate::store::is_plain_id(document.id()) {
            return Err(ReportError::BadId {
                id: document.id().to_owned(),
            });
        }
    }
    Ok(exported)
}
