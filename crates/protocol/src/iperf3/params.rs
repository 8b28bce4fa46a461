//! Test parameters that a client requests.

mod params_json;

use super::error_code::Iperf3ErrorCode;
use super::flow::Iperf3Direction;

/// Maximum number of flows in one direction: upstream's limit.
pub const PARALLEL_LIMIT: u32 = 128;

/// Limits of the block size in bytes: largest of TCP (1 MiB), range of UDP; those of upstream.
const TCP_BLOCK_LIMIT: u32 = 1 << 20;
const UDP_BLOCK_RANGE: std::ops::RangeInclusive<u32> = 16..=65_507;

/// Default block size of upstream in bytes, without `len`.
const TCP_BLOCK: u32 = 128 << 10;
const UDP_BLOCK: u32 = 1460;

/// Transport protocol of the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Iperf3Transport {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// Width of the datagram numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CounterWidth {
    /// 32 bits.
    #[default]
    Bits32,
    /// 64 bits (`--udp-counters-64bit`).
    Bits64,
}

/// Test parameters that a client requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Iperf3Params {
    /// Transport protocol of the payload.
    pub protocol: Iperf3Transport,
    /// Direction of the payload.
    pub direction: Iperf3Direction,
    /// Number of flows in each direction.
    pub parallel: u32,
    /// Duration without the omitted time, in nanoseconds. One of this and the next two ends the
    /// test.
    pub duration_ns: Option<u64>,
    /// Bytes of all flows together.
    pub amount_bytes: Option<u64>,
    /// Blocks of all flows together.
    pub blocks: Option<u64>,
    /// Time at the start of the run that is not counted, in nanoseconds.
    pub omit_ns: u64,
    /// Bytes of a write, or of a datagram.
    pub block_bytes: u32,
    /// Payload bits per second of each flow; `None` for no limit.
    pub rate_bps: Option<u64>,
    /// Rate in bits per second that the kernel enforces (`--fq-rate`).
    pub kernel_rate_bps: Option<u64>,
    /// Blocks in one burst when the rate is limited.
    pub burst: Option<u32>,
    /// Socket buffer size in bytes (`-w`).
    pub window_bytes: Option<u64>,
    /// Maximum segment size in bytes (`-M`).
    pub mss_bytes: Option<u32>,
    /// TCP_NODELAY (`-N`).
    pub no_delay: bool,
    /// TOS byte (`-S`).
    pub tos: Option<u8>,
    /// IPv6 flow label (`-L`).
    pub flow_label: Option<u32>,
    /// Congestion control (`-C`).
    pub congestion: Option<String>,
    /// Width of the datagram numbers.
    pub counter_width: CounterWidth,
    /// True if the payload is a repeating pattern instead of random bytes.
    pub repeating_payload: bool,
    /// True if the sender uses `sendfile` (`-Z`).
    pub zero_copy: bool,
    /// True if the IPv4 "don't fragment" bit is set.
    pub dont_fragment: bool,
    /// True if the server's own report is requested (`--get-server-output`).
    pub server_output: bool,
    /// Prefix of output lines (`-T`).
    pub title: Option<String>,
    /// Text to include in the output (`--extra-data`).
    pub extra_data: Option<String>,
    /// Encrypted user name and password.
    pub auth_token: Option<String>,
    /// Version of the client.
    pub client_version: Option<String>,
    /// Names of unknown parameters, the first few of them. They are ignored, as by an upstream
    /// server.
    pub unknown_names: Vec<String>,
}

impl Default for Iperf3Params {
    /// Returns the parameters of an upstream client without options.
    fn default() -> Self {
        Self {
            protocol: Iperf3Transport::Tcp,
            direction: Iperf3Direction::Forward,
            parallel: 1,
            duration_ns: Some(10_000_000_000),
            amount_bytes: None,
            blocks: None,
            omit_ns: 0,
            block_bytes: TCP_BLOCK,
            rate_bps: None,
            kernel_rate_bps: None,
            burst: None,
            window_bytes: None,
            mss_bytes: None,
            no_delay: false,
            tos: None,
            flow_label: None,
            congestion: None,
            counter_width: CounterWidth::Bits32,
            repeating_payload: false,
            zero_copy: false,
            dont_fragment: false,
            server_output: false,
            title: None,
            extra_data: None,
            auth_token: None,
            client_version: None,
            unknown_names: Vec::new(),
        }
    }
}

impl Iperf3Params {
    /// Checks the parameters that do not depend on the server's configuration.
    ///
    /// # Errors
    /// The error code with which an upstream server rejects the test.
    pub fn validate(&self) -> Result<(), Iperf3ErrorCode> {
        if self.protocol == Iperf3Transport::Sctp {
            return Err(Iperf3ErrorCode::NO_SCTP);
        }
        if !(1..=PARALLEL_LIMIT).contains(&self.parallel) {
            return Err(Iperf3ErrorCode::PARALLEL);
        }
        let udp = self.protocol == Iperf3Transport::Udp;
        if udp && !UDP_BLOCK_RANGE.contains(&self.block_bytes) {
            return Err(Iperf3ErrorCode::UDP_BLOCK);
        }
        if !udp && !(1..=TCP_BLOCK_LIMIT).contains(&self.block_bytes) {
            return Err(Iperf3ErrorCode::BLOCK);
        }
        Ok(())
    }
}
