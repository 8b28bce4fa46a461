//! Requests to rtnetlink: links, their addresses and statistics, and routes.
//!
//! Uses a parser of its own: the general crates fail a whole message over one attribute whose
//! layout a newer kernel changed, but a missing fact must not fail a record. Attribute numbers are
//! from linux/if_link.h and linux/rtnetlink.h.

mod qdiscs;

pub use qdiscs::{Qdisc, read_qdisc_kinds, read_qdiscs};

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

/// Interface as reported by the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceLink {
    pub index: u32,
    pub name: String,
    /// Administratively up (IFF_UP).
    pub up: bool,
    pub loopback: bool,
    /// Has a single peer, as tunnels do (IFF_POINTOPOINT).
    pub point_to_point: bool,
    /// Does not resolve link-layer addresses (IFF_NOARP), as multipoint tunnels.
    pub no_address_resolution: bool,
    /// Largest IP packet, bytes.
    pub mtu: Option<u32>,
    /// Link-layer address.
    pub hardware_bytes: Option<Vec<u8>>,
    /// Permanent hardware address, which never changes (Linux 5.6).
    pub permanent_hardware_bytes: Option<Vec<u8>>,
    /// Root queueing discipline.
    pub qdisc: Option<String>,
    /// Number of transmit queues at creation.
    pub tx_queues: Option<u32>,
    /// Number of receive queues at creation.
    pub rx_queues: Option<u32>,
    /// Largest segmentation-offload packet, bytes.
    pub gso_max_bytes: Option<u32>,
    /// Largest segmentation-offload packet of IPv4, bytes (Linux 6.3 and later).
    pub gso_ipv4_max_bytes: Option<u32>,
    /// Most segments in a segmentation-offload packet.
    pub gso_max_segments: Option<u32>,
    /// Driver limits of a segmentation-offload packet: bytes and segments. The limits above never
    /// exceed them (Linux 5.19).
    pub tso_max: (Option<u32>, Option<u32>),
    /// Kind of a virtual interface (`veth`, `bridge`, `vlan`).
    pub kind: Option<String>,
    /// Bus and name of the underlying device (`pci`, `0000:03:00.0`; Linux 5.14 and later).
    pub parent: Option<(String, String)>,
    /// Counters; absent before Linux 2.6.35.
    pub statistics: Option<LinkStatistics>,
    /// Times that the carrier was lost, for example because the interface or its peer was set down
    /// (Linux 4.16).
    pub carrier_losses: Option<u32>,
}

impl InterfaceLink {
    /// Returns the permanent or else the current hardware address; `None` for all zeros, as of
    /// loopback.
    #[must_use]
    pub fn hardware_address(&self) -> Option<String> {
        let hardware_bytes = self
            .permanent_hardware_bytes
            .as_ref()
            .or(self.hardware_bytes.as_ref());
        hardware_bytes.and_then(|address| format_mac(address))
    }
}

/// Address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    /// Index of the interface.
    pub link_index: u32,
    /// The address; the peer's where local and peer address were set together.
    pub address: IpAddr,
    /// Prefix length of its network, bits.
    pub prefix: u8,
}

/// Counters of an interface (`struct rtnl_link_stats64` of linux/if_link.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStatistics {
    /// Received packets.
    pub rx_packets: u64,
    /// Sent packets; a segmentation-offload packet (GSO) counts once.
    pub tx_packets: u64,
    /// Received packets with errors.
    pub rx_errors: u64,
    /// Packets that failed to be sent.
    pub tx_errors: u64,
    /// Received packets that were dropped.
    pub rx_dropped: u64,
    /// Packets that were dropped before sending.
    pub tx_dropped: u64,
    /// Packets for which the device had no receive buffer.
    pub rx_missed: u64,
}

/// Lists the interfaces of the calling thread's network namespace.
///
/// # Errors
/// Errors of the netlink request.
pub fn list_links() -> io::Result<Vec<InterfaceLink>> {
    let reply = request_rtnetlink(RTM_GETLINK, NLM_F_DUMP, &ifinfomsg(0))?;
    Ok(reply
        .iter()
        .filter_map(|(kind, body)| parse_link(*kind, body))
        .collect())
}

