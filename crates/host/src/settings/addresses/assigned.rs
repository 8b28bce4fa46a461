//! Assigned address: its netlink form and its text.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use crate::snapshot::netlink::{
    IFA_ADDRESS, IFADDRMSG_BYTES, Link, attributes, ip_of, number, octets, push_attribute,
};

/// `IFA_…` of linux/if_addr.h.
const LOCAL: u16 = 2;
const LABEL: u16 = 3;
const BROADCAST: u16 = 4;
const CACHE_INFO: u16 = 6;
const FLAGS: u16 = 8;
const PROTOCOL: u16 = 11;

/// Flags set on request (`IFA_F_NODAD`, `_HOMEADDRESS`, `_MANAGETEMPADDR`, `_NOPREFIXROUTE`,
/// `_MCAUTOJOIN`); other flags are states that the kernel sets.
const ASKED: u32 = 0x02 | 0x10 | 0x100 | 0x200 | 0x400;
/// `IFA_F_TEMPORARY`: derived by the kernel from a router's prefix, and replaced later.
const TEMPORARY: u32 = 0x01;
/// `IFAPROT_KERNEL_RA` and `IFAPROT_KERNEL_LL` (Linux 5.18): router's prefix, and link-local.
const KERNELS: [u8; 2] = [2, 3];
/// Infinite lifetime (`INFINITY_LIFE_TIME` of net/addrconf.h).
const FOREVER: u32 = u32::MAX;

/// Address of an interface that was assigned by an administrator or a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub address: IpAddr,
    /// Address of the peer, where both were set together.
    peer: Option<IpAddr>,
    prefix: u8,
    broadcast: Option<Ipv4Addr>,
    /// Scope (`RT_SCOPE_…`); 0 is universal.
    scope: u8,
    /// Further attributes by number: a label other than the interface name, the metric of its
    /// route, flags, and attributes of newer kernels.
    more: Vec<(u16, Vec<u8>)>,
    lifetime: Lifetime,
}

/// Ends of preferred and valid lifetime, seconds of the monotonic clock; `None`: infinite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lifetime {
    valid: Option<u64>,
    preferred: Option<u64>,
}

impl Own {
    /// Returns whether both are equal except for lifetimes, which may be extended while an address
    /// stays.
    pub fn is(&self, other: &Self) -> bool {
        let lifetime = self.lifetime;
        *self
            == Self {
                lifetime,
                ..other.clone()
            }
    }

    /// Returns whether the address expires.
    pub fn is_lent(&self) -> bool {
        self.lifetime.valid.is_some()
    }

    pub fn is_over(&self, now_s: u64) -> bool {
        self.lifetime.valid.is_some_and(|end| end <= now_s)
    }

    /// Encodes the message body that adds or removes the address.
    pub fn encode(&self, index: u32, now_s: u64) -> Vec<u8> {
        let (family, bytes) = octets(self.address);
        let mut message = vec![family, self.prefix, 0, self.scope];
        message.extend(index.to_ne_bytes());
        push_attribute(&mut message, LOCAL, &bytes);
        let (_, far) = octets(self.peer.unwrap_or(self.address));
        push_attribute(&mut message, IFA_ADDRESS, &far);
        if let Some(broadcast) = self.broadcast {
            push_attribute(&mut message, BROADCAST, &broadcast.octets());
        }
        for (kind, value) in &self.more {
            push_attribute(&mut message, *kind, value);
        }
        if self.lifetime != Lifetime::default() {
            push_attribute(&mut message, CACHE_INFO, &self.lifetime.encode(now_s));
        }
        message
    }

