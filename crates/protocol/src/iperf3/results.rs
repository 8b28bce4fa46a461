//! Results that each end sends.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::Serialize;
use serde_json::value::RawValue;

use super::error::{Iperf3Error, JsonError};
use super::json::{LenientValue, check_depth};
use super::{PARALLEL_LIMIT, RESULTS_LIMIT_BYTES};

/// Maximum number of flows in the results of a peer: both directions.
pub const RESULTS_LIMIT_FLOWS: usize = 2 * PARALLEL_LIMIT as usize;

/// Results of one end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Iperf3Results {
    /// CPU usage of its process.
    pub cpu: Option<CpuPercent>,
    /// True if the sender at this end counts retransmissions.
    pub has_retransmits: Option<bool>,
    /// Congestion control of the flows.
    pub congestion: Option<String>,
    /// Counters of each flow.
    pub flows: Vec<FlowResult>,
    /// Report of a server, as text.
    pub output_text: Option<String>,
    /// Report of a server, as JSON.
    pub output_json: Option<String>,
}

/// CPU usage of an end's process, in percent of one processor.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuPercent {
    /// Total.
    pub total: f64,
    /// User mode.
    pub user: f64,
    /// Kernel mode.
    pub system: f64,
}

/// Counters of one end for one flow. Upstream always writes all of them; a counter without a
/// meaning at this end of the flow is 0 or -1. [`remote_report`](super::remote_report) keeps the
/// meaningful ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowResult {
    /// Number of the flow.
    pub id: u32,
    /// Payload bytes sent or received, without the omitted time.
    pub bytes: Option<u64>,
    /// Retransmitted segments; of the sender.
    pub retransmits: Option<u64>,
    /// Smoothed variation of the transit time in nanoseconds; of the receiver, over UDP.
    pub ipdv_ns: Option<f64>,
    /// Lost datagrams, including the omitted time; of the receiver.
    pub lost: Option<u64>,
    /// Datagrams sent, or the highest number received; including the omitted time.
    pub packets: Option<u64>,
    /// Part of `lost` in the omitted time.
    pub omitted_lost: Option<u64>,
    /// Part of `packets` in the omitted time.
    pub omitted_packets: Option<u64>,
    /// Start of the counting, in nanoseconds after the end of the omitted time.
    pub start_ns: Option<u64>,
    /// End of the counting, in nanoseconds after the end of the omitted time.
    pub end_ns: Option<u64>,
}

impl Iperf3Results {
    /// Parses the text of a peer.
    pub(super) fn read(text: &[u8]) -> Result<Self, Iperf3Error> {
        let read = || {
            check_depth(text)?;
            let results: Self = serde_json::from_slice(text)?;
            let ids = results.flows.iter().map(|flow| flow.id);
            if ids.clone().any(|id| id == 0) {
                return Err(JsonError::Missing("id"));
            }
            Ok(results)
        };
        read().map_err(|source| Iperf3Error::Json {
            document: "results",
            source,
        })
    }

    /// Returns the text for a peer. Unknown values are written as upstream writes them.
    pub(super) fn write(&self) -> Result<Vec<u8>, Iperf3Error> {
        let text = serde_json::to_vec(self).expect("numbers and texts are JSON");
        if text.len() > RESULTS_LIMIT_BYTES {
            return Err(Iperf3Error::OutgoingTooLong {
                length: text.len(),
                limit: RESULTS_LIMIT_BYTES,
            });
        }
        Ok(text)
    }
}

/// Converts nanoseconds to the seconds of the wire.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn nanos(value: &LenientValue) -> Option<u64> {
    let ns = (value.real()? * 1e9).round();
    (ns < 9.2e18).then_some(ns as u64)
}

impl Serialize for Iperf3Results {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let cpu = self.cpu.unwrap_or_default();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("cpu_util_total", &cpu.total)?;
        map.serialize_entry("cpu_util_user", &cpu.user)?;
        map.serialize_entry("cpu_util_system", &cpu.system)?;
        let has_retransmits = match self.has_retransmits {
            Some(true) => 1,
            Some(false) => 0,
            None => -1,
        };
        map.serialize_entry("sender_has_retransmits", &has_retransmits)?;
        if let Some(congestion) = &self.congestion {
            map.serialize_entry("congestion_used", congestion)?;
        }
        if let Some(text) = &self.output_text {
            map.serialize_entry("server_output_text", text)?;
        }
        if let Some(json) = &self.output_json {
            let raw: &RawValue =
                serde_json::from_str(json).map_err(<S::Error as serde::ser::Error>::custom)?;
            map.serialize_entry("server_output_json", raw)?;
        }
        map.serialize_entry("streams", &self.flows)?;
        map.end()
    }
}

