//! Device settings that a URL requests. The code that opens the port applies them before, and
//! restores them after the port is closed: interface settings outlive the process, and no port
//! leaves any behind.

use std::fmt;
use std::ops::RangeInclusive;

use crate::error::PortError;
use crate::port_url::PortUrl;

use super::{KIND, queues};

/// Settings that a port needs on its interface while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceWish {
    /// Name of the interface.
    pub interface: String,
    /// Number of queues (`channels=set`).
    pub channels: Option<u32>,
    /// Queues over which all received packets are spread (`rss=set`).
    pub rss: Option<RangeInclusive<u32>>,
    /// Flows directed to queues (`steer=udp:7`).
    pub steer: Vec<Steered>,
}

/// Flow and the queue that receives it: `udp4:7>0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steered {
    /// Protocol and IP version, as named by `ethtool -N`.
    pub protocol: &'static str,
    /// Destination port of its packets.
    pub port: u16,
    /// Queue that receives it.
    pub queue: u32,
}

impl fmt::Display for Steered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}>{}", self.protocol, self.port, self.queue)
    }
}

/// Names of protocols in URLs, and the corresponding names of `ethtool -N`.
const PROTOCOLS: &[(&str, &[&str])] = &[
    ("udp", &["udp4", "udp6"]),
    ("udp4", &["udp4"]),
    ("udp6", &["udp6"]),
    ("tcp", &["tcp4", "tcp6"]),
    ("tcp4", &["tcp4"]),
    ("tcp6", &["tcp6"]),
];

/// Parses flows and assigns the queues in turn; none if a flow is invalid.
fn steered(text: &str, queues: RangeInclusive<u32>) -> Option<Vec<Steered>> {
    let mut all = Vec::new();
    for (word, queue) in text.split('+').zip(queues.cycle()) {
        let (protocol, port) = word.split_once(':')?;
        let (_, protocols) = PROTOCOLS.iter().find(|(name, _)| *name == protocol)?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        all.extend(protocols.iter().map(|&protocol| Steered {
            protocol,
            port,
            queue,
        }));
    }
    Some(all)
}

/// Rejects invalid flows.
pub(super) fn check_flows(url: &PortUrl) -> Result<(), PortError> {
    match url.text("steer") {
        Some(text) if steered(text, queues(url)).is_none() => Err(url.bad_value(
            "steer",
            text,
            "udp:PORT, tcp:PORT, or of one IP version only as udp4:PORT, joined by +",
            "udp:7+tcp:7",
        )),
        _ => Ok(()),
    }
}

impl PortUrl {
    /// Settings that the port needs on its device; none if the device stays unchanged.
    #[must_use]
    pub fn device_wish(&self) -> Option<DeviceWish> {
        let is_set = |key| self.text(key) == Some("set");
        let (channels, rss) = (is_set("channels"), is_set("rss"));
        let flows = self.text("steer");
        if self.kind().scheme != KIND.scheme || !(channels || rss || flows.is_some()) {
            return None;
        }
        let taken = queues(self);
        let steer = flows.and_then(|text| steered(text, taken.clone()));
        Some(DeviceWish {
            interface: self.name().to_owned(),
            channels: channels.then(|| taken.end() + 1),
            rss: rss.then_some(taken),
            steer: steer.unwrap_or_default(),
        })
    }
}

/// Rejects a port whose device does not have the requested number of queues; `in_use` are its
/// receive queues, if known.
pub(super) fn check(url: &PortUrl, in_use: Option<u32>) -> Result<(), PortError> {
    let wanted = url.device_wish().and_then(|wish| wish.channels);
    match (wanted, in_use) {
        (Some(wanted), Some(in_use)) if wanted != in_use => Err(url.bad_value(
            "channels",
            "set",
            format!(
                "possible here: {in_use} receive queues are in use, and were not changed to {wanted} before"
            ),
            "keep",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> PortUrl {
        text.parse().unwrap()
    }

    #[test]
    fn a_device_is_asked_for_what_the_url_says() {
        let wish = |channels, rss| {
            Some(DeviceWish {
                interface: "eth1".to_owned(),
                channels,
                rss,
                steer: Vec::new(),
            })
        };
        for (text, want) in [
            ("xdp:eth1,q=0-3", None),
            ("xdp:eth1,channels=keep,rss=keep", None),
            ("packet:eth1,queues=2", None),
            ("xdp:eth1,channels=set", wish(Some(1), None)),
            ("xdp:eth1,queues=2,channels=set", wish(Some(2), None)),
            (
                "xdp:eth1,q=2-3,channels=set,rss=set",
                wish(Some(4), Some(2..=3)),
            ),
            ("xdp:eth1,q=1,rss=set", wish(None, Some(1..=1))),
        ] {
            assert_eq!(url(text).device_wish(), want, "{text}");
        }
    }

    #[test]
    fn flows_go_to_the_queues_that_are_taken_in_turn() {
        let words = |text: &str| {
            let wish = url(text).device_wish().unwrap();
            let words: Vec<String> = wish.steer.iter().map(Steered::to_string).collect();
            words.join(" ")
        };
        for (text, want) in [
            ("xdp:eth1,steer=udp4:7", "udp4:7>0"),
            ("xdp:eth1,steer=udp:7", "udp4:7>0 udp6:7>0"),
            (
                "xdp:eth1,q=2-3,steer=udp4:7+tcp6:80+udp6:65535",
                "udp4:7>2 tcp6:80>3 udp6:65535>2",
            ),
            ("xdp:eth1,q=1,rss=set,steer=tcp:1", "tcp4:1>1 tcp6:1>1"),
        ] {
            assert_eq!(words(text), want, "{text}");
        }
        for text in ["udp", "udp:", "udp:0", "udp:65536", "sctp:7", "udp:7+", "7"] {
            let refused = format!("xdp:eth1,steer={text}")
                .parse::<PortUrl>()
                .unwrap_err();
            assert!(refused.to_string().contains("udp:7+tcp:7"), "{refused}");
        }
    }

    #[test]
    fn a_device_that_nobody_set_is_not_taken_for_one_that_is() {
        let set = url("xdp:eth1,q=0-1,channels=set");
        assert!(check(&set, Some(2)).is_ok());
        assert!(check(&set, None).is_ok());
        assert!(check(&url("xdp:eth1,q=0-1"), Some(4)).is_ok());
        let refused = check(&set, Some(4)).unwrap_err();
        assert!(refused.to_string().contains("4 receive queues are in use"));
    }
}
