//! Packet generator: plan of a run, and the figures of frames sent and received.
//!
//! Frame sizes are those of RFC 2544: they include the four-byte FCS, so Ethernet has 64 to 1518.
//! Bit rates name their layer: L2 counts these bytes, L1 adds preamble and gap.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use linerate_stats::histogram::Quantiles;
use linerate_stats::units::{BitRate, parse_count, parse_fraction};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::forward::XdpFacts;
use crate::throttling::CpuThrottling;

/// Bytes of the Ethernet FCS, included in frame sizes but not visible to programs (IEEE 802.3).
pub const FCS_BYTES: u16 = 4;
/// Bytes of a frame on the wire in addition to its size: preamble 7, SFD 1, gap 12 (IEEE 802.3).
pub const WIRE_OVERHEAD_BYTES: u16 = 20;

/// Intended load. Written as on the command line: `max`, `10kpps`, `l2:1G`, `50%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String")]
pub enum IntendedLoad {
    /// Maximum rate.
    #[default]
    Max,
    /// Frames per second.
    #[serde(alias = "Frames")]
    FrameRate(f64),
    /// Bits per second, preamble and gap included.
    L1(u64),
    /// Bits per second of frames, FCS included.
    L2(u64),
    /// Share of the line rate; above 1 is permitted.
    #[serde(alias = "Line")]
    LineShare(f64),
}

impl IntendedLoad {
    /// Returns the load in frames per second. `frame_bytes` includes the FCS and is the mean of a
    /// mix. `None` for the maximum load, and for a share of an unknown line rate.
    #[must_use]
    pub fn frames_per_second(self, frame_bytes: f64, line_bps: Option<u64>) -> Option<f64> {
        let on_wire = (frame_bytes + f64::from(WIRE_OVERHEAD_BYTES)) * 8.0;
        match self {
            Self::Max => None,
            Self::FrameRate(rate) => Some(rate),
            Self::L1(bps) => Some(bps as f64 / on_wire),
            Self::L2(bps) => Some(bps as f64 / (frame_bytes * 8.0)),
            Self::LineShare(share) => line_bps.map(|bps| bps as f64 * share / on_wire),
        }
    }
}

/// Returns the frames per second of a line at full rate: `(10 Gb/s, 64) → 14,880,952`.
#[must_use]
pub fn line_rate_fps(line_bps: u64, frame_bytes: f64) -> f64 {
    line_bps as f64 / ((frame_bytes + f64::from(WIRE_OVERHEAD_BYTES)) * 8.0)
}

impl fmt::Display for IntendedLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Max => f.pad("max"),
            Self::FrameRate(rate) => f.pad(&format!("{rate}pps")),
            Self::L1(bps) => f.pad(&format!("l1:{bps}")),
            Self::L2(bps) => f.pad(&format!("l2:{bps}")),
            Self::LineShare(share) => f.pad(&format!("{}%", share * 100.0)),
        }
    }
}

impl From<IntendedLoad> for String {
    fn from(load: IntendedLoad) -> Self {
        load.to_string()
    }
}

impl TryFrom<String> for IntendedLoad {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for IntendedLoad {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bits = |rate: &str| rate.parse::<BitRate>().map_err(|error| error.to_string());
        let load = if text == "max" {
            Self::Max
        } else if let Some(rate) = text.strip_prefix("l1:") {
            Self::L1(bits(rate)?.0)
        } else if let Some(rate) = text.strip_prefix("l2:") {
            Self::L2(bits(rate)?.0)
        } else if text.ends_with('%') {
            Self::LineShare(parse_fraction(text).map_err(|error| error.to_string())?)
        } else if let Some(rate) = text.strip_suffix("pps") {
            let number = rate.parse::<f64>();
            let rate = number.or_else(|_| parse_count(rate).map(|count| count as f64));
            Self::FrameRate(rate.map_err(|error| error.to_string())?)
        } else {
            return Err(format!(
                "`{text}` has no unit: write 10kpps, l2:1G (frames), l1:1G (frames, preambles and \
                 gaps), 50% (of the line rate) or max"
            ));
        };
        let positive = match load {
            Self::Max => true,
            Self::FrameRate(rate) | Self::LineShare(rate) => rate > 0.0 && rate.is_finite(),
            Self::L1(bps) | Self::L2(bps) => bps > 0,
        };
        match positive {
            true => Ok(load),
            false => Err(format!("`{text}` is no load: give a rate above zero")),
        }
    }
}

/// Deserialises an optional text that may be written as a number: `size = 64`.
fn number_too<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    value(from).map(Some)
}

/// Deserialises a text that may be written as a number.
fn value<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    struct TextOrNumber;
    impl serde::de::Visitor<'_> for TextOrNumber {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string or an integer")
        }

        fn visit_str<E>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }

        fn visit_i64<E>(self, number: i64) -> Result<String, E> {
            Ok(number.to_string())
        }

        fn visit_u64<E>(self, number: u64) -> Result<String, E> {
            Ok(number.to_string())
        }
    }
    from.deserialize_any(TextOrNumber)
}

