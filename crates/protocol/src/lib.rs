//! Wire formats of linerate's own control protocol and of other tools, as sans-I/O codecs.
//!
//! Bytes go in and frames come out. Nothing here opens a socket, reads a clock or draws a random
//! number: the caller passes the bytes, the times and the tokens.
//!
//! A protocol is one file (or one directory) and one line in [`sniff::PROTOCOLS`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod amplification_guard;
pub mod remote_report;
pub mod sniff;
pub mod unrelated_protocol;

pub mod control;

pub mod chargen;
pub mod discard;
pub mod echo;
pub mod iperf2;
pub mod iperf3;
pub mod nuttcp;
pub mod plain;
pub mod sockperf;
pub mod ttcp;

mod byte_queue;
mod classification;
