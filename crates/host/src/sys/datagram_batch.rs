//! Batches of datagrams in one system call (`sendmmsg`, `recvmmsg`); the kernel handles each
//! datagram separately.

use std::io;
use std::mem;
use std::os::fd::AsRawFd;

use super::socket::Flags;

/// Header lists of `sendmmsg` and `recvmmsg`, allocated once.
pub struct Messages {
    headers: Vec<libc::mmsghdr>,
    parts: Vec<libc::iovec>,
}

impl Messages {
    /// Allocates lists for up to `count` datagrams.
    #[must_use]
    pub fn new(count: usize) -> Self {
        // SAFETY: both structures are pointers and integers; all zeros is an empty one.
        let (header, part) = unsafe { (mem::zeroed(), mem::zeroed()) };
        Self {
            headers: vec![header; count],
            parts: vec![part; count],
        }
    }

    /// Points the lists at slices of `stride` bytes from `start` on; returns the number of slices.
    fn aim(&mut self, start: *mut u8, length: usize, stride: usize) -> usize {
        let count = self.headers.len().min(length / stride.max(1));
        let lists = self.headers.iter_mut().zip(&mut self.parts);
        for (number, (header, part)) in lists.take(count).enumerate() {
            // Within the buffer: `number * stride + stride <= length`.
            part.iov_base = start.wrapping_add(number * stride).cast();
            part.iov_len = stride;
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
        }
        count
    }

    /// Sends `payload` as datagrams of `size` bytes on a connected socket; returns the number of
    /// datagrams that the kernel accepted. A remainder shorter than `size` is not sent.
    ///
    /// # Errors
    /// Error of `sendmmsg` for the first datagram.
    #[inline]
    pub fn send(
        &mut self,
        socket: &impl AsRawFd,
        payload: &[u8],
        size: usize,
        flags: Flags,
    ) -> io::Result<usize> {
        let count = self.aim(payload.as_ptr().cast_mut(), payload.len(), size);
        // SAFETY: `count` headers refer to one part each, and these to `payload`, which is only
        // read; all of it outlives the call.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as libc::c_uint,
                (flags.raw() | libc::MSG_NOSIGNAL) as _,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receives datagrams into slices of `stride` bytes of `room`; returns their number. A blocking
    /// call waits for the first datagram only.
    ///
    /// # Errors
    /// Errors of `recvmmsg` when no datagram was received.
    #[inline]
    pub fn receive(
        &mut self,
        socket: &impl AsRawFd,
        room: &mut [u8],
        stride: usize,
        flags: Flags,
    ) -> io::Result<usize> {
        let count = self.aim(room.as_mut_ptr(), room.len(), stride);
        // SAFETY: `count` headers refer to one part each, and these to `room`, which is writable;
        // all of it outlives the call. A null timeout means none.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as libc::c_uint,
                (flags.raw() | libc::MSG_WAITFORONE) as _,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    /// Returns the length of the datagram that the last receive call stored in that slice.
    #[inline]
    #[must_use]
    pub fn length(&self, number: usize) -> usize {
        self.headers[number].msg_len as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn datagrams_keep_their_borders() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        let mut messages = Messages::new(8);
        let payload: Vec<u8> = (0..35).collect();
        // Three full datagrams; the rest of five bytes is not sent.
        assert_eq!(messages.send(&near, &payload, 10, Flags::NONE).unwrap(), 3);
        assert_eq!(near.send(b"short").unwrap(), 5);
        let mut room = [0; 64];
        let mut found = Vec::new();
        while found.len() < 4 {
            let count = messages.receive(&far, &mut room, 16, Flags::NONE).unwrap();
            for number in 0..count {
                let start = number * 16;
                found.push(room[start..start + messages.length(number)].to_vec());
            }
        }
        let want: Vec<Vec<u8>> = payload[..30].chunks(10).map(<[u8]>::to_vec).collect();
        assert_eq!(found[..3], want);
        assert_eq!(found[3], b"short");
        let nothing = messages.receive(&far, &mut room, 16, Flags::DONT_WAIT);
        assert_eq!(nothing.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // More payload than list entries: the lists are the limit.
        assert_eq!(messages.send(&near, &[0; 64], 2, Flags::NONE).unwrap(), 8);
    }
}
