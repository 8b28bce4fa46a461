//! Receiving with control messages (ancillary data of recvmsg).

use std::io;
use std::mem;
use std::os::fd::AsRawFd;

/// Aligned buffer for the control messages of one call.
#[repr(C, align(8))]
struct ControlBuffer<const BYTES: usize>([u8; BYTES]);

/// Calls `recvmsg` once into `buffer`, with space for `CONTROL` bytes of control messages. Passes
/// level, type and data of each message to `on_message` and returns the payload bytes.
///
/// # Errors
/// Errors of `recvmsg`.
#[inline]
pub(super) fn receive_with_control<const CONTROL: usize>(
    socket: &impl AsRawFd,
    buffer: &mut [u8],
    flags: libc::c_int,
    on_message: impl FnMut(libc::c_int, libc::c_int, &[u8]),
) -> io::Result<usize> {
    receive_with_address::<CONTROL>(socket, buffer, flags, None, on_message).map(|(bytes, _)| bytes)
}

/// Receives as [`receive_with_control`] and also writes the sender's address to `address`. Returns
/// the payload bytes and the address bytes.
///
/// # Errors
/// Errors of `recvmsg`.
#[inline]
pub(super) fn receive_with_address<const CONTROL: usize>(
    socket: &impl AsRawFd,
    buffer: &mut [u8],
    flags: libc::c_int,
    address: Option<&mut libc::sockaddr_storage>,
    mut on_message: impl FnMut(libc::c_int, libc::c_int, &[u8]),
) -> io::Result<(usize, libc::socklen_t)> {
    let mut control = ControlBuffer([0; CONTROL]);
    let mut io_vector = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: a msghdr is pointers and integers; all zeros is an empty one.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut io_vector;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    if let Some(address) = address {
        message.msg_namelen = mem::size_of_val(address) as libc::socklen_t;
        message.msg_name = (&raw mut *address).cast();
    }
    // SAFETY: the message refers to one part, `buffer`, `control`, and maybe `address`; all are
    // writable for the lengths given and outlive the call.
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
        on_message(level, kind, unsafe {
            std::slice::from_raw_parts(data, length)
        });
        // SAFETY: as above; `header` belongs to `message`.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok((bytes, message.msg_namelen))
}

/// Reads a native-endian u32 at a byte offset.
pub(super) fn u32_at(data: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(
        data.get(offset..offset + 4)?.try_into().ok()?,
    ))
}

/// Entry of the error queue: `struct sock_extended_err` of linux/errqueue.h.
pub(super) struct ErrorQueueEntry {
    pub(super) errno: u32,
    pub(super) origin: u8,
    pub(super) code: u8,
    pub(super) info: u32,
    pub(super) data: u32,
}

impl ErrorQueueEntry {
    /// Parses a control message; `None` for other kinds.
    pub(super) fn parse(level: libc::c_int, kind: libc::c_int, data: &[u8]) -> Option<Self> {
        let is_error_entry = matches!(
            (level, kind),
            (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
        );
        is_error_entry.then(|| Self::decode(data)).flatten()
    }

    /// Layout: u32 errno, u8 origin, u8 type, u8 code, u8 pad, u32 info, u32 data.
    fn decode(data: &[u8]) -> Option<Self> {
        Some(Self {
            errno: u32_at(data, 0)?,
            origin: *data.get(4)?,
            code: *data.get(6)?,
            info: u32_at(data, 8)?,
            data: u32_at(data, 12)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_queue_entries_are_parsed() {
        let mut data = [0u8; 16];
        data[..4].copy_from_slice(&42u32.to_ne_bytes());
        (data[4], data[6]) = (5, 1);
        data[8..12].copy_from_slice(&7u32.to_ne_bytes());
        data[12..].copy_from_slice(&9u32.to_ne_bytes());
        let entry = ErrorQueueEntry::parse(libc::SOL_IPV6, libc::IPV6_RECVERR, &data).unwrap();
        assert_eq!((entry.errno, entry.origin, entry.code), (42, 5, 1));
        assert_eq!((entry.info, entry.data), (7, 9));
        assert!(ErrorQueueEntry::parse(libc::SOL_IP, libc::IP_RECVERR, &data[..15]).is_none());
        assert!(ErrorQueueEntry::parse(libc::SOL_SOCKET, libc::IP_RECVERR, &data).is_none());
    }
}
