//! Export and import of records.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::History;
use super::entry::Entry;
use super::marks::Marks;
use crate::ReportError;
use crate::document::{Document, read_document, read_text};

/// Schema id of an export.
pub const EXPORT_SCHEMA: &str = "linerate/export/1";

/// Documents with their tags and notes, in one file.
#[derive(Serialize, Deserialize)]
struct Export {
    schema: String,
    entries: Vec<Exported>,
}

#[derive(Serialize, Deserialize)]
struct Exported {
    document: Value,
    #[serde(flatten)]
    marks: Marks,
}

/// Result of importing one document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrived {
    /// The document was imported.
    Taken,
    /// An identical document was already stored.
    Same,
    /// Another document with this id is stored; it was kept.
    Differs,
}

impl History {
    /// Exports complete documents with tags and notes, in the format that `import` reads.
    ///
    /// # Errors
    /// [`ReportError::Read`], [`ReportError::Foreign`].
    pub fn export_json(&self, entries: &[Entry]) -> Result<String, ReportError> {
        let exported = entries.iter().map(|entry| {
            let path = self.file(&entry.id);
            // The file's JSON is exported, so fields unknown to this version are preserved.
            Ok(Exported {
                document: value(&path)?,
                marks: Marks {
                    tags: entry.tags.clone(),
                    notes: entry.notes.clone(),
                },
            })
        });
        let export = Export {
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
    /// [`ReportError::Read`] or [`ReportError::Foreign`] before any document of that file is
    /// imported; [`ReportError::Store`]. The results include the documents imported before the
    /// error.
    pub fn import(
        &self,
        path: &Path,
        replace: bool,
        tags: &[String],
        arrived: &mut Vec<(String, Arrived)>,
    ) -> Result<(), ReportError> {
        for file in files(path)? {
            for exported in read(&file)? {
                self.take(exported, &file, replace, tags, arrived)?;
            }
        }
        Ok(())
    }

    fn take(
        &self,
        exported: Exported,
        file: &Path,
        replace: bool,
        tags: &[String],
        arrived: &mut Vec<(String, Arrived)>,
    ) -> Result<(), ReportError> {
        let text = exported.document.to_string();
        let document = Document::from_json(&text).map_err(|error| ReportError::Foreign {
            path: file.to_owned(),
            why: error.to_string(),
        })?;
        let id = document.id().to_owned();
        let here = read_document(&self.file(&id)).ok();
        let state = match here {
            Some(here) if here == document => Arrived::Same,
            Some(_) if !replace => Arrived::Differs,
            _ => {
                self.store.put(&id, &text)?;
                Arrived::Taken
            }
        };
        if state != Arrived::Differs && !(exported.marks.is_empty() && tags.is_empty()) {
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
        arrived.push((id, state));
        if let Document::Set(_) = &document {
            for run in exported.document["runs"].as_array().into_iter().flatten() {
                let run = Exported {
                    document: run.clone(),
                    marks: Marks::default(),
                };
                self.take(run, file, replace, tags, arrived)?;
            }
        }
        Ok(())
    }
}

fn value(path: &Path) -> Result<Value, ReportError> {
    let text = read_text(path)?;
    serde_json::from_str(&text).map_err(|error| ReportError::Foreign {
        path: path.to_owned(),
        // The same description as for other files that are not JSON.
        why: match Document::from_json(&text) {
            Err(why) => why.to_string(),
            Ok(_) => format!("not JSON ({error})"),
        },
    })
}

/// Reads and checks the documents of one file.
fn read(path: &Path) -> Result<Vec<Exported>, ReportError> {
    let foreign = |why: String| ReportError::Foreign {
        path: path.to_owned(),
        why,
    };
    let value = value(path)?;
    let exported = if value["schema"] == EXPORT_SCHEMA {
        let export: Export =
            serde_json::from_value(value).map_err(|error| foreign(error.to_string()))?;
        export.entries
    } else {
        vec![Exported {
            document: value,
            marks: Marks::default(),
        }]
    };
    for exported in &exported {
        let document = Document::from_json(&exported.document.to_string())
            .map_err(|error| foreign(error.to_string()))?;
        if !crate::store::is_plain(document.id()) {
            return Err(ReportError::BadId {
                id: document.id().to_owned(),
            });
        }
    }
    Ok(exported)
}

fn files(path: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let fail = |source| ReportError::Read {
        path: path.to_owned(),
        source,
    };
    if !fs::metadata(path).map_err(fail)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for found in fs::read_dir(path).map_err(fail)? {
        let found = found.map_err(fail)?.path();
        if found.extension().is_some_and(|end| end == "json") {
            files.push(found);
        }
    }
    if files.is_empty() {
        return Err(ReportError::Foreign {
            path: path.to_owned(),
            why: "a directory without .json files".to_owned(),
        });
    }
    files.sort();
    Ok(files)
}
