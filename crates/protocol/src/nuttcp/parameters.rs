//! Parameters of a test, and their line in the control protocol.

use std::fmt;
use std::str::FromStr;

use crate::classification::TransportKind;

/// Largest buffer that our server accepts, in bytes (upstream clients use 64 KiB).
pub const BUFFER_LIMIT_BYTES: usize = 16 << 20;

/// Maximum number of streams of a test, as in upstream.
pub const STREAMS_LIMIT: u16 = 128;

/// Largest buffer over UDP in bytes: the payload of a datagram over IPv4.
const DATAGRAM_LIMIT_BYTES: usize = 65_507;

/// Number of buffers that means "no limit".
const NO_LIMIT: u64 = 2_147_483_647;

/// Rate that means "no limit".
const NO_RATE: u64 = 4_294_967_295;

/// Lowest data port that nuttcp accepts.
const LOWEST_PORT: u32 = 5_000;

/// Format bit that requests `key=value` output.
const FORMAT_PARSE: u32 = 0x40;

/// Format of a client without format options (observed in 6.1.2; the meaning of the bit is
/// unknown).
const FORMAT_DEFAULT: u32 = 2_048;

/// Longest plausible time: 100 days, in nanoseconds.
const TIME_LIMIT_NS: u64 = 8_640_000_000_000_000;

/// Version of nuttcp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NuttcpVersion {
    major: u16,
    minor: u16,
    delta: u16,
}

impl NuttcpVersion {
    /// Creates the version `major.minor.delta`.
    #[must_use]
    pub const fn new(major: u16, minor: u16, delta: u16) -> Self {
        Self {
            major,
            minor,
            delta,
        }
    }
}

impl fmt::Display for NuttcpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.delta)
    }
}

impl FromStr for NuttcpVersion {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split('.');
        let mut part = || parts.next().and_then(|part| part.parse().ok());
        let version = match (part(), part(), part()) {
            (Some(major), Some(minor), Some(delta)) => Self::new(major, minor, delta),
            _ => return Err(()),
        };
        if parts.next().is_some() {
            return Err(());
        }
        Ok(version)
    }
}

/// Direction of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NuttcpDirection {
    /// Client to server (`-t`).
    ToServer,
    /// Server to client (`-r`).
    ToClient,
}

/// Parameters of a test, as both ends use them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NuttcpTest {
    /// Direction of the payload.
    pub direction: NuttcpDirection,
    /// TCP or UDP.
    pub transport: TransportKind,
    /// Number of data connections, each on a port of its own.
    pub streams: u16,
    /// First data port, at the end that accepts the connections.
    pub first_port: u16,
    /// Bytes of a write, or of a datagram.
    pub buffer_bytes: usize,
    /// Total number of buffers; `None` for no limit.
    pub buffer_limit: Option<u64>,
    /// Duration of sending in nanoseconds; `None` for no limit.
    pub duration_ns: Option<u64>,
    /// Rate of all streams together in kbit/s; `None` for no limit.
    pub rate_kbps: Option<u64>,
    /// True if the rate applies between any two datagrams, false if it is an average since the
    /// start.
    pub rate_is_instantaneous: bool,
    /// Socket buffer in bytes; `None` for the system's default.
    pub window_bytes: Option<u32>,
    /// Time between interval reports of the receiver in nanoseconds; `None` for no reports.
    pub interval_ns: Option<u64>,
    /// True if the receiver connects (`-F`); TCP only.
    pub flip: bool,
    /// Maximum segment size in bytes; `None` for the system's default.
    pub mss: Option<u32>,
    /// TOS byte.
    pub tos: u8,
    /// True if Nagle's algorithm is off.
    pub no_delay: bool,
    /// True if reports have the form `key=value`.
    pub parseable: bool,
}

impl NuttcpTest {
    /// Returns a test as upstream runs it without options: TCP, 10 s.
    #[must_use]
    pub fn new(direction: NuttcpDirection, transport: TransportKind, first_port: u16) -> Self {
        Self {
            direction,
            transport,
            streams: 1,
            first_port,
            buffer_bytes: match transport {
                TransportKind::Stream => 65_536,
                TransportKind::Datagram => 1_024,
            },
            buffer_limit: None,
            duration_ns: Some(10_000_000_000),
            rate_kbps: None,
            rate_is_instantaneous: false,
            window_bytes: None,
            interval_ns: None,
            flip: false,
            mss: None,
            tos: 0,
            no_delay: false,
            parseable: false,
        }
    }

