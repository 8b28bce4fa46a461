//! The addresses of an interface, as text: `10.0.0.1/24+10.0.0.255 10.0.0.2/24 fd00::1/64`.
//!
//! In the order in which the kernel has them, since of several of one network the first is the one that packets leave
//! with. Those that the kernel or a router gave it are left alone: link-local ones of IPv6, and all with a lifetime.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use crate::snapshot::netlink::{
    ACKNOWLEDGE, DUMP, GET_ADDRESS, IFA_ADDRESS, IFADDRMSG_BYTES, NEW_ADDRESS, ask, attributes,
    ip_of, link, number, octets, push_attribute,
};

/// `RTM_DELADDR` of linux/rtnetlink.h, and what makes a new one.
const DELETE: u16 = 21;
const CREATE: u16 = 0x600;
/// `IFA_…` of linux/if_addr.h.
const LOCAL: u16 = 2;
const BROADCAST: u16 = 4;
const FLAGS: u16 = 8;
/// `IFA_F_PERMANENT`: it has no lifetime.
const PERMANENT: u32 = 0x80;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Own {
    address: IpAddr,
    /// The other end, where the two were set together.
    peer: Option<IpAddr>,
    prefix: u8,
    broadcast: Option<Ipv4Addr>,
    /// How far it means something (`RT_SCOPE_…`); 0 is everywhere.
    scope: u8,
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
        match self.scope {
            0 => Ok(()),
            scope => write!(f, "@{scope}"),
        }
    }
}

impl FromStr for Own {
    type Err = io::Error;

    fn from_str(word: &str) -> io::Result<Self> {
        let wrong = || {
            let why = format!("`{word}` is no address with the length of its network");
            io::Error::new(io::ErrorKind::InvalidInput, why)
        };
        let (rest, scope) = word.split_once('@').unwrap_or((word, "0"));
        let (rest, broadcast) = match rest.split_once('+') {
            Some((rest, broadcast)) => (rest, Some(broadcast.parse().map_err(|_| wrong())?)),
            None => (rest, None),
        };
        let (ends, prefix) = rest.split_once('/').ok_or_else(wrong)?;
        let (address, peer) = match ends.split_once('>') {
            Some((address, peer)) => (address, Some(peer.parse().map_err(|_| wrong())?)),
            None => (ends, None),
        };
        let own = Self {
            address: address.parse().map_err(|_| wrong())?,
            peer,
            prefix: prefix.parse().map_err(|_| wrong())?,
            broadcast,
            scope: scope.parse().map_err(|_| wrong())?,
        };
        let is_alike = own
            .peer
            .is_none_or(|peer| peer.is_ipv4() == own.address.is_ipv4());
        let bits = if own.address.is_ipv4() { 32 } else { 128 };
        (is_alike && own.prefix <= bits)
            .then_some(own)
            .ok_or_else(wrong)
    }
}

/// Those that somebody gave an interface of the calling thread's network.
///
/// # Errors
/// `ENODEV` without such an interface.
pub fn addresses(interface: &str) -> io::Result<String> {
    let words: Vec<String> = own(interface)?.iter().map(Own::to_string).collect();
    Ok(words.join(" "))
}

/// Gives it these and no others.
///
/// # Errors
/// `ENODEV`, `EPERM`, or `InvalidInput` for a text that says something else.
pub fn set_addresses(interface: &str, text: &str) -> io::Result<()> {
    let wanted: Vec<Own> = text
        .split_whitespace()
        .map(str::parse)
        .collect::<io::Result<_>>()?;
    let index = link(interface)?.index;
    let (leave, come) = changes(&own(interface)?, &wanted);
    for own in &leave {
        ask(DELETE, ACKNOWLEDGE, &encode(index, own))?;
    }
    for own in &come {
        ask(NEW_ADDRESS, ACKNOWLEDGE | CREATE, &encode(index, own))?;
    }
    Ok(())
}

fn own(interface: &str) -> io::Result<Vec<Own>> {
    let index = link(interface)?.index;
    let all = ask(GET_ADDRESS, DUMP, &[0; IFADDRMSG_BYTES])?;
    let of = |(kind, body): &(u16, Vec<u8>)| (*kind == NEW_ADDRESS).then(|| decode(index, body))?;
    Ok(all.iter().filter_map(of).collect())
}

/// What leaves and what comes, each in its order. The order of those of IPv4 means something, so that where it is
/// another all of them are given anew; the last first, since others of its network leave with the first.
fn changes(now: &[Own], wanted: &[Own]) -> (Vec<Own>, Vec<Own>) {
    let v4 = |all: &[Own]| -> Vec<Own> {
        let all = all.iter().copied();
        all.filter(|own| own.address.is_ipv4()).collect()
    };
    let (mut leave, mut come) = (v4(now), v4(wanted));
    if leave == come {
        (leave, come) = (Vec::new(), Vec::new());
    }
    leave.reverse();
    let without = |all: &[Own], others: &[Own]| -> Vec<Own> {
        let all = all.iter().filter(|own| own.address.is_ipv6());
        all.filter(|own| !others.contains(own)).copied().collect()
    };
    leave.extend(without(now, wanted));
    come.extend(without(wanted, now));
    (leave, come)
}

