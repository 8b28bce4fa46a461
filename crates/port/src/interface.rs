//! Which interface a port may take.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::IpAddr;

use crate::error::PortError;
use crate::sys::interface::{self, Facts};
use crate::url::PortUrl;

/// Looks up the interface that `url` names, and refuses one that is in use unless the URL says `force`.
/// `takes_away` is whether the kernel's own stack gets nothing any more of what the port receives.
///
/// # Errors
/// [`PortError::NoInterface`], [`PortError::InterfaceDown`], [`PortError::InterfaceInUse`].
pub(crate) fn take(url: &PortUrl, takes_away: bool) -> Result<Facts, PortError> {
    let name = url.name();
    let facts = interface::facts(name).map_err(|source| match source.raw_os_error() {
        Some(libc::ENODEV) => PortError::NoInterface {
            interface: name.to_owned(),
        },
        _ => PortError::Kernel {
            port: url.short(),
            action: "say what the interface is",
            source,
        },
    })?;
    if !facts.up {
        return Err(PortError::InterfaceDown {
            interface: name.to_owned(),
        });
    }
    // An AF_XDP socket takes all frames of its queue away; a packet socket gets a copy.
    let own = (facts.loopback && takes_away).then_some("this host's connections to itself");
    if !url.common().force
        && let Some(what) = own.or_else(|| in_use(name))
    {
        return Err(PortError::InterfaceInUse {
            interface: name.to_owned(),
            what,
        });
    }
    Ok(facts)
}

/// What an interface carries that a port on it may cut off: the default route, or this login.
#[must_use]
pub fn in_use(interface: &str) -> Option<&'static str> {
    // One's own namespace: /proc/net is that of the thread's process, which may be another's.
    let read = |file: &str| fs::read_to_string(format!("/proc/thread-self/net/{file}"));
    let (v4, v6) = (read("route").ok()?, read("ipv6_route").unwrap_or_default());
    if default_routes(&v4, &v6).any(|name| name == interface) {
        return Some("the default route");
    }
    let login = login_address(std::env::var_os("SSH_CONNECTION").as_deref())?;
    let route = match login {
        IpAddr::V4(address) => route_v4(&v4, u32::from(address)),
        IpAddr::V6(address) => route_v6(&v6, u128::from(address)),
    };
    (route? == interface).then_some("the login in use")
}

/// The client's end of the login (sshd sets `SSH_CONNECTION`: client, its port, server, its port).
fn login_address(connection: Option<&OsStr>) -> Option<IpAddr> {
    let text = connection?.to_str()?;
    let address = text.split(' ').next()?;
    // A zone (`fe80::1%eth0`) is no part of an IpAddr.
    address.split('%').next()?.parse().ok()
}

/// Interfaces of default routes in both files (proc(5): `/proc/net/route`, `/proc/net/ipv6_route`).
fn default_routes<'a>(v4: &'a str, v6: &'a str) -> impl Iterator<Item = &'a str> {
    let v4 = lines_v4(v4).filter(|route| route.mask == 0);
    let v6 = lines_v6(v6).filter(|route| route.length == 0);
    v4.map(|route| route.interface)
        .chain(v6.map(|route| route.interface))
}

struct RouteV4<'a> {
    interface: &'a str,
    destination: u32,
    mask: u32,
}

/// Addresses in this file are written as the machine holds words that lie in memory in network order.
fn lines_v4(text: &str) -> impl Iterator<Item = RouteV4<'_>> {
    text.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace();
        let interface = fields.next()?;
        let mut word = |skip| {
            let text = fields.nth(skip)?;
            u32::from_str_radix(text, 16).ok().map(u32::from_be)
        };
        let destination = word(0)?;
        let mask = word(5)?;
        Some(RouteV4 {
            interface,
            destination,
            mask,
        })
    })
}

fn route_v4(text: &str, address: u32) -> Option<&str> {
    lines_v4(text)
        .filter(|route| address & route.mask == route.destination)
        .max_by_key(|route| route.mask)
        .map(|route| route.interface)
}

struct RouteV6<'a> {
    interface: &'a str,
    destination: u128,
    length: u32,
}

fn lines_v6(text: &str) -> impl Iterator<Item = RouteV6<'_>> {
    /// `RTF_REJECT` of linux/route.h: an unreachable route is no way out (the kernel lists one on `lo`).
    const REJECT: u32 = 0x0200;
    text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let flags = u32::from_str_radix(fields.get(8)?, 16).ok()?;
        if flags & REJECT != 0 {
            return None;
        }
        Some(RouteV6 {
            interface: fields.get(9)?,
            destination: u128::from_str_radix(fields.first()?, 16).ok()?,
            length: u32::from_str_radix(fields.get(1)?, 16).ok()?,
        })
    })
}

fn route_v6(text: &str, address: u128) -> Option<&str> {
    lines_v6(text)
        .filter(|route| {
            let mask = u128::MAX.checked_shl(128 - route.length).unwrap_or(0);
            address & mask == route.destination
        })
        .max_by_key(|route| route.length)
        .map(|route| route.interface)
}

/// What a refusal of the kernel to open something means.
pub(crate) fn refused(
    url: &PortUrl,
    privilege: &'static str,
    action: &'static str,
    source: io::Error,
) -> PortError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => PortError::NotPrivileged {
            port: url.short(),
            privilege,
            source,
        },
        _ => PortError::Kernel {
            port: url.short(),
            action,
            source,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file as a machine with `eth0` (default, 10.0.0.0/24) and `eth1` (10.1.0.0/16) shows it.
    fn v4() -> String {
        let word = |address: u32| format!("{:08X}", address.to_be());
        let line = |name: &str, to: u32, mask: u32| {
            format!(
                "{name}\t{}\t{}\t0003\t0\t0\t0\t{}\t0\t0\t0\n",
                word(to),
                word(0),
                word(mask)
            )
        };
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
            .to_owned()
            + &line("eth0", 0, 0)
            + &line("eth0", 0x0a00_0000, 0xffff_ff00)
            + &line("eth1", 0x0a01_0000, 0xffff_0000)
    }

    const V6: &str = "\
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 1 0 00000003 eth2
20010db8000000000000000000000000 20 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 1 0 00000001 eth3
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 1 0 00200200       lo
";

    #[test]
    fn default_routes_are_found() {
        let v4 = v4();
        let names: Vec<&str> = default_routes(&v4, V6).collect();
        assert_eq!(names, ["eth0", "eth2"]);
    }

    #[test]
    fn the_longest_prefix_wins() {
        let v4 = v4();
        for (address, want) in [
            (0x0a01_0203, "eth1"),
            (0x0a00_0001, "eth0"),
            (0x0808_0808, "eth0"),
        ] {
            assert_eq!(route_v4(&v4, address), Some(want), "{address:x}");
        }
        assert_eq!(route_v6(V6, 0x2001_0db8_u128 << 96 | 1), Some("eth3"));
        assert_eq!(route_v6(V6, 1), Some("eth2"));
    }

    #[test]
    fn a_login_is_read_from_its_variable() {
        let address = |text: &str| login_address(Some(OsStr::new(text)));
        assert_eq!(
            address("10.1.2.3 50022 10.1.0.1 22"),
            Some("10.1.2.3".parse().unwrap())
        );
        assert_eq!(
            address("fe80::1%eth0 50022 fe80::2 22"),
            Some("fe80::1".parse().unwrap())
        );
        assert_eq!(address(""), None);
        assert_eq!(login_address(None), None);
    }
}
