//! Shell commands that show state.

use std::time::Instant;

use linerate_record::forward::ForwardPort;
use linerate_record::plan::CpuList;
use linerate_report::forward::{
    extended_statistics, format_displayed, full_statistics, port_info, port_statistics,
    port_summary, queue_info, stream_map,
};

use super::{CommandReply, ForwardShell, failure_text};
use crate::command::forward::commands::parse_number;
use crate::command::forward::{queue_figures, rates};

/// Counters of the ports at a time.
pub(super) struct PortCounters {
    read_at: Instant,
    ports: Vec<ForwardPort>,
    counters: Vec<(u32, Vec<(String, u64)>)>,
}

impl ForwardShell<'_> {
    fn port_facts(&mut self, text: &str) -> Result<Vec<ForwardPort>, String> {
        let selected = self.parse_port(text)?;
        self.forwarder.refresh();
        let mut facts = self.forwarder.port_facts();
        facts.retain(|port| selected.is_none_or(|selected| selected == port.port));
        Ok(facts)
    }

    /// Returns all counters of a port by name.
    fn counters(&self, port: &ForwardPort) -> Vec<(String, u64)> {
        let queues = self.forwarder.queue_totals_since_clear(port.port);
        let queues: Vec<_> = queues
            .iter()
            .map(|queue| (queue_figures(queue.receive), queue_figures(queue.transmit)))
            .collect();
        extended_statistics(port, &queues)
    }

    /// Reads the counters of all ports.
    pub(super) fn read_counters(&mut self) -> PortCounters {
        self.forwarder.refresh();
        let ports = self.forwarder.port_facts();
        let counters = ports.iter().map(|port| (port.port, self.counters(port)));
        PortCounters {
            read_at: Instant::now(),
            counters: counters.collect(),
            ports,
        }
    }

    pub fn port_stats(&mut self, text: &str) -> Result<CommandReply, String> {
        let selected = self.parse_port(text)?;
        let now = self.read_counters();
        let before = self.last_shown.take();
        let mut blocks = Vec::new();
        for (port, (_, counters)) in now.ports.iter().zip(&now.counters) {
            if selected.is_some_and(|selected| selected != port.port) {
                continue;
            }
            let since = before.as_ref().map(|shown| {
                let seconds = now.read_at.duration_since(shown.read_at).as_secs_f64();
                (shown, seconds)
            });
            let port_rates = since.and_then(|(shown, seconds)| {
                let earlier_counters = shown
                    .ports
                    .iter()
                    .find(|earlier_counters| earlier_counters.port == port.port)?;
                Some(rates(
                    &port.receive.since(&earlier_counters.receive),
                    &port.transmit.since(&earlier_counters.transmit),
                    seconds,
                ))
            });
            let earlier_counters = since.and_then(|(shown, seconds)| {
                let mut all = shown.counters.iter();
                let (_, earlier_counters) = all.find(|(number, _)| *number == port.port)?;
                Some((earlier_counters.as_slice(), seconds))
            });
            let extra_counters = format_displayed(&self.displayed, counters, earlier_counters);
            blocks.push(port_statistics(
                port,
                Some(port_rates.unwrap_or_default()),
                &extra_counters,
            ));
        }
        self.last_shown = Some(now);
        Ok(CommandReply::Text(blocks.join("\n\n")))
    }

    pub fn port_xstats(&mut self, text: &str) -> Result<CommandReply, String> {
        let mut lines = Vec::new();
        for port in self.port_facts(text)? {
            lines.push(format!(
                "###### NIC extended statistics for port {}",
                port.port
            ));
            // Causes with a count of zero would hide the others.
            let counters = self.counters(&port).into_iter();
            let counters =
                counters.filter(|(name, count)| *count > 0 || !name.contains("_dropped_"));
            lines.extend(counters.map(|(name, count)| format!("{name}: {count}")));
        }
        Ok(CommandReply::Text(lines.join("\n")))
    }

    pub fn port_info(&mut self, text: &str) -> Result<CommandReply, String> {
        let blocks: Vec<_> = self.port_facts(text)?.iter().map(port_info).collect();
        Ok(CommandReply::Text(blocks.join("\n\n")))
    }

    pub fn port_summary(&mut self, text: &str) -> Result<CommandReply, String> {
        let ports = self.port_facts(text)?.into_iter();
        let ports: Vec<_> = ports
            .map(|port| {
                let is_started = self.forwarder.is_started(port.port);
                (port, is_started)
            })
            .collect();
        let available = self.forwarder.numbers().len();
        Ok(CommandReply::Text(port_summary(&ports, available)))
    }

    pub fn queue_info(
        &mut self,
        direction: &str,
        port: &str,
        queue: &str,
    ) -> Result<CommandReply, String> {
        let number_of_port = self.parse_single_port(port)?;
        let queue_index: u32 = parse_number(queue)?;
        let queues = self.forwarder.queue_totals_since_clear(number_of_port);
        let Some(totals) = queues.get(queue_index as usize) else {
            return Err(match queues.len() {
                0 => format!("port {port} is stopped: use `port start {port}`"),
                1 => format!("port {port} has only queue 0"),
                count => format!("port {port} has queues 0 to {}", count - 1),
            });
        };
        let (direction, totals) = match direction {
            "rxq" => ("RX", totals.receive),
            _ => ("TX", totals.transmit),
        };
        let facts = self.port_facts(port)?;
        let facts = facts.first().ok_or_else(|| self.unknown_port(port))?;
        // Settings may have changed since the start of the current run.
        let settings = self
            .started
            .as_ref()
            .map_or(&self.settings, |(_, used)| used);
        let streams = self.forwarder.routes(settings).unwrap_or_default();
        let stream = streams.iter().find(|stream| match direction {
            "RX" => (stream.rx_port, stream.rx_queue) == (number_of_port, queue_index),
            _ => (stream.tx_port, stream.tx_queue) == (number_of_port, queue_index),
        });
        let polled_by = match stream {
            None => "no core with these settings".to_owned(),
            Some(stream) => {
                let cpu = stream.cpu;
                let cpu = cpu.map_or(String::new(), |cpu| format!(" (CPU {cpu})"));
                let state = if self.forwarder.is_running() {
                    ""
                } else {
                    ", once started"
                };
                format!("core {}{cpu}{state}", stream.core)
            }
        };
        let totals = queue_figures(totals);
        Ok(CommandReply::Text(queue_info(
            facts,
            direction,
            queue_index,
            &totals,
            &polled_by,
        )))
    }

    /// Returns the statistics of streams, ports and their sum: of the current run, else of the last
    /// one.
    pub fn fwd_stats(&mut self) -> Result<CommandReply, String> {
        self.forwarder.refresh();
        let text = match &self.last_figures {
            _ if self.forwarder.is_running() => full_statistics(&self.forwarder.figures()),
            Some(last) => full_statistics(last),
            None => full_statistics(&self.forwarder.figures()),
        };
        Ok(CommandReply::Text(text))
    }

    pub fn clear_port(&mut self, text: &str) -> Result<CommandReply, String> {
        let port = self.parse_port(text)?;
        self.forwarder.clear(port);
        self.last_shown = Some(self.read_counters());
        Ok(CommandReply::Text("statistics are cleared".to_owned()))
    }

    pub fn clear_fwd(&mut self) -> Result<CommandReply, String> {
        self.forwarder.clear_streams();
        self.last_figures = None;
        Ok(CommandReply::Text("statistics are cleared".to_owned()))
    }

    pub fn show_config(&mut self, section: &str) -> Result<CommandReply, String> {
        let settings = &self.settings;
        let text = match section {
            "fwd" => {
                let streams = self.forwarder.routes(settings).map_err(failure_text)?;
                let ports = self.forwarder.numbers().len();
                stream_map(&settings.mode.to_string(), ports, &streams)
            }
            "cores" => {
                let cpus = match &settings.cpus[..] {
                    [] => "the last free ones".to_owned(),
                    cpus => CpuList(cpus.to_vec()).to_string(),
                };
                format!("forwarding cores: {} (processors: {cpus})", settings.cores)
            }
            "txpkts" => format!(
                "generated frames: {} bytes, {} flows (txonly), {} flows (flowgen), {} copies (flowgen)",
                settings.mode_settings.frame.bytes,
                settings.mode_settings.transmit_flows,
                settings.mode_settings.generated_flows,
                settings.mode_settings.flow_clones
            ),
            _ => {
                let retry = match settings.retry {
                    None => "off".to_owned(),
                    Some(retry) => format!("{} times, {} us apart", retry.times, retry.delay_us),
                };
                let mut lines = vec![
                    format!(
                        "{} packet forwarding packets/burst={}",
                        settings.mode, settings.burst
                    ),
                    format!(
                        "  nb forwarding cores={} - nb forwarding ports={}",
                        settings.cores,
                        match settings.ports.len() {
                            0 => self.forwarder.numbers().len(),
                            count => count,
                        }
                    ),
                    format!(
                        "  topology: {}, retry: {retry}, idle: {}, flush before start: {}",
                        settings.topology,
                        settings.idle,
                        if settings.flush { "on" } else { "off" }
                    ),
                ];
                for port in self.forwarder.port_facts() {
                    let ring = |count: Option<u32>| count.map_or("-".to_owned(), |n| n.to_string());
                    lines.push(format!(
                        "  port {}: RX queue number: {} Tx queue number: {}\n    RX desc={} - TX desc={}",
                        port.port,
                        port.queues,
                        port.queues,
                        ring(port.rx_descriptors),
                        ring(port.tx_descriptors)
                    ));
                }
                lines.join("\n")
            }
        };
        Ok(CommandReply::Text(text))
    }
}
