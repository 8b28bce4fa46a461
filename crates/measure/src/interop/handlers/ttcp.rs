//! Classic ttcp: plain payload over TCP, and over UDP between two small datagrams.

use linerate_dialect::ttcp::{DIALECT, Receiver, Took};
use linerate_host::sys::clock::Nanos;

use super::plain::{datagrams_of, stream_of};
use super::worker::{Datagrams, Numbers, Take};
use super::{OnStream, Speaker};
use crate::flow_counters::Totals;

/// Handler of ttcp.
pub const SPEAKER: Speaker = Speaker {
    name: DIALECT.name,
    port: None,
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

/// Time to wait for the repeated end markers, so that they open no new flow.
const MARKERS_NS: Nanos = 300_000_000;

/// Datagrams between markers.
#[derive(Default)]
struct Flow {
    receiver: Receiver,
    ended_ns: Option<Nanos>,
}

impl Datagrams for Flow {
    #[inline]
    fn take(&mut self, now: Nanos, datagram: &mut [u8]) -> Take {
        match self.receiver.receive(now, datagram.len()) {
            Took::Data => Take::Payload,
            Took::Start => Take::Opening,
            Took::End => {
                // The last payload ends the time: the transmitter may delay the marker until that
                // has passed.
                self.ended_ns = Some(now);
                Take::Other
            }
            Took::Again => Take::Other,
        }
    }

    fn is_over(&mut self, now: Nanos) -> bool {
        match self.ended_ns {
            Some(ended) => now.saturating_sub(ended) > MARKERS_NS,
            None => self.receiver.is_over(now),
        }
    }

    fn totals(&self) -> Totals {
        let totals = self.receiver.totals();
        Totals {
            bytes: totals.bytes,
            packets: totals.packets,
            ..Totals::default()
        }
    }

    fn numbers(&mut self) -> Option<Numbers> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_no_payload_and_the_last_ones_no_time() {
        let mut flow = Flow::default();
        let mut take = |at, bytes: usize| flow.take(at, &mut vec![0; bytes]);
        assert_eq!(take(1, 4), Take::Opening);
        assert_eq!(take(2, 1024), Take::Payload);
        // 74 ms after the last payload, for which the transmitter waits.
        assert_eq!(take(74_000_000, 4), Take::Other);
        assert_eq!(take(74_000_001, 4), Take::Other);
        assert_eq!((flow.totals().bytes, flow.totals().packets), (1024, 1));
    }
}
