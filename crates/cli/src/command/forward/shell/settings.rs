//! Shell commands that change settings.

use linerate_measure::forward::{Peer, QueueRate, Retry, Settings, Verbose};
use linerate_metric::plan::Cpus;

use super::{Reply, Shell, words};
use crate::command::forward::args::{FLOWS_LIMIT, burst, frame_length, mask};
use crate::command::forward::commands::number;
use crate::command::forward::ports_there;

impl Shell<'_> {
    /// Changes settings and returns their description; a running forwarder keeps its own.
    pub fn set(
        &mut self,
        change: impl FnOnce(&mut Settings),
        told: impl FnOnce(&Settings) -> String,
    ) -> Result<Reply, String> {
        change(&mut self.settings);
        let told = told(&self.settings);
        Ok(Reply::Said(match self.forwarder.is_running() {
            true => format!("{told} (from the next start)"),
            false => told,
        }))
    }

    pub fn set_mode(&mut self, text: &str, retry: bool) -> Result<Reply, String> {
        let mode: linerate_measure::forward::ModeSpec = text.parse()?;
        let tried = retry.then(Retry::default);
        self.set(
            |settings| {
                settings.mode = mode;
                settings.retry = tried;
            },
            |settings| {
                let retry = if settings.retry.is_some() {
                    " with retry"
                } else {
                    ""
                };
                format!("Set {} packet forwarding mode{retry}", settings.mode)
            },
        )
    }

    pub fn set_burst(&mut self, text: &str) -> Result<Reply, String> {
        let frames = burst(text)?;
        self.set(
            |settings| settings.burst = frames.into(),
            |settings| format!("Number of packets per burst set to {}", settings.burst),
        )
    }

    pub fn set_retry(&mut self, delay: &str, times: &str) -> Result<Reply, String> {
        let (delay_us, times) = (number(delay)?, number(times)?);
        self.set(
            |settings| settings.retry = Some(Retry { times, delay_us }),
            |_| format!("retry of frames at a full ring: {times} times, {delay_us} us apart"),
        )
    }

    pub fn set_cores(&mut self, text: &str) -> Result<Reply, String> {
        match number(text)? {
            0 => Err("forwarding needs a thread".to_owned()),
            cores => {
                let before = self.settings.cores;
                let streams = self.forwarder.streams_of(&self.settings).map_err(words)?;
                self.set(
                    |settings| settings.cores = cores,
                    |_| {
                        let told = format!(
                            "previous number of forwarding cores {before} - changed to number of \
                             configured cores {cores}"
                        );
                        match cores as usize > streams {
                            true => {
                                let plural = if streams == 1 { " keeps" } else { "s keep" };
                                format!("{told}; {streams} stream{plural} {streams} of them busy")
                            }
                            false => told,
                        }
                    },
                )
            }
        }
    }

    pub fn set_corelist(&mut self, text: &str) -> Result<Reply, String> {
        let Cpus(cpus) = Cpus::in_order(text)?;
        self.set_cpus(cpus)
    }

    pub fn set_coremask(&mut self, text: &str) -> Result<Reply, String> {
        let cpus = mask(text)?;
        self.set_cpus(cpus)
    }

    fn set_cpus(&mut self, cpus: Vec<u32>) -> Result<Reply, String> {
        // If the kernel does not report the usable processors, the start will check them.
        let usable = linerate_host::sys::cpu::usable().unwrap_or_else(|_| cpus.clone());
        if let Some(cpu) = cpus.iter().find(|cpu| !usable.contains(cpu)) {
            return Err(format!(
                "processor {cpu}: not available to this process; choose from {}",
                Cpus(usable.clone())
            ));
        }
        self.set(
            |settings| {
                settings.cores = u32::try_from(cpus.len()).unwrap_or(1);
                settings.cpus = cpus;
            },
            |settings| {
                let cpus = Cpus(settings.cpus.clone());
                format!("forwarding cores: {} (processors: {cpus})", settings.cores)
            },
        )
    }

    pub fn set_nbport(&mut self, text: &str) -> Result<Reply, String> {
        let count: u32 = number(text)?;
        // Checked here, because the list would be as long as the number.
        let numbers = self.forwarder.numbers();
        if count as usize > numbers.len() {
            return Err(format!("there {}", ports_there(numbers.len())));
        }
        self.set_ports(numbers[..count as usize].to_vec())
    }

    pub fn set_portlist(&mut self, text: &str) -> Result<Reply, String> {
        let Cpus(ports) = Cpus::in_order(text).map_err(|error| match text.parse::<Cpus>() {
            Ok(_) => error,
            Err(_) => format!("`{text}` is not a list of ports: write 0,1"),
        })?;
        self.set_ports(ports)
    }

    pub fn set_portmask(&mut self, text: &str) -> Result<Reply, String> {
        let ports = mask(text)?;
        self.set_ports(ports)
    }

    fn set_ports(&mut self, ports: Vec<u32>) -> Result<Reply, String> {
        if ports.is_empty() {
            return Err("forwarding needs a port".to_owned());
        }
        let there = self.forwarder.numbers();
        if let Some(port) = ports.iter().find(|port| !there.contains(port)) {
            return Err(self.no_port(&port.to_string()));
        }
        self.set(
            |settings| settings.ports = ports,
            |settings| {
                let ports: Vec<_> = settings.ports.iter().map(u32::to_string).collect();
                format!("forwarding ports: {} ({})", ports.len(), ports.join(","))
            },
        )
    }

    pub fn set_topology(&mut self, text: &str) -> Result<Reply, String> {
        let topology = text.parse()?;
        self.set(
            |settings| settings.topology = topology,
            |settings| format!("port topology: {}", settings.topology),
        )
    }

    pub fn set_txpkts(&mut self, text: &str) -> Result<Reply, String> {
        let bytes = frame_length(text)?;
        let most = self.forwarder.port_facts();
        let most = most.iter().filter_map(|port| port.frame_bytes).min();
        if let Some(most) = most.filter(|&most| u32::from(bytes) > most) {
            return Err(format!(
                "frames of {bytes} bytes are longer than the ports' maximum ({most}): give URLs a larger mtu="
            ));
        }
        self.set(
            |settings| settings.frame.bytes = bytes,
            |settings| format!("generated frames: {} bytes", settings.frame.bytes),
        )
    }

    pub fn set_flows(&mut self, text: &str) -> Result<Reply, String> {
        let flows: u32 = number(text)?;
        if flows == 0 {
            return Err("txonly needs a flow".to_owned());
        }
        self.set(
            |settings| settings.transmit_flows = flows,
            |_| format!("txonly sends {flows} flows"),
        )
    }

    pub fn set_peer(&mut self, port: &str, address: &str) -> Result<Reply, String> {
        self.one_port(port)?;
        let peer: Peer = format!("{port},{address}").parse()?;
        self.set(
            |settings| settings.peers.push(peer),
            |_| format!("peer of port {}: {}", peer.port, peer.address),
        )
    }

    pub fn set_clones(&mut self, text: &str) -> Result<Reply, String> {
        let clones = number(text)?;
        self.set(
            |settings| settings.flow_clones = clones,
            |_| format!("flowgen sends {clones} copies after each frame"),
        )
    }

    pub fn set_generated(&mut self, text: &str) -> Result<Reply, String> {
        let flows: u32 = number(text)?;
        if !(1..=FLOWS_LIMIT).contains(&flows) {
            return Err(format!("flowgen sends 1 to {FLOWS_LIMIT} flows"));
        }
        self.set(
            |settings| settings.generated_flows = flows,
            |_| format!("flowgen sends {flows} flows"),
        )
    }

    pub fn set_verbose(&mut self, text: &str) -> Result<Reply, String> {
        let level = number(text)?;
        let before = self.settings.verbose.0;
        self.set(
            |settings| settings.verbose = Verbose(level),
            |_| format!("Change verbose level from {before} to {level}"),
        )
    }

    pub fn set_rate(&mut self, port: &str, queue: &str, rate: &str) -> Result<Reply, String> {
        let port = self.one_port(port)?;
        let queue: u32 = number(queue)?;
        let megabits: u64 = number(rate)?;
        let queues = self.forwarder.queues_shown(port).len();
        // The limit of a queue that no longer exists can be removed.
        if megabits > 0 && self.forwarder.is_started(port) && queue as usize >= queues {
            return Err(match queues {
                1 => format!("port {port} has only queue 0"),
                _ => format!("port {port} has queues 0 to {}", queues.saturating_sub(1)),
            });
        }
        let Some(l2_bps) = megabits.checked_mul(1_000_000) else {
            return Err(format!("`{rate}` Mbit/s is out of range"));
        };
        self.set(
            |settings| {
                let of_another = |rate: &QueueRate| (rate.port, rate.queue) != (port, queue);
                settings.rates.retain(of_another);
                if l2_bps > 0 {
                    settings.rates.push(QueueRate {
                        port,
                        queue,
                        l2_bps,
                    });
                }
            },
            |_| match megabits {
                0 => format!("port {port} queue {queue}: no rate limit"),
                _ => format!(
                    "port {port} queue {queue}: {megabits} Mbit/s of frames, without FCS, \
                     preamble and gap"
                ),
            },
        )
    }

    /// Checks and reports where checksums are computed: always in software, while testpmd's command
    /// is for NICs that can do it.
    pub fn csum_set(&mut self, layer: &str, place: &str, port: &str) -> Result<Reply, String> {
        let port = self.one_port(port)?;
        match place {
            "hw" => Err(format!(
                "port {port} cannot compute checksums: use `csum set {layer} sw {port}`; mode csum computes them \
                 in software"
            )),
            _ if matches!(layer, "sctp" | "outer-ip" | "outer-udp") => Err(format!(
                "mode csum computes ip, udp and tcp: {layer} is not changed"
            )),
            _ => Ok(Reply::Said(format!(
                "port {port}: {layer} is computed in software, as always in mode csum"
            ))),
        }
    }

    pub fn csum_show(&mut self, port: &str) -> Result<Reply, String> {
        self.one_port(port)?;
        Ok(Reply::Said(
            "Parse tunnel is off\nIP checksum offload is sw\nUDP checksum offload is sw\nTCP checksum \
             offload is sw\nSCTP checksum is not changed\nOuter-Ip and Outer-Udp checksums are not \
             changed"
                .to_owned(),
        ))
    }

    pub fn set_idle(&mut self, text: &str) -> Result<Reply, String> {
        let idle = text.parse()?;
        self.set(
            |settings| settings.idle = idle,
            |settings| format!("idle: {}", settings.idle),
        )
    }

    pub fn reset(&mut self) -> Result<Reply, String> {
        let defaults = self.defaults.clone();
        self.set(
            |settings| *settings = defaults,
            |_| "settings are reset to those at the start of the shell".to_owned(),
        )
    }

    /// Switches a setting on or off.
    pub fn switch(
        &mut self,
        what: &str,
        word: &str,
        change: impl FnOnce(&mut Settings, bool),
    ) -> Result<Reply, String> {
        let on = word == "on";
        self.set(
            |settings| change(settings, on),
            |_| format!("{what}: {word}"),
        )
    }
}
