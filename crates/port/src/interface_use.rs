//! Check that a port does not take an interface that the host needs.

use std::fs;
use std::io;
use std::iter;
use std::net::IpAddr;
use std::path::Path;

use linerate_sys::interface_ioctl;
use linerate_sys::interface_ioctl::LinkAttributes;

use crate::capabilities::NetInterface;
use crate::error::PortError;
use crate::port_url::PortUrl;

/// Looks up the interface that `url` names; rejects one that is in use unless the URL has `force`.
/// With `bypasses_kernel`, the kernel's own stack no longer gets the frames that the port receives.
///
/// # Errors
/// [`PortError::NoInterface`], [`PortError::InterfaceDown`], [`PortError::InterfaceInUse`].
pub(crate) fn check_usable(
    url: &PortUrl,
    bypasses_kernel: bool,
) -> Result<LinkAttributes, PortError> {
    let name = url.name();
    let attributes =
        interface_ioctl::read_attributes(name).map_err(|source| match source.raw_os_error() {
            Some(libc::ENODEV) => PortError::NoInterface {
                interface: name.to_owned(),
            },
            _ => PortError::Kernel {
                port: url.short_name(),
                action: "describe the interface",
                source,
            },
        })?;
    if !attributes.up {
        return Err(PortError::InterfaceDown {
            interface: name.to_owned(),
        });
    }
    // An AF_XDP socket takes all frames of its queue; a packet socket gets copies.
    let loopback_traffic =
        (attributes.loopback && bypasses_kernel).then_some("this host's loopback traffic");
    if !url.common().force
        && let Some(traffic) = loopback_traffic.or_else(|| interface_use(name))
    {
        return Err(PortError::InterfaceInUse {
            interface: name.to_owned(),
            traffic,
        });
    }
    Ok(attributes)
}

/// Returns true if the interface has a carrier; none if there is no such interface or the driver
/// does not report it.
#[must_use]
pub fn has_carrier(interface: &str) -> Option<bool> {
    NetInterface::from_name(interface)?.has_carrier()
}

/// Traffic of the host that a port on this interface may cut off: the default route or the current
/// SSH session. Upper devices (bridge, bond, VLAN) count for the devices below them.
#[must_use]
pub fn interface_use(interface: &str) -> Option<&'static str> {
    // `thread-self`: /proc/net shows the namespace of the main thread, which may be another one.
    let read = |file: &str| fs::read_to_string(format!("/proc/thread-self/net/{file}"));
    let (v4, v6) = (read("route").ok()?, read("ipv6_route").unwrap_or_default());
    let connection = std::env::var("SSH_CONNECTION");
    let mut sessions: Vec<ActiveSshSession> = connection
        .iter()
        .filter_map(|connection| parse_ssh_connection(connection))
        .collect();
    // The process id as /proc numbers it: /proc may belong to an outer PID namespace.
    let process = fs::read_link("/proc/self").ok();
    if let Some(process) = process.and_then(|process| process.to_str()?.parse().ok()) {
        sessions.extend(ancestor_ssh_sessions(Path::new("/proc"), process));
    }
    find_use(
        interface,
        (&v4, &v6),
        &sessions,
        Path::new("/sys/class/net"),
    )
}

fn find_use(
    interface: &str,
    (v4, v6): (&str, &str),
    sessions: &[ActiveSshSession],
    class_net: &Path,
) -> Option<&'static str> {
    let uses_interface = |name: &str| {
        let devices = with_lower_devices(class_net, name);
        devices.iter().any(|part| part == interface)
    };
    if default_routes(v4, v6).any(uses_interface) {
        return Some("the default route");
    }
    let is_reached_by_interface = |session: &ActiveSshSession| match (&session.zone, session.client)
    {
        (Some(zone), _) => uses_interface(zone),
        (None, IpAddr::V4(address)) => {
            route_interface_v4(v4, u32::from(address)).is_some_and(uses_interface)
        }
        (None, IpAddr::V6(address)) => {
            route_interface_v6(v6, u128::from(address)).is_some_and(uses_interface)
        }
    };
    sessions
        .iter()
        .any(is_reached_by_interface)
        .then_some("the SSH session in use")
}

