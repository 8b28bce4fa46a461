//! The options of `linerate forward`.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linerate_measure::forward::{BURST_FRAMES, CACHED_FRAMES, Peer};
use linerate_metric::forward::{Idle, PortTopology};
use linerate_metric::plan::Cpus;

use super::testpmd::{NamedMode, NoisyArgs};
use crate::args::{OutputArgs, duration};

/// Longest list of segments that makes a frame.
const FRAME_LIMIT: u32 = 65_518;

/// `64`, or `64,100`: segments of a frame, which here is one piece.
pub fn frame_length(text: &str) -> Result<u16, String> {
    let refused = || format!("`{text}` is no length of a frame: 42 to {FRAME_LIMIT} bytes");
    let mut total: u32 = 0;
    for part in text.split(',') {
        let part: u32 = part.trim().parse().map_err(|_| refused())?;
        total = total.saturating_add(part);
    }
    let bytes = u16::try_from(total).map_err(|_| refused())?;
    if (42..=FRAME_LIMIT).contains(&u32::from(bytes)) {
        Ok(bytes)
    } else {
        Err(refused())
    }
}

/// `198.18.0.1,198.18.0.2`.
fn addresses(text: &str) -> Result<(Ipv4Addr, Ipv4Addr), String> {
    let refused = || format!("`{text}` is no SOURCE,DESTINATION: write 198.18.0.1,198.18.0.2");
    let (source, destination) = text.split_once(',').ok_or_else(refused)?;
    Ok((
        source.parse().map_err(|_| refused())?,
        destination.parse().map_err(|_| refused())?,
    ))
}

/// `9,9`, or one number for both.
fn udp_ports(text: &str) -> Result<(u16, u16), String> {
    let refused = || format!("`{text}` is no SOURCE[,DESTINATION] of UDP: write 9,9");
    let (source, destination) = text.split_once(',').unwrap_or((text, text));
    Ok((
        source.parse().map_err(|_| refused())?,
        destination.parse().map_err(|_| refused())?,
    ))
}

fn processors(text: &str) -> Result<Cpus, String> {
    Cpus::in_order(text)
}

/// `0x3`: a bit for each number.
pub fn mask(text: &str) -> Result<Vec<u32>, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    match u64::from_str_radix(digits, 16) {
        Ok(bits) if bits != 0 => Ok((0..64).filter(|bit| bits >> bit & 1 == 1).collect()),
        _ => Err(format!("`{text}` is no mask: write 0x3 for 0 and 1")),
    }
}

/// A mask as a value of one option.
#[derive(Clone, Debug)]
pub struct Mask(pub Vec<u32>);

impl std::str::FromStr for Mask {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        mask(text).map(Self)
    }
}

/// Flows that modes make at most.
pub const FLOWS_LIMIT: u32 = 1_048_576;

/// Bursts to begin with.
fn bursts(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| {
        format!("`{text}` is no number of bursts: write --tx-first 4, or --tx-first for one")
    })
}

/// `0`: a port of a list.
fn port_number(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is no number of a port: write 0,1"))
}

/// `1518`: the MTU of frames of so many bytes.
fn max_packet(text: &str) -> Result<u32, String> {
    super::max_packet_mtu(text)
}

/// Frames of a poll: more than 32 are no burst here.
pub fn burst(text: &str) -> Result<u8, String> {
    let refused = || {
        format!(
            "`{text}` is no burst: a poll moves 1 to {BURST_FRAMES} frames; twice the --tx-first puts \
             twice as many into circulation"
        )
    };
    let frames: u32 = text.parse().map_err(|_| refused())?;
    let fits = u8::try_from(frames).ok();
    fits.filter(|&frames| (1..=BURST_FRAMES).contains(&usize::from(frames)))
        .ok_or_else(refused)
}

/// Options of `linerate forward`
#[derive(Debug, Args)]
#[command(after_help = "\
Ports: ring:N[,end=a|b], shm:NAME[,role=server], packet:IF[,v=mmsg|2|3,qdisc],
  xdp:IF[,q=0-3,mode=native|generic,zerocopy=yes|no,busy=N,wakeup=no,channels=set,
    rss=set,steer=udp:7],
  tap:NAME[,address=A/LEN,vnet], pcap:rx=FILE,tx=FILE[,timing=recorded,loop], null:[size=N,silent],
  dpdk:ARGS (in a build with it)
