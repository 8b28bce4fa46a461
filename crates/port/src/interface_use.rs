//! Check that a port does not take an interface that the host needs.

use std::fs;
use std::io;
use std::iter;
use std::net::IpAddr;
use std::path::Path;

use crate::capabilities::Interface;
use crate::error::PortError;
use crate::port_url::PortUrl;
use crate::sys::interface_ioctl::{self, Facts};

/// Looks up the interface that `url` names; rejects one that is in use unless the URL has `force`.
/// With `takes_away`, the kernel's own stack no longer gets the frames that the port receives.
///
/// # Errors
/// [`PortError::NoInterface`], [`PortError::InterfaceDown`], [`PortError::InterfaceInUse`].
pub(crate) fn take(url: &PortUrl, takes_away: bool) -> Result<Facts, PortError> {
    let name = url.name();
    let facts = interface_ioctl::facts(name).map_err(|source| match source.raw_os_error() {
        Some(libc::ENODEV) => PortError::NoInterface {
            interface: name.to_owned(),
        },
        _ => PortError::Kernel {
            port: url.short(),
            action: "describe the interface",
            source,
        },
    })?;
    if !facts.up {
        return Err(PortError::InterfaceDown {
            interface: name.to_owned(),
        });
    }
    // An AF_XDP socket takes all frames of its queue; a packet socket gets copies.
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

/// Returns true if the interface has a carrier; none if there is no such interface or the driver
/// does not report it.
#[must_use]
pub fn has_carrier(interface: &str) -> Option<bool> {
    Interface::named(interface)?.has_carrier()
}

/// Traffic of the host that a port on this interface may cut off: the default route or the current
/// SSH session. Upper devices (bridge, bond, VLAN) count for the devices below them.
#[must_use]
pub fn in_use(interface: &str) -> Option<&'static str> {
    // `thread-self`: /proc/net shows the namespace of the main thread, which may be another one.
    let read = |file: &str| fs::read_to_string(format!("/proc/thread-self/net/{file}"));
    let (v4, v6) = (read("route").ok()?, read("ipv6_route").unwrap_or_default());
    let own = std::env::var("SSH_CONNECTION");
    let mut logins: Vec<Login> = own.iter().filter_map(|own| login(own)).collect();
    // The process id as /proc numbers it: /proc may belong to an outer PID namespace.
    let process = fs::read_link("/proc/self").ok();
    if let Some(process) = process.and_then(|process| process.to_str()?.parse().ok()) {
        logins.extend(logins_around(Path::new("/proc"), process));
    }
    carried(interface, (&v4, &v6), &logins, Path::new("/sys/class/net"))
}

fn carried(
    interface: &str,
    (v4, v6): (&str, &str),
    logins: &[Login],
    all_known: &Path,
) -> Option<&'static str> {
    let stands_on = |name: &str| {
        let parts = with_lower(all_known, name);
        parts.iter().any(|part| part == interface)
    };
    if default_routes(v4, v6).any(stands_on) {
        return Some("the default route");
    }
    let way = |login: &Login| match (&login.zone, login.client) {
        (Some(zone), _) => stands_on(zone),
        (None, IpAddr::V4(address)) => route_v4(v4, u32::from(address)).is_some_and(stands_on),
        (None, IpAddr::V6(address)) => route_v6(v6, u128::from(address)).is_some_and(stands_on),
    };
    logins.iter().any(way).then_some("the SSH session in use")
}

/// An interface and all devices below it: ports of a bond or bridge, the device below a VLAN.
/// `all_known` is the directory with an entry for each interface (`/sys/class/net`).
#[must_use]
pub fn with_lower(all_known: &Path, name: &str) -> Vec<String> {
    let mut all = vec![name.to_owned()];
    let mut next = 0;
    while let Some(upper) = all.get(next) {
        let entries = fs::read_dir(all_known.join(upper));
        let names = entries.into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let lower: Vec<String> = names
            .filter_map(|name| name.strip_prefix("lower_").map(str::to_owned))
            .filter(|name| !all.contains(name))
            .collect();
        all.extend(lower);
        next += 1;
    }
    all
}

/// SSH session that a process was started in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Login {
    client: IpAddr,
    /// Interface of a link-local address.
    zone: Option<String>,
}

/// Maximum number of ancestors examined: a longer chain can only be a loop.
const MOST_ANCESTORS: usize = 64;

/// SSH sessions of a process and its ancestors, as far as `proc` permits reading their environment.
/// `sudo` removes the variable from its children, but has it itself.
fn logins_around(proc: &Path, process: u32) -> Vec<Login> {
    let parent = |id: &u32| {
        let status = fs::read_to_string(proc.join(id.to_string()).join("status")).ok()?;
        let parent = (status.lines()).find_map(|line| line.strip_prefix("PPid:"))?;
        parent
            .trim()
            .parse()
            .ok()
            .filter(|&parent: &u32| parent > 0)
    };
    let mut logins = Vec::new();
    for id in iter::successors(Some(process), parent).take(MOST_ANCESTORS) {
        let variables = fs::read(proc.join(id.to_string()).join("environ")).unwrap_or_default();
        let mut variables = variables.split(|&byte| byte == 0);
        let said = variables.find_map(|variable| variable.strip_prefix(b"SSH_CONNECTION="));
        let login = said.and_then(|said| login(std::str::from_utf8(said).ok()?));
        logins.extend(login.filter(|login| !logins.contains(login)));
    }
    logins
}

