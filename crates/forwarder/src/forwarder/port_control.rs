//! Ports of the forwarder between runs: counters, configuration, attaching and detaching.

use linerate_port::{FrameRunError, PortError, PortUrl};
use linerate_record::forward::{ForwardFigures, ForwardPort, ForwardStream, StreamRoute};
use linerate_sys::clock;
use linerate_sys::frames::frame_memory::FrameRegion;

use super::{
    Acquire, BitRateMeter, Forwarder, PrimedFrames, Relaxed, StreamBaseline, check_memory,
    memory_plan_for,
};
use crate::forwarder_port::{ForwarderPort, PortTotals, queue_figures};

fn not_forwardable(
    object: impl Into<String>,
    situation: &str,
    next_step: impl Into<String>,
) -> FrameRunError {
    FrameRunError::Setup {
        object: object.into(),
        situation: situation.to_owned(),
        next_step: next_step.into(),
    }
}

/// Returns an error if ports could not be reopened.
fn check_reopened(failed: &[(u32, PortError)]) -> Result<(), FrameRunError> {
    let Some((first, error)) = failed.first() else {
        return Ok(());
    };
    let numbers: Vec<String> = failed.iter().map(|(port, _)| port.to_string()).collect();
    let (ports, restart_command) = match failed.len() {
        1 => (format!("port {first}"), format!("port start {first}")),
        _ => (
            format!("ports {}", numbers.join(", ")),
            "port start all".to_owned(),
        ),
    };
    let problem = error.to_report();
    Err(not_forwardable(
        ports,
        &format!(
            "stopped, because reopening failed: {}: {}",
            problem.object, problem.situation
        ),
        format!("{}, then use `{restart_command}`", problem.next_step),
    ))
}

/// Interval at which threads are requested to report port errors, independent of the display
/// interval; equal to that of the generator.
const REFRESH_INTERVAL_NS: u64 = 250_000_000;

/// Returns whether a port is selected; `None` selects all.
fn is_selected(selected: Option<u32>, port: &ForwarderPort) -> bool {
    !port.is_detached && selected.is_none_or(|selected| selected == port.number)
}

impl Forwarder {
    /// Returns the totals of each port since it was cleared.
    #[must_use]
    pub fn totals_since_clear(&self) -> Vec<PortTotals> {
        self.ports
            .iter()
            .map(ForwarderPort::totals_since_clear)
            .collect()
    }

    /// Returns the totals of each port since it was first opened.
    #[must_use]
    pub fn totals(&self) -> Vec<PortTotals> {
        self.ports.iter().map(ForwarderPort::totals).collect()
    }

    /// Returns the totals at the start of the running threads.
    #[must_use]
    pub fn totals_at_start(&self) -> Vec<PortTotals> {
        let running = self.running.as_ref();
        running.map_or_else(|| self.totals(), |running| running.totals_at_start.clone())
    }

    /// Returns the URLs of the attached ports, with later configuration.
    #[must_use]
    pub fn urls(&self) -> Vec<PortUrl> {
        let ports = self.ports.iter().filter(|port| !port.is_detached);
        ports.map(|port| port.url.clone()).collect()
    }

    /// Returns the numbers of the attached ports.
    #[must_use]
    pub fn numbers(&self) -> Vec<u32> {
        let ports = self.ports.iter().filter(|port| !port.is_detached);
        ports.map(|port| port.number).collect()
    }

    /// Returns the ports in the form of the record, with their totals since they were cleared.
    #[must_use]
    pub fn port_facts(&self) -> Vec<ForwardPort> {
        let running = self.running.as_ref();
        let meter = running.and_then(|running| running.bit_rates.as_ref());
        let ports = self.ports.iter().enumerate();
        ports
            .filter(|(_, port)| !port.is_detached)
            .map(|(index, port)| {
                let since_clear = port.totals_since_clear();
                ForwardPort {
                    receive: queue_figures(since_clear.receive),
                    transmit: queue_figures(since_clear.transmit),
                    bit_rates: meter.and_then(|meter| meter.port_rates(index)),
                    ..port.to_record(PortTotals::default())
                }
            })
            .collect()
    }

