//! Options of `linerate forward`, and parsers of values that its shell takes too.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linerate_forwarder::{ModeSpec, PeerAddress};
use linerate_record::forward::{IdleStrategy, PortTopology};
use linerate_record::plan::CpuList;
use linerate_sys::frames::burst::BURST_FRAMES;
use linerate_sys::frames::frame_memory::CACHED_FRAMES_RANGE;

use super::values::duration;
use super::{OutputArgs, heading};

/// Maximum frame length in bytes.
const FRAME_LIMIT: u32 = 65_518;

/// Parses a frame length: `64`, or the segments `64,100` of testpmd, which are added up.
pub fn frame_length(text: &str) -> Result<u16, String> {
    let error = || format!("`{text}` is not a frame length: give 42 to {FRAME_LIMIT} bytes");
    let mut total: u32 = 0;
    for part in text.split(',') {
        let part: u32 = part.trim().parse().map_err(|_| error())?;
        total = total.saturating_add(part);
    }
    let bytes = u16::try_from(total).map_err(|_| error())?;
    if (42..=FRAME_LIMIT).contains(&u32::from(bytes)) {
        Ok(bytes)
    } else {
        Err(error())
    }
}

/// Parses a source and a destination address: `198.18.0.1,198.18.0.2`.
fn addresses(text: &str) -> Result<(Ipv4Addr, Ipv4Addr), String> {
    let error = || format!("`{text}` is not SOURCE,DESTINATION: write 198.18.0.1,198.18.0.2");
    let (source, destination) = text.split_once(',').ok_or_else(error)?;
    Ok((
        source.parse().map_err(|_| error())?,
        destination.parse().map_err(|_| error())?,
    ))
}

/// Parses a source and a destination port: `9,9`, or one number for both.
fn udp_ports(text: &str) -> Result<(u16, u16), String> {
    let error = || format!("`{text}` is not SOURCE[,DESTINATION]: write 9,9");
    let (source, destination) = text.split_once(',').unwrap_or((text, text));
    Ok((
        source.parse().map_err(|_| error())?,
        destination.parse().map_err(|_| error())?,
    ))
}

fn processors(text: &str) -> Result<CpuList, String> {
    CpuList::in_order(text)
}

/// Parses a mask such as `0x3` into the numbers of its bits.
pub fn parse_mask(text: &str) -> Result<Vec<u32>, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    match u64::from_str_radix(digits, 16) {
        Ok(bits) if bits != 0 => Ok((0..64).filter(|bit| bits >> bit & 1 == 1).collect()),
        _ => Err(format!("`{text}` is not a mask: write 0x3 for 0 and 1")),
    }
}

/// Value of an option that takes a mask.
#[derive(Clone, Debug)]
pub struct PortMask(pub Vec<u32>);

impl std::str::FromStr for PortMask {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_mask(text).map(Self)
    }
}

/// Maximum number of flows that modes generate.
pub const FLOWS_LIMIT: u32 = 1_048_576;

/// Parses the number of bursts of `--tx-first`.
fn parse_bursts(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| {
        format!("`{text}` is not a number of bursts: write --tx-first 4, or --tx-first for one")
    })
}

/// Parses a port number of a list.
fn port_number(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is not a port number: write 0,1"))
}

/// Returns the MTU of a maximum packet length, which includes header and FCS as in DPDK.
pub fn max_packet_mtu(text: &str) -> Result<u32, String> {
    let bytes = text.parse::<u32>().ok();
    let mtu = bytes.and_then(|bytes| bytes.checked_sub(MAX_PACKET_OVERHEAD));
    mtu.filter(|mtu| (68..=65_500).contains(mtu))
        .ok_or_else(|| {
            format!(
                "`{text}` is not a frame length including the FCS: give {} to {} bytes",
                68 + MAX_PACKET_OVERHEAD,
                65_500 + MAX_PACKET_OVERHEAD
            )
        })
}

/// Ethernet header and FCS: difference of maximum packet length and MTU in bytes.
const MAX_PACKET_OVERHEAD: u32 = 18;

/// Parses a burst size of 1 to 32 frames.
pub fn parse_burst(text: &str) -> Result<u8, String> {
    let error = || {
        format!(
            "`{text}` is not a valid burst: a poll moves 1 to {BURST_FRAMES} frames; a larger --tx-first \
             puts more frames into circulation"
        )
    };
    let frames: u32 = text.parse().map_err(|_| error())?;
    let fits = u8::try_from(frames).ok();
    fits.filter(|&frames| (1..=BURST_FRAMES).contains(&usize::from(frames)))
        .ok_or_else(error)
}

