//! Forwarding: poll-mode threads that receive frames from ports and send them to others.
//!
//! A [`Forwarder`] holds open ports. [`Forwarder::start`] assigns their queues to threads as
//! *streams* (a receive queue and the transmit queue that its frames go to) and runs one loop per
//! thread, compiled for each [mode](mode_table). [`Forwarder::stop`] takes the queues back and returns
//! what was moved. The counters of the queues can be read meanwhile; the loop has none of its own.
//!
//! For generators: [`frame`] makes frames, [`stream`] is the loop's view of a pair of queues, and a
//! source of frames is a mode like the others.
#![forbid(unsafe_code)]

pub mod mode_table;
pub mod saturation;
pub mod settings;
pub mod stream;

mod bit_rate_meter;
mod cpu_choice;
mod forwarder;
mod forwarder_port;
mod idle_policy;
mod mode;
mod queue_decorators;
mod stream_recorder;

mod run;
mod worker;

#[cfg(test)]
mod tests;

pub use forwarder::{ForwardResults, Forwarder, FrameMemoryRequest, PrimedFrames};
pub use forwarder_port::PortTotals;
pub use linerate_port::kinds::KINDS;
pub use linerate_port::{DropCause, PortError, PortUrl, QueueTotals, RxDestination};
pub use linerate_sys::frames::burst::BURST_FRAMES;
pub use linerate_sys::frames::frame_memory::CACHED_FRAMES_RANGE;
pub use mode_table::{MODES, ModeHelp, ModeSpec};
pub use run::{ForwardEvent, ForwardInterval, ForwardRun, RunTimes, plan, record, run};
pub use settings::{ForwardSettings, PeerAddress, QueueRate, TransmitRetry, VerboseLevel};
