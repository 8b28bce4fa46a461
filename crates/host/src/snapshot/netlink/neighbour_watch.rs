//! Monitor of neighbour events: changed link-layer addresses, and resolution requests without a
//! reply.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

use super::{DUMP, attributes, request, socket, split};
use crate::snapshot::loss_counters::{Count, name};
use crate::sys::socket::join_netlink_group;

const NEW_NEIGHBOUR: u16 = 28;
const GET_NEIGHBOUR: u16 = 30;
/// `RTNLGRP_NEIGH` of linux/rtnetlink.h.
const GROUP: u32 = 3;
/// struct ndmsg: family, padding, index, state, flags, type.
const NDMSG_BYTES: usize = 12;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// `NUD_FAILED` of linux/neighbour.h.
const FAILED: u16 = 0x20;

/// Interface index and network address of a neighbour.
type Key = (u32, Vec<u8>);

/// Monitor of the neighbours in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Watch(RefCell<Watched>);

#[derive(Debug)]
struct Watched {
    socket: socket2::Socket,
    told: Told,
}

#[derive(Debug, Default)]
struct Told {
    addresses: BTreeMap<Key, Vec<u8>>,
    changes: u64,
    failures: u64,
    failed: BTreeSet<Key>,
}

impl Watch {
    /// Opens the monitor; `None` where the kernel does not allow it.
    #[must_use]
    pub fn open() -> Option<Self> {
        Self::start().ok()
    }

    fn start() -> io::Result<Self> {
        let mut socket = socket(libc::NETLINK_ROUTE)?;
        join_netlink_group(&socket, GROUP)?;
        // The current table arrives through the same queue, before any later change.
        request(&mut socket, GET_NEIGHBOUR, DUMP, &[0; NDMSG_BYTES])?;
        socket.set_nonblocking(true)?;
        Ok(Self(RefCell::new(Watched {
            socket,
            told: Told::default(),
        })))
    }

    /// Returns the counts since opening.
    #[must_use]
    pub fn counts(&self) -> Vec<Count> {
        let mut watched = self.0.borrow_mut();
        let mut room = vec![0_u8; 64 * 1024];
        // Reads until the queue is empty. After an overrun (ENOBUFS) some events are lost and the
        // rest follows.
        loop {
            match watched.socket.read(&mut room) {
                Ok(0) => break,
                Ok(length) => {
                    for (kind, body) in split(&room[..length]) {
                        watched.told.take(kind, body);
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(_) => break,
            }
        }
        vec![
            (name::NEIGHBOUR_CHANGES, watched.told.changes),
            (name::NEIGHBOUR_UNANSWERED, watched.told.failures),
        ]
    }
}

impl Told {
    fn take(&mut self, kind: u16, body: &[u8]) {
        let (NEW_NEIGHBOUR, Some(header)) = (kind, body.first_chunk::<NDMSG_BYTES>()) else {
            return;
        };
        let index = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
        let state = u16::from_ne_bytes([header[8], header[9]]);
        let found = attributes(&body[NDMSG_BYTES..]);
        let value = |of: u16| {
            found
                .iter()
                .find(|(kind, _)| *kind == of)
                .map(|(_, value)| value.to_vec())
        };
        let Some(destination) = value(NDA_DST) else {
            return;
        };
        let key = (index, destination);
        if state & FAILED != 0 {
            // The kernel repeats the event while the state lasts: count it once.
            self.failures += u64::from(self.failed.insert(key));
            return;
        }
        self.failed.remove(&key);
        if let Some(address) = value(NDA_LLADDR) {
            let before = self.addresses.insert(key, address.clone());
            self.changes += u64::from(before.is_some_and(|before| before != address));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::push_attribute;
    use super::*;

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
    fn an_address_that_moves_and_one_that_nobody_has() {
        let mut told = Told::default();
        let (one, other): (&[u8], &[u8]) = (&[2, 0, 0, 0, 0, 1], &[2, 0, 0, 0, 0, 2]);
        for address in [one, one, other, other, one] {
            told.take(NEW_NEIGHBOUR, &message(0x2, Some(address)));
        }
        assert_eq!((told.changes, told.failures), (2, 0));
        told.take(NEW_NEIGHBOUR, &message(FAILED, None));
        told.take(NEW_NEIGHBOUR, &message(FAILED, None));
        told.take(NEW_NEIGHBOUR, &message(0x2, Some(one)));
        told.take(NEW_NEIGHBOUR, &message(FAILED, None));
        assert_eq!((told.changes, told.failures), (2, 2));
        told.take(NEW_NEIGHBOUR, &[]);
        told.take(99, &message(FAILED, None));
        assert_eq!((told.changes, told.failures), (2, 2));
    }

    #[test]
    fn this_host_can_be_watched() {
        let watch = Watch::open().expect("a listener");
        assert_eq!(watch.counts().len(), 2);
    }
}
