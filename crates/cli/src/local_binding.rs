//! `-B`: a local address, an interface, or both.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Maximum length of an interface name in bytes (IFNAMSIZ of linux/if.h, less the terminating
/// zero).
const INTERFACE_NAME_MAX_BYTES: usize = 15;

/// Local address of sockets: `ADDRESS`, `%IF` or `ADDRESS%IF`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalBinding {
    /// `None`: chosen by the kernel.
    pub address: Option<IpAddr>,
    /// `None`: any interface.
    pub interface: Option<String>,
}

impl FromStr for LocalBinding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, interface) = match text.split_once('%') {
            Some((address, interface)) => (address, Some(interface)),
            None => (text, None),
        };
        let is_name = |name: &str| {
            let is_forbidden = |c: char| c == '/' || c.is_whitespace();
            !name.is_empty()
                && name.len() <= INTERFACE_NAME_MAX_BYTES
                && !name.contains(is_forbidden)
        };
        if interface.is_some_and(|name| !is_name(name)) {
            return Err("not an interface name: see `ip link`".to_owned());
        }
        let address = match (address, interface) {
            ("", Some(_)) => None,
            _ => Some(address.parse().map_err(|_| {
                "not an IP address: use one that `ip address` lists, or %INTERFACE".to_owned()
            })?),
        };
        Ok(Self {
            address,
            interface: interface.map(str::to_owned),
        })
    }
}

impl fmt::Display for LocalBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = self.address {
            write!(f, "{address}")?;
        }
        if let Some(interface) = &self.interface {
            write!(f, "%{interface}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_it_prints() {
        for text in [
            "127.0.0.1",
            "::1",
            "%eth0",
            "192.0.2.1%eth0",
            "fe80::1%eth0",
        ] {
            let local: LocalBinding = text.parse().unwrap();
            assert_eq!(local.to_string(), text);
        }
        for text in [
            "",
            "%",
            "nonsense",
            "127.0.0.1%",
            "1.2.3%eth0",
            "%a-name-far-too-long",
            "%a b",
        ] {
            assert!(text.parse::<LocalBinding>().is_err(), "{text}");
        }
    }
}
