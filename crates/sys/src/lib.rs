//! Linux calls behind safe functions, and memory that is shared with the kernel, devices or other
//! processes: the only `unsafe` code of the workspace.
//!
//! Nothing here decides anything about a measurement.

pub mod af_packet;
pub mod af_xdp;
pub mod clock;
mod control_message;
pub mod cpu;
pub mod cpuid;
pub mod datagram;
pub mod datagram_batch;
pub mod device_clock;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod error_report;
pub mod ethtool;
pub mod ethtool_features;
pub mod fd_table;
pub mod feature_probes;
pub mod flow_rules;
pub mod frames;
pub mod hardware_counters;
pub mod hardware_timestamps;
pub mod interface_ioctl;
pub mod interface_offloads;
pub mod locked_memory;
pub mod memory_info;
pub mod namespace;
pub mod pacing;
pub mod packet_timestamps;
pub mod perf_events;
pub mod process;
pub mod readiness;
pub mod rss_table;
pub mod scheduling;
pub mod shm;
pub mod signal;
pub mod socket;
pub mod spawn;
pub mod tap;
pub mod terminal;
pub mod thread;
pub mod tick_clock;
pub mod timestamp_probe;
pub mod uring;
pub mod zerocopy;