    /// Decodes an address of `link`; `None` for another link, and for addresses that the kernel
    /// manages itself.
    pub fn decode(link: &Link, now_s: u64, body: &[u8]) -> Option<Self> {
        let (header, rest) = body.split_first_chunk::<IFADDRMSG_BYTES>()?;
        let [family, prefix, flags, scope, interface @ ..] = *header;
        if u32::from_ne_bytes(interface) != link.index {
            return None;
        }
        let (mut local, mut far, mut broadcast, mut flags) = (None, None, None, u32::from(flags));
        let (mut more, mut lifetime) = (Vec::new(), Lifetime::default());
        for (kind, value) in attributes(rest) {
            match kind {
                LOCAL => local = ip_of(family, value),
                IFA_ADDRESS => far = ip_of(family, value),
                BROADCAST => broadcast = value.first_chunk::<4>().copied().map(Ipv4Addr::from),
                FLAGS => flags = number(value).unwrap_or(flags),
                CACHE_INFO => lifetime = Lifetime::decode(value, now_s),
                // The default label, which changes with the interface name.
                LABEL if value.strip_suffix(&[0]) == Some(link.name.as_bytes()) => {}
                _ => more.push((kind, value.to_vec())),
            }
        }
        let asked = flags & ASKED;
        if asked != 0 {
            more.push((FLAGS, asked.to_ne_bytes().to_vec()));
        }
        more.sort();
        let address = local.or(far)?;
        let is_kernels = |(kind, value): &(u16, Vec<u8>)| {
            *kind == PROTOCOL && value.first().is_some_and(|by| KERNELS.contains(by))
        };
        let (is_given, scope) = match address {
            IpAddr::V4(_) => (true, scope),
            // The kernel derives the scope from the address.
            IpAddr::V6(address) => {
                let is_near = address.is_unicast_link_local();
                let is_made = flags & TEMPORARY != 0 || more.iter().any(is_kernels);
                (!is_near && !is_made, 0)
            }
        };
        is_given.then_some(Self {
            address,
            peer: far.filter(|far| *far != address),
            prefix,
            broadcast,
            scope,
            more,
            lifetime,
        })
    }
}

impl Lifetime {
    /// Encodes `struct ifa_cacheinfo`: remaining seconds of both, and two times set by the kernel.
    fn encode(self, now_s: u64) -> Vec<u8> {
        let left = |end: Option<u64>| match end {
            None => FOREVER,
            Some(end) => u32::try_from(end.saturating_sub(now_s)).unwrap_or(FOREVER),
        };
        let valid = left(self.valid);
        let words = [left(self.preferred).min(valid), valid, 0, 0];
        words.into_iter().flat_map(u32::to_ne_bytes).collect()
    }

    fn decode(value: &[u8], now_s: u64) -> Self {
        let end = |at: usize| {
            let left = number(value.get(at..)?)?;
            (left != FOREVER).then(|| now_s.saturating_add(left.into()))
        };
        Self {
            valid: end(4),
            preferred: end(0),
        }
    }
}

impl fmt::Display for Own {
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
        for (kind, value) in &self.more {
            write!(f, ",{kind}=")?;
            value.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        let end = |end: Option<u64>| end.map_or_else(|| "-".to_owned(), |end| end.to_string());
        match self.lifetime {
            Lifetime {
                valid: None,
                preferred: None,
            } => Ok(()),
            Lifetime { valid, preferred } => write!(f, "~{}:{}", end(valid), end(preferred)),
        }
    }
}

impl FromStr for Own {
    type Err = io::Error;

    fn from_str(word: &str) -> io::Result<Self> {
        read(word).ok_or_else(|| {
            let why = format!("`{word}` is not an address with a prefix length");
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })
    }
}