    /// Returns the totals of each queue of a port since the port was cleared or opened.
    #[must_use]
    pub fn queue_totals_since_clear(&self, port: u32) -> Vec<PortTotals> {
        let port = self.ports.get(port as usize);
        port.map_or_else(Vec::new, ForwarderPort::queue_totals_since_clear)
    }

    /// Returns the ports in the form of the record, with their totals since `before`.
    pub(super) fn port_records(
        &self,
        before: &[PortTotals],
        meter: Option<&BitRateMeter>,
    ) -> Vec<ForwardPort> {
        let ports = self.ports.iter().zip(before).enumerate();
        ports
            .filter(|(_, (port, _))| !port.is_detached)
            .map(|(index, (port, before))| ForwardPort {
                bit_rates: meter.and_then(|meter| meter.port_rates(index)),
                ..port.to_record(*before)
            })
            .collect()
    }

    /// Returns the figures of running streams since the start or the last clear.
    #[must_use]
    pub fn streams(&self) -> Vec<ForwardStream> {
        let Some(running) = &self.running else {
            return Vec::new();
        };
        let streams = running.routes.iter().zip(&running.streams);
        streams
            .map(|(route, baseline)| baseline.figures_since_clear(route))
            .collect()
    }

    /// Returns the figures of ports and streams since the start or the last clear; zeros while no
    /// threads run.
    #[must_use]
    pub fn figures(&self) -> ForwardFigures {
        let (now, running) = (self.totals(), self.running.as_ref());
        let before = running.map(|running| {
            running
                .totals_at_clear
                .as_ref()
                .unwrap_or(&running.totals_at_start)
        });
        ForwardFigures {
            ports: self.port_records(before.unwrap_or(&now), None),
            streams: self.streams(),
            ..ForwardFigures::default()
        }
    }

    /// Returns the number of frames put into circulation once it is known; `None` while no threads
    /// run.
    #[must_use]
    pub fn primed(&self) -> Option<PrimedFrames> {
        let running = self.running.as_ref()?;
        let mut sent = 0;
        for (control, _) in &running.threads {
            if !control.is_primed.load(Acquire) {
                return None;
            }
            sent += control.primed.load(Relaxed);
        }
        Some(PrimedFrames {
            requested: running.frames_to_prime,
            sent,
        })
    }

    /// Performs background work of a run: requests port errors from the threads and samples bit
    /// rates. The caller must call it more than once per second while threads run.
    pub fn poll_background(&mut self) {
        let now = clock::now();
        if let Some(running) = self
            .running
            .as_mut()
            .filter(|active| now >= active.next_refresh_ns)
        {
            running.next_refresh_ns = now + REFRESH_INTERVAL_NS;
            for (control, _) in &running.threads {
                control.request_refresh();
            }
        }
        let is_sample_due = |meter: &BitRateMeter| meter.is_due(now);
        let meter = self
            .running
            .as_ref()
            .and_then(|running| running.bit_rates.as_ref());
        if !meter.is_some_and(is_sample_due) {
            return;
        }
        let totals = self.totals();
        let meter = (self.running.as_mut()).and_then(|running| running.bit_rates.as_mut());
        if let Some(meter) = meter {
            meter.sample(totals, now);
        }
    }

    /// Reads the kernel's counters before a run, so that earlier drops are not counted in it.
    /// Returns the first error of a port with streams.
    pub(super) fn refresh_before_run(&mut self, routes: &[StreamRoute]) -> Option<PortError> {
        let mut port_error = None;
        for port in &mut self.ports {
            let uses_port =
                |route: &StreamRoute| [route.rx_port, route.tx_port].contains(&port.number);
            let has_stream = routes.iter().any(uses_port);
            port_error = port_error.or(port.refresh().err().filter(|_| has_stream));
        }
        port_error
    }

    /// Clears the displayed counters of one port or of all, those of the kernel included.
    pub fn clear(&mut self, port: Option<u32>) {
        self.refresh();
        for candidate in &mut self.ports {
            if is_selected(port, candidate) {
                candidate.clear();
            }
        }
    }

