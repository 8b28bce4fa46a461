//! Tap devices: interfaces whose other end is a file (linux/if_tun.h).

use std::fs::{File, OpenOptions};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::interface_ioctl::{InterfaceConfig, ioctl_socket, new_ifreq, set_ipv4};
use crate::interface_offloads::{GET_TSO, GET_TX_CHECKSUMS, is_feature_on};

/// Options of a new tap.
#[derive(Clone, Copy, Debug)]
pub struct TapOptions {
    /// Every frame has a vnet header, and the kernel may leave checksums and segmentation to this
    /// process.
    pub vnet: bool,
    /// More than one queue.
    pub multi_queue: bool,
}

/// Queue of a tap.
pub struct TapQueue {
    pub file: File,
    /// The kernel may also deliver unsegmented UDP datagrams of one size (Linux 6.2).
    pub udp_segmentation: bool,
}

/// Creates a tap of this name, or opens another queue of it, in the network namespace of this
/// thread. It is removed when its last file is closed.
pub fn open(name: &str, options: TapOptions) -> io::Result<TapQueue> {
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
    let mut wanted = new_ifreq(name)?;
    // The flags field has 16 bits; all of these fit.
    wanted.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: this call reads and writes an ifreq, which is valid and writable.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut wanted) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut udp_segmentation = false;
    if options.vnet {
        let tso_offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
        let uso_offloads = tso_offloads | libc::TUN_F_USO4 | libc::TUN_F_USO6;
        udp_segmentation = set_offloads(&file, uso_offloads).is_ok();
        if !udp_segmentation {
            set_offloads(&file, tso_offloads)?;
        }
    }
    Ok(TapQueue {
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

/// Sets the IPv4 address of the interface.
pub fn set_address(name: &str, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    let socket = ioctl_socket()?;
    let steps = [
        (libc::SIOCSIFADDR, address),
        (libc::SIOCSIFNETMASK, Ipv4Addr::from(mask)),
    ];
    for (code, address) in steps {
        set_ipv4(&socket, name, code as libc::Ioctl, address)?;
    }
    Ok(())
}

/// State of a persistent tap (`ip tuntap add`) before it was opened; restored on drop.
#[derive(Debug)]
pub struct TapRestore {
    name: String,
    /// Socket of the namespace that the tap is in, so that the drop may happen in any namespace.
    socket: OwnedFd,
    settings: InterfaceConfig,
    /// Offloads of the previous reader, and a file to restore them through; none unless changed.
    offloads: Option<(libc::c_uint, File)>,
}

impl TapRestore {
    /// Records the state before the tap of this name is opened; none if there is no tap.
    pub fn capture(name: &str) -> Option<Self> {
        let socket = ioctl_socket().ok()?;
        Some(Self {
            name: name.to_owned(),
            settings: InterfaceConfig::read(&socket, name).ok()?,
            socket,
            offloads: None,
        })
    }

    /// Reads the offloads, to be restored later.
    pub fn read_offloads(&self) -> libc::c_uint {
        let has = |switch| is_feature_on(&self.socket, &self.name, switch).unwrap_or(false);
        let mut offloads = 0;
        if has(GET_TX_CHECKSUMS) {
            offloads |= libc::TUN_F_CSUM;
        }
        if has(GET_TSO) {
            offloads |= libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
        }
        offloads
    }

    /// Restores these offloads on drop too, through `file`, which was opened afterwards.
    pub fn restore_offloads(&mut self, offloads: libc::c_uint, file: File) {
        self.offloads = Some((offloads, file));
    }
}

impl Drop for TapRestore {
    fn drop(&mut self) {
        if let Some((offloads, file)) = self.offloads.take() {
            let _ = set_offloads(&file, offloads);
        }
        // The interface may have been removed meanwhile; then there is nothing to restore.
        let _ = self.settings.write(&self.socket, &self.name);
    }
}
