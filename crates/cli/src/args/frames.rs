//! Options of `generate` and `capacity`: ports and frame templates.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use linerate_packet::template::parse_template;
use linerate_port::PortUrl;
use linerate_record::event::ErrorReport;
use linerate_record::generate::{
    ArpPlan, EthernetPlan, IpPlan, TcpPlan, TemplatePlan, UdpPlan, VlanPlan,
};
use linerate_record::plan::CpuList;
use linerate_stats::units::BitRate;

use super::heading;
use crate::failure::CommandFailure;

pub fn port(text: &str) -> Result<PortUrl, String> {
    text.parse().map_err(|error: linerate_port::PortError| {
        // clap prints the value itself before this text.
        let problem = error.to_report();
        format!("{}: {}", problem.situation, problem.next_step)
    })
}

/// Parses the rate of a line; zero is an error.
fn line_rate(text: &str) -> Result<BitRate, String> {
    match text.parse::<BitRate>().map_err(|error| error.to_string())? {
        BitRate(0) => Err("a line rate must be above 0: write 10G".to_owned()),
        rate => Ok(rate),
    }
}

/// Protocol after the IP header of generated frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FrameTransport {
    /// UDP
    Udp,
    /// TCP segments without connections
    Tcp,
    /// ICMP echo requests
    Icmp,
    /// ARP requests, without IP
    Arp,
    /// Ethernet only
    None,
}

/// Ports, and the threads that poll them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = heading::PORTS)]
pub struct PortArgs {
    /// Ports: the first sends, the second receives (packet:IF, xdp:IF, tap:NAME, ring:N, shm:NAME,
    /// null:, pcap:rx=FILE)
    #[arg(long, value_name = "URL", required = true, value_parser = port, env = "LINERATE_DEV")]
    pub dev: Vec<PortUrl>,
    /// Use an interface although it carries the default route or this SSH login
    #[arg(long, env = "LINERATE_FORCE")]
    pub force: bool,
    /// Rate of the line, for rates in percent [default: the interface's link speed]
    #[arg(long, value_name = "RATE", value_parser = line_rate, env = "LINERATE_LINE_RATE")]
    pub line_rate: Option<BitRate>,
    /// Polling threads: 1 for both directions, or 2 [default: 2 with more than two CPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2), help_heading = heading::CPU, env = "LINERATE_THREADS")]
    pub threads: Option<u32>,
    /// CPUs of the threads, sending thread first: 2,3
    #[arg(long, value_name = "LIST", value_parser = CpuList::in_order, help_heading = heading::CPU, env = "LINERATE_CPU")]
    pub cpu: Option<CpuList>,
    /// Send from the receiving port first, so that switches learn its address
    #[arg(long, env = "LINERATE_LEARN")]
    pub learn: bool,
}

