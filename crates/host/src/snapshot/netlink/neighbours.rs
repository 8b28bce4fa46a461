//! What happens to a host's neighbours while somebody watches: link-layer addresses that change, and
//! questions for one that stay without an answer.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

use super::{DUMP, attributes, request, socket, split};
use crate::snapshot::places::{Count, name};
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

/// An interface's number and a neighbour's network address.
type Key = (u32, Vec<u8>);

/// A listener to the neighbours of the network namespace that it was made in.
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
    /// Begins to listen; `None` where the kernel does not let it.
    #[must_use]
    pub fn open() -> Option<Self> {
        Self::start().ok()
    }

    fn start() -> io::Result<Self> {
        let mut socket = socket(libc::NETLINK_ROUTE)?;
        join_netlink_group(&socket, GROUP)?;
        // What is known already comes through the same queue, before what changes from now on.
        request(&mut socket, GET_NEIGHBOUR, DUMP, &[0; NDMSG_BYTES])?;
        socket.set_nonblocking(true)?;
        Ok(Self(RefCell::new(Watched {
            socket,
            told: Told::default(),
        })))
    }

    /// What was told since it listens.
    #[must_use]
    pub fn counts(&self) -> Vec<Count> {
        let mut watched = self.0.borrow_mut();
        let mut room = vec![0_u8; 64 * 1024];
        // Until nothing waits; a queue that ran over has lost some, and the rest still comes.
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
            // Told again while it stays so.
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
