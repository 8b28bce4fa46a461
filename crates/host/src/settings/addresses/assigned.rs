//! Assigned address: its netlink form and its text.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use crate::netlink::{
    IFA_ADDRESS, IFADDRMSG_BYTES, InterfaceLink, family_and_bytes, parse_ip, parse_u32,
    push_attribute, split_attributes,
};

/// `IFA_…` of linux/if_addr.h.
const IFA_LOCAL: u16 = 2;
const IFA_LABEL: u16 = 3;
const IFA_BROADCAST: u16 = 4;
const IFA_CACHEINFO: u16 = 6;
const IFA_FLAGS: u16 = 8;
const IFA_PROTO: u16 = 11;

/// Flags set on request (`IFA_F_NODAD`, `_HOMEADDRESS`, `_MANAGETEMPADDR`, `_NOPREFIXROUTE`,
/// `_MCAUTOJOIN`); other flags are states that the kernel sets.
const REQUESTED_FLAGS: u32 = 0x02 | 0x10 | 0x100 | 0x200 | 0x400;
/// `IFA_F_TEMPORARY`: derived by the kernel from a router's prefix, and replaced later.
const IFA_F_TEMPORARY: u32 = 0x01;
/// `IFAPROT_KERNEL_RA` and `IFAPROT_KERNEL_LL` (Linux 5.18): router's prefix, and link-local.
const KERNEL_PROTOCOLS: [u8; 2] = [2, 3];
/// Infinite lifetime (`INFINITY_LIFE_TIME` of net/addrconf.h).
const INFINITE_LIFETIME: u32 = u32::MAX;

/// Address of an interface that was assigned by an administrator or a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AssignedAddress {
    pub address: IpAddr,
    /// Address of the peer, where both were set together.
    peer: Option<IpAddr>,
    prefix: u8,
    broadcast: Option<Ipv4Addr>,
    /// Scope (`RT_SCOPE_…`); 0 is universal.
    scope: u8,
    /// Further attributes by number: a label other than the interface name, the metric of its
    /// route, flags, and attributes of newer kernels.
    attributes: Vec<(u16, Vec<u8>)>,
    lifetime: AddressLifetime,
}

/// Ends of preferred and valid lifetime, seconds of the monotonic clock; `None`: infinite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AddressLifetime {
    valid: Option<u64>,
    preferred: Option<u64>,
}

impl AssignedAddress {
    /// Returns whether both are equal except for lifetimes, which may be extended while an address
    /// stays.
    pub fn equals_except_lifetime(&self, other: &Self) -> bool {
        let lifetime = self.lifetime;
        *self
            == Self {
                lifetime,
                ..other.clone()
            }
    }

    /// Returns whether the address expires.
    pub fn is_temporary(&self) -> bool {
        self.lifetime.valid.is_some()
    }

    pub fn has_expired(&self, now_s: u64) -> bool {
        self.lifetime.valid.is_some_and(|end| end <= now_s)
    }

    /// Encodes the message body that adds or removes the address.
    pub fn encode(&self, index: u32, now_s: u64) -> Vec<u8> {
        let (family, bytes) = family_and_bytes(self.address);
        let mut message = vec![family, self.prefix, 0, self.scope];
        message.extend(index.to_ne_bytes());
        push_attribute(&mut message, IFA_LOCAL, &bytes);
        let (_, peer) = family_and_bytes(self.peer.unwrap_or(self.address));
        push_attribute(&mut message, IFA_ADDRESS, &peer);
        if let Some(broadcast) = self.broadcast {
            push_attribute(&mut message, IFA_BROADCAST, &broadcast.octets());
        }
        for (kind, value) in &self.attributes {
            push_attribute(&mut message, *kind, value);
        }
        if self.lifetime != AddressLifetime::default() {
            push_attribute(&mut message, IFA_CACHEINFO, &self.lifetime.encode(now_s));
        }
        message
    }

