//! All `unsafe` code of this crate: frame memory, ring slots, and system calls.
//!
//! Invariant that makes `&mut [u8]` for a frame sound: a [`frame::Frame`] is neither `Copy` nor
//! `Clone`, each slot of a memory has at most one of them, and only code in this module creates
//! them.

pub(crate) mod bpf;
pub(crate) mod bpf_program;
pub(crate) mod burst;
#[cfg(feature = "dpdk")]
pub(crate) mod dpdk;
pub(crate) mod frame;
pub(crate) mod frame_memory;
pub(crate) mod frame_ring;
pub(crate) mod frames_in_flight;
pub(crate) mod interface_ioctl;
pub(crate) mod interface_offloads;
pub(crate) mod netlink_xdp;
pub(crate) mod packet;
mod prefetch;
pub(crate) mod shm;
pub(crate) mod tap;
pub(crate) mod xsk_ring;
pub(crate) mod xsk_rings;
pub(crate) mod xsk_socket;
