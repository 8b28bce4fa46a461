//! Results that are there already: files, or documents of the store by their ids.

use std::path::Path;

use linerate_metric::record::Record;
use linerate_report::document::{Document, read_document};
#[cfg(feature = "history")]
use linerate_report::history::History;

use crate::failure::Failure;

/// The runs of a record or a set, by the name of its file or by what `linerate runs` finds it with.
///
/// # Errors
/// There is none, it cannot be read, or it is something else.
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
        "this linerate was built without its history and finds no ids",
        name,
        "name the file: $XDG_DATA_HOME/linerate/runs/ID.json",
    )))
}
