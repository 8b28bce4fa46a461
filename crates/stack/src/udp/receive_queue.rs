//! Receive queue of a UDP socket.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use linerate_sys::frames::frame::Frame;

use crate::Nanos;
use crate::link::LinkLayer;
use crate::prefault;
use crate::socket::DatagramMeta;
use crate::wire::ip::IpHeader;

/// Datagram in a receive queue.
pub(super) struct QueuedDatagram {
    pub(super) body: DatagramBody,
    pub(super) from: SocketAddr,
    pub(super) to: IpAddr,
    pub(super) tos: u8,
    pub(super) arrived_at: Nanos,
    pub(super) queued_at: Option<Nanos>,
    /// Payload of each datagram, if the frame holds several of one size; otherwise zero.
    pub(super) segment_bytes: u16,
}

pub(super) enum DatagramBody {
    /// Frame in which it arrived, narrowed to its payload.
    Frame(Frame),
    /// Reassembly buffer: its index, start and end of the payload.
    Buffer(u32, u32, u32),
    /// Free slot.
    Empty,
}

impl QueuedDatagram {
    /// Overwrites the slot in place with a datagram just received.
    #[inline(always)]
    pub(super) fn fill(
        &mut self,
        new_body: DatagramBody,
        header: &IpHeader,
        port: u16,
        link: &LinkLayer,
    ) {
        let Self {
            body,
            from,
            to,
            tos,
            arrived_at,
            queued_at,
            segment_bytes,
        } = self;
        *body = new_body;
        *from = SocketAddr::new(header.from, port);
        *to = header.to;
        *tos = header.tos;
        *arrived_at = link.arrived_at;
        *queued_at = (link.stage_watch.as_ref()).and_then(|watch| watch.read_stage_clock());
        *segment_bytes = 0;
    }

    #[inline]
    pub(super) fn meta(&self, queue_drops: u32) -> DatagramMeta {
        DatagramMeta {
            from: self.from,
            to: self.to,
            arrived_ns: self.arrived_at,
            queued_ns: self.queued_at,
            queue_drops,
            tos: self.tos,
        }
    }
}

impl Default for QueuedDatagram {
    fn default() -> Self {
        Self {
            body: DatagramBody::Empty,
            from: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            to: Ipv4Addr::UNSPECIFIED.into(),
            tos: 0,
            arrived_at: 0,
            queued_at: None,
            segment_bytes: 0,
        }
    }
}

/// Ring of slots that are written in place.
///
/// With the standard library's queue each datagram was built on the stack in short stores, then
/// copied by a call whose wider loads wait for them.
pub(super) struct ReceiveQueue {
    slots: Vec<QueuedDatagram>,
    first: usize,
    count: usize,
}

impl ReceiveQueue {
    pub(super) fn new(depth: usize) -> Self {
        let mut slots = prefault::with_capacity(depth);
        slots.resize_with(depth, QueuedDatagram::default);
        Self {
            slots,
            first: 0,
            count: 0,
        }
    }

    /// Returns the heap memory in bytes.
    pub(super) const fn heap_bytes(depth: usize) -> usize {
        depth * size_of::<QueuedDatagram>()
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
    pub(super) fn push_slot(&mut self) -> Option<&mut QueuedDatagram> {
        if self.is_full() {
            return None;
        }
        let at = self.first + self.count;
        let at = at.checked_sub(self.slots.len()).unwrap_or(at);
        self.count += 1;
        Some(&mut self.slots[at])
    }

    #[inline]
    pub(super) fn front(&self) -> Option<&QueuedDatagram> {
        (self.count > 0).then(|| &self.slots[self.first])
    }

    #[inline]
    pub(super) fn front_mut(&mut self) -> Option<&mut QueuedDatagram> {
        (self.count > 0).then(|| &mut self.slots[self.first])
    }

    /// Removes the first datagram and returns its body.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<DatagramBody> {
        let body = std::mem::replace(&mut self.front_mut()?.body, DatagramBody::Empty);
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

    use proptest::prelude::*;

    use super::*;

    fn number(body: &DatagramBody) -> Option<u32> {
        match body {
            DatagramBody::Buffer(number, ..) => Some(*number),
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
                    let slot = waiting.push_slot();
                    prop_assert_eq!(slot.is_some(), model.len() < depth);
                    if let Some(slot) = slot {
                        slot.body = DatagramBody::Buffer(step, 0, 0);
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
