//! Sockets opened and closed during the run, and unconnected sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task;
use std::time::Duration;

use linerate_host::sys::datagram::{self, Address};
use linerate_host::sys::socket::Flags;
use linerate_metric::plan::Protocol;
use socket2::{Domain, SockAddr, Socket, Type};

use super::options::apply;
use super::{Call, Entry, IDLE_PATIENCE, Index, Kernel, OPEN, Recorder, Waiting, outcome};
use crate::transport::{Correspondent, FlowOptions};

/// Peer of a socket's datagrams.
#[derive(Debug, Default)]
pub(super) enum Peer {
    /// Connected to one peer.
    #[default]
    Connected,
    /// Datagrams go to `to`; only those from `from` are accepted, or from any host while it is
    /// unset.
    Of {
        to: Address,
        from: Option<SocketAddr>,
        last: Option<SocketAddr>,
    },
    /// Replies go to the last sender at this address.
    Asker { ip: IpAddr, last: Option<Address> },
}

impl Peer {
    /// Returns the addressing of a flow that this end opens towards `remote`.
    pub(super) fn towards(remote: SocketAddr, options: &FlowOptions) -> Self {
        match &options.correspondent {
            Correspondent::Connected | Correspondent::Asker(_) => Self::Connected,
            Correspondent::Unconnected => Self::Of {
                to: remote.into(),
                from: Some(remote),
                last: None,
            },
            Correspondent::Group(group) => Self::Of {
                to: SocketAddr::new(*group, remote.port()).into(),
                from: None,
                last: None,
            },
        }
    }

    /// Returns the addressing of a flow that this end accepts.
    pub(super) fn adopted(options: &FlowOptions) -> Self {
        match options.correspondent {
            Correspondent::Asker(ip) => Self::Asker { ip, last: None },
            _ => Self::Connected,
        }
    }

    /// Returns the destination of the next datagram; `None` for a connected socket.
    #[inline]
    pub(super) fn destination(&self) -> Option<Option<&Address>> {
        match self {
            Self::Connected => None,
            Self::Of { to, .. } => Some(Some(to)),
            Self::Asker { last, .. } => Some(last.as_ref()),
        }
    }

    /// Returns whether a datagram from `address` is accepted; records the sender.
    fn takes(&mut self, address: Address) -> bool {
        let Some(sender) = address.socket_address() else {
            return false;
        };
        match self {
            Self::Connected => true,
            Self::Of { from, last, to } => {
                let wanted = match from {
                    Some(from) => same(*from, sender),
                    // A multicast receiver replies from its unicast address and the same port.
                    None => to
                        .socket_address()
                        .is_some_and(|to| to.port() == sender.port()),
                };
                *last = Some(sender);
                wanted
            }
            Self::Asker { ip, last } => {
                let wanted = sender.ip().to_canonical() == *ip;
                if wanted {
                    *last = Some(address);
                }
                wanted
            }
        }
    }
}

/// Compares address and port; the scope of a link-local address is ignored.
fn same(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port() && a.ip().to_canonical() == b.ip().to_canonical()
}

/// EALREADY and EINPROGRESS: the connection is still being opened.
const UNDER_WAY: [i32; 2] = [114, 115];

impl<W: Waiting, R: Recorder> Kernel<W, R> {
    /// Inserts a socket into a free slot, or a new one.
    pub(super) fn put(&mut self, entry: Entry) -> Index {
        self.open += 1;
        match self.free.pop() {
            Some(slot) => {
                self.sockets[slot] = Some(entry);
                Index(slot)
            }
            None => {
                self.sockets.push(Some(entry));
                Index(self.sockets.len() - 1)
            }
        }
    }

    /// Opens a socket with its options, neither bound nor connected. A timeout of zero leaves
    /// blocking calls without a limit.
    pub(super) fn open_socket(
        &mut self,
        remote: SocketAddr,
        options: &FlowOptions,
    ) -> io::Result<Index> {
        let kind = match options.protocol {
            Protocol::Tcp => Type::STREAM,
            Protocol::Udp => Type::DGRAM,
        };
        // Where calls do not block on one socket, `connect` must not block either.
        let kind = match W::SLEEPS_IN_CALLS {
            true => kind,
            false => kind.nonblocking(),
        };
        let socket = Socket::new(Domain::for_address(remote), kind, None)?;
        if let Some(interface) = &options.interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        if W::SLEEPS_IN_CALLS && !options.patience.is_zero() {
            socket.set_read_timeout(Some(options.patience))?;
            socket.set_write_timeout(Some(options.patience))?;
        }
        apply(&socket, options)?;
        Ok(self.put(Entry::plain(socket, IDLE_PATIENCE)))
    }

