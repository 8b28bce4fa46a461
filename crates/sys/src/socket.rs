//! Socket calls of the data path, and the state of a socket in the kernel.
//!
//! Every call that moves payload goes through libc's symbols, so that a stack preloaded over them
//! (Onload, VMA) is measured too. Set-up uses `socket2`, which does the same.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use super::control_message::{self, u32_at};

fn to_result(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Idle time before the first keepalive probe. Routers that translate addresses drop a connection
/// without packets after minutes, some after half a minute.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Probes without a reply before the connection counts as lost: a minute, because a reply may wait
/// behind the payload of a test in a deep queue.
const KEEPALIVE_PROBES: u32 = 12;

/// Enables the keepalive of a TCP connection: routers on the path keep it while it is silent, and a
/// lost peer is noticed.
///
/// # Errors
/// Errors of `setsockopt`.
pub fn enable_keepalive(socket: &impl AsFd) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

/// Sends on a connected socket; returns the number of bytes that the kernel accepted.
///
/// # Errors
/// Errors of `send`. A lost peer is an error, never a signal.
#[inline]
pub fn send(socket: &impl AsRawFd, payload: &[u8], flags: MessageFlags) -> io::Result<usize> {
    // SAFETY: `payload` is readable for its whole length during the call.
    let result = unsafe {
        libc::send(
            socket.as_raw_fd(),
            payload.as_ptr().cast(),
            payload.len(),
            flags.0 | libc::MSG_NOSIGNAL,
        )
    };
    to_result(result)
}

/// Receives on a connected socket; returns the number of bytes written to the front of `buffer`.
///
/// # Errors
/// Errors of `recv`; `WouldBlock` also after the receive timeout of a blocking socket.
#[inline]
pub fn receive(socket: &impl AsRawFd, buffer: &mut [u8], flags: MessageFlags) -> io::Result<usize> {
    // SAFETY: `buffer` is writable for its whole length during the call.
    let result = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            flags.0,
        )
    };
    to_result(result)
}

/// Flags of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageFlags(libc::c_int);

impl MessageFlags {
    /// No flag: the call blocks if the socket does.
    pub const NONE: Self = Self(0);
    /// The call returns at once, also on a blocking socket.
    pub const DONT_WAIT: Self = Self(libc::MSG_DONTWAIT);
    /// Received data stay in the queue.
    pub const PEEK: Self = Self(libc::MSG_PEEK);
    /// Returns a datagram's true length even if the buffer was too small.
    pub const TRUNCATE: Self = Self(libc::MSG_TRUNC);

    /// The kernel takes references to the pages instead of copying (see
    /// [`zerocopy`](super::zerocopy)).
    pub const ZERO_COPY: Self = Self(libc::MSG_ZEROCOPY);

    /// Returns the kernel's flags.
    pub(super) const fn raw(self) -> libc::c_int {
        self.0
    }

    /// Returns the kernel's flags for sending calls: with MSG_NOSIGNAL, so that a lost peer is an
    /// error, never a signal.
    pub(super) const fn raw_for_send(self) -> libc::c_int {
        self.0 | libc::MSG_NOSIGNAL
    }

    /// Combines two sets of flags.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Reads a socket option into `buffer`; returns the number of bytes that the kernel wrote.
fn read_option(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    buffer: &mut [u8],
) -> io::Result<usize> {
    let mut length = buffer.len() as libc::socklen_t;
    // SAFETY: `buffer` is writable for `length` bytes, and `length` lives through the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            buffer.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(length as usize)
}

/// Reads the path MTU of a connected socket, in bytes of the IP packet.
///
/// # Errors
/// `ENOTCONN` before `connect`.
pub fn read_path_mtu(socket: &impl AsRawFd, ipv6: bool) -> io::Result<u32> {
    let mut buffer = [0; 4];
    let (level, name) = if ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU)
    };
    read_option(socket, level, name, &mut buffer)?;
    Ok(u32::from_ne_bytes(buffer))
}