    /// Returns whether the client connects (over UDP: sends).
    #[must_use]
    pub fn client_connects(&self) -> bool {
        (self.direction == NuttcpDirection::ToServer) != self.flip
    }

    /// Returns the data ports, at the end that accepts the connections.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        self.first_port..=self.first_port.saturating_add(self.streams - 1)
    }

    /// Returns whether datagrams contain the number of bytes sent so far: only with intervals, and
    /// if it fits.
    #[must_use]
    pub fn numbers_datagrams(&self) -> bool {
        self.transport == TransportKind::Datagram
            && self.interval_ns.is_some()
            && self.buffer_bytes >= 32
    }

    /// Returns the silence of the data after which an upstream server gives up, in nanoseconds:
    /// half of the test's time, at least 5 s and at most 60 s; 30 s without a time.
    #[must_use]
    pub fn idle_timeout_ns(&self) -> u64 {
        const SECOND: u64 = 1_000_000_000;
        let idle_ns = match (self.interval_ns, self.duration_ns) {
            (Some(interval_ns), _) => interval_ns,
            (None, Some(time_ns)) => time_ns / 2,
            (None, None) => 30 * SECOND,
        };
        idle_ns.clamp(5 * SECOND, 60 * SECOND)
    }

    /// Returns the reason why neither end can run the test; `None` if it is valid.
    pub(super) fn invalid_reason(&self) -> Option<String> {
        let last_port = u32::from(self.first_port) + u32::from(self.streams).max(1) - 1;
        let datagram = self.transport == TransportKind::Datagram;
        if self.buffer_bytes == 0 || self.buffer_bytes > BUFFER_LIMIT_BYTES {
            Some(format!(
                "invalid buflen: {} B, 1 to {BUFFER_LIMIT_BYTES} are possible",
                self.buffer_bytes
            ))
        } else if datagram && !(5..=DATAGRAM_LIMIT_BYTES).contains(&self.buffer_bytes) {
            Some(format!(
                "invalid buflen: {} B, 5 to {DATAGRAM_LIMIT_BYTES} are possible over UDP",
                self.buffer_bytes
            ))
        } else if self.buffer_limit == Some(0) {
            Some("invalid nbuf: 0".to_owned())
        } else if !(1..=STREAMS_LIMIT).contains(&self.streams) {
            Some(format!(
                "invalid nstream: {}, 1 to {STREAMS_LIMIT} are possible",
                self.streams
            ))
        } else if u32::from(self.first_port) < LOWEST_PORT || last_port > 65_535 {
            Some(format!(
                "invalid port/nstream: {}/{}, ports {LOWEST_PORT} to 65535 are possible",
                self.first_port, self.streams
            ))
        } else if datagram && self.flip {
            Some("the flip option is not possible over UDP".to_owned())
        } else {
            None
        }
    }

    /// Returns the line of parameters for a server of this version.
    pub(super) fn encode_line(&self, server: NuttcpVersion) -> String {
        let number = |value: bool| u8::from(value);
        let seconds = |ns: Option<u64>| {
            let ns = ns.unwrap_or(0);
            // As C prints a double with %f, but without floating point.
            let micros = ns.div_ceil(1_000);
            format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
        };
        let format = FORMAT_DEFAULT | if self.parseable { FORMAT_PARSE } else { 0 };
        let mut line = format!(
            "buflen = {}, nbuf = {}, win = {}, nstream = {}, rate = {}, port = {}, trans = {}, braindead = 0, timeout = {}, udp = {}, vers = {}, interval = {}, reverse = {}, format = {}, traceroute = 0, irate = {}, thirdparty = _NULL_ , multicast = 0 , datamss = {} , tos = {:X}",
            self.buffer_bytes,
            self.buffer_limit.unwrap_or(NO_LIMIT),
            self.window_bytes.unwrap_or(0),
            self.streams,
            self.rate_kbps.unwrap_or(NO_RATE),
            self.first_port,
            number(self.direction == NuttcpDirection::ToServer),
            seconds(self.duration_ns),
            number(self.transport == TransportKind::Datagram),
            super::VERSION,
            seconds(self.interval_ns),
            number(self.flip),
            format,
            number(self.rate_is_instantaneous),
            self.mss.unwrap_or(0),
            self.tos,
        );
        if server >= NuttcpVersion::new(5, 5, 1) {
            line += &format!(
                " , nbuf_bytes = 0 , rate_pps = 0 , nodelay = {}",
                number(self.no_delay)
            );
        }
        line
    }

    /// Parses a line of parameters.
    ///
    /// # Errors
    /// The reason for the client.
    pub(super) fn parse_line(line: &str) -> Result<Self, String> {
        let fields = ParameterFields(line);
        let unreadable = |name: &str| format!("cannot read {name} in the parameters");
        let required = |name: &'static str| fields.number(name).ok_or_else(|| unreadable(name));
        // All versions send these; fields added later may be missing.
        let buffer_bytes = required("buflen")?;
        let buffers = required("nbuf")?;
        let window = required("win")?;
        let streams = required("nstream")?;
        let rate = required("rate")?;
        let port = required("port")?;
        let client_sends = required("trans")? != 0;
        let duration_ns = fields.seconds("timeout")?;
        let udp = required("udp")? != 0;
        let version: NuttcpVersion = fields
            .text("vers")
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| unreadable("vers"))?;
        if version < NuttcpVersion::new(5, 4, 1) {
            return Err(format!(
                "nuttcp {version} is too old here: 5.4.1 or newer is required"
            ));
        }
        let optional = |name: &str| fields.number(name).unwrap_or(0);
        match fields.text("thirdparty") {
            None | Some("_NULL_") => {}
            Some(_) => {
                return Err(
                    "doesn't allow 3rd party nuttcp: this server tests only with its client"
                        .to_owned(),
                );
            }
        }
        if optional("traceroute") != 0 {
            return Err("traceroute is not possible here".to_owned());
        }
        if optional("multicast") != 0 {
            return Err("multicast is not possible here".to_owned());
        }
        let tos = match fields.text("tos") {
            None => 0,
            Some(text) => u8::from_str_radix(text, 16).map_err(|_| unreadable("tos"))?,
        };
        let limit = |value: u64| (value != 0).then(|| u32::try_from(value).unwrap_or(u32::MAX));
        let test = Self {
            direction: if client_sends {
                NuttcpDirection::ToServer
            } else {
                NuttcpDirection::ToClient
            },
            transport: if udp {
                TransportKind::Datagram
            } else {
                TransportKind::Stream
            },
            streams: u16::try_from(streams).map_err(|_| unreadable("nstream"))?,
            first_port: u16::try_from(port).map_err(|_| unreadable("port"))?,
            buffer_bytes: usize::try_from(buffer_bytes).map_err(|_| unreadable("buflen"))?,
            buffer_limit: (buffers != NO_LIMIT).then_some(buffers),
            duration_ns,
            rate_kbps: (rate != NO_RATE && rate != 0).then_some(rate),
            rate_is_instantaneous: optional("irate") != 0,
            window_bytes: limit(window),
            interval_ns: fields.seconds("interval")?,
            flip: optional("reverse") != 0,
            mss: limit(optional("datamss")),
            tos,
            no_delay: optional("nodelay") != 0,
            parseable: optional("format") & u64::from(FORMAT_PARSE) != 0,
        };
        match test.invalid_reason() {
            None => Ok(test),
            Some(reason) => Err(reason),
        }
    }
}

/// Parser of `name = value` pairs between commas.
struct ParameterFields<'a>(&'a str);

impl<'a> ParameterFields<'a> {
    fn text(&self, name: &str) -> Option<&'a str> {
        self.0.split(',').find_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            (key.trim() == name).then(|| value.trim())
        })
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Returns a time in seconds as nanoseconds; `None` for 0.
    fn seconds(&self, name: &str) -> Result<Option<u64>, String> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match text.parse::<f64>() {
            Ok(seconds) if (0.0..=TIME_LIMIT_NS as f64 / 1e9).contains(&seconds) => {
                let ns = (seconds * 1e9).round() as u64;
                Ok((ns > 0).then_some(ns))
            }
            _ => Err(format!("invalid {name}: {text}")),
        }
    }
}