/// An interface and all devices below it: ports of a bond or bridge, the device below a VLAN.
/// `class_net` is the directory with an entry for each interface (`/sys/class/net`).
#[must_use]
pub fn with_lower_devices(class_net: &Path, name: &str) -> Vec<String> {
    let mut all = vec![name.to_owned()];
    let mut next = 0;
    while let Some(upper) = all.get(next) {
        let entries = fs::read_dir(class_net.join(upper));
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
struct ActiveSshSession {
    client: IpAddr,
    /// Interface of a link-local address.
    zone: Option<String>,
}

/// Maximum number of ancestors examined: a longer chain can only be a loop.
const MAX_ANCESTORS: usize = 64;

/// SSH sessions of a process and its ancestors, as far as `proc` permits reading their environment.
/// `sudo` removes the variable from its children, but has it itself.
fn ancestor_ssh_sessions(proc: &Path, process: u32) -> Vec<ActiveSshSession> {
    let parent = |id: &u32| {
        let status = fs::read_to_string(proc.join(id.to_string()).join("status")).ok()?;
        let parent = (status.lines()).find_map(|line| line.strip_prefix("PPid:"))?;
        parent
            .trim()
            .parse()
            .ok()
            .filter(|&parent: &u32| parent > 0)
    };
    let mut sessions = Vec::new();
    for id in iter::successors(Some(process), parent).take(MAX_ANCESTORS) {
        let variables = fs::read(proc.join(id.to_string()).join("environ")).unwrap_or_default();
        let mut variables = variables.split(|&byte| byte == 0);
        let connection = variables.find_map(|variable| variable.strip_prefix(b"SSH_CONNECTION="));
        let session = connection
            .and_then(|connection| parse_ssh_connection(std::str::from_utf8(connection).ok()?));
        sessions.extend(session.filter(|session| !sessions.contains(session)));
    }
    sessions
}

/// Parses the client's address (sshd sets `SSH_CONNECTION`: client, its port, server, its port).
fn parse_ssh_connection(connection: &str) -> Option<ActiveSshSession> {
    let address = connection.split(' ').next()?;
    // The zone (`fe80::1%eth0`) is not part of an IpAddr.
    let (client, zone) = match address.split_once('%') {
        Some((client, zone)) => (client, Some(zone.to_owned())),
        None => (address, None),
    };
    Some(ActiveSshSession {
        client: client.parse().ok()?,
        zone,
    })
}

/// Interfaces of the default routes in both files (proc(5): `/proc/net/route`,
/// `/proc/net/ipv6_route`).
fn default_routes<'a>(v4: &'a str, v6: &'a str) -> impl Iterator<Item = &'a str> {
    let v4 = parse_routes_v4(v4).filter(|route| route.mask == 0);
    let v6 = parse_routes_v6(v6).filter(|route| route.prefix_length == 0);
    v4.map(|route| route.interface)
        .chain(v6.map(|route| route.interface))
}

struct RouteV4<'a> {
    interface: &'a str,
    destination: u32,
    mask: u32,
}

/// Parses routes. Addresses in this file are network-order words printed as native integers.
fn parse_routes_v4(text: &str) -> impl Iterator<Item = RouteV4<'_>> {
    text.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace();
        let interface = fields.next()?;
        let mut hex_field = |skip| {
            let text = fields.nth(skip)?;
            u32::from_str_radix(text, 16).ok().map(u32::from_be)
        };
        let destination = hex_field(0)?;
        let mask = hex_field(5)?;
        Some(RouteV4 {
            interface,
            destination,
            mask,
        })
    })
}

fn route_interface_v4(text: &str, address: u32) -> Option<&str> {
    parse_routes_v4(text)
        .filter(|route| address & route.mask == route.destination)
        .max_by_key(|route| route.mask)
        .map(|route| route.interface)
}

struct RouteV6<'a> {
    interface: &'a str,
    destination: u128,
    prefix_length: u32,
}

fn parse_routes_v6(text: &str) -> impl Iterator<Item = RouteV6<'_>> {
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
            prefix_length: u32::from_str_radix(fields.get(1)?, 16).ok()?,
        })
    })
}

fn route_interface_v6(text: &str, address: u128) -> Option<&str> {
    parse_routes_v6(text)
        .filter(|route| {
            let mask = u128::MAX
                .checked_shl(128 - route.prefix_length)
                .unwrap_or(0);
            address & mask == route.destination
        })
        .max_by_key(|route| route.prefix_length)
        .map(|route| route.interface)
}

