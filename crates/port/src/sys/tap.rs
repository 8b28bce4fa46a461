//! Taps: interfaces whose other end is a file (linux/if_tun.h).

use std::fs::{File, OpenOptions};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use crate::sys::interface::{ask, asking_socket, request};

/// How a tap is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TapOptions {
    /// Every frame has a vnet header, and the kernel may leave checksums and segmentation to us.
    pub vnet: bool,
    /// It has more than one queue.
    pub multi_queue: bool,
}

/// One queue of a tap.
pub(crate) struct Tap {
    pub file: File,
    /// The kernel may hand over UDP datagrams of one size uncut, too (Linux 6.2).
    pub udp_segmentation: bool,
}

/// Makes a tap of this name, or opens another queue of it, in the network namespace of this thread. It is
/// gone when its last file is closed.
pub(crate) fn open(name: &str, options: TapOptions) -> io::Result<Tap> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI;
    if options.vnet {
        flags |= libc::IFF_VNET_HDR;
    }
    if options.multi_queue {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    let mut wanted = request(name)?;
    // The flags are 16 bits wide there; all of these fit.
    wanted.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: this call reads and writes an ifreq, which is valid and writable.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut wanted) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut udp_segmentation = false;
    if options.vnet {
        let usual = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
        let newer = usual | libc::TUN_F_USO4 | libc::TUN_F_USO6;
        udp_segmentation = set_offloads(&file, newer).is_ok();
        if !udp_segmentation {
            set_offloads(&file, usual)?;
        }
    }
    Ok(Tap {
        file,
        udp_segmentation,
    })
}

fn set_offloads(file: &File, offloads: libc::c_uint) -> io::Result<()> {
    // SAFETY: this call takes a number, no pointer.
    let result = unsafe {
        libc::ioctl(
            file.as_raw_fd(),
            libc::TUNSETOFFLOAD,
            libc::c_ulong::from(offloads),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Gives the kernel's end an address.
pub(crate) fn set_address(name: &str, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    let socket = asking_socket()?;
    let steps = [
        (libc::SIOCSIFADDR, address),
        (libc::SIOCSIFNETMASK, Ipv4Addr::from(mask)),
    ];
    for (what, address) in steps {
        let mut change = request(name)?;
        change.ifr_ifru.ifru_addr = internet(address);
        ask(&socket, what as libc::Ioctl, &mut change)?;
    }
    Ok(())
}

/// An Internet address as a plain `sockaddr`: port (none), then the address in network order.
fn internet(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (to, from) in data[2..6].iter_mut().zip(address.octets()) {
        *to = from as libc::c_char;
    }
    libc::sockaddr {
        sa_family: libc::AF_INET as libc::sa_family_t,
        sa_data: data,
    }
}
