//! One module per subcommand: arguments become a plan, the libraries run it, `report` shows it.

pub mod completions;
pub mod demo;
pub mod doctor;
pub mod lab;
pub mod latency;
pub mod man;
mod measure;
pub mod server;
pub mod throughput;
