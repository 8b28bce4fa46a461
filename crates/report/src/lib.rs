//! Presents results (live lines, text, JSON lines, HTML with plots, CSV) and stores them.
//!
//! Input is only what `linerate_record` defines: records, sets, events, doctor reports. A record of
//! another machine is therefore shown like a local one. This crate never measures and never reads
//! the state of the machine. Texts have no newline at the end.
//!
//! Modules import one another in one direction: output formats, builders, model.
#![forbid(unsafe_code)]

mod error;
pub mod style;

// What enters from outside and leaves to a terminal.
pub mod external_text;

// Shared tables, figures and formatting of values.
mod model;

// Builders: a record or a set of runs becomes tables and sentences.
mod calls;
mod capacity;
pub mod comparison;
mod conclusions;
mod costs;
pub mod differences;
mod experiment;
mod facts;
mod figures;
pub mod forward;
mod generate;
mod paired_comparison;
mod phrases;
mod rate_search;
mod round_trips;
mod stages;
mod sweep;
mod timeline;
mod tuning;

// Output formats: tables and sentences become text, pages and files.
pub mod csv;
pub mod html;
pub mod json_stream;
pub mod lines;
pub mod markdown;
mod svg;
pub mod text;
pub mod trace;

// Storage of records and their history.
pub mod document;
#[cfg(feature = "history")]
pub mod history;
pub mod schema;
pub mod store;

pub use error::ReportError;
pub use style::TextStyle;
