//! Kernel pacing: a rate for a socket, or a departure time for each datagram.
//!
//! Both calls succeed even if no lower layer honours them. TCP paces by itself (Linux 4.13); for
//! UDP the qdisc `fq` does. Departure times are honoured by `fq` (CLOCK_MONOTONIC, within its
//! horizon) and by `etf` (CLOCK_TAI); other qdiscs send at once.

use std::io;
use std::mem;
use std::os::fd::AsRawFd;

use super::clock::Nanos;
use super::socket::MessageFlags;

/// Limits a socket to `bytes` per second (SO_MAX_PACING_RATE).
///
/// # Errors
/// Errors of `setsockopt`.
pub fn set_max_rate(socket: &impl AsRawFd, bytes: u64) -> io::Result<()> {
    // Wider than 32 bits where a C long is (Linux 4.20); all ones would mean "no limit".
    let rate = libc::c_ulong::try_from(bytes)
        .unwrap_or(libc::c_ulong::MAX)
        .min(libc::c_ulong::MAX - 1);
    set_socket_option(socket, libc::SO_MAX_PACING_RATE, &rate)
}

/// Clock of departure times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxtimeClock {
    /// CLOCK_MONOTONIC, used by `fq`; needs no privilege.
    Monotonic,
    /// CLOCK_TAI, usual for `etf`; needs CAP_NET_ADMIN.
    Tai,
}

/// `struct sock_txtime` of linux/net_tstamp.h.
#[repr(C)]
struct SockTxtime {
    clock: libc::c_int,
    flags: u32,
}

/// Sender of datagrams with departure times.
#[derive(Clone, Copy, Debug)]
pub struct TxtimeSender {
    /// Selected clock minus CLOCK_MONOTONIC.
    clock_offset_ns: Nanos,
}

impl TxtimeSender {
    /// Enables departure times on a socket (SO_TXTIME).
    ///
    /// # Errors
    /// Fails before Linux 4.19; `EPERM` for a clock that needs a privilege.
    pub fn enable(socket: &impl AsRawFd, clock: TxtimeClock) -> io::Result<Self> {
        let (number, clock_offset_ns) = match clock {
            TxtimeClock::Monotonic => (libc::CLOCK_MONOTONIC, 0),
            // Read once: both clocks run at the same rate, and TAI does not jump.
            TxtimeClock::Tai => (libc::CLOCK_TAI, super::clock::tai_offset()),
        };
        let options = SockTxtime {
            clock: number,
            flags: 0,
        };
        set_socket_option(socket, libc::SO_TXTIME, &options)?;
        Ok(Self { clock_offset_ns })
    }

    /// Sends one datagram on a connected socket, to depart at `at_ns` of [`super::clock::now`].
    ///
    /// # Errors
    /// Errors of `sendmsg`.
    #[inline]
    pub fn send(
        self,
        socket: &impl AsRawFd,
        payload: &[u8],
        flags: MessageFlags,
        at_ns: Nanos,
    ) -> io::Result<usize> {
        /// Aligned buffer for one control message of eight bytes.
        #[repr(C, align(8))]
        struct TxtimeControl([u8; 64]);

        const TIME_BYTES: u32 = mem::size_of::<u64>() as u32;
        let mut control = TxtimeControl([0; 64]);
        let mut io_vector = libc::iovec {
            iov_base: payload.as_ptr().cast_mut().cast(),
            iov_len: payload.len(),
        };
        // SAFETY: a msghdr is pointers and integers; all zeros is an empty one.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = &raw mut io_vector;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: computes a length only.
        let space = unsafe { libc::CMSG_SPACE(TIME_BYTES) };
        message.msg_controllen = space as _;
        // SAFETY: the control buffer is larger than one header, so this is not null, and within it.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        // SAFETY: computes a length only.
        let length = unsafe { libc::CMSG_LEN(TIME_BYTES) };
        // SAFETY: `header` points to a complete header within `control`, which is aligned for it;
        // no other reference to it exists.
        let fields = unsafe { &mut *header };
        fields.cmsg_len = length as _;
        fields.cmsg_level = libc::SOL_SOCKET;
        fields.cmsg_type = libc::SCM_TXTIME;
        // SAFETY: `space` bytes of `control` hold the header and the eight data bytes after it.
        unsafe {
            libc::CMSG_DATA(header)
                .cast::<u64>()
                .write_unaligned(at_ns.saturating_add(self.clock_offset_ns));
        }
        // SAFETY: the message refers to `payload`, which is only read, and `control`; both outlive
        // the call.
        let result =
            unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags.raw_for_send()) };
        usize::try_from(result).map_err(|_| io::Error::last_os_error())
    }
}

fn set_socket_option<T>(socket: &impl AsRawFd, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value is readable for its own size during the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            std::ptr::from_ref(value).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_datagram_with_a_time_arrives() {
        let local = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = UdpSocket::bind("127.0.0.1:0").unwrap();
        local.connect(remote.local_addr().unwrap()).unwrap();
        let sender = match TxtimeSender::enable(&local, TxtimeClock::Monotonic) {
            Ok(sender) => sender,
            Err(error) => return println!("skipped: this kernel has no SO_TXTIME: {error}"),
        };
        let at = super::super::clock::now() + 1_000_000;
        let sent = sender
            .send(&local, b"later", MessageFlags::NONE, at)
            .unwrap();
        let mut buffer = [0; 16];
        assert_eq!((sent, remote.recv(&mut buffer).unwrap()), (5, 5));
        assert_eq!(&buffer[..5], b"later");
    }

    #[test]
    fn rates_are_accepted() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for bytes in [1, 1_000_000, 10_000_000_000, u64::MAX] {
            set_max_rate(&socket, bytes).unwrap();
        }
    }
}