    pub(super) fn bind_socket(&mut self, index: Index, local: SocketAddr) -> io::Result<()> {
        self.entry(index).socket.bind(&SockAddr::from(local))
    }

    /// Starts to connect, or continues to.
    pub(super) fn connect_socket(
        &mut self,
        index: Index,
        remote: SocketAddr,
    ) -> task::Poll<io::Result<()>> {
        let remote = SockAddr::from(remote);
        let socket = &self.entry(index).socket;
        let begun = socket.connect(&remote);
        let is_under_way = |done: &io::Result<()>| {
            done.as_ref().is_err_and(|error| {
                matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) || error.raw_os_error().is_some_and(|n| UNDER_WAY.contains(&n))
            })
        };
        // On a short path the SYN-ACK arrives while the first call returns. A second call at once
        // saves the wait for readiness.
        let done = match !W::SLEEPS_IN_CALLS && is_under_way(&begun) {
            true => socket.connect(&remote),
            false => begun,
        };
        match is_under_way(&done) {
            true => task::Poll::Pending,
            false => task::Poll::Ready(done),
        }
    }

    pub(super) fn accept_socket(
        &mut self,
        listener: Index,
        options: &FlowOptions,
    ) -> task::Poll<io::Result<Index>> {
        let entry = self.sockets[listener.0].as_ref().expect(OPEN);
        let accepted = if W::CALLS_SLEEP {
            outcome(entry.socket.accept())
        } else {
            self.calls.begin();
            let (socket, patience) = (&entry.socket, entry.patience);
            match (self.waiting).before_receive(&mut self.calls, socket, patience) {
                Ok(true) => outcome(entry.socket.accept()),
                Ok(false) => task::Poll::Pending,
                Err(error) => task::Poll::Ready(Err(error)),
            }
        };
        let (socket, from) = match accepted {
            task::Poll::Ready(Ok(accepted)) => accepted,
            task::Poll::Ready(Err(error)) => return task::Poll::Ready(Err(error)),
            task::Poll::Pending => {
                let starved =
                    (self.waiting).starved(listener.0, &entry.socket, super::Ready::Receive);
                return match starved {
                    Ok(()) => task::Poll::Pending,
                    Err(error) => task::Poll::Ready(Err(error)),
                };
            }
        };
        if let Correspondent::Asker(ip) = options.correspondent
            && from.as_socket().map(|from| from.ip().to_canonical()) != Some(ip)
        {
            // A connection from another host: dropped, which closes it.
            return task::Poll::Pending;
        }
        let set_up = || -> io::Result<()> {
            if W::CALLS_SLEEP {
                socket.set_read_timeout(Some(options.patience))?;
                socket.set_write_timeout(Some(options.patience))?;
            }
            apply(&socket, options)
        };
        if let Err(error) = set_up() {
            return task::Poll::Ready(Err(error));
        }
        task::Poll::Ready(Ok(self.put(Entry::plain(socket, options.patience))))
    }

    pub(super) fn close_socket(&mut self, index: Index) {
        if let Some(entry) = self.sockets[index.0].take() {
            match Arc::strong_count(&entry.socket) {
                1 => self.waiting.closes(index.0),
                _ => self.waiting.forget(index.0, &entry.socket),
            }
            drop(entry);
            self.free.push(index.0);
            self.open -= 1;
        }
    }

    /// Accepts datagrams only from the sender of the last one, from now on.
    pub(super) fn keep_to_sender(&mut self, index: Index) {
        let entry = self.sockets[index.0].as_mut().expect(OPEN);
        if let Peer::Of { from, last, .. } = &mut entry.peer {
            *from = from.or(*last);
        }
    }

    pub(super) fn limit_patience(&mut self, index: Index, patience: Duration) {
        self.sockets[index.0].as_mut().expect(OPEN).patience = patience;
    }

    /// Receives one datagram into the receive buffer and drops it if its sender is not accepted.
    #[inline]
    pub(super) fn receive_from_peer(&mut self, index: Index) -> task::Poll<io::Result<usize>> {
        let capacity = self.incoming.length;
        let mut sender = None;
        let received = self.receive(
            index,
            Call::RecvFrom,
            capacity,
            |socket, room, flags: Flags| {
                let (bytes, from) = datagram::receive_from(socket, room, flags)?;
                sender = Some(from);
                Ok(bytes)
            },
        );
        let entry = self.sockets[index.0].as_mut().expect(OPEN);
        let arrived = matches!(received, task::Poll::Ready(Ok(_)));
        match sender
            .filter(|_| arrived)
            .map(|from| entry.peer.takes(from))
        {
            Some(false) => task::Poll::Pending,
            _ => received,
        }
    }
}
