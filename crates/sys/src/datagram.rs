//! Datagrams with addresses, for sockets that are not connected.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use socket2::{SockAddr, SockAddrStorage};

use super::socket::MessageFlags;

fn to_result(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Socket address in the kernel's form, converted once for many calls.
#[derive(Clone, Debug)]
pub struct SocketAddress(SockAddr);

impl From<SocketAddr> for SocketAddress {
    fn from(address: SocketAddr) -> Self {
        Self(SockAddr::from(address))
    }
}

impl SocketAddress {
    /// Converts to the standard library's form.
    #[must_use]
    pub fn to_std(&self) -> Option<SocketAddr> {
        self.0.as_socket()
    }
}

/// Sends one datagram to `destination`.
///
/// # Errors
/// Errors of `sendto`.
#[inline]
pub fn send_to(
    socket: &impl AsRawFd,
    payload: &[u8],
    flags: MessageFlags,
    destination: &SocketAddress,
) -> io::Result<usize> {
    // SAFETY: `payload` is readable for its whole length during the call, and so is the address.
    let result = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            payload.as_ptr().cast(),
            payload.len(),
            flags.raw() | libc::MSG_NOSIGNAL,
            destination.0.as_ptr().cast(),
            destination.0.len(),
        )
    };
    to_result(result)
}

/// Receives one datagram and its sender.
///
/// # Errors
/// Errors of `recvfrom`; `WouldBlock` also after the receive timeout of a blocking socket.
#[inline]
pub fn receive_from(
    socket: &impl AsRawFd,
    buffer: &mut [u8],
    flags: MessageFlags,
) -> io::Result<(usize, SocketAddress)> {
    let mut storage = SockAddrStorage::zeroed();
    let mut length = storage.size_of();
    debug_assert!(length as usize <= mem::size_of::<SockAddrStorage>());
    // SAFETY: an IPv4, IPv6 or any other address of the kernel's fits this storage and is valid in
    // it, whatever its bytes.
    let name = unsafe { storage.view_as::<libc::sockaddr_storage>() };
    // SAFETY: `buffer` and the storage are writable for the lengths given during the call.
    let result = unsafe {
        libc::recvfrom(
            socket.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            flags.raw(),
            (&raw mut *name).cast(),
            &raw mut length,
        )
    };
    let bytes = to_result(result)?;
    // SAFETY: the kernel wrote an address of `length` bytes to the storage, or left it zeroed.
    let sender = unsafe { SockAddr::new(storage, length) };
    Ok((bytes, SocketAddress(sender)))
}

/// Enables the destination address in [`receive_with_destination`] (IP_PKTINFO, IPV6_RECVPKTINFO).
///
/// # Errors
/// Errors of `setsockopt`.
pub fn enable_destination(socket: &impl AsRawFd, ipv6: bool) -> io::Result<()> {
    // A dual-stack socket reports IPv4 destinations as mapped addresses in IPV6_PKTINFO.
    let (level, name) = if ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)
    } else {
        (libc::IPPROTO_IP, libc::IP_PKTINFO)
    };
    super::socket::set_option(socket, level, name, 1)
}

/// Length, sender and destination of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressedDatagram {
    /// Bytes written to the front of the buffer.
    pub bytes: usize,
    pub sender: SocketAddr,
    /// Destination address; `None` unless [`enable_destination`] was called.
    pub destination: Option<IpAddr>,
}

/// Receives one datagram without waiting, with its sender and destination.
///
/// # Errors
/// Errors of `recvmsg`; `InvalidData` for a sender without IP address.
pub fn receive_with_destination(
    socket: &impl AsRawFd,
    buffer: &mut [u8],
) -> io::Result<AddressedDatagram> {
    /// Buffer for one of the two control messages.
    const CONTROL: usize = 64;

    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: an address of any family fits this storage and is valid in it, whatever its bytes.
    let name = unsafe { storage.view_as::<libc::sockaddr_storage>() };
    let mut to = None;
    let flags = MessageFlags::DONT_WAIT.raw();
    let (bytes, length) = super::control_message::receive_with_address::<CONTROL>(
        socket,
        buffer,
        flags,
        Some(name),
        |level, kind, data| to = to.or_else(|| parse_pktinfo(level, kind, data)),
    )?;
    // SAFETY: the kernel wrote an address of `length` bytes to the storage, or left it zeroed.
    let sender = unsafe { SockAddr::new(storage, length) };
    let sender = sender.as_socket().ok_or(io::ErrorKind::InvalidData)?;
    Ok(AddressedDatagram {
        bytes,
        sender,
        destination: to,
    })
}

/// Parses `struct in_pktinfo` (ip(7): index, local address, header address) or `struct in6_pktinfo`
/// (address, index).
fn parse_pktinfo(level: libc::c_int, kind: libc::c_int, data: &[u8]) -> Option<IpAddr> {
    match (level, kind) {
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            let local: [u8; 4] = data.get(4..8)?.try_into().ok()?;
            Some(Ipv4Addr::from(local).into())
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            let address: [u8; 16] = data.get(..16)?.try_into().ok()?;
            Some(IpAddr::from(Ipv6Addr::from(address)).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn both_families_report_the_sender() {
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(sender) = UdpSocket::bind(local) else {
                println!("needs {local}");
                continue;
            };
            let receiver = UdpSocket::bind(local).unwrap();
            let to = SocketAddress::from(receiver.local_addr().unwrap());
            assert_eq!(
                send_to(&sender, b"datagram", MessageFlags::NONE, &to).unwrap(),
                8
            );
            let mut buffer = [0; 64];
            let (bytes, from) = receive_from(&receiver, &mut buffer, MessageFlags::NONE).unwrap();
            assert_eq!(&buffer[..bytes], b"datagram");
            assert_eq!(from.to_std(), sender.local_addr().ok());
            let empty = receive_from(&receiver, &mut buffer, MessageFlags::DONT_WAIT).unwrap_err();
            assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn sender_and_destination_are_reported() {
        use std::net::UdpSocket;
        let any = ["127.0.0.1:0", "[::]:0"];
        for (bind, destination) in [
            (any[0], "127.0.0.1"),
            (any[1], "127.0.0.1"),
            (any[1], "::1"),
        ] {
            let Ok(server) = UdpSocket::bind(bind) else {
                println!("skipped: no IPv6 here");
                continue;
            };
            enable_destination(&server, bind.starts_with('[')).unwrap();
            let to: IpAddr = destination.parse().unwrap();
            let client = UdpSocket::bind((to, 0)).unwrap();
            let port = server.local_addr().unwrap().port();
            client.send_to(b"hello", (to, port)).unwrap();
            let mut buffer = [0; 16];
            let timeout = std::time::Duration::from_secs(10);
            super::super::readiness::poll(
                &server,
                super::super::readiness::Readiness::Receive,
                timeout,
            )
            .unwrap();
            let datagram = receive_with_destination(&server, &mut buffer).unwrap();
            assert_eq!((datagram.bytes, datagram.destination), (5, Some(to)));
            assert_eq!(datagram.sender.port(), client.local_addr().unwrap().port());
            assert_eq!(datagram.sender.ip().to_canonical(), to);
            let none = receive_with_destination(&server, &mut buffer).unwrap_err();
            assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        }
    }
}
