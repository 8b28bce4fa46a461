//! Device settings that a URL requests. The code that opens the port applies them before, and
//! restores them after the port is closed: interface settings outlive the process, and no port
//! leaves any behind.

use std::fmt;
use std::ops::RangeInclusive;

use crate::error::PortError;
use crate::port_url::PortUrl;

use super::{KIND, queue_range};

/// Settings that a port needs on its interface while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// Name of the interface.
    pub interface: String,
    /// Number of queues (`channels=set`).
    pub channels: Option<u32>,
    /// Queues over which all received packets are spread (`rss=set`).
    pub rss: Option<RangeInclusive<u32>>,
    /// Flows directed to queues (`steer=udp:7`).
    pub steer: Vec<SteeredFlow>,
}

/// Flow and the queue that receives it: `udp4:7>0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeredFlow {
    /// Protocol and IP version, as named by `ethtool -N`.
    pub protocol: &'static str,
    /// Destination port of its packets.
    pub port: u16,
    /// Queue that receives it.
    pub queue: u32,
}

impl fmt::Display for SteeredFlow {
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
fn parse_steered_flows(text: &str, queues: RangeInclusive<u32>) -> Option<Vec<SteeredFlow>> {
    let mut all = Vec::new();
    for (flow, queue) in text.split('+').zip(queues.cycle()) {
        let (protocol, port) = flow.split_once(':')?;
        let (_, protocols) = PROTOCOLS.iter().find(|(name, _)| *name == protocol)?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        all.extend(protocols.iter().map(|&protocol| SteeredFlow {
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
        Some(text) if parse_steered_flows(text, queue_range(url)).is_none() => Err(url.bad_value(
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
    pub fn device_request(&self) -> Option<DeviceRequest> {
        let is_set = |key| self.text(key) == Some("set");
        let (channels, rss) = (is_set("channels"), is_set("rss"));
        let flows = self.text("steer");
        if self.kind().scheme != KIND.scheme || !(channels || rss || flows.is_some()) {
            return None;
        }
        let taken = queue_range(self);
        let steer = flows.and_then(|text| parse_steered_flows(text, taken.clone()));
        Some(DeviceRequest {
            interface: self.name().to_owned(),
            channels: channels.then(|| taken.end() + 1),
            rss: rss.then_some(taken),
            steer: steer.unwrap_or_default(),
        })
    }
}

/// Rejects a port whose device does not have the requested number of queues; `queues_in_use` are
/// its receive queues, if known.
pub(super) fn check_channels(url: &PortUrl, queues_in_use: Option<u32>) -> Result<(), PortError> {
    let requested = url.device_request().and_then(|request| request.channels);
    match (requested, queues_in_use) {
        (Some(requested), Some(queues_in_use)) if requested != queues_in_use => Err(url.bad_value(
            "channels",
            "set",
            format!(
                "possible here: {queues_in_use} receive queues are in use, and were not changed to {requested} before"
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
    fn the_url_determines_the_device_request() {
        let request = |channels, rss| {
            Some(DeviceRequest {
                interface: "eth1".to_owned(),
                channels,
                rss,
                steer: Vec::new(),
            })
        };
        for (text, expected) in [
            ("xdp:eth1,q=0-3", None),
            ("xdp:eth1,channels=keep,rss=keep", None),
            ("packet:eth1,queues=2", None),
            ("xdp:eth1,channels=set", request(Some(1), None)),
            ("xdp:eth1,queues=2,channels=set", request(Some(2), None)),
            (
                "xdp:eth1,q=2-3,channels=set,rss=set",
                request(Some(4), Some(2..=3)),
            ),
            ("xdp:eth1,q=1,rss=set", request(None, Some(1..=1))),
        ] {
            assert_eq!(url(text).device_request(), expected, "{text}");
        }
    }

    #[test]
    fn flows_are_distributed_over_the_queues() {
        let flow_texts = |text: &str| {
            let request = url(text).device_request().unwrap();
            let flow_texts: Vec<String> =
                request.steer.iter().map(SteeredFlow::to_string).collect();
            flow_texts.join(" ")
        };
        for (text, expected) in [
            ("xdp:eth1,steer=udp4:7", "udp4:7>0"),
            ("xdp:eth1,steer=udp:7", "udp4:7>0 udp6:7>0"),
            (
                "xdp:eth1,q=2-3,steer=udp4:7+tcp6:80+udp6:65535",
                "udp4:7>2 tcp6:80>3 udp6:65535>2",
            ),
            ("xdp:eth1,q=1,rss=set,steer=tcp:1", "tcp4:1>1 tcp6:1>1"),
        ] {
            assert_eq!(flow_texts(text), expected, "{text}");
        }
        for text in ["udp", "udp:", "udp:0", "udp:65536", "sctp:7", "udp:7+", "7"] {
            let error = format!("xdp:eth1,steer={text}")
                .parse::<PortUrl>()
                .unwrap_err();
            assert!(error.to_string().contains("udp:7+tcp:7"), "{error}");
        }
    }

    #[test]
    fn a_device_with_other_channels_is_rejected() {
        let set = url("xdp:eth1,q=0-1,channels=set");
        assert!(check_channels(&set, Some(2)).is_ok());
        assert!(check_channels(&set, None).is_ok());
        assert!(check_channels(&url("xdp:eth1,q=0-1"), Some(4)).is_ok());
        let error = check_channels(&set, Some(4)).unwrap_err();
        assert!(error.to_string().contains("4 receive queues are in use"));
    }
}
