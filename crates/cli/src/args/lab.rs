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
    /// What to do with labs
    #[command(subcommand)]
    pub action: LabAction,
}

/// The actions on labs.
#[derive(Debug, Subcommand)]
pub enum LabAction {
    /// Build a lab; returns once every host reaches every other
    #[command(after_help = "\
Examples:
  linerate lab up --hops 2 --name two   client, two switches, server
  linerate lab up my-lab.toml")]
    Up {
        /// The lab file
        #[arg(required_unless_present = "hops", conflicts_with = "hops")]
        file: Option<PathBuf>,
        /// Hosts `client` and `server` with N switches between them
        #[arg(long, value_name = "N", env = "LINERATE_HOPS")]
        hops: Option<usize>,
        /// Its name [default: lab1, or the next free one]
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
        /// The host; with several labs up, LAB/HOST
        #[arg(value_name = "[LAB/]HOST")]
        host: String,
        /// The lab, as LAB/ before the host
        #[arg(long, value_name = "LAB", env = "LINERATE_NAME")]
        name: Option<String>,
        /// The command
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
    /// End a lab and everything that runs in it
    #[command(after_help = "\
Examples:
  linerate lab down
  linerate lab down two")]
    Down {
        /// Its name; not needed when only one is up
        #[arg(value_name = "NAME")]
        lab: Option<String>,
        /// The same, as for `lab up`
        #[arg(long, env = "LINERATE_NAME")]
        name: Option<String>,
    },
}
