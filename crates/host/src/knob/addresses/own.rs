//! One address: as the kernel tells and takes it, and as text.

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

/// Flags that somebody asked for (`IFA_F_NODAD`, `_HOMEADDRESS`, `_MANAGETEMPADDR`, `_NOPREFIXROUTE`, `_MCAUTOJOIN`); the
/// others say how far the kernel is with an address.
const ASKED: u32 = 0x02 | 0x10 | 0x100 | 0x200 | 0x400;
/// `IFA_F_TEMPORARY`: the kernel made it out of a router's prefix, and makes another one later.
const TEMPORARY: u32 = 0x01;
/// `IFAPROT_KERNEL_RA` and `IFAPROT_KERNEL_LL` (Linux 5.18): of a router's prefix, and for the link alone.
const KERNELS: [u8; 2] = [2, 3];
/// A lifetime without an end (`INFINITY_LIFE_TIME` of net/addrconf.h).
const FOREVER: u32 = u32::MAX;

/// One of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub address: IpAddr,
    /// The other end, where the two were set together.
    peer: Option<IpAddr>,
    prefix: u8,
    broadcast: Option<Ipv4Addr>,
    /// How far it means something (`RT_SCOPE_…`); 0 is everywhere.
    scope: u8,
    /// What else the kernel says of it, by the number of the attribute: its label where that is not the name of the
    /// interface, the metric of its route, flags, and whatever a newer kernel adds.
    more: Vec<(u16, Vec<u8>)>,
    lifetime: Lifetime,
}

/// When it is no longer used for what begins, and when it goes: seconds of the monotonic clock; none: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lifetime {
    valid: Option<u64>,
    preferred: Option<u64>,
}

impl Own {
    /// Whether two are alike but for their lifetimes, which are made longer while an address stays what it is.
    pub fn is(&self, other: &Self) -> bool {
        let lifetime = self.lifetime;
        *self
            == Self {
                lifetime,
                ..other.clone()
            }
    }

    /// Whether it goes by itself.
    pub fn is_lent(&self) -> bool {
        self.lifetime.valid.is_some()
    }

    /// Whether its lifetime has ended.
    pub fn is_over(&self, now_s: u64) -> bool {
        self.lifetime.valid.is_some_and(|end| end <= now_s)
    }

    /// What asks the kernel for it, and what takes it away.
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

    /// An address of this link; none where it is another's, or one that the kernel gives and takes itself.
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
                // What it has without being asked, and what changes with that name.
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
            // The kernel tells its scope by the address.
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
    /// `struct ifa_cacheinfo`: seconds that are left of both, and two times that the kernel sets itself.
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
            let why = format!("`{word}` is no address with the length of its network");
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

/// What pairs of hexadecimal digits stand for.
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

    /// `t0`, the seventh interface, an hour after the machine started.
    fn link() -> Link {
        Link {
            index: 7,
            name: "t0".to_owned(),
            ..Link::default()
        }
    }

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
            // The label `t0:a`, a metric, and something that came after this program.
            "10.0.0.1/24+10.0.0.255@253,3=74303a6100,9=4d000000,77=01",
            "10.0.0.1/24~5400:4500",
            // To be used by nothing that begins, for good.
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

    /// What the kernel tells of an address.
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
        // Its name as a label, for good, and the second of its network.
        let forever = [0xff; 16];
        let plain: [(u16, &[u8]); 3] = [
            (LABEL, b"t0\0"),
            (CACHE_INFO, &forever),
            (FLAGS, &0x81_u32.to_ne_bytes()),
        ];
        assert_eq!(told(word, &plain).as_deref(), Some(word));
        // No route of its network, and none of its flags that come and go.
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
        // Of IPv4 that bit says that another one of its network came before.
        assert!(told("10.0.0.1/24", &[temporary]).is_some());
        assert!(told("fd00::1/64", &[(PROTOCOL, &[4])]).is_some());
    }

    /// One that was lent for half an hour has a quarter left when it is given back after a quarter.
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
