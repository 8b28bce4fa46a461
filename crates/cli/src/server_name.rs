//! A server as the command line names it: `HOST`, `HOST:PORT`, `[IPv6]:PORT`.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Name or address of a server, with its port if that was given too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerName {
    /// Name or address, without brackets.
    pub host: String,
    pub port: Option<u16>,
}

impl FromStr for ServerName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((scheme, rest)) = text.split_once("://") {
            let host = rest.split(['/', '?']).next().unwrap_or(rest);
            return Err(format!("a URL ({scheme}), not a host: write {host}"));
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or("the bracket ] is missing")?;
                match port {
                    "" => (host, None),
                    _ => (host, Some(port.strip_prefix(':').unwrap_or(port))),
                }
            }
            // More colons are an IPv6 address.
            None => match text.split_once(':') {
                Some((host, port)) if !port.contains(':') => (host, Some(port)),
                _ => (text, None),
            },
        };
        let port = match port {
            Some(text) => match text.parse::<u16>() {
                Ok(port @ 1..) => Some(port),
                _ => return Err(format!("`{text}` is not a port: use 1 to 65535")),
            },
            None => None,
        };
        check_address(host)?;
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

/// Rejects text that looks like an address and is none: DNS would be queried for it otherwise.
fn check_address(host: &str) -> Result<(), String> {
    if host.is_empty() {
        return Err("a host is missing: write a name or an address".to_owned());
    }
    // No top-level domain is a number (RFC 3696 section 2). The resolver would read `1.2.3` as
    // 1.2.0.3, and `010.0.0.1` as octal.
    let last = host.rsplit('.').next().unwrap_or(host);
    if last.bytes().all(|byte| byte.is_ascii_digit())
        && !host.contains([':', '%'])
        && host.parse::<Ipv4Addr>().is_err()
    {
        return Err("not an IPv4 address: write four numbers of 0 to 255".to_owned());
    }
    let (address, interface) = host.split_once('%').unwrap_or((host, ""));
    if address.contains(':') && address.parse::<Ipv6Addr>().is_err() {
        return Err("not an IPv6 address; with a port, write [ADDRESS]:PORT".to_owned());
    }
    let is_scoped = host.contains('%');
    if is_scoped && (interface.is_empty() || address.parse::<Ipv6Addr>().is_err()) {
        return Err("write ADDRESS%INTERFACE with an IPv6 address".to_owned());
    }
    Ok(())
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.port, self.host.contains(':')) {
            (None, _) => f.write_str(&self.host),
            (Some(port), false) => write!(f, "{}:{port}", self.host),
            (Some(port), true) => write!(f, "[{}]:{port}", self.host),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_split_off() {
        for (text, host, port) in [
            ("example.net", "example.net", None),
            ("example.net:80", "example.net", Some(80)),
            ("10.0.0.1:5201", "10.0.0.1", Some(5201)),
            ("::1", "::1", None),
            ("[::1]", "::1", None),
            ("[::1]:5201", "::1", Some(5201)),
            ("[fe80::1%eth0]:7", "fe80::1%eth0", Some(7)),
            ("fe80::1%eth0", "fe80::1%eth0", None),
            ("127.1.example.net", "127.1.example.net", None),
            ("::ffff:10.0.0.1", "::ffff:10.0.0.1", None),
            ("host1", "host1", None),
        ] {
            let name: ServerName = text.parse().unwrap();
            assert_eq!((name.host.as_str(), name.port), (host, port), "{text}");
        }
    }

    #[test]
    fn what_is_no_host_is_named() {
        for (text, fragment) in [
            (
                "http://example.net/x",
                "a URL (http), not a host: write example.net",
            ),
            ("300.1.2.3", "not an IPv4 address"),
            ("300.1.2.3:80", "not an IPv4 address"),
            ("1.2.3", "not an IPv4 address"),
            ("0127.0.0.1", "not an IPv4 address"),
            ("2130706433", "not an IPv4 address"),
            ("", "a host is missing"),
            (":5201", "a host is missing"),
            ("fe80::1::2", "not an IPv6 address"),
            ("host:no", "`no` is not a port"),
            ("host:0", "`0` is not a port"),
            ("host:70000", "not a port"),
            ("[::1", "] is missing"),
            ("[::1]5201x", "not a port"),
            ("eth0%1.2.3.4", "ADDRESS%INTERFACE"),
        ] {
            let error = text.parse::<ServerName>().unwrap_err();
            assert!(error.contains(fragment), "{text}: {error}");
        }
    }
}
