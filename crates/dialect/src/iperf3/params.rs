//! What a client asks for.

mod text;

use super::flow::Way;
use super::refusal::Refusal;

/// Most flows in one direction: the limit of stock ends.
pub const PARALLEL_LIMIT: u32 = 128;

/// Largest block of TCP (1 MiB) and smallest and largest of UDP, as stock ends have them.
const TCP_BLOCK_LIMIT: u32 = 1 << 20;
const UDP_BLOCK_RANGE: std::ops::RangeInclusive<u32> = 16..=65_507;

/// What a stock end takes without `len`.
const TCP_BLOCK: u32 = 128 << 10;
const UDP_BLOCK: u32 = 1460;

/// What carries the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// Width of the numbers on datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counters {
    /// 32 bits.
    #[default]
    Bits32,
    /// 64 bits (`--udp-counters-64bit`).
    Bits64,
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// What carries the payload.
    pub protocol: Protocol,
    /// Which way it goes.
    pub way: Way,
    /// Flows in each direction.
    pub parallel: u32,
    /// How long, without the omitted time; one of these three drives the end.
    pub duration_ns: Option<u64>,
    /// How many bytes, over all flows.
    pub amount_bytes: Option<u64>,
    /// How many blocks, over all flows.
    pub blocks: Option<u64>,
    /// How long payload flows before counting begins.
    pub omit_ns: u64,
    /// Bytes of a write, or of a datagram.
    pub block_bytes: u32,
    /// Payload bits per second of each flow; `None` for no limit.
    pub rate_bps: Option<u64>,
    /// The same, to be kept by the kernel (`--fq-rate`).
    pub kernel_rate_bps: Option<u64>,
    /// Blocks that may leave at once where a rate is kept.
    pub burst: Option<u32>,
    /// Socket buffers in bytes (`-w`).
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
    /// Width of the numbers on datagrams.
    pub counters: Counters,
    /// Payload is a pattern instead of random bytes.
    pub repeating_payload: bool,
    /// Sent by `sendfile` (`-Z`).
    pub zero_copy: bool,
    /// The "don't fragment" bit of IPv4 is wanted.
    pub dont_fragment: bool,
    /// The server's own report is wanted (`--get-server-output`).
    pub server_output: bool,
    /// For the output (`-T`).
    pub title: Option<String>,
    /// For the output (`--extra-data`).
    pub extra_data: Option<String>,
    /// User and password, encrypted.
    pub auth_token: Option<String>,
    /// The client's version.
    pub client_version: Option<String>,
    /// Names of parameters that are not known here, the first few of them. They are ignored, as a
    /// stock server does.
    pub unknown: Vec<String>,
}

impl Default for Params {
    /// What a stock client without options asks for.
    fn default() -> Self {
        Self {
            protocol: Protocol::Tcp,
            way: Way::Forward,
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
            counters: Counters::Bits32,
            repeating_payload: false,
            zero_copy: false,
            dont_fragment: false,
            server_output: false,
            title: None,
            extra_data: None,
            auth_token: None,
            client_version: None,
            unknown: Vec::new(),
        }
    }
}

impl Params {
    /// Whether a server can do this, as far as the parameters alone tell.
    ///
    /// # Errors
    /// The reason for which a stock server would refuse.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.protocol == Protocol::Sctp {
            return Err(Refusal::NO_SCTP);
        }
        if !(1..=PARALLEL_LIMIT).contains(&self.parallel) {
            return Err(Refusal::PARALLEL);
        }
        let udp = self.protocol == Protocol::Udp;
        if udp && !UDP_BLOCK_RANGE.contains(&self.block_bytes) {
            return Err(Refusal::UDP_BLOCK);
        }
        if !udp && !(1..=TCP_BLOCK_LIMIT).contains(&self.block_bytes) {
            return Err(Refusal::BLOCK);
        }
        Ok(())
    }
}