/// Lists the addresses of the calling thread's network namespace.
///
/// # Errors
/// Errors of the netlink request.
pub fn list_addresses() -> io::Result<Vec<LinkAddress>> {
    let reply = request_rtnetlink(RTM_GETADDR, NLM_F_DUMP, &[0; IFADDRMSG_BYTES])?;
    Ok(reply
        .iter()
        .filter_map(|(kind, body)| parse_address(*kind, body))
        .collect())
}

/// Finds an interface by name.
///
/// # Errors
/// `ENODEV` where no such interface exists.
pub fn find_link(name: &str) -> io::Result<InterfaceLink> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let mut request = ifinfomsg(0);
    let mut value = name.as_bytes().to_vec();
    value.push(0);
    push_attribute(&mut request, IFLA_IFNAME, &value);
    query_link(&request)
}

/// Returns the name of the interface through which the kernel routes packets to a destination.
///
/// # Errors
/// `ENETUNREACH` and the like where there is no route.
pub fn find_route_interface(destination: IpAddr) -> io::Result<String> {
    let index = query_route(destination)?
        .iter()
        .find_map(|(kind, body)| parse_route_interface(*kind, body))
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))?;
    Ok(query_link(&ifinfomsg(index))?.name)
}

/// Returns whether the destination is an address of this host (a local route).
///
/// # Errors
/// `ENETUNREACH` and the like where there is no route.
pub fn is_local_destination(destination: IpAddr) -> io::Result<bool> {
    let reply = query_route(destination)?;
    Ok((reply.iter()).any(|(kind, body)| *kind == RTM_NEWROUTE && body.get(7) == Some(&RTN_LOCAL)))
}

/// Requests the route to a destination.
fn query_route(destination: IpAddr) -> io::Result<Vec<(u16, Vec<u8>)>> {
    // An IPv4-mapped address has an IPv4 route.
    let (family, bytes) = family_and_bytes(destination.to_canonical());
    // struct rtmsg: family, destination bits, five more bytes, type, flags.
    let mut request = vec![0_u8; RTMSG_BYTES];
    request[0] = family;
    request[1] = 8 * bytes.len() as u8;
    push_attribute(&mut request, RTA_DST, &bytes);
    request_rtnetlink(RTM_GETROUTE, 0, &request)
}

fn query_link(request: &[u8]) -> io::Result<InterfaceLink> {
    request_rtnetlink(RTM_GETLINK, 0, request)?
        .iter()
        .find_map(|(kind, body)| parse_link(*kind, body))
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
}

pub(crate) const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
pub(crate) const RTM_NEWADDR: u16 = 20;
pub(crate) const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
/// `NLM_F_ACK`: the kernel confirms the request or reports its error.
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;

const NLMSG_HEADER_BYTES: usize = 16;
const IFINFOMSG_BYTES: usize = 16;
/// struct ifaddrmsg: family, prefix length, flags, scope, interface.
pub(crate) const IFADDRMSG_BYTES: usize = 8;
const RTMSG_BYTES: usize = 12;

pub(crate) const IFA_ADDRESS: u16 = 1;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
pub(crate) const IFLA_MTU: u16 = 4;
const IFLA_QDISC: u16 = 6;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_STATS64: u16 = 23;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_GSO_MAX_SEGS: u16 = 40;
const IFLA_GSO_MAX_SIZE: u16 = 41;
const IFLA_CARRIER_DOWN_COUNT: u16 = 48;
const IFLA_PERM_ADDRESS: u16 = 54;
const IFLA_PARENT_DEV_NAME: u16 = 56;
const IFLA_PARENT_DEV_BUS_NAME: u16 = 57;
const IFLA_TSO_MAX_SIZE: u16 = 59;
const IFLA_TSO_MAX_SEGS: u16 = 60;
const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
/// `RTN_LOCAL` of linux/rtnetlink.h: delivered locally.
const RTN_LOCAL: u8 = 2;

/// Returns a struct ifinfomsg that is empty except for the index.
pub(crate) fn ifinfomsg(index: u32) -> Vec<u8> {
    let mut header = vec![0_u8; IFINFOMSG_BYTES];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header
}