/// Headers and content of generated frames.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = heading::FRAMES)]
pub struct FrameArgs {
    /// Template file (TOML); the options below override it
    #[arg(long, value_name = "FILE", env = "LINERATE_TEMPLATE")]
    pub template: Option<PathBuf>,
    /// Number of flows, sent in turn [default: as many as the field with most values]
    #[arg(long, value_name = "N", env = "LINERATE_FLOWS")]
    pub flows: Option<u32>,
    /// Seed of randomly drawn values
    #[arg(long, value_name = "N", env = "LINERATE_SEED")]
    pub seed: Option<u64>,
    /// Payload bytes: count, zeros, ones or random
    #[arg(long, value_name = "KIND", env = "LINERATE_CONTENT")]
    pub content: Option<String>,
    /// Ethernet source [default: address of the sending port]
    #[arg(long, value_name = "MAC", env = "LINERATE_SOURCE_MAC")]
    pub source_mac: Option<String>,
    /// Ethernet destination [default: address of the receiving port]
    #[arg(long, value_name = "MAC", env = "LINERATE_DESTINATION_MAC")]
    pub destination_mac: Option<String>,
    /// VLAN tag; repeat it for inner tags (1,2,3 are the VLANs of three flows)
    #[arg(long, value_name = "ID", env = "LINERATE_VLAN")]
    pub vlan: Vec<String>,
    /// Source addresses; IPv6 addresses select IPv6 [default: 198.18.0.1]
    #[arg(long, value_name = "ADDRESS", env = "LINERATE_SOURCE")]
    pub source: Option<String>,
    /// Destination addresses [default: 198.18.0.2]
    #[arg(long, value_name = "ADDRESS", env = "LINERATE_DESTINATION")]
    pub destination: Option<String>,
    /// Protocol after the IP header: udp, tcp, icmp, arp (instead of IP) or none (bare Ethernet)
    #[arg(long, value_name = "KIND", env = "LINERATE_TRANSPORT")]
    pub transport: Option<FrameTransport>,
    /// Source ports [default: 49152]
    #[arg(long, value_name = "PORT", env = "LINERATE_SOURCE_PORT")]
    pub source_port: Option<String>,
    /// Destination ports [default: 9]
    #[arg(long, value_name = "PORT", env = "LINERATE_DESTINATION_PORT")]
    pub destination_port: Option<String>,
}

/// Notes on the values of frame options, for help.
pub const FRAME_VALUES_HELP: &str = "\
Addresses, ports and VLANs may vary from flow to flow: A-B counts up by one, A-B+S by S, A,B,C cycles
through a list, draw:A-B draws at random from the seed. All frames of a flow have the same headers.
Frame sizes are those of RFC 2544 and include the FCS of 4 bytes: 64 is the minimum on Ethernet.
A template file sets the same values in tables:
  size = \"imix\"          # 64:7,594:4,1518:1
  flows = 16
  [ethernet]              # source, destination, ethertype
  [[vlan]]                # id, priority
  [ipv4]                  # or ipv6: source, destination, ttl, tos; or arp
  destination = \"198.18.1.1-198.18.1.16\"
  [udp]                   # source, destination; or tcp (flags), icmp (id)";

impl FrameArgs {
    /// Returns the template of the file, overridden by the options.
    pub fn plan(&self, size: Option<&str>) -> Result<TemplatePlan, CommandFailure> {
        let mut plan = match &self.template {
            None => TemplatePlan::default(),
            Some(file) => {
                let name = || file.display().to_string();
                let text = std::fs::read_to_string(file).map_err(|error| {
                    CommandFailure::usage(ErrorReport::new(
                        format!("cannot read the template file ({error})"),
                        name(),
                        "name an existing template file",
                    ))
                })?;
                parse_template(&text).map_err(|error| {
                    CommandFailure::usage(ErrorReport::new(
                        error.to_string(),
                        name(),
                        "`linerate generate --help` shows an example",
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
        self.set_addresses(&mut plan);
        self.set_transport(&mut plan);
        Ok(plan)
    }

    fn set_addresses(&self, plan: &mut TemplatePlan) {
        let (source, destination) = (&self.source, &self.destination);
        if self.transport == Some(FrameTransport::None) {
            let ethernet = plan.ethernet.get_or_insert_with(EthernetPlan::default);
            ethernet.ethertype.get_or_insert(0);
        }
        let named = source.is_some() || destination.is_some();
        if self.transport == Some(FrameTransport::Arp) || (named && plan.arp.is_some()) {
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

    fn set_transport(&self, plan: &mut TemplatePlan) {
        if let Some(transport) = self.transport {
            (plan.udp, plan.tcp, plan.icmp) = match transport {
                FrameTransport::Udp => (Some(plan.udp.take().unwrap_or_default()), None, None),
                FrameTransport::Tcp => (None, Some(plan.tcp.take().unwrap_or_default()), None),
                FrameTransport::Icmp => (None, None, Some(plan.icmp.take().unwrap_or_default())),
                FrameTransport::Arp | FrameTransport::None => (None, None, None),
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
                let UdpPlan {
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
