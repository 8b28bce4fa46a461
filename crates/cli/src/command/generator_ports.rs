//! Ports of `generate` and `capacity`, and their line rate.

use linerate_host::stop_flag::Stop;
use linerate_measure::generate::{Arrival, Ports};
use linerate_metric::event::Problem;
use linerate_port::PortUrl;

use crate::args::PortArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::port_devices::Nics;

/// Ports named by the options.
pub struct Named {
    pub send: PortUrl,
    /// Port or place where frames are received.
    pub arrival: Arrival,
}

impl Named {
    /// Reads the ports from the options.
    pub fn new(args: &PortArgs, receive: Option<&PortUrl>, none: bool) -> Result<Self, Failure> {
        let forced = |url: &PortUrl| match args.force {
            true => url.clone().forced(),
            false => url.clone(),
        };
        let (send, second) = match args.dev.as_slice() {
            [send] => (send, receive),
            [send, second] if receive.is_none() => (send, Some(second)),
            _ => {
                return Err(Failure::usage(Problem::new(
                    "needs one sending and one receiving port",
                    "--dev",
                    "name the sending port first and the receiving port second",
                )));
            }
        };
        let arrival = match second {
            Some(_) if none => {
                return Err(Failure::usage(Problem::new(
                    "a receiving port is named, but --no-receive disables receiving",
                    "--no-receive",
                    "leave one of them out",
                )));
            }
            Some(url) => Arrival::At(forced(url)),
            None if none => Arrival::Nowhere,
            None => Arrival::Back,
        };
        if args.learn && !matches!(arrival, Arrival::At(_)) {
            return Err(Failure::usage(Problem::new(
                "needs a receiving port that differs from the sending port",
                "--learn",
                "name the receiving port with a second --dev, or leave it out",
            )));
        }
        Ok(Self {
            send: forced(send),
            arrival,
        })
    }

    /// Applies the device settings that the ports request, until it drops. Create it before the
    /// ports open, so that they are closed when it drops.
    pub fn nics(&self, stop: &Stop, output: &Output) -> Result<Nics, Failure> {
        let receive = match &self.arrival {
            Arrival::At(url) => Some(url),
            Arrival::Back | Arrival::Nowhere => None,
        };
        Nics::for_ports(std::iter::once(&self.send).chain(receive), stop, output)
    }

    /// Opens the ports.
    pub fn open(&self) -> Result<Ports, Failure> {
        Ok(Ports::open(&self.send, &self.arrival)?)
    }

    /// Returns the names of the sending and the receiving port.
    pub fn names(&self) -> (String, Option<String>) {
        let receive = match &self.arrival {
            Arrival::At(url) => Some(url.to_string()),
            Arrival::Back => Some(self.send.to_string()),
            Arrival::Nowhere => None,
        };
        (self.send.to_string(), receive)
    }

    /// Returns the line rate: that of the option, else the link speed of the interface. Virtual
    /// links have none.
    pub fn line_bps(&self, args: &PortArgs) -> Option<u64> {
        let said = args.line_rate.map(|rate| rate.0);
        said.or_else(|| linerate_host::snapshot::interface(self.send.interface()?)?.speed_bps)
    }
}