pub(crate) fn push_attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).expect("attributes of requests are short");
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// Sends an rtnetlink request; see [`request_netlink`].
pub(crate) fn request_rtnetlink(
    kind: u16,
    flags: u16,
    body: &[u8],
) -> io::Result<Vec<(u16, Vec<u8>)>> {
    request_netlink(libc::NETLINK_ROUTE, kind, flags, body)
}

/// Sends one netlink request and returns type and body of every message of the reply. With
/// [`NLM_F_ACK`] in the flags it waits for the kernel's confirmation.
pub(crate) fn request_netlink(
    family: i32,
    kind: u16,
    flags: u16,
    body: &[u8],
) -> io::Result<Vec<(u16, Vec<u8>)>> {
    // A dump is never truncated: the kernel fits each part to the buffer, and one link takes a few
    // KiB (more with hundreds of virtual functions, which are not requested).
    const BUFFER_BYTES: usize = 64 * 1024;
    let mut socket = open_socket(family)?;
    // The kernel replies within the send call; the timeout only bounds a kernel defect.
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    send_request(&mut socket, kind, flags, body)?;
    let mut messages = Vec::new();
    let mut buffer = vec![0_u8; BUFFER_BYTES];
    loop {
        let length = socket.read(&mut buffer)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (kind, body) in split_messages(&buffer[..length]) {
            match kind {
                NLMSG_DONE => return Ok(messages),
                NLMSG_ERROR => {
                    let code = body
                        .first_chunk()
                        .map_or(0, |code| i32::from_ne_bytes(*code));
                    return match code {
                        0 => Ok(messages),
                        _ => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                    };
                }
                _ => messages.push((kind, body.to_vec())),
            }
        }
        if flags & (NLM_F_DUMP | NLM_F_ACK) == 0 {
            return Ok(messages);
        }
    }
}

/// Opens a netlink socket in the calling thread's network namespace.
pub(crate) fn open_socket(family: i32) -> io::Result<Socket> {
    Socket::new(
        Domain::from(libc::AF_NETLINK),
        Type::RAW,
        Some(Protocol::from(family)),
    )
}

