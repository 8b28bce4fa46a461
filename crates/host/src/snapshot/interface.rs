//! Facts of an interface in the calling thread's network namespace.

use std::net::IpAddr;

use linerate_record::facts::{ChildQdisc, InterfaceFacts};
use linerate_sys::ethtool::{DriverInfo, EthtoolSocket};

use super::SystemFiles;
use super::offloads::read_offloads;
use crate::netlink::{self, InterfaceLink, format_mac};
use crate::settings;

/// Drivers that report a speed without a physical wire; the kernel does not limit them to it.
const DRIVERS_WITHOUT_WIRE: &[&str] = &["veth", "tun", "bridge", "dummy", "ifb"];

/// GSO limit of IPv4 before Linux 6.3 reported one per interface.
const OLD_GSO_IPV4_MAX_BYTES: u32 = 65536;

/// Reads the facts of an interface; `None` without such an interface.
#[must_use]
pub fn read_interface(name: &str) -> Option<InterfaceFacts> {
    let link = netlink::find_link(name).ok()?;
    Some(collect_facts(&SystemFiles::of_machine(), &link))
}

/// Returns the name of the interface through which the kernel sends to a destination, `lo` for the
/// host's own addresses. `None` without a route.
#[must_use]
pub fn egress_interface(destination: IpAddr) -> Option<String> {
    netlink::find_route_interface(destination).ok()
}

/// Returns whether packets to `address` stay within this host (in the calling thread's network
/// namespace), so that a connection from it has its peer on this host.
///
/// Link-local addresses never count: another host may have the same one on another link.
#[must_use]
pub fn is_local_address(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    address.is_loopback()
        || (!link_local && netlink::is_local_destination(address).unwrap_or(false))
}

fn collect_facts(files: &SystemFiles, link: &InterfaceLink) -> InterfaceFacts {
    let ethtool = EthtoolSocket::new(&link.name).ok();
    let driver = ethtool
        .as_ref()
        .and_then(|ethtool| ethtool.read_driver().ok());
    let speed = ethtool
        .as_ref()
        .and_then(|ethtool| ethtool.read_link().ok());
    let rings = ethtool
        .as_ref()
        .and_then(|ethtool| ethtool.read_rings().ok());
    let coalescing = ethtool
        .as_ref()
        .and_then(|ethtool| ethtool.read_coalescing().ok());
    let energy_efficient = ethtool.as_ref().and_then(|ethtool| ethtool.read_eee().ok());
    // The kernel omits settings that the driver does not support.
    let settings = settings::read_coalescing(&link.name).unwrap_or_default();
    let channels = ethtool
        .as_ref()
        .and_then(|ethtool| ethtool.read_channels().ok());

    let driver_name = driver
        .as_ref()
        .map(|driver| driver.name.clone())
        .filter(|name| !name.is_empty())
        .or_else(|| link.kind.clone());
    let has_wire = driver_name
        .as_deref()
        .is_some_and(|name| !DRIVERS_WITHOUT_WIRE.contains(&name));
    let speed = speed.filter(|_| has_wire).unwrap_or_default();
    let device = find_pci_device(files, link, driver.as_ref());
    let bus = bus_kind(link, driver.as_ref());
    let disciplines = netlink::read_qdiscs(link.index).ok().flatten();
    let (root_qdisc, children) = disciplines.unwrap_or_default();
    let offloads = read_offloads(&link.name);
    let nonzero = |number: u32| (number > 0).then_some(number);

    InterfaceFacts {
        name: link.name.clone(),
        driver_version: driver.as_ref().and_then(|driver| driver.version.clone()),
        firmware: driver.and_then(|driver| driver.firmware),
        driver: driver_name,
        pci_id: device.as_ref().and_then(|device| device.pci_id.clone()),
        numa_node: device.as_ref().and_then(|device| device.numa_node),
        pci_address: device.map(|device| device.pci_address),
        mac: link.hardware_bytes.as_deref().and_then(format_mac),
        speed_bps: speed.speed_mbps.map(|mbps| u64::from(mbps) * 1_000_000),
        fastest_bps: speed.fastest_mbps.map(|mbps| u64::from(mbps) * 1_000_000),
        bus,
        duplex: speed
            .full_duplex
            .map(|full| if full { "full" } else { "half" }.to_owned()),
        mtu: link.mtu,
        qdisc: link.qdisc.clone(),
        qdisc_rate_bps: root_qdisc.rate_bps,
        qdisc_burst_bytes: root_qdisc.burst_bytes,
        qdisc_children: group_qdiscs(&children),
        fixed_offloads: (offloads.iter())
            .filter(|offload| !offload.changeable)
            .map(|offload| offload.name.to_owned())
            .collect(),
        offloads: (offloads.iter())
            .map(|offload| (offload.name.to_owned(), offload.on))
            .collect(),
        gso_max_bytes: link.gso_max_bytes,
        gso_ipv4_max_bytes: link.gso_ipv4_max_bytes.or_else(|| {
            link.gso_max_bytes
                .map(|bytes| bytes.min(OLD_GSO_IPV4_MAX_BYTES))
        }),
        gso_max_segments: link.gso_max_segments,
        tso_max_bytes: link.tso_max.0,
        tso_max_segments: link.tso_max.1,
        rx_queues: channels
            .and_then(|channels| nonzero(channels.rx))
            .or(link.rx_queues),
        tx_queues: channels
            .and_then(|channels| nonzero(channels.tx))
            .or(link.tx_queues),
        rx_descriptors: rings.and_then(|rings| nonzero(rings.rx)),
        tx_descriptors: rings.and_then(|rings| nonzero(rings.tx)),
        rx_descriptors_max: rings.and_then(|rings| nonzero(rings.rx_max)),
        coalescing_settings: (settings.split_whitespace())
            .filter(|_| has_wire && coalescing.is_some())
            .filter_map(|setting| Some(setting.split_once('=')?.0.to_owned()))
            .collect(),
        coalescing: coalescing.filter(|_| has_wire),
        energy_efficient,
    }
}

