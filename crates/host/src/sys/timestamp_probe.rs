//! Probe of software packet timestamps (SO_TIMESTAMPING) on loopback.

use std::io;
use std::net::UdpSocket;
use std::time::Duration;

use super::packet_timestamps;
use super::socket::Flags;

/// Software timestamps received on loopback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// For a sent datagram, through the error queue.
    pub transmit: bool,
    /// For a received datagram.
    pub receive: bool,
}

/// Sends datagrams to itself over 127.0.0.1 and collects the kernel's timestamps.
///
/// # Errors
/// Fails when loopback does not carry the datagrams or the kernel rejects the option.
pub fn software_on_loopback() -> io::Result<Stamps> {
    // Receive timestamps start shortly after the first socket requests them, so the first datagrams
    // may lack them.
    const TRIES: u32 = 20;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(socket.local_addr()?)?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    packet_timestamps::enable(&socket, false)?;
    let mut stamps = Stamps::default();
    for _ in 0..TRIES {
        socket.send(b"stamp")?;
        let (_, arrival) = packet_timestamps::receive(&socket, &mut [0; 64], Flags::NONE)?;
        stamps.receive |= arrival.software_ns.is_some();
        while let Ok(Some(departure)) = packet_timestamps::departure(&socket) {
            stamps.transmit |= departure.stamp.software_ns.is_some();
        }
        if stamps.receive && stamps.transmit {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(stamps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_stamps_both_ways() {
        match software_on_loopback() {
            Ok(stamps) => println!("{stamps:?}"),
            Err(error) => println!("needs loopback and SO_TIMESTAMPING: {error}"),
        }
    }
}
