//! JSON form of the parameters.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::{Counters, Params, Protocol, TCP_BLOCK, UDP_BLOCK, Way};
use crate::iperf3::error::{Iperf3Error, JsonError};
use crate::iperf3::json::{Loose, check_depth};

/// Longest test of an upstream client, in seconds: a day.
const SECONDS_LIMIT: f64 = 86_400.0;

/// Maximum number of stored names of unknown parameters.
const UNKNOWN_LIMIT: usize = 16;

impl Params {
    /// Parses the text of a client.
    pub(in crate::iperf3) fn read(text: &[u8]) -> Result<Self, Iperf3Error> {
        let read = || {
            check_depth(text)?;
            Self::try_from(serde_json::from_slice::<Fields>(text)?)
        };
        read().map_err(|source| Iperf3Error::Json {
            what: "parameters",
            source,
        })
    }

    /// Returns the text that a client sends.
    pub(in crate::iperf3) fn write(&self) -> Vec<u8> {
        let seconds = |ns: u64| ns.div_ceil(1_000_000_000);
        let on = |on: bool| on.then_some(1);
        let wire = WireParams {
            tcp: (self.protocol == Protocol::Tcp).then_some(true),
            udp: (self.protocol == Protocol::Udp).then_some(true),
            sctp: (self.protocol == Protocol::Sctp).then_some(true),
            omit: seconds(self.omit_ns),
            time: self.duration_ns.map_or(0, seconds),
            num: self.amount_bytes.unwrap_or(0),
            blockcount: self.blocks.unwrap_or(0),
            mss: self.mss_bytes,
            nodelay: self.no_delay.then_some(true),
            parallel: self.parallel,
            reverse: (self.way == Way::Reverse).then_some(true),
            bidirectional: (self.way == Way::Both).then_some(true),
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
            udp_counters_64bit: on(self.counters == Counters::Bits64),
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
struct WireParams<'a> {
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
const IGNORED: &[&str] = &[
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
struct Fields {
    known: Vec<(&'static str, Loose)>,
    unknown: Vec<String>,
}

/// Names of the parameters that are parsed.
const KNOWN: &[&str] = &[
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

impl Fields {
    fn take(&mut self, name: &str) -> Loose {
        let at = self.known.iter().position(|(known, _)| *known == name);
        at.map_or(Loose::Nothing, |at| self.known.swap_remove(at).1)
    }

    fn count(&mut self, name: &'static str) -> Result<Option<u64>, JsonError> {
        match self.take(name) {
            Loose::Nothing => Ok(None),
            value => value.count().map(Some).ok_or(JsonError::OutOfRange(name)),
        }
    }

    fn small<T: TryFrom<u64>>(&mut self, name: &'static str) -> Result<Option<T>, JsonError> {
        self.count(name)?
            .map(|value| T::try_from(value).map_err(|_| JsonError::OutOfRange(name)))
            .transpose()
    }

    fn nanos(&mut self, name: &'static str) -> Result<Option<u64>, JsonError> {
        match self.take(name) {
            Loose::Nothing => Ok(None),
            value => value
                .real()
                .filter(|seconds| *seconds <= SECONDS_LIMIT)
                .map(|seconds| Some((seconds * 1e9) as u64))
                .ok_or(JsonError::OutOfRange(name)),
        }
    }
}

/// Returns the value unless it is zero, which an upstream client writes for an unset parameter.
fn unless_zero<T: PartialEq + From<u8>>(value: Option<T>) -> Option<T> {
    value.filter(|value| *value != T::from(0))
}

impl TryFrom<Fields> for Params {
    type Error = JsonError;

    fn try_from(mut fields: Fields) -> Result<Self, JsonError> {
        let f = &mut fields;
        let protocol = match () {
            () if f.take("udp").is_on() => Protocol::Udp,
            () if f.take("sctp").is_on() => Protocol::Sctp,
            // TCP is also the default of upstream servers.
            () => Protocol::Tcp,
        };
        let (reverse, both) = (f.take("reverse").is_on(), f.take("bidirectional").is_on());
        let block = match protocol {
            Protocol::Udp => UDP_BLOCK,
            _ => TCP_BLOCK,
        };
        Ok(Self {
            protocol,
            way: match (both, reverse) {
                (true, _) => Way::Both,
                (false, true) => Way::Reverse,
                (false, false) => Way::Forward,
            },
            parallel: f.small("parallel")?.unwrap_or(1),
            duration_ns: unless_zero(f.nanos("time")?),
            amount_bytes: unless_zero(f.count("num")?),
            blocks: unless_zero(f.count("blockcount")?),
            omit_ns: f.nanos("omit")?.unwrap_or(0),
            block_bytes: unless_zero(f.small("len")?).unwrap_or(block),
            rate_bps: unless_zero(f.count("bandwidth")?),
            kernel_rate_bps: unless_zero(f.count("fqrate")?),
            burst: unless_zero(f.small("burst")?),
            window_bytes: unless_zero(f.count("window")?),
            mss_bytes: unless_zero(f.small("MSS")?),
            no_delay: f.take("nodelay").is_on(),
            tos: unless_zero(f.small("TOS")?),
            flow_label: unless_zero(f.small("flowlabel")?),
            congestion: f.take("congestion").text(),
            counters: if f.take("udp_counters_64bit").is_on() {
                Counters::Bits64
            } else {
                Counters::Bits32
            },
            repeating_payload: f.take("repeating_payload").is_on(),
            zero_copy: f.take("zerocopy").is_on(),
            dont_fragment: f.take("dont_fragment").is_on(),
            server_output: f.take("get_server_output").is_on(),
            title: f.take("title").text(),
            extra_data: f.take("extra_data").text(),
            auth_token: f.take("authtoken").text(),
            client_version: f.take("client_version").text(),
            unknown: fields.unknown,
        })
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Fields::default();
                while let Some(name) = map.next_key::<Cow<'_, str>>()? {
                    if let Some(known) = KNOWN.iter().find(|known| **known == name) {
                        let value = map.next_value()?;
                        fields.known.retain(|(name, _)| name != known);
                        fields.known.push((known, value));
                        continue;
                    }
                    let _: IgnoredAny = map.next_value()?;
                    let news = !IGNORED.contains(&&*name);
                    if news && fields.unknown.len() < UNKNOWN_LIMIT {
                        fields.unknown.push(name.into_owned());
                    }
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iperf3::error_code::Refusal;

    fn read(text: &str) -> Result<Params, Iperf3Error> {
        Params::read(text.as_bytes())
    }

    #[test]
    fn unknown_parameters_are_told_and_ignored() {
        let params = read(
            r#"{"tcp":true,"time":3,"len":1000,"parallel":1,"gro":1,"warp":[{"a":1}],"time":4}"#,
        )
        .unwrap();
        assert_eq!(params.duration_ns, Some(4_000_000_000));
        assert_eq!(params.unknown, ["warp"]);
    }

    #[test]
    fn what_is_missing_is_what_a_stock_server_takes() {
        let params = read("{}").unwrap();
        assert_eq!(params.duration_ns, None);
        assert_eq!(
            params,
            Params {
                duration_ns: None,
                ..Params::default()
            }
        );
        assert_eq!(read(r#"{"udp":1}"#).unwrap().block_bytes, 1460);
    }

    #[test]
    fn nonsense_is_told() {
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
    fn limits_have_the_codes_of_a_stock_server() {
        for (text, refusal) in [
            (r#"{"sctp":true}"#, Refusal::NO_SCTP),
            (r#"{"tcp":true,"parallel":129}"#, Refusal::PARALLEL),
            (r#"{"tcp":true,"parallel":0}"#, Refusal::PARALLEL),
            (r#"{"tcp":true,"len":1048577}"#, Refusal::BLOCK),
            (r#"{"udp":true,"len":15}"#, Refusal::UDP_BLOCK),
            (r#"{"udp":true,"len":65508}"#, Refusal::UDP_BLOCK),
        ] {
            assert_eq!(read(text).unwrap().check(), Err(refusal), "{text}");
        }
        assert_eq!(Params::default().check(), Ok(()));
    }

    #[test]
    fn everything_reads_as_written() {
        let params = Params {
            protocol: Protocol::Udp,
            way: Way::Both,
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
            counters: Counters::Bits64,
            repeating_payload: true,
            zero_copy: true,
            dont_fragment: true,
            server_output: true,
            title: Some("\"quoted\"".into()),
            extra_data: Some("ü".into()),
            auth_token: Some("token".into()),
            client_version: Some("3.12".into()),
            unknown: Vec::new(),
        };
        assert_eq!(Params::read(&params.write()).unwrap(), params);
    }
}
