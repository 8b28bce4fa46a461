//! Requests to rtnetlink: links, their addresses and statistics, and routes.
//!
//! Uses a parser of its own: the general crates fail a whole message over one attribute whose
//! layout a newer kernel changed, but a missing fact must not fail a record. Attribute numbers are
//! from linux/if_link.h and linux/rtnetlink.h.

pub mod neighbour_watch;
mod qdiscs;

pub use qdiscs::{Qdisc, qdisc_kinds, qdiscs};

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::interface::mac;

/// Interface as reported by the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// Administratively up (IFF_UP).
    pub up: bool,
    pub loopback: bool,
    /// Has a single peer, as tunnels do (IFF_POINTOPOINT).
    pub point_to_point: bool,
    /// Does not resolve link-layer addresses (IFF_NOARP), as multipoint tunnels.
    pub unresolved: bool,
    /// Largest IP packet, bytes.
    pub mtu: Option<u32>,
    /// Link-layer address.
    pub address: Option<Vec<u8>>,
    /// Permanent hardware address, which never changes (Linux 5.6).
    pub permanent_address: Option<Vec<u8>>,
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
    pub statistics: Option<Statistics>,
    /// Times that the carrier was lost, for example because the interface or its peer was set down
    /// (Linux 4.16).
    pub carrier_losses: Option<u32>,
}

impl Link {
    /// Returns the permanent or else the current hardware address; `None` for all zeros, as of
    /// loopback.
    #[must_use]
    pub fn hardware_address(&self) -> Option<String> {
        let own = self.permanent_address.as_ref().or(self.address.as_ref());
        own.and_then(|address| mac(address))
    }
}

/// Address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Index of the interface.
    pub link: u32,
    /// The address; the peer's where local and peer address were set together.
    pub address: IpAddr,
    /// Prefix length of its network, bits.
    pub prefix: u8,
}

/// Counters of an interface (`struct rtnl_link_stats64` of linux/if_link.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
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
pub fn links() -> io::Result<Vec<Link>> {
    let answer = ask(GET_LINK, DUMP, &link_header(0))?;
    Ok(answer
        .iter()
        .filter_map(|(kind, body)| link_of(*kind, body))
        .collect())
}

/// Lists the addresses of the calling thread's network namespace.
///
/// # Errors
/// Errors of the netlink request.
pub fn addresses() -> io::Result<Vec<Address>> {
    let answer = ask(GET_ADDRESS, DUMP, &[0; IFADDRMSG_BYTES])?;
    Ok(answer
        .iter()
        .filter_map(|(kind, body)| address_of(*kind, body))
        .collect())
}

/// Finds an interface by name.
///
/// # Errors
/// `ENODEV` where no such interface exists.
pub fn link(name: &str) -> io::Result<Link> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let mut request = link_header(0);
    let mut value = name.as_bytes().to_vec();
    value.push(0);
    push_attribute(&mut request, IFLA_IFNAME, &value);
    one_link(&request)
}

/// Returns the name of the interface through which the kernel routes packets to a destination.
///
/// # Errors
/// `ENETUNREACH` and the like where there is no route.
pub fn route_interface(destination: IpAddr) -> io::Result<String> {
    let index = route(destination)?
        .iter()
        .find_map(|(kind, body)| route_of(*kind, body))
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))?;
    Ok(one_link(&link_header(index))?.name)
}

/// Returns whether the destination is an address of this host (a local route).
///
/// # Errors
/// `ENETUNREACH` and the like where there is no route.
pub fn is_delivered_here(destination: IpAddr) -> io::Result<bool> {
    let answer = route(destination)?;
    Ok((answer.iter()).any(|(kind, body)| *kind == NEW_ROUTE && body.get(7) == Some(&LOCAL_ROUTE)))
}

/// Requests the route to a destination.
fn route(destination: IpAddr) -> io::Result<Vec<(u16, Vec<u8>)>> {
    // An IPv4-mapped address has an IPv4 route.
    let (family, bytes) = octets(destination.to_canonical());
    // struct rtmsg: family, destination bits, five more bytes, type, flags.
    let mut request = vec![0_u8; RTMSG_BYTES];
    request[0] = family;
    request[1] = 8 * bytes.len() as u8;
    push_attribute(&mut request, RTA_DST, &bytes);
    ask(GET_ROUTE, 0, &request)
}

fn one_link(request: &[u8]) -> io::Result<Link> {
    ask(GET_LINK, 0, request)?
        .iter()
        .find_map(|(kind, body)| link_of(*kind, body))
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
}

pub(crate) const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
pub(crate) const NEW_ADDRESS: u16 = 20;
pub(crate) const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 0x1;
/// `NLM_F_ACK`: the kernel confirms the request or reports its error.
pub(crate) const ACKNOWLEDGE: u16 = 0x4;
pub(crate) const DUMP: u16 = 0x300;

