//! Headers of all flows as bytes, with the constant parts of their checksums.

use linerate_record::generate::{TemplatePlan, UdpPlan, VlanPlan};

use super::address::{
    MAC_BYTES, mac_bytes, mac_number, mac_text, parse_ipv4, parse_ipv6, parse_mac,
};
use super::{FieldValues, TemplateError};
use crate::checksum::{add_folded, sum};
use crate::ip_protocol;

/// Local experimental ethertype 1 (IEEE 802).
const ETHERTYPE_EXPERIMENT: u16 = 0x88b5;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_OUTER_VLAN: u16 = 0x88a8;

/// Default TTL of hosts (RFC 1700).
const DEFAULT_TTL: u8 = 64;
/// Default source port: the first dynamic port (RFC 6335).
const DEFAULT_SOURCE_PORT: &str = "49152";
/// Default destination port: discard (RFC 863).
const DEFAULT_DESTINATION_PORT: &str = "9";
/// Don't Fragment: such packets need no identification (RFC 6864).
const DONT_FRAGMENT: u16 = 0x4000;

/// Checksum of the innermost header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChecksumField {
    None,
    /// At offset `offset`, over all bytes from `from` on.
    At {
        /// Offset of the checksum field.
        offset: usize,
        /// Offset of the segment.
        segment_start: usize,
        /// Number of times the segment length is summed: once in the pseudo header, once more in
        /// UDP's own header.
        length_terms: u16,
        /// UDP: 0 means no checksum, so a sum of 0 is sent as all ones (RFC 768).
        zero_is_ones: bool,
    },
}

/// Concatenated headers of all flows.
#[derive(Clone, Debug)]
pub(super) struct FlowHeaders {
    bytes: Box<[u8]>,
    length: usize,
    /// Sum of the IPv4 header without its length, by flow.
    ip_sums: Box<[u16]>,
    /// Sum of pseudo header and transport header without lengths, by flow.
    transport_sums: Box<[u16]>,
    ip_offset_and_version: Option<(usize, bool)>,
    udp_length: Option<usize>,
    checksum: ChecksumField,
}

impl FlowHeaders {
    pub(super) fn length(&self) -> usize {
        self.length
    }

    pub(super) fn checksum(&self) -> ChecksumField {
        self.checksum
    }

    #[inline]
    pub(super) fn of_flow(&self, flow: u32) -> &[u8] {
        let at = flow as usize * self.length;
        &self.bytes[at..at + self.length]
    }

    /// Writes lengths and checksums; `payload` is the sum of the bytes after the headers.
    #[inline]
    pub(super) fn fill_in(&self, frame: &mut [u8], flow: u32, payload: u16) {
        let Some((ip, version_6)) = self.ip_offset_and_version else {
            return;
        };
        let packet = (frame.len() - ip) as u16;
        if version_6 {
            put(frame, ip + 4, packet - 40);
        } else {
            put(frame, ip + 2, packet);
            let sum = add_folded(self.ip_sums[flow as usize], to_sum_order(packet));
            frame[ip + 10..ip + 12].copy_from_slice(&(!sum).to_ne_bytes());
        }
        let segment = match self.checksum {
            ChecksumField::None => return,
            ChecksumField::At { segment_start, .. } => (frame.len() - segment_start) as u16,
        };
        if let Some(offset) = self.udp_length {
            put(frame, offset, segment);
        }
        if let ChecksumField::At {
            offset,
            length_terms,
            zero_is_ones,
            ..
        } = self.checksum
        {
            let mut total = add_folded(self.transport_sums[flow as usize], payload);
            for _ in 0..length_terms {
                total = add_folded(total, to_sum_order(segment));
            }
            let value = match !total {
                0 if zero_is_ones => u16::MAX,
                value => value,
            };
            frame[offset..offset + 2].copy_from_slice(&value.to_ne_bytes());
        }
    }
}