/// `linerate forward`.
#[derive(Debug, Args)]
#[command(after_help = "\
Ports: ring:N[,end=a|b], shm:NAME[,role=server], packet:IF[,v=mmsg|2|3,qdisc],
  xdp:IF[,q=0-3,mode=native|generic,zerocopy=yes|no,busy=N,wakeup=no,channels=set,
    rss=set,steer=udp:7],
  tap:NAME[,address=A/LEN,vnet], pcap:rx=FILE,tx=FILE[,timing=recorded,loop], null:[size=N,silent],
  dpdk:ARGS (in a build with it)
Keys of all ports: queues=N, rxd=N, txd=N, burst=N, mtu=N, force (described in docs/GUIDE.md)
Modes: io, mac, macswap, 5tswap, rxonly, txonly, flowgen, icmpecho, csum,
  noisy:delay=10us,memory=16M,reads=4,writes=4
  link:rate=1G,delay=50us,jitter=5us,loss=0.1%,reorder=1%,duplicate=1%,corrupt=0.01%,limit=1000

On a terminal, a shell accepts the commands of DPDK's testpmd (`help` lists them). With -t, --stats-period or
--json, or without a terminal, forwarding starts at once and ends after -t or at Ctrl-C.

Examples:
  linerate forward --dev ring:0 --tx-first 1 -t 5       one core, one ring
  linerate forward --dev ring:0 --dev ring:1 --cores 2 --tx-first 16 -t 5
  linerate forward --dev ring:0 --dev ring:1 --cores 2 --saturate      packets in flight needed
  linerate forward --dev packet:eth1 --dev packet:eth2  a wire between two interfaces, with a shell
  linerate forward --dev xdp:eth1 --mode icmpecho       reply to ARP and ping
  linerate forward --dev packet:a --dev packet:b --mode link:rate=100M,delay=10ms,loss=0.1%
Two hosts back to back; the second one starts the packets:
  linerate forward --dev shm:x,role=server --dev shm:y,role=server -t 12 &
  linerate forward --dev shm:x --dev shm:y --tx-first 4 -t 10")]
