//! The sockets of a nuttcp test's data: whoever transmits connects.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_dialect::nuttcp::{CONNECT_DELAY_NS, DATA_PORT};
use linerate_host::sys::clock;
use linerate_host::sys::socket::{Flags, receive};
use linerate_metric::plan::Direction;
use socket2::{Domain, SockAddr, Socket, Type};

use super::super::context::{Context, PATIENCE_NS, failed, foreign};
use super::Test;
use crate::error::MeasureError;

/// A socket that the server can reach.
pub fn listening(context: &Context<'_>, tcp: bool) -> Result<Socket, MeasureError> {
    let bound = || -> io::Result<Socket> {
        let kind = if tcp { Type::STREAM } else { Type::DGRAM };
        let socket = Socket::new(Domain::for_address(context.far), kind, None)?;
        let any = match context.far.is_ipv4() {
            true => IpAddr::from([0; 4]),
            false => IpAddr::from([0; 16]),
        };
        let options = context.options(Direction::Receive);
        if let Some(bytes) = options.socket.receive_buffer_bytes {
            // As for any flow: the kernel grants what its limit allows.
            socket.set_recv_buffer_size(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        }
        if let Some(interface) = &options.interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        let address = context.local.address.unwrap_or(any);
        let port = context.plan.source_port.unwrap_or(0);
        socket.bind(&SockAddr::from(SocketAddr::new(address, port)))?;
        if tcp {
            socket.listen(1)?;
        }
        Ok(socket)
    };
    bound().map_err(|error| failed(context.far, error))
}

/// The server's connection.
pub fn accept(
    context: &Context<'_>,
    test: &mut Test,
    waiting: &Socket,
) -> Result<Socket, MeasureError> {
    let until = clock::now() + PATIENCE_NS;
    while clock::now() < until {
        test.talk()?;
        if context.readable(waiting, clock::now() + 20_000_000)? {
            let accepted = waiting.accept();
            let (socket, from) =
                accepted.map_err(|error| MeasureError::system("nuttcp's data", error))?;
            // Nobody but the server of the test.
            let from = from.as_socket().map(|from| from.ip().to_canonical());
            if from == Some(context.far.ip().to_canonical()) {
                return Ok(socket);
            }
        }
    }
    Err(no_data(context))
}

/// Waits for the server's first datagram, which stays where it is, and takes no others' from then on.
pub fn first_datagram(
    context: &Context<'_>,
    test: &mut Test,
    waiting: Socket,
) -> Result<Socket, MeasureError> {
    let until = clock::now() + PATIENCE_NS;
    while clock::now() < until {
        test.talk()?;
        if context.readable(&waiting, clock::now() + 20_000_000)? {
            let from = waiting
                .peek_sender()
                .map_err(|error| MeasureError::system("nuttcp's data", error))?;
            let ip = from.as_socket().map(|from| from.ip().to_canonical());
            if ip == Some(context.far.ip().to_canonical()) {
                let connected = waiting.connect(&from);
                connected.map_err(|error| MeasureError::system("nuttcp's data", error))?;
                return Ok(waiting);
            }
            // Somebody else's: thrown away.
            let mut room = [0; 16];
            let _ = receive(&waiting, &mut room, Flags::DONT_WAIT);
        }
    }
    Err(no_data(context))
}

fn no_data(context: &Context<'_>) -> MeasureError {
    foreign(
        context.far,
        "the server agreed to send and nothing came: it connects to a port of this host, which firewalls \
         and address translation may not let through",
    )
}

/// Connects to the data port, which a stock server opens only after it agreed.
pub fn connect(context: &Context<'_>, test: &mut Test, tcp: bool) -> Result<Socket, MeasureError> {
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
