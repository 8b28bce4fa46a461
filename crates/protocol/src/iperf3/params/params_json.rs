//! JSON form of the parameters.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::{CounterWidth, Iperf3Direction, Iperf3Params, Iperf3Transport, TCP_BLOCK, UDP_BLOCK};
use crate::iperf3::error::{Iperf3Error, JsonError};
use crate::iperf3::json::{LenientValue, check_depth};

/// Longest test of an upstream client, in seconds: a day.
const SECONDS_LIMIT: f64 = 86_400.0;

/// Maximum number of stored names of unknown parameters.
const UNKNOWN_LIMIT: usize = 16;

impl Iperf3Params {
    /// Parses the text of a client.
    pub(in crate::iperf3) fn read(text: &[u8]) -> Result<Self, Iperf3Error> {
        let read = || {
            check_depth(text)?;
            Self::try_from(serde_json::from_slice::<ParsedFields>(text)?)
        };
        read().map_err(|source| Iperf3Error::Json {
            document: "parameters",
            source,
        })
    }

    /// Returns the text that a client sends.
    pub(in crate::iperf3) fn write(&self) -> Vec<u8> {
        let seconds = |ns: u64| ns.div_ceil(1_000_000_000);
        let on = |on: bool| on.then_some(1);
        let wire = ParamsJson {
            tcp: (self.protocol == Iperf3Transport::Tcp).then_some(true),
            udp: (self.protocol == Iperf3Transport::Udp).then_some(true),
            sctp: (self.protocol == Iperf3Transport::Sctp).then_some(true),
            omit: seconds(self.omit_ns),
            time: self.duration_ns.map_or(0, seconds),
            num: self.amount_bytes.unwrap_or(0),
            blockcount: self.blocks.unwrap_or(0),
            mss: self.mss_bytes,
            nodelay: self.no_delay.then_some(true),
            parallel: self.parallel,
            reverse: (self.direction == Iperf3Direction::Reverse).then_some(true),
            bidirectional: (self.direction == Iperf3Direction::Both).then_some(true),
            window: self.window_bytes,
            len: self.block_bytes,
            bandwidth: self.rate_bps,
            fqrate: self.kernel_rate_bps,
            pacing_timer: 1000,
            burst: self.burst,
            tos: self.tos,
            flowlabel: self.flow_label,
            title: self.title.as_deref(),
            extra_data: self.extra_data.as_deref(),
            congestion: self.congestion.as_deref(),
            get_server_output: on(self.server_output),
            udp_counters_64bit: on(self.counter_width == CounterWidth::Bits64),
            repeating_payload: on(self.repeating_payload),
            zerocopy: on(self.zero_copy),
            dont_fragment: on(self.dont_fragment),
            authtoken: self.auth_token.as_deref(),
            client_version: self.client_version.as_deref(),
        };
        serde_json::to_vec(&wire).expect("numbers and texts are JSON")
    }
}

/// Parameters with the types that upstream servers require: `true` for some switches, 1 for others.
#[derive(Serialize)]
struct ParamsJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    udp: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sctp: Option<bool>,
    omit: u64,
    time: u64,
    num: u64,
    blockcount: u64,
    #[serde(rename = "MSS", skip_serializing_if = "Option::is_none")]
    mss: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodelay: Option<bool>,
    parallel: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    reverse: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bidirectional: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<u64>,
    len: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    bandwidth: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fqrate: Option<u64>,
    pacing_timer: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u32>,
    #[serde(rename = "TOS", skip_serializing_if = "Option::is_none")]
    tos: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flowlabel: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_data: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    congestion: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    get_server_output: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    udp_counters_64bit: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repeating_payload: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zerocopy: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dont_fragment: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    authtoken: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_version: Option<&'a str>,
}

/// Names of upstream's parameters that have no effect here.
const IGNORED_NAMES: &[&str] = &[
    "pacing_timer",
    "congestion_used",
    "mptcp",
    "server_affinity",
    "skip_rx_copy",
    "gso",
    "gso_dg_size",
    "gso_bf_size",
    "gro",
    "gro_bf_size",
];