Keys of every port: queues=N, rxd=N, txd=N, burst=N, mtu=N, force (docs/GUIDE.md says what each does)
Modes: io, mac, macswap, 5tswap, rxonly, txonly, flowgen, icmpecho, csum,
  noisy:delay=10us,memory=16M,reads=4,writes=4
  link:rate=1G,delay=50us,jitter=5us,loss=0.1%,reorder=1%,duplicate=1%,corrupt=0.01%,limit=1000

On a terminal a shell takes the words that users of DPDK's testpmd know (`help` lists them); with -t,
--stats-period or --json, or without a terminal, frames are forwarded at once, until -t or Ctrl-C.

Examples:
  linerate forward --dev ring:0 --tx-first 1 -t 5       one core round one ring
  linerate forward --dev ring:0 --dev ring:1 --cores 2 --tx-first 16 -t 5
  linerate forward --dev ring:0 --dev ring:1 --cores 2 --saturate      how many must be in flight
  linerate forward --dev packet:eth1 --dev packet:eth2  a wire between two interfaces, with a shell
  linerate forward --dev xdp:eth1 --mode icmpecho       answers ARP and ping
  linerate forward --dev packet:a --dev packet:b --mode link:rate=100M,delay=10ms,loss=0.1%
Two hosts back to back, the second one starts the packets:
  linerate forward --dev shm:x,role=server --dev shm:y,role=server -t 12 &
  linerate forward --dev shm:x --dev shm:y --tx-first 4 -t 10")]
