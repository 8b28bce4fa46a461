//! Generating: frames made from a template, or taken from a capture, leave one port at a rate, and what
//! arrives at another is told by its number, its flow and its age.
//!
//! [`Ports`] are opened once and [`run`] as often as a series needs; [`record`] makes the record of a
//! run. What frames are is [`template`]'s.

pub mod template;
mod threads;

mod capture;
mod course;
mod engine;
mod ports;
mod record;
mod run;
mod sink;
mod source;
mod span;

pub use capture::Capture;
pub use course::{Course, Filling};
pub use ports::{Arrival, Ports};
pub use record::{doubts, plan, record};
pub use run::{Disturbance, Facts, Ran, Reading, Settings, Told, What, run};
pub use sink::ACCOUNTS;