/// Parsed values by name. The last one of a repeated name counts.
#[derive(Default)]
struct ParsedFields {
    values: Vec<(&'static str, LenientValue)>,
    unknown_names: Vec<String>,
}

/// Names of the parameters that are parsed.
const PARSED_NAMES: &[&str] = &[
    "tcp",
    "udp",
    "sctp",
    "omit",
    "time",
    "num",
    "blockcount",
    "MSS",
    "nodelay",
    "parallel",
    "reverse",
    "bidirectional",
    "window",
    "len",
    "bandwidth",
    "fqrate",
    "burst",
    "TOS",
    "flowlabel",
    "title",
    "extra_data",
    "congestion",
    "get_server_output",
    "udp_counters_64bit",
    "repeating_payload",
    "zerocopy",
    "dont_fragment",
    "authtoken",
    "client_version",
];

impl ParsedFields {
    fn take(&mut self, name: &str) -> LenientValue {
        let at = self
            .values
            .iter()
            .position(|(parsed_name, _)| *parsed_name == name);
        at.map_or(LenientValue::Null, |at| self.values.swap_remove(at).1)
    }

    fn count(&mut self, name: &'static str) -> Result<Option<u64>, JsonError> {
        match self.take(name) {
            LenientValue::Null => Ok(None),
            value => value.count().map(Some).ok_or(JsonError::OutOfRange(name)),
        }
    }

    fn integer<T: TryFrom<u64>>(&mut self, name: &'static str) -> Result<Option<T>, JsonError> {
        self.count(name)?
            .map(|value| T::try_from(value).map_err(|_| JsonError::OutOfRange(name)))
            .transpose()
    }

    fn nanos(&mut self, name: &'static str) -> Result<Option<u64>, JsonError> {
        match self.take(name) {
            LenientValue::Null => Ok(None),
            value => value
                .real()
                .filter(|seconds| *seconds <= SECONDS_LIMIT)
                .map(|seconds| Some((seconds * 1e9) as u64))
                .ok_or(JsonError::OutOfRange(name)),
        }
    }
}

/// Returns the value unless it is zero, which an upstream client writes for an unset parameter.
fn nonzero<T: PartialEq + From<u8>>(value: Option<T>) -> Option<T> {
    value.filter(|value| *value != T::from(0))
}

impl TryFrom<ParsedFields> for Iperf3Params {
    type Error = JsonError;

