//! Packet generator: sends frames made from a template or taken from a capture at a rate, and
//! identifies the frames that arrive by number, flow and send time.
//!
//! Start at [`run()`]: [`GeneratorPorts`] are opened once, and it is called for each run of a
//! series. [`record()`] makes the record of a run. [`capacity`] searches the throughput (RFC 2544).
//!
//! The contents of frames are defined by `linerate_packet::template`, never here.
#![forbid(unsafe_code)]

pub mod capacity;

mod generator_ports;
mod record;
mod run;

mod worker;

mod frame_sink;
mod frame_source;

mod arrival_window;
mod capture;
mod queue_growth;
mod thread_count;

pub use capture::Capture;
pub use generator_ports::{GeneratorPorts, ReceiveSide};
pub use queue_growth::{QueueGrowth, QueueGrowthDetector};
pub use record::{caveats, plan, record};
pub use run::{
    FrameInput, GeneratorEvent, GeneratorFacts, GeneratorInterval, GeneratorRun, GeneratorSettings,
    HostDisturbance, run,
};
