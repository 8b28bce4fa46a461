//! Sockets opened and closed during the run, and unconnected sockets.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use std::{io, task};

use linerate_record::plan::TransportProtocol;
use linerate_sys::datagram;
use linerate_sys::datagram::SocketAddress;
use linerate_sys::socket::MessageFlags;
use socket2::{Domain, SockAddr, Socket, Type};

use super::options::apply_options;
use super::{
    CallRecorder, IDLE_TIMEOUT, KernelSocket, KernelTransport, SOCKET_IS_OPEN, SocketIndex,
    SocketWait, TransportCall, to_poll,
};
use crate::{FlowOptions, PeerAddressing};

/// Peer of a socket's datagrams.
#[derive(Debug, Default)]
pub(super) enum PeerFilter {
    /// Connected to one peer.
    #[default]
    Connected,
    /// Datagrams go to `to`; only those from `from` are accepted, or from any host while it is
    /// unset.
    Addressed {
        to: SocketAddress,
        accepted: Option<SocketAddr>,
        last_sender: Option<SocketAddr>,
    },
    /// Replies go to the last sender at this address.
    AnyFrom {
        ip: IpAddr,
        last_sender: Option<SocketAddress>,
    },
}

impl PeerFilter {
    /// Returns the addressing of a flow that this end opens towards `remote`.
    pub(super) fn towards(remote: SocketAddr, options: &FlowOptions) -> Self {
        match &options.addressing {
            PeerAddressing::Connected | PeerAddressing::AnyFrom(_) => Self::Connected,
            PeerAddressing::Unconnected => Self::Addressed {
                to: remote.into(),
                accepted: Some(remote),
                last_sender: None,
            },
            PeerAddressing::Multicast(group) => Self::Addressed {
                to: SocketAddr::new(*group, remote.port()).into(),
                accepted: None,
                last_sender: None,
            },
        }
    }

    /// Returns the addressing of a flow that this end accepts.
    pub(super) fn for_accepted(options: &FlowOptions) -> Self {
        match options.addressing {
            PeerAddressing::AnyFrom(ip) => Self::AnyFrom {
                ip,
                last_sender: None,
            },
            _ => Self::Connected,
        }
    }

    /// Returns the destination of the next datagram; `None` for a connected socket.
    #[inline]
    pub(super) fn destination(&self) -> Option<Option<&SocketAddress>> {
        match self {
            Self::Connected => None,
            Self::Addressed { to, .. } => Some(Some(to)),
            Self::AnyFrom { last_sender, .. } => Some(last_sender.as_ref()),
        }
    }

    /// Returns whether a datagram from `address` is accepted; records the sender.
    #[inline]
    fn accepts(&mut self, address: SocketAddress) -> bool {
        let Some(sender) = address.to_std() else {
            return false;
        };
        match self {
            Self::Connected => true,
            Self::Addressed {
                accepted,
                last_sender,
                to,
            } => {
                let is_accepted = match accepted {
                    Some(accepted) => is_same_endpoint(*accepted, sender),
                    // A multicast receiver replies from its unicast address and the same port.
                    None => to.to_std().is_some_and(|to| to.port() == sender.port()),
                };
                *last_sender = Some(sender);
                is_accepted
            }
            Self::AnyFrom { ip, last_sender } => {
                let is_accepted = sender.ip().to_canonical() == *ip;
                if is_accepted {
                    *last_sender = Some(address);
                }
                is_accepted
            }
        }
    }
}

/// Compares address and port; the scope of a link-local address is ignored.
#[inline]
fn is_same_endpoint(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port() && a.ip().to_canonical() == b.ip().to_canonical()
}

/// EALREADY and EINPROGRESS: the connection is still being opened.
const CONNECT_PENDING_ERRNOS: [i32; 2] = [114, 115];

impl<W: SocketWait, R: CallRecorder> KernelTransport<W, R> {
    /// Inserts a socket into a free slot, or a new one.
    pub(super) fn insert_socket(&mut self, entry: KernelSocket) -> SocketIndex {
        self.open_count += 1;
        match self.free_slots.pop() {
            Some(slot) => {
                self.sockets[slot] = Some(entry);
                SocketIndex(slot)
            }
            None => {
                self.sockets.push(Some(entry));
                SocketIndex(self.sockets.len() - 1)
            }
        }
    }

    /// Opens a socket with its options, neither bound nor connected. A timeout of zero leaves
    /// blocking calls without a limit.
    pub(super) fn open_socket(
        &mut self,
        remote: SocketAddr,
        options: &FlowOptions,
    ) -> io::Result<SocketIndex> {
        let kind = match options.protocol {
            TransportProtocol::Tcp => Type::STREAM,
            TransportProtocol::Udp => Type::DGRAM,
        };
        // Where calls do not block on one socket, `connect` must not block either.
        let kind = match W::BLOCKS_ON_ONE_SOCKET {
            true => kind,
            false => kind.nonblocking(),
        };
        let socket = Socket::new(Domain::for_address(remote), kind, None)?;
        if let Some(interface) = &options.interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        if W::BLOCKS_ON_ONE_SOCKET && !options.timeout.is_zero() {
            socket.set_read_timeout(Some(options.timeout))?;
            socket.set_write_timeout(Some(options.timeout))?;
        }
        apply_options(&socket, options)?;
        Ok(self.insert_socket(KernelSocket::with_defaults(socket, IDLE_TIMEOUT)))
    }

