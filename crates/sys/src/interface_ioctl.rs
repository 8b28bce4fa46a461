//! Network interface ioctls: reads and changes attributes by `struct ifreq` (netdevice(7)).
//!
//! All of them apply to the network namespace of the socket, that is of the thread that opened it.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Interface name as the kernel expects it, padded with zeros (linux/if.h: `IFNAMSIZ` 16).
pub fn name_bytes(name: &str) -> io::Result<[libc::c_char; libc::IFNAMSIZ]> {
    let mut bytes = [0; libc::IFNAMSIZ];
    if name.is_empty() || name.len() >= bytes.len() || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(bytes)
}

/// An `ifreq` with the name `name`, otherwise zero.
pub fn new_ifreq(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: an ifreq is plain data; all zeros is a valid one.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name = name_bytes(name)?;
    Ok(request)
}

/// Opens a socket for ioctls.
pub fn ioctl_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls ioctl(2) with an `ifreq`.
pub fn ioctl(socket: &OwnedFd, code: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: all requests used here read or write an ifreq, which is valid and writable.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), code, std::ptr::from_mut(request)) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Attributes of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAttributes {
    pub index: u32,
    pub mtu: u32,
    pub address: Option<[u8; 6]>,
    pub up: bool,
    pub loopback: bool,
}

/// Reads the attributes of an interface; `ENODEV` if there is none of that name.
pub fn read_attributes(name: &str) -> io::Result<LinkAttributes> {
    let socket = ioctl_socket()?;
    let mut reply = new_ifreq(name)?;
    ioctl(&socket, libc::SIOCGIFINDEX as libc::Ioctl, &mut reply)?;
    // SAFETY: the call above filled this member of the union.
    let index = unsafe { reply.ifr_ifru.ifru_ifindex };
    ioctl(&socket, libc::SIOCGIFMTU as libc::Ioctl, &mut reply)?;
    // SAFETY: as above.
    let mtu = unsafe { reply.ifr_ifru.ifru_mtu };
    ioctl(&socket, libc::SIOCGIFFLAGS as libc::Ioctl, &mut reply)?;
    // SAFETY: as above.
    let flags = libc::c_int::from(unsafe { reply.ifr_ifru.ifru_flags });
    ioctl(&socket, libc::SIOCGIFHWADDR as libc::Ioctl, &mut reply)?;
    // SAFETY: as above.
    let hardware = unsafe { reply.ifr_ifru.ifru_hwaddr };
    let ethernet = hardware.sa_family == libc::ARPHRD_ETHER;
    let address = std::array::from_fn(|at| hardware.sa_data[at] as u8);
    Ok(LinkAttributes {
        index: u32::try_from(index).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?,
        mtu: u32::try_from(mtu).unwrap_or(0),
        address: ethernet.then_some(address),
        up: flags & libc::IFF_UP != 0,
        loopback: flags & libc::IFF_LOOPBACK != 0,
    })
}

/// Attributes of an interface that a port may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceConfig {
    pub mtu: u32,
    pub up: bool,
    /// First IPv4 address and its netmask.
    pub address: Option<(Ipv4Addr, Ipv4Addr)>,
}

impl InterfaceConfig {
    /// Reads them for an interface in the socket's network namespace.
    pub fn read(socket: &OwnedFd, name: &str) -> io::Result<Self> {
        let mut reply = new_ifreq(name)?;
        ioctl(socket, libc::SIOCGIFMTU as libc::Ioctl, &mut reply)?;
        // SAFETY: the call above filled this member of the union.
        let mtu = unsafe { reply.ifr_ifru.ifru_mtu };
        ioctl(socket, libc::SIOCGIFFLAGS as libc::Ioctl, &mut reply)?;
        // SAFETY: as above.
        let flags = libc::c_int::from(unsafe { reply.ifr_ifru.ifru_flags });
        let mut read_ipv4 = |code: libc::Ioctl| {
            ioctl(socket, code, &mut reply)?;
            // SAFETY: as above.
            let address = unsafe { reply.ifr_ifru.ifru_addr };
            // An Internet address as a plain `sockaddr`: port (none), then the address in network
            // order.
            let byte = |at: usize| address.sa_data[at + 2] as u8;
            io::Result::Ok(Ipv4Addr::new(byte(0), byte(1), byte(2), byte(3)))
        };
        let address = read_ipv4(libc::SIOCGIFADDR as libc::Ioctl);
        let mask = read_ipv4(libc::SIOCGIFNETMASK as libc::Ioctl);
        Ok(Self {
            mtu: u32::try_from(mtu).unwrap_or(0),
            up: flags & libc::IFF_UP != 0,
            // An interface without an address returns EADDRNOTAVAIL.
            address: address.ok().zip(mask.ok()),
        })
    }

