//! Ports of every kind, with real devices.

#[path = "../common/mod.rs"]
mod common;

mod dpdk;
mod packet;
mod pcap;
mod shm;
mod tap;
mod xdp;
mod xdp_driver_quirks;
mod xdp_kill;
mod xdp_loss;