pub struct ForwardArgs {
    /// A port; its number is its place among these options, from 0
    #[arg(long, value_name = "URL", required = true, env = "LINERATE_DEV")]
    pub dev: Vec<String>,
    /// What happens to frames, with options behind a colon
    #[arg(
        long,
        visible_alias = "forward-mode",
        value_name = "MODE",
        default_value = "io",
        env = "LINERATE_MODE"
    )]
    pub mode: NamedMode,
    /// Threads that forward, each pinned to a processor
    #[arg(
        long,
        visible_alias = "nb-cores",
        value_name = "N",
        default_value_t = 1,
        env = "LINERATE_CORES"
    )]
    pub cores: u32,
    /// Processors for the threads, in their order (the last ones that are free)
    #[arg(long, value_name = "LIST", value_parser = processors, env = "LINERATE_CORELIST")]
    pub corelist: Option<Cpus>,
    /// The same as a mask
    #[arg(
        long,
        value_name = "MASK",
        conflicts_with = "corelist",
        env = "LINERATE_COREMASK"
    )]
    pub coremask: Option<Mask>,
    /// Where frames of a port go: paired, chained or loop
    #[arg(
        long,
        value_name = "TOPOLOGY",
        default_value = "paired",
        env = "LINERATE_PORT_TOPOLOGY"
    )]
    pub port_topology: PortTopology,
    /// Ports that take part (all)
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = port_number,
        env = "LINERATE_PORTLIST"
    )]
    pub portlist: Vec<u32>,
    /// The same as a mask
    #[arg(
        long,
        value_name = "MASK",
        conflicts_with = "portlist",
        env = "LINERATE_PORTMASK"
    )]
    pub portmask: Option<Mask>,
    /// The first N ports take part
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["portlist", "portmask"], env = "LINERATE_NB_PORTS")]
    pub nb_ports: Option<u32>,
    /// Queue pairs of each port, a stream each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), env = "LINERATE_RXQ")]
    pub rxq: Option<u32>,
    /// The same: a receive queue and a transmit queue are a pair
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), env = "LINERATE_TXQ")]
    pub txq: Option<u32>,
    /// Descriptors of each receive ring
    #[arg(long, value_name = "N", env = "LINERATE_RXD")]
    pub rxd: Option<u32>,
    /// Descriptors of each transmit ring
    #[arg(long, value_name = "N", env = "LINERATE_TXD")]
    pub txd: Option<u32>,
    /// Frames of the memory, at least
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), env = "LINERATE_TOTAL_NUM_MBUFS")]
    pub total_num_mbufs: Option<u32>,
    /// Bytes of the memory for each frame, at least, with the 128 that are kept free in front of it
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..), env = "LINERATE_MBUF_SIZE")]
    pub mbuf_size: Option<u32>,
    /// Free frames that a thread keeps for itself (256)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(i64::from(*CACHED_FRAMES.start())..=i64::from(*CACHED_FRAMES.end())), env = "LINERATE_MBCACHE")]
    pub mbcache: Option<u16>,
    /// Bytes of the longest frame, check sequence included: 1518 is an MTU of 1500
    #[arg(long, value_name = "BYTES", value_parser = max_packet, env = "LINERATE_MAX_PKT_LEN")]
    pub max_pkt_len: Option<u32>,
    /// Frames moved by one poll
    #[arg(long, value_name = "N", default_value = "32", value_parser = burst, env = "LINERATE_BURST")]
    pub burst: u8,
    /// Sends N bursts from each stream before forwarding (1 without a number)
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", value_parser = bursts, env = "LINERATE_TX_FIRST")]
    pub tx_first: Option<u64>,
    /// Keeps what waits in receive queues before the start
    #[arg(long, env = "LINERATE_NO_FLUSH_RX")]
    pub no_flush_rx: bool,
    /// Tries frames again that found a full ring, N times a microsecond apart
    #[arg(long, value_name = "N", env = "LINERATE_TX_RETRY")]
    pub tx_retry: Option<u32>,
    /// What a thread does when there is nothing to do: spin, yield, sleep:50us, interrupt
    #[arg(
        long,
        value_name = "WAY",
        default_value = "spin",
        env = "LINERATE_IDLE"
    )]
    pub idle: Idle,
    /// Bytes of frames made here, from the Ethernet header on
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = frame_length, env = "LINERATE_TXPKTS")]
    pub txpkts: u16,
    /// IPv4 addresses of frames made here
    #[arg(long, value_name = "SRC,DST", value_parser = addresses, env = "LINERATE_TX_IP")]
    pub tx_ip: Option<(Ipv4Addr, Ipv4Addr)>,
    /// UDP ports of frames made here
    #[arg(long, value_name = "SRC[,DST]", value_parser = udp_ports, env = "LINERATE_TX_UDP")]
    pub tx_udp: Option<(u16, u16)>,
    /// Flows that txonly sends, by source address (256 without a number)
    #[arg(long, visible_alias = "txonly-multi-flow", value_name = "N", num_args = 0..=1, default_missing_value = "256", value_parser = clap::value_parser!(u32).range(1..=i64::from(FLOWS_LIMIT)), env = "LINERATE_TXONLY_FLOWS")]
    pub txonly_flows: Option<u32>,
    /// Flows that flowgen sends, by destination address
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(FLOWS_LIMIT)),
        env = "LINERATE_FLOWGEN_FLOWS"
    )]
    pub flowgen_flows: u32,
    /// Copies of each frame that flowgen sends behind it
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        env = "LINERATE_FLOWGEN_CLONES"
    )]
    pub flowgen_clones: u32,
    /// The Ethernet address behind a port; repeatable
    #[arg(long, value_name = "PORT,MAC", env = "LINERATE_ETH_PEER")]
    pub eth_peer: Vec<Peer>,
    /// Seed of everything drawn
    #[arg(long, value_name = "N", default_value_t = 1, env = "LINERATE_SEED")]
    pub seed: u64,
    /// Counts cycles of polls that gave frames
    #[arg(long, env = "LINERATE_RECORD_CORE_CYCLES")]
    pub record_core_cycles: bool,
    /// Counts how many frames polls gave
    #[arg(long, env = "LINERATE_RECORD_BURST_STATS")]
    pub record_burst_stats: bool,
    /// Times frames from the poll that finds them to the transmit queue. Each thread times its own: a
    /// processor's number, which testpmd wants, changes nothing
    #[arg(long, value_name = "CORE", num_args = 0..=1, default_missing_value = "0", env = "LINERATE_LATENCYSTATS")]
    pub latencystats: Option<u32>,
    /// Looks at bit rates each second: the last, a smoothed one, the peak. A processor's number changes nothing
    #[arg(long, value_name = "CORE", num_args = 0..=1, default_missing_value = "0", env = "LINERATE_BITRATE_STATS")]
    pub bitrate_stats: Option<u32>,
    /// Shows these counters with what ports moved (`show port xstats` lists them)
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        env = "LINERATE_DISPLAY_XSTATS"
    )]
    pub display_xstats: Vec<String>,
    /// Takes interfaces that carry the default route or this login
    #[arg(long, env = "LINERATE_FORCE")]
    pub force: bool,
    /// How long to forward (until Ctrl-C)
    #[arg(short = 't', long = "time", visible_alias = "duration", value_name = "TIME", value_parser = duration, env = "LINERATE_TIME")]
    pub time: Option<Duration>,
    /// Prints what ports moved this often; 0: not at all
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "interactive", env = "LINERATE_STATS_PERIOD")]
    pub stats_period: Option<Duration>,
    /// Walks tx_first 1, 2, 4, … until packets per second rise no more, for 1 to --cores threads
    #[arg(long, conflicts_with_all = ["interactive", "commands", "tx_first", "time", "stats_period", "auto_start"], env = "LINERATE_SATURATE")]
    pub saturate: bool,
    /// Length of each step of --saturate
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = duration, env = "LINERATE_TRIAL")]
    pub trial: Duration,
    /// A shell, on a terminal or from a pipe
    #[arg(short = 'i', long, env = "LINERATE_INTERACTIVE")]
    pub interactive: bool,
    /// Starts forwarding at once in the shell
    #[arg(short = 'a', long, env = "LINERATE_AUTO_START")]
    pub auto_start: bool,
    /// Takes the shell's commands from FILE; with --interactive those that are typed follow
    #[arg(
        long,
        visible_alias = "cmdline-file",
        value_name = "FILE",
        env = "LINERATE_COMMANDS"
    )]
    pub commands: Option<PathBuf>,
    /// End with exit code 3 if a finding says that something slowed the run down (kind `cause`)
    #[arg(long, env = "LINERATE_FAIL_ON_FINDING")]
    pub fail_on_finding: bool,
    /// Also write a page with plots, readable without a network
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Output",
        env = "LINERATE_HTML"
    )]
    pub html: Option<PathBuf>,
    /// A name for the record, which `linerate runs` shows and finds
    #[arg(
        long,
        value_name = "TEXT",
        help_heading = "Output",
        env = "LINERATE_LABEL"
    )]
    pub label: Option<String>,
    /// Show rates, losses and findings on the whole terminal meanwhile: p pauses the picture, s saves what
    /// was told so far, q ends the run
    #[cfg(feature = "tui")]
    #[arg(long, help_heading = "Output", conflicts_with_all = ["json", "json_stream", "quiet", "interactive", "commands", "stats_period", "auto_start"], env = "LINERATE_TUI")]
    pub tui: bool,
    /// Work of mode noisy
    #[command(flatten)]
    pub noisy: NoisyArgs,
    /// Where results go
    #[command(flatten)]
    pub output: OutputArgs,
}

