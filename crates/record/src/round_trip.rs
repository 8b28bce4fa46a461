//! Round trips: options of the requests, and the record of slow responses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::device_timestamps::DeviceTimestamps;
use crate::ends::PerEnd;

/// Use of sockets for requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SocketMode {
    /// Single connected socket for all requests of a flow.
    #[default]
    Connected,
    /// Single unconnected UDP socket; each request names its destination.
    Unconnected,
    /// A new socket per request: opened, connected, used and closed.
    Reopened,
}

/// Multicast group as the destination of requests, written `GROUP[%IF]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MulticastGroup {
    /// Group address.
    pub address: IpAddr,
    /// Outgoing interface; absent: chosen by routing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// TTL or hop limit; 1 stays on the link.
    pub ttl: u8,
}

impl FromStr for MulticastGroup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, interface) = match text.split_once('%') {
            Some((address, interface)) => (address, Some(interface.to_owned())),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| {
            format!("`{text}` is not an address: write 239.1.2.3%eth0 or ff12::77%eth0")
        })?;
        if !address.is_multicast() {
            return Err(format!(
                "{address} is not a multicast group: use one of 224.0.0.0 to 239.255.255.255 or ff00::/8"
            ));
        }
        if is_reserved(address) {
            return Err(format!(
                "{address} is reserved for protocols of the local link: {}",
                Self::FREE_GROUPS
            ));
        }
        if interface.as_deref() == Some("") {
            return Err(format!("`{text}` has no interface after the %"));
        }
        Ok(Self {
            address,
            interface,
            ttl: 1,
        })
    }
}

impl MulticastGroup {
    /// Groups to use instead of a reserved one.
    pub const FREE_GROUPS: &str = "use one of 239.0.0.0/8 (RFC 2365) or of ff12::/16 (RFC 4291)";

    /// Returns true if the group is used by protocols of the link: routing, name services, address
    /// assignment. All their hosts would receive the requests.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        is_reserved(self.address)
    }
}

/// Returns true for the local network control block (RFC 5771 section 4) and for permanent groups
/// of the interface or link (RFC 4291 section 2.7: scope 1 or 2, no T flag).
fn is_reserved(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => matches!(address.octets(), [224, 0, 0, _]),
        IpAddr::V6(address) => {
            let [first, second, ..] = address.octets();
            let (transient, scope) = (second & 0x10 != 0, second & 0x0f);
            first == 0xff && !transient && scope <= 2
        }
    }
}

impl fmt::Display for MulticastGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            Some(interface) => write!(f, "{}%{interface}", self.address),
            None => write!(f, "{}", self.address),
        }
    }
}

/// Options of round trips. Absent in a record: all defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RoundTripPlan {
    /// Compare every byte of each response with its request.
    pub verify: bool,
    /// A response above this time is slow: it is counted, listed, and its cause is determined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_ns: Option<u64>,
    /// Use of sockets.
    #[serde(alias = "attachment")]
    pub socket_mode: SocketMode,
    /// Measure connections per second (`throughput --connect`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub connections: bool,
    /// Open loop: requests per second and flow on a fixed schedule; absent: closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<u64>,
    /// Most outstanding requests per flow.
    pub outstanding: u32,
    /// Multicast group that requests are sent to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<MulticastGroup>,
    /// Real-time threads that spin yield part of their time before the kernel throttles them; also
    /// in throughput runs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rt_yield: bool,
    /// Lock all memory of the client process.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lock_memory: bool,
    /// Position of the device's timestamps in responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(alias = "device_stamps")]
    pub device_timestamps: Option<DeviceTimestamps>,
    /// Threads that use processor time at each end during the run.
    #[serde(skip_serializing_if = "has_no_threads")]
    #[serde(alias = "burn")]
    pub load_threads: PerEnd<u32>,
}

fn has_no_threads(load_threads: &PerEnd<u32>) -> bool {
    load_threads.client == 0 && load_threads.server == 0
}

impl Default for RoundTripPlan {
    fn default() -> Self {
        Self {
            verify: true,
            limit_ns: None,
            socket_mode: SocketMode::Connected,
            connections: false,
            rate_per_second: None,
            outstanding: 1,
            group: None,
            rt_yield: false,
            lock_memory: false,
            device_timestamps: None,
            load_threads: PerEnd {
                client: 0,
                server: 0,
            },
        }
    }
}

impl RoundTripPlan {
    /// Returns true if all options have their default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if the server must open a separate socket for each flow.
    #[must_use]
    pub fn needs_flow_socket(&self) -> bool {
        self.socket_mode != SocketMode::Connected || self.group.is_some()
    }

    /// Returns true if real-time threads yield part of their time; a schedule or several
    /// outstanding requests leave no time for it.
    #[must_use]
    pub fn yields(&self) -> bool {
        self.rt_yield && !self.is_pipelined()
    }

    /// Returns true if requests may be sent before the previous response arrived.
    #[must_use]
    pub fn is_pipelined(&self) -> bool {
        self.rate_per_second.is_some() || self.outstanding > 1
    }
}

/// Largest number of outstanding requests per flow.
pub const MAX_OUTSTANDING: u32 = 65_536;

/// Largest rate of requests: above it the gaps are shorter than a clock read and a send call.
pub const MAX_RATE_PER_SECOND: u64 = 10_000_000;

/// Most slow responses that a record lists; all are counted.
pub const MAX_LISTED_SLOW_RESPONSES: usize = 1_000;

/// A response above the limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlowResponse {
    /// Flow number.
    pub flow: u32,
    /// Number of the request within its flow, from 0.
    pub number: u64,
    /// Arrival of the response, from the start of the run.
    pub at_ns: u64,
    /// Round-trip time.
    pub time_ns: u64,
    /// Kebab-case id of the cause, as far as this end has evidence: `retransmit`, `preempted`,
    /// `migrated`, `page-fault`, `steal`, `scheduler-wake-up`, `softirq-or-timer-tick`,
    /// `receive-queue-wait`, or `not-known`.
    pub cause: String,
    /// Evidence of the cause, as text for users.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub evidence: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_read_as_they_print() {
        for text in ["239.1.2.3", "239.1.2.3%eth0", "ff12::77%br0", "ff05::5"] {
            let group: MulticastGroup = text.parse().unwrap();
            assert_eq!(group.to_string(), text);
            assert_eq!(group.ttl, 1);
        }
        for text in [
            "",
            "10.0.0.1",
            "eth0",
            "239.1.2.3%",
            "fd00::1",
            "224.0.0.1",
            "224.0.0.251%eth0",
            "ff01::1",
            "ff02::1%eth0",
            "ff02::1:2",
        ] {
            assert!(text.parse::<MulticastGroup>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_default_is_what_an_absent_plan_reads_as() {
        let read: RoundTripPlan = serde_json::from_str("{}").unwrap();
        assert!(read.is_default() && !read.needs_flow_socket() && !read.is_pipelined());
    }
}
