//! Probe of software packet timestamps (SO_TIMESTAMPING) on loopback.

use std::io;
use std::net::UdpSocket;
use std::time::Duration;

use super::packet_timestamps;
use super::socket::MessageFlags;

/// Software timestamps received on loopback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopbackTimestamps {
    /// For a sent datagram, through the error queue.
    pub transmit: bool,
    /// For a received datagram.
    pub receive: bool,
}

/// Sends datagrams to itself over 127.0.0.1 and collects the kernel's timestamps.
///
/// # Errors
/// Fails when loopback does not carry the datagrams or the kernel rejects the option.
pub fn probe_loopback() -> io::Result<LoopbackTimestamps> {
    // Receive timestamps start shortly after the first socket requests them, so the first datagrams
    // may lack them.
    const TRIES: u32 = 20;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(socket.local_addr()?)?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    packet_timestamps::enable_timestamps(&socket, false)?;
    let mut seen_timestamps = LoopbackTimestamps::default();
    for _ in 0..TRIES {
        socket.send(b"stamp")?;
        let (_, timestamp) =
            packet_timestamps::receive_with_timestamp(&socket, &mut [0; 64], MessageFlags::NONE)?;
        seen_timestamps.receive |= timestamp.software_ns.is_some();
        while let Ok(Some(event)) = packet_timestamps::next_tx_timestamp(&socket) {
            seen_timestamps.transmit |= event.timestamp.software_ns.is_some();
        }
        if seen_timestamps.receive && seen_timestamps.transmit {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(seen_timestamps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_probed() {
        match probe_loopback() {
            Ok(seen_timestamps) => println!("{seen_timestamps:?}"),
            Err(error) => println!("needs loopback and SO_TIMESTAMPING: {error}"),
        }
    }
}
