//! Shell commands on ports.

use linerate_measure::MeasureError;
use linerate_measure::forward::PortUrl;

use super::{Reply, Shell, words};
use crate::command::forward::max_packet_mtu;
use crate::port_devices::Nic;

impl Shell<'_> {
    /// Returns the error for an unknown port, with a list of the ports.
    pub(super) fn no_port(&self, text: &str) -> String {
        let there: Vec<_> = self
            .forwarder
            .numbers()
            .iter()
            .map(u32::to_string)
            .collect();
        format!("no port {text}: choose from {}, or all", there.join(", "))
    }

    /// Parses a port number; `None` for `all`.
    pub(super) fn port(&self, text: &str) -> Result<Option<u32>, String> {
        match text {
            "all" => Ok(None),
            _ => self.one_port(text).map(Some),
        }
    }

    /// Parses the number of a single port.
    pub(super) fn one_port(&self, text: &str) -> Result<u32, String> {
        let there = self.forwarder.numbers();
        let port = text.parse::<u32>().ok();
        let port = port.filter(|port| there.contains(port));
        port.ok_or_else(|| match text {
            "all" => "name a single port".to_owned(),
            _ => self.no_port(text),
        })
    }

    /// Appends to a result the other ports that were reopened, because the change needed larger
    /// memory.
    fn with_reopened(&mut self, done: Result<String, MeasureError>) -> Result<Reply, String> {
        let reopened = self.reopened();
        match done {
            Ok(told) => Ok(Reply::Said(told + &reopened)),
            Err(error) => Err(words(error) + &reopened),
        }
    }

    /// Returns a note on other ports that were reopened, or an empty text.
    fn reopened(&mut self) -> String {
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

    pub fn port_stop(&mut self, text: &str) -> Result<Reply, String> {
        let port = self.port(text)?;
        self.forwarder.stop_port(port).map_err(words)?;
        Ok(Reply::Said(match port {
            None => "all ports are stopped".to_owned(),
            Some(port) => format!("port {port} is stopped"),
        }))
    }

    pub fn port_start(&mut self, text: &str) -> Result<Reply, String> {
        let port = self.port(text)?;
        let started = self.forwarder.start_port(port);
        self.with_reopened(started.map(|()| match port {
            None => "all ports are started".to_owned(),
            Some(port) => format!("port {port} is started"),
        }))
    }

    pub fn port_reset(&mut self, text: &str) -> Result<Reply, String> {
        self.port_stop(text)?;
        self.port_start(text)
    }

    pub fn port_attach(&mut self, text: &str) -> Result<Reply, String> {
        let url: PortUrl = text
            .parse()
            .map_err(|error: linerate_measure::forward::PortError| error.to_string())?;
        let url = url.taken(super::super::onward(&self.settings, true));
        // Rejected before the device is changed, which a running port may be polling.
        self.forwarder.not_running().map_err(words)?;
        // As at the start: if the requested device settings fail, the port is not attached.
        let nic = Nic::for_port(&url, self.stop, self.output).map_err(|failure| {
            let problem = failure.problem;
            format!("{problem}; {}", problem.next_step)
        })?;
        let attached = self.forwarder.attach(&url);
        match &attached {
            Ok(port) => self.nics.hold(*port, nic),
            Err(_) => drop(nic),
        }
        let total = self.forwarder.numbers().len();
        self.with_reopened(attached.map(|port| {
            format!("Port {port} is attached, and started. Now total ports is {total}")
        }))
    }

    pub fn port_detach(&mut self, text: &str) -> Result<Reply, String> {
        let port = self.one_port(text)?;
        if self.settings.ports == [port] && self.forwarder.numbers() != [port] {
            // An empty list would mean all ports.
            return Err(format!(
                "port {port} is the only one that forwards: list others first (`set portlist`)"
            ));
        }
        self.forwarder.detach(port).map_err(words)?;
        self.nics.release(port);
        // Its settings must not apply to a later port with the same number.
        let others = self.settings.ports.clone();
        for settings in [&mut self.settings, &mut self.defaults] {
            if settings.ports == [port] {
                settings.ports.clone_from(&others);
            }
            settings.ports.retain(|&other| other != port);
            settings.rates.retain(|rate| rate.port != port);
            settings.peers.retain(|peer| peer.port != port);
        }
        self.shown = None;
        let total = self.forwarder.numbers().len();
        Ok(Reply::Said(format!(
            "Port {port} is detached. Now total ports is {total}"
        )))
    }

    /// Runs `port config all rxq N` and similar commands.
    pub fn port_config(&mut self, port: &str, what: &str, value: &str) -> Result<Reply, String> {
        let (key, value) = match what {
            "rxq" | "txq" => ("queues", value.to_owned()),
            "max-pkt-len" => ("mtu", max_packet_mtu(value)?.to_string()),
            key => (key, value.to_owned()),
        };
        let port = self.port(port)?;
        let count = (self.forwarder.configure(port, key, &value)).map_err(words)?;
        let whose = match (port, count) {
            (Some(port), _) => format!("port {port}"),
            (None, 1) => "1 port".to_owned(),
            (None, count) => format!("{count} ports"),
        };
        let told = match key {
            "queues" => format!("{value} queue pairs (a receive and a transmit queue each)"),
            "mtu" => format!("MTU {value}"),
            key => format!("{key} {value}"),
        };
        Ok(Reply::Said(format!(
            "{whose}: {told}, effective at `port start`"
        )))
    }

    pub fn set_promiscuous(&mut self, port: &str, word: &str) -> Result<Reply, String> {
        let on = word == "on";
        let ports = match self.port(port)? {
            Some(port) => vec![port],
            None => self.forwarder.numbers(),
        };
        let (mut lines, mut switched) = (Vec::new(), 0);
        for &port in &ports {
            let has_switch = (self.forwarder.set_promiscuous(port, on)).map_err(words)?;
            switched += usize::from(has_switch);
            lines.push(match has_switch {
                true => format!("port {port}: promiscuous mode {word}"),
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
        Ok(Reply::Said(lines.join("\n")))
    }
}
