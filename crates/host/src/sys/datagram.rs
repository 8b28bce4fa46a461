//! Datagrams with addresses, for sockets that are not connected.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use socket2::{SockAddr, SockAddrStorage};

use super::socket::Flags;

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Socket address in the kernel's form, converted once for many calls.
#[derive(Clone, Debug)]
pub struct Address(SockAddr);

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self(SockAddr::from(address))
    }
}

impl Address {
    /// Converts to the standard library's form.
    #[must_use]
    pub fn socket_address(&self) -> Option<SocketAddr> {
        self.0.as_socket()
    }
}

/// Sends one datagram to `to`.
///
/// # Errors
/// Errors of `sendto`.
#[inline]
pub fn send_to(
    socket: &impl AsRawFd,
    payload: &[u8],
    flags: Flags,
    to: &Address,
) -> io::Result<usize> {
    // SAFETY: `payload` is readable for its whole length during the call, and so is the address.
    let result = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            payload.as_ptr().cast(),
            payload.len(),
            flags.raw() | libc::MSG_NOSIGNAL,
            to.0.as_ptr().cast(),
            to.0.len(),
        )
    };
    check(result)
}

/// Receives one datagram and its sender.
///
/// # Errors
/// Errors of `recvfrom`; `WouldBlock` also after the receive timeout of a blocking socket.
#[inline]
pub fn receive_from(
    socket: &impl AsRawFd,
    room: &mut [u8],
    flags: Flags,
) -> io::Result<(usize, Address)> {
    let mut storage = SockAddrStorage::zeroed();
    let mut length = storage.size_of();
    debug_assert!(length as usize <= mem::size_of::<SockAddrStorage>());
    // SAFETY: an IPv4, IPv6 or any other address of the kernel's fits this storage and is valid in
    // it, whatever its bytes.
    let name = unsafe { storage.view_as::<libc::sockaddr_storage>() };
    // SAFETY: `room` and the storage are writable for the lengths given during the call.
    let result = unsafe {
        libc::recvfrom(
            socket.as_raw_fd(),
            room.as_mut_ptr().cast(),
            room.len(),
            flags.raw(),
            (&raw mut *name).cast(),
            &raw mut length,
        )
    };
    let bytes = check(result)?;
    // SAFETY: the kernel wrote an address of `length` bytes to the storage, or left it zeroed.
    let from = unsafe { SockAddr::new(storage, length) };
    Ok((bytes, Address(from)))
}

/// Enables the destination address in [`receive_addressed`] (IP_PKTINFO, IPV6_RECVPKTINFO).
///
/// # Errors
/// Errors of `setsockopt`.
pub fn tell_destination(socket: &impl AsRawFd, ipv6: bool) -> io::Result<()> {
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
pub struct Addressed {
    /// Bytes written to the front of the buffer.
    pub bytes: usize,
    pub from: SocketAddr,
    /// Destination address; `None` unless [`tell_destination`] was called.
    pub to: Option<IpAddr>,
}

/// Receives one datagram without waiting, with its sender and destination.
///
/// # Errors
/// Errors of `recvmsg`; `InvalidData` for a sender without IP address.
pub fn receive_addressed(socket: &impl AsRawFd, room: &mut [u8]) -> io::Result<Addressed> {
    /// Buffer for one of the two control messages.
    const CONTROL: usize = 64;

    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: an address of any family fits this storage and is valid in it, whatever its bytes.
    let name = unsafe { storage.view_as::<libc::sockaddr_storage>() };
    let mut to = None;
    let flags = Flags::DONT_WAIT.raw();
    let (bytes, length) = super::control_message::receive_named::<CONTROL>(
        socket,
        room,
        flags,
        Some(name),
        |level, kind, data| to = to.or_else(|| destination(level, kind, data)),
    )?;
    // SAFETY: the kernel wrote an address of `length` bytes to the storage, or left it zeroed.
    let from = unsafe { SockAddr::new(storage, length) };
    let from = from.as_socket().ok_or(io::ErrorKind::InvalidData)?;
    Ok(Addressed { bytes, from, to })
}

/// Parses `struct in_pktinfo` (ip(7): index, local address, header address) or `struct in6_pktinfo`
/// (address, index).
fn destination(level: libc::c_int, kind: libc::c_int, data: &[u8]) -> Option<IpAddr> {
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
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn both_families_tell_who_sent() {
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(near) = UdpSocket::bind(local) else {
                println!("needs {local}");
                continue;
            };
            let far = UdpSocket::bind(local).unwrap();
            let to = Address::from(far.local_addr().unwrap());
            assert_eq!(send_to(&near, b"datagram", Flags::NONE, &to).unwrap(), 8);
            let mut room = [0; 64];
            let (bytes, from) = receive_from(&far, &mut room, Flags::NONE).unwrap();
            assert_eq!(&room[..bytes], b"datagram");
            assert_eq!(from.socket_address(), near.local_addr().ok());
            let empty = receive_from(&far, &mut room, Flags::DONT_WAIT).unwrap_err();
            assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn a_datagram_tells_both_of_its_addresses() {
        use std::net::UdpSocket;
        let any = ["127.0.0.1:0", "[::]:0"];
        for (bind, sends_to) in [
            (any[0], "127.0.0.1"),
            (any[1], "127.0.0.1"),
            (any[1], "::1"),
        ] {
            let Ok(server) = UdpSocket::bind(bind) else {
                println!("skipped: no IPv6 here");
                continue;
            };
            tell_destination(&server, bind.starts_with('[')).unwrap();
            let to: IpAddr = sends_to.parse().unwrap();
            let client = UdpSocket::bind((to, 0)).unwrap();
            let port = server.local_addr().unwrap().port();
            client.send_to(b"hello", (to, port)).unwrap();
            let mut room = [0; 16];
            let patience = std::time::Duration::from_secs(10);
            super::super::readiness::poll(
                &server,
                super::super::readiness::Ready::Receive,
                patience,
            )
            .unwrap();
            let got = receive_addressed(&server, &mut room).unwrap();
            assert_eq!((got.bytes, got.to), (5, Some(to)));
            assert_eq!(got.from.port(), client.local_addr().unwrap().port());
            assert_eq!(got.from.ip().to_canonical(), to);
            let none = receive_addressed(&server, &mut room).unwrap_err();
            assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        }
    }
}
