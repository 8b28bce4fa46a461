//! `linerate lab`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `linerate lab`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  linerate lab up --hops 1                              client, one switch, server
  linerate lab exec client -- ip address
  linerate lab list
  linerate lab down

A lab file:
  [hosts.client]
  [hosts.server]
  address = \"10.77.0.2/24\"
  [[links]]
  between = [\"client\", \"server\"]
  rate = \"100M\"")]
pub struct LabArgs {
    /// Action on labs
    #[command(subcommand)]
    pub action: LabAction,
}

#[derive(Debug, Subcommand)]
pub enum LabAction {
    /// Build a lab; returns when every host can reach every other
    #[command(after_help = "\
Examples:
  linerate lab up --hops 2 --name two   client, two switches, server
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
