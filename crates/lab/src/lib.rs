//! Test networks: hosts, switches and shaped links built from network namespaces, bridges and veth
//! pairs. They work without root through a user namespace and leave nothing behind when dropped or
//! killed.
//!
//! [`Lab::up`] builds a [`Topology`] inside this process. [`up`], [`list`], [`exec`] and [`down`]
//! manage labs that outlive a command; a holder process owns each. This crate measures nothing and
//! does not touch the machine's own network.
#![forbid(unsafe_code)]

pub mod topology;

pub mod layout;

mod offload;
mod qdisc;

mod check_result;
mod current_lab;
mod error;
mod exec;
mod holder;
mod holder_command;
mod info;
mod lab;
mod link_emulator;
mod namespace;
mod netlink;
mod privilege;
mod registry;
mod segment_sizes;
mod validation;

pub use check_result::CheckResult;
pub use current_lab::{CurrentLab, current_lab};
pub use error::LabError;
pub use exec::{ExecResult, exec};
pub use holder::{hold, up};
pub use holder_command::{HOLDER_COMMAND, LINK_STEP};
pub use info::{HostInfo, InterfaceInfo, LabInfo, LinkInfo};
pub use lab::{Lab, LabHost};
pub use link_emulator::PASSING_REPLY;
pub use privilege::{enter_user_namespace, privileged};
pub use registry::{down, list};
pub use segment_sizes::{segment_sizes, set_segment_sizes};
pub use topology::{LinkSpec, Topology, TopologyError};