const HEADER_BYTES: usize = 16;
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
const LOCAL_ROUTE: u8 = 2;

/// Returns a struct ifinfomsg that is empty except for the index.
pub(crate) fn link_header(index: u32) -> Vec<u8> {
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

/// Sends an rtnetlink request; see [`ask_of`].
pub(crate) fn ask(kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<(u16, Vec<u8>)>> {
    ask_of(libc::NETLINK_ROUTE, kind, flags, body)
}

/// Sends one netlink request and returns type and body of every message of the reply. With
/// [`ACKNOWLEDGE`] in the flags it waits for the kernel's confirmation.
pub(crate) fn ask_of(
    family: i32,
    kind: u16,
    flags: u16,
    body: &[u8],
) -> io::Result<Vec<(u16, Vec<u8>)>> {
    // A dump is never truncated: the kernel fits each part to the buffer, and one link takes a few
    // KiB (more with hundreds of virtual functions, which are not requested).
    const ROOM_BYTES: usize = 64 * 1024;
    let mut socket = socket(family)?;
    // The kernel replies within the send call; the timeout only bounds a kernel defect.
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    request(&mut socket, kind, flags, body)?;
    let mut messages = Vec::new();
    let mut room = vec![0_u8; ROOM_BYTES];
    loop {
        let length = socket.read(&mut room)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (kind, body) in split(&room[..length]) {
            match kind {
                DONE => return Ok(messages),
                ERROR => {
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
        if flags & (DUMP | ACKNOWLEDGE) == 0 {
            return Ok(messages);
        }
    }
}

/// Opens a netlink socket in the calling thread's network namespace.
fn socket(family: i32) -> io::Result<Socket> {
    Socket::new(
        Domain::from(libc::AF_NETLINK),
        Type::RAW,
        Some(Protocol::from(family)),
    )
}

/// Sends one request message.
fn request(socket: &mut Socket, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
    let mut request = Vec::with_capacity(HEADER_BYTES + body.len());
    let length = u32::try_from(HEADER_BYTES + body.len()).expect("requests are short");
    request.extend(length.to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend((REQUEST | flags).to_ne_bytes());
    request.extend([0; 8]);
    request.extend(body);
    socket.write_all(&request)
}

/// Splits a datagram into messages of type and body; stops at the first truncated one.
fn split(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut messages = Vec::new();
    while let Some(header) = bytes.first_chunk::<HEADER_BYTES>() {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        if length < HEADER_BYTES || length > bytes.len() {
            break;
        }
        messages.push((kind, &bytes[HEADER_BYTES..length]));
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    messages
}

/// Splits attributes into type, without flag bits, and value; stops at the first truncated one.
pub(crate) fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
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

fn link_of(kind: u16, body: &[u8]) -> Option<Link> {
    if kind != NEW_LINK {
        return None;
    }
    let header = body.first_chunk::<IFINFOMSG_BYTES>()?;
    let index = i32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
    let flags = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
    let is = |flag: libc::c_int| flags & flag as u32 != 0;
    let mut link = Link {
        index: u32::try_from(index).ok()?,
        up: is(libc::IFF_UP),
        loopback: is(libc::IFF_LOOPBACK),
        point_to_point: is(libc::IFF_POINTOPOINT),
        unresolved: is(libc::IFF_NOARP),
        ..Link::default()
    };
    let (mut bus, mut device) = (None, None);
    for (kind, value) in attributes(&body[IFINFOMSG_BYTES..]) {
        match kind {
            IFLA_IFNAME => link.name = text(value).unwrap_or_default(),
            IFLA_ADDRESS => link.address = (!value.is_empty()).then(|| value.to_vec()),
            IFLA_PERM_ADDRESS => {
                link.permanent_address = (!value.is_empty()).then(|| value.to_vec());
            }
            IFLA_MTU => link.mtu = number(value),
            IFLA_QDISC => link.qdisc = text(value),
            IFLA_STATS64 => link.statistics = statistics_of(value),
            IFLA_CARRIER_DOWN_COUNT => link.carrier_losses = number(value),
            IFLA_NUM_TX_QUEUES => link.tx_queues = number(value),
            IFLA_NUM_RX_QUEUES => link.rx_queues = number(value),
            IFLA_GSO_MAX_SEGS => link.gso_max_segments = number(value),
            IFLA_GSO_MAX_SIZE => link.gso_max_bytes = number(value),
            IFLA_TSO_MAX_SIZE => link.tso_max.0 = number(value),
            IFLA_TSO_MAX_SEGS => link.tso_max.1 = number(value),
            IFLA_GSO_IPV4_MAX_SIZE => link.gso_ipv4_max_bytes = number(value),
            IFLA_PARENT_DEV_NAME => device = text(value),
            IFLA_PARENT_DEV_BUS_NAME => bus = text(value),
            IFLA_LINKINFO => {
                link.kind = attributes(value)
                    .into_iter()
                    .find(|(kind, _)| *kind == IFLA_INFO_KIND)
                    .and_then(|(_, value)| text(value));
            }
            _ => {}
        }
    }
    link.parent = bus.zip(device);
    (!link.name.is_empty()).then_some(link)
}

fn address_of(kind: u16, body: &[u8]) -> Option<Address> {
    let header = body
        .first_chunk::<IFADDRMSG_BYTES>()
        .filter(|_| kind == NEW_ADDRESS)?;
    let attributes = attributes(&body[IFADDRMSG_BYTES..]);
    let (_, value) = attributes.iter().find(|(kind, _)| *kind == IFA_ADDRESS)?;
    Some(Address {
        link: number(&header[4..])?,
        address: ip_of(header[0], value)?,
        prefix: header[1],
    })
}

fn statistics_of(value: &[u8]) -> Option<Statistics> {
    let at = |place: usize| {
        let bytes = value.get(8 * place..8 * place + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    };
    Some(Statistics {
        rx_packets: at(0)?,
        tx_packets: at(1)?,
        rx_errors: at(4)?,
        tx_errors: at(5)?,
        rx_dropped: at(6)?,
        tx_dropped: at(7)?,
        rx_missed: at(15)?,
    })
}

/// Returns the output interface index of a route message.
fn route_of(kind: u16, body: &[u8]) -> Option<u32> {
    if kind != NEW_ROUTE {
        return None;
    }
    attributes(body.get(RTMSG_BYTES..)?)
        .into_iter()
        .find(|(kind, _)| *kind == RTA_OIF)
        .and_then(|(_, value)| number(value))
}

/// Returns family and bytes of an address, as in netlink messages.
pub(crate) fn octets(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (libc::AF_INET as u8, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6 as u8, address.octets().to_vec()),
    }
}

/// Returns the address with these bytes in a family.
pub(crate) fn ip_of(family: u8, value: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => Some(<[u8; 4]>::try_from(value).ok()?.into()),
        libc::AF_INET6 => Some(<[u8; 16]>::try_from(value).ok()?.into()),
        _ => None,
    }
}

pub(crate) fn number(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|value| u32::from_ne_bytes(*value))
}

fn text(value: &[u8]) -> Option<String> {
    let end = value
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(value.len());
    let text = String::from_utf8_lossy(&value[..end]).into_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_address_of_loopback_is_known() {
        let lo = links().unwrap().into_iter().find(|link| link.loopback);
        let lo = lo.expect("each namespace has one");
        assert!(!lo.point_to_point);
        let own = Address {
            link: lo.index,
            address: IpAddr::from([127, 0, 0, 1]),
            prefix: 8,
        };
        // An interface that is down may lack its address.
        assert!(!lo.up || addresses().unwrap().contains(&own));
    }

    #[test]
    fn a_link_is_read_attribute_by_attribute() {
        let mut body = link_header(7);
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
        let expected = Link {
            index: 7,
            name: "veth0".to_owned(),
            up: true,
            address: Some(vec![2, 0, 0, 0, 0, 9]),
            permanent_address: Some(vec![2, 0, 0, 0, 0, 8]),
            mtu: Some(1500),
            qdisc: Some("noqueue".to_owned()),
            gso_ipv4_max_bytes: Some(524_280),
            gso_max_segments: Some(65_535),
            tso_max: (Some(64_000), Some(24)),
            carrier_losses: Some(3),
            kind: Some("veth".to_owned()),
            ..Link::default()
        };
        assert_eq!(link_of(NEW_LINK, &body), Some(expected));
        assert_eq!(link_of(NEW_ROUTE, &body), None);
    }

    proptest! {
        #[test]
        fn no_bytes_can_hurt(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for (kind, body) in split(&bytes) {
                let _ = link_of(kind, body);
            }
            let _ = link_of(NEW_LINK, &bytes);
            let _ = route_of(NEW_ROUTE, &bytes);
            let _ = statistics_of(&bytes);
        }
    }

    #[test]
    fn loopback_counts() {
        let lo = link("lo").unwrap();
        assert!(lo.statistics.is_some());
    }

    #[test]
    fn loopback_is_there_by_name_and_in_the_list() {
        let lo = link("lo").unwrap();
        assert!(lo.loopback);
        assert!(lo.mtu.is_some());
        assert!(links().unwrap().iter().any(|link| link.name == "lo"));
        assert_eq!(
            link("none-such0").unwrap_err().raw_os_error(),
            Some(libc::ENODEV)
        );
    }
}
