//! Classic ttcp: plain payload over TCP, and over UDP between two small datagrams.

use linerate_dialect::ttcp::{DIALECT, Receiver, Took};
use linerate_host::sys::clock::Nanos;

use super::lane::{Datagrams, Numbers, Take};
use super::plain::{datagrams_of, stream_of};
use super::{OnStream, Speaker};
use crate::meter::Totals;

/// ttcp, as the table of speakers has it.
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
};

/// Its four repeated end markers are waited for, so that they open no flow of their own.
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
            Took::Data | Took::Start => Take::Payload,
            Took::End => {
                self.ended_ns = Some(now);
                Take::Payload
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
