//! Presents results (live lines, text, JSON lines, HTML with plots, CSV) and stores them.
//!
//! Input is only what `linerate_record` defines: records, sets, events, doctor reports. A record of
//! another machine is therefore shown like a local one. This crate never measures and never reads
//! the state of the machine. Texts have no newline at the end.
#![forbid(unsafe_code)]

mod error;
pub mod style;

mod calls;
mod capacity;
mod conclusions;
mod costs;
mod experiment;
mod facts;
mod figures;
pub mod forward;
mod generate;
mod model;
mod paired_comparison;
mod phrases;
mod rate_search;
mod round_trips;
mod stages;
mod sweep;
mod timeline;
mod tuning;

pub mod comparison;
pub mod differences;

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
pub use style::TextStyle;
