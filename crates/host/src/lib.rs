//! What Linux knows and takes: clocks, sockets, processors, namespaces; the facts of a host for the
//! record; the checks of `linerate doctor`.
//!
//! `unsafe` lives in [`sys`] alone: each module there wraps system calls in functions that are safe
//! to call. Nothing here decides anything about a measurement.

pub mod sys;

pub mod device_clock;
pub mod doctor;
pub mod evidence;
pub mod networks;
pub mod processor_time;
pub mod reader;
pub mod snapshot;
pub mod steal;
pub mod stop;
pub mod wake_up;

pub mod knob;
