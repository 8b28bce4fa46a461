//! Generating frames: what a run was told to send, and what of it came back.
//!
//! Sizes of frames are those of RFC 2544: with the check sequence of four bytes, so 64 to 1518 on
//! Ethernet. Rates in bits name their layer: L2 counts these bytes, L1 also preamble and gap.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::forward::XdpFacts;
use crate::histogram::Quantiles;
use crate::units::{BitRate, parse_count, parse_fraction};

/// Bytes of Ethernet's check sequence, which programs do not see and sizes include (IEEE 802.3).
pub const FCS_BYTES: u16 = 4;
/// Bytes that a frame takes on the wire beyond its size: preamble 7, start 1, gap 12 (IEEE 802.3).
pub const GAP_BYTES: u16 = 20;

/// What is asked of the generator. Written as on the command line: `max`, `10kpps`, `l2:1G`, `50%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
#[schemars(with = "String")]
pub enum Load {
    /// As fast as it goes.
    #[default]
    Max,
    /// Frames per second.
    Frames(f64),
    /// Bits per second with preamble and gap.
    L1(u64),
    /// Bits per second of frames with their check sequence.
    L2(u64),
    /// Share of the line's rate, 0 to 1 and above.
    Line(f64),
}

impl Load {
    /// Frames per second of `frame_bytes` (with check sequence, the mean of a mix); `None`: as fast as
    /// it goes, or a share of a line whose rate is not known.
    #[must_use]
    pub fn frames_per_second(self, frame_bytes: f64, line_bps: Option<u64>) -> Option<f64> {
        let on_wire = (frame_bytes + f64::from(GAP_BYTES)) * 8.0;
        match self {
            Self::Max => None,
            Self::Frames(rate) => Some(rate),
            Self::L1(bps) => Some(bps as f64 / on_wire),
            Self::L2(bps) => Some(bps as f64 / (frame_bytes * 8.0)),
            Self::Line(share) => line_bps.map(|bps| bps as f64 * share / on_wire),
        }
    }
}

/// Frames of `frame_bytes` that a line carries in a second: `(10 Gb/s, 64) → 14,880,952`.
#[must_use]
pub fn line_frames(line_bps: u64, frame_bytes: f64) -> f64 {
    line_bps as f64 / ((frame_bytes + f64::from(GAP_BYTES)) * 8.0)
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Max => f.pad("max"),
            Self::Frames(rate) => f.pad(&format!("{rate}pps")),
            Self::L1(bps) => f.pad(&format!("l1:{bps}")),
            Self::L2(bps) => f.pad(&format!("l2:{bps}")),
            Self::Line(share) => f.pad(&format!("{}%", share * 100.0)),
        }
    }
}

impl From<Load> for String {
    fn from(load: Load) -> Self {
        load.to_string()
    }
}

impl TryFrom<String> for Load {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Load {
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
            Self::Line(parse_fraction(text).map_err(|error| error.to_string())?)
        } else if let Some(rate) = text.strip_suffix("pps") {
            let whole = rate.parse::<f64>();
            let rate = whole.or_else(|_| parse_count(rate).map(|count| count as f64));
            Self::Frames(rate.map_err(|error| error.to_string())?)
        } else {
            return Err(format!(
                "`{text}` does not say what it counts: write 10kpps, l2:1G (frames), l1:1G (frames, \
                 preambles and gaps), 50% (of the line) or max"
            ));
        };
        let positive = match load {
            Self::Max => true,
            Self::Frames(rate) | Self::Line(rate) => rate > 0.0 && rate.is_finite(),
            Self::L1(bps) | Self::L2(bps) => bps > 0,
        };
        match positive {
            true => Ok(load),
            false => Err(format!("`{text}` sends nothing")),
        }
    }
}

/// Reads a value that may be written as a number: `size = 64`.
fn number_too<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    value(from).map(Some)
}

/// The same for a value that must be there.
fn value<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    struct Texts;
    impl serde::de::Visitor<'_> for Texts {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text or a whole number")
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
    from.deserialize_any(Texts)
}

