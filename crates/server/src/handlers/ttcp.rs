//! Classic ttcp: plain payload over TCP, and over UDP between two small datagrams.

use linerate_protocol::ttcp::{PROTOCOL, TtcpDatagram, TtcpReceiver};
use linerate_sys::clock::Nanos;
use linerate_workload::flow_counters::PayloadTotals;

use super::plain::{serve_datagrams, serve_stream};
use super::worker::{DatagramAction, DatagramFlow, SequenceStats};
use super::{ProtocolHandler, StreamHandler};

/// Handler of ttcp.
pub const HANDLER: ProtocolHandler = ProtocolHandler {
    name: PROTOCOL.name,
    port: None,
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
            TtcpFlow::default(),
        );
    }),
    rejects_flow: None,
};

/// Longest time for which transmitters delay the end marker, so that payload passes before it: ours
/// for 50 ms.
const MARKER_DELAY_NS: Nanos = 100_000_000;

/// Time to wait for the repeated end markers, so that they open no new flow.
const END_MARKERS_TIMEOUT_NS: Nanos = 300_000_000;

/// Datagrams between markers.
#[derive(Default)]
struct TtcpFlow {
    receiver: TtcpReceiver,
    end_marker_ns: Option<Nanos>,
}

impl DatagramFlow for TtcpFlow {
    #[inline]
    fn receive(&mut self, now: Nanos, datagram: &mut [u8]) -> DatagramAction {
        match self.receiver.receive(now, datagram.len()) {
            TtcpDatagram::Data => DatagramAction::Payload,
            TtcpDatagram::Start => DatagramAction::Start,
            TtcpDatagram::End => {
                self.end_marker_ns = Some(now);
                DatagramAction::Ignore
            }
            TtcpDatagram::RepeatedMarker => DatagramAction::Ignore,
        }
    }

    fn is_finished(&mut self, now: Nanos) -> bool {
        match self.end_marker_ns {
            Some(end_marker_ns) => now.saturating_sub(end_marker_ns) > END_MARKERS_TIMEOUT_NS,
            None => self.receiver.is_over(now),
        }
    }

    fn totals(&self) -> PayloadTotals {
        let totals = self.receiver.totals();
        PayloadTotals {
            bytes: totals.bytes,
            packets: totals.packets,
            ..PayloadTotals::default()
        }
    }

    fn end_ns(&self) -> Option<Nanos> {
        // Payload is lost if the marker comes later than the transmitter delays it.
        Some(self.end_marker_ns?.saturating_sub(MARKER_DELAY_NS))
    }

    fn sequence_stats(&mut self) -> Option<SequenceStats> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_no_payload_and_the_last_ones_no_time() {
        let mut flow = TtcpFlow::default();
        let mut take = |at, bytes: usize| flow.receive(at, &mut vec![0; bytes]);
        assert_eq!(take(1, 4), DatagramAction::Start);
        assert_eq!(take(2, 1024), DatagramAction::Payload);
        // 74 ms after the last payload, for which the transmitter waits.
        assert_eq!(take(74_000_000, 4), DatagramAction::Ignore);
        assert_eq!(take(74_000_001, 4), DatagramAction::Ignore);
        assert_eq!((flow.totals().bytes, flow.totals().packets), (1024, 1));
        assert_eq!(flow.end_ns(), Some(0));
        // Payload of half a second was lost.
        let mut flow = TtcpFlow::default();
        for (at, bytes) in [(1, 4), (2, 1024), (500_000_002, 4)] {
            flow.receive(at, &mut vec![0; bytes]);
        }
        assert_eq!(flow.end_ns(), Some(400_000_002));
    }
}