    /// Clears the displayed counters of running ports and streams; the record keeps the full
    /// values.
    pub fn clear_streams(&mut self) {
        self.refresh();
        let totals = self.totals();
        if let Some(running) = &mut self.running {
            running.totals_at_clear = Some(totals);
            running.streams.iter_mut().for_each(StreamBaseline::clear);
        }
    }

    /// Returns whether a port is open.
    #[must_use]
    pub fn is_started(&self, port: u32) -> bool {
        self.ports
            .get(port as usize)
            .is_some_and(ForwarderPort::is_started)
    }

    /// Closes one port, or all.
    ///
    /// # Errors
    /// [`FrameRunError`] while threads forward.
    pub fn stop_port(&mut self, port: Option<u32>) -> Result<(), FrameRunError> {
        self.check_stopped()?;
        for candidate in &mut self.ports {
            if is_selected(port, candidate) && candidate.is_started() {
                candidate.close();
            }
        }
        Ok(())
    }

    /// Reopens one port, or all closed ones. A port that fails stays closed; the others are opened.
    ///
    /// # Errors
    /// [`FrameRunError`] while threads forward, or if a port cannot be opened.
    pub fn start_port(&mut self, port: Option<u32>) -> Result<(), FrameRunError> {
        self.check_stopped()?;
        self.grow_memory(&self.urls())?;
        let closed = self.ports.iter().enumerate();
        let closed: Vec<usize> = closed
            .filter(|(_, candidate)| is_selected(port, candidate) && !candidate.is_started())
            .map(|(index, _)| index)
            .collect();
        check_reopened(&self.reopen(&closed))
    }

    /// Reopens closed ports; returns the failed ones with their errors.
    fn reopen(&mut self, indices: &[usize]) -> Vec<(u32, PortError)> {
        let Self { ports, memory, .. } = self;
        let attempts = indices.iter().map(|&index| {
            let candidate = &mut ports[index];
            (candidate.number, candidate.reopen(memory))
        });
        let failed = attempts.filter_map(|(number, attempts)| Some((number, attempts.err()?)));
        failed.collect()
    }

    /// Sets a key in the URL of closed ports; `None` selects all. Returns the number of changed
    /// ports.
    ///
    /// # Errors
    /// [`FrameRunError`] if a port is open or the value is invalid: then no port is changed.
    pub fn configure(
        &mut self,
        port: Option<u32>,
        key: &str,
        value: &str,
    ) -> Result<usize, FrameRunError> {
        self.check_stopped()?;
        let selected = self
            .ports
            .iter()
            .filter(|candidate| is_selected(port, candidate));
        if let Some(open) = selected.clone().find(|candidate| candidate.is_started()) {
            return Err(not_forwardable(
                format!("port {}", open.number),
                "it is open, and its rings are allocated",
                "use `port stop all` first, and `port start all` afterwards",
            ));
        }
        let changed: Result<Vec<PortUrl>, PortError> = selected
            .map(|candidate| candidate.url.with_key(key, value))
            .collect();
        let changed = changed?;
        let count = changed.len();
        let selected = self
            .ports
            .iter_mut()
            .filter(|candidate| is_selected(port, candidate));
        for (candidate, url) in selected.zip(changed) {
            candidate.url = url;
        }
        Ok(count)
    }

    /// Opens another port under the lowest free number; returns the number.
    ///
    /// # Errors
    /// [`FrameRunError`] while threads forward, or if the port cannot be opened.
    pub fn attach(&mut self, url: &PortUrl) -> Result<u32, FrameRunError> {
        self.check_stopped()?;
        let mut urls = self.urls();
        urls.push(url.clone());
        self.grow_memory(&urls)?;
        let free_slot = self.ports.iter().position(|port| port.is_detached);
        let index = free_slot.unwrap_or(self.ports.len());
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        let port = ForwarderPort::open(number, url, &self.memory)?;
        match self.ports.get_mut(index) {
            Some(slot) => *slot = port,
            None => self.ports.push(port),
        }
        Ok(number)
    }