    pub(super) fn bind_socket(&mut self, index: SocketIndex, local: SocketAddr) -> io::Result<()> {
        self.socket_entry(index).socket.bind(&SockAddr::from(local))
    }

    /// Starts to connect, or continues to.
    pub(super) fn connect_socket(
        &mut self,
        index: SocketIndex,
        remote: SocketAddr,
    ) -> task::Poll<io::Result<()>> {
        let remote = SockAddr::from(remote);
        let socket = &self.socket_entry(index).socket;
        let first_result = socket.connect(&remote);
        let is_pending = |done: &io::Result<()>| {
            done.as_ref().is_err_and(|error| {
                matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) || error
                    .raw_os_error()
                    .is_some_and(|n| CONNECT_PENDING_ERRNOS.contains(&n))
            })
        };
        // On a short path the SYN-ACK arrives while the first call returns. A second call at once
        // saves the wait for readiness.
        let done = match !W::BLOCKS_ON_ONE_SOCKET && is_pending(&first_result) {
            true => socket.connect(&remote),
            false => first_result,
        };
        match is_pending(&done) {
            true => task::Poll::Pending,
            false => task::Poll::Ready(done),
        }
    }

    pub(super) fn accept_socket(
        &mut self,
        listener: SocketIndex,
        options: &FlowOptions,
    ) -> task::Poll<io::Result<SocketIndex>> {
        let entry = self.sockets[listener.0].as_ref().expect(SOCKET_IS_OPEN);
        let accepted = if W::CALLS_BLOCK {
            to_poll(entry.socket.accept())
        } else {
            self.recorder.begin();
            let (socket, timeout) = (&entry.socket, entry.timeout);
            match (self.wait).wait_receivable(&mut self.recorder, socket, timeout) {
                Ok(true) => to_poll(entry.socket.accept()),
                Ok(false) => task::Poll::Pending,
                Err(error) => task::Poll::Ready(Err(error)),
            }
        };
        let (socket, from) = match accepted {
            task::Poll::Ready(Ok(accepted)) => accepted,
            task::Poll::Ready(Err(error)) => return task::Poll::Ready(Err(error)),
            task::Poll::Pending => {
                let starved =
                    (self.wait).mark_starved(listener.0, &entry.socket, super::Readiness::Receive);
                return match starved {
                    Ok(()) => task::Poll::Pending,
                    Err(error) => task::Poll::Ready(Err(error)),
                };
            }
        };
        if let PeerAddressing::AnyFrom(ip) = options.addressing
            && from.as_socket().map(|from| from.ip().to_canonical()) != Some(ip)
        {
            // A connection from another host: dropped, which closes it.
            return task::Poll::Pending;
        }
        let set_up = || -> io::Result<()> {
            if W::CALLS_BLOCK {
                socket.set_read_timeout(Some(options.timeout))?;
                socket.set_write_timeout(Some(options.timeout))?;
            }
            apply_options(&socket, options)
        };
        if let Err(error) = set_up() {
            return task::Poll::Ready(Err(error));
        }
        task::Poll::Ready(Ok(
            self.insert_socket(KernelSocket::with_defaults(socket, options.timeout))
        ))
    }

    pub(super) fn close_socket(&mut self, index: SocketIndex) {
        if let Some(entry) = self.sockets[index.0].take() {
            match Arc::strong_count(&entry.socket) {
                1 => self.wait.on_close(index.0),
                _ => self.wait.deregister(index.0, &entry.socket),
            }
            drop(entry);
            self.free_slots.push(index.0);
            self.open_count -= 1;
        }
    }

    /// Accepts datagrams only from the sender of the last one, from now on.
    pub(super) fn limit_to_last_sender(&mut self, index: SocketIndex) {
        let entry = self.sockets[index.0].as_mut().expect(SOCKET_IS_OPEN);
        if let PeerFilter::Addressed {
            accepted: from,
            last_sender,
            ..
        } = &mut entry.peer
        {
            *from = from.or(*last_sender);
        }
    }

    pub(super) fn set_timeout(&mut self, index: SocketIndex, timeout: Duration) {
        self.sockets[index.0]
            .as_mut()
            .expect(SOCKET_IS_OPEN)
            .timeout = timeout;
    }

    /// Receives one datagram into the receive buffer and drops it if its sender is not accepted.
    #[inline]
    pub(super) fn receive_from_peer(
        &mut self,
        index: SocketIndex,
    ) -> task::Poll<io::Result<usize>> {
        let capacity = self.receive_buffer.length;
        let mut sender = None;
        let received = self.receive(
            index,
            TransportCall::RecvFrom,
            capacity,
            |socket, buffer, flags: MessageFlags| {
                let (bytes, from) = datagram::receive_from(socket, buffer, flags)?;
                sender = Some(from);
                Ok(bytes)
            },
        );
        let entry = self.sockets[index.0].as_mut().expect(SOCKET_IS_OPEN);
        let arrived = matches!(received, task::Poll::Ready(Ok(_)));
        match sender
            .filter(|_| arrived)
            .map(|from| entry.peer.accepts(from))
        {
            Some(false) => task::Poll::Pending,
            _ => received,
        }
    }
}