fn read(word: &str) -> Option<Own> {
    let (rest, lifetime) = match word.split_once('~') {
        Some((rest, ends)) => {
            let (valid, preferred) = ends.split_once(':')?;
            let end = |text: &str| match text {
                "-" => Some(None),
                _ => text.parse().ok().map(Some),
            };
            let (valid, preferred) = (end(valid)?, end(preferred)?);
            (rest, Lifetime { valid, preferred })
        }
        None => (word, Lifetime::default()),
    };
    let mut words = rest.split(',');
    let rest = words.next()?;
    let more = words.map(|word| {
        let (kind, value) = word.split_once('=')?;
        Some((kind.parse().ok()?, bytes(value)?))
    });
    let more = more.collect::<Option<Vec<_>>>()?;
    let (rest, scope) = rest.split_once('@').unwrap_or((rest, "0"));
    let (rest, broadcast) = match rest.split_once('+') {
        Some((rest, broadcast)) => (rest, Some(broadcast.parse().ok()?)),
        None => (rest, None),
    };
    let (ends, prefix) = rest.split_once('/')?;
    let (address, peer) = match ends.split_once('>') {
        Some((address, peer)) => (address, Some(peer.parse::<IpAddr>().ok()?)),
        None => (ends, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let prefix = prefix.parse().ok()?;
    let is_alike = peer.is_none_or(|peer| peer.is_ipv4() == address.is_ipv4());
    let bits = if address.is_ipv4() { 32 } else { 128 };
    (is_alike && prefix <= bits).then_some(Own {
        address,
        peer,
        prefix,
        broadcast,
        scope: scope.parse().ok()?,
        more,
        lifetime,
    })
}

/// Decodes pairs of hexadecimal digits.
fn bytes(text: &str) -> Option<Vec<u8>> {
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
    fn link() -> Link {
        Link {
            index: 7,
            name: "t0".to_owned(),
            ..Link::default()
        }
    }

    /// An hour after the machine started.
    const NOW: u64 = 3_600;

    #[test]
    fn an_address_is_given_as_it_is_told_and_printed() {
        for word in [
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
            let own: Own = word.parse().unwrap();
            assert_eq!(own.to_string(), word);
            let told = own.encode(7, NOW);
            assert_eq!(Own::decode(&link(), NOW, &told), Some(own), "{word}");
            let other = Link { index: 8, ..link() };
            assert_eq!(Own::decode(&other, NOW, &told), None, "{word}");
        }
        for word in [
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
            assert!(word.parse::<Own>().is_err(), "{word}");
        }
    }

    /// Encodes an address with further attributes, as the kernel does, and decodes it.
    fn told(word: &str, more: &[(u16, &[u8])]) -> Option<String> {
        let mut message = word.parse::<Own>().unwrap().encode(7, NOW);
        for (kind, value) in more {
            push_attribute(&mut message, *kind, value);
        }
        Own::decode(&link(), NOW, &message).map(|own| own.to_string())
    }

    #[test]
    fn what_follows_by_itself_is_left_out() {
        let word = "10.0.0.1/24";
        // Interface name as label, infinite lifetime, second of its network.
        let forever = [0xff; 16];
        let plain: [(u16, &[u8]); 3] = [
            (LABEL, b"t0\0"),
            (CACHE_INFO, &forever),
            (FLAGS, &0x81_u32.to_ne_bytes()),
        ];
        assert_eq!(told(word, &plain).as_deref(), Some(word));
        // No prefix route, plus flags that the kernel sets.
        let flags = (FLAGS, &0x2c0_u32.to_ne_bytes()[..]);
        let asked = Own {
            more: vec![(FLAGS, 0x200_u32.to_ne_bytes().to_vec())],
            ..word.parse().unwrap()
        };
        assert_eq!(told(word, &[flags]), Some(asked.to_string()));
    }

    #[test]
    fn what_the_kernel_gives_is_left_to_it() {
        assert_eq!(told("fe80::1/64", &[]), None);
        assert_eq!(told("fd00::1/64", &[(PROTOCOL, &[2])]), None);
        let temporary = (FLAGS, &TEMPORARY.to_ne_bytes()[..]);
        assert_eq!(told("fd00::1/64~5400:4500", &[temporary]), None);
        // For IPv4 the same bit means a secondary address of a network.
        assert!(told("10.0.0.1/24", &[temporary]).is_some());
        assert!(told("fd00::1/64", &[(PROTOCOL, &[4])]).is_some());
    }

    /// After a quarter of an hour, an address with half an hour has a quarter of an hour left.
    #[test]
    fn a_lifetime_goes_on_meanwhile() {
        let own: Own = "10.0.0.1/24~5400:4500".parse().unwrap();
        let later = own.encode(7, NOW + 900);
        let words = [0_u32, 900, 0, 0].map(u32::to_ne_bytes).concat();
        assert!(later.ends_with(&words), "{later:?}");
        assert!(own.is_lent() && !own.is_over(5_399) && own.is_over(5_400));
        let longer: Own = "10.0.0.1/24~9000:9000".parse().unwrap();
        assert!(own.is(&longer) && own != longer);
    }

    proptest! {
        #[test]
        fn no_bytes_can_hurt(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Own::decode(&Link::default(), NOW, &bytes);
        }

        #[test]
        fn no_text_panics(text in ".{0,24}") {
            let _ = text.parse::<Own>();
        }
    }
}