impl Serialize for FlowResult {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let retransmits = self
            .retransmits
            .map_or(-1, |count| i64::try_from(count).unwrap_or(i64::MAX));
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("bytes", &self.bytes.unwrap_or(0))?;
        map.serialize_entry("retransmits", &retransmits)?;
        map.serialize_entry("jitter", &(self.ipdv_ns.unwrap_or(0.0) / 1e9))?;
        map.serialize_entry("errors", &self.lost.unwrap_or(0))?;
        map.serialize_entry("packets", &self.packets.unwrap_or(0))?;
        // Upstream rejects one without the other.
        if let (Some(lost), Some(packets)) = (self.omitted_lost, self.omitted_packets) {
            map.serialize_entry("omitted_errors", &lost)?;
            map.serialize_entry("omitted_packets", &packets)?;
        }
        map.serialize_entry("start_time", &seconds(self.start_ns.unwrap_or(0)))?;
        map.serialize_entry("end_time", &seconds(self.end_ns.unwrap_or(0)))?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Iperf3Results {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct JsonObject;
        impl<'de> Visitor<'de> for JsonObject {
            type Value = Iperf3Results;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Iperf3Results, A::Error> {
                let mut results = Iperf3Results::default();
                let (mut total, mut user, mut system) = (None, None, None);
                while let Some(name) = map.next_key::<Cow<'_, str>>()? {
                    match &*name {
                        "cpu_util_total" => total = map.next_value::<LenientValue>()?.real(),
                        "cpu_util_user" => user = map.next_value::<LenientValue>()?.real(),
                        "cpu_util_system" => system = map.next_value::<LenientValue>()?.real(),
                        "sender_has_retransmits" => {
                            results.has_retransmits = map
                                .next_value::<LenientValue>()?
                                .count()
                                .map(|flag| flag == 1);
                        }
                        "congestion_used" => {
                            results.congestion = map.next_value::<LenientValue>()?.text();
                        }
                        "server_output_text" => {
                            results.output_text = map.next_value::<LenientValue>()?.text();
                        }
                        "server_output_json" => {
                            let raw: &RawValue = map.next_value()?;
                            results.output_json = Some(raw.get().to_owned());
                        }
                        "streams" => results.flows = map.next_value::<FlowList>()?.0,
                        _ => {
                            let _: IgnoredAny = map.next_value()?;
                        }
                    }
                }
                results.cpu = total.map(|total| CpuPercent {
                    total,
                    user: user.unwrap_or(0.0),
                    system: system.unwrap_or(0.0),
                });
                Ok(results)
            }
        }
        deserializer.deserialize_map(JsonObject)
    }
}

/// List of flows with the maximum length of a test.
struct FlowList(Vec<FlowResult>);

impl<'de> Deserialize<'de> for FlowList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FlowArray;
        impl<'de> Visitor<'de> for FlowArray {
            type Value = FlowList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of flows")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<FlowList, A::Error> {
                let mut flows = Vec::new();
                while let Some(flow) = seq.next_element()? {
                    if flows.len() == RESULTS_LIMIT_FLOWS {
                        return Err(A::Error::custom(JsonError::TooManyFlows(
                            RESULTS_LIMIT_FLOWS,
                        )));
                    }
                    flows.push(flow);
                }
                Ok(FlowList(flows))
            }
        }
        deserializer.deserialize_seq(FlowArray)
    }
}

impl<'de> Deserialize<'de> for FlowResult {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct JsonObject;
        impl<'de> Visitor<'de> for JsonObject {
            type Value = FlowResult;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a flow")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FlowResult, A::Error> {
                let mut flow = FlowResult::default();
                while let Some(name) = map.next_key::<Cow<'_, str>>()? {
                    let value: LenientValue = map.next_value()?;
                    match &*name {
                        "id" => {
                            let id = value.count().and_then(|id| u32::try_from(id).ok());
                            flow.id = id.unwrap_or(0);
                        }
                        "bytes" => flow.bytes = value.count(),
                        "retransmits" => flow.retransmits = value.count(),
                        "jitter" => flow.ipdv_ns = value.real().map(|seconds| seconds * 1e9),
                        "errors" => flow.lost = value.count(),
                        "packets" => flow.packets = value.count(),
                        "omitted_errors" => flow.omitted_lost = value.count(),
                        "omitted_packets" => flow.omitted_packets = value.count(),
                        "start_time" => flow.start_ns = nanos(&value),
                        "end_time" => flow.end_ns = nanos(&value),
                        _ => {}
                    }
                }
                Ok(flow)
            }
        }
        deserializer.deserialize_map(JsonObject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_reads_as_written() {
        let results = Iperf3Results {
            cpu: Some(CpuPercent {
                total: 12.5,
                user: 2.5,
                system: 10.0,
            }),
            has_retransmits: Some(true),
            congestion: Some("cubic".into()),
            flows: vec![FlowResult {
                id: 3,
                bytes: Some(1 << 50),
                retransmits: Some(7),
                ipdv_ns: Some(1500.0),
                lost: Some(2),
                packets: Some(1000),
                omitted_lost: Some(1),
                omitted_packets: Some(10),
                start_ns: Some(0),
                end_ns: Some(2_500_000_000),
            }],
            output_text: Some("line\n".into()),
            output_json: Some(r#"{"a":[1,2]}"#.into()),
        };
        assert_eq!(
            Iperf3Results::read(&results.write().unwrap()).unwrap(),
            results
        );
    }

    #[test]
    fn unknown_values_stay_unknown() {
        let results = Iperf3Results {
            flows: vec![FlowResult {
                id: 1,
                ..FlowResult::default()
            }],
            ..Iperf3Results::default()
        };
        let text = String::from_utf8(results.write().unwrap()).unwrap();
        assert!(text.contains(r#""retransmits":-1"#), "{text}");
        let read = Iperf3Results::read(text.as_bytes()).unwrap();
        assert_eq!(read.flows[0].retransmits, None);
        assert_eq!(read.has_retransmits, None);
    }

    #[test]
    fn nonsense_is_an_error() {
        let many = format!(
            r#"{{"streams":[{}{{"id":1}}]}}"#,
            r#"{"id":1},"#.repeat(RESULTS_LIMIT_FLOWS)
        );
        for text in [
            "",
            "[]",
            r#"{"streams":7}"#,
            r#"{"streams":[{"bytes":7}]}"#,
            r#"{"streams":[{"id":-1}]}"#,
            r#"{"streams":[7]}"#,
            &many,
        ] {
            assert!(Iperf3Results::read(text.as_bytes()).is_err(), "{text}");
        }
        assert!(Iperf3Results::read(b"{}").is_ok());
    }
}
