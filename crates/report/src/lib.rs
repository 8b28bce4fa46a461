//! How runs are shown: live lines, text, JSON lines, an HTML page with plots; and where they are kept.
//!
//! Everything here is made from what `linerate_metric` defines (records, sets, events, examinations),
//! so a record from another machine reads like one's own. Nothing here measures anything or asks the
//! machine about itself. Texts come without a newline at their end.
#![forbid(unsafe_code)]

mod error;
pub mod style;

mod calls;
mod costs;
mod experiment;
mod facts;
mod figures;
pub mod forward;
mod generate;
mod round_trips;
mod timeline;
mod words;

pub mod differences;
pub mod side;

pub mod lines;
pub mod markdown;
pub mod stream;
pub mod text;
pub mod trace;

pub mod html;
mod svg;

pub mod csv;
pub mod document;
#[cfg(feature = "history")]
pub mod history;
pub mod schema;
pub mod store;

pub use error::ReportError;
pub use style::Style;