/// Parses the client's address (sshd sets `SSH_CONNECTION`: client, its port, server, its port).
fn login(connection: &str) -> Option<Login> {
    let address = connection.split(' ').next()?;
    // The zone (`fe80::1%eth0`) is not part of an IpAddr.
    let (client, zone) = match address.split_once('%') {
        Some((client, zone)) => (client, Some(zone.to_owned())),
        None => (address, None),
    };
    Some(Login {
        client: client.parse().ok()?,
        zone,
    })
}

/// Interfaces of the default routes in both files (proc(5): `/proc/net/route`,
/// `/proc/net/ipv6_route`).
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

/// Parses routes. Addresses in this file are network-order words printed as native integers.
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
    /// `RTF_REJECT` of linux/route.h: an unreachable route (the kernel lists one on `lo`).
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

/// Converts an error of the kernel when opening something into one of a port.
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

    /// Route table of a machine with `eth0` (default, 10.0.0.0/24) and `eth1` (10.1.0.0/16).
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

    fn login_of(client: &str, zone: Option<&str>) -> Login {
        Login {
            client: client.parse().unwrap(),
            zone: zone.map(str::to_owned),
        }
    }

    #[test]
    fn a_login_is_read_from_its_variable() {
        let v4 = login_of("10.1.2.3", None);
        assert_eq!(login("10.1.2.3 50022 10.1.0.1 22"), Some(v4));
        let v6 = login_of("fe80::1", Some("eth0"));
        assert_eq!(login("fe80::1%eth0 50022 fe80::2 22"), Some(v6));
        assert_eq!(login(""), None);
    }

    /// A process under `sudo` has no such variable, but the process that started `sudo` has.
    #[test]
    fn a_login_is_that_of_any_ancestor() {
        let place = tempfile::tempdir().unwrap();
        let process = |id: u32, parent: u32, variables: Option<&str>| {
            let folder = place.path().join(id.to_string());
            fs::create_dir(&folder).unwrap();
            let status = format!("Name:\tx\nTgid:\t{id}\nPPid:\t{parent}\nUid:\t0\n");
            fs::write(folder.join("status"), status).unwrap();
            // The environment of another user's process cannot be read.
            if let Some(variables) = variables {
                fs::write(folder.join("environ"), variables).unwrap();
            }
        };
        process(1, 0, None);
        process(
            7,
            1,
            Some("A=1\0SSH_CONNECTION=10.1.2.3 50022 10.1.0.1 22\0"),
        );
        process(8, 7, None);
        process(
            9,
            8,
            Some("SUDO_USER=me\0NOT_SSH_CONNECTION=10.9.9.9 1 2 3\0"),
        );
        process(
            10,
            8,
            Some("SSH_CONNECTION=fe80::1%eth1 50022 fe80::2 22\0"),
        );
        let of = |id| logins_around(place.path(), id);
        let (outer, inner) = (
            login_of("10.1.2.3", None),
            login_of("fe80::1", Some("eth1")),
        );
        assert_eq!(of(9), std::slice::from_ref(&outer));
        assert_eq!(of(10), [inner, outer]);
        assert_eq!(of(1), []);
        assert_eq!(of(99), []);
    }

    /// Interfaces of a machine, each with its lower devices.
    fn interfaces(all: &[(&str, &[&str])]) -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        for (name, lower) in all {
            let folder = place.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("mtu"), "1500").unwrap();
            for below in *lower {
                let link = folder.join(format!("lower_{below}"));
                std::os::unix::fs::symlink(place.path().join(below), link).unwrap();
            }
        }
        place
    }

    #[test]
    fn what_an_interface_stands_on_is_found_down_to_the_wire() {
        // A VLAN on a bridge of a bond and another port; the bond has two ports.
        let place = interfaces(&[
            ("br0.5", &["br0"]),
            ("br0", &["bond0", "eth2"]),
            ("bond0", &["eth0", "eth1"]),
            ("eth0", &[]),
            ("eth3", &[]),
        ]);
        let of = |name: &str| {
            let mut found = with_lower(place.path(), name);
            found.sort();
            found
        };
        assert_eq!(
            of("br0.5"),
            ["bond0", "br0", "br0.5", "eth0", "eth1", "eth2"]
        );
        assert_eq!(of("eth0"), ["eth0"]);
        assert_eq!(of("nosuch"), ["nosuch"]);
    }

    /// A port takes frames away from all devices above its interface.
    #[test]
    fn what_carries_a_route_carries_it_for_what_stands_on_it() {
        // `eth0` is a bridge here, and `eth1` a VLAN.
        let place = interfaces(&[
            ("eth0", &["wire0"]),
            ("eth1", &["wire1"]),
            ("eth2", &["wire2"]),
        ]);
        let (v4, login) = (v4(), login_of("10.1.2.3", None));
        let (route, by_login) = (Some("the default route"), Some("the SSH session in use"));
        let near = login_of("fe80::1", Some("eth1"));
        for (interface, logins, want) in [
            ("wire0", &[][..], route),
            ("eth0", &[], route),
            ("wire2", &[], route),
            ("wire1", &[], None),
            ("wire1", std::slice::from_ref(&login), by_login),
            ("eth1", std::slice::from_ref(&near), by_login),
            ("wire1", std::slice::from_ref(&near), by_login),
            ("wire3", &[], None),
        ] {
            let found = carried(interface, (&v4, V6), logins, place.path());
            assert_eq!(found, want, "{interface} {logins:?}");
        }
    }
}
