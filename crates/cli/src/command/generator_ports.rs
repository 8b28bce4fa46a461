//! Ports of `generate` and `capacity`, and their line rate.

use linerate_generator::{GeneratorPorts, ReceiveSide};
use linerate_host::stop_flag::StopFlag;
use linerate_port::PortUrl;
use linerate_record::event::ErrorReport;

use crate::args::PortArgs;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::port_devices::PortDevices;

/// Ports named by the options.
pub struct NamedPorts {
    pub send: PortUrl,
    /// Port or place where frames are received.
    pub arrival: ReceiveSide,
}

impl NamedPorts {
    /// Reads the ports from the options.
    pub fn new(
        args: &PortArgs,
        receive: Option<&PortUrl>,
        no_receive: bool,
    ) -> Result<Self, CommandFailure> {
        let forced = |url: &PortUrl| match args.force {
            true => url.clone().with_force(),
            false => url.clone(),
        };
        let (send, second) = match args.dev.as_slice() {
            [send] => (send, receive),
            [send, second] if receive.is_none() => (send, Some(second)),
            _ => {
                return Err(CommandFailure::usage(ErrorReport::new(
                    "needs one sending and one receiving port",
                    "--dev",
                    "name the sending port first and the receiving port second",
                )));
            }
        };
        let arrival = match second {
            Some(_) if no_receive => {
                return Err(CommandFailure::usage(ErrorReport::new(
                    "a receiving port is named, but --no-receive disables receiving",
                    "--no-receive",
                    "leave one of them out",
                )));
            }
            Some(url) => ReceiveSide::Port(forced(url)),
            None if no_receive => ReceiveSide::Nowhere,
            None => ReceiveSide::SendPort,
        };
        if args.learn && !matches!(arrival, ReceiveSide::Port(_)) {
            return Err(CommandFailure::usage(ErrorReport::new(
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
    pub fn apply_device_settings(
        &self,
        stop: &StopFlag,
        output: &CommandOutput,
    ) -> Result<PortDevices, CommandFailure> {
        let receive = match &self.arrival {
            ReceiveSide::Port(url) => Some(url),
            ReceiveSide::SendPort | ReceiveSide::Nowhere => None,
        };
        PortDevices::for_ports(std::iter::once(&self.send).chain(receive), stop, output)
    }

    /// Opens the ports.
    pub fn open(&self) -> Result<GeneratorPorts, CommandFailure> {
        Ok(GeneratorPorts::open(&self.send, &self.arrival)?)
    }

    /// Returns the names of the sending and the receiving port.
    pub fn names(&self) -> (String, Option<String>) {
        let receive = match &self.arrival {
            ReceiveSide::Port(url) => Some(url.to_string()),
            ReceiveSide::SendPort => Some(self.send.to_string()),
            ReceiveSide::Nowhere => None,
        };
        (self.send.to_string(), receive)
    }

    /// Returns the line rate: that of the option, else the link speed of the interface. Virtual
    /// links have none.
    pub fn line_bps(&self, args: &PortArgs) -> Option<u64> {
        let given = args.line_rate.map(|rate| rate.0);
        given.or_else(|| linerate_host::snapshot::read_interface(self.send.interface()?)?.speed_bps)
    }
}
