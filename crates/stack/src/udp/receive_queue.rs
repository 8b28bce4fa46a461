//! Receive queue of a UDP socket.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use linerate_port::Frame;

use crate::Nanos;
use crate::link::Link;
use crate::prefault;
use crate::socket::Meta;
use crate::wire::ip::Header;

/// Datagram in a receive queue.
pub(super) struct Packet {
    pub(super) body: Body,
    pub(super) from: SocketAddr,
    pub(super) to: IpAddr,
    pub(super) tos: u8,
    pub(super) arrived: Nanos,
    pub(super) queued: Option<Nanos>,
    /// Payload of each datagram, if the frame holds several of one size; otherwise zero.
    pub(super) segment: u16,
}

pub(super) enum Body {
    /// Frame in which it arrived, narrowed to its payload.
    Frame(Frame),
    /// Reassembly buffer: its index, start and end of the payload.
    Buffer(u32, u32, u32),
    /// Free slot.
    Empty,
}

impl Packet {
    /// Overwrites the slot in place with a datagram just received.
    #[inline(always)]
    pub(super) fn fill(&mut self, whole: Body, header: &Header, port: u16, link: &Link) {
        let Self {
            body,
            from,
            to,
            tos,
            arrived,
            queued,
            segment,
        } = self;
        *body = whole;
        *from = SocketAddr::new(header.from, port);
        *to = header.to;
        *tos = header.tos;
        *arrived = link.came;
        *queued = (link.watch.as_ref()).and_then(|watch| watch.stage_now());
        *segment = 0;
    }

    #[inline]
    pub(super) fn meta(&self, queue_drops: u32) -> Meta {
        Meta {
            from: self.from,
            to: self.to,
            arrived_ns: self.arrived,
            queued_ns: self.queued,
            queue_drops,
            tos: self.tos,
        }
    }
}

impl Default for Packet {
    fn default() -> Self {
        Self {
            body: Body::Empty,
            from: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            to: Ipv4Addr::UNSPECIFIED.into(),
            tos: 0,
            arrived: 0,
            queued: None,
            segment: 0,
        }
    }
}

/// Ring of slots that are written in place.
///
/// With the standard library's queue each datagram was built on the stack in short stores, then
/// copied by a call whose wider loads wait for them.
pub(super) struct ReceiveQueue {
    slots: Vec<Packet>,
    first: usize,
    count: usize,
}

impl ReceiveQueue {
    pub(super) fn new(depth: usize) -> Self {
        let mut slots = prefault::room(depth);
        slots.resize_with(depth, Packet::default);
        Self {
            slots,
            first: 0,
            count: 0,
        }
    }

    /// Returns the heap memory in bytes.
    pub(super) const fn heap_bytes(depth: usize) -> usize {
        depth * size_of::<Packet>()
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.count == self.slots.len()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Adds a slot at the end, to be filled by the caller; `None` if the queue is full.
    #[inline(always)]
    pub(super) fn add(&mut self) -> Option<&mut Packet> {
        if self.is_full() {
            return None;
        }
        let at = self.first + self.count;
        let at = at.checked_sub(self.slots.len()).unwrap_or(at);
        self.count += 1;
        Some(&mut self.slots[at])
    }

    #[inline]
    pub(super) fn front(&self) -> Option<&Packet> {
        (self.count > 0).then(|| &self.slots[self.first])
    }

    #[inline]
    pub(super) fn front_mut(&mut self) -> Option<&mut Packet> {
        (self.count > 0).then(|| &mut self.slots[self.first])
    }

    /// Removes the first datagram and returns its body.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Body> {
        let body = std::mem::replace(&mut self.front_mut()?.body, Body::Empty);
        self.first += 1;
        if self.first == self.slots.len() {
            self.first = 0;
        }
        self.count -= 1;
        Some(body)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use proptest::prelude::*;

    fn number(body: &Body) -> Option<u32> {
        match body {
            Body::Buffer(number, ..) => Some(*number),
            _ => None,
        }
    }

    proptest! {
        /// Compared with the standard library's queue, through many wrap-arounds.
        #[test]
        fn as_a_queue(depth in 0usize..6, steps in prop::collection::vec(any::<bool>(), 0..100)) {
            let (mut waiting, mut model) = (ReceiveQueue::new(depth), VecDeque::new());
            for (step, add) in (0u32..).zip(steps) {
                if add {
                    let slot = waiting.add();
                    prop_assert_eq!(slot.is_some(), model.len() < depth);
                    if let Some(slot) = slot {
                        slot.body = Body::Buffer(step, 0, 0);
                        model.push_back(step);
                    }
                } else {
                    let gone = waiting.pop();
                    prop_assert_eq!(gone.as_ref().and_then(number), model.pop_front());
                }
                prop_assert_eq!(waiting.len(), model.len());
                let front = waiting.front().and_then(|packet| number(&packet.body));
                prop_assert_eq!(front, model.front().copied());
            }
        }
    }
}