/// Sends one request message.
pub(crate) fn send_request(
    socket: &mut Socket,
    kind: u16,
    flags: u16,
    body: &[u8],
) -> io::Result<()> {
    let mut request = Vec::with_capacity(NLMSG_HEADER_BYTES + body.len());
    let length = u32::try_from(NLMSG_HEADER_BYTES + body.len()).expect("requests are short");
    request.extend(length.to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    request.extend([0; 8]);
    request.extend(body);
    socket.write_all(&request)
}

/// Splits a datagram into messages of type and body; stops at the first truncated one.
pub(crate) fn split_messages(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut messages = Vec::new();
    while let Some(header) = bytes.first_chunk::<NLMSG_HEADER_BYTES>() {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        if length < NLMSG_HEADER_BYTES || length > bytes.len() {
            break;
        }
        messages.push((kind, &bytes[NLMSG_HEADER_BYTES..length]));
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    messages
}

/// Splits attributes into type, without flag bits, and value; stops at the first truncated one.
pub(crate) fn split_attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    const FLAG_BITS: u16 = 0xc000;
    let mut list = Vec::new();
    while let Some(header) = bytes.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & !FLAG_BITS;
        if length < 4 || length > bytes.len() {
            break;
        }
        list.push((kind, &bytes[4..length]));
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    list
}

fn parse_link(kind: u16, body: &[u8]) -> Option<InterfaceLink> {
    if kind != RTM_NEWLINK {
        return None;
    }
    let header = body.first_chunk::<IFINFOMSG_BYTES>()?;
    let index = i32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
    let flags = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
    let has_flag = |flag: libc::c_int| flags & flag as u32 != 0;
    let mut link = InterfaceLink {
        index: u32::try_from(index).ok()?,
        up: has_flag(libc::IFF_UP),
        loopback: has_flag(libc::IFF_LOOPBACK),
        point_to_point: has_flag(libc::IFF_POINTOPOINT),
        no_address_resolution: has_flag(libc::IFF_NOARP),
        ..InterfaceLink::default()
    };
    let (mut bus, mut device) = (None, None);
    for (kind, value) in split_attributes(&body[IFINFOMSG_BYTES..]) {
        match kind {
            IFLA_IFNAME => link.name = parse_text(value).unwrap_or_default(),
            IFLA_ADDRESS => link.hardware_bytes = (!value.is_empty()).then(|| value.to_vec()),
            IFLA_PERM_ADDRESS => {
                link.permanent_hardware_bytes = (!value.is_empty()).then(|| value.to_vec());
            }
            IFLA_MTU => link.mtu = parse_u32(value),
            IFLA_QDISC => link.qdisc = parse_text(value),
            IFLA_STATS64 => link.statistics = parse_statistics(value),
            IFLA_CARRIER_DOWN_COUNT => link.carrier_losses = parse_u32(value),
            IFLA_NUM_TX_QUEUES => link.tx_queues = parse_u32(value),
            IFLA_NUM_RX_QUEUES => link.rx_queues = parse_u32(value),
            IFLA_GSO_MAX_SEGS => link.gso_max_segments = parse_u32(value),
            IFLA_GSO_MAX_SIZE => link.gso_max_bytes = parse_u32(value),
            IFLA_TSO_MAX_SIZE => link.tso_max.0 = parse_u32(value),
            IFLA_TSO_MAX_SEGS => link.tso_max.1 = parse_u32(value),
            IFLA_GSO_IPV4_MAX_SIZE => link.gso_ipv4_max_bytes = parse_u32(value),
            IFLA_PARENT_DEV_NAME => device = parse_text(value),
            IFLA_PARENT_DEV_BUS_NAME => bus = parse_text(value),
            IFLA_LINKINFO => {
                link.kind = split_attributes(value)
                    .into_iter()
                    .find(|(kind, _)| *kind == IFLA_INFO_KIND)
                    .and_then(|(_, value)| parse_text(value));
            }
            _ => {}
        }
    }
    link.parent = bus.zip(device);
    (!link.name.is_empty()).then_some(link)
}

fn parse_address(kind: u16, body: &[u8]) -> Option<LinkAddress> {
    let header = body
        .first_chunk::<IFADDRMSG_BYTES>()
        .filter(|_| kind == RTM_NEWADDR)?;
    let attributes = split_attributes(&body[IFADDRMSG_BYTES..]);
    let (_, value) = attributes.iter().find(|(kind, _)| *kind == IFA_ADDRESS)?;
    Some(LinkAddress {
        link_index: parse_u32(&header[4..])?,
        address: parse_ip(header[0], value)?,
        prefix: header[1],
    })
}

fn parse_statistics(value: &[u8]) -> Option<LinkStatistics> {
    let counter_at = |index: usize| {
        let bytes = value.get(8 * index..8 * index + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    };
    Some(LinkStatistics {
        rx_packets: counter_at(0)?,
        tx_packets: counter_at(1)?,
        rx_errors: counter_at(4)?,
        tx_errors: counter_at(5)?,
        rx_dropped: counter_at(6)?,
        tx_dropped: counter_at(7)?,
        rx_missed: counter_at(15)?,
    })
}

/// Returns the output interface index of a route message.
fn parse_route_interface(kind: u16, body: &[u8]) -> Option<u32> {
    if kind != RTM_NEWROUTE {
        return None;
    }
    split_attributes(body.get(RTMSG_BYTES..)?)
        .into_iter()
        .find(|(kind, _)| *kind == RTA_OIF)
        .and_then(|(_, value)| parse_u32(value))
}

/// Returns family and bytes of an address, as in netlink messages.
pub(crate) fn family_and_bytes(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (libc::AF_INET as u8, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6 as u8, address.octets().to_vec()),
    }
}

/// Returns the address with these bytes in a family.
pub(crate) fn parse_ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => Some(<[u8; 4]>::try_from(value).ok()?.into()),
        libc::AF_INET6 => Some(<[u8; 16]>::try_from(value).ok()?.into()),
        _ => None,
    }
}

pub(crate) fn parse_u32(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|value| u32::from_ne_bytes(*value))
}

fn parse_text(value: &[u8]) -> Option<String> {
    let end = value
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(value.len());
    let text = String::from_utf8_lossy(&value[..end]).into_owned();
    (!text.is_empty()).then_some(text)
}

