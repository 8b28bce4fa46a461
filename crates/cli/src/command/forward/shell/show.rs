//! Shell commands that show state.

use std::time::Instant;

use linerate_metric::forward::ForwardPort;
use linerate_metric::plan::Cpus;
use linerate_report::forward::{
    displayed, extended_statistics, port_info, port_statistics, port_summary, queue_info,
    stream_map, whole_statistics,
};

use super::{Reply, Shell, words};
use crate::command::forward::commands::number;
use crate::command::forward::{queue_figures, rates};

/// Counters of the ports at a time.
pub(super) struct Shown {
    at: Instant,
    ports: Vec<ForwardPort>,
    counters: Vec<(u32, Vec<(String, u64)>)>,
}

impl Shell<'_> {
    fn facts(&mut self, text: &str) -> Result<Vec<ForwardPort>, String> {
        let wanted = self.port(text)?;
        self.forwarder.refresh();
        let mut facts = self.forwarder.port_facts();
        facts.retain(|port| wanted.is_none_or(|wanted| wanted == port.port));
        Ok(facts)
    }

    /// Returns all counters of a port by name.
    fn counters(&self, port: &ForwardPort) -> Vec<(String, u64)> {
        let queues = self.forwarder.queues_shown(port.port);
        let queues: Vec<_> = queues
            .iter()
            .map(|queue| (queue_figures(queue.receive), queue_figures(queue.transmit)))
            .collect();
        extended_statistics(port, &queues)
    }

    /// Reads the counters of all ports.
    pub(super) fn look(&mut self) -> Shown {
        self.forwarder.refresh();
        let ports = self.forwarder.port_facts();
        let counters = ports.iter().map(|port| (port.port, self.counters(port)));
        Shown {
            at: Instant::now(),
            counters: counters.collect(),
            ports,
        }
    }

    pub fn port_stats(&mut self, text: &str) -> Result<Reply, String> {
        let wanted = self.port(text)?;
        let now = self.look();
        let before = self.shown.take();
        let mut blocks = Vec::new();
        for (port, (_, counters)) in now.ports.iter().zip(&now.counters) {
            if wanted.is_some_and(|wanted| wanted != port.port) {
                continue;
            }
            let since = before.as_ref().map(|shown| {
                let seconds = now.at.duration_since(shown.at).as_secs_f64();
                (shown, seconds)
            });
            let port_rates = since.and_then(|(shown, seconds)| {
                let earlier = shown
                    .ports
                    .iter()
                    .find(|earlier| earlier.port == port.port)?;
                Some(rates(
                    &port.receive.since(&earlier.receive),
                    &port.transmit.since(&earlier.transmit),
                    seconds,
                ))
            });
            let earlier = since.and_then(|(shown, seconds)| {
                let mut all = shown.counters.iter();
                let (_, earlier) = all.find(|(number, _)| *number == port.port)?;
                Some((earlier.as_slice(), seconds))
            });
            let beside = displayed(&self.displayed, counters, earlier);
            blocks.push(port_statistics(
                port,
                Some(port_rates.unwrap_or_default()),
                &beside,
            ));
        }
        self.shown = Some(now);
        Ok(Reply::Said(blocks.join("\n\n")))
    }

    pub fn port_xstats(&mut self, text: &str) -> Result<Reply, String> {
        let mut lines = Vec::new();
        for port in self.facts(text)? {
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
        Ok(Reply::Said(lines.join("\n")))
    }

    pub fn port_info(&mut self, text: &str) -> Result<Reply, String> {
        let blocks: Vec<_> = self.facts(text)?.iter().map(port_info).collect();
        Ok(Reply::Said(blocks.join("\n\n")))
    }

    pub fn port_summary(&mut self, text: &str) -> Result<Reply, String> {
        let ports = self.facts(text)?.into_iter();
        let ports: Vec<_> = ports
            .map(|port| {
                let is_started = self.forwarder.is_started(port.port);
                (port, is_started)
            })
            .collect();
        let available = self.forwarder.numbers().len();
        Ok(Reply::Said(port_summary(&ports, available)))
    }

    pub fn queue_info(&mut self, way: &str, port: &str, queue: &str) -> Result<Reply, String> {
        let number_of_port = self.one_port(port)?;
        let at: u32 = number(queue)?;
        let queues = self.forwarder.queues_shown(number_of_port);
        let Some(moved) = queues.get(at as usize) else {
            return Err(match queues.len() {
                0 => format!("port {port} is stopped: use `port start {port}`"),
                1 => format!("port {port} has only queue 0"),
                count => format!("port {port} has queues 0 to {}", count - 1),
            });
        };
        let (way, moved) = match way {
            "rxq" => ("RX", moved.receive),
            _ => ("TX", moved.transmit),
        };
        let facts = self.facts(port)?;
        let facts = facts.first().ok_or_else(|| self.no_port(port))?;
        // Settings may have changed since the start of the current run.
        let settings = self
            .started
            .as_ref()
            .map_or(&self.settings, |(_, used)| used);
        let places = self.forwarder.places(settings).unwrap_or_default();
        let place = places.iter().find(|place| match way {
            "RX" => (place.rx_port, place.rx_queue) == (number_of_port, at),
            _ => (place.tx_port, place.tx_queue) == (number_of_port, at),
        });
        let polled_by = match place {
            None => "no core with these settings".to_owned(),
            Some(place) => {
                let cpu = place.cpu;
                let cpu = cpu.map_or(String::new(), |cpu| format!(" (processor {cpu})"));
                let state = if self.forwarder.is_running() {
                    ""
                } else {
                    ", once started"
                };
                format!("core {}{cpu}{state}", place.core)
            }
        };
        let moved = queue_figures(moved);
        Ok(Reply::Said(queue_info(facts, way, at, &moved, &polled_by)))
    }

    /// Returns the statistics of streams, ports and their sum: of the current run, else of the last
    /// one.
    pub fn fwd_stats(&mut self) -> Result<Reply, String> {
        self.forwarder.refresh();
        let text = match &self.last {
            _ if self.forwarder.is_running() => whole_statistics(&self.forwarder.figures()),
            Some(last) => whole_statistics(last),
            None => whole_statistics(&self.forwarder.figures()),
        };
        Ok(Reply::Said(text))
    }

    pub fn clear_port(&mut self, text: &str) -> Result<Reply, String> {
        let port = self.port(text)?;
        self.forwarder.clear(port);
        self.shown = Some(self.look());
        Ok(Reply::Said("statistics are cleared".to_owned()))
    }

    pub fn clear_fwd(&mut self) -> Result<Reply, String> {
        self.forwarder.clear_streams();
        self.last = None;
        Ok(Reply::Said("statistics are cleared".to_owned()))
    }

    pub fn config(&mut self, what: &str) -> Result<Reply, String> {
        let settings = &self.settings;
        let text = match what {
            "fwd" => {
                let places = self.forwarder.places(settings).map_err(words)?;
                let ports = self.forwarder.numbers().len();
                stream_map(&settings.mode.to_string(), ports, &places)
            }
            "cores" => {
                let cpus = match &settings.cpus[..] {
                    [] => "the last free ones".to_owned(),
                    cpus => Cpus(cpus.to_vec()).to_string(),
                };
                format!("forwarding cores: {} (processors: {cpus})", settings.cores)
            }
            "txpkts" => format!(
                "generated frames: {} bytes, {} flows (txonly), {} flows (flowgen), {} copies (flowgen)",
                settings.frame.bytes,
                settings.transmit_flows,
                settings.generated_flows,
                settings.flow_clones
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
                lines.extend(settings.rates.iter().map(|rate| {
                    format!(
                        "  port {} queue {}: at most {} Mbit/s",
                        rate.port,
                        rate.queue,
                        rate.l2_bps / 1_000_000
                    )
                }));
                lines.join("\n")
            }
        };
        Ok(Reply::Said(text))
    }
}
