//! Kernel time stamps of datagrams (SO_TIMESTAMPING), tried on loopback.

use std::io;
use std::mem;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Which software stamps loopback gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// Of a datagram on its way out, through the error queue.
    pub transmit: bool,
    /// Of a datagram that arrived.
    pub receive: bool,
}

/// Sends datagrams to itself over 127.0.0.1 and looks for the kernel's stamps.
///
/// # Errors
/// When loopback does not carry the datagrams or the kernel refuses the option.
pub fn software_on_loopback() -> io::Result<Stamps> {
    // Stamping of arrivals starts a little after the first socket asks for it, so the first
    // datagrams may come without.
    const TRIES: u32 = 20;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(socket.local_addr()?)?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    enable(&socket)?;
    let mut stamps = Stamps::default();
    for _ in 0..TRIES {
        socket.send(b"stamp")?;
        stamps.receive |= receive(&socket, 0)?;
        stamps.transmit |= receive(&socket, libc::MSG_ERRQUEUE).unwrap_or(false);
        if stamps.receive && stamps.transmit {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(stamps)
}

fn enable(socket: &UdpSocket) -> io::Result<()> {
    let flags = libc::SOF_TIMESTAMPING_SOFTWARE
        | libc::SOF_TIMESTAMPING_RX_SOFTWARE
        | libc::SOF_TIMESTAMPING_TX_SOFTWARE;
    // SAFETY: the option is one unsigned int, and its size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            (&raw const flags).cast(),
            mem::size_of_val(&flags) as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Receives one datagram; returns whether it came with a software stamp.
fn receive(socket: &UdpSocket, flags: libc::c_int) -> io::Result<bool> {
    let mut payload = [0_u8; 256];
    // Words, so that the headers in it are aligned.
    let mut control = [0_u64; 64];
    let mut part = libc::iovec {
        iov_base: payload.as_mut_ptr().cast(),
        iov_len: payload.len(),
    };
    // SAFETY: msghdr is integers and pointers; all zeros is valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of_val(&control) as _;
    // SAFETY: every pointer of the message is to a live buffer of the length beside it.
    let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: recvmsg succeeded, so control and its length are valid.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return null or a whole header in the buffer.
        let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
        if level == libc::SOL_SOCKET && kind == libc::SCM_TIMESTAMPING {
            // SAFETY: the data of this kind are three timespecs, the software stamp first.
            let stamp = unsafe {
                libc::CMSG_DATA(header)
                    .cast::<libc::timespec>()
                    .read_unaligned()
            };
            if stamp.tv_sec != 0 || stamp.tv_nsec != 0 {
                return Ok(true);
            }
        }
        // SAFETY: `header` is within the control buffer of this message.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_stamps_both_ways() {
        match software_on_loopback() {
            Ok(stamps) => println!("{stamps:?}"),
            Err(error) => println!("needs loopback and SO_TIMESTAMPING: {error}"),
        }
    }
}
