//! Fuzz targets: one function for each codec, for the parsers of texts about frames, and for the
//! user-space stack.
//!
//! Each target feeds hostile bytes to its code and asserts invariants for any bytes: splitting a
//! stream changes nothing, nothing grows beyond its bound, and no reply is larger than its request.
//! The fuzzer's bytes are read as pieces ([`InputPieces`]), so that it also chooses where a stream
//! is split.
//!
//! A new target is a function, a line in [`TARGETS`], and a file and a `[[bin]]` in `fuzz`.
#![forbid(unsafe_code)]

mod control;
mod frame_texts;
mod guard;
mod input_pieces;
mod iperf;
mod nuttcp;
mod seeds;
mod simple;
mod sockperf;
mod stack;

pub use control::{control, control_encrypted, sniff};
pub use frame_texts::{arguments, capture, template};
pub use guard::guard;
pub use input_pieces::InputPieces;
pub use iperf::{iperf2, iperf3};
pub use nuttcp::{nuttcp_client, nuttcp_server, nuttcp_udp};
pub use seeds::seeds;
pub use simple::{chargen, echo, plain, ttcp};
pub use sockperf::sockperf;
pub use stack::stack;

/// Function that accepts any bytes and panics if an invariant is violated.
pub type Target = fn(&[u8]);

/// Table of targets by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("control", control),
    ("control_encrypted", control_encrypted),
    ("sniff", sniff),
    ("nuttcp_server", nuttcp_server),
    ("nuttcp_client", nuttcp_client),
    ("nuttcp_udp", nuttcp_udp),
    ("sockperf", sockperf),
    ("ttcp", ttcp),
    ("echo", echo),
    ("chargen", chargen),
    ("plain", plain),
    ("guard", guard),
    ("iperf2", iperf2),
    ("iperf3", iperf3),
    ("stack", stack),
    ("template", template),
    ("arguments", arguments),
    ("capture", capture),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_do_no_harm() {
        for (name, target) in TARGETS {
            let seeds = seeds(name);
            assert!(!seeds.is_empty(), "{name}");
            for seed in seeds {
                target(&seed);
                for cut in 0..seed.len().min(200) {
                    target(&seed[..cut]);
                }
            }
        }
    }

    #[test]
    fn every_target_has_a_binary() {
        let manifest = include_str!("../../Cargo.toml");
        for (name, _) in TARGETS {
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        }
    }
}
