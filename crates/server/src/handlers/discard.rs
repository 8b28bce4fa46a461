//! Discard (RFC 863): drops all payload.

use linerate_protocol::discard::{PORT, PROTOCOL};

use super::plain::{PlainFlow, serve_datagrams, serve_stream};
use super::{ProtocolHandler, StreamHandler};

/// Handler of discard.
pub const HANDLER: ProtocolHandler = ProtocolHandler {
    name: PROTOCOL.name,
    port: Some(PORT),
    sends_first: false,
    stream: Some(StreamHandler::Test(|client, reservation, stream| {
        serve_stream(PROTOCOL.name, client, reservation, stream);
    })),
    expected_flow: None,
    datagrams: Some(|client, reservation, incoming| {
        serve_datagrams(
            PROTOCOL.name,
            client,
            reservation,
            incoming,
            PlainFlow::default(),
        );
    }),
    rejects_flow: None,
};
