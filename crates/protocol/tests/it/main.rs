//! Codecs: recorded bytes, properties and state machines.

#[path = "../samples/mod.rs"]
mod samples;

mod beginnings;
mod chargen;
mod control;
mod echo;
mod guard;
mod iperf2;
mod iperf3;
mod nuttcp;
mod nuttcp_udp;
mod old_versions;
mod plain;
mod seal;
mod sniff;
mod sockperf;
mod ttcp;
