//! Receiver that waits for a classic ttcp sender: `ttcp -r`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_record::plan::{Direction, Plan, RunKind, TransportProtocol};
use linerate_session::error::SessionError;
use linerate_sys::clock::Nanos;
use linerate_workload::framing::Framing;

use super::flow_socket::FlowSocket;
use super::setup_context::{SetupContext, flow_open_error};
use super::{ClientProtocol, ClientProtocolSpec, ConnectedFlow, reject_omit};

/// Receiver of classic ttcp, for a plan without a host.
pub const RECEIVER: ClientProtocolSpec = ClientProtocolSpec {
    name: "ttcp",
    about: "waits for a sender",
    kinds: &[RunKind::Throughput],
    port: linerate_protocol::ttcp::PORT,
    datagram_bytes: linerate_protocol::ttcp::BUFFER_BYTES as u64,
    reject: reject_omit,
    open,
};

/// Interval at which the wait checks for Ctrl-C.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Returns whether a plan waits for a sender.
pub fn waits_for_sender(plan: &Plan) -> bool {
    plan.host.is_empty() && plan.has_direction(Direction::Receive)
}

/// Returns the unspecified address with the plan's port.
pub fn unspecified_address(plan: &Plan, ipv6: bool) -> SocketAddr {
    let ip: IpAddr = match ipv6 {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, plan.port)
}

struct TtcpReceiverDriver {
    new_flows: Vec<ConnectedFlow>,
    socket: FlowSocket,
    sender: Option<SocketAddr>,
}

fn open(context: &SetupContext<'_>) -> Result<Box<dyn ClientProtocol>, SessionError> {
    let tcp = context.plan.protocol == TransportProtocol::Tcp;
    let system_error = |error| SessionError::system("waiting for a sender", error);
    let port = context.remote.port();
    let listener =
        (context.open_listener(Direction::Receive, port)).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => SessionError::PortInUse {
                port,
                source: error,
            },
            _ => flow_open_error(context.remote, error),
        })?;
    let (socket, from) = loop {
        if context.stop.load(Relaxed) {
            return Err(SessionError::Interrupted);
        }
        if !listener
            .wait_readable(STOP_POLL_INTERVAL)
            .map_err(system_error)?
        {
            continue;
        }
        if tcp {
            match listener.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                accepted => break accepted.map_err(system_error)?,
            }
        }
        if let (_, Some(from)) = listener.peek(&mut [0; 1]).map_err(system_error)? {
            // Drops other senders' datagrams from now on; the first datagram stays in the queue.
            listener.connect_to(from).map_err(system_error)?;
            break (listener, from);
        }
    };
    let copy = socket.duplicate().map_err(system_error)?;
    Ok(Box::new(TtcpReceiverDriver {
        new_flows: vec![ConnectedFlow {
            id: 1,
            direction: Direction::Receive,
            opening: socket.into_opening(),
            framing: if tcp {
                Framing::NoHeader
            } else {
                Framing::Ttcp
            },
        }],
        socket: copy,
        sender: Some(from),
    }))
}

impl ClientProtocol for TtcpReceiverDriver {
    fn flows(&mut self) -> Vec<ConnectedFlow> {
        std::mem::take(&mut self.new_flows)
    }

    fn poll(&mut self, _: Nanos) -> Result<(), SessionError> {
        Ok(())
    }

    fn stop(&mut self, _: Nanos, _early: bool) {
        self.socket.shutdown_both();
    }

    fn is_finished(&self) -> bool {
        true
    }

    fn readable_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.sender
    }

    fn agent(&self) -> String {
        "ttcp".to_owned()
    }
}
