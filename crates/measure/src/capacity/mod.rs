//! Capacity of a device: the tests of RFC 2544 on any ports, with the loss goals of MLRsearch.

pub mod bursts;
pub mod campaign;
mod doubts;
pub mod judge;
mod run;
pub mod search;
#[cfg(test)]
mod simulated;

pub use campaign::{Amount, Ask, Campaign, Options, Seen, Test};
pub use run::{Measured, run};
