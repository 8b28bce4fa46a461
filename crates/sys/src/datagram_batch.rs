//! Batches of datagrams in one system call (`sendmmsg`, `recvmmsg`); the kernel handles each
//! datagram separately.

use std::io;
use std::mem;
use std::os::fd::AsRawFd;

use super::socket::MessageFlags;

/// Header lists of `sendmmsg` and `recvmmsg`, allocated once.
pub struct DatagramBatch {
    headers: Vec<libc::mmsghdr>,
    io_vectors: Vec<libc::iovec>,
}

impl DatagramBatch {
    /// Allocates lists for up to `count` datagrams.
    #[must_use]
    pub fn new(count: usize) -> Self {
        // SAFETY: both structures are pointers and integers; all zeros is an empty one.
        let (header, io_vector) = unsafe { (mem::zeroed(), mem::zeroed()) };
        Self {
            headers: vec![header; count],
            io_vectors: vec![io_vector; count],
        }
    }

    /// Points the lists at slices of `stride` bytes from `start` on; returns the number of slices.
    fn set_slices(&mut self, start: *mut u8, length: usize, stride: usize) -> usize {
        let count = self.headers.len().min(length / stride.max(1));
        let lists = self.headers.iter_mut().zip(&mut self.io_vectors);
        for (index, (header, io_vector)) in lists.take(count).enumerate() {
            // Within the buffer: `number * stride + stride <= length`.
            io_vector.iov_base = start.wrapping_add(index * stride).cast();
            io_vector.iov_len = stride;
            header.msg_hdr.msg_iov = io_vector;
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
        flags: MessageFlags,
    ) -> io::Result<usize> {
        let count = self.set_slices(payload.as_ptr().cast_mut(), payload.len(), size);
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

    /// Receives datagrams into slices of `stride` bytes of `buffer`; returns their number. A
    /// blocking call waits for the first datagram only.
    ///
    /// # Errors
    /// Errors of `recvmmsg` when no datagram was received.
    #[inline]
    pub fn receive(
        &mut self,
        socket: &impl AsRawFd,
        buffer: &mut [u8],
        stride: usize,
        flags: MessageFlags,
    ) -> io::Result<usize> {
        let count = self.set_slices(buffer.as_mut_ptr(), buffer.len(), stride);
        // SAFETY: `count` headers refer to one part each, and these to `buffer`, which is writable;
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
    pub fn length(&self, index: usize) -> usize {
        self.headers[index].msg_len as usize
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn datagrams_keep_their_borders() {
        let local = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = UdpSocket::bind("127.0.0.1:0").unwrap();
        local.connect(remote.local_addr().unwrap()).unwrap();
        remote.connect(local.local_addr().unwrap()).unwrap();
        let mut batch = DatagramBatch::new(8);
        let payload: Vec<u8> = (0..35).collect();
        // Three full datagrams; the rest of five bytes is not sent.
        assert_eq!(
            batch
                .send(&local, &payload, 10, MessageFlags::NONE)
                .unwrap(),
            3
        );
        assert_eq!(local.send(b"short").unwrap(), 5);
        let mut buffer = [0; 64];
        let mut datagrams = Vec::new();
        while datagrams.len() < 4 {
            let count = batch
                .receive(&remote, &mut buffer, 16, MessageFlags::NONE)
                .unwrap();
            for index in 0..count {
                let start = index * 16;
                datagrams.push(buffer[start..start + batch.length(index)].to_vec());
            }
        }
        let expected: Vec<Vec<u8>> = payload[..30].chunks(10).map(<[u8]>::to_vec).collect();
        assert_eq!(datagrams[..3], expected);
        assert_eq!(datagrams[3], b"short");
        let empty = batch.receive(&remote, &mut buffer, 16, MessageFlags::DONT_WAIT);
        assert_eq!(empty.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // More payload than list entries: the lists are the limit.
        assert_eq!(
            batch.send(&local, &[0; 64], 2, MessageFlags::NONE).unwrap(),
            8
        );
    }
}
