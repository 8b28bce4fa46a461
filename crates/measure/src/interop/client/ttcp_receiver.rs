//! Receiver that waits for a classic ttcp sender: `ttcp -r`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_host::sys::clock::Nanos;
use linerate_metric::plan::{Direction, Kind, Plan, Protocol};

use super::flow_socket::FlowSocket;
use super::setup_context::{Context, failed};
use super::{CalledFlow, Caller, Speech, refuse_omit};
use crate::error::MeasureError;
use crate::interop::framing::Framing;

/// Receiver of classic ttcp, for a plan without a host.
pub const RECEIVER: Caller = Caller {
    name: "ttcp",
    about: "waits for a sender",
    kinds: &[Kind::Throughput],
    port: linerate_dialect::ttcp::PORT,
    datagram_bytes: linerate_dialect::ttcp::BUFFER_BYTES as u64,
    refuse: refuse_omit,
    open,
};

/// Interval at which the wait checks for Ctrl-C.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Returns whether a plan waits for a sender.
pub fn is_wanted(plan: &Plan) -> bool {
    plan.host.is_empty() && plan.flows(Direction::Receive)
}

/// Returns the unspecified address with the plan's port.
pub fn anybody(plan: &Plan, ipv6: bool) -> SocketAddr {
    let ip: IpAddr = match ipv6 {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, plan.port)
}

struct Receiver {
    called: Vec<CalledFlow>,
    socket: FlowSocket,
    from: Option<SocketAddr>,
}

fn open(context: &Context<'_>) -> Result<Box<dyn Speech>, MeasureError> {
    let tcp = context.plan.protocol == Protocol::Tcp;
    let broken = |error| MeasureError::system("waiting for a sender", error);
    let port = context.far.port();
    let waiting =
        (context.listening(Direction::Receive, port)).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => MeasureError::PortTaken {
                port,
                source: error,
            },
            _ => failed(context.far, error),
        })?;
    let (socket, from) = loop {
        if context.stop.load(Relaxed) {
            return Err(MeasureError::Interrupted);
        }
        if !waiting.wait(LOOK_UP).map_err(broken)? {
            continue;
        }
        if tcp {
            match waiting.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                came => break came.map_err(broken)?,
            }
        }
        if let (_, Some(from)) = waiting.peek(&mut [0; 1]).map_err(broken)? {
            // Drops other senders' datagrams from now on; the first datagram stays in the queue.
            waiting.keep_to(from).map_err(broken)?;
            break (waiting, from);
        }
    };
    let copy = socket.copy().map_err(broken)?;
    Ok(Box::new(Receiver {
        called: vec![CalledFlow {
            id: 1,
            direction: Direction::Receive,
            opening: socket.opening(),
            framing: if tcp { Framing::Bare } else { Framing::Ttcp },
        }],
        socket: copy,
        from: Some(from),
    }))
}

impl Speech for Receiver {
    fn flows(&mut self) -> Vec<CalledFlow> {
        std::mem::take(&mut self.called)
    }

    fn turn(&mut self, _: Nanos) -> Result<(), MeasureError> {
        Ok(())
    }

    fn stop(&mut self, _: Nanos, _early: bool) {
        self.socket.cut();
    }

    fn is_over(&self) -> bool {
        true
    }

    fn listens(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn peer(&self) -> Option<SocketAddr> {
        self.from
    }

    fn agent(&self) -> String {
        "ttcp".to_owned()
    }
}
