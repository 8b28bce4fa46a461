//! Forwarder: poll-mode threads that receive frames from ports and send them to others.
//!
//! Start at [`Forwarder`]: it holds open ports. [`Forwarder::start`] assigns their queues to
//! threads as streams (a receive queue and the transmit queue that its frames go to) and runs one
//! loop per thread, compiled for each [mode](MODES). [`Forwarder::stop`] takes the queues back and
//! returns what was moved. [`run`] does both, with events.
//!
//! The loop never counts frames: the counters of the queues are read meanwhile. The kinds of ports
//! are in `linerate_port`.
#![forbid(unsafe_code)]

mod run;
pub mod saturation;
mod settings;

mod forwarder;
mod forwarder_port;

mod worker;

mod mode;
mod mode_table;
mod stream;

mod bit_rate_meter;
mod cpu_choice;
mod idle_policy;
mod stream_recorder;

#[cfg(test)]
mod tests;

pub use forwarder::{ForwardResults, Forwarder, FrameMemoryRequest, PrimedFrames};
pub use forwarder_port::PortTotals;
pub use mode_table::{MODES, ModeHelp, ModeSpec};
pub use run::{ForwardEvent, ForwardInterval, ForwardRun, RunTimes, plan, record, run};
pub use settings::{ForwardSettings, PeerAddress};
pub use stream::{ModeSettings, TransmitRetry};
