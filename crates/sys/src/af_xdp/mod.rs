//! AF_XDP: sockets and their rings, the program that steers frames to them, and its attachment.

pub mod mapped_rings;
pub mod ring_ends;

pub mod bpf;
pub mod bpf_program;
pub mod frames_in_flight;
pub mod netlink_xdp;
pub mod xsk_socket;
