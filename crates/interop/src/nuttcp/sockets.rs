//! Data sockets of a nuttcp test: the transmitter connects.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_protocol::nuttcp::{CONNECT_DELAY_NS, DATA_PORT};
use linerate_record::plan::Direction;
use linerate_session::error::SessionError;
use linerate_sys::clock;

use super::super::flow_socket::FlowSocket;
use super::super::setup_context::{
    SETUP_TIMEOUT_NS, SetupContext, flow_open_error, protocol_error,
};
use super::NuttcpDriver;

/// Opens a socket that the server can reach.
pub fn open_listener(context: &SetupContext<'_>) -> Result<FlowSocket, SessionError> {
    let port = context.plan.source_port.unwrap_or(0);
    let listener = context.open_listener(Direction::Receive, port);
    listener.map_err(|error| flow_open_error(context.remote, error))
}

/// Accepts the server's connection.
pub fn accept_server(
    context: &SetupContext<'_>,
    driver: &mut NuttcpDriver,
    listener: &FlowSocket,
) -> Result<FlowSocket, SessionError> {
    let until = clock::now() + SETUP_TIMEOUT_NS;
    while clock::now() < until {
        driver.poll_control()?;
        if !context.wait_readable(listener, clock::now() + 20_000_000)? {
            continue;
        }
        match listener.accept() {
            // Connections of other hosts are dropped.
            Ok((socket, from)) if is_server(context, from) => return Ok(socket),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(SessionError::system("nuttcp's data", error)),
        }
    }
    Err(no_data_error(context))
}

fn is_server(context: &SetupContext<'_>, from: SocketAddr) -> bool {
    from.ip().to_canonical() == context.remote.ip().to_canonical()
}

/// Waits for the server's first datagram, which stays in the queue, and connects the socket to its
/// sender.
pub fn receive_first_datagram(
    context: &SetupContext<'_>,
    driver: &mut NuttcpDriver,
    listener: FlowSocket,
) -> Result<FlowSocket, SessionError> {
    let system = |error| SessionError::system("nuttcp's data", error);
    let until = clock::now() + SETUP_TIMEOUT_NS;
    let mut buffer = [0; 16];
    while clock::now() < until {
        driver.poll_control()?;
        if context.wait_readable(&listener, clock::now() + 20_000_000)? {
            let (_, from) = listener.peek(&mut buffer).map_err(system)?;
            if let Some(from) = from.filter(|from| is_server(context, *from)) {
                listener.connect_to(from).map_err(system)?;
                return Ok(listener);
            }
            // Datagrams of other hosts are dropped.
            let _ = listener.receive(&mut buffer);
        }
    }
    Err(no_data_error(context))
}

fn no_data_error(context: &SetupContext<'_>) -> SessionError {
    protocol_error(
        context.remote,
        "the server agreed to send, but nothing was received: it connects to a port of this host, which firewalls \
         and address translation may block",
    )
}

/// Connects to the data port, which a reference server opens only after the agreement.
pub fn connect_data(
    context: &SetupContext<'_>,
    driver: &mut NuttcpDriver,
    tcp: bool,
) -> Result<FlowSocket, SessionError> {
    let start_ns = clock::now();
    while tcp && clock::now() < start_ns + CONNECT_DELAY_NS {
        driver.poll_control()?;
        driver.wait_control(10);
    }
    loop {
        match context.connect_flow(1, Direction::Send, DATA_PORT) {
            Err(SessionError::ConnectionRefused { .. })
                if clock::now() < start_ns + SETUP_TIMEOUT_NS =>
            {
                if context.stop.load(Relaxed) {
                    return Err(SessionError::Interrupted);
                }
                driver.poll_control()?;
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}