/// Formats a link-layer address; `None` for all zeros (loopback has no address).
pub(crate) fn format_mac(address: &[u8]) -> Option<String> {
    if address.iter().all(|&byte| byte == 0) {
        return None;
    }
    let parts: Vec<String> = address.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(parts.join(":"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_of_links() {
        assert_eq!(
            format_mac(&[2, 0xfc, 0, 0, 0, 1]).as_deref(),
            Some("02:fc:00:00:00:01")
        );
        assert_eq!(format_mac(&[0; 6]), None);
        assert_eq!(format_mac(&[]), None);
    }

    #[test]
    fn loopback_has_its_address() {
        let lo = list_links().unwrap().into_iter().find(|link| link.loopback);
        let lo = lo.expect("each namespace has one");
        assert!(!lo.point_to_point);
        let expected = LinkAddress {
            link_index: lo.index,
            address: IpAddr::from([127, 0, 0, 1]),
            prefix: 8,
        };
        // An interface that is down may lack its address.
        assert!(!lo.up || list_addresses().unwrap().contains(&expected));
    }

    #[test]
    fn a_link_is_read_attribute_by_attribute() {
        let mut body = ifinfomsg(7);
        body[8..12].copy_from_slice(&(libc::IFF_UP as u32).to_ne_bytes());
        push_attribute(&mut body, IFLA_IFNAME, b"veth0\0");
        push_attribute(&mut body, IFLA_ADDRESS, &[2, 0, 0, 0, 0, 9]);
        push_attribute(&mut body, IFLA_PERM_ADDRESS, &[2, 0, 0, 0, 0, 8]);
        push_attribute(&mut body, IFLA_MTU, &1500_u32.to_ne_bytes());
        push_attribute(&mut body, IFLA_QDISC, b"noqueue\0");
        push_attribute(&mut body, 0x7ff, b"unknown");
        push_attribute(&mut body, IFLA_GSO_MAX_SEGS, &65_535_u32.to_ne_bytes());
        push_attribute(&mut body, IFLA_TSO_MAX_SIZE, &64_000_u32.to_ne_bytes());
        push_attribute(&mut body, IFLA_TSO_MAX_SEGS, &24_u32.to_ne_bytes());
        push_attribute(&mut body, IFLA_CARRIER_DOWN_COUNT, &3_u32.to_ne_bytes());
        push_attribute(
            &mut body,
            IFLA_GSO_IPV4_MAX_SIZE,
            &524_280_u32.to_ne_bytes(),
        );
        let mut info = Vec::new();
        push_attribute(&mut info, IFLA_INFO_KIND, b"veth\0");
        // The flag bit of nested attributes must not change the type.
        push_attribute(&mut body, IFLA_LINKINFO | 0x8000, &info);
        let expected = InterfaceLink {
            index: 7,
            name: "veth0".to_owned(),
            up: true,
            hardware_bytes: Some(vec![2, 0, 0, 0, 0, 9]),
            permanent_hardware_bytes: Some(vec![2, 0, 0, 0, 0, 8]),
            mtu: Some(1500),
            qdisc: Some("noqueue".to_owned()),
            gso_ipv4_max_bytes: Some(524_280),
            gso_max_segments: Some(65_535),
            tso_max: (Some(64_000), Some(24)),
            carrier_losses: Some(3),
            kind: Some("veth".to_owned()),
            ..InterfaceLink::default()
        };
        assert_eq!(parse_link(RTM_NEWLINK, &body), Some(expected));
        assert_eq!(parse_link(RTM_NEWROUTE, &body), None);
    }

    proptest! {
        #[test]
        fn no_bytes_can_hurt(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for (kind, body) in split_messages(&bytes) {
                let _ = parse_link(kind, body);
            }
            let _ = parse_link(RTM_NEWLINK, &bytes);
            let _ = parse_route_interface(RTM_NEWROUTE, &bytes);
            let _ = parse_statistics(&bytes);
        }
    }

    #[test]
    fn loopback_has_counters() {
        let lo = find_link("lo").unwrap();
        assert!(lo.statistics.is_some());
    }

    #[test]
    fn loopback_is_found_by_name_and_listed() {
        let lo = find_link("lo").unwrap();
        assert!(lo.loopback);
        assert!(lo.mtu.is_some());
        assert!(list_links().unwrap().iter().any(|link| link.name == "lo"));
        assert_eq!(
            find_link("none-such0").unwrap_err().raw_os_error(),
            Some(libc::ENODEV)
        );
    }
}
