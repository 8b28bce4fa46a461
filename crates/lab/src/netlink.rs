//! Links, addresses, routes and queueing disciplines through rtnetlink, one request at a time.
//!
//! A netlink socket belongs to the network namespace of the thread that *opened* it and stays there
//! on every thread, so one thread can build all namespaces through their sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{
    DefaultNla, ErrorMessage, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST,
    NetlinkMessage, NetlinkPayload, Nla, NlasIterator,
};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage,
};
use netlink_packet_route::link::{
    BridgeStpState, InfoBridge, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::error::LabError;
use crate::topology::Ipv4Prefix;

const TCA_OPTIONS: u16 = 2;
/// `NLMSGERR_ATTR_MSG` of linux/netlink.h: the kernel's error message.
const NLMSGERR_ATTR_MSG: u16 = 1;
/// Bytes of `struct nlmsghdr`.
const MESSAGE_HEADER_BYTES: usize = 16;

/// Netlink socket in one network namespace.
pub struct NetlinkSocket {
    socket: Socket,
    sequence: u32,
}

/// Link as the kernel reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    /// Interface index in its namespace.
    pub index: u32,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// True when the interface is administratively up.
    pub up: bool,
    /// Largest segment built for IPv6, in bytes; on kernels before 6.3 for IPv4 as well.
    pub gso: Option<u32>,
    /// Largest segment merged for IPv6, in bytes.
    pub gro: Option<u32>,
    /// Largest segment built for IPv4, in bytes; absent before Linux 6.3.
    pub gso_ipv4: Option<u32>,
    /// Largest segment merged for IPv4, in bytes; absent before Linux 6.3.
    pub gro_ipv4: Option<u32>,
}

/// Queueing discipline as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QdiscState {
    /// `tbf`, `netem`, ...
    pub kind: String,
    /// Raw `TCA_OPTIONS`.
    pub options: Vec<u8>,
}

