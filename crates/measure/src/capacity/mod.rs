//! What a device can carry: the measurements of RFC 2544 on any ports, with the goals of MLRsearch.

pub mod bursts;
pub mod campaign;
mod run;
pub mod search;

pub use campaign::{Amount, Ask, Campaign, Options, Seen, Test};
pub use run::{Measured, run};