/// Converts an error of the kernel when opening something into one of a port.
pub(crate) fn open_error(
    url: &PortUrl,
    privilege: &'static str,
    action: &'static str,
    source: io::Error,
) -> PortError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => PortError::NotPrivileged {
            port: url.short_name(),
            privilege,
            source,
        },
        _ => PortError::Kernel {
            port: url.short_name(),
            action,
            source,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Route table of a machine with `eth0` (default, 10.0.0.0/24) and `eth1` (10.1.0.0/16).
    fn route_table_v4() -> String {
        let hex = |address: u32| format!("{:08X}", address.to_be());
        let line = |name: &str, to: u32, mask: u32| {
            format!(
                "{name}\t{}\t{}\t0003\t0\t0\t0\t{}\t0\t0\t0\n",
                hex(to),
                hex(0),
                hex(mask)
            )
        };
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
            .to_owned()
            + &line("eth0", 0, 0)
            + &line("eth0", 0x0a00_0000, 0xffff_ff00)
            + &line("eth1", 0x0a01_0000, 0xffff_0000)
    }

    const ROUTE_TABLE_V6: &str = "\
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 1 0 00000003 eth2
20010db8000000000000000000000000 20 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 1 0 00000001 eth3
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 1 0 00200200       lo
";

    #[test]
    fn default_routes_are_found() {
        let v4 = route_table_v4();
        let names: Vec<&str> = default_routes(&v4, ROUTE_TABLE_V6).collect();
        assert_eq!(names, ["eth0", "eth2"]);
    }

    #[test]
    fn the_longest_prefix_wins() {
        let v4 = route_table_v4();
        for (address, expected) in [
            (0x0a01_0203, "eth1"),
            (0x0a00_0001, "eth0"),
            (0x0808_0808, "eth0"),
        ] {
            assert_eq!(
                route_interface_v4(&v4, address),
                Some(expected),
                "{address:x}"
            );
        }
        assert_eq!(
            route_interface_v6(ROUTE_TABLE_V6, 0x2001_0db8_u128 << 96 | 1),
            Some("eth3")
        );
        assert_eq!(route_interface_v6(ROUTE_TABLE_V6, 1), Some("eth2"));
    }

    fn session_of(client: &str, zone: Option<&str>) -> ActiveSshSession {
        ActiveSshSession {
            client: client.parse().unwrap(),
            zone: zone.map(str::to_owned),
        }
    }

    #[test]
    fn a_session_is_read_from_its_variable() {
        let v4 = session_of("10.1.2.3", None);
        assert_eq!(parse_ssh_connection("10.1.2.3 50022 10.1.0.1 22"), Some(v4));
        let v6 = session_of("fe80::1", Some("eth0"));
        assert_eq!(
            parse_ssh_connection("fe80::1%eth0 50022 fe80::2 22"),
            Some(v6)
        );
        assert_eq!(parse_ssh_connection(""), None);
    }

    /// A process under `sudo` has no such variable, but the process that started `sudo` has.
    #[test]
    fn a_session_is_that_of_any_ancestor() {
        let proc_dir = tempfile::tempdir().unwrap();
        let process = |id: u32, parent: u32, variables: Option<&str>| {
            let process_dir = proc_dir.path().join(id.to_string());
            fs::create_dir(&process_dir).unwrap();
            let status = format!("Name:\tx\nTgid:\t{id}\nPPid:\t{parent}\nUid:\t0\n");
            fs::write(process_dir.join("status"), status).unwrap();
            // The environment of another user's process cannot be read.
            if let Some(variables) = variables {
                fs::write(process_dir.join("environ"), variables).unwrap();
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
        let of = |id| ancestor_ssh_sessions(proc_dir.path(), id);
        let (outer, inner) = (
            session_of("10.1.2.3", None),
            session_of("fe80::1", Some("eth1")),
        );
        assert_eq!(of(9), std::slice::from_ref(&outer));
        assert_eq!(of(10), [inner, outer]);
        assert_eq!(of(1), []);
        assert_eq!(of(99), []);
    }

    /// Interfaces of a machine, each with its lower devices.
    fn interfaces(all: &[(&str, &[&str])]) -> tempfile::TempDir {
        let class_net = tempfile::tempdir().unwrap();
        for (name, lower) in all {
            let device_dir = class_net.path().join(name);
            fs::create_dir(&device_dir).unwrap();
            fs::write(device_dir.join("mtu"), "1500").unwrap();
            for below in *lower {
                let link = device_dir.join(format!("lower_{below}"));
                std::os::unix::fs::symlink(class_net.path().join(below), link).unwrap();
            }
        }
        class_net
    }

    #[test]
    fn lower_devices_are_found_down_to_the_wire() {
        // A VLAN on a bridge of a bond and another port; the bond has two ports.
        let dir = interfaces(&[
            ("br0.5", &["br0"]),
            ("br0", &["bond0", "eth2"]),
            ("bond0", &["eth0", "eth1"]),
            ("eth0", &[]),
            ("eth3", &[]),
        ]);
        let of = |name: &str| {
            let mut devices = with_lower_devices(dir.path(), name);
            devices.sort();
            devices
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
    fn lower_devices_carry_the_routes_of_upper_ones() {
        // `eth0` is a bridge here, and `eth1` a VLAN.
        let dir = interfaces(&[
            ("eth0", &["wire0"]),
            ("eth1", &["wire1"]),
            ("eth2", &["wire2"]),
        ]);
        let (v4, session) = (route_table_v4(), session_of("10.1.2.3", None));
        let (route_use, ssh_use) = (Some("the default route"), Some("the SSH session in use"));
        let link_local = session_of("fe80::1", Some("eth1"));
        for (interface, sessions, expected) in [
            ("wire0", &[][..], route_use),
            ("eth0", &[], route_use),
            ("wire2", &[], route_use),
            ("wire1", &[], None),
            ("wire1", std::slice::from_ref(&session), ssh_use),
            ("eth1", std::slice::from_ref(&link_local), ssh_use),
            ("wire1", std::slice::from_ref(&link_local), ssh_use),
            ("wire3", &[], None),
        ] {
            let traffic = find_use(interface, (&v4, ROUTE_TABLE_V6), sessions, dir.path());
            assert_eq!(traffic, expected, "{interface} {sessions:?}");
        }
    }
}