impl NetlinkSocket {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Self, LabError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // Both only improve error messages; old kernels lack them.
            let _ = socket.set_ext_ack(true);
            let _ = socket.set_cap_ack(true);
            Ok(socket)
        };
        let socket = open().map_err(|error: io::Error| LabError::system("open netlink", error))?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Sends a request and collects the replies up to the acknowledgement or the end of the dump.
    fn request(
        &mut self,
        action: impl Fn() -> String,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RouteNetlinkMessage>, LabError> {
        let failed = |source, kernel_message| LabError::Kernel {
            action: action(),
            kernel_message,
            source,
        };
        self.sequence += 1;
        let mut packet = NetlinkMessage::from(message);
        packet.header.flags = NLM_F_REQUEST | flags;
        packet.header.sequence_number = self.sequence;
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket
            .send(&bytes, 0)
            .map_err(|error| failed(error, None))?;
        let mut replies = Vec::new();
        loop {
            let (bytes, _) = match self.socket.recv_from_full() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                received => received.map_err(|error| failed(error, None))?,
            };
            let mut rest = &bytes[..];
            while rest.len() >= MESSAGE_HEADER_BYTES {
                let reply = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|error| failed(io::Error::other(error.to_string()), None))?;
                // Messages are aligned to 4 bytes; the last one may lack its padding.
                let step = (reply.header.length as usize).next_multiple_of(4);
                rest = rest.get(step.max(MESSAGE_HEADER_BYTES)..).unwrap_or(&[]);
                if reply.header.sequence_number != self.sequence {
                    continue;
                }
                match reply.payload {
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(replies),
                    NetlinkPayload::Error(error) => {
                        return Err(failed(error.to_io(), kernel_message(&error)));
                    }
                    NetlinkPayload::Done(_) => return Ok(replies),
                    NetlinkPayload::InnerMessage(message) => replies.push(message),
                    _ => {}
                }
            }
        }
    }

    fn create(
        &mut self,
        action: impl Fn() -> String,
        message: RouteNetlinkMessage,
    ) -> Result<(), LabError> {
        self.request(action, message, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)
            .map(drop)
    }

    fn change(&mut self, action: impl Fn() -> String, link: LinkMessage) -> Result<(), LabError> {
        self.request(action, RouteNetlinkMessage::SetLink(link), NLM_F_ACK)
            .map(drop)
    }

    /// Makes a veth pair: `name` here, `peer` in the namespace of `peer_namespace`, both `mtu`
    /// bytes.
    pub fn add_veth(
        &mut self,
        name: &str,
        peer: &str,
        peer_namespace: BorrowedFd<'_>,
        mtu: u32,
    ) -> Result<(), LabError> {
        let mut peer_link = LinkMessage::default();
        peer_link.attributes = vec![
            LinkAttribute::IfName(peer.to_owned()),
            LinkAttribute::Mtu(mtu),
            // Created there rather than moved there: a move would need a free name here.
            LinkAttribute::NetNsFd(peer_namespace.as_raw_fd()),
        ];
        let mut link = LinkMessage::default();
        link.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer_link))),
            ]),
        ];
        self.create(
            || format!("make the veth pair {name}-{peer}"),
            RouteNetlinkMessage::NewLink(link),
        )
    }

    /// Makes a bridge that forwards from its first frame on.
    pub fn add_bridge(&mut self, name: &str) -> Result<(), LabError> {
        let mut link = LinkMessage::default();
        link.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Bridge),
                LinkInfo::Data(InfoData::Bridge(vec![
                    // Without spanning tree a port forwards as soon as it is up; the delay counts
                    // only with it, and is zeroed in case a distribution's defaults turn it on.
                    InfoBridge::StpState(BridgeStpState::Disabled),
                    InfoBridge::ForwardDelay(0),
                    // Snooping drops neighbour solicitations until a querier has been detected.
                    InfoBridge::MulticastSnooping(false),
                ])),
            ]),
        ];
        self.create(
            || format!("make the bridge {name}"),
            RouteNetlinkMessage::NewLink(link),
        )
    }

    /// Reads a link.
    pub fn link(&mut self, name: &str) -> Result<LinkState, LabError> {
        let mut request = LinkMessage::default();
        request.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        let replies = self.request(
            || format!("show the interface {name}"),
            RouteNetlinkMessage::GetLink(request),
            NLM_F_ACK,
        )?;
        let first_link = replies.into_iter().find_map(|reply| match reply {
            RouteNetlinkMessage::NewLink(link) => Some(link),
            _ => None,
        });
        let link = first_link.ok_or_else(|| {
            LabError::system(
                format!("find the interface {name}"),
                io::Error::from(io::ErrorKind::NotFound),
            )
        })?;
        let mut state = LinkState {
            index: link.header.index,
            up: link.header.flags.contains(LinkFlags::Up),
            ..LinkState::default()
        };
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::Mtu(mtu) => state.mtu = mtu,
                LinkAttribute::GsoMaxSize(bytes) => state.gso = Some(bytes),
                LinkAttribute::GroMaxSize(bytes) => state.gro = Some(bytes),
                LinkAttribute::GsoIpv4MaxSize(bytes) => state.gso_ipv4 = Some(bytes),
                LinkAttribute::GroIpv4MaxSize(bytes) => state.gro_ipv4 = Some(bytes),
                _ => {}
            }
        }
        Ok(state)
    }

    fn change_attributes(
        &mut self,
        index: u32,
        action: impl Fn() -> String,
        attributes: Vec<LinkAttribute>,
    ) -> Result<(), LabError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes = attributes;
        self.change(action, link)
    }

    /// Sets a link up.
    pub fn set_up(&mut self, index: u32) -> Result<(), LabError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        self.change(|| format!("set interface {index} up"), link)
    }

    /// Sets a link down: the peer interface loses its carrier.
    pub fn set_down(&mut self, index: u32) -> Result<(), LabError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.change_mask = LinkFlags::Up;
        self.change(|| format!("set interface {index} down"), link)
    }

    /// Makes a link a port of a bridge.
    pub fn set_bridge(&mut self, index: u32, bridge: u32) -> Result<(), LabError> {
        self.change_attributes(
            index,
            || format!("join interface {index} to bridge {bridge}"),
            vec![LinkAttribute::Controller(bridge)],
        )
    }

    /// Sets the largest segment that GSO builds and GRO merges, in bytes.
    pub fn set_gso(&mut self, index: u32, bytes: u32) -> Result<(), LabError> {
        // One request each, because a kernel before 6.3 ignores the two IPv4 attributes without an
        // error (the check reads them back), and because a GSO size up to 64 KiB also sets the IPv4
        // one.
        for attribute in [
            LinkAttribute::GsoMaxSize(bytes),
            LinkAttribute::GroMaxSize(bytes),
            LinkAttribute::GsoIpv4MaxSize(bytes),
            LinkAttribute::GroIpv4MaxSize(bytes),
        ] {
            self.change_attributes(
                index,
                || format!("set the GSO size of interface {index} to {bytes} bytes"),
                vec![attribute],
            )?;
        }
        Ok(())
    }

    /// Sets the sizes of GSO, GRO, IPv4 GSO and IPv4 GRO separately, in bytes.
    pub fn set_segment_sizes(&mut self, index: u32, sizes: [u32; 4]) -> Result<(), LabError> {
        let [gso, gro, gso_ipv4, gro_ipv4] = sizes;
        for attribute in [
            LinkAttribute::GsoMaxSize(gso),
            LinkAttribute::GroMaxSize(gro),
            LinkAttribute::GsoIpv4MaxSize(gso_ipv4),
            LinkAttribute::GroIpv4MaxSize(gro_ipv4),
        ] {
            self.change_attributes(
                index,
                || format!("set the segment sizes of interface {index}"),
                vec![attribute],
            )?;
        }
        Ok(())
    }

    /// Adds an IPv4 address.
    pub fn add_address(&mut self, index: u32, prefix: Ipv4Prefix) -> Result<(), LabError> {
        let broadcast = Ipv4Addr::from_bits(prefix.network() | !prefix.mask());
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = prefix.length;
        message.header.index = index;
        message.attributes = vec![
            // On Ethernet both are equal: `Address` would be the peer of a point-to-point link.
            AddressAttribute::Local(IpAddr::V4(prefix.address)),
            AddressAttribute::Address(IpAddr::V4(prefix.address)),
            AddressAttribute::Broadcast(broadcast),
        ];
        self.create(
            || format!("add the address {prefix}"),
            RouteNetlinkMessage::NewAddress(message),
        )
    }

    /// Adds an IPv6 address that is usable at once, without duplicate address detection.
    pub fn add_address_v6(
        &mut self,
        index: u32,
        address: Ipv6Addr,
        length: u8,
    ) -> Result<(), LabError> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet6;
        message.header.prefix_len = length;
        message.header.flags = AddressHeaderFlags::Nodad;
        message.header.index = index;
        message.attributes = vec![
            AddressAttribute::Local(IpAddr::V6(address)),
            AddressAttribute::Address(IpAddr::V6(address)),
            AddressAttribute::Flags(AddressFlags::Nodad),
        ];
        self.create(
            || format!("add the address {address}/{length}"),
            RouteNetlinkMessage::NewAddress(message),
        )
    }

    /// Adds a route through a gateway; both of one address family.
    pub fn add_route(
        &mut self,
        network: IpAddr,
        length: u8,
        gateway: IpAddr,
    ) -> Result<(), LabError> {
        let wrap = |address| match address {
            IpAddr::V4(address) => RouteAddress::Inet(address),
            IpAddr::V6(address) => RouteAddress::Inet6(address),
        };
        let mut message = RouteMessage::default();
        message.header.address_family = match network {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        message.header.destination_prefix_length = length;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![
            RouteAttribute::Destination(wrap(network)),
            RouteAttribute::Gateway(wrap(gateway)),
        ];
        self.create(
            || format!("add the route to {network}/{length} through {gateway}"),
            RouteNetlinkMessage::NewRoute(message),
        )
    }

    /// Adds the queueing discipline `handle`:0 at the root of an interface, or below another one.
    pub fn add_qdisc(
        &mut self,
        index: u32,
        kind: &str,
        handle: u16,
        parent: Option<u16>,
        options: Vec<u8>,
    ) -> Result<(), LabError> {
        let mut message = TcMessage::with_index(index as i32);
        message.header.handle = TcHandle {
            major: handle,
            minor: 0,
        };
        message.header.parent = parent.map_or(TcHandle::ROOT, |major| TcHandle { major, minor: 1 });
        message.attributes = vec![
            TcAttribute::Kind(kind.to_owned()),
            TcAttribute::Other(DefaultNla::new(TCA_OPTIONS, options)),
        ];
        self.create(
            || format!("add the queueing discipline {kind} to interface {index}"),
            RouteNetlinkMessage::NewQueueDiscipline(message),
        )
    }

    /// Reads every queueing discipline of an interface.
    pub fn qdiscs(&mut self, index: u32) -> Result<Vec<QdiscState>, LabError> {
        let replies = self.request(
            || format!("show the queueing disciplines of interface {index}"),
            RouteNetlinkMessage::GetQueueDiscipline(TcMessage::with_index(index as i32)),
            NLM_F_DUMP,
        )?;
        let states = replies.into_iter().filter_map(|reply| match reply {
            // The kernel filters a dump by interface only with strict checking.
            RouteNetlinkMessage::NewQueueDiscipline(qdisc)
                if qdisc.header.index == index as i32 =>
            {
                Some(qdisc_state(qdisc))
            }
            _ => None,
        });
        Ok(states.collect())
    }
}

fn qdisc_state(message: TcMessage) -> QdiscState {
    let mut state = QdiscState {
        kind: String::new(),
        options: Vec::new(),
    };
    for attribute in message.attributes {
        match attribute {
            TcAttribute::Kind(kind) => state.kind = kind,
            // For an unknown discipline the library returns one opaque attribute.
            TcAttribute::Options(options) => {
                if let Some(TcOption::Other(raw)) = options.first() {
                    state.options = vec![0; raw.value_len()];
                    raw.emit_value(&mut state.options);
                }
            }
            _ => {}
        }
    }
    state
}

/// Returns the kernel's error message.
fn kernel_message(error: &ErrorMessage) -> Option<String> {
    // With a capped acknowledgement: the header of the request, then the attributes.
    let attributes = error.header.get(MESSAGE_HEADER_BYTES..)?;
    let text = NlasIterator::new(attributes)
        .filter_map(Result::ok)
        .find(|nla| nla.kind() == NLMSGERR_ATTR_MSG)?;
    let text = String::from_utf8_lossy(text.value());
    Some(text.trim_end_matches('\0').to_owned())
}
