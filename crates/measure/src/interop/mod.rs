//! Tests with other tools: iperf2, iperf3, nuttcp, ttcp, sockperf, echo, discard, chargen.
//!
//! Their protocols are codecs in [`linerate_protocol`]. This module runs both ends of them, the
//! client ([`client`]) and the server ([`handlers`]), and builds the same record as for our own tests
//! ([`record`]).

pub mod client;
pub mod framing;
pub(crate) mod handlers;
pub(crate) mod probes;
pub mod record;
