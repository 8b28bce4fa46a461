//! Facts of a host for the record, and the checks of `linerate doctor`.
//!
//! Measurements are decided in other crates.

pub mod doctor;
pub mod network_namespaces;
pub mod output_reader;
pub mod processor_time;
pub mod snapshot;
pub mod steal;
pub mod stop_flag;
pub mod thread_counters;
pub mod wake_up;

pub mod settings;