    /// Returns the ports that were reopened since the last call, because the memory had to grow.
    /// Reopening restarts capture files, and peers see the port disconnect and reconnect. Also
    /// valid after an error, because the memory grows first.
    pub fn take_reopened(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.reopened)
    }

    /// Closes and removes a port; other ports keep their numbers.
    ///
    /// # Errors
    /// [`FrameRunError`] while threads forward, if there is no such port, or if it is the last one.
    pub fn detach(&mut self, port: u32) -> Result<(), FrameRunError> {
        self.check_stopped()?;
        if self.numbers() == [port] {
            return Err(not_forwardable(
                format!("port {port}"),
                "it is the last one",
                "attach another first, or use `quit`",
            ));
        }
        let mut ports = self.ports.iter_mut();
        let Some(candidate) = ports.find(|candidate| is_selected(Some(port), candidate)) else {
            return Err(not_forwardable(
                format!("port {port}"),
                "there is no such port",
                "list the ports with `show port summary all`",
            ));
        };
        candidate.close();
        candidate.is_detached = true;
        Ok(())
    }

    /// Sets promiscuous mode of a port's interface; returns false if the port has no interface with
    /// such a mode.
    ///
    /// # Errors
    /// [`FrameRunError`] if the port is closed or the kernel rejects the change.
    pub fn set_promiscuous(&mut self, port: u32, on: bool) -> Result<bool, FrameRunError> {
        let Some(candidate) = self
            .ports
            .get_mut(port as usize)
            .filter(|candidate| candidate.is_started())
        else {
            return Err(not_forwardable(
                format!("port {port}"),
                "it is closed",
                format!("use `port start {port}` first"),
            ));
        };
        match candidate.set_promiscuous(on) {
            None => Ok(false),
            Some(Ok(())) => Ok(true),
            Some(Err(source)) => Err(PortError::Kernel {
                port: candidate.url.short_name(),
                action: "change which frames are received",
                source,
            }
            .into()),
        }
    }

    /// Replaces the memory if it is too small for these ports, and reopens the open ports.
    fn grow_memory(&mut self, urls: &[PortUrl]) -> Result<(), FrameRunError> {
        let plan = memory_plan_for(urls, &self.memory_request)?;
        let current = &self.memory;
        let fits = plan.frames <= current.frames()
            && plan.frame_bytes <= current.frame_bytes()
            && (!plan.power_of_two || current.slot_bytes().is_power_of_two());
        if fits {
            return Ok(());
        }
        check_memory(&plan)?;
        let old_memory = std::mem::replace(&mut self.memory, FrameRegion::new(plan)?);
        let started = self.ports.iter().enumerate();
        let open: Vec<usize> = started
            .filter(|(_, port)| port.is_started())
            .map(|(index, _)| index)
            .collect();
        let close =
            |ports: &mut [ForwarderPort]| open.iter().for_each(|&index| ports[index].close());
        close(&mut self.ports);
        let failed = self.reopen(&open);
        let reopened_ports = |ports: &[ForwarderPort]| -> Vec<u32> {
            let reopened_ports = open.iter().map(|&index| &ports[index]);
            let reopened_ports = reopened_ports.filter(|port| port.is_started());
            reopened_ports.map(|port| port.number).collect()
        };
        let Some((number, error)) = failed.first() else {
            self.reopened = reopened_ports(&self.ports);
            return Ok(());
        };
        // Restore the earlier memory as far as possible.
        close(&mut self.ports);
        self.memory = old_memory;
        let still_failed = self.reopen(&open);
        self.reopened = reopened_ports(&self.ports);
        check_reopened(&still_failed)?;
        // The error text covers all reopened ports.
        self.reopened.clear();
        let problem = error.to_report();
        Err(not_forwardable(
            format!("port {number}"),
            &format!(
                "it cannot be opened with memory for all ports: {}: {}; all ports are open again (capture files were restarted)",
                problem.object, problem.situation
            ),
            problem.next_step,
        ))
    }

    /// Checks that ports may be changed.
    ///
    /// # Errors
    /// [`FrameRunError`] while threads forward.
    pub fn check_stopped(&self) -> Result<(), FrameRunError> {
        match self.is_running() {
            false => Ok(()),
            true => Err(not_forwardable(
                "ports",
                "they are being polled",
                "use `stop` first",
            )),
        }
    }
}
