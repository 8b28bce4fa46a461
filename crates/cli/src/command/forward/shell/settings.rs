//! Shell commands that change settings.

use linerate_forwarder::{ForwardSettings, PeerAddress, TransmitRetry};
use linerate_record::plan::CpuList;

use super::{CommandReply, ForwardShell, failure_text};
use crate::args::forward::{FLOWS_LIMIT, frame_length, parse_burst, parse_mask};
use crate::command::forward::commands::parse_number;
use crate::command::forward::ports_available;

impl ForwardShell<'_> {
    /// Changes settings and returns their description; a running forwarder keeps its own.
    pub fn change_settings(
        &mut self,
        change: impl FnOnce(&mut ForwardSettings),
        reply_text: impl FnOnce(&ForwardSettings) -> String,
    ) -> Result<CommandReply, String> {
        change(&mut self.settings);
        let reply_text = reply_text(&self.settings);
        Ok(CommandReply::Text(match self.forwarder.is_running() {
            true => format!("{reply_text} (from the next start)"),
            false => reply_text,
        }))
    }

    pub fn set_mode(&mut self, text: &str, retry: bool) -> Result<CommandReply, String> {
        let mode: linerate_forwarder::ModeSpec = text.parse()?;
        let retry_plan = retry.then(TransmitRetry::default);
        self.change_settings(
            |settings| {
                settings.mode = mode;
                settings.retry = retry_plan;
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

    pub fn set_burst(&mut self, text: &str) -> Result<CommandReply, String> {
        let frames = parse_burst(text)?;
        self.change_settings(
            |settings| settings.burst = frames.into(),
            |settings| format!("Number of packets per burst set to {}", settings.burst),
        )
    }

    pub fn set_retry(&mut self, delay: &str, times: &str) -> Result<CommandReply, String> {
        let (delay_us, times) = (parse_number(delay)?, parse_number(times)?);
        self.change_settings(
            |settings| settings.retry = Some(TransmitRetry { times, delay_us }),
            |_| format!("retry of frames at a full ring: {times} times, {delay_us} us apart"),
        )
    }

    pub fn set_core_count(&mut self, text: &str) -> Result<CommandReply, String> {
        match parse_number(text)? {
            0 => Err("forwarding needs a thread".to_owned()),
            cores => {
                let before = self.settings.cores;
                let streams = self
                    .forwarder
                    .streams_of(&self.settings)
                    .map_err(failure_text)?;
                self.change_settings(
                    |settings| settings.cores = cores,
                    |_| {
                        let reply_text = format!(
                            "previous number of forwarding cores {before} - changed to number of \
                             configured cores {cores}"
                        );
                        match cores as usize > streams {
                            true => {
                                let plural = if streams == 1 { " keeps" } else { "s keep" };
                                format!(
                                    "{reply_text}; {streams} stream{plural} {streams} of them busy"
                                )
                            }
                            false => reply_text,
                        }
                    },
                )
            }
        }
    }

    pub fn set_corelist(&mut self, text: &str) -> Result<CommandReply, String> {
        let CpuList(cpus) = CpuList::in_order(text)?;
        self.set_cpus(cpus)
    }

    pub fn set_coremask(&mut self, text: &str) -> Result<CommandReply, String> {
        let cpus = parse_mask(text)?;
        self.set_cpus(cpus)
    }

    fn set_cpus(&mut self, cpus: Vec<u32>) -> Result<CommandReply, String> {
        // If the kernel does not report the usable processors, the start will check them.
        let usable = linerate_sys::cpu::list_usable().unwrap_or_else(|_| cpus.clone());
        if let Some(cpu) = cpus.iter().find(|cpu| !usable.contains(cpu)) {
            return Err(format!(
                "CPU {cpu}: not available to this process; choose from {}",
                CpuList(usable.clone())
            ));
        }
        self.change_settings(
            |settings| {
                settings.cores = u32::try_from(cpus.len()).unwrap_or(1);
                settings.cpus = cpus;
            },
            |settings| {
                let cpus = CpuList(settings.cpus.clone());
                format!("forwarding cores: {} (processors: {cpus})", settings.cores)
            },
        )
    }

    pub fn set_nbport(&mut self, text: &str) -> Result<CommandReply, String> {
        let count: u32 = parse_number(text)?;
        // Checked here, because the list would be as long as the number.
        let numbers = self.forwarder.numbers();
        if count as usize > numbers.len() {
            return Err(format!("there {}", ports_available(numbers.len())));
        }
        self.set_ports(numbers[..count as usize].to_vec())
    }

    pub fn set_portlist(&mut self, text: &str) -> Result<CommandReply, String> {
        let CpuList(ports) =
            CpuList::in_order(text).map_err(|error| match text.parse::<CpuList>() {
                Ok(_) => error,
                Err(_) => format!("`{text}` is not a list of ports: write 0,1"),
            })?;
        self.set_ports(ports)
    }

    pub fn set_portmask(&mut self, text: &str) -> Result<CommandReply, String> {
        let ports = parse_mask(text)?;
        self.set_ports(ports)
    }

    fn set_ports(&mut self, ports: Vec<u32>) -> Result<CommandReply, String> {
        if ports.is_empty() {
            return Err("forwarding needs a port".to_owned());
        }
        let existing = self.forwarder.numbers();
        if let Some(port) = ports.iter().find(|port| !existing.contains(port)) {
            return Err(self.unknown_port(&port.to_string()));
        }
        self.change_settings(
            |settings| settings.ports = ports,
            |settings| {
                let ports: Vec<_> = settings.ports.iter().map(u32::to_string).collect();
                format!("forwarding ports: {} ({})", ports.len(), ports.join(","))
            },
        )
    }

    pub fn set_topology(&mut self, text: &str) -> Result<CommandReply, String> {
        let topology = text.parse()?;
        self.change_settings(
            |settings| settings.topology = topology,
            |settings| format!("port topology: {}", settings.topology),
        )
    }

    pub fn set_txpkts(&mut self, text: &str) -> Result<CommandReply, String> {
        let bytes = frame_length(text)?;
        let max_bytes = self.forwarder.port_facts();
        let max_bytes = max_bytes.iter().filter_map(|port| port.frame_bytes).min();
        if let Some(max_bytes) = max_bytes.filter(|&max_bytes| u32::from(bytes) > max_bytes) {
            return Err(format!(
                "frames of {bytes} bytes are longer than the ports' maximum ({max_bytes}): give URLs a larger mtu="
            ));
        }
        self.change_settings(
            |settings| settings.mode_settings.frame.bytes = bytes,
            |settings| {
                format!(
                    "generated frames: {} bytes",
                    settings.mode_settings.frame.bytes
                )
            },
        )
    }

    pub fn set_txonly_flows(&mut self, text: &str) -> Result<CommandReply, String> {
        let flows: u32 = parse_number(text)?;
        if flows == 0 {
            return Err("txonly needs a flow".to_owned());
        }
        self.change_settings(
            |settings| settings.mode_settings.transmit_flows = flows,
            |_| format!("txonly sends {flows} flows"),
        )
    }

    pub fn set_peer(&mut self, port: &str, address: &str) -> Result<CommandReply, String> {
        self.parse_single_port(port)?;
        let peer: PeerAddress = format!("{port},{address}").parse()?;
        self.change_settings(
            |settings| settings.peers.push(peer),
            |_| format!("peer of port {}: {}", peer.port, peer.address),
        )
    }

    pub fn set_flowgen_clones(&mut self, text: &str) -> Result<CommandReply, String> {
        let clones = parse_number(text)?;
        self.change_settings(
            |settings| settings.mode_settings.flow_clones = clones,
            |_| format!("flowgen sends {clones} copies after each frame"),
        )
    }

    pub fn set_flowgen_flows(&mut self, text: &str) -> Result<CommandReply, String> {
        let flows: u32 = parse_number(text)?;
        if !(1..=FLOWS_LIMIT).contains(&flows) {
            return Err(format!("flowgen sends 1 to {FLOWS_LIMIT} flows"));
        }
        self.change_settings(
            |settings| settings.mode_settings.generated_flows = flows,
            |_| format!("flowgen sends {flows} flows"),
        )
    }

    /// Checks and reports where checksums are computed: always in software, while testpmd's command
    /// is for NICs that can do it.
    pub fn csum_set(
        &mut self,
        layer: &str,
        where_computed: &str,
        port: &str,
    ) -> Result<CommandReply, String> {
        let port = self.parse_single_port(port)?;
        match where_computed {
            "hw" => Err(format!(
                "port {port} cannot compute checksums: use `csum set {layer} sw {port}`; mode csum computes them \
                 in software"
            )),
            _ if matches!(layer, "sctp" | "outer-ip" | "outer-udp") => Err(format!(
                "mode csum computes ip, udp and tcp: {layer} is not changed"
            )),
            _ => Ok(CommandReply::Text(format!(
                "port {port}: {layer} is computed in software, as always in mode csum"
            ))),
        }
    }

    pub fn csum_show(&mut self, port: &str) -> Result<CommandReply, String> {
        self.parse_single_port(port)?;
        Ok(CommandReply::Text(
            "Parse tunnel is off\nIP checksum offload is sw\nUDP checksum offload is sw\nTCP checksum \
             offload is sw\nSCTP checksum is not changed\nOuter-Ip and Outer-Udp checksums are not \
             changed"
                .to_owned(),
        ))
    }

    pub fn set_idle(&mut self, text: &str) -> Result<CommandReply, String> {
        let idle = text.parse()?;
        self.change_settings(
            |settings| settings.idle = idle,
            |settings| format!("idle: {}", settings.idle),
        )
    }

    pub fn reset_settings(&mut self) -> Result<CommandReply, String> {
        let defaults = self.defaults.clone();
        self.change_settings(
            |settings| *settings = defaults,
            |_| "settings are reset to those at the start of the shell".to_owned(),
        )
    }

    /// Switches a setting on or off.
    pub fn set_switch(
        &mut self,
        setting: &str,
        state: &str,
        change: impl FnOnce(&mut ForwardSettings, bool),
    ) -> Result<CommandReply, String> {
        let on = state == "on";
        self.change_settings(
            |settings| change(settings, on),
            |_| format!("{setting}: {state}"),
        )
    }
}
