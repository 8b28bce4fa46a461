//! Options of `generate` and `capacity`: ports, and what frames are made of.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use linerate_measure::generate::template::read_file;
use linerate_metric::event::Problem;
use linerate_metric::generate::{
    ArpPlan, EthernetPlan, IpPlan, PortsPlan, TcpPlan, TemplatePlan, VlanPlan,
};
use linerate_metric::plan::Cpus;
use linerate_metric::units::BitRate;
use linerate_port::PortUrl;

use crate::failure::Failure;

pub fn port(text: &str) -> Result<PortUrl, String> {
    text.parse().map_err(|error: linerate_port::PortError| {
        // What is wrong stands behind the value already.
        let problem = error.problem();
        format!("{}: {}", problem.situation, problem.next_step)
    })
}

/// The rate of a line, which is not zero.
fn line_rate(text: &str) -> Result<BitRate, String> {
    match text.parse::<BitRate>().map_err(|error| error.to_string())? {
        BitRate(0) => Err("a line of no rate carries nothing: write 10G".to_owned()),
        rate => Ok(rate),
    }
}

/// What is behind the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// UDP
    Udp,
    /// TCP segments, no connections
    Tcp,
    /// Echo requests
    Icmp,
    /// ARP requests, without IP
    Arp,
    /// Nothing but Ethernet
    None,
}

/// Ports and the threads that poll them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Ports")]
pub struct PortArgs {
    /// Ports: the first one sends, the second one receives; packet:IF, xdp:IF, tap:NAME, ring:N,
    /// shm:NAME, null:, pcap:rx=FILE
    #[arg(long, value_name = "URL", required = true, value_parser = port, env = "LINERATE_DEV")]
    pub dev: Vec<PortUrl>,
    /// Take interfaces that carry the default route or this login
    #[arg(long, env = "LINERATE_FORCE")]
    pub force: bool,
    /// Rate of the line, for shares of it [default: what the interface says]
    #[arg(long, value_name = "RATE", value_parser = line_rate, env = "LINERATE_LINE_RATE")]
    pub line_rate: Option<BitRate>,
    /// Threads that poll: 1 for both directions, or 2 [default: 2 with more than two processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2), env = "LINERATE_THREADS")]
    pub threads: Option<u32>,
    /// Processors for the threads, sending one first: 2,3
    #[arg(long, value_name = "LIST", value_parser = Cpus::in_order, env = "LINERATE_CPU")]
    pub cpu: Option<Cpus>,
    /// Let the receiving port send first, so that switches know where it is
    #[arg(long, env = "LINERATE_LEARN")]
    pub learn: bool,
}

/// What frames are made of.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Frames")]
pub struct FrameArgs {
    /// Template file (TOML); options below go before what it says
    #[arg(long, value_name = "FILE", env = "LINERATE_TEMPLATE")]
    pub template: Option<PathBuf>,
    /// Flows, which take turns [default: as many as the values that vary most]
    #[arg(long, value_name = "N", env = "LINERATE_FLOWS")]
    pub flows: Option<u32>,
    /// Seed of values that are drawn
    #[arg(long, value_name = "N", env = "LINERATE_SEED")]
    pub seed: Option<u64>,
    /// Bytes behind headers and tag: count, zeros, ones or random
    #[arg(long, value_name = "KIND", env = "LINERATE_CONTENT")]
    pub content: Option<String>,
    /// Ethernet source [default: the sending port's]
    #[arg(long, value_name = "MAC", env = "LINERATE_SOURCE_MAC")]
    pub source_mac: Option<String>,
    /// Ethernet destination [default: the receiving port's]
    #[arg(long, value_name = "MAC", env = "LINERATE_DESTINATION_MAC")]
    pub destination_mac: Option<String>,
    /// A VLAN tag; given again, one behind it (1,2,3 are the VLANs of three flows)
    #[arg(long, value_name = "ID", env = "LINERATE_VLAN")]
    pub vlan: Vec<String>,
    /// Source addresses; IPv6 when they are [default: 198.18.0.1]
    #[arg(long, value_name = "ADDRESS", env = "LINERATE_SOURCE")]
    pub source: Option<String>,
    /// Destination addresses [default: 198.18.0.2]
    #[arg(long, value_name = "ADDRESS", env = "LINERATE_DESTINATION")]
    pub destination: Option<String>,
    /// What is behind the IP header: udp, tcp, icmp, arp (instead of IP) or none (bare Ethernet)
    #[arg(long, value_name = "KIND", env = "LINERATE_TRANSPORT")]
    pub transport: Option<Transport>,
    /// Source ports [default: 49152]
    #[arg(long, value_name = "PORT", env = "LINERATE_SOURCE_PORT")]
    pub source_port: Option<String>,
    /// Destination ports [default: 9]
    #[arg(long, value_name = "PORT", env = "LINERATE_DESTINATION_PORT")]
    pub destination_port: Option<String>,
}

