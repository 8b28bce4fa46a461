//! Tests with programs of other kinds.
//!
//! Their dialects are codecs ([`linerate_dialect`]); here are the ends that speak them, and what makes
//! the same record of their tests as of ours ([`record`]).

pub mod call;
pub mod framing;
pub(crate) mod probes;
pub mod record;
pub(crate) mod serve;