pub(super) fn set_option(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the value is a readable c_int of the size given.
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

/// Sets the number of bytes that wake a sleeping receiver (SO_RCVLOWAT).
///
/// # Errors
/// Errors of `setsockopt`.
pub fn set_receive_low_water(socket: &impl AsRawFd, bytes: u32) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

/// Subscribes a netlink socket to a multicast group (NETLINK_ADD_MEMBERSHIP).
///
/// # Errors
/// Errors of `setsockopt`.
pub fn join_netlink_group(socket: &impl AsRawFd, group: u32) -> io::Result<()> {
    set_option(
        socket,
        libc::SOL_NETLINK,
        libc::NETLINK_ADD_MEMBERSHIP,
        group as libc::c_int,
    )
}

fn resolve_index(interface: &str) -> io::Result<libc::c_uint> {
    let name = std::ffi::CString::new(interface).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the name ends with a zero byte and lives through the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Selects the interface through which a socket sends multicast.
///
/// # Errors
/// Fails without such an interface.
pub fn set_multicast_interface(
    socket: &impl AsRawFd,
    interface: &str,
    ipv6: bool,
) -> io::Result<()> {
    let index = resolve_index(interface)?;
    if ipv6 {
        let index = libc::c_int::try_from(index).map_err(|_| io::ErrorKind::InvalidInput)?;
        return set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, index);
    }
    // ip(7): with an ip_mreqn the index decides and the addresses are ignored.
    let request = libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: 0 },
        imr_address: libc::in_addr { s_addr: 0 },
        imr_ifindex: libc::c_int::try_from(index).map_err(|_| io::ErrorKind::InvalidInput)?,
    };
    // SAFETY: `request` is a readable ip_mreqn of the size given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MULTICAST_IF,
            (&raw const request).cast(),
            mem::size_of::<libc::ip_mreqn>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the index of an interface of this namespace.
///
/// # Errors
/// Fails without such an interface.
pub fn interface_index(interface: &str) -> io::Result<u32> {
    resolve_index(interface)
}

/// Sets the send buffer beyond the system's limit (SO_SNDBUFFORCE).
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN.
pub fn force_send_buffer(socket: &impl AsRawFd, bytes: u64) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes)
}

/// Sets the receive buffer beyond the system's limit (SO_RCVBUFFORCE).
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN.
pub fn force_receive_buffer(socket: &impl AsRawFd, bytes: u64) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
}

/// Makes calls that would sleep poll the interface's receive queue for `time` first (SO_BUSY_POLL,
/// whole microseconds), if possible with interrupts deferred (SO_PREFER_BUSY_POLL, Linux 5.11).
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN for more than net.core.busy_read.
pub fn set_busy_poll(socket: &impl AsRawFd, time: std::time::Duration) -> io::Result<()> {
    let micros = libc::c_int::try_from(time.as_micros().max(1)).unwrap_or(libc::c_int::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, micros)?;
    // Without it interrupts stay enabled during polling: less effect, same meaning.
    let _ = set_option(socket, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, 1);
    Ok(())
}

/// Returns the NAPI id of the receive queue of this socket's last packet (SO_INCOMING_NAPI_ID);
/// `None` when it has none, and busy polling has no queue to poll.
#[must_use]
pub fn read_napi_id(socket: &impl AsRawFd) -> Option<u32> {
    let mut buffer = [0; 4];
    read_option(
        socket,
        libc::SOL_SOCKET,
        libc::SO_INCOMING_NAPI_ID,
        &mut buffer,
    )
    .ok()?;
    Some(u32::from_ne_bytes(buffer)).filter(|&id| id > 0)
}

/// Enables UDP GSO: the kernel splits the payload of one call into datagrams of `bytes` payload.
///
/// # Errors
/// Fails before Linux 4.18.
pub fn enable_udp_gso(socket: &impl AsRawFd, bytes: u16) -> io::Result<()> {
    set_option(
        socket,
        libc::SOL_UDP,
        libc::UDP_SEGMENT,
        libc::c_int::from(bytes),
    )
}

