//! Shell commands on ports.

use linerate_port::FrameRunError;
use linerate_port::PortUrl;

use super::{CommandReply, ForwardShell, failure_text};
use crate::args::forward::max_packet_mtu;
use crate::port_devices::PortDevice;

impl ForwardShell<'_> {
    /// Returns the error for an unknown port, with a list of the ports.
    pub(super) fn unknown_port(&self, text: &str) -> String {
        let existing: Vec<_> = self
            .forwarder
            .numbers()
            .iter()
            .map(u32::to_string)
            .collect();
        format!(
            "no port {text}: choose from {}, or all",
            existing.join(", ")
        )
    }

    /// Parses a port number; `None` for `all`.
    pub(super) fn parse_port(&self, text: &str) -> Result<Option<u32>, String> {
        match text {
            "all" => Ok(None),
            _ => self.parse_single_port(text).map(Some),
        }
    }

    /// Parses the number of a single port.
    pub(super) fn parse_single_port(&self, text: &str) -> Result<u32, String> {
        let existing = self.forwarder.numbers();
        let port = text.parse::<u32>().ok();
        let port = port.filter(|port| existing.contains(port));
        port.ok_or_else(|| match text {
            "all" => "name a single port".to_owned(),
            _ => self.unknown_port(text),
        })
    }

    /// Appends to a result the other ports that were reopened, because the change needed larger
    /// memory.
    fn with_reopened(
        &mut self,
        result: Result<String, FrameRunError>,
    ) -> Result<CommandReply, String> {
        let reopened = self.reopened_note();
        match result {
            Ok(reply_text) => Ok(CommandReply::Text(reply_text + &reopened)),
            Err(error) => Err(failure_text(error) + &reopened),
        }
    }

    /// Returns a note on other ports that were reopened, or an empty text.
    fn reopened_note(&mut self) -> String {
        let ports: Vec<_> = (self.forwarder.take_reopened().iter())
            .map(u32::to_string)
            .collect();
        match ports.is_empty() {
            true => String::new(),
            false => format!(
                "\nreopened for larger memory (files start over): {}",
                ports.join(", ")
            ),
        }
    }

    pub fn port_stop(&mut self, text: &str) -> Result<CommandReply, String> {
        let port = self.parse_port(text)?;
        self.forwarder.stop_port(port).map_err(failure_text)?;
        Ok(CommandReply::Text(match port {
            None => "all ports are stopped".to_owned(),
            Some(port) => format!("port {port} is stopped"),
        }))
    }

    pub fn port_start(&mut self, text: &str) -> Result<CommandReply, String> {
        let port = self.parse_port(text)?;
        let started = self.forwarder.start_port(port);
        self.with_reopened(started.map(|()| match port {
            None => "all ports are started".to_owned(),
            Some(port) => format!("port {port} is started"),
        }))
    }

    pub fn port_reset(&mut self, text: &str) -> Result<CommandReply, String> {
        self.port_stop(text)?;
        self.port_start(text)
    }

    pub fn port_attach(&mut self, text: &str) -> Result<CommandReply, String> {
        let url: PortUrl = text
            .parse()
            .map_err(|error: linerate_port::PortError| error.to_string())?;
        let url = url.with_rx_destination(super::super::receive_destination(&self.settings, true));
        // Rejected before the device is changed, which a running port may be polling.
        self.forwarder.check_stopped().map_err(failure_text)?;
        // As at the start: if the requested device settings fail, the port is not attached.
        let nic = PortDevice::for_port(&url, self.stop, self.output).map_err(|failure| {
            let problem = failure.problem;
            format!("{problem}; {}", problem.next_step)
        })?;
        let attached = self.forwarder.attach(&url);
        match &attached {
            Ok(port) => self.devices.hold(*port, nic),
            Err(_) => drop(nic),
        }
        let total = self.forwarder.numbers().len();
        self.with_reopened(attached.map(|port| {
            format!("Port {port} is attached, and started. Now total ports is {total}")
        }))
    }

    pub fn port_detach(&mut self, text: &str) -> Result<CommandReply, String> {
        let port = self.parse_single_port(text)?;
        if self.settings.ports == [port] && self.forwarder.numbers() != [port] {
            // An empty list would mean all ports.
            return Err(format!(
                "port {port} is the only one that forwards: list others first (`set portlist`)"
            ));
        }
        self.forwarder.detach(port).map_err(failure_text)?;
        self.devices.release(port);
        // Its settings must not apply to a later port with the same number.
        let forward_ports = self.settings.ports.clone();
        for settings in [&mut self.settings, &mut self.defaults] {
            if settings.ports == [port] {
                settings.ports.clone_from(&forward_ports);
            }
            settings.ports.retain(|&port_number| port_number != port);
            settings.peers.retain(|peer| peer.port != port);
        }
        self.last_shown = None;
        let total = self.forwarder.numbers().len();
        Ok(CommandReply::Text(format!(
            "Port {port} is detached. Now total ports is {total}"
        )))
    }

    /// Runs `port config all rxq N` and similar commands.
    pub fn port_config(
        &mut self,
        port: &str,
        setting: &str,
        value: &str,
    ) -> Result<CommandReply, String> {
        let (key, value) = match setting {
            "rxq" | "txq" => ("queues", value.to_owned()),
            "max-pkt-len" => ("mtu", max_packet_mtu(value)?.to_string()),
            key => (key, value.to_owned()),
        };
        let port = self.parse_port(port)?;
        let count = (self.forwarder.configure(port, key, &value)).map_err(failure_text)?;
        let target = match (port, count) {
            (Some(port), _) => format!("port {port}"),
            (None, 1) => "1 port".to_owned(),
            (None, count) => format!("{count} ports"),
        };
        let reply_text = match key {
            "queues" => format!("{value} queue pairs (a receive and a transmit queue each)"),
            "mtu" => format!("MTU {value}"),
            key => format!("{key} {value}"),
        };
        Ok(CommandReply::Text(format!(
            "{target}: {reply_text}, effective at `port start`"
        )))
    }

    pub fn set_promiscuous(&mut self, port: &str, state: &str) -> Result<CommandReply, String> {
        let on = state == "on";
        let ports = match self.parse_port(port)? {
            Some(port) => vec![port],
            None => self.forwarder.numbers(),
        };
        let (mut lines, mut switched) = (Vec::new(), 0);
        for &port in &ports {
            let has_switch = (self.forwarder.set_promiscuous(port, on)).map_err(failure_text)?;
            switched += usize::from(has_switch);
            lines.push(match has_switch {
                true => format!("port {port}: promiscuous mode {state}"),
                false => {
                    format!("port {port}: no address filter, receives all frames")
                }
            });
        }
        if !on && switched == 0 {
            return Err(format!(
                "{}; only kernel interfaces have one (packet:, xdp:)",
                lines.join("; ")
            ));
        }
        Ok(CommandReply::Text(lines.join("\n")))
    }
}
