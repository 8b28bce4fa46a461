//! Flow-steering rules (ntuple filters) that send a port's packets to one queue, as text:
//! `udp4:7>0` is UDP over IPv4 to port 7 for queue 0, either `on` or `off`.

use std::io;
use std::os::fd::AsFd;

use linerate_sys::flow_rules::{FlowProtocol, FlowRule, add_rule, has_rule, remove_rule};

use super::open_socket;

/// State of an existing rule.
pub const RULE_ON: &str = "on";
/// State of a missing rule.
pub const RULE_OFF: &str = "off";

/// Protocol names of `ethtool -N`.
const PROTOCOLS: &[(&str, FlowProtocol)] = &[
    ("tcp4", FlowProtocol::Tcp4),
    ("udp4", FlowProtocol::Udp4),
    ("tcp6", FlowProtocol::Tcp6),
    ("udp6", FlowProtocol::Udp6),
];

/// Returns whether an interface of the calling thread's network namespace has the rule, as text.
///
/// # Errors
/// `EOPNOTSUPP` without support for rules, `ENODEV` without such an interface, `InvalidInput` for a
/// malformed rule.
pub fn read_flow_rule(interface: &str, rule: &str) -> io::Result<String> {
    let rule = parse_rule(rule)?;
    let has = has_rule(open_socket()?.as_fd(), interface, rule)?;
    Ok(if has { RULE_ON } else { RULE_OFF }.to_owned())
}

/// Adds or removes the rule.
///
/// # Errors
/// As for reading; `EINVAL` for an unused queue, `EPERM`, `ENOSPC` when the rule table is full.
pub fn set_flow_rule(interface: &str, rule: &str, text: &str) -> io::Result<()> {
    let (rule, socket) = (parse_rule(rule)?, open_socket()?);
    match text {
        RULE_ON => add_rule(socket.as_fd(), interface, rule),
        RULE_OFF => remove_rule(socket.as_fd(), interface, rule),
        _ => Err(invalid_text(text)),
    }
}

fn invalid_text(text: &str) -> io::Error {
    let problem = format!("`{text}` is neither a rule such as `udp4:7>0` nor on or off");
    io::Error::new(io::ErrorKind::InvalidInput, problem)
}

fn parse_rule(text: &str) -> io::Result<FlowRule> {
    let rule = || {
        let (flow_text, queue) = text.split_once('>')?;
        let (protocol, port) = flow_text.split_once(':')?;
        let (_, protocol) = PROTOCOLS.iter().find(|(name, _)| *name == protocol)?;
        Some(FlowRule {
            protocol: *protocol,
            port: port.parse().ok()?,
            queue: queue.parse().ok()?,
        })
    };
    rule().ok_or_else(|| invalid_text(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read() {
        for (text, protocol, port, queue) in [
            ("udp4:7>0", FlowProtocol::Udp4, 7, 0),
            ("tcp6:65535>31", FlowProtocol::Tcp6, 65_535, 31),
        ] {
            let expected = FlowRule {
                protocol,
                port,
                queue,
            };
            assert_eq!(parse_rule(text).unwrap(), expected, "{text}");
        }
        for text in [
            "",
            "udp:7>0",
            "udp4:7",
            "udp4>0",
            "udp4:65536>0",
            "udp4:7>-1",
        ] {
            let error = read_flow_rule("lo", text).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{text}");
        }
        assert!(set_flow_rule("lo", "udp4:7>0", "maybe").is_err());
    }
}
