//! Frames as bytes: headers and templates, checksums, pcap files, and the virtio header.
//!
//! Start at [`template`], which makes the frames of a plan, or at [`frame`] for header access.
//! Ports, the forwarder and the generator use both. This crate neither sends nor receives.
#![forbid(unsafe_code)]

pub mod checksum;
pub mod frame;
pub mod ip_protocol;
pub mod mac_address;
pub mod pcap;
pub mod template;
pub mod vnet;
