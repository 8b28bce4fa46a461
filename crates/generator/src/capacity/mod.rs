//! Capacity of a device: the tests of RFC 2544 on any ports, with the loss goals of MLRsearch.

pub mod burst_search;
mod caveats;
pub mod loss_attribution;
pub mod multi_goal_search;
pub mod rfc2544_suite;
mod run;
#[cfg(test)]
mod simulation;

pub use rfc2544_suite::{
    Rfc2544Suite, SuiteOptions, SuiteTest, SuiteTrial, SuiteTrialResult, TrialAmount,
};
pub use run::{CapacityResults, run};