/// What frames are made of: the keys of a template file, and what a record says of its run.
///
/// Values are texts: `A` is the same in all frames; `A-B` goes up by one from flow to flow, `A-B+S` by S;
/// `A,B,C` takes turns; `draw:A-B` is drawn for each flow from the seed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TemplatePlan {
    /// Sizes with check sequence: `64`, `64,512,1518`, `64-1518+2`, `draw:64-1518`, `imix`, or weights
    /// `64:7,594:4,1518:1`.
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub size: Option<String>,
    /// Flows, which take turns; absent: as many as the values that vary most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<u32>,
    /// Seed of what is drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Bytes behind headers and tag: `count` (0, 1, 2, …), `zeros`, `ones` or `random`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Ethernet's header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethernet: Option<EthernetPlan>,
    /// VLAN tags, the outer one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vlan: Vec<VlanPlan>,
    /// An IPv4 header; the default where no other is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<IpPlan>,
    /// An IPv6 header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<IpPlan>,
    /// An ARP request instead of IP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arp: Option<ArpPlan>,
    /// A UDP header; the default behind IP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp: Option<PortsPlan>,
    /// A TCP header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpPlan>,
    /// An ICMP or ICMPv6 echo request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icmp: Option<IcmpPlan>,
}

/// Ethernet's header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EthernetPlan {
    /// Source addresses; absent: the sending port's own.
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub source: Option<String>,
    /// Destination addresses; absent: the receiving port's own.
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
    /// Numbers of VLANs.
    #[serde(deserialize_with = "value")]
    pub id: String,
    /// Priority, 0 to 7.
    pub priority: u8,
    /// Its ethertype; absent: 0x8100, and 0x88a8 in front of another tag.
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
    /// Who asks.
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub source: Option<String>,
    /// Who is asked for.
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub destination: Option<String>,
}

/// Ports of UDP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PortsPlan {
    /// Source ports; absent: 49152, the first one for such use (RFC 6335).
    #[serde(
        deserialize_with = "number_too",
        skip_serializing_if = "Option::is_none"
    )]
    pub source: Option<String>,
    /// Destination ports; absent: 9, which discards (RFC 863).
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
    /// Letters of F, S, R, P, A, U; absent: `A`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flags: Option<String>,
}

/// An echo request.
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

/// What a generating run does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GeneratePlan {
    /// The port that sends, as it was named.
    pub send: String,
    /// The port that receives; absent: nothing is received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive: Option<String>,
    /// What was asked for.
    pub load: Load,
    /// The same in frames per second; absent: as fast as it goes, or at recorded times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intended_fps: Option<f64>,
    /// Rate of the line in bits per second, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line_bps: Option<u64>,
    /// Frames at most; absent: as many as the time allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<u64>,
    /// Frames that leave at once.
    pub burst: u32,
    /// How long late frames are waited for.
    pub drain_ns: u64,
    /// What frames are made of; absent: frames of a capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplatePlan>,
    /// Nobody asked for a size, and Ethernet's shortest frame has no room for these headers, a number and a time:
    /// the size is the least that has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub size_fitted: bool,
    /// The capture whose frames are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<String>,
    /// Whether its frames leave at their recorded times.
    pub recorded_times: bool,
    /// Flows that take turns.
    pub flows: u32,
    /// Mean size of frames with check sequence.
    pub frame_bytes: f64,
    /// Threads that poll: 1 for both directions, or one each.
    pub threads: u32,
    /// Processors that they are pinned to; empty: not pinned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<u32>,
}