    /// Writes those that differ from the current ones.
    pub fn write(self, socket: &OwnedFd, name: &str) -> io::Result<()> {
        let now = Self::read(socket, name)?;
        if now.address != self.address {
            // Without an address there is no mask to set.
            let none = (Ipv4Addr::UNSPECIFIED, None);
            let (address, mask) = self.address.map_or(none, |(own, mask)| (own, Some(mask)));
            set_ipv4(socket, name, libc::SIOCSIFADDR as libc::Ioctl, address)?;
            if let Some(mask) = mask {
                set_ipv4(socket, name, libc::SIOCSIFNETMASK as libc::Ioctl, mask)?;
            }
        }
        let mut change = new_ifreq(name)?;
        if now.mtu != self.mtu {
            change.ifr_ifru.ifru_mtu = libc::c_int::try_from(self.mtu).unwrap_or(libc::c_int::MAX);
            ioctl(socket, libc::SIOCSIFMTU as libc::Ioctl, &mut change)?;
        }
        if now.up != self.up {
            ioctl(socket, libc::SIOCGIFFLAGS as libc::Ioctl, &mut change)?;
            // SAFETY: the call above filled this member of the union.
            let flags = unsafe { change.ifr_ifru.ifru_flags };
            let up = libc::IFF_UP as libc::c_short;
            change.ifr_ifru.ifru_flags = if self.up { flags | up } else { flags & !up };
            ioctl(socket, libc::SIOCSIFFLAGS as libc::Ioctl, &mut change)?;
        }
        Ok(())
    }
}

/// Sets the IPv4 address of an interface, or its netmask.
pub fn set_ipv4(
    socket: &OwnedFd,
    name: &str,
    code: libc::Ioctl,
    address: Ipv4Addr,
) -> io::Result<()> {
    let mut data = [0; 14];
    for (to, from) in data[2..6].iter_mut().zip(address.octets()) {
        *to = from as libc::c_char;
    }
    let mut change = new_ifreq(name)?;
    change.ifr_ifru.ifru_addr = libc::sockaddr {
        sa_family: libc::AF_INET as libc::sa_family_t,
        sa_data: data,
    };
    ioctl(socket, code, &mut change)
}

/// Sets an interface up with this MTU.
pub fn set_up(name: &str, mtu: u16) -> io::Result<()> {
    let socket = ioctl_socket()?;
    let mut change = new_ifreq(name)?;
    change.ifr_ifru.ifru_mtu = libc::c_int::from(mtu);
    ioctl(&socket, libc::SIOCSIFMTU as libc::Ioctl, &mut change)?;
    ioctl(&socket, libc::SIOCGIFFLAGS as libc::Ioctl, &mut change)?;
    // SAFETY: the call above filled this member of the union.
    let flags = unsafe { change.ifr_ifru.ifru_flags };
    change.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    ioctl(&socket, libc::SIOCSIFFLAGS as libc::Ioctl, &mut change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_namespace_has_a_loopback() {
        let lo = read_attributes("lo").unwrap();
        assert!(lo.loopback && lo.index > 0 && lo.address.is_none());
        for name in ["", "no-such-device", "a-name-that-is-far-too-long"] {
            let error = read_attributes(name).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{name}");
        }
    }
}