/// Content of the generated frames: the keys of a template file, stored in the record.
///
/// Values are texts: `A` is the same in all frames; `A-B` increments by one from flow to flow,
/// `A-B+S` by S; `A,B,C` alternates; `draw:A-B` is drawn for each flow from the seed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TemplatePlan {
    /// Frame sizes, FCS included: `64`, `64,512,1518`, `64-1518+2`, `draw:64-1518`, `imix`, or
    /// weights `64:7,594:4,1518:1`.
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub size: Option<String>,
    /// Number of flows, sent round-robin; absent: as many as the longest list of values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<u32>,
    /// Seed of random values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Payload after headers and tag: `count` (0, 1, 2, …), `zeros`, `ones` or `random`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Ethernet header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethernet: Option<EthernetPlan>,
    /// VLAN tags, the outer one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vlan: Vec<VlanPlan>,
    /// IPv4 header; the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<IpPlan>,
    /// IPv6 header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<IpPlan>,
    /// ARP request instead of IP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arp: Option<ArpPlan>,
    /// UDP header; the default after IP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp: Option<UdpPlan>,
    /// TCP header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpPlan>,
    /// ICMP or ICMPv6 echo request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icmp: Option<IcmpPlan>,
}

/// Ethernet header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EthernetPlan {
    /// Source addresses; absent: the address of the sending port.
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub source: Option<String>,
    /// Destination addresses; absent: the address of the receiving port.
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub destination: Option<String>,
    /// Ethertype of frames without IP and ARP; absent: 0x88b5, for experiments (IEEE 802).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethertype: Option<u16>,
}

/// A VLAN tag (IEEE 802.1Q).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VlanPlan {
    /// VLAN ids.
    #[serde(deserialize_with = "value")]
    pub id: String,
    /// Priority, 0 to 7.
    pub priority: u8,
    /// Ethertype of the tag; absent: 0x8100, and 0x88a8 before another tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethertype: Option<u16>,
}

/// An IP header of either version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IpPlan {
    /// Source addresses; absent: 198.18.0.1, 2001:2::1 (benchmarking, RFC 2544 and RFC 5180).
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub source: Option<String>,
    /// Destination addresses; absent: 198.18.0.2, 2001:2::2.
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub destination: Option<String>,
    /// Time to live or hop limit; absent: 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u8>,
    /// Type of service or traffic class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tos: Option<u8>,
}

/// An ARP request (RFC 826).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ArpPlan {
    /// Sender addresses.
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub source: Option<String>,
    /// Target addresses.
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub destination: Option<String>,
}

/// UDP header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UdpPlan {
    /// Source ports; absent: 49152, the first dynamic port (RFC 6335).
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub source: Option<String>,
    /// Destination ports; absent: 9, the discard service (RFC 863).
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub destination: Option<String>,
}

/// A TCP header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TcpPlan {
    /// Source ports; absent: 49152.
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub source: Option<String>,
    /// Destination ports; absent: 9.
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub destination: Option<String>,
    /// Flags as letters of F, S, R, P, A, U; absent: `A`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flags: Option<String>,
}

/// ICMP echo request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct IcmpPlan {
    /// Identifiers; absent: 1.
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub id: Option<String>,
}

/// Plan of a generator run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GeneratePlan {
    /// Sending port as the user named it.
    pub send: String,
    /// Receiving port; absent: frames are not received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive: Option<String>,
    /// Intended load.
    pub load: IntendedLoad,
    /// Intended load in frames per second; absent: as fast as possible, or at recorded times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intended_fps: Option<f64>,
    /// Line rate in bits per second, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line_bps: Option<u64>,
    /// Most frames to send; absent: limited by time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<u64>,
    /// Frames per burst.
    pub burst: u32,
    /// Drain time: wait for late frames after sending ends.
    pub drain_ns: u64,
    /// Content of the frames; absent for frames of a capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplatePlan>,
    /// True if the user gave no size and the shortest Ethernet frame is too short for these
    /// headers, a sequence number and a timestamp: the size is then the smallest that fits them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub size_fitted: bool,
    /// Capture file whose frames are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<String>,
    /// Send the frames of the capture at their recorded times.
    pub recorded_times: bool,
    /// Number of flows, sent round-robin.
    pub flows: u32,
    /// Mean frame size in bytes, FCS included.
    pub frame_bytes: f64,
    /// Polling threads: 1 for both directions, or 1 for each.
    pub threads: u32,
    /// Processors of the threads; empty: not pinned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<u32>,
}

