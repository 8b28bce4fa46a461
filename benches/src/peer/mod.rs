//! The programs that are run: ours, and those it is compared with.

pub mod bare;
pub mod iperf3;
pub mod linerate;
