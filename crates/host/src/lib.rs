//! Facts, counters and settings of a host, and the checks of `linerate doctor`.
//!
//! [`snapshot`] reads what a record has of its host, [`settings`] changes and restores settings,
//! [`doctor`] checks what limits measurements. The other modules read counters during a run, and
//! handle signals ([`stop_flag`]).
//!
//! System calls are in `linerate-sys`. Measurements are decided in other crates.
#![forbid(unsafe_code)]

pub mod doctor;
pub mod netlink;
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