/// Groups equal disciplines and counts them.
fn group_qdiscs(child_qdiscs: &[netlink::Qdisc]) -> Vec<ChildQdisc> {
    let mut children: Vec<ChildQdisc> = Vec::new();
    for qdisc in child_qdiscs {
        let group = children.iter_mut().find(|child| {
            child.kind == qdisc.kind
                && (child.rate_bps, child.burst_bytes) == (qdisc.rate_bps, qdisc.burst_bytes)
        });
        match group {
            Some(child) => child.count += 1,
            None => children.push(ChildQdisc {
                kind: qdisc.kind.clone(),
                count: 1,
                rate_bps: qdisc.rate_bps,
                burst_bytes: qdisc.burst_bytes,
            }),
        }
    }
    children.sort_by(|a, b| (&a.kind, a.rate_bps).cmp(&(&b.kind, b.rate_bps)));
    children
}

/// Returns the bus of the device behind an interface. Drivers of USB adapters report their address
/// as `usb-0000:00:14.0-2`.
fn bus_kind(link: &InterfaceLink, driver: Option<&DriverInfo>) -> Option<String> {
    let driver_address = driver.and_then(|driver| driver.bus_address.as_deref());
    if driver_address.is_some_and(|address| address.starts_with("usb-")) {
        return Some("usb".to_owned());
    }
    let (bus, _) = link.parent.as_ref()?;
    Some(bus.clone())
}

#[derive(Debug, PartialEq, Eq)]
struct PciDevice {
    pci_address: String,
    pci_id: Option<String>,
    numa_node: Option<u32>,
}

/// Finds the PCI device behind an interface, by the address that the driver or the kernel reports.
///
/// /sys/bus is the same in every network namespace. A virtio device is a child of its PCI device.
fn find_pci_device(
    files: &SystemFiles,
    link: &InterfaceLink,
    driver: Option<&DriverInfo>,
) -> Option<PciDevice> {
    let driver_address = driver.and_then(|driver| driver.bus_address.clone());
    let parent = link.parent.as_ref().map(|(_, device)| device.clone());
    let address = driver_address
        .into_iter()
        .chain(parent)
        .find(|address| is_pci_address(address))?;
    let directory = format!("/sys/bus/pci/devices/{address}");
    let id = |file: &str| {
        let text = files.read_text(&format!("{directory}/{file}"))?;
        text.strip_prefix("0x").map(str::to_owned)
    };
    Some(PciDevice {
        pci_id: id("vendor")
            .zip(id("device"))
            .map(|(vendor, device)| format!("{vendor}:{device}")),
        // -1 (unknown) does not parse as u32.
        numa_node: files.read_number(&format!("{directory}/numa_node")),
        pci_address: address,
    })
}