    /// Decodes an address of `link`; `None` for another link, and for addresses that the kernel
    /// manages itself.
    pub fn decode(link: &InterfaceLink, now_s: u64, body: &[u8]) -> Option<Self> {
        let (header, rest) = body.split_first_chunk::<IFADDRMSG_BYTES>()?;
        let [family, prefix, flags, scope, interface @ ..] = *header;
        if u32::from_ne_bytes(interface) != link.index {
            return None;
        }
        let (mut local, mut peer, mut broadcast, mut flags) = (None, None, None, u32::from(flags));
        let (mut other_attributes, mut lifetime) = (Vec::new(), AddressLifetime::default());
        for (kind, value) in split_attributes(rest) {
            match kind {
                IFA_LOCAL => local = parse_ip(family, value),
                IFA_ADDRESS => peer = parse_ip(family, value),
                IFA_BROADCAST => broadcast = value.first_chunk::<4>().copied().map(Ipv4Addr::from),
                IFA_FLAGS => flags = parse_u32(value).unwrap_or(flags),
                IFA_CACHEINFO => lifetime = AddressLifetime::decode(value, now_s),
                // The default label, which changes with the interface name.
                IFA_LABEL if value.strip_suffix(&[0]) == Some(link.name.as_bytes()) => {}
                _ => other_attributes.push((kind, value.to_vec())),
            }
        }
        let requested_flags = flags & REQUESTED_FLAGS;
        if requested_flags != 0 {
            other_attributes.push((IFA_FLAGS, requested_flags.to_ne_bytes().to_vec()));
        }
        other_attributes.sort();
        let address = local.or(peer)?;
        let is_kernel_protocol = |(kind, value): &(u16, Vec<u8>)| {
            *kind == IFA_PROTO
                && value
                    .first()
                    .is_some_and(|protocol| KERNEL_PROTOCOLS.contains(protocol))
        };
        let (is_assigned, scope) = match address {
            IpAddr::V4(_) => (true, scope),
            // The kernel derives the scope from the address.
            IpAddr::V6(address) => {
                let is_link_local = address.is_unicast_link_local();
                let is_generated =
                    flags & IFA_F_TEMPORARY != 0 || other_attributes.iter().any(is_kernel_protocol);
                (!is_link_local && !is_generated, 0)
            }
        };
        is_assigned.then_some(Self {
            address,
            peer: peer.filter(|peer| *peer != address),
            prefix,
            broadcast,
            scope,
            attributes: other_attributes,
            lifetime,
        })
    }
}

impl AddressLifetime {
    /// Encodes `struct ifa_cacheinfo`: remaining seconds of both, and two times set by the kernel.
    fn encode(self, now_s: u64) -> Vec<u8> {
        let remaining_s = |end: Option<u64>| match end {
            None => INFINITE_LIFETIME,
            Some(end) => u32::try_from(end.saturating_sub(now_s)).unwrap_or(INFINITE_LIFETIME),
        };
        let valid = remaining_s(self.valid);
        let fields = [remaining_s(self.preferred).min(valid), valid, 0, 0];
        fields.into_iter().flat_map(u32::to_ne_bytes).collect()
    }

    fn decode(value: &[u8], now_s: u64) -> Self {
        let read_end = |offset: usize| {
            let remaining_s = parse_u32(value.get(offset..)?)?;
            (remaining_s != INFINITE_LIFETIME).then(|| now_s.saturating_add(remaining_s.into()))
        };
        Self {
            valid: read_end(4),
            preferred: read_end(0),
        }
    }
}

