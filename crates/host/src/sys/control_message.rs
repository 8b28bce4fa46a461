//! Receiving with control messages (ancillary data of recvmsg).

use std::io;
use std::mem;
use std::os::fd::AsRawFd;

/// Aligned buffer for the control messages of one call.
#[repr(C, align(8))]
struct Control<const BYTES: usize>([u8; BYTES]);

/// Calls `recvmsg` once into `room`, with space for `CONTROL` bytes of control messages. Passes
/// level, type and data of each message to `take` and returns the payload bytes.
///
/// # Errors
/// Errors of `recvmsg`.
#[inline]
pub(super) fn receive<const CONTROL: usize>(
    socket: &impl AsRawFd,
    room: &mut [u8],
    flags: libc::c_int,
    take: impl FnMut(libc::c_int, libc::c_int, &[u8]),
) -> io::Result<usize> {
    receive_named::<CONTROL>(socket, room, flags, None, take).map(|(bytes, _)| bytes)
}

/// Receives as [`receive`] and also writes the sender's address to `name`. Returns the payload
/// bytes and the address bytes.
///
/// # Errors
/// Errors of `recvmsg`.
#[inline]
pub(super) fn receive_named<const CONTROL: usize>(
    socket: &impl AsRawFd,
    room: &mut [u8],
    flags: libc::c_int,
    name: Option<&mut libc::sockaddr_storage>,
    mut take: impl FnMut(libc::c_int, libc::c_int, &[u8]),
) -> io::Result<(usize, libc::socklen_t)> {
    let mut control = Control([0; CONTROL]);
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
    if let Some(name) = name {
        message.msg_namelen = mem::size_of_val(name) as libc::socklen_t;
        message.msg_name = (&raw mut *name).cast();
    }
    // SAFETY: the message refers to one part, `room`, `control`, and maybe `name`; all are writable
    // for the lengths given and outlive the call.
    let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let bytes = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has written `msg_controllen` bytes of well-formed headers to `control`.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return null or a complete header within `control`.
        let (level, kind, length) = unsafe {
            (
                (*header).cmsg_level,
                (*header).cmsg_type,
                (*header).cmsg_len,
            )
        };
        // SAFETY: computes the length of an empty control message; no memory is accessed.
        let empty = unsafe { libc::CMSG_LEN(0) } as usize;
        // cmsg_len is u32 in musl, usize in glibc.
        #[allow(clippy::unnecessary_cast)]
        let length = (length as usize).saturating_sub(empty);
        // SAFETY: the data of `header` begin here, within `control`.
        let data = unsafe { libc::CMSG_DATA(header) };
        // SAFETY: the kernel wrote `cmsg_len` bytes for this message, header included, and
        // `control` is not written while the slice lives.
        take(level, kind, unsafe {
            std::slice::from_raw_parts(data, length)
        });
        // SAFETY: as above; `header` belongs to `message`.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok((bytes, message.msg_namelen))
}

/// Reads a native-endian u32 at a byte offset.
pub(super) fn word(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

/// Entry of the error queue: `struct sock_extended_err` of linux/errqueue.h.
pub(super) struct Notice {
    pub(super) errno: u32,
    pub(super) origin: u8,
    pub(super) code: u8,
    pub(super) info: u32,
    pub(super) data: u32,
}

impl Notice {
    /// Parses a control message; `None` for other kinds.
    pub(super) fn of(level: libc::c_int, kind: libc::c_int, data: &[u8]) -> Option<Self> {
        let is_notice = matches!(
            (level, kind),
            (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
        );
        is_notice.then(|| Self::read(data)).flatten()
    }

    /// Layout: u32 errno, u8 origin, u8 type, u8 code, u8 pad, u32 info, u32 data.
    fn read(data: &[u8]) -> Option<Self> {
        Some(Self {
            errno: word(data, 0)?,
            origin: *data.get(4)?,
            code: *data.get(6)?,
            info: word(data, 8)?,
            data: word(data, 12)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_read_as_the_kernel_lays_them_out() {
        let mut data = [0u8; 16];
        data[..4].copy_from_slice(&42u32.to_ne_bytes());
        (data[4], data[6]) = (5, 1);
        data[8..12].copy_from_slice(&7u32.to_ne_bytes());
        data[12..].copy_from_slice(&9u32.to_ne_bytes());
        let notice = Notice::of(libc::SOL_IPV6, libc::IPV6_RECVERR, &data).unwrap();
        assert_eq!((notice.errno, notice.origin, notice.code), (42, 5, 1));
        assert_eq!((notice.info, notice.data), (7, 9));
        assert!(Notice::of(libc::SOL_IP, libc::IP_RECVERR, &data[..15]).is_none());
        assert!(Notice::of(libc::SOL_SOCKET, libc::IP_RECVERR, &data).is_none());
    }
}
