//! Reports as golden files, and what they have in common with the documents.

#[path = "../samples/mod.rs"]
mod samples;

mod beside;
mod golden;
mod method;
mod poisoned;
mod record;
mod schema;
mod trace;
