//! Data sockets of a nuttcp test: the transmitter connects.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_dialect::nuttcp::{CONNECT_DELAY_NS, DATA_PORT};
use linerate_host::sys::clock;
use linerate_metric::plan::Direction;

use super::super::flow_socket::FlowSocket;
use super::super::setup_context::{Context, PATIENCE_NS, failed, foreign};
use super::Test;
use crate::error::MeasureError;

/// Opens a socket that the server can reach.
pub fn listening(context: &Context<'_>) -> Result<FlowSocket, MeasureError> {
    let port = context.plan.source_port.unwrap_or(0);
    let listening = context.listening(Direction::Receive, port);
    listening.map_err(|error| failed(context.far, error))
}

/// Accepts the server's connection.
pub fn accept(
    context: &Context<'_>,
    test: &mut Test,
    waiting: &FlowSocket,
) -> Result<FlowSocket, MeasureError> {
    let until = clock::now() + PATIENCE_NS;
    while clock::now() < until {
        test.talk()?;
        if !context.readable(waiting, clock::now() + 20_000_000)? {
            continue;
        }
        match waiting.accept() {
            // Connections of other hosts are dropped.
            Ok((socket, from)) if is_server(context, from) => return Ok(socket),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(MeasureError::system("nuttcp's data", error)),
        }
    }
    Err(no_data(context))
}

fn is_server(context: &Context<'_>, from: SocketAddr) -> bool {
    from.ip().to_canonical() == context.far.ip().to_canonical()
}

/// Waits for the server's first datagram, which stays in the queue, and connects the socket to its
/// sender.
pub fn first_datagram(
    context: &Context<'_>,
    test: &mut Test,
    waiting: FlowSocket,
) -> Result<FlowSocket, MeasureError> {
    let system = |error| MeasureError::system("nuttcp's data", error);
    let until = clock::now() + PATIENCE_NS;
    let mut room = [0; 16];
    while clock::now() < until {
        test.talk()?;
        if context.readable(&waiting, clock::now() + 20_000_000)? {
            let (_, from) = waiting.peek(&mut room).map_err(system)?;
            if let Some(from) = from.filter(|from| is_server(context, *from)) {
                waiting.keep_to(from).map_err(system)?;
                return Ok(waiting);
            }
            // Datagrams of other hosts are dropped.
            let _ = waiting.receive(&mut room);
        }
    }
    Err(no_data(context))
}

fn no_data(context: &Context<'_>) -> MeasureError {
    foreign(
        context.far,
        "the server agreed to send, but nothing was received: it connects to a port of this host, which firewalls \
         and address translation may block",
    )
}

/// Connects to the data port, which a reference server opens only after the agreement.
pub fn connect(
    context: &Context<'_>,
    test: &mut Test,
    tcp: bool,
) -> Result<FlowSocket, MeasureError> {
    let begun = clock::now();
    while tcp && clock::now() < begun + CONNECT_DELAY_NS {
        test.talk()?;
        test.wait(10);
    }
    loop {
        match context.flow(1, Direction::Send, DATA_PORT) {
            Err(MeasureError::Refused { .. }) if clock::now() < begun + PATIENCE_NS => {
                if context.stop.load(Relaxed) {
                    return Err(MeasureError::Interrupted);
                }
                test.talk()?;
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}
