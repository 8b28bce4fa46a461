//! The shell: settings that commands change, and the forwarder that they start and stop.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use linerate_host::stop::Stop;
use linerate_measure::MeasureError;
use linerate_measure::forward::{Forwarder, Peer, PortUrl, Ran, Retry, Settings, Times, record};
use linerate_metric::exit;
use linerate_metric::forward::ForwardPort;
use linerate_metric::plan::Cpus;
use linerate_metric::units::parse_duration;
use linerate_report::forward::{
    core_statistics, forward_statistics, port_info, port_statistics, stream_map, stream_statistics,
};

use super::args::{ForwardArgs, burst, frame_length, mask};
use super::commands::{self, SECTIONS, number};
use super::lines::{Line, Lines, PROMPT};
use super::{INTERVAL, QUIET, rates, say};
use crate::failure::Failure;
use crate::output::Output;

/// What follows from a command.
pub enum Reply {
    /// Something to say, which may be nothing.
    Said(String),
    /// The shell ends.
    Quit,
}

/// How often a shell that waits for a command looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Deepest chain of files that load each other.
const LOADED_LINES: usize = 100_000;

/// A shell with open ports.
pub struct Shell<'a> {
    forwarder: Forwarder,
    urls: Vec<PortUrl>,
    settings: Settings,
    defaults: Settings,
    output: &'a mut Output,
    stop: &'a Stop,
    /// When forwarding started, and with which settings: later ones are for the next time.
    started: Option<(Timestamp, Settings)>,
    /// What ports had moved when they were shown last, and when that was.
    shown: Option<(Instant, Vec<ForwardPort>)>,
    /// Commands of files that have yet to come.
    loaded: VecDeque<String>,
    /// Whether a command failed: for the exit code of a script.
    failed: bool,
}

/// Runs it; gives the exit code.
pub fn run(
    args: &ForwardArgs,
    urls: Vec<PortUrl>,
    settings: Settings,
    forwarder: Forwarder,
    stop: &Stop,
    output: &mut Output,
) -> Result<u8, Failure> {
    let tx_first = settings.tx_first;
    let mut shell = Shell {
        forwarder,
        urls,
        defaults: settings.clone(),
        settings,
        output,
        stop,
        started: None,
        shown: None,
        loaded: VecDeque::new(),
        failed: false,
    };
    if let Some(file) = &args.commands
        && let Err(error) = shell.load(&file.display().to_string())
    {
        return Err(Failure::usage(linerate_metric::event::Problem::new(
            error,
            "--commands",
            "name a file that can be read",
        )));
    }
    if args.auto_start || args.tx_first.is_some() {
        let reply = shell.start(tx_first);
        shell.tell(reply);
    }
    // Files alone end with their last line; a terminal or a pipe goes on after them.
    let typed = args.interactive || args.commands.is_none();
    let code = shell.serve(typed);
    // Whatever ended it: what was moved is told, and the record stored.
    if shell.forwarder.is_running() {
        let reply = shell.stop();
        shell.tell(reply);
    }
    Ok(match code {
        exit::OK if shell.failed && !typed => exit::FAILED,
        code => code,
    })
}

