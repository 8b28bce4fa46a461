//! Round trips: how they are asked, and what is told of single ones.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::device_stamps::DeviceStamps;
use crate::plan::Ends;

/// How the asking socket stands to the far end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Attachment {
    /// One socket, connected, for all questions of a flow.
    #[default]
    Connected,
    /// One UDP socket that names its destination with each question.
    Unconnected,
    /// A socket for each question: opened, connected, asked with, closed.
    Reopened,
}

/// A multicast group that questions go to, `GROUP[%IF]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// Its address.
    pub address: IpAddr,
    /// Interface that the questions leave by; absent: the one that routing gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Networks that a question may cross (TTL, hop limit); 1 stays on the link.
    pub ttl: u8,
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, interface) = match text.split_once('%') {
            Some((address, interface)) => (address, Some(interface.to_owned())),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| {
            format!("`{text}` is no address: write 239.1.2.3%eth0 or ff12::77%eth0")
        })?;
        if !address.is_multicast() {
            return Err(format!(
                "{address} is no multicast group: those are 224.0.0.0 to 239.255.255.255 and ff00::/8"
            ));
        }
        if is_reserved(address) {
            return Err(format!(
                "{address} is a group that protocols of the link use: {}",
                Self::OTHERS
            ));
        }
        if interface.as_deref() == Some("") {
            return Err(format!("`{text}` names no interface behind the %"));
        }
        Ok(Self {
            address,
            interface,
            ttl: 1,
        })
    }
}

impl Group {
    /// What to use instead of a group that others use.
    pub const OTHERS: &str = "use one of 239.0.0.0/8 (RFC 2365) or of ff12::/16 (RFC 4291)";

    /// Whether protocols of the link itself use the group: routers, name services, address
    /// assignment. Questions to it would come to all of them.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        is_reserved(self.address)
    }
}

/// The local network control block (RFC 5771 section 4); groups of the interface or link that were
/// assigned for good (RFC 4291 section 2.7: scope 1 or 2, and no T flag).
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

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            Some(interface) => write!(f, "{}%{interface}", self.address),
            None => write!(f, "{}", self.address),
        }
    }
}

/// How round trips are asked and judged. Absent in a record: all of it as by default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RoundTripPlan {
    /// Whether every byte of every answer is compared with its question.
    pub verify: bool,
    /// An answer above this is slow: counted, listed, and its cause looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_ns: Option<u64>,
    /// How the asking socket stands to the far end.
    pub attachment: Attachment,
    /// Connections a second are what is asked for (`throughput --connect`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub connections: bool,
    /// Open loop: questions a second on each flow, on a fixed schedule; absent: the next one leaves
    /// when there is room for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_second: Option<u64>,
    /// Questions that may be open at the same time on each flow.
    pub outstanding: u32,
    /// The group that questions go to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
    /// Real-time threads that spin give up a part of their time before the kernel takes it; in
    /// throughput runs too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rt_yield: bool,
    /// The asking process keeps all of its memory resident.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lock_memory: bool,
    /// Where the far end writes when a question came in and when its answer left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_stamps: Option<DeviceStamps>,
    /// Threads that burn processor time at each end meanwhile.
    #[serde(skip_serializing_if = "is_nothing")]
    pub burn: Ends<u32>,
}

fn is_nothing(burn: &Ends<u32>) -> bool {
    burn.near == 0 && burn.far == 0
}

impl Default for RoundTripPlan {
    fn default() -> Self {
        Self {
            verify: true,
            limit_ns: None,
            attachment: Attachment::Connected,
            connections: false,
            rate_per_second: None,
            outstanding: 1,
            group: None,
            rt_yield: false,
            lock_memory: false,
            device_stamps: None,
            burn: Ends { near: 0, far: 0 },
        }
    }
}

impl RoundTripPlan {
    /// Whether all of it is as by default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the far end has to open a socket of its own for each flow.
    #[must_use]
    pub fn needs_service(&self) -> bool {
        self.attachment != Attachment::Connected || self.group.is_some()
    }

    /// Whether real-time threads give up a part of their time: a schedule and stamps leave none.
    #[must_use]
    pub fn yields(&self) -> bool {
        self.rt_yield && !self.is_open()
    }

    /// Whether questions may leave before the last one was answered.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.rate_per_second.is_some() || self.outstanding > 1
    }
}

/// Largest number of questions that may be open on a flow.
pub const OUTSTANDING_LIMIT: u32 = 65_536;

/// Largest rate of questions: above it the gaps are shorter than a clock read and a send call.
pub const RATE_LIMIT: u64 = 10_000_000;

/// Slow answers that a run lists; all are counted.
pub const SLOW_LISTED: usize = 1_000;

/// A round trip above the limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlowAnswer {
    /// Its flow.
    pub flow: u32,
    /// Number of the question within its flow, from 0.
    pub number: u64,
    /// When the answer came, from the start of the run.
    pub at_ns: u64,
    /// How long the round trip took.
    pub time_ns: u64,
    /// Kebab-case id of the cause as far as this end has evidence of one: `retransmit`,
    /// `preempted`, `migrated`, `page-fault`, `steal`, `scheduler-wake-up`, `softirq-or-timer-tick`,
    /// `receive-queue-wait`, or `not-known`.
    pub cause: String,
    /// What the cause rests on, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub evidence: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_read_as_they_print() {
        for text in ["239.1.2.3", "239.1.2.3%eth0", "ff12::77%br0", "ff05::5"] {
            let group: Group = text.parse().unwrap();
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
            assert!(text.parse::<Group>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_default_is_what_an_absent_plan_reads_as() {
        let read: RoundTripPlan = serde_json::from_str("{}").unwrap();
        assert!(read.is_default() && !read.needs_service() && !read.is_open());
    }
}
