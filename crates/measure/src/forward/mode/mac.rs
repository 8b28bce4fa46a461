//! `mac`: sets the Ethernet addresses of each frame, as a router does.

use linerate_port::{Memory, Pool, Receive, Transmit};

use crate::forward::frame::Mac;
use crate::forward::settings::Settings;
use crate::forward::stream::{Facts, ForwardMode, NoPlan, Stream};

/// Sets Ethernet addresses.
pub struct MacForward {
    /// Destination and source, in the order of the Ethernet header.
    addresses: [u8; 12],
}

/// Returns the first twelve bytes of a frame between two addresses.
pub(super) fn addresses(from: Mac, to: Mac) -> [u8; 12] {
    let mut both = [0; 12];
    both[..6].copy_from_slice(&to.0);
    both[6..].copy_from_slice(&from.0);
    both
}

impl ForwardMode for MacForward {
    type Plan = NoPlan;
    const ABOUT: &'static str =
        "sets source to the sending port's address, destination to its peer's";

    fn new(_: &NoPlan, facts: &Facts, _: &Settings) -> Self {
        Self {
            addresses: addresses(facts.address, facts.peer),
        }
    }

    #[inline(always)]
    fn step<R: Receive, T: Transmit>(
        &mut self,
        stream: &mut Stream<R, T>,
        pool: &mut Pool,
        memory: &Memory,
    ) -> usize {
        let received = stream.receive(pool);
        if received > 0 {
            stream.change(memory, |frame| {
                if let Some(head) = frame.first_chunk_mut::<12>() {
                    *head = self.addresses;
                }
            });
            stream.transmit(pool);
        }
        received
    }
}
