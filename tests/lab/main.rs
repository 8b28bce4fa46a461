//! The real binary on hosts of a lab.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/schema.rs"]
mod schema;

mod compare;
mod devices;
mod forward;
mod generate;
mod long_paths;
mod losses;
mod namespaces;
mod stack;
mod tune;
