//! `linerate lab`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use linerate_stats::units::{BitRate, ByteSize};

use super::values::{duration, fraction, nonzero_rate};

/// `linerate lab`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate lab up --hops 1                              client, one switch, server
  linerate lab up --hops 1 --rate 50M --delay 20ms --loss 0.1%      a WAN
  linerate lab exec client -- ip address
  linerate lab list
  linerate lab down

A lab file:
  [hosts.client]
  [hosts.server]
  address = \"10.77.0.2/24\"
  [[links]]
  between = [\"client\", \"server\"]
  rate = \"100M\"        # of each direction; burst = \"32K\", queue = \"512K\"
  delay = \"20ms\"       # of each direction; jitter = \"2ms\"
  loss = \"0.1%\"        # also reorder = \"0.5%\"
  mtu = 1500             # also gso = \"512K\", offloads = { tso = false }
[switches.NAME] adds a switch. No root and no netem are needed where user namespaces are permitted.")]
pub struct LabArgs {
    /// Action on labs
    #[command(subcommand)]
    pub action: LabAction,
}

/// Properties of the link to `server`.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = super::heading::NETWORK)]
pub struct LinkArgs {
    /// Rate of the link to `server`; like all of these options for each direction
    #[arg(long, value_name = "RATE", value_parser = nonzero_rate, conflicts_with = "file", env = "LINERATE_RATE")]
    pub rate: Option<BitRate>,
    /// Delay of each direction: half of the round trip
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "file", env = "LINERATE_DELAY")]
    pub delay: Option<Duration>,
    /// Variation of the delay
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "file", requires = "delay", env = "LINERATE_JITTER")]
    pub jitter: Option<Duration>,
    /// Share of packets that are lost (0.1%)
    #[arg(long, value_name = "SHARE", value_parser = fraction, conflicts_with = "file", env = "LINERATE_LOSS")]
    pub loss: Option<f64>,
    /// Share of packets that overtake others
    #[arg(long, value_name = "SHARE", value_parser = fraction, conflicts_with = "file", requires = "delay", env = "LINERATE_REORDER")]
    pub reorder: Option<f64>,
    /// Bytes that wait before the link drops; needs --rate or --delay
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with = "file",
        env = "LINERATE_QUEUE"
    )]
    pub queue: Option<ByteSize>,
    /// Largest packet
    #[arg(
        long,
        value_name = "BYTES",
        conflicts_with = "file",
        env = "LINERATE_MTU"
    )]
    pub mtu: Option<u32>,
}

#[derive(Debug, Subcommand)]
pub enum LabAction {
    /// Build a lab; returns when every host can reach every other
    #[command(after_help = "\
Examples:
  linerate lab up --hops 2 --name two   client, two switches, server
  linerate lab up --hops 1 --rate 16M --delay 10ms --queue 1M       a line with a deep queue
  linerate lab up my-lab.toml")]
    #[command(group(clap::ArgGroup::new("network").required(true).args(["file", "hops"])))]
    Up {
        /// Lab file
        file: Option<PathBuf>,
        /// Build hosts `client` and `server` with N switches between them
        #[arg(long, value_name = "N", env = "LINERATE_HOPS")]
        hops: Option<usize>,
        /// Name of the lab [default: lab1, or the next free name]
        #[arg(long, env = "LINERATE_NAME")]
        name: Option<String>,
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
        #[command(flatten)]
        link: LinkArgs,
    },
    /// Run a command on a host or a switch of a lab
    #[command(after_help = "\
Examples:
  linerate lab exec client -- ip address
  linerate lab exec two/server -- linerate server -1")]
    Exec {
        /// Host; with several labs up, LAB/HOST
        #[arg(value_name = "[LAB/]HOST")]
        host: String,
        /// Lab of the host, in place of LAB/
        #[arg(long, value_name = "LAB", env = "LINERATE_NAME")]
        name: Option<String>,
        /// Command to run
        #[arg(required = true, last = true, value_name = "CMD")]
        command: Vec<std::ffi::OsString>,
    },
    /// List the labs that are up
    #[command(after_help = "\
Examples:
  linerate lab list
  linerate lab list --json")]
    List {
        /// Print one JSON document
        #[arg(long, env = "LINERATE_JSON")]
        json: bool,
    },
    /// Take a lab down and end everything that runs in it
    #[command(after_help = "\
Examples:
  linerate lab down
  linerate lab down two")]
    Down {
        /// Name of the lab; optional when only one is up
        #[arg(value_name = "NAME")]
        lab: Option<String>,
        /// Name of the lab, as in `lab up`
        #[arg(long, env = "LINERATE_NAME")]
        name: Option<String>,
    },
}
