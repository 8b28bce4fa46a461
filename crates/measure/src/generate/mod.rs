//! Packet generator: sends frames made from a template or taken from a capture at a rate, and
//! identifies the frames that arrive by number, flow and send time.
//!
//! [`Ports`] are opened once, and [`run`] is called for each run of a series. [`record`] makes the
//! record of a run. [`template`] defines the contents of the frames.

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