    fn try_from(mut fields: ParsedFields) -> Result<Self, JsonError> {
        let f = &mut fields;
        let protocol = match () {
            () if f.take("udp").is_on() => Iperf3Transport::Udp,
            () if f.take("sctp").is_on() => Iperf3Transport::Sctp,
            // TCP is also the default of upstream servers.
            () => Iperf3Transport::Tcp,
        };
        let (reverse, bidirectional) = (f.take("reverse").is_on(), f.take("bidirectional").is_on());
        let block = match protocol {
            Iperf3Transport::Udp => UDP_BLOCK,
            _ => TCP_BLOCK,
        };
        Ok(Self {
            protocol,
            direction: match (bidirectional, reverse) {
                (true, _) => Iperf3Direction::Both,
                (false, true) => Iperf3Direction::Reverse,
                (false, false) => Iperf3Direction::Forward,
            },
            parallel: f.integer("parallel")?.unwrap_or(1),
            duration_ns: nonzero(f.nanos("time")?),
            amount_bytes: nonzero(f.count("num")?),
            blocks: nonzero(f.count("blockcount")?),
            omit_ns: f.nanos("omit")?.unwrap_or(0),
            block_bytes: nonzero(f.integer("len")?).unwrap_or(block),
            rate_bps: nonzero(f.count("bandwidth")?),
            kernel_rate_bps: nonzero(f.count("fqrate")?),
            burst: nonzero(f.integer("burst")?),
            window_bytes: nonzero(f.count("window")?),
            mss_bytes: nonzero(f.integer("MSS")?),
            no_delay: f.take("nodelay").is_on(),
            tos: nonzero(f.integer("TOS")?),
            flow_label: nonzero(f.integer("flowlabel")?),
            congestion: f.take("congestion").text(),
            counter_width: if f.take("udp_counters_64bit").is_on() {
                CounterWidth::Bits64
            } else {
                CounterWidth::Bits32
            },
            repeating_payload: f.take("repeating_payload").is_on(),
            zero_copy: f.take("zerocopy").is_on(),
            dont_fragment: f.take("dont_fragment").is_on(),
            server_output: f.take("get_server_output").is_on(),
            title: f.take("title").text(),
            extra_data: f.take("extra_data").text(),
            auth_token: f.take("authtoken").text(),
            client_version: f.take("client_version").text(),
            unknown_names: fields.unknown_names,
        })
    }
}

impl<'de> Deserialize<'de> for ParsedFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ParamsObject;
        impl<'de> Visitor<'de> for ParamsObject {
            type Value = ParsedFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ParsedFields, A::Error> {
                let mut fields = ParsedFields::default();
                while let Some(name) = map.next_key::<Cow<'_, str>>()? {
                    if let Some(parsed_name) = PARSED_NAMES
                        .iter()
                        .find(|parsed_name| **parsed_name == name)
                    {
                        let value = map.next_value()?;
                        fields.values.retain(|(name, _)| name != parsed_name);
                        fields.values.push((parsed_name, value));
                        continue;
                    }
                    let _: IgnoredAny = map.next_value()?;
                    let is_unknown = !IGNORED_NAMES.contains(&&*name);
                    if is_unknown && fields.unknown_names.len() < UNKNOWN_LIMIT {
                        fields.unknown_names.push(name.into_owned());
                    }
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(ParamsObject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iperf3::error_code::Iperf3ErrorCode;

    fn read(text: &str) -> Result<Iperf3Params, Iperf3Error> {
        Iperf3Params::read(text.as_bytes())
    }

    #[test]
    fn unknown_parameters_are_reported_and_ignored() {
        let params = read(
            r#"{"tcp":true,"time":3,"len":1000,"parallel":1,"gro":1,"warp":[{"a":1}],"time":4}"#,
        )
        .unwrap();
        assert_eq!(params.duration_ns, Some(4_000_000_000));
        assert_eq!(params.unknown_names, ["warp"]);
    }

    #[test]
    fn missing_parameters_have_upstream_defaults() {
        let params = read("{}").unwrap();
        assert_eq!(params.duration_ns, None);
        assert_eq!(
            params,
            Iperf3Params {
                duration_ns: None,
                ..Iperf3Params::default()
            }
        );
        assert_eq!(read(r#"{"udp":1}"#).unwrap().block_bytes, 1460);
    }

    #[test]
    fn nonsense_is_an_error() {
        for text in [
            "",
            "[]",
            "7",
            "{",
            r#"{"time":-1}"#,
            r#"{"time":1e9}"#,
            r#"{"len":5000000000}"#,
            r#"{"parallel":"many"}"#,
            r#"{"TOS":256}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(matches!(
            read(&format!("{}{}", r#"{"a":"#.repeat(40), "}".repeat(40))),
            Err(Iperf3Error::Json {
                source: JsonError::TooDeep,
                ..
            })
        ));
    }

    #[test]
    fn limits_have_upstream_error_codes() {
        for (text, code) in [
            (r#"{"sctp":true}"#, Iperf3ErrorCode::NO_SCTP),
            (r#"{"tcp":true,"parallel":129}"#, Iperf3ErrorCode::PARALLEL),
            (r#"{"tcp":true,"parallel":0}"#, Iperf3ErrorCode::PARALLEL),
            (r#"{"tcp":true,"len":1048577}"#, Iperf3ErrorCode::BLOCK),
            (r#"{"udp":true,"len":15}"#, Iperf3ErrorCode::UDP_BLOCK),
            (r#"{"udp":true,"len":65508}"#, Iperf3ErrorCode::UDP_BLOCK),
        ] {
            assert_eq!(read(text).unwrap().validate(), Err(code), "{text}");
        }
        assert_eq!(Iperf3Params::default().validate(), Ok(()));
    }

    #[test]
    fn everything_reads_as_written() {
        let params = Iperf3Params {
            protocol: Iperf3Transport::Udp,
            direction: Iperf3Direction::Both,
            parallel: 3,
            duration_ns: None,
            amount_bytes: Some(1 << 40),
            blocks: None,
            omit_ns: 2_000_000_000,
            block_bytes: 1472,
            rate_bps: Some(100_000_000_000),
            kernel_rate_bps: Some(5),
            burst: Some(10),
            window_bytes: Some(65_536),
            mss_bytes: Some(1400),
            no_delay: true,
            tos: Some(0xb8),
            flow_label: Some(0xfffff),
            congestion: Some("cubic".into()),
            counter_width: CounterWidth::Bits64,
            repeating_payload: true,
            zero_copy: true,
            dont_fragment: true,
            server_output: true,
            title: Some("\"quoted\"".into()),
            extra_data: Some("ü".into()),
            auth_token: Some("token".into()),
            client_version: Some("3.12".into()),
            unknown_names: Vec::new(),
        };
        assert_eq!(Iperf3Params::read(&params.write()).unwrap(), params);
    }
}