/// Returns whether `text` is domain, bus, device and function: `0000:03:00.0`.
fn is_pci_address(text: &str) -> bool {
    let hexadecimal = |part: &str, min_digits: usize| {
        part.len() >= min_digits && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let Some((slot, function)) = text.rsplit_once('.') else {
        return false;
    };
    let parts: Vec<&str> = slot.split(':').collect();
    matches!(parts[..], [domain, bus, device]
        if hexadecimal(domain, 4) && hexadecimal(bus, 2) && hexadecimal(device, 2))
        && hexadecimal(function, 1)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::super::system_files::tree;
    use super::*;

    #[test]
    fn equal_disciplines_are_grouped() {
        let qdisc = |kind: &str, rate_bps| netlink::Qdisc {
            kind: kind.to_owned(),
            rate_bps,
            ..netlink::Qdisc::default()
        };
        let child_qdiscs = [
            qdisc("tbf", Some(9)),
            qdisc("fq", None),
            qdisc("tbf", Some(7)),
            qdisc("fq", None),
        ];
        let groups: Vec<_> = (group_qdiscs(&child_qdiscs).into_iter())
            .map(|child| (child.kind, child.count, child.rate_bps))
            .collect();
        let expected = [("fq", 2, None), ("tbf", 1, Some(7)), ("tbf", 1, Some(9))];
        assert_eq!(
            groups,
            expected.map(|(kind, count, rate)| (kind.to_owned(), count, rate))
        );
    }

    #[test]
    fn local_addresses_are_recognised() {
        for (address, is_local) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            // Documentation addresses (RFC 5737, RFC 3849), and link-local ones.
            ("198.51.100.1", false),
            ("2001:db8::1", false),
            ("fe80::1", false),
            ("169.254.1.1", false),
        ] {
            assert_eq!(
                is_local_address(address.parse().unwrap()),
                is_local,
                "{address}"
            );
        }
    }

    #[test]
    fn pci_addresses() {
        let table = [
            ("0000:03:00.0", true),
            ("10000:e1:00.7", true),
            ("virtio2", false),
            ("usb-0000:00:14.0-2", false),
            ("", false),
            ("03:00.0", false),
        ];
        for (text, expected) in table {
            assert_eq!(is_pci_address(text), expected, "{text}");
        }
    }

    #[test]
    fn a_pci_device_is_found_by_driver_or_parent() {
        let (_directory, files) = tree(&[
            ("/sys/bus/pci/devices/0000:03:00.0/vendor", "0x8086\n"),
            ("/sys/bus/pci/devices/0000:03:00.0/device", "0x1521\n"),
            ("/sys/bus/pci/devices/0000:03:00.0/numa_node", "-1\n"),
        ]);
        let expected = Some(PciDevice {
            pci_address: "0000:03:00.0".to_owned(),
            pci_id: Some("8086:1521".to_owned()),
            numa_node: None,
        });
        let driver = DriverInfo {
            bus_address: Some("0000:03:00.0".to_owned()),
            ..DriverInfo::default()
        };
        let plain_link = InterfaceLink::default();
        assert_eq!(
            find_pci_device(&files, &plain_link, Some(&driver)),
            expected
        );
        let link = InterfaceLink {
            parent: Some(("pci".to_owned(), "0000:03:00.0".to_owned())),
            ..InterfaceLink::default()
        };
        assert_eq!(find_pci_device(&files, &link, None), expected);
        assert_eq!(find_pci_device(&files, &plain_link, None), None);
    }

    #[test]
    fn usb_adapters_are_recognised_by_driver_or_kernel() {
        let driver = DriverInfo {
            bus_address: Some("usb-0000:00:14.0-2".to_owned()),
            ..DriverInfo::default()
        };
        assert_eq!(
            bus_kind(&InterfaceLink::default(), Some(&driver)).as_deref(),
            Some("usb")
        );
        let link = InterfaceLink {
            parent: Some(("pci".to_owned(), "0000:03:00.0".to_owned())),
            ..InterfaceLink::default()
        };
        assert_eq!(bus_kind(&link, None).as_deref(), Some("pci"));
        assert_eq!(bus_kind(&InterfaceLink::default(), None), None);
    }

    #[test]
    fn loopback_has_no_wire() {
        let lo = read_interface("lo").unwrap();
        assert_eq!((lo.speed_bps, lo.duplex, lo.mac), (None, None, None));
        assert!(lo.mtu.is_some_and(|mtu| mtu > 0));
        assert!(lo.offloads.contains_key("generic-receive-offload"));
        assert_eq!(read_interface("none-such0"), None);
    }

    #[test]
    fn the_egress_interface_to_this_host_is_loopback() {
        if !netlink::find_link("lo").is_ok_and(|lo| lo.up) {
            println!("needs loopback up");
            return;
        }
        assert_eq!(
            egress_interface(Ipv4Addr::LOCALHOST.into()).as_deref(),
            Some("lo")
        );
        assert_eq!(
            egress_interface(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into()).as_deref(),
            Some("lo")
        );
        if std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            assert_eq!(
                egress_interface(Ipv6Addr::LOCALHOST.into()).as_deref(),
                Some("lo")
            );
        }
    }
}