/// What help says of values.
pub const VALUES: &str = "\
Values of addresses, ports and VLANs vary from flow to flow: A-B goes up by one, A-B+S by S, A,B,C
takes turns, draw:A-B is drawn from the seed. A flow has the same headers in all of its frames.
Sizes are those of RFC 2544, with the check sequence of 4 bytes: 64 is the shortest on Ethernet.
A template file has the same as tables:
  size = \"imix\"          # 64:7,594:4,1518:1
  flows = 16
  [ethernet]              # source, destination, ethertype
  [[vlan]]                # id, priority
  [ipv4]                  # or ipv6: source, destination, ttl, tos; or arp
  destination = \"198.18.1.1-198.18.1.16\"
  [udp]                   # source, destination; or tcp (flags), icmp (id)";

impl FrameArgs {
    /// The template that file and options make together.
    pub fn plan(&self, size: Option<&str>) -> Result<TemplatePlan, Failure> {
        let mut plan = match &self.template {
            None => TemplatePlan::default(),
            Some(file) => {
                let name = || file.display().to_string();
                let text = std::fs::read_to_string(file).map_err(|error| {
                    Failure::usage(Problem::new(
                        format!("cannot be read ({error})"),
                        name(),
                        "give a template file that is there",
                    ))
                })?;
                read_file(&text).map_err(|error| {
                    Failure::usage(Problem::new(
                        error.to_string(),
                        name(),
                        "`linerate generate --help` shows one",
                    ))
                })?
            }
        };
        let set = |into: &mut Option<String>, from: &Option<String>| {
            if from.is_some() {
                into.clone_from(from);
            }
        };
        plan.size = size.map(str::to_owned).or(plan.size);
        plan.flows = self.flows.or(plan.flows);
        plan.seed = self.seed.or(plan.seed);
        set(&mut plan.content, &self.content);
        if self.source_mac.is_some() || self.destination_mac.is_some() {
            let ethernet = plan.ethernet.get_or_insert_default();
            set(&mut ethernet.source, &self.source_mac);
            set(&mut ethernet.destination, &self.destination_mac);
        }
        if !self.vlan.is_empty() {
            let tag = |id: &String| VlanPlan {
                id: id.clone(),
                ..VlanPlan::default()
            };
            plan.vlan = self.vlan.iter().map(tag).collect();
        }
        self.network(&mut plan);
        self.transport(&mut plan);
        Ok(plan)
    }

    fn network(&self, plan: &mut TemplatePlan) {
        let (source, destination) = (&self.source, &self.destination);
        if self.transport == Some(Transport::None) {
            let ethernet = plan.ethernet.get_or_insert_with(EthernetPlan::default);
            ethernet.ethertype.get_or_insert(0);
        }
        let named = source.is_some() || destination.is_some();
        if self.transport == Some(Transport::Arp) || (named && plan.arp.is_some()) {
            let arp = plan.arp.get_or_insert_with(ArpPlan::default);
            arp.source = source.clone().or(arp.source.take());
            arp.destination = destination.clone().or(arp.destination.take());
        } else if named {
            let six = [source, destination].into_iter().flatten().any(|text| {
                text.contains(':') && !text.starts_with("draw:") || text.matches(':').count() > 1
            });
            if six {
                plan.ipv4 = None;
            } else {
                plan.ipv6 = None;
            }
            let ip = if six { &mut plan.ipv6 } else { &mut plan.ipv4 };
            let ip = ip.get_or_insert_with(IpPlan::default);
            ip.source = source.clone().or(ip.source.take());
            ip.destination = destination.clone().or(ip.destination.take());
        }
    }

    fn transport(&self, plan: &mut TemplatePlan) {
        if let Some(transport) = self.transport {
            (plan.udp, plan.tcp, plan.icmp) = match transport {
                Transport::Udp => (Some(plan.udp.take().unwrap_or_default()), None, None),
                Transport::Tcp => (None, Some(plan.tcp.take().unwrap_or_default()), None),
                Transport::Icmp => (None, None, Some(plan.icmp.take().unwrap_or_default())),
                Transport::Arp | Transport::None => (None, None, None),
            };
        }
        let (source, destination) = (&self.source_port, &self.destination_port);
        if source.is_none() && destination.is_none() {
            return;
        }
        let (into_source, into_destination) = match &mut plan.tcp {
            Some(TcpPlan {
                source,
                destination,
                ..
            }) => (source, destination),
            None => {
                let PortsPlan {
                    source,
                    destination,
                } = plan.udp.get_or_insert_default();
                (source, destination)
            }
        };
        *into_source = source.clone().or(into_source.take());
        *into_destination = destination.clone().or(into_destination.take());
    }
}