impl Shell<'_> {
    fn serve(&mut self, typed: bool) -> u8 {
        while let Some(line) = self.loaded.pop_front() {
            self.echo(&line);
            if self.take(&line) {
                return exit::OK;
            }
            if self.stop.is_set() {
                return exit::INTERRUPTED;
            }
        }
        if !typed {
            return exit::OK;
        }
        let lines = Lines::of_stdin();
        loop {
            lines.ask();
            let line = loop {
                if let Some(line) = lines.wait(LOOK) {
                    break line;
                }
                if self.stop.is_set() {
                    return exit::INTERRUPTED;
                }
                if self.forwarder.is_running()
                    && (self.forwarder.has_ended() || self.forwarder.is_troubled())
                {
                    let reply = self.stop();
                    self.tell(reply);
                }
            };
            match line {
                Line::Text(line) => {
                    if !lines.typed {
                        self.echo(&line);
                    }
                    if self.take(&line) {
                        return exit::OK;
                    }
                    while let Some(line) = self.loaded.pop_front() {
                        self.echo(&line);
                        if self.take(&line) {
                            return exit::OK;
                        }
                    }
                }
                Line::End => return exit::OK,
                Line::Interrupted => return exit::INTERRUPTED,
            }
        }
    }

    /// A command that nobody typed is shown as if somebody had.
    fn echo(&self, line: &str) {
        say(self.output, &format!("{PROMPT}{line}"));
    }

    /// Does what a line says; whether the shell ends.
    fn take(&mut self, line: &str) -> bool {
        let said = line.split('#').next().unwrap_or("");
        let words: Vec<_> = said.split_whitespace().collect();
        if words.is_empty() {
            return false;
        }
        let Some((command, free)) = commands::find(&words) else {
            let similar = commands::similar(&words);
            let help = match &similar[..] {
                [] => "`help` lists the commands".to_owned(),
                known => format!("there is: {}", known.join("; ")),
            };
            self.failed = true;
            say(
                self.output,
                &format!("no such command: {}: {help}", words.join(" ")),
            );
            return false;
        };
        let reply = (command.run)(self, &free);
        self.tell(reply)
    }

    /// Says what a command came to; whether the shell ends.
    fn tell(&mut self, reply: Result<Reply, String>) -> bool {
        match reply {
            Ok(Reply::Said(text)) => {
                if !text.is_empty() {
                    say(self.output, &text);
                }
                false
            }
            Ok(Reply::Quit) => true,
            Err(error) => {
                self.failed = true;
                say(self.output, &format!("error: {error}"));
                false
            }
        }
    }

    pub fn start(&mut self, tx_first: u64) -> Result<Reply, String> {
        let settings = Settings {
            tx_first,
            ..self.settings.clone()
        };
        let places = self.forwarder.start(&settings, QUIET).map_err(words)?;
        let map = stream_map(&settings.mode.to_string(), self.urls.len(), &places);
        self.started = Some((Timestamp::now(), settings));
        Ok(Reply::Said(map))
    }

    pub fn stop(&mut self) -> Result<Reply, String> {
        let Some(mut outcome) = self.forwarder.stop() else {
            return Err("nothing is forwarded: say `start`".to_owned());
        };
        let mut text = format!(
            "{}\n\n{}",
            forward_statistics(&outcome.figures),
            core_statistics(&outcome.figures)
        );
        if let Some(error) = outcome.trouble.take() {
            self.failed = true;
            text.push_str(&format!("\nerror: {error}"));
        }
        let (started, settings) =
            (self.started.take()).unwrap_or_else(|| (Timestamp::now(), self.settings.clone()));
        let ran = Ran {
            started,
            figures: outcome.figures,
            readings: Vec::new(),
            interrupted: self.stop.is_set(),
            trouble: None,
        };
        let times = Times {
            duration: None,
            interval: INTERVAL,
            quiet: QUIET,
        };
        let record = record(&self.urls, &settings, &times, ran);
        self.output
            .keep(&record)
            .map_err(|failure| failure.problem.to_string())?;
        Ok(Reply::Said(text))
    }

    pub fn quit(&mut self) -> Result<Reply, String> {
        Ok(Reply::Quit)
    }

    pub fn sleep(&mut self, time: &str) -> Result<Reply, String> {
        let time = parse_duration(time).map_err(|error| error.to_string())?;
        let until = Instant::now() + time.min(Duration::from_secs(86_400));
        while !self.stop.is_set() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(LOOK));
        }
        Ok(Reply::Said(String::new()))
    }

    pub fn load(&mut self, file: &str) -> Result<Reply, String> {
        let text = std::fs::read_to_string(file)
            .map_err(|error| format!("{file} cannot be read: {error}"))?;
        if self.loaded.len() > LOADED_LINES {
            return Err(format!("{file} loads itself"));
        }
        for line in text.lines().rev() {
            self.loaded.push_front(line.to_owned());
        }
        Ok(Reply::Said(String::new()))
    }

    pub fn help(&mut self, part: Option<&str>) -> Result<Reply, String> {
        let Some(part) = part else {
            let names: Vec<_> = SECTIONS.iter().map(|section| section.name).collect();
            return Ok(Reply::Said(format!(
                "help PART, where PART is one of {}, all\nmost used: start tx_first 1, stop, show \
                 port stats all, set fwd macswap, quit",
                names.join(", ")
            )));
        };
        let sections: Vec<_> = SECTIONS
            .iter()
            .filter(|section| part == "all" || part == section.name)
            .collect();
        if sections.is_empty() {
            return Err(format!("there is no part `{part}`: say `help`"));
        }
        let commands = sections.iter().flat_map(|section| section.commands);
        let width = commands.clone().map(|command| command.words.len()).max();
        let width = width.unwrap_or(0);
        let lines = commands.map(|command| format!("{:<width$}  {}", command.words, command.about));
        Ok(Reply::Said(lines.collect::<Vec<_>>().join("\n")))
    }

    /// The port that is named; none for all.
    fn port(&self, text: &str) -> Result<Option<u32>, String> {
        if text == "all" {
            return Ok(None);
        }
        match text.parse::<u32>() {
            Ok(port) if (port as usize) < self.urls.len() => Ok(Some(port)),
            _ => Err(format!(
                "there is no port {text}: 0 to {}, or all",
                self.urls.len() - 1
            )),
        }
    }

    fn facts(&mut self, text: &str) -> Result<Vec<ForwardPort>, String> {
        let wanted = self.port(text)?;
        self.forwarder.refresh();
        let mut facts = self.forwarder.port_facts();
        facts.retain(|port| wanted.is_none_or(|wanted| wanted == port.port));
        Ok(facts)
    }

    pub fn port_stats(&mut self, text: &str) -> Result<Reply, String> {
        let wanted = self.port(text)?;
        let all = self.facts("all")?;
        let now = Instant::now();
        let before = self.shown.take();
        let blocks = all
            .iter()
            .filter(|port| wanted.is_none_or(|wanted| wanted == port.port))
            .map(|port| {
                let earlier = before.as_ref().and_then(|(at, ports)| {
                    let earlier = ports.iter().find(|earlier| earlier.port == port.port)?;
                    Some((at, &earlier.receive, &earlier.transmit))
                });
                let rates = match earlier {
                    Some((at, receive, transmit)) => rates(
                        &port.receive.since(receive),
                        &port.transmit.since(transmit),
                        now.duration_since(*at).as_secs_f64(),
                    ),
                    None => Default::default(),
                };
                port_statistics(port, Some(rates))
            });
        let text = blocks.collect::<Vec<_>>().join("\n");
        self.shown = Some((now, all));
        Ok(Reply::Said(text))
    }

    pub fn port_xstats(&mut self, text: &str) -> Result<Reply, String> {
        let mut lines = Vec::new();
        for port in self.facts(text)? {
            lines.push(format!(
                "###### NIC extended statistics for port {}",
                port.port
            ));
            for (way, queue) in [("rx", &port.receive), ("tx", &port.transmit)] {
                lines.push(format!("{way}_packets: {}", queue.packets));
                lines.push(format!("{way}_bytes: {}", queue.bytes));
                for (cause, count) in &queue.drops {
                    lines.push(format!(
                        "{way}_dropped_{}: {count}",
                        cause.replace('-', "_")
                    ));
                }
            }
        }
        Ok(Reply::Said(lines.join("\n")))
    }

    pub fn port_info(&mut self, text: &str) -> Result<Reply, String> {
        let blocks: Vec<_> = self.facts(text)?.iter().map(port_info).collect();
        Ok(Reply::Said(blocks.join("\n")))
    }

    pub fn port_summary(&mut self, text: &str) -> Result<Reply, String> {
        let mut lines = vec![format!(
            "{:<5} {:<24} {:<18} {:<7} State",
            "Port", "Name", "MAC", "Queues"
        )];
        for port in self.facts(text)? {
            let state = match self.forwarder.is_started(port.port) {
                true => "started",
                false => "stopped",
            };
            lines.push(format!(
                "{:<5} {:<24} {:<18} {:<7} {state}",
                port.port,
                port.name,
                port.address.as_deref().unwrap_or("-"),
                port.queues
            ));
        }
        Ok(Reply::Said(lines.join("\n")))
    }

    pub fn fwd_stats(&mut self) -> Result<Reply, String> {
        if !self.forwarder.is_running() {
            return Err("nothing is forwarded: say `start`".to_owned());
        }
        Ok(Reply::Said(stream_statistics(&self.forwarder.streams())))
    }

    pub fn clear_port(&mut self, text: &str) -> Result<Reply, String> {
        let port = self.port(text)?;
        self.forwarder.clear(port);
        self.shown = None;
        Ok(Reply::Said("statistics are cleared".to_owned()))
    }

    pub fn clear_fwd(&mut self) -> Result<Reply, String> {
        self.forwarder.clear_streams();
        Ok(Reply::Said("statistics are cleared".to_owned()))
    }

    pub fn config(&mut self, what: &str) -> Result<Reply, String> {
        let settings = &self.settings;
        let text = match what {
            "fwd" => {
                let places = self.forwarder.places(settings).map_err(words)?;
                stream_map(&settings.mode.to_string(), self.urls.len(), &places)
            }
            "cores" => {
                let cpus = match &settings.cpus[..] {
                    [] => "the last ones that are free".to_owned(),
                    cpus => Cpus(cpus.to_vec()).to_string(),
                };
                format!("forwarding cores: {} (processors: {cpus})", settings.cores)
            }
            "txpkts" => format!(
                "frames made here: {} bytes, {} flows (txonly), {} flows (flowgen)",
                settings.frame.bytes, settings.transmit_flows, settings.generated_flows
            ),
            _ => {
                let retry = match settings.retry {
                    None => "off".to_owned(),
                    Some(retry) => format!("{} times, {} us apart", retry.times, retry.delay_us),
                };
                format!(
                    "{} packet forwarding, packets/burst={}\n  ports: {}, cores: {}, topology: \
                     {}\n  retry: {retry}, idle: {}, flush before a start: {}",
                    settings.mode,
                    settings.burst,
                    self.urls.len(),
                    settings.cores,
                    settings.topology,
                    settings.idle,
                    if settings.flush { "on" } else { "off" }
                )
            }
        };
        Ok(Reply::Said(text))
    }

    /// Changes settings, and says what they are now; a run that lasts keeps its own.
    pub fn set(
        &mut self,
        change: impl FnOnce(&mut Settings),
        told: impl FnOnce(&Settings) -> String,
    ) -> Result<Reply, String> {
        change(&mut self.settings);
        let told = told(&self.settings);
        Ok(Reply::Said(match self.forwarder.is_running() {
            true => format!("{told} (from the next start on)"),
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
            |_| {
                format!("frames that find a full ring are tried {times} times, {delay_us} us apart")
            },
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
                                format!("{told}; {streams} streams keep {streams} of them busy")
                            }
                            false => told,
                        }
                    },
                )
            }
        }
    }

    pub fn set_corelist(&mut self, text: &str) -> Result<Reply, String> {
        let Cpus(cpus) = text.parse()?;
        self.set_cpus(cpus)
    }

    pub fn set_coremask(&mut self, text: &str) -> Result<Reply, String> {
        let cpus = mask(text)?;
        self.set_cpus(cpus)
    }

    fn set_cpus(&mut self, cpus: Vec<u32>) -> Result<Reply, String> {
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
        // A list of ports that are not there would be as long as the number says.
        if count as usize > self.urls.len() {
            return Err(format!("there are {} ports", self.urls.len()));
        }
        self.set_ports((0..count).collect())
    }

    pub fn set_portlist(&mut self, text: &str) -> Result<Reply, String> {
        let Cpus(ports) = text
            .parse()
            .map_err(|_| format!("`{text}` is no list of ports: write 0,1"))?;
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
        if let Some(port) = ports.iter().find(|port| **port as usize >= self.urls.len()) {
            return Err(format!(
                "there is no port {port}: 0 to {}",
                self.urls.len() - 1
            ));
        }
        for (at, port) in ports.iter().enumerate() {
            if ports[..at].contains(port) {
                return Err(format!("port {port} is listed twice"));
            }
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
                "frames of {bytes} bytes are longer than ports send ({most}): give URLs a larger mtu="
            ));
        }
        self.set(
            |settings| settings.frame.bytes = bytes,
            |settings| format!("frames made here: {} bytes", settings.frame.bytes),
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
        let peer: Peer = format!("{port},{address}").parse()?;
        self.port(port)?;
        self.set(
            |settings| settings.peers.push(peer),
            |_| format!("behind port {} is {}", peer.port, peer.address),
        )
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
            |_| "settings are as they were when the shell began".to_owned(),
        )
    }

    /// Switches something on or off.
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

    pub fn port_stop(&mut self, text: &str) -> Result<Reply, String> {
        let port = self.port(text)?;
        self.forwarder.stop_port(port).map_err(words)?;
        Ok(Reply::Said(format!("port {text} is stopped")))
    }

    pub fn port_start(&mut self, text: &str) -> Result<Reply, String> {
        let port = self.port(text)?;
        self.forwarder.start_port(port).map_err(words)?;
        Ok(Reply::Said(format!("port {text} is started")))
    }

    pub fn port_reset(&mut self, text: &str) -> Result<Reply, String> {
        self.port_stop(text)?;
        self.port_start(text)
    }
}

/// A failure in one line, with what to do.
fn words(error: MeasureError) -> String {
    let problem = error.problem();
    format!("{problem}; {}", problem.next_step)
}
