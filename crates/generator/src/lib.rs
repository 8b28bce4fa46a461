//! Packet generator: sends frames made from a template or taken from a capture at a rate, and
//! identifies the frames that arrive by number, flow and send time.
//!
//! [`GeneratorPorts`] are opened once, and [`run`] is called for each run of a series. [`record`] makes the
//! record of a run. [`template`] defines the contents of the frames.
#![forbid(unsafe_code)]

pub mod capacity;

mod thread_count;

mod arrival_window;
mod capture;
mod frame_sink;
mod frame_source;
mod generator_ports;
mod queue_growth;
mod record;
mod run;
mod worker;

pub use capture::Capture;
pub use generator_ports::{GeneratorPorts, ReceiveSide};
pub use linerate_packet::template::MAX_FLOW_GROUPS;
pub use queue_growth::{QueueGrowth, QueueGrowthDetector};
pub use record::{caveats, plan, record};
pub use run::{
    FrameInput, GeneratorEvent, GeneratorFacts, GeneratorInterval, GeneratorRun, GeneratorSettings,
    HostDisturbance, run,
};
