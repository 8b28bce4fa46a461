//! Packet socket, and the mapping of its rings.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::net::{SendFlags, send};

use crate::interface_ioctl::LinkAttributes;

/// Packet socket for frames with their Ethernet header.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Opens a socket that is not bound yet, so that it gets no frames of other interfaces.
    pub fn open() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            // SAFETY: a new descriptor without another owner.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
        })
    }

    /// Sets an option to an integer.
    pub fn set_int(&self, level: i32, option: i32, value: i32) -> io::Result<()> {
        self.set_option(level, option, &value)
    }

    /// Sets an option to a structure without pointers or significant padding.
    pub fn set_option<T: Copy>(&self, level: i32, option: i32, value: &T) -> io::Result<()> {
        // SAFETY: `value` is readable for the given size.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                option,
                ptr::from_ref(value).cast(),
                mem::size_of::<T>() as libc::socklen_t,
            )
        };
        check_result(result)
    }

    /// Sets a packet option (`SOL_PACKET`) to an integer.
    pub fn set_packet_option(&self, option: i32, value: i32) -> io::Result<()> {
        self.set_int(libc::SOL_PACKET, option, value)
    }

    /// Enables or disables promiscuous mode of the interface; the kernel disables it with the
    /// socket.
    pub fn set_promiscuous(&self, interface: &LinkAttributes, on: bool) -> io::Result<()> {
        let membership = libc::packet_mreq {
            mr_ifindex: interface.index as libc::c_int,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        let option = match on {
            true => libc::PACKET_ADD_MEMBERSHIP,
            false => libc::PACKET_DROP_MEMBERSHIP,
        };
        self.set_option(libc::SOL_PACKET, option, &membership)
    }

    /// Binds to an interface: for all its frames, or to send only.
    pub fn bind(&self, interface: &LinkAttributes, receive: bool) -> io::Result<()> {
        let protocol = if receive { libc::ETH_P_ALL as u16 } else { 0 };
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol.to_be(),
            sll_ifindex: interface.index as libc::c_int,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: `address` is readable for the given size.
        let result = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                ptr::from_ref(&address).cast(),
                mem::size_of_val(&address) as libc::socklen_t,
            )
        };
        check_result(result)
    }

    /// Frames dropped since the last call, because the socket's buffer or ring was full.
    pub fn take_drops(&self) -> io::Result<u64> {
        // First two words of both forms of the reply: frames (including dropped ones), dropped
        // frames.
        let mut reply = [0u32; 3];
        let mut size = mem::size_of_val(&reply) as libc::socklen_t;
        // SAFETY: `reply` is writable for the given size.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                reply.as_mut_ptr().cast(),
                &raw mut size,
            )
        };
        check_result(result)?;
        Ok(u64::from(reply[1]))
    }

    /// Error since the last call (`SO_ERROR`), for example that the interface went down or was
    /// removed.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let mut error: libc::c_int = 0;
        let mut size = mem::size_of_val(&error) as libc::socklen_t;
        // SAFETY: `error` is writable for the given size.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ERROR,
                ptr::from_mut(&mut error).cast(),
                &raw mut size,
            )
        };
        check_result(result)?;
        Ok((error != 0).then(|| io::Error::from_raw_os_error(error)))
    }

    /// Distributes an interface's frames over the sockets of a fanout group, by flow. `group` is
    /// the value that an earlier socket of the group got; none creates a group.
    pub fn join_fanout(&self, group: Option<u16>) -> io::Result<u16> {
        let flags = libc::PACKET_FANOUT_HASH
            | if group.is_none() {
                libc::PACKET_FANOUT_FLAG_UNIQUEID
            } else {
                0
            };
        let argument = u32::from(group.unwrap_or(0)) | flags << 16;
        self.set_option(libc::SOL_PACKET, libc::PACKET_FANOUT, &argument)?;
        let mut reply = 0u32;
        let mut size = mem::size_of_val(&reply) as libc::socklen_t;
        // SAFETY: `reply` is writable for the given size.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_FANOUT,
                ptr::from_mut(&mut reply).cast(),
                &raw mut size,
            )
        };
        check_result(result)?;
        Ok(reply as u16)
    }

    /// Makes the kernel send the frames in the ring.
    pub fn kick(&self) -> io::Result<()> {
        send(&self.fd, &[], SendFlags::DONTWAIT)?;
        Ok(())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

fn check_result(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Ring shared with the kernel.
pub struct RingMap {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping that no thread owns; each ring has one owner.
unsafe impl Send for RingMap {}

impl RingMap {
    /// Maps the ring of a socket.
    pub fn new(socket: &PacketSocket, bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address chosen by the kernel.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                socket.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Self { base, bytes })
    }

    /// Pointer to a structure in the ring.
    pub fn at<T>(&self, offset: usize) -> *mut T {
        let end = offset.checked_add(mem::size_of::<T>());
        assert!(end.is_some_and(|end| end <= self.bytes), "outside the ring");
        // SAFETY: just checked to be inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }.cast()
    }

    /// Bytes in the ring, to read.
    ///
    /// # Safety
    /// The kernel does not write them meanwhile.
    pub unsafe fn bytes(&self, offset: usize, count: usize) -> &[u8] {
        let end = offset.checked_add(count);
        assert!(end.is_some_and(|end| end <= self.bytes), "outside the ring");
        // SAFETY: just checked to be inside the mapping.
        let start = unsafe { self.base.as_ptr().add(offset) };
        // SAFETY: mapped, and the caller excludes writers.
        unsafe { std::slice::from_raw_parts(start, count) }
    }

    /// Bytes in the ring, to write.
    ///
    /// # Safety
    /// The kernel neither reads nor writes them meanwhile.
    pub unsafe fn bytes_mut(&mut self, offset: usize, count: usize) -> &mut [u8] {
        let end = offset.checked_add(count);
        assert!(end.is_some_and(|end| end <= self.bytes), "outside the ring");
        // SAFETY: just checked to be inside the mapping.
        let start = unsafe { self.base.as_ptr().add(offset) };
        // SAFETY: mapped, and the caller excludes the kernel.
        unsafe { std::slice::from_raw_parts_mut(start, count) }
    }
}

impl Drop for RingMap {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; pointers into it do not outlive `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
