//! Settings of this host: held while a guard lives, or read and written as text.

pub mod addresses;
pub mod flow_rule;
pub mod idle_hold;
pub mod interface;
pub mod packet_steering;
pub mod rss;

mod ethtool;

/// Opens a socket for ethtool calls in the calling thread's network namespace.
fn open_socket() -> std::io::Result<std::net::UdpSocket> {
    use std::net::UdpSocket;
    UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("[::]:0"))
}

pub use ethtool::{
    read_channels, read_coalescing, read_rings, set_channels, set_coalescing, set_rings,
};