/// Enables UDP GRO: the kernel returns several datagrams of one size in one call.
///
/// # Errors
/// Fails before Linux 5.0.
pub fn enable_udp_gro(socket: &impl AsRawFd) -> io::Result<()> {
    set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Receives as [`receive`]; also returns the payload bytes per datagram if the kernel merged
/// several.
///
/// # Errors
/// As [`receive`].
#[inline]
pub fn receive_segments(
    socket: &impl AsRawFd,
    buffer: &mut [u8],
    flags: MessageFlags,
) -> io::Result<(usize, Option<u16>)> {
    /// Buffer for the requested control message.
    const CONTROL: usize = 64;

    let mut segment_bytes = None;
    let bytes = control_message::receive_with_control::<CONTROL>(
        socket,
        buffer,
        flags.raw(),
        |level, kind, data| {
            if (level, kind) == (libc::SOL_UDP, libc::UDP_GRO) {
                let size = u32_at(data, 0).and_then(|size| u16::try_from(size).ok());
                segment_bytes = size.filter(|&size| size > 0);
            }
        },
    )?;
    Ok((bytes, segment_bytes))
}

/// Returns the number of datagrams dropped because this socket's receive buffer was full
/// (SO_MEMINFO).
///
/// # Errors
/// Errors of `getsockopt`; the option exists since Linux 4.12.
pub fn read_receive_queue_drops(socket: &impl AsRawFd) -> io::Result<u32> {
    // linux/sock_diag.h: nine u32, the last of which (SK_MEMINFO_DROPS) counts drops.
    const DROPS: usize = 8;
    let mut buffer = [0; 9 * 4];
    let length = read_option(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut buffer)?;
    u32_at(&buffer[..length], DROPS * 4).ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    let field_bytes = bytes.get(offset..offset + 8)?;
    Some(u64::from_ne_bytes(field_bytes.try_into().ok()?))
}

/// Values of TCP_INFO; fields that an older kernel lacks are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Segments retransmitted since the connection began.
    pub retransmits: u32,
    /// Congestion window, segments.
    pub cwnd: u32,
    /// Maximum segment size for sending, bytes.
    pub mss: u32,
    /// Path MTU, bytes.
    pub path_mtu: u32,
    /// Smoothed round-trip time, us.
    pub rtt_us: u32,
    /// Variation of the round-trip time, us.
    pub rtt_variation_us: u32,
    /// Time since payload was last received, ms, with the precision of kernel ticks.
    pub since_received_ms: u32,
    /// Time since an acknowledgement was last received, ms, with the precision of kernel ticks.
    pub since_acknowledgement_ms: u32,
    /// Minimum round-trip time of the recent past, us.
    pub min_rtt_us: Option<u32>,
    /// Bytes that the peer has acknowledged.
    pub acknowledged_bytes: Option<u64>,
    /// Most recent delivery rate, bytes per second.
    pub delivery_rate: Option<u64>,
    /// Time with data to send, us.
    pub busy_us: Option<u64>,
    /// Part of `busy_us` limited by the peer's receive window, us.
    pub receive_window_limited_us: Option<u64>,
    /// Part of `busy_us` limited by the send buffer, us.
    pub send_buffer_limited_us: Option<u64>,
    /// Segments delivered with an ECN congestion mark (Linux 4.18).
    pub delivered_ce: Option<u32>,
    /// Bytes retransmitted (Linux 4.19).
    pub retransmitted_bytes: Option<u64>,
    /// Segments that the receiver reported as duplicates (DSACK, Linux 4.19).
    pub dsack_duplicates: Option<u32>,
    /// Reordering events detected (Linux 4.19).
    pub reordering_events: Option<u32>,
    /// Window advertised by the peer, bytes (Linux 5.4).
    pub send_window: Option<u32>,
    /// Retransmission timeouts (Linux 6.7).
    pub timeouts: Option<u16>,
    /// True if ECN was negotiated.
    pub ecn_negotiated: bool,
}