impl fmt::Display for AssignedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        if let Some(peer) = self.peer {
            write!(f, ">{peer}")?;
        }
        write!(f, "/{}", self.prefix)?;
        if let Some(broadcast) = self.broadcast {
            write!(f, "+{broadcast}")?;
        }
        if self.scope != 0 {
            write!(f, "@{}", self.scope)?;
        }
        for (kind, value) in &self.attributes {
            write!(f, ",{kind}=")?;
            value.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        let end_text = |end_text: Option<u64>| {
            end_text.map_or_else(|| "-".to_owned(), |end_text| end_text.to_string())
        };
        match self.lifetime {
            AddressLifetime {
                valid: None,
                preferred: None,
            } => Ok(()),
            AddressLifetime { valid, preferred } => {
                write!(f, "~{}:{}", end_text(valid), end_text(preferred))
            }
        }
    }
}

impl FromStr for AssignedAddress {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        parse_address(text).ok_or_else(|| {
            let problem = format!("`{text}` is not an address with a prefix length");
            io::Error::new(io::ErrorKind::InvalidInput, problem)
        })
    }
}

fn parse_address(address_text: &str) -> Option<AssignedAddress> {
    let (rest, lifetime) = match address_text.split_once('~') {
        Some((rest, lifetime_text)) => {
            let (valid, preferred) = lifetime_text.split_once(':')?;
            let end = |text: &str| match text {
                "-" => Some(None),
                _ => text.parse().ok().map(Some),
            };
            let (valid, preferred) = (end(valid)?, end(preferred)?);
            (rest, AddressLifetime { valid, preferred })
        }
        None => (address_text, AddressLifetime::default()),
    };
    let mut attribute_texts = rest.split(',');
    let rest = attribute_texts.next()?;
    let attributes = attribute_texts.map(|address_text| {
        let (kind, value) = address_text.split_once('=')?;
        Some((kind.parse().ok()?, decode_hex(value)?))
    });
    let attributes = attributes.collect::<Option<Vec<_>>>()?;
    let (rest, scope) = rest.split_once('@').unwrap_or((rest, "0"));
    let (rest, broadcast) = match rest.split_once('+') {
        Some((rest, broadcast)) => (rest, Some(broadcast.parse().ok()?)),
        None => (rest, None),
    };
    let (lifetime_text, prefix) = rest.split_once('/')?;
    let (address, peer) = match lifetime_text.split_once('>') {
        Some((address, peer)) => (address, Some(peer.parse::<IpAddr>().ok()?)),
        None => (lifetime_text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let prefix = prefix.parse().ok()?;
    let is_same_family = peer.is_none_or(|peer| peer.is_ipv4() == address.is_ipv4());
    let bits = if address.is_ipv4() { 32 } else { 128 };
    (is_same_family && prefix <= bits).then_some(AssignedAddress {
        address,
        peer,
        prefix,
        broadcast,
        scope: scope.parse().ok()?,
        attributes,
        lifetime,
    })
}

/// Decodes pairs of hexadecimal digits.
fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let [high, low] = *pair else { return None };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        u8::try_from(digit(high)? << 4 | digit(low)?).ok()
    };
    pairs.map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `t0`, interface 7.
    fn link() -> InterfaceLink {
        InterfaceLink {
            index: 7,
            name: "t0".to_owned(),
            ..InterfaceLink::default()
        }
    }

    /// An hour after the machine started.
    const NOW_S: u64 = 3_600;

    #[test]
    fn text_and_message_round_trip() {
        for text in [
            "10.0.0.1/24",
            "10.0.0.1/24+10.0.0.255",
            "10.0.0.1>10.0.0.2/32",
            "169.254.3.1/16@253",
            "fd00::1/64",
            "fd00::1>fd00::2/128",
            // The label `t0:a`, a metric, and an attribute of a newer kernel.
            "10.0.0.1/24+10.0.0.255@253,3=74303a6100,9=4d000000,77=01",
            "10.0.0.1/24~5400:4500",
            // Deprecated, without an end.
            "fd00::1/64~-:3600",
        ] {
            let address: AssignedAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            let message = address.encode(7, NOW_S);
            assert_eq!(
                AssignedAddress::decode(&link(), NOW_S, &message),
                Some(address),
                "{text}"
            );
            let other_link = InterfaceLink { index: 8, ..link() };
            assert_eq!(
                AssignedAddress::decode(&other_link, NOW_S, &message),
                None,
                "{text}"
            );
        }
        for text in [
            "",
            "10.0.0.1",
            "10.0.0.1/33",
            "10.0.0.1>fd00::1/8",
            "a/8",
            "::1/8@x",
            "::1/8,3",
            "::1/8,3=0",
            "::1/8,3=+1",
            "::1/8~5",
            "::1/8~5:x",
        ] {
            assert!(text.parse::<AssignedAddress>().is_err(), "{text}");
        }
    }

    /// Encodes an address with further attributes, as the kernel does, and decodes it.
    fn decode_with(text: &str, attributes: &[(u16, &[u8])]) -> Option<String> {
        let mut message = text.parse::<AssignedAddress>().unwrap().encode(7, NOW_S);
        for (kind, value) in attributes {
            push_attribute(&mut message, *kind, value);
        }
        AssignedAddress::decode(&link(), NOW_S, &message).map(|address| address.to_string())
    }

    #[test]
    fn default_attributes_are_omitted() {
        let text = "10.0.0.1/24";
        // Interface name as label, infinite lifetime, second of its network.
        let forever = [0xff; 16];
        let plain: [(u16, &[u8]); 3] = [
            (IFA_LABEL, b"t0\0"),
            (IFA_CACHEINFO, &forever),
            (IFA_FLAGS, &0x81_u32.to_ne_bytes()),
        ];
        assert_eq!(decode_with(text, &plain).as_deref(), Some(text));
        // No prefix route, plus flags that the kernel sets.
        let flags = (IFA_FLAGS, &0x2c0_u32.to_ne_bytes()[..]);
        let expected = AssignedAddress {
            attributes: vec![(IFA_FLAGS, 0x200_u32.to_ne_bytes().to_vec())],
            ..text.parse().unwrap()
        };
        assert_eq!(decode_with(text, &[flags]), Some(expected.to_string()));
    }

    #[test]
    fn addresses_managed_by_the_kernel_are_skipped() {
        assert_eq!(decode_with("fe80::1/64", &[]), None);
        assert_eq!(decode_with("fd00::1/64", &[(IFA_PROTO, &[2])]), None);
        let temporary = (IFA_FLAGS, &IFA_F_TEMPORARY.to_ne_bytes()[..]);
        assert_eq!(decode_with("fd00::1/64~5400:4500", &[temporary]), None);
        // For IPv4 the same bit means a secondary address of a network.
        assert!(decode_with("10.0.0.1/24", &[temporary]).is_some());
        assert!(decode_with("fd00::1/64", &[(IFA_PROTO, &[4])]).is_some());
    }

    /// After a quarter of an hour, an address with half an hour has a quarter of an hour left.
    #[test]
    fn lifetimes_continue() {
        let address: AssignedAddress = "10.0.0.1/24~5400:4500".parse().unwrap();
        let message = address.encode(7, NOW_S + 900);
        let lifetime_bytes = [0_u32, 900, 0, 0].map(u32::to_ne_bytes).concat();
        assert!(message.ends_with(&lifetime_bytes), "{message:?}");
        assert!(
            address.is_temporary() && !address.has_expired(5_399) && address.has_expired(5_400)
        );
        let longer: AssignedAddress = "10.0.0.1/24~9000:9000".parse().unwrap();
        assert!(address.equals_except_lifetime(&longer) && address != longer);
    }

    proptest! {
        #[test]
        fn no_bytes_can_hurt(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = AssignedAddress::decode(&InterfaceLink::default(), NOW_S, &bytes);
        }

        #[test]
        fn no_text_panics(text in ".{0,24}") {
            let _ = text.parse::<AssignedAddress>();
        }
    }
}
