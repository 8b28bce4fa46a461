//! Monitor of neighbour events: changed link-layer addresses, and resolution requests without a
//! reply.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

use linerate_sys::socket::join_netlink_group;

use super::loss_counters::{CounterValue, name};
use crate::netlink::{NLM_F_DUMP, open_socket, send_request, split_attributes, split_messages};

const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
/// `RTNLGRP_NEIGH` of linux/rtnetlink.h.
const RTNLGRP_NEIGH: u32 = 3;
/// struct ndmsg: family, padding, index, state, flags, type.
const NDMSG_BYTES: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// `NUD_FAILED` of linux/neighbour.h.
const NUD_FAILED: u16 = 0x20;

/// Interface index and network address of a neighbour.
type NeighbourKey = (u32, Vec<u8>);

/// Monitor of the neighbours in the network namespace in which it was opened.
#[derive(Debug)]
pub struct NeighbourWatch(RefCell<WatchState>);

#[derive(Debug)]
struct WatchState {
    socket: socket2::Socket,
    events: NeighbourEvents,
}

#[derive(Debug, Default)]
struct NeighbourEvents {
    addresses: BTreeMap<NeighbourKey, Vec<u8>>,
    address_changes: u64,
    failures: u64,
    failed_keys: BTreeSet<NeighbourKey>,
}

impl NeighbourWatch {
    /// Opens the monitor; `None` where the kernel does not allow it.
    #[must_use]
    pub fn open() -> Option<Self> {
        Self::try_open().ok()
    }

    fn try_open() -> io::Result<Self> {
        let mut socket = open_socket(libc::NETLINK_ROUTE)?;
        join_netlink_group(&socket, RTNLGRP_NEIGH)?;
        // The current table arrives through the same queue, before any later change.
        send_request(&mut socket, RTM_GETNEIGH, NLM_F_DUMP, &[0; NDMSG_BYTES])?;
        socket.set_nonblocking(true)?;
        Ok(Self(RefCell::new(WatchState {
            socket,
            events: NeighbourEvents::default(),
        })))
    }

    /// Returns the counts since opening.
    #[must_use]
    pub fn read_counts(&self) -> Vec<CounterValue> {
        let mut state = self.0.borrow_mut();
        let mut buffer = vec![0_u8; 64 * 1024];
        // Reads until the queue is empty. After an overrun (ENOBUFS) some events are lost and the
        // rest follows.
        loop {
            match state.socket.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    for (kind, body) in split_messages(&buffer[..length]) {
                        state.events.on_message(kind, body);
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(_) => break,
            }
        }
        vec![
            (name::NEIGHBOUR_CHANGES, state.events.address_changes),
            (name::NEIGHBOUR_UNANSWERED, state.events.failures),
        ]
    }
}

impl NeighbourEvents {
    fn on_message(&mut self, kind: u16, body: &[u8]) {
        let (RTM_NEWNEIGH, Some(header)) = (kind, body.first_chunk::<NDMSG_BYTES>()) else {
            return;
        };
        let index = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
        let state = u16::from_ne_bytes([header[8], header[9]]);
        let attribute_list = split_attributes(&body[NDMSG_BYTES..]);
        let value = |of: u16| {
            attribute_list
                .iter()
                .find(|(kind, _)| *kind == of)
                .map(|(_, value)| value.to_vec())
        };
        let Some(destination) = value(NDA_DST) else {
            return;
        };
        let key = (index, destination);
        if state & NUD_FAILED != 0 {
            // The kernel repeats the event while the state lasts: count it once.
            self.failures += u64::from(self.failed_keys.insert(key));
            return;
        }
        self.failed_keys.remove(&key);
        if let Some(address) = value(NDA_LLADDR) {
            let before = self.addresses.insert(key, address.clone());
            self.address_changes += u64::from(before.is_some_and(|before| before != address));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::push_attribute;

    fn message(state: u16, address: Option<&[u8]>) -> Vec<u8> {
        let mut body = vec![0_u8; NDMSG_BYTES];
        body[4] = 7;
        body[8..10].copy_from_slice(&state.to_ne_bytes());
        push_attribute(&mut body, NDA_DST, &[10, 0, 0, 2]);
        if let Some(address) = address {
            push_attribute(&mut body, NDA_LLADDR, address);
        }
        body
    }

    #[test]
    fn address_changes_and_failures_are_counted() {
        let mut events = NeighbourEvents::default();
        let (first, second): (&[u8], &[u8]) = (&[2, 0, 0, 0, 0, 1], &[2, 0, 0, 0, 0, 2]);
        for address in [first, first, second, second, first] {
            events.on_message(RTM_NEWNEIGH, &message(0x2, Some(address)));
        }
        assert_eq!((events.address_changes, events.failures), (2, 0));
        events.on_message(RTM_NEWNEIGH, &message(NUD_FAILED, None));
        events.on_message(RTM_NEWNEIGH, &message(NUD_FAILED, None));
        events.on_message(RTM_NEWNEIGH, &message(0x2, Some(first)));
        events.on_message(RTM_NEWNEIGH, &message(NUD_FAILED, None));
        assert_eq!((events.address_changes, events.failures), (2, 2));
        events.on_message(RTM_NEWNEIGH, &[]);
        events.on_message(99, &message(NUD_FAILED, None));
        assert_eq!((events.address_changes, events.failures), (2, 2));
    }

    #[test]
    fn this_host_can_be_monitored() {
        let watch = NeighbourWatch::open().expect("a listener");
        assert_eq!(watch.read_counts().len(), 2);
    }
}
