//! Flow-steering rules (ntuple filters) that send a port's packets to one queue, as text:
//! `udp4:7>0` is UDP over IPv4 to port 7 for queue 0, either `on` or `off`.

use std::io;
use std::os::fd::AsFd;

use super::socket;
use crate::sys::flow_rules::{FlowRule, Protocol, add_rule, has_rule, remove_rule};

/// State of an existing rule.
pub const ON: &str = "on";
/// State of a missing rule.
pub const OFF: &str = "off";

/// Protocol names of `ethtool -N`.
const PROTOCOLS: &[(&str, Protocol)] = &[
    ("tcp4", Protocol::Tcp4),
    ("udp4", Protocol::Udp4),
    ("tcp6", Protocol::Tcp6),
    ("udp6", Protocol::Udp6),
];

/// Returns whether an interface of the calling thread's network namespace has the rule, as text.
///
/// # Errors
/// `EOPNOTSUPP` without support for rules, `ENODEV` without such an interface, `InvalidInput` for a
/// malformed rule.
pub fn flow(interface: &str, rule: &str) -> io::Result<String> {
    let rule = parse(rule)?;
    let has = has_rule(socket()?.as_fd(), interface, rule)?;
    Ok(if has { ON } else { OFF }.to_owned())
}

/// Adds or removes the rule.
///
/// # Errors
/// As for reading; `EINVAL` for an unused queue, `EPERM`, `ENOSPC` when the rule table is full.
pub fn set_flow(interface: &str, rule: &str, text: &str) -> io::Result<()> {
    let (rule, socket) = (parse(rule)?, socket()?);
    match text {
        ON => add_rule(socket.as_fd(), interface, rule),
        OFF => remove_rule(socket.as_fd(), interface, rule),
        _ => Err(wrong(text)),
    }
}

fn wrong(text: &str) -> io::Error {
    let why = format!("`{text}` is neither a rule such as `udp4:7>0` nor on or off");
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn parse(text: &str) -> io::Result<FlowRule> {
    let rule = || {
        let (flow, queue) = text.split_once('>')?;
        let (protocol, port) = flow.split_once(':')?;
        let (_, protocol) = PROTOCOLS.iter().find(|(name, _)| *name == protocol)?;
        Some(FlowRule {
            protocol: *protocol,
            port: port.parse().ok()?,
            queue: queue.parse().ok()?,
        })
    };
    rule().ok_or_else(|| wrong(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read() {
        for (text, protocol, port, queue) in [
            ("udp4:7>0", Protocol::Udp4, 7, 0),
            ("tcp6:65535>31", Protocol::Tcp6, 65_535, 31),
        ] {
            let want = FlowRule {
                protocol,
                port,
                queue,
            };
            assert_eq!(parse(text).unwrap(), want, "{text}");
        }
        for text in [
            "",
            "udp:7>0",
            "udp4:7",
            "udp4>0",
            "udp4:65536>0",
            "udp4:7>-1",
        ] {
            let error = flow("lo", text).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{text}");
        }
        assert!(set_flow("lo", "udp4:7>0", "maybe").is_err());
    }
}