/// Returns the payload of a connection that the peer has not acknowledged, in bytes (SIOCOUTQ). The
/// end of the stream counts as one byte. Of a datagram socket: the memory of the datagrams that no
/// device has sent yet.
///
/// # Errors
/// Errors of the ioctl: not a connection.
pub fn read_unacknowledged_bytes(socket: &impl AsRawFd) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ (the number of SIOCOUTQ) writes one int, and `bytes` is one that lives
    // through the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // The kernel's count for a stream is never negative.
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Returns the memory in a socket's send and receive queues, in bytes (SO_MEMINFO).
///
/// # Errors
/// Errors of `getsockopt`; the option exists since Linux 4.12.
pub fn read_queued_memory(socket: &impl AsRawFd) -> io::Result<u64> {
    // linux/sock_diag.h: receive queue, its limit, memory in flight, its limit, forward allocation,
    // send queue, options, backlog. On a stream, the send queue contains the memory in flight.
    const RECEIVED: usize = 0;
    const SENDING: usize = 2;
    const RESERVE: usize = 4;
    const TO_SEND: usize = 5;
    const OPTIONS: usize = 6;
    const BACKLOG: usize = 7;
    let mut buffer = [0; 9 * 4];
    let length = read_option(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut buffer)?;
    let field = |index: usize| {
        u32_at(&buffer[..length], index * 4)
            .map(u64::from)
            .ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
    };
    let outgoing = field(SENDING)?.max(field(TO_SEND)?);
    Ok(outgoing + field(RECEIVED)? + field(RESERVE)? + field(OPTIONS)? + field(BACKLOG)?)
}

/// Reads TCP_INFO (about 0.4 us).
///
/// # Errors
/// Errors of `getsockopt`: not a TCP socket, or one that never connected.
pub fn read_tcp_info(socket: &impl AsRawFd) -> io::Result<TcpInfo> {
    let mut buffer = [0; 256];
    let length = read_option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut buffer)?;
    TcpInfo::parse(&buffer[..length]).ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
}

impl TcpInfo {
    /// Uses the offsets of `struct tcp_info` in linux/tcp.h; the kernel appends fields and never
    /// moves them.
    fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            mss: u32_at(bytes, 16)?,
            since_received_ms: u32_at(bytes, 52)?,
            since_acknowledgement_ms: u32_at(bytes, 56)?,
            path_mtu: u32_at(bytes, 60)?,
            rtt_us: u32_at(bytes, 68)?,
            rtt_variation_us: u32_at(bytes, 72)?,
            cwnd: u32_at(bytes, 80)?,
            retransmits: u32_at(bytes, 100)?,
            // All ones: no round trip measured yet.
            min_rtt_us: u32_at(bytes, 148).filter(|&rtt| rtt != u32::MAX),
            acknowledged_bytes: u64_at(bytes, 120),
            delivery_rate: u64_at(bytes, 160),
            busy_us: u64_at(bytes, 168),
            receive_window_limited_us: u64_at(bytes, 176),
            send_buffer_limited_us: u64_at(bytes, 184),
            delivered_ce: u32_at(bytes, 196),
            retransmitted_bytes: u64_at(bytes, 208),
            dsack_duplicates: u32_at(bytes, 216),
            reordering_events: u32_at(bytes, 220),
            send_window: u32_at(bytes, 228),
            timeouts: bytes
                .get(240..242)
                .map(|field_bytes| u16::from_ne_bytes([field_bytes[0], field_bytes[1]])),
            // Byte 5 holds the negotiated options, ECN among them (TCPI_OPT_ECN).
            ecn_negotiated: bytes.get(5).is_some_and(|options| options & 8 != 0),
        })
    }
}