impl ForwardArgs {
    /// Whether the run is shown on the whole terminal.
    #[must_use]
    pub fn is_shown(&self) -> bool {
        #[cfg(feature = "tui")]
        return self.tui;
        #[cfg(not(feature = "tui"))]
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_options() {
        assert_eq!(frame_length("64"), Ok(64));
        assert_eq!(frame_length("64,100"), Ok(164));
        assert!(frame_length("41").is_err() && frame_length("65519").is_err());
        assert_eq!((burst("1"), burst("32")), (Ok(1), Ok(32)));
        for text in ["0", "33", "512", "x", ""] {
            assert!(
                burst(text).is_err_and(|why| why.contains("1 to 32")),
                "{text}"
            );
        }
        assert_eq!((max_packet("1518"), max_packet("86")), (Ok(1500), Ok(68)));
        assert!(max_packet("85").is_err() && max_packet("x").is_err());
        assert_eq!(bursts("4"), Ok(4));
        assert!(bursts("x").is_err_and(|why| why.contains("--tx-first 4")));
        assert_eq!(udp_ports("9"), Ok((9, 9)));
        assert_eq!(udp_ports("9,10"), Ok((9, 10)));
        assert!(addresses("198.18.0.1").is_err());
        assert_eq!(mask("0x5"), Ok(vec![0, 2]));
        assert_eq!(mask("3"), Ok(vec![0, 1]));
        assert!(mask("0").is_err() && mask("x").is_err());
    }
}
