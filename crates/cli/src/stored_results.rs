//! Existing results: files, or documents of the store by their ids.

use std::path::Path;

use linerate_metric::record::Record;
use linerate_report::document::{Document, read_document};
#[cfg(feature = "history")]
use linerate_report::history::History;

use crate::failure::Failure;

/// Returns the runs of a record or a set, by file name or by id as in `linerate runs`.
///
/// # Errors
/// Fails if there is no such document, or if it cannot be read.
pub fn runs(name: &str) -> Result<Vec<Record>, Failure> {
    let path = Path::new(name);
    let document = match path.exists() {
        true => read_document(path)?,
        false => stored(name)?,
    };
    Ok(document.runs().to_vec())
}

#[cfg(feature = "history")]
fn stored(name: &str) -> Result<Document, Failure> {
    let history = History::open_default()?;
    let entry = history.find(name)?;
    Ok(history.document(&entry.id)?)
}

#[cfg(not(feature = "history"))]
fn stored(name: &str) -> Result<Document, Failure> {
    Err(Failure::usage(linerate_metric::event::Problem::new(
        "this build of linerate has no history and cannot find ids",
        name,
        "name a file: $XDG_DATA_HOME/linerate/runs/ID.json",
    )))
}
