//! Linux system calls (clocks, sockets, processors, namespaces), facts of a host for the record,
//! and the checks of `linerate doctor`.
//!
//! `unsafe` lives in [`sys`] alone: each module there wraps system calls in functions that are safe
//! to call. Measurements are decided in other crates.

pub mod doctor;
pub mod network_namespaces;
pub mod numa;
pub mod output_reader;
pub mod processor_time;
pub mod snapshot;
pub mod steal;
pub mod stop_flag;
pub mod thread_counters;
pub mod wake_up;

pub mod settings;