pub struct ForwardArgs {
    /// Port; ports are numbered from 0 in the order of these options
    #[arg(long, value_name = "URL", required = true, help_heading = heading::PORTS, env = "LINERATE_DEV")]
    pub dev: Vec<String>,
    /// Forwarding mode, with options after a colon
    #[arg(
        long,
        visible_alias = "forward-mode",
        value_name = "MODE",
        default_value = "io",
        env = "LINERATE_MODE"
    )]
    pub mode: ModeSpec,
    /// Number of forwarding threads, each pinned to a CPU
    #[arg(
        long,
        visible_alias = "nb-cores",
        value_name = "N",
        default_value_t = 1,
        help_heading = heading::CPU,
        env = "LINERATE_CORES"
    )]
    pub cores: u32,
    /// CPUs of the threads, in order [default: the last free ones]
    #[arg(long, value_name = "LIST", value_parser = processors, help_heading = heading::CPU, env = "LINERATE_CORELIST")]
    pub corelist: Option<CpuList>,
    /// CPUs of the threads as a mask
    #[arg(
        long,
        value_name = "MASK",
        conflicts_with = "corelist",
        help_heading = heading::CPU,
        env = "LINERATE_COREMASK"
    )]
    pub coremask: Option<PortMask>,
    /// Pairs of ports: paired, chained or loop
    #[arg(
        long,
        value_name = "TOPOLOGY",
        default_value = "paired",
        help_heading = heading::PORTS,
        env = "LINERATE_PORT_TOPOLOGY"
    )]
    pub port_topology: PortTopology,
    /// Ports that take part [default: all]
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = port_number,
        help_heading = heading::PORTS,
        env = "LINERATE_PORTLIST"
    )]
    pub portlist: Vec<u32>,
    /// Ports that take part, as a mask
    #[arg(
        long,
        value_name = "MASK",
        conflicts_with = "portlist",
        help_heading = heading::PORTS,
        env = "LINERATE_PORTMASK"
    )]
    pub portmask: Option<PortMask>,
    /// Only the first N ports take part
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["portlist", "portmask"], help_heading = heading::PORTS, env = "LINERATE_NB_PORTS")]
    pub nb_ports: Option<u32>,
    /// Queue pairs of each port, one stream each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), help_heading = heading::PORTS, env = "LINERATE_RXQ")]
    pub rxq: Option<u32>,
    /// Queue pairs, as --rxq: a receive and a transmit queue always form a pair
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), help_heading = heading::PORTS, env = "LINERATE_TXQ")]
    pub txq: Option<u32>,
    /// Descriptors of each receive ring
    #[arg(long, value_name = "N", help_heading = heading::PORTS, env = "LINERATE_RXD")]
    pub rxd: Option<u32>,
    /// Descriptors of each transmit ring
    #[arg(long, value_name = "N", help_heading = heading::PORTS, env = "LINERATE_TXD")]
    pub txd: Option<u32>,
    /// Minimum number of frame buffers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = heading::PORTS, env = "LINERATE_TOTAL_NUM_MBUFS")]
    pub total_num_mbufs: Option<u32>,
    /// Minimum size of a frame buffer, including 128 bytes of headroom
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..), help_heading = heading::PORTS, env = "LINERATE_MBUF_SIZE")]
    pub mbuf_size: Option<u32>,
    /// Free buffers that each thread caches [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(i64::from(*CACHED_FRAMES_RANGE.start())..=i64::from(*CACHED_FRAMES_RANGE.end())), help_heading = heading::PORTS, env = "LINERATE_MBCACHE")]
    pub mbcache: Option<u16>,
    /// Maximum frame length including the FCS: 1518 is an MTU of 1500
    #[arg(long, value_name = "BYTES", value_parser = max_packet_mtu, help_heading = heading::PORTS, env = "LINERATE_MAX_PKT_LEN")]
    pub max_pkt_len: Option<u32>,
    /// Frames moved by one poll
    #[arg(long, value_name = "N", default_value = "32", value_parser = parse_burst, help_heading = heading::LOAD, env = "LINERATE_BURST")]
    pub burst: u8,
    /// Send N bursts from each stream before forwarding (1 without a number)
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", value_parser = parse_bursts, help_heading = heading::LOAD, env = "LINERATE_TX_FIRST")]
    pub tx_first: Option<u64>,
    /// Keep frames that wait in receive queues before the start
    #[arg(long, help_heading = heading::LOAD, env = "LINERATE_NO_FLUSH_RX")]
    pub no_flush_rx: bool,
    /// Retry frames that found a full ring up to N times, one microsecond apart
    #[arg(long, value_name = "N", help_heading = heading::LOAD, env = "LINERATE_TX_RETRY")]
    pub tx_retry: Option<u32>,
    /// Action of a thread without frames: spin, yield, sleep:50us, interrupt
    #[arg(
        long,
        value_name = "ACTION",
        default_value = "spin",
        help_heading = heading::CPU,
        env = "LINERATE_IDLE"
    )]
    pub idle: IdleStrategy,
    /// Bytes of generated frames, from the Ethernet header on
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = frame_length, help_heading = heading::FRAMES, env = "LINERATE_TXPKTS")]
    pub txpkts: u16,
    /// IPv4 addresses of generated frames
    #[arg(long, value_name = "SRC,DST", value_parser = addresses, help_heading = heading::FRAMES, env = "LINERATE_TX_IP")]
    pub tx_ip: Option<(Ipv4Addr, Ipv4Addr)>,
    /// UDP ports of generated frames
    #[arg(long, value_name = "SRC[,DST]", value_parser = udp_ports, help_heading = heading::FRAMES, env = "LINERATE_TX_UDP")]
    pub tx_udp: Option<(u16, u16)>,
    /// Number of flows of mode txonly, by source address (256 without a number)
    #[arg(long, visible_alias = "txonly-multi-flow", value_name = "N", num_args = 0..=1, default_missing_value = "256", value_parser = clap::value_parser!(u32).range(1..=i64::from(FLOWS_LIMIT)), help_heading = heading::FRAMES, env = "LINERATE_TXONLY_FLOWS")]
    pub txonly_flows: Option<u32>,
    /// Number of flows of mode flowgen, by destination address
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(FLOWS_LIMIT)),
        help_heading = heading::FRAMES,
        env = "LINERATE_FLOWGEN_FLOWS"
    )]
    pub flowgen_flows: u32,
    /// Copies of each frame that mode flowgen sends after it
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        help_heading = heading::FRAMES,
        env = "LINERATE_FLOWGEN_CLONES"
    )]
    pub flowgen_clones: u32,
    /// Ethernet address of the peer of a port; repeatable
    #[arg(long, value_name = "PORT,MAC", help_heading = heading::PORTS, env = "LINERATE_ETH_PEER")]
    pub eth_peer: Vec<PeerAddress>,
    /// Seed of all random values
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = heading::FRAMES, env = "LINERATE_SEED")]
    pub seed: u64,
    /// Count the cycles of polls that returned frames
    #[arg(long, help_heading = heading::DIAGNOSIS, env = "LINERATE_RECORD_CORE_CYCLES")]
    pub record_core_cycles: bool,
    /// Time frames from the poll to the transmit queue. Each thread times its own frames; the
    /// number of a CPU, which testpmd takes, is ignored
    #[arg(long, value_name = "CORE", num_args = 0..=1, default_missing_value = "0", help_heading = heading::DIAGNOSIS, env = "LINERATE_LATENCYSTATS")]
    pub latencystats: Option<u32>,
    /// Measure bit rates each second: latest, smoothed, peak. The number of a CPU is ignored
    #[arg(long, value_name = "CORE", num_args = 0..=1, default_missing_value = "0", help_heading = heading::DIAGNOSIS, env = "LINERATE_BITRATE_STATS")]
    pub bitrate_stats: Option<u32>,
    /// Print these counters with the port statistics (`show port xstats` lists them)
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        help_heading = heading::DIAGNOSIS,
        env = "LINERATE_DISPLAY_XSTATS"
    )]
    pub display_xstats: Vec<String>,
    /// Use an interface although it carries the default route or this SSH login
    #[arg(long, help_heading = heading::PORTS, env = "LINERATE_FORCE")]
    pub force: bool,
    /// Time to forward [default: until Ctrl-C]
    #[arg(short = 't', long = "time", visible_alias = "duration", value_name = "TIME", value_parser = duration, env = "LINERATE_TIME")]
    pub time: Option<Duration>,
    /// Time between port statistics; 0 prints none
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "interactive", env = "LINERATE_STATS_PERIOD")]
    pub stats_period: Option<Duration>,
    /// Find the packets in flight for the highest rate: tx_first 1, 2, 4, …, for 1 to --cores
    /// threads
    #[arg(long, conflicts_with_all = ["interactive", "commands", "tx_first", "time", "stats_period", "auto_start"], help_heading = heading::LOAD, env = "LINERATE_SATURATE")]
    pub saturate: bool,
    /// Time of each step of --saturate
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = duration, help_heading = heading::LOAD, env = "LINERATE_TRIAL")]
    pub trial: Duration,
    /// Run a shell, on a terminal or from a pipe
    #[arg(short = 'i', long, env = "LINERATE_INTERACTIVE")]
    pub interactive: bool,
    /// Start forwarding before the first command of the shell
    #[arg(short = 'a', long, env = "LINERATE_AUTO_START")]
    pub auto_start: bool,
    /// Read the shell's commands from FILE; with --interactive, typed commands follow
    #[arg(
        long,
        visible_alias = "cmdline-file",
        value_name = "FILE",
        env = "LINERATE_COMMANDS"
    )]
    pub commands: Option<PathBuf>,
    /// End with exit code 3 if the run has a finding of kind `cause`
    #[arg(long, help_heading = heading::CHECKS, env = "LINERATE_FAIL_ON_FINDING")]
    pub fail_on_finding: bool,
    /// Write a report (HTML, self-contained) with plots to FILE
    #[arg(long, value_name = "FILE", help_heading = heading::OUTPUT, env = "LINERATE_HTML")]
    pub html: Option<PathBuf>,
    /// Label of the record, for `linerate runs`
    #[arg(long, value_name = "TEXT", help_heading = heading::OUTPUT, env = "LINERATE_LABEL")]
    pub label: Option<String>,
    /// Show rates, losses and findings on the full screen during the run: p pauses the display, s
    /// saves the events so far, q ends the run
    #[cfg(feature = "tui")]
    #[arg(long, help_heading = heading::OUTPUT, conflicts_with_all = ["json", "json_stream", "quiet", "interactive", "commands", "stats_period", "auto_start"], env = "LINERATE_TUI")]
    pub tui: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl ForwardArgs {
    /// Returns whether the run is shown on the full screen.
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
        assert_eq!((parse_burst("1"), parse_burst("32")), (Ok(1), Ok(32)));
        for text in ["0", "33", "512", "x", ""] {
            assert!(
                parse_burst(text).is_err_and(|why| why.contains("1 to 32")),
                "{text}"
            );
        }
        assert_eq!(
            (max_packet_mtu("1518"), max_packet_mtu("86")),
            (Ok(1500), Ok(68))
        );
        assert!(max_packet_mtu("85").is_err() && max_packet_mtu("x").is_err());
        assert_eq!(parse_bursts("4"), Ok(4));
        assert!(parse_bursts("x").is_err_and(|why| why.contains("--tx-first 4")));
        assert_eq!(udp_ports("9"), Ok((9, 9)));
        assert_eq!(udp_ports("9,10"), Ok((9, 10)));
        assert!(addresses("198.18.0.1").is_err());
        assert_eq!(parse_mask("0x5"), Ok(vec![0, 2]));
        assert_eq!(parse_mask("3"), Ok(vec![0, 1]));
        assert!(parse_mask("0").is_err() && parse_mask("x").is_err());
    }
}
