//! Existing results: files, or documents of the store by their ids.

use std::path::Path;

use linerate_record::record::Record;
use linerate_report::document::{Document, read_document};
#[cfg(feature = "history")]
use linerate_report::history::History;

use crate::failure::CommandFailure;

/// Returns the runs of a record or a set, by file name or by id as in `linerate runs`.
///
/// # Errors
/// Fails if there is no such document, or if it cannot be read.
pub fn load_runs(name: &str) -> Result<Vec<Record>, CommandFailure> {
    let path = Path::new(name);
    let document = match path.exists() {
        true => read_document(path)?,
        false => load_from_history(name)?,
    };
    Ok(document.runs().to_vec())
}

#[cfg(feature = "history")]
fn load_from_history(name: &str) -> Result<Document, CommandFailure> {
    let history = History::open_default()?;
    let entry = history.find(name)?;
    Ok(history.document(&entry.id)?)
}

#[cfg(not(feature = "history"))]
fn load_from_history(name: &str) -> Result<Document, CommandFailure> {
    Err(CommandFailure::usage(
        linerate_record::event::ErrorReport::new(
            "this build of linerate has no history and cannot find ids",
            name,
            "name a file: $XDG_DATA_HOME/linerate/runs/ID.json",
        ),
    ))
}
