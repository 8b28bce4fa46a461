//! Opens, connects, accepts and closes the sockets of workloads.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::task::Poll;

use linerate_host::sys::clock::{self, Nanos};
use linerate_metric::plan::Protocol;
use linerate_metric::stack::StackFacts;
use linerate_stack::{SocketId, TcpState};

use super::socket_table::{Entry, InPlace, Place};
use super::{BURST, OnStack, TEND_NS, system, why_closed, why_opening};
use crate::flow::Timeline;
use crate::transport::call_times::CallTally;
use crate::transport::kernel::Watch;
use crate::transport::{Adapter, Correspondent, FlowOptions, Setup};

/// Longest time in which a connection may open: two retransmitted SYNs (1 s + 2 s) and a reserve.
const CONNECT_PATIENCE_NS: Nanos = 5_000_000_000;

/// Returns the unspecified address of the same family.
fn anywhere(like: SocketAddr) -> SocketAddr {
    let address: IpAddr = match like {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(address, 0)
}

impl OnStack {
    pub(super) fn keep(&mut self, socket: SocketId, options: &FlowOptions) -> Place {
        let remote = self.stack.remote(socket).ok().flatten();
        self.entries.add(Entry {
            socket: Some(socket),
            local: self.stack.local(socket).ok(),
            remote,
            batch: batch(options),
            in_place: in_place(options),
            asker: match options.correspondent {
                Correspondent::Asker(asker) => Some(asker),
                _ => None,
            },
            ..Entry::default()
        })
    }

    /// Drops waiting datagrams of hosts other than the one that the socket accepts.
    #[inline]
    pub(super) fn turn_away(&mut self, place: Place, socket: SocketId) {
        let Some(asker) = self.entries.get(place).asker else {
            return;
        };
        let foreign = |_: &[u8], from: SocketAddr| from.ip().to_canonical() != asker;
        while let Ok(Some(true)) = self.stack.udp_peek(socket, foreign) {
            let _ = self.stack.udp_receive(socket, |_, _| ());
        }
    }

    pub(super) fn connect_udp(
        &mut self,
        remote: SocketAddr,
        options: &FlowOptions,
    ) -> io::Result<Place> {
        let local = options.local.unwrap_or_else(|| anywhere(remote));
        let socket = self.stack.udp_bind(local).map_err(system)?;
        if options.correspondent == Correspondent::Connected {
            if let Err(error) = self.stack.udp_connect(socket, remote) {
                let _ = self.stack.close(socket);
                return Err(system(error));
            }
            return Ok(self.keep(socket, options));
        }
        let place = self.keep(socket, options);
        self.entries.get_mut(place).addressee = Some(match options.correspondent {
            Correspondent::Group(group) => {
                self.stack.limit_group_hops(options.group_hops);
                SocketAddr::new(group, remote.port())
            }
            // In the form in which replies are compared: without a scope of a kernel interface.
            _ => SocketAddr::new(remote.ip(), remote.port()),
        });
        Ok(place)
    }

    /// Starts several connections and waits until all are established.
    pub(super) fn connect_tcp(
        &mut self,
        wanted: &[(SocketAddr, &FlowOptions)],
        called_off: &dyn Fn() -> bool,
    ) -> io::Result<Vec<Place>> {
        let mut begun = Vec::with_capacity(wanted.len());
        match self.stand(wanted, &mut begun, called_off) {
            Ok(()) => Ok((begun.into_iter().zip(wanted))
                .map(|(socket, (_, options))| self.keep(socket, options))
                .collect()),
            Err(error) => {
                // A retry needs their slots.
                for socket in begun {
                    let _ = self.stack.abort(socket);
                }
                self.unsent = true;
                Err(error)
            }
        }
    }

    fn stand(
        &mut self,
        wanted: &[(SocketAddr, &FlowOptions)],
        begun: &mut Vec<SocketId>,
        called_off: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        for (remote, options) in wanted {
            let socket = self.stack.tcp_connect(*remote, options.local);
            begun.push(socket.map_err(system)?);
        }
        let give_up = clock::now() + CONNECT_PATIENCE_NS;
        for &socket in begun.iter() {
            loop {
                match self.stack.tcp_state(socket).map_err(system)? {
                    TcpState::Opening => {}
                    TcpState::Closed => return Err(why_closed(&mut self.stack, socket)),
                    _ => break,
                }
                if called_off() {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                if clock::now() >= give_up {
                    return Err(why_opening(&self.stack, socket));
                }
                self.tend();
            }
        }
        Ok(())
    }

    /// Adds a socket that is opened later, by `bind` or `connect`.
    pub(super) fn open_later(&mut self, remote: SocketAddr, options: &FlowOptions) -> Place {
        self.entries.add(Entry {
            local: options.local,
            remote: Some(remote),
            batch: batch(options),
            in_place: in_place(options),
            protocol: Some(options.protocol),
            ..Entry::default()
        })
    }

    pub(super) fn bind_now(&mut self, place: Place, local: SocketAddr) -> io::Result<()> {
        let entry = self.entries.get_mut(place);
        entry.local = Some(local);
        if entry.protocol == Some(Protocol::Udp) {
            let socket = self.stack.udp_bind(local).map_err(no_port)?;
            self.entries.open(place, socket);
        }
        Ok(())
    }

    /// Connects such a socket, or continues to.
    pub(super) fn connect_now(&mut self, place: Place, remote: SocketAddr) -> Poll<io::Result<()>> {
        match self.entries.get(place).protocol {
            Some(Protocol::Udp) => Poll::Ready(self.connect_datagrams(place, remote)),
            _ => self.connect_stream(place, remote),
        }
    }

    fn connect_datagrams(&mut self, place: Place, remote: SocketAddr) -> io::Result<()> {
        if self.entries.get(place).socket.is_none() {
            self.bind_now(place, anywhere(remote))?;
        }
        let socket = self.id(place)?;
        self.stack.udp_connect(socket, remote).map_err(system)
    }

    fn connect_stream(&mut self, place: Place, remote: SocketAddr) -> Poll<io::Result<()>> {
        let entry = *self.entries.get(place);
        let socket = match entry.socket {
            Some(socket) => socket,
            None => match self.stack.tcp_connect(remote, entry.local) {
                Ok(socket) => {
                    self.entries.open(place, socket);
                    self.unsent = true;
                    socket
                }
                Err(error) => return Poll::Ready(Err(no_port(error))),
            },
        };
        match self.stack.tcp_state(socket) {
            Ok(TcpState::Opening) => Poll::Pending,
            Ok(TcpState::Closed) => Poll::Ready(Err(why_closed(&mut self.stack, socket))),
            Ok(_) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(system(error))),
        }
    }

    pub(super) fn accept_next(
        &mut self,
        place: Place,
        options: &FlowOptions,
    ) -> Poll<io::Result<Place>> {
        let listener = match self.id(place) {
            Ok(listener) => listener,
            Err(error) => return Poll::Ready(Err(error)),
        };
        match self.stack.tcp_accept(listener) {
            Poll::Ready(Ok(socket)) => Poll::Ready(Ok(self.keep(socket, options))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(system(error))),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn batch(options: &FlowOptions) -> usize {
    options.batch.map_or(BURST, |batch| batch as usize)
}

fn in_place(options: &FlowOptions) -> InPlace {
    InPlace {
        sent: options.zero_copy,
        received: options.discard,
    }
}

/// Maps a lack of sockets or ports to EADDRNOTAVAIL, the kernel's error, on which workloads that
/// open
/// sockets wait and retry.
fn no_port(error: linerate_stack::StackError) -> io::Error {
    /// "Cannot assign requested address" (errno 99).
    const EADDRNOTAVAIL: i32 = 99;
    match error {
        linerate_stack::StackError::TooManySockets { .. }
        | linerate_stack::StackError::PortTaken { port: 0 } => {
            io::Error::from_raw_os_error(EADDRNOTAVAIL)
        }
        error => system(error),
    }
}

impl Adapter for OnStack {
    fn new(_: &Setup) -> io::Result<Self> {
        // The thread owns a stack before it runs a workload.
        Err(io::ErrorKind::Unsupported.into())
    }

    fn adopt(&mut self, _: OwnedFd, _: &FlowOptions) -> io::Result<Place> {
        // Kernel sockets do not belong to this stack.
        Err(io::ErrorKind::Unsupported.into())
    }

    fn take(&mut self, socket: SocketId, options: &FlowOptions) -> io::Result<Place> {
        self.background.hand_over(socket);
        Ok(self.keep(socket, options))
    }

    fn watch(&self, _: Place) -> Option<Watch> {
        None
    }

    fn tend(&mut self) -> bool {
        let worked = self.work() == Some(true);
        self.look();
        if !worked {
            self.stack.flush();
            clock::sleep_until(self.now + TEND_NS);
        }
        true
    }

    fn stack_facts(&mut self) -> Option<Box<StackFacts>> {
        Some(Box::new(self.facts_now()))
    }

    fn descriptors(&self) -> Option<Vec<RawFd>> {
        // The port and the bridges have files of their own.
        None
    }

    fn connect_many(
        &mut self,
        wanted: &[(SocketAddr, &FlowOptions)],
        called_off: &dyn Fn() -> bool,
    ) -> io::Result<Vec<Place>> {
        self.connect_tcp(wanted, called_off)
    }

    fn sleep_without_limit(&mut self, _: Place) -> io::Result<()> {
        // No call blocks.
        Ok(())
    }

    fn start(&mut self, _: &Timeline) {
        self.background.stop_greeting();
        self.begin_counting();
    }

    fn tally(&self) -> Option<CallTally> {
        None
    }
}

#[cfg(test)]
mod tests {
    use linerate_metric::plan::{Kind, Plan};

    use super::super::test_stack;
    use super::*;
    use crate::flow::Part;
    use crate::session::setup::flow_options;

    /// Runs `work` on a stack with two TCP sockets.
    fn on_stack<R: Send + 'static>(work: impl FnOnce(&mut OnStack) -> R + Send + 'static) -> R {
        test_stack::on_stack(
            "null:",
            &[("sockets.tcp", "2"), ("poll.interval", "1ms")],
            work,
        )
    }

    fn options() -> FlowOptions {
        let plan = Plan::new(Kind::Throughput, Protocol::Tcp, "10.9.0.1");
        flow_options(&plan, Part::Source)
    }

    /// Polls the stack until all aborted connections are gone.
    fn all_given_back(stack: &mut OnStack) -> bool {
        let give_up = clock::now() + 20_000_000_000;
        while stack.stack.connections() > 0 && clock::now() < give_up {
            stack.tend();
        }
        stack.stack.connections() == 0
    }

    #[test]
    fn connections_that_did_not_come_to_stand_leave_their_places() {
        let free = on_stack(|stack| {
            let options = options();
            let there: SocketAddr = "10.9.0.1:7".parse().unwrap();
            let mut all = true;
            for _ in 0..3 {
                let wanted = [(there, &options), (there, &options)];
                let tried = stack.connect_tcp(&wanted, &|| true);
                assert_eq!(tried.unwrap_err().kind(), io::ErrorKind::Interrupted);
                all &= all_given_back(stack);
            }
            all
        });
        assert!(free, "slots leaked");
    }

    /// The first connection is started before the second one fails without a route.
    #[test]
    fn one_that_cannot_be_begun_gives_up_those_that_were() {
        let free = on_stack(|stack| {
            let options = options();
            let there = "10.9.0.1:7".parse().unwrap();
            let nowhere = "10.8.0.1:7".parse().unwrap();
            let wanted = [(there, &options), (nowhere, &options)];
            let tried = stack.connect_tcp(&wanted, &|| false);
            assert_eq!(tried.unwrap_err().kind(), io::ErrorKind::NetworkUnreachable);
            all_given_back(stack)
        });
        assert!(free, "the slot of the first one leaked");
    }

    /// The third connection has no slot; the first two release theirs.
    #[test]
    fn more_than_there_are_places_leave_them_free() {
        let free = on_stack(|stack| {
            let options = options();
            let there = "10.9.0.1:7".parse().unwrap();
            let wanted = [(there, &options); 3];
            assert!(stack.connect_tcp(&wanted, &|| false).is_err());
            all_given_back(stack)
        });
        assert!(free, "slots leaked");
    }
}