/// Duplicates the handle of a socket, for a thread that reads counters while another moves payload.
///
/// # Errors
/// Fails when the process has no file descriptor left.
pub fn clone_handle(socket: &impl AsFd) -> io::Result<std::os::fd::OwnedFd> {
    socket.as_fd().try_clone_to_owned()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn payload_crosses() {
        let local = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = UdpSocket::bind("127.0.0.1:0").unwrap();
        local.connect(remote.local_addr().unwrap()).unwrap();
        remote.connect(local.local_addr().unwrap()).unwrap();
        assert_eq!(send(&local, b"datagram", MessageFlags::NONE).unwrap(), 8);
        let mut buffer = [0; 64];
        assert_eq!(
            receive(&remote, &mut buffer, MessageFlags::NONE).unwrap(),
            8
        );
        assert_eq!(&buffer[..8], b"datagram");
        let empty = receive(&remote, &mut buffer, MessageFlags::DONT_WAIT).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
        assert!(read_path_mtu(&local, false).unwrap() >= 576);
        assert_eq!(read_receive_queue_drops(&remote).unwrap(), 0);
    }

    #[test]
    fn a_full_receive_queue_counts_drops() {
        let local = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = UdpSocket::bind("127.0.0.1:0").unwrap();
        local.connect(remote.local_addr().unwrap()).unwrap();
        for _ in 0..20_000 {
            send(&local, &[0; 1000], MessageFlags::NONE).unwrap();
        }
        let drops = read_receive_queue_drops(&remote).unwrap();
        let mut buffer = [0; 1000];
        let mut received = 0;
        while receive(&remote, &mut buffer, MessageFlags::DONT_WAIT).is_ok() {
            received += 1;
        }
        assert_eq!(received + drops, 20_000);
    }

    #[test]
    fn datagrams_are_split_and_merged_by_the_kernel() {
        let local = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = UdpSocket::bind("127.0.0.1:0").unwrap();
        local.connect(remote.local_addr().unwrap()).unwrap();
        if let Err(error) = enable_udp_gso(&local, 100).and(enable_udp_gro(&remote)) {
            println!("this kernel has no UDP GSO or GRO: {error}");
            return;
        }
        assert_eq!(send(&local, &[7; 350], MessageFlags::NONE).unwrap(), 350);
        let mut buffer = [0; 1000];
        let mut lengths = Vec::new();
        while lengths.iter().sum::<usize>() < 350 {
            let (bytes, segment) =
                receive_segments(&remote, &mut buffer, MessageFlags::NONE).unwrap();
            let segment = segment.map_or(bytes, usize::from);
            lengths.extend(buffer[..bytes].chunks(segment).map(<[u8]>::len));
        }
        assert_eq!(lengths, [100, 100, 100, 50]);
    }

    #[test]
    fn tcp_state_is_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let info = read_tcp_info(&local).unwrap();
        assert!(info.mss > 500 && info.cwnd > 0, "{info:?}");
        assert!(read_tcp_info(&UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
    }

    #[test]
    fn a_shorter_reply_of_an_old_kernel_is_parsed() {
        let mut bytes = [0; 104];
        bytes[100..104].copy_from_slice(&7u32.to_ne_bytes());
        let info = TcpInfo::parse(&bytes).unwrap();
        assert_eq!(info.retransmits, 7);
        assert_eq!(info.delivery_rate, None);
        assert_eq!(TcpInfo::parse(&bytes[..90]), None);
    }

    #[test]
    fn newer_fields_are_parsed_at_their_offsets() {
        let mut bytes = [0; 248];
        bytes[5] = 8 | 1;
        for (at, value) in [(196, 1u32), (216, 2), (220, 3)] {
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        bytes[208..216].copy_from_slice(&(5u64 << 33).to_ne_bytes());
        bytes[240..242].copy_from_slice(&4u16.to_ne_bytes());
        let info = TcpInfo::parse(&bytes).unwrap();
        assert_eq!(
            (
                info.delivered_ce,
                info.dsack_duplicates,
                info.reordering_events,
                info.timeouts
            ),
            (Some(1), Some(2), Some(3), Some(4))
        );
        assert_eq!(info.retransmitted_bytes, Some(5 << 33));
        assert!(info.ecn_negotiated);
        assert_eq!(TcpInfo::parse(&bytes[..224]).unwrap().timeouts, None);
    }

    #[test]
    fn unread_data_count_as_queued_memory() {
        let local = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = UdpSocket::bind("127.0.0.1:0").unwrap();
        local.connect(remote.local_addr().unwrap()).unwrap();
        let before = match read_queued_memory(&remote) {
            Ok(before) => before,
            Err(error) => return println!("needs SO_MEMINFO: {error}"),
        };
        for _ in 0..20 {
            send(&local, &[0; 1000], MessageFlags::NONE).unwrap();
        }
        assert!(read_queued_memory(&remote).unwrap() >= before + 20_000);
    }
}
