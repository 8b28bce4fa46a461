//! What `generate` and `capacity` share: opening ports, and the rate of their line.

use linerate_host::stop::Stop;
use linerate_measure::generate::{Arrival, Ports};
use linerate_metric::event::Problem;
use linerate_port::PortUrl;

use crate::args::PortArgs;
use crate::failure::Failure;
use crate::nic::Nics;
use crate::output::Output;

/// Ports as they were named.
pub struct Named {
    /// The sending port.
    pub send: PortUrl,
    /// Where frames are to arrive.
    pub arrival: Arrival,
}

impl Named {
    /// From the options.
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
                    "one port sends and one receives",
                    "--dev",
                    "name the sending port first and the receiving one second",
                )));
            }
        };
        let arrival = match second {
            Some(_) if none => {
                return Err(Failure::usage(Problem::new(
                    "a receiving port is named, and nothing is to be received",
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
                "the receiving port is to send first, and no other port receives",
                "--learn",
                "name the receiving port with a second --dev, or leave it out",
            )));
        }
        Ok(Self {
            send: forced(send),
            arrival,
        })
    }

    /// What they ask of their devices, set until it drops: before they are opened, so that they are closed by then.
    pub fn nics(&self, stop: &Stop, output: &Output) -> Result<Nics, Failure> {
        let receive = match &self.arrival {
            Arrival::At(url) => Some(url),
            Arrival::Back | Arrival::Nowhere => None,
        };
        Nics::for_ports(std::iter::once(&self.send).chain(receive), stop, output)
    }

    /// Opens them.
    pub fn open(&self) -> Result<Ports, Failure> {
        Ok(Ports::open(&self.send, &self.arrival)?)
    }

    /// The names: sending, receiving.
    pub fn names(&self) -> (String, Option<String>) {
        let receive = match &self.arrival {
            Arrival::At(url) => Some(url.to_string()),
            Arrival::Back => Some(self.send.to_string()),
            Arrival::Nowhere => None,
        };
        (self.send.to_string(), receive)
    }

    /// The rate of the line: as it was said, or as the interface says. Links without a wire state
    /// none.
    pub fn line_bps(&self, args: &PortArgs) -> Option<u64> {
        let said = args.line_rate.map(|rate| rate.0);
        said.or_else(|| linerate_host::snapshot::interface(self.send.interface()?)?.speed_bps)
    }
}
