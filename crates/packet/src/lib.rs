//! Frames as bytes: headers and templates, checksums, pcap files, and the virtio header.
//!
//! This crate neither sends nor receives. Ports, the forwarder and the generator use it.
#![forbid(unsafe_code)]

pub mod checksum;
pub mod frame;
pub mod pcap;
pub mod template;
pub mod vnet;
