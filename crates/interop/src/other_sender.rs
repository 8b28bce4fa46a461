//! Watch for replies from another address than the requested one: a connected socket drops them
//! without a trace, so that a host with two addresses looks like a closed firewall.

use std::io;
use std::net::SocketAddr;

use linerate_session::error::SessionError;
use linerate_sys::socket::MessageFlags;
use socket2::{Domain, Socket, Type};

use super::flow_socket::FlowSocket;

/// Unconnected socket on the port of a connected one: it gets what that one does not.
pub struct OtherSenderWatch(Option<Socket>);

impl OtherSenderWatch {
    /// Opens the watch of a connected UDP socket; without effect on the user-space stack, and where
    /// the kernel permits no second socket.
    pub fn open(flow: &FlowSocket) -> Self {
        let open = |flow: &Socket| -> io::Result<Socket> {
            let local = flow.local_addr()?;
            let domain = match local.is_ipv6() {
                true => Domain::IPV6,
                false => Domain::IPV4,
            };
            let watch = Socket::new(domain, Type::DGRAM, None)?;
            watch.set_reuse_address(true)?;
            // The second bind needs the permission of both sockets.
            flow.set_reuse_address(true)?;
            let bound = watch.bind(&local);
            flow.set_reuse_address(false)?;
            bound.map(|()| watch)
        };
        match flow {
            FlowSocket::Kernel(flow) => Self(open(flow).ok()),
            FlowSocket::Netstack(..) => Self(None),
        }
    }

    /// Returns the error for replies from another address, or `otherwise` if there were none.
    pub fn explain(&self, remote: SocketAddr, otherwise: SessionError) -> SessionError {
        match self.sender() {
            Some(from) => SessionError::OtherSender {
                address: remote,
                from: from.ip().to_canonical(),
            },
            None => otherwise,
        }
    }

    /// Returns the sender of the first datagram of another address.
    fn sender(&self) -> Option<SocketAddr> {
        let watch = self.0.as_ref()?;
        let flags = MessageFlags::DONT_WAIT.union(MessageFlags::PEEK);
        linerate_sys::socket::receive(watch, &mut [0; 1], flags).ok()?;
        watch.peek_sender().ok()?.as_socket()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use linerate_sys::readiness::{Readiness, poll};

    use super::*;

    #[test]
    fn a_reply_of_another_address_is_named() {
        let [requested, other] = ["127.0.0.1:0", "127.0.0.2:0"].map(|address| {
            let socket = UdpSocket::bind(address).unwrap();
            (socket.local_addr().unwrap(), socket)
        });
        let flow = UdpSocket::bind("127.0.0.1:0").unwrap();
        flow.connect(requested.0).unwrap();
        let local = flow.local_addr().unwrap();
        let flow = FlowSocket::Kernel(flow.into());
        let watch = OtherSenderWatch::open(&flow);
        let blocked = || SessionError::UdpBlocked {
            address: requested.0,
        };
        let explain = || watch.explain(requested.0, blocked());
        assert!(matches!(explain(), SessionError::UdpBlocked { .. }));
        // A reply of the requested address reaches the flow alone.
        requested.1.send_to(b"reply", local).unwrap();
        assert!(flow.wait_readable(Duration::from_secs(20)).unwrap());
        assert!(matches!(explain(), SessionError::UdpBlocked { .. }));
        other.1.send_to(b"reply", local).unwrap();
        let waits = watch.0.as_ref().expect("the port is shared");
        assert!(poll(waits, Readiness::Receive, Duration::from_secs(20)).unwrap());
        let report = explain().to_report();
        assert!(report.situation.contains("127.0.0.2"), "{report}");
    }
}