fn encode(index: u32, own: &Own) -> Vec<u8> {
    let (family, bytes) = octets(own.address);
    let mut message = vec![family, own.prefix, 0, own.scope];
    message.extend(index.to_ne_bytes());
    push_attribute(&mut message, LOCAL, &bytes);
    let (_, far) = octets(own.peer.unwrap_or(own.address));
    push_attribute(&mut message, IFA_ADDRESS, &far);
    if let Some(broadcast) = own.broadcast {
        push_attribute(&mut message, BROADCAST, &broadcast.octets());
    }
    message
}

/// An address of the interface of this number, where somebody gave it for good.
fn decode(index: u32, body: &[u8]) -> Option<Own> {
    let (header, rest) = body.split_first_chunk::<IFADDRMSG_BYTES>()?;
    let [family, prefix, flags, scope, interface @ ..] = *header;
    if u32::from_ne_bytes(interface) != index {
        return None;
    }
    let (mut local, mut far, mut broadcast, mut flags) = (None, None, None, u32::from(flags));
    for (kind, value) in attributes(rest) {
        match kind {
            LOCAL => local = ip_of(family, value),
            IFA_ADDRESS => far = ip_of(family, value),
            BROADCAST => broadcast = value.first_chunk::<4>().copied().map(Ipv4Addr::from),
            FLAGS => flags = number(value).unwrap_or(flags),
            _ => {}
        }
    }
    let address = local.or(far)?;
    let (is_near, scope) = match address {
        IpAddr::V4(_) => (false, scope),
        // The kernel tells it by the address.
        IpAddr::V6(address) => (address.is_unicast_link_local(), 0),
    };
    let is_given = flags & PERMANENT != 0 && !is_near;
    is_given.then_some(Own {
        address,
        peer: far.filter(|far| *far != address),
        prefix,
        broadcast,
        scope,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(text: &str) -> Vec<Own> {
        text.split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect()
    }

    #[test]
    fn addresses_read_as_they_print() {
        for word in [
            "10.0.0.1/24",
            "10.0.0.1/24+10.0.0.255",
            "10.0.0.1>10.0.0.2/32",
            "169.254.3.1/16@253",
            "fd00::1/64",
            "fd00::1>fd00::2/128",
        ] {
            let own: Own = word.parse().unwrap();
            assert_eq!(own.to_string(), word);
            // The kernel tells it as it was told.
            let mut told = encode(7, &own);
            told[2] = PERMANENT as u8;
            assert_eq!(decode(7, &told), Some(own), "{word}");
            assert_eq!(decode(8, &told), None, "{word}");
            told[2] = 0;
            assert_eq!(decode(7, &told), None, "{word}: it has a lifetime");
            push_attribute(&mut told, FLAGS, &PERMANENT.to_ne_bytes());
            assert_eq!(decode(7, &told), Some(own), "{word}");
        }
        let near: Own = "fe80::1/64".parse().unwrap();
        let mut told = encode(7, &near);
        told[2] = PERMANENT as u8;
        assert_eq!(decode(7, &told), None, "the kernel's own");
        for word in [
            "",
            "10.0.0.1",
            "10.0.0.1/33",
            "10.0.0.1>fd00::1/8",
            "a/8",
            "::1/8@x",
        ] {
            assert!(word.parse::<Own>().is_err(), "{word}");
        }
    }

    #[test]
    fn only_what_is_another_changes() {
        for (now, wanted, leave, come) in [
            ("", "", "", ""),
            ("10.9.9.9/16 fd00::1/64", "10.9.9.9/16 fd00::1/64", "", ""),
            // As opening a tap with an address leaves it, and as it was.
            (
                "10.9.0.1/24+10.9.0.255",
                "10.9.9.9/16 10.9.9.8/16",
                "10.9.0.1/24+10.9.0.255",
                "10.9.9.9/16 10.9.9.8/16",
            ),
            (
                "10.9.9.8/16 10.9.9.9/16",
                "10.9.9.9/16 10.9.9.8/16",
                "10.9.9.9/16 10.9.9.8/16",
                "10.9.9.9/16 10.9.9.8/16",
            ),
            (
                "fd00::1/64 fd00::2/64",
                "fd00::2/64 fd00::3/64",
                "fd00::1/64",
                "fd00::3/64",
            ),
            ("10.9.9.9/16", "", "10.9.9.9/16", ""),
        ] {
            let found = changes(&of(now), &of(wanted));
            assert_eq!(found, (of(leave), of(come)), "{now:?} to {wanted:?}");
        }
    }

    #[test]
    fn loopback_has_its_own() {
        let told = addresses("lo").unwrap();
        // One that is down has none yet.
        assert!(told.is_empty() || told.contains("127.0.0.1/8"), "{told}");
        // What is so already takes no privilege.
        set_addresses("lo", &told).unwrap();
        let error = addresses("none-such0").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    proptest! {
        #[test]
        fn no_bytes_can_hurt(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode(0, &bytes);
        }
    }
}