/// What a generating run saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GenerateFigures {
    /// From the first frame to the end of sending.
    pub duration_ns: u64,
    /// Frames that the port took (RFC 2285 section 3.5: the offered load).
    pub sent: u64,
    /// Frames of this run that arrived whole, repeated ones included; absent without a receiving port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
    /// Frames sent per second.
    pub offered_fps: f64,
    /// The same in bits with preambles and gaps.
    pub offered_l1_bps: f64,
    /// The same in bits of frames with check sequence.
    pub offered_l2_bps: f64,
    /// Frames received over the time of sending (RFC 2285 section 3.6.1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarding_fps: Option<f64>,
    /// The same in bits with preambles and gaps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarding_l1_bps: Option<f64>,
    /// The same in bits of frames with check sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarding_l2_bps: Option<f64>,
    /// Frames sent of which nothing arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// The same as a share of the frames sent, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_fraction: Option<f64>,
    /// Frames that came after one with a higher number; absent where frames carry no number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_order: Option<u64>,
    /// Frames that came again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicates: Option<u64>,
    /// Frames that arrived with another tag or content than they left with; absent where frames carry no
    /// tag. Headers are not looked at: devices change them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrupted: Option<u64>,
    /// Frames at the receiving port that are not of this run.
    pub foreign: u64,
    /// Frames that were due and that the generator gave up, because it stood still for too long.
    pub unsent: u64,
    /// Polls of the sending port that took fewer frames than it was given.
    pub refused_polls: u64,
    /// From when the generator handed a frame over to when the receiving side had it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_way_delay_ns: Option<Quantiles>,
    /// The flows, or groups of flows where they are many.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<GeneratedFlow>,
    /// Flows that share an entry of `flows`.
    pub flows_each: u32,
    /// The sending port.
    pub send: PortFigures,
    /// The receiving port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive: Option<PortFigures>,
}

/// A flow, or a group of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GeneratedFlow {
    /// Its number, from 0.
    pub flow: u32,
    /// Frames sent.
    pub sent: u64,
    /// Frames received whole, repeated ones included.
    pub received: u64,
    /// Frames of which nothing arrived, not even changed.
    pub lost: u64,
    /// Frames that were changed on the way. One whose tag was damaged is of the flow that the tag names, if frames
    /// of it are missing, and else of a flow of which most are.
    #[serde(default, skip_serializing_if = "is_none")]
    pub corrupted: u64,
    /// Frames that came late.
    pub out_of_order: u64,
    /// Frames that came again.
    pub duplicates: u64,
    /// The furthest that a late frame came behind the one that overtook it (RFC 4737 section 4.2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reordering_extent: Option<u64>,
    /// Its delays, percentiles to 1 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_way_delay_ns: Option<Quantiles>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_none(count: &u64) -> bool {
    *count == 0
}

/// A port of the generator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PortFigures {
    /// Its kind and name.
    pub name: String,
    /// How its AF_XDP sockets are bound, as obtained; absent on other ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xdp: Option<XdpFacts>,
    /// What was obtained where there was a choice, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Whether its interface had a carrier both when the run began and when it ended; absent where it has no
    /// interface, or that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<bool>,
    /// Frames that it took or gave.
    pub frames: u64,
    /// Their bytes, without check sequence.
    pub bytes: u64,
    /// Frames dropped.
    pub dropped: u64,
    /// The same by cause: `ring-full`, `no-buffer`, `too-long`, `bad`; causes that never struck are
    /// left out.
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
            let got = line_frames(bps, bytes);
            assert_eq!(got.floor(), frames, "{bps} {bytes}");
            let share = Load::Line(0.5).frames_per_second(bytes, Some(bps));
            assert_eq!(share, Some(got / 2.0));
            assert_eq!(Load::L1(bps).frames_per_second(bytes, None), Some(got));
        }
        assert_eq!(
            Load::L2(512_000).frames_per_second(64.0, None),
            Some(1000.0)
        );
        assert_eq!(Load::Line(1.0).frames_per_second(64.0, None), None);
    }

    #[test]
    fn loads_read_as_they_print() {
        for (text, load) in [
            ("max", Load::Max),
            ("10kpps", Load::Frames(10_000.0)),
            ("0.5pps", Load::Frames(0.5)),
            ("1.5Mpps", Load::Frames(1_500_000.0)),
            ("l1:10G", Load::L1(10_000_000_000)),
            ("l2:1M", Load::L2(1_000_000)),
            ("50%", Load::Line(0.5)),
        ] {
            assert_eq!(text.parse(), Ok(load), "{text}");
            assert_eq!(load.to_string().parse(), Ok(load), "{text}");
        }
        for text in [
            "", "1G", "0pps", "l2:", "-1pps", "0%", "pps", "nanpps", "infpps",
        ] {
            assert!(text.parse::<Load>().is_err(), "{text}");
        }
    }
}
