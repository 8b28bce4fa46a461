//! Discard (RFC 863): drops all payload.

use linerate_dialect::discard::{DIALECT, PORT};

use super::plain::{Flow, datagrams_of, stream_of};
use super::{OnStream, Speaker};

/// Handler of discard.
pub const SPEAKER: Speaker = Speaker {
    name: DIALECT.name,
    port: Some(PORT),
    speaks_first: false,
    stream: Some(OnStream::Test(|caller, claim, stream| {
        stream_of(DIALECT.name, caller, claim, stream);
    })),
    flow_of: None,
    datagrams: Some(|caller, claim, arrived| {
        datagrams_of(DIALECT.name, caller, claim, arrived, Flow::default());
    }),
    turns_away: None,
};