/// Figures of a generator run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GenerateFigures {
    /// Time from the first frame to the end of sending.
    pub duration_ns: u64,
    /// Frames that the port accepted (RFC 2285 section 3.5: the offered load).
    pub sent: u64,
    /// Frames of this run received intact, duplicates included; absent without a receiving port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
    /// Offered load in frames per second.
    pub offered_fps: f64,
    /// Offered load in bits per second, preamble and gap included.
    pub offered_l1_bps: f64,
    /// Offered load in bits per second of frames, FCS included.
    pub offered_l2_bps: f64,
    /// Forwarding rate: frames received over the time of sending (RFC 2285 section 3.6.1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarding_fps: Option<f64>,
    /// Forwarding rate in bits per second, preamble and gap included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarding_l1_bps: Option<f64>,
    /// Forwarding rate in bits per second of frames, FCS included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarding_l2_bps: Option<f64>,
    /// Frames sent and never received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// Lost frames as a share of the frames sent, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_fraction: Option<f64>,
    /// Frames received after one with a higher number; absent if frames have no number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_order: Option<u64>,
    /// Frames received more than once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicates: Option<u64>,
    /// Frames received with a different tag or content; absent if frames have no tag. Headers are
    /// not compared, because devices change them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrupted: Option<u64>,
    /// Frames at the receiving port that do not belong to this run.
    #[serde(alias = "foreign")]
    pub unrelated: u64,
    /// Scheduled frames that were skipped because the generator stalled for too long.
    pub unsent: u64,
    /// Transmit calls in which the sending port accepted only a part of the frames.
    #[serde(alias = "refused_polls")]
    pub short_transmits: u64,
    /// Time from passing a frame to the sending port until it was received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_way_delay_ns: Option<Quantiles>,
    /// Figures by flow, or by group of flows if there are many.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<GeneratedFlow>,
    /// Number of flows per entry of `flows`.
    #[serde(alias = "flows_each")]
    pub flows_per_entry: u32,
    /// Figures of the sending port.
    pub send: GeneratorPort,
    /// Figures of the receiving port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive: Option<GeneratorPort>,
    /// Stops by a quota of processor time during the run; absent without a quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttling: Option<CpuThrottling>,
}

/// Figures of a flow, or of a group of flows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GeneratedFlow {
    /// Number from 0.
    pub flow: u32,
    /// Frames sent.
    pub sent: u64,
    /// Frames received intact, duplicates included.
    pub received: u64,
    /// Frames never received, not even corrupted.
    pub lost: u64,
    /// Frames corrupted on the path. A frame with a damaged tag is counted for the flow that the
    /// tag names if that flow has losses, else for a flow with the most losses.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub corrupted: u64,
    /// Frames received after one with a higher number.
    pub out_of_order: u64,
    /// Frames received more than once.
    pub duplicates: u64,
    /// Largest distance of a late frame from the one that overtook it (RFC 4737 section 4.2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reordering_extent: Option<u64>,
    /// One-way delay, percentiles within 1 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_way_delay_ns: Option<Quantiles>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Figures of a generator port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GeneratorPort {
    /// Kind and name.
    pub name: String,
    /// Binding of its AF_XDP sockets, as granted; absent on other ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xdp: Option<XdpFacts>,
    /// Settings that were granted where the port had a choice, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// True if the interface had carrier both at the start and at the end of the run; absent
    /// without an interface, or if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<bool>,
    /// Frames sent or received.
    pub frames: u64,
    /// Bytes of these frames, without FCS.
    pub bytes: u64,
    /// Frames dropped.
    pub dropped: u64,
    /// Frames dropped by cause: `ring-full`, `no-buffer`, `too-long`, `bad`; causes with a count of
    /// zero are left out.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub drops: BTreeMap<String, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_a_line() {
        for (bps, bytes, frames) in [
            (10_000_000_000, 64.0, 14_880_952.0),
            (1_000_000_000, 64.0, 1_488_095.0),
            (1_000_000_000, 1518.0, 81_274.0),
        ] {
            let got = line_rate_fps(bps, bytes);
            assert_eq!(got.floor(), frames, "{bps} {bytes}");
            let share = IntendedLoad::LineShare(0.5).frames_per_second(bytes, Some(bps));
            assert_eq!(share, Some(got / 2.0));
            assert_eq!(
                IntendedLoad::L1(bps).frames_per_second(bytes, None),
                Some(got)
            );
        }
        assert_eq!(
            IntendedLoad::L2(512_000).frames_per_second(64.0, None),
            Some(1000.0)
        );
        assert_eq!(
            IntendedLoad::LineShare(1.0).frames_per_second(64.0, None),
            None
        );
    }

    #[test]
    fn loads_read_as_they_print() {
        for (text, load) in [
            ("max", IntendedLoad::Max),
            ("10kpps", IntendedLoad::FrameRate(10_000.0)),
            ("0.5pps", IntendedLoad::FrameRate(0.5)),
            ("1.5Mpps", IntendedLoad::FrameRate(1_500_000.0)),
            ("l1:10G", IntendedLoad::L1(10_000_000_000)),
            ("l2:1M", IntendedLoad::L2(1_000_000)),
            ("50%", IntendedLoad::LineShare(0.5)),
        ] {
            assert_eq!(text.parse(), Ok(load), "{text}");
            assert_eq!(load.to_string().parse(), Ok(load), "{text}");
        }
        for text in [
            "", "1G", "0pps", "l2:", "-1pps", "0%", "pps", "nanpps", "infpps",
        ] {
            assert!(text.parse::<IntendedLoad>().is_err(), "{text}");
        }
    }
}
