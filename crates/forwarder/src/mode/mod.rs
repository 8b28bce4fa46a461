//! Forwarding modes: treatment of frames between a receive and a transmit queue.

pub mod csum;
pub mod five_tuple_swap;
pub mod flowgen;
pub mod icmp_echo;
pub mod io;
pub mod link;
pub mod mac;
pub mod mac_swap;
pub mod noisy;
pub mod rx_only;
pub mod tx_only;

#[cfg(test)]
mod tests;
