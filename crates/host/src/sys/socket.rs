//! Socket calls of the data path, and what the kernel tells of a socket.
//!
//! Every call that moves payload goes through libc's own symbols, so that a stack preloaded in
//! front of them (Onload, VMA) is measured too. Set-up uses `socket2`, which does the same.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Sends on a connected socket; returns how many bytes the kernel took.
///
/// # Errors
/// What `send` says. A vanished peer is an error, never a signal.
#[inline]
pub fn send(socket: &impl AsRawFd, payload: &[u8], flags: Flags) -> io::Result<usize> {
    // SAFETY: `payload` is readable for its whole length during the call.
    let result = unsafe {
        libc::send(
            socket.as_raw_fd(),
            payload.as_ptr().cast(),
            payload.len(),
            flags.0 | libc::MSG_NOSIGNAL,
        )
    };
    check(result)
}

/// Receives on a connected socket; returns how many bytes were written to the front of `room`.
///
/// # Errors
/// What `recv` says; `WouldBlock` also when a blocking socket's receive time-out passed.
#[inline]
pub fn receive(socket: &impl AsRawFd, room: &mut [u8], flags: Flags) -> io::Result<usize> {
    // SAFETY: `room` is writable for its whole length during the call.
    let result = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            room.as_mut_ptr().cast(),
            room.len(),
            flags.0,
        )
    };
    check(result)
}

/// Flags of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(libc::c_int);

impl Flags {
    /// None: the call waits as the socket does.
    pub const NONE: Self = Self(0);
    /// The call returns at once, whatever the socket's mode.
    pub const DONT_WAIT: Self = Self(libc::MSG_DONTWAIT);
    /// What is received stays in the queue.
    pub const PEEK: Self = Self(libc::MSG_PEEK);
    /// A datagram's true length is returned even when the room was too small.
    pub const TRUNCATE: Self = Self(libc::MSG_TRUNC);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Reads a socket option into `room`; returns the bytes that the kernel wrote.
fn option(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    room: &mut [u8],
) -> io::Result<usize> {
    let mut length = room.len() as libc::socklen_t;
    // SAFETY: `room` is writable for `length` bytes, and `length` lives through the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            room.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(length as usize)
}

/// The path MTU that the kernel knows for a connected socket, in bytes of the IP packet.
///
/// # Errors
/// `ENOTCONN` before `connect`.
pub fn path_mtu(socket: &impl AsRawFd, ipv6: bool) -> io::Result<u32> {
    let mut room = [0; 4];
    let (level, name) = if ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU)
    };
    option(socket, level, name, &mut room)?;
    Ok(u32::from_ne_bytes(room))
}

fn set_option(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: `value` is a readable c_int of the size given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            mem::size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Wakes a sleeping receiver only when so many bytes are there (SO_RCVLOWAT).
///
/// # Errors
/// What `setsockopt` says.
pub fn set_receive_low_water(socket: &impl AsRawFd, bytes: u32) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

/// Lets the kernel cut what one call sends into datagrams of `bytes` payload (UDP GSO).
///
/// # Errors
/// Before Linux 4.18.
pub fn set_udp_segment(socket: &impl AsRawFd, bytes: u16) -> io::Result<()> {
    set_option(
        socket,
        libc::SOL_UDP,
        libc::UDP_SEGMENT,
        libc::c_int::from(bytes),
    )
}

/// Lets the kernel hand over several datagrams of one size in one call (UDP GRO).
///
/// # Errors
/// Before Linux 5.0.
pub fn set_udp_coalescing(socket: &impl AsRawFd) -> io::Result<()> {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Receives as [`receive`], and tells the payload bytes of each datagram where several came as one.
///
/// # Errors
/// As [`receive`].
#[inline]
pub fn receive_segments(
    socket: &impl AsRawFd,
    room: &mut [u8],
    flags: Flags,
) -> io::Result<(usize, Option<u16>)> {
    /// Room for the one message asked for, and its alignment.
    #[repr(C, align(8))]
    struct Control([u8; 64]);

    let mut control = Control([0; 64]);
    let mut part = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    // SAFETY: a msghdr is pointers and integers; all zeros is an empty one.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: the message names one part, `room`, and `control`; both are writable for the lengths
    // given and outlive the call.
    let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags.0) };
    let bytes = check(result)?;
    // SAFETY: the kernel has written `msg_controllen` bytes of well-formed headers to `control`.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    let mut segment = None;
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give null or a whole header within `control`.
        let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
        if (level, kind) == (libc::SOL_UDP, libc::UDP_GRO) {
            // SAFETY: this message carries one c_int behind its header (udp(7)), maybe unaligned.
            let size = unsafe {
                libc::CMSG_DATA(header)
                    .cast::<libc::c_int>()
                    .read_unaligned()
            };
            segment = u16::try_from(size).ok().filter(|&size| size > 0);
        }
        // SAFETY: as above; the message is the one that `header` belongs to.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok((bytes, segment))
}

/// Datagrams that this socket refused because its receive buffer was full (SO_MEMINFO).
///
/// # Errors
/// What the kernel says; Linux 4.12 brought the option.
pub fn receive_queue_drops(socket: &impl AsRawFd) -> io::Result<u32> {
    // linux/sock_diag.h: nine u32, the last of which (SK_MEMINFO_DROPS) counts drops.
    const DROPS: usize = 8;
    let mut room = [0; 9 * 4];
    let length = option(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut room)?;
    word(&room[..length], DROPS * 4).ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
}

fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    let part = bytes.get(offset..offset + 4)?;
    Some(u32::from_ne_bytes(part.try_into().ok()?))
}

fn long(bytes: &[u8], offset: usize) -> Option<u64> {
    let part = bytes.get(offset..offset + 8)?;
    Some(u64::from_ne_bytes(part.try_into().ok()?))
}

/// What TCP_INFO tells; fields that an older kernel lacks are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Segments sent again since the connection began.
    pub retransmits: u32,
    /// Congestion window in segments.
    pub cwnd: u32,
    /// Maximum segment size for sending, bytes.
    pub mss: u32,
    /// Path MTU, bytes.
    pub path_mtu: u32,
    /// Smoothed round-trip time, us.
    pub rtt_us: u32,
    /// Variation of the round-trip time, us.
    pub rtt_variation_us: u32,
    /// Least round-trip time of the recent past, us.
    pub min_rtt_us: Option<u32>,
    /// Rate of the latest deliveries, bytes per second.
    pub delivery_rate: Option<u64>,
    /// Time with data to send, us.
    pub busy_us: Option<u64>,
    /// Of that, limited by the peer's window, us.
    pub receive_window_limited_us: Option<u64>,
    /// Of that, limited by the send buffer, us.
    pub send_buffer_limited_us: Option<u64>,
}

/// Reads TCP_INFO (about 0.4 us).
///
/// # Errors
/// What the kernel says: not a TCP socket, or one that never connected.
pub fn tcp_info(socket: &impl AsRawFd) -> io::Result<TcpInfo> {
    let mut room = [0; 256];
    let length = option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut room)?;
    TcpInfo::parse(&room[..length]).ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
}

impl TcpInfo {
    /// Offsets of `struct tcp_info` in linux/tcp.h; the kernel appends and never moves fields.
    fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            mss: word(bytes, 16)?,
            path_mtu: word(bytes, 60)?,
            rtt_us: word(bytes, 68)?,
            rtt_variation_us: word(bytes, 72)?,
            cwnd: word(bytes, 80)?,
            retransmits: word(bytes, 100)?,
            // ~0 says that no round trip has been seen yet.
            min_rtt_us: word(bytes, 148).filter(|&rtt| rtt != u32::MAX),
            delivery_rate: long(bytes, 160),
            busy_us: long(bytes, 168),
            receive_window_limited_us: long(bytes, 176),
            send_buffer_limited_us: long(bytes, 184),
        })
    }
}

/// A second handle on the same socket, for a thread that looks on while another moves payload.
///
/// # Errors
/// When the process has no file descriptor left.
pub fn watch(socket: &impl AsFd) -> io::Result<std::os::fd::OwnedFd> {
    socket.as_fd().try_clone_to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn payload_crosses() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        assert_eq!(send(&near, b"question", Flags::NONE).unwrap(), 8);
        let mut room = [0; 64];
        assert_eq!(receive(&far, &mut room, Flags::NONE).unwrap(), 8);
        assert_eq!(&room[..8], b"question");
        let empty = receive(&far, &mut room, Flags::DONT_WAIT).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        assert!(path_mtu(&near, false).unwrap() >= 576);
        assert_eq!(receive_queue_drops(&far).unwrap(), 0);
    }

    #[test]
    fn a_full_receive_queue_counts_what_it_refused() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        for _ in 0..20_000 {
            send(&near, &[0; 1000], Flags::NONE).unwrap();
        }
        let drops = receive_queue_drops(&far).unwrap();
        let mut room = [0; 1000];
        let mut received = 0;
        while receive(&far, &mut room, Flags::DONT_WAIT).is_ok() {
            received += 1;
        }
        assert_eq!(received + drops, 20_000);
    }

    #[test]
    fn segments_are_cut_and_joined_by_the_kernel() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        if let Err(error) = set_udp_segment(&near, 100).and(set_udp_coalescing(&far)) {
            println!("this kernel has no UDP GSO or GRO: {error}");
            return;
        }
        assert_eq!(send(&near, &[7; 350], Flags::NONE).unwrap(), 350);
        let mut room = [0; 1000];
        let mut lengths = Vec::new();
        while lengths.iter().sum::<usize>() < 350 {
            let (bytes, segment) = receive_segments(&far, &mut room, Flags::NONE).unwrap();
            let segment = segment.map_or(bytes, usize::from);
            lengths.extend(room[..bytes].chunks(segment).map(<[u8]>::len));
        }
        assert_eq!(lengths, [100, 100, 100, 50]);
    }

    #[test]
    fn tcp_tells_its_state() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let info = tcp_info(&near).unwrap();
        assert!(info.mss > 500 && info.cwnd > 0, "{info:?}");
        assert!(tcp_info(&UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
    }

    #[test]
    fn an_old_kernels_shorter_answer_is_read_as_far_as_it_goes() {
        let mut bytes = [0; 104];
        bytes[100..104].copy_from_slice(&7u32.to_ne_bytes());
        let info = TcpInfo::parse(&bytes).unwrap();
        assert_eq!(info.retransmits, 7);
        assert_eq!(info.delivery_rate, None);
        assert_eq!(TcpInfo::parse(&bytes[..90]), None);
    }
}