#[inline]
fn put(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Returns a number in the byte order in which this host sums the words of a frame.
#[inline]
fn to_sum_order(value: u16) -> u16 {
    u16::from_ne_bytes(value.to_be_bytes())
}

enum NetworkLayer {
    None {
        ethertype: u16,
    },
    Arp {
        source: FieldValues,
        destination: FieldValues,
    },
    Ip {
        version_6: bool,
        source: FieldValues,
        destination: FieldValues,
        ttl: u8,
        tos: u8,
    },
}

enum TransportLayer {
    None,
    Udp {
        source: FieldValues,
        destination: FieldValues,
    },
    Tcp {
        source: FieldValues,
        destination: FieldValues,
        flags: u8,
    },
    Icmp {
        id: FieldValues,
    },
}

struct VlanTag {
    id: FieldValues,
    priority: u8,
    ethertype: u16,
}

/// Parsed fields of a template.
pub(super) struct TemplateFields {
    source: FieldValues,
    destination: FieldValues,
    vlans: Vec<VlanTag>,
    network: NetworkLayer,
    transport: TransportLayer,
}

fn mac_values(
    field: &'static str,
    text: Option<&str>,
    default: [u8; MAC_BYTES],
) -> Result<FieldValues, TemplateError> {
    match text {
        None => Ok(FieldValues::single(mac_number(default))),
        Some(text) => FieldValues::parse(field, text, &mac_text(default), parse_mac),
    }
}

fn port_values(
    field: &'static str,
    text: Option<&str>,
    usual: &str,
) -> Result<FieldValues, TemplateError> {
    FieldValues::parse(
        field,
        text.unwrap_or(usual),
        "0 to 65535: 9, 9-20",
        |text| text.parse::<u16>().ok().map(u128::from),
    )
}

fn bounded_values(
    field: &'static str,
    text: &str,
    max: u128,
    example: &str,
) -> Result<FieldValues, TemplateError> {
    FieldValues::parse(field, text, example, |text| {
        text.parse().ok().filter(|&value| value <= max)
    })
}

/// Letters of the TCP flags, from bit 0.
const TCP_FLAG_LETTERS: &str = "FSRPAU";

fn parse_tcp_flags(text: &str) -> Result<u8, TemplateError> {
    let bits = text.chars().map(|letter| TCP_FLAG_LETTERS.find(letter));
    let bits: Option<u8> = bits
        .map(|bit| Some(1u8 << bit?))
        .try_fold(0, |all, bit| Some(all | bit?));
    bits.ok_or_else(|| TemplateError::BadValue {
        field: "tcp.flags",
        text: text.to_owned(),
        example: "letters of FSRPAU: SA".to_owned(),
    })
}

impl TemplateFields {
    pub(super) fn parse(
        plan: &TemplatePlan,
        port_address: [u8; MAC_BYTES],
        peer_address: [u8; MAC_BYTES],
    ) -> Result<Self, TemplateError> {
        check_exclusive(&[
            ("ipv4", plan.ipv4.is_some()),
            ("ipv6", plan.ipv6.is_some()),
            ("arp", plan.arp.is_some()),
        ])?;
        check_exclusive(&[
            ("udp", plan.udp.is_some()),
            ("tcp", plan.tcp.is_some()),
            ("icmp", plan.icmp.is_some()),
        ])?;
        let ethernet = plan.ethernet.clone().unwrap_or_default();
        let network = network(plan, ethernet.ethertype)?;
        let has_ip = matches!(network, NetworkLayer::Ip { .. });
        if !has_ip && (plan.udp.is_some() || plan.tcp.is_some() || plan.icmp.is_some()) {
            return Err(TemplateError::Conflict {
                first: "a transport header",
                second: "frames without IP",
            });
        }
        Ok(Self {
            source: mac_values("ethernet.source", ethernet.source.as_deref(), port_address)?,
            destination: mac_values(
                "ethernet.destination",
                ethernet.destination.as_deref(),
                peer_address,
            )?,
            vlans: vlans(&plan.vlan)?,
            network,
            transport: if has_ip {
                transport(plan)?
            } else {
                TransportLayer::None
            },
        })
    }

    /// Returns the number of values of the field that has the most.
    pub(super) fn flows(&self) -> u64 {
        let mut fields = vec![&self.source, &self.destination];
        fields.extend(self.vlans.iter().map(|vlan| &vlan.id));
        match &self.network {
            NetworkLayer::None { .. } => {}
            NetworkLayer::Arp {
                source,
                destination,
            }
            | NetworkLayer::Ip {
                source,
                destination,
                ..
            } => {
                fields.extend([source, destination]);
            }
        }
        match &self.transport {
            TransportLayer::None => {}
            TransportLayer::Udp {
                source,
                destination,
            }
            | TransportLayer::Tcp {
                source,
                destination,
                ..
            } => {
                fields.extend([source, destination]);
            }
            TransportLayer::Icmp { id } => fields.push(id),
        }
        fields
            .into_iter()
            .map(FieldValues::count)
            .max()
            .unwrap_or(1)
    }

    /// Builds the headers of `flows` flows.
    pub(super) fn headers(&self, flows: u32, seed: u64) -> FlowHeaders {
        let mut bytes = Vec::new();
        let (mut ip_sums, mut transport_sums) = (Vec::new(), Vec::new());
        let ip_at = 2 * MAC_BYTES + 2 + 4 * self.vlans.len();
        let (ip, transport_at) = match self.network {
            NetworkLayer::Ip { version_6, .. } => (
                Some((ip_at, version_6)),
                ip_at + if version_6 { 40 } else { 20 },
            ),
            _ => (None, ip_at),
        };
        for flow in 0..u64::from(flows) {
            let from = bytes.len();
            self.write(&mut bytes, flow, seed);
            let header = &bytes[from..];
            if let Some((ip, version_6)) = ip {
                ip_sums.push(sum(&header[ip..transport_at]));
                transport_sums.push(self.transport_sum(
                    &header[ip..transport_at],
                    version_6,
                    &header[transport_at..],
                ));
            }
        }
        let (checksum, udp_length) = self.checksum(transport_at, ip.is_some_and(|(_, six)| six));
        FlowHeaders {
            length: bytes.len() / flows as usize,
            bytes: bytes.into(),
            ip_sums: ip_sums.into(),
            transport_sums: transport_sums.into(),
            ip_offset_and_version: ip,
            udp_length,
            checksum,
        }
    }

    fn checksum(&self, segment_start: usize, version_6: bool) -> (ChecksumField, Option<usize>) {
        let field_at = |offset, length_terms, zero_is_ones| ChecksumField::At {
            offset: segment_start + offset,
            segment_start,
            length_terms,
            zero_is_ones,
        };
        match self.transport {
            TransportLayer::None => (ChecksumField::None, None),
            TransportLayer::Udp { .. } => (field_at(6, 2, true), Some(segment_start + 4)),
            TransportLayer::Tcp { .. } => (field_at(16, 1, false), None),
            // ICMPv4 has no pseudo header (RFC 792), ICMPv6 has one (RFC 4443).
            TransportLayer::Icmp { .. } => (field_at(2, version_6.into(), false), None),
        }
    }

    fn protocol(&self, version_6: bool) -> u8 {
        match self.transport {
            // No transport header: protocol number for experiments (RFC 3692).
            TransportLayer::None => 253,
            TransportLayer::Udp { .. } => ip_protocol::UDP,
            TransportLayer::Tcp { .. } => ip_protocol::TCP,
            TransportLayer::Icmp { .. } if version_6 => ip_protocol::ICMPV6,
            TransportLayer::Icmp { .. } => ip_protocol::ICMP,
        }
    }

    fn transport_sum(&self, ip: &[u8], version_6: bool, header: &[u8]) -> u16 {
        let header_sum = sum(header);
        if matches!(self.transport, TransportLayer::Icmp { .. }) && !version_6 {
            return header_sum;
        }
        let addresses = if version_6 { &ip[8..40] } else { &ip[12..20] };
        let protocol = to_sum_order(self.protocol(version_6).into());
        add_folded(add_folded(header_sum, sum(addresses)), protocol)
    }

    fn write(&self, bytes: &mut Vec<u8>, flow: u64, seed: u64) {
        // Each field has its own seed: with a shared one all fields would get the same random
        // values.
        let mut field = 0u64;
        let mut value_of = |values: &FieldValues| {
            field += 1;
            values.value_of_flow(
                flow,
                seed.wrapping_add(field.wrapping_mul(0x5851_f42d_4c95_7f2d)),
            )
        };
        let source = mac_bytes(value_of(&self.source));
        bytes.extend(mac_bytes(value_of(&self.destination)));
        bytes.extend(source);
        for vlan in &self.vlans {
            bytes.extend(vlan.ethertype.to_be_bytes());
            let control = u16::from(vlan.priority) << 13 | value_of(&vlan.id) as u16;
            bytes.extend(control.to_be_bytes());
        }
        match &self.network {
            NetworkLayer::None { ethertype } => bytes.extend(ethertype.to_be_bytes()),
            NetworkLayer::Arp {
                source: sender,
                destination,
            } => {
                bytes.extend(ETHERTYPE_ARP.to_be_bytes());
                // Ethernet, IPv4, lengths of their addresses, request.
                bytes.extend([0, 1, 8, 0, 6, 4, 0, 1]);
                bytes.extend(source);
                bytes.extend((value_of(sender) as u32).to_be_bytes());
                bytes.extend([0; MAC_BYTES]);
                bytes.extend((value_of(destination) as u32).to_be_bytes());
            }
            NetworkLayer::Ip {
                version_6: false,
                source,
                destination,
                ttl,
                tos,
            } => {
                bytes.extend(ETHERTYPE_IPV4.to_be_bytes());
                bytes.extend([0x45, *tos, 0, 0, 0, 0]);
                bytes.extend(DONT_FRAGMENT.to_be_bytes());
                bytes.extend([*ttl, self.protocol(false), 0, 0]);
                bytes.extend((value_of(source) as u32).to_be_bytes());
                bytes.extend((value_of(destination) as u32).to_be_bytes());
            }
            NetworkLayer::Ip {
                source,
                destination,
                ttl,
                tos,
                ..
            } => {
                bytes.extend(ETHERTYPE_IPV6.to_be_bytes());
                bytes.extend((6 << 28 | u32::from(*tos) << 20).to_be_bytes());
                bytes.extend([0, 0, self.protocol(true), *ttl]);
                bytes.extend(value_of(source).to_be_bytes());
                bytes.extend(value_of(destination).to_be_bytes());
            }
        }
        match &self.transport {
            TransportLayer::None => {}
            TransportLayer::Udp {
                source,
                destination,
            } => {
                bytes.extend((value_of(source) as u16).to_be_bytes());
                bytes.extend((value_of(destination) as u16).to_be_bytes());
                bytes.extend([0; 4]);
            }
            TransportLayer::Tcp {
                source,
                destination,
                flags,
            } => {
                bytes.extend((value_of(source) as u16).to_be_bytes());
                bytes.extend((value_of(destination) as u16).to_be_bytes());
                bytes.extend(1u32.to_be_bytes());
                bytes.extend(0u32.to_be_bytes());
                // Header length of five words; largest window.
                bytes.extend([0x50, *flags, 0xff, 0xff, 0, 0, 0, 0]);
            }
            TransportLayer::Icmp { id } => {
                let version_6 = matches!(
                    self.network,
                    NetworkLayer::Ip {
                        version_6: true,
                        ..
                    }
                );
                // Echo request (RFC 792, RFC 4443).
                bytes.extend([if version_6 { 128 } else { 8 }, 0, 0, 0]);
                bytes.extend((value_of(id) as u16).to_be_bytes());
                bytes.extend([0, 0]);
            }
        }
    }
}

fn check_exclusive(parts: &[(&'static str, bool)]) -> Result<(), TemplateError> {
    let mut present = parts.iter().filter(|(_, present)| *present);
    match (present.next(), present.next()) {
        (Some((first, _)), Some((second, _))) => Err(TemplateError::Conflict { first, second }),
        _ => Ok(()),
    }
}

fn network(plan: &TemplatePlan, ethertype: Option<u16>) -> Result<NetworkLayer, TemplateError> {
    if let Some(arp) = &plan.arp {
        let read = |field, text: &Option<String>, usual: &str| {
            FieldValues::parse(field, text.as_deref().unwrap_or(usual), usual, parse_ipv4)
        };
        return Ok(NetworkLayer::Arp {
            source: read("arp.source", &arp.source, "198.18.0.1")?,
            destination: read("arp.destination", &arp.destination, "198.18.0.2")?,
        });
    }
    if let Some(ethertype) = ethertype {
        if plan.ipv4.is_some() || plan.ipv6.is_some() {
            return Err(TemplateError::Conflict {
                first: "ethernet.ethertype",
                second: "IP",
            });
        }
        return Ok(NetworkLayer::None {
            ethertype: if ethertype == 0 {
                ETHERTYPE_EXPERIMENT
            } else {
                ethertype
            },
        });
    }
    let version_6 = plan.ipv6.is_some();
    let ip = plan
        .ipv6
        .as_ref()
        .or(plan.ipv4.as_ref())
        .cloned()
        .unwrap_or_default();
    type Read = fn(&str) -> Option<u128>;
    let (usual, read, read_other_version): (_, Read, Read) = match version_6 {
        true => (["2001:2::1", "2001:2::2"], parse_ipv6, parse_ipv4),
        false => (["198.18.0.1", "198.18.0.2"], parse_ipv4, parse_ipv6),
    };
    let values = |field, text: &Option<String>, usual: &str| {
        let text = text.as_deref().unwrap_or(usual);
        FieldValues::parse(field, text, usual, read).map_err(|error| match error {
            TemplateError::BadValue { .. } if FieldValues::parse(field, text, "", read_other_version).is_ok() => {
                TemplateError::BadValue {
                    field,
                    text: text.to_owned(),
                    example: format!(
                        "an IPv{} address, because both addresses of a frame have the same version ({usual})",
                        if version_6 { 6 } else { 4 }
                    ),
                }
            }
            error => error,
        })
    };
    Ok(NetworkLayer::Ip {
        version_6,
        source: values("ip.source", &ip.source, usual[0])?,
        destination: values("ip.destination", &ip.destination, usual[1])?,
        ttl: ip.ttl.unwrap_or(DEFAULT_TTL),
        tos: ip.tos.unwrap_or(0),
    })
}

fn vlans(plans: &[VlanPlan]) -> Result<Vec<VlanTag>, TemplateError> {
    let last = plans.len().saturating_sub(1);
    let tags = plans.iter().enumerate().map(|(number, plan)| {
        if plan.priority > 7 {
            return Err(TemplateError::BadValue {
                field: "vlan.priority",
                text: plan.priority.to_string(),
                example: "0 to 7".to_owned(),
            });
        }
        let usual = if number < last {
            ETHERTYPE_OUTER_VLAN
        } else {
            ETHERTYPE_VLAN
        };
        Ok(VlanTag {
            id: bounded_values("vlan.id", &plan.id, 4095, "0 to 4095")?,
            priority: plan.priority,
            ethertype: plan.ethertype.unwrap_or(usual),
        })
    });
    tags.collect()
}

fn transport(plan: &TemplatePlan) -> Result<TransportLayer, TemplateError> {
    if let Some(icmp) = &plan.icmp {
        let id = icmp.id.as_deref().unwrap_or("1");
        return Ok(TransportLayer::Icmp {
            id: bounded_values("icmp.id", id, 65_535, "0 to 65535")?,
        });
    }
    if let Some(tcp) = &plan.tcp {
        return Ok(TransportLayer::Tcp {
            source: port_values("tcp.source", tcp.source.as_deref(), DEFAULT_SOURCE_PORT)?,
            destination: port_values(
                "tcp.destination",
                tcp.destination.as_deref(),
                DEFAULT_DESTINATION_PORT,
            )?,
            flags: parse_tcp_flags(tcp.flags.as_deref().unwrap_or("A"))?,
        });
    }
    let UdpPlan {
        source,
        destination,
    } = plan.udp.clone().unwrap_or_default();
    Ok(TransportLayer::Udp {
        source: port_values("udp.source", source.as_deref(), DEFAULT_SOURCE_PORT)?,
        destination: port_values(
            "udp.destination",
            destination.as_deref(),
            DEFAULT_DESTINATION_PORT,
        )?,
    })
}
