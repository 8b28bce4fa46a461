//! Programs that are run: linerate and those that it is compared with.

pub mod bare_loops;
pub mod iperf2;
pub mod iperf3;
pub mod linerate;
pub mod nuttcp;
pub mod sockperf;
pub mod testpmd;
