//! Ports of the forwarder between runs: counters, configuration, attaching and detaching.

use linerate_host::sys::clock;
use linerate_metric::forward::{ForwardFigures, ForwardPort, ForwardStream, StreamPlace};
use linerate_port::{Memory, PortError, PortUrl};

use super::{Acquire, Base, Forwarder, Observed, Primed, Relaxed, check_memory, planned};
use crate::MeasureError;
use crate::forward::forwarder_port::{Port, PortTotals, figures};

fn refused(
    object: impl Into<String>,
    situation: &str,
    next_step: impl Into<String>,
) -> MeasureError {
    MeasureError::NotForwardable {
        object: object.into(),
        situation: situation.to_owned(),
        next_step: next_step.into(),
    }
}

/// Returns an error if ports could not be reopened.
fn stay_stopped(closed: &[(u32, PortError)]) -> Result<(), MeasureError> {
    let Some((first, error)) = closed.first() else {
        return Ok(());
    };
    let numbers: Vec<String> = closed.iter().map(|(port, _)| port.to_string()).collect();
    let (ports, again) = match closed.len() {
        1 => (format!("port {first}"), format!("port start {first}")),
        _ => (
            format!("ports {}", numbers.join(", ")),
            "port start all".to_owned(),
        ),
    };
    let problem = error.problem();
    Err(refused(
        ports,
        &format!(
            "stopped, because reopening failed: {}: {}",
            problem.object, problem.situation
        ),
        format!("{}, then use `{again}`", problem.next_step),
    ))
}

/// Interval at which threads are requested to report port errors, independent of the display
/// interval; equal to that of the generator.
const ASK_NS: u64 = 250_000_000;

/// Returns whether a port is selected; `None` selects all.
fn is_meant(wanted: Option<u32>, port: &Port) -> bool {
    !port.is_detached && wanted.is_none_or(|wanted| wanted == port.number)
}

impl Forwarder {
    /// Returns the totals of each port since it was cleared.
    #[must_use]
    pub fn shown(&self) -> Vec<PortTotals> {
        self.ports.iter().map(Port::shown).collect()
    }

    /// Returns the totals of each port since it was first opened.
    #[must_use]
    pub fn totals(&self) -> Vec<PortTotals> {
        self.ports.iter().map(Port::totals).collect()
    }

    /// Returns the totals at the start of the running threads.
    #[must_use]
    pub fn totals_at_start(&self) -> Vec<PortTotals> {
        let running = self.running.as_ref();
        running.map_or_else(|| self.totals(), |running| running.ports.clone())
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
        let observed = running.and_then(|running| running.bit_rates.as_ref());
        let ports = self.ports.iter().enumerate();
        ports
            .filter(|(_, port)| !port.is_detached)
            .map(|(at, port)| {
                let shown = port.shown();
                ForwardPort {
                    receive: figures(shown.receive),
                    transmit: figures(shown.transmit),
                    bit_rates: observed.and_then(|observed| observed.of(at)),
                    ..port.record(PortTotals::default())
                }
            })
            .collect()
    }

    /// Returns the totals of each queue of a port since the port was cleared or opened.
    #[must_use]
    pub fn queues_shown(&self, port: u32) -> Vec<PortTotals> {
        let port = self.ports.get(port as usize);
        port.map_or_else(Vec::new, Port::queues_shown)
    }

    /// Returns the ports in the form of the record, with their totals since `before`.
    pub(super) fn records(
        &self,
        before: &[PortTotals],
        observed: Option<&Observed>,
    ) -> Vec<ForwardPort> {
        let ports = self.ports.iter().zip(before).enumerate();
        ports
            .filter(|(_, (port, _))| !port.is_detached)
            .map(|(at, (port, before))| ForwardPort {
                bit_rates: observed.and_then(|observed| observed.of(at)),
                ..port.record(*before)
            })
            .collect()
    }

    /// Returns the figures of running streams since the start or the last clear.
    #[must_use]
    pub fn streams(&self) -> Vec<ForwardStream> {
        let Some(running) = &self.running else {
            return Vec::new();
        };
        let streams = running.places.iter().zip(&running.streams);
        streams.map(|(place, base)| base.shown(place)).collect()
    }

    /// Returns the figures of ports and streams since the start or the last clear; zeros while no
    /// threads run.
    #[must_use]
    pub fn figures(&self) -> ForwardFigures {
        let (now, running) = (self.totals(), self.running.as_ref());
        let before = running.map(|running| running.cleared.as_ref().unwrap_or(&running.ports));
        ForwardFigures {
            ports: self.records(before.unwrap_or(&now), None),
            streams: self.streams(),
            ..ForwardFigures::default()
        }
    }

    /// Returns the number of frames put into circulation once it is known; `None` while no threads
    /// run.
    #[must_use]
    pub fn primed(&self) -> Option<Primed> {
        let running = self.running.as_ref()?;
        let mut sent = 0;
        for (control, _) in &running.threads {
            if !control.is_primed.load(Acquire) {
                return None;
            }
            sent += control.primed.load(Relaxed);
        }
        Some(Primed {
            wanted: running.wanted,
            sent,
        })
    }

    /// Returns the descriptions of frames since the last call, if the settings require them.
    #[must_use]
    pub fn described(&self) -> Vec<String> {
        let told = self
            .running
            .as_ref()
            .and_then(|running| running.told.as_ref());
        told.map_or_else(Vec::new, |told| told.read())
    }

    /// Performs background work of a run: requests port errors from the threads and samples bit
    /// rates. The caller must call it more than once per second while threads run.
    pub fn look(&mut self) {
        let now = clock::now();
        if let Some(running) = self.running.as_mut().filter(|it| now >= it.ask_at_ns) {
            running.ask_at_ns = now + ASK_NS;
            for (control, _) in &running.threads {
                control.ask_refresh();
            }
        }
        let is_due = |observed: &Observed| observed.is_due(now);
        let observed = self
            .running
            .as_ref()
            .and_then(|running| running.bit_rates.as_ref());
        if !observed.is_some_and(is_due) {
            return;
        }
        let totals = self.totals();
        let observed = (self.running.as_mut()).and_then(|running| running.bit_rates.as_mut());
        if let Some(observed) = observed {
            observed.take(totals, now);
        }
    }

    /// Reads the kernel's counters before a run, so that earlier drops are not counted in it.
    /// Returns the first error of a port with streams.
    pub(super) fn settle(&mut self, places: &[StreamPlace]) -> Option<PortError> {
        let mut trouble = None;
        for port in &mut self.ports {
            let carries =
                |place: &StreamPlace| [place.rx_port, place.tx_port].contains(&port.number);
            let takes_part = places.iter().any(carries);
            trouble = trouble.or(port.refresh().err().filter(|_| takes_part));
        }
        trouble
    }

    /// Clears the displayed counters of one port or of all, those of the kernel included.
    pub fn clear(&mut self, port: Option<u32>) {
        self.refresh();
        for own in &mut self.ports {
            if is_meant(port, own) {
                own.clear();
            }
        }
    }

    /// Clears the displayed counters of running ports and streams; the record keeps the full
    /// values.
    pub fn clear_streams(&mut self) {
        self.refresh();
        let totals = self.totals();
        if let Some(running) = &mut self.running {
            running.cleared = Some(totals);
            running.streams.iter_mut().for_each(Base::clear);
        }
    }

    /// Returns whether a port is open.
    #[must_use]
    pub fn is_started(&self, port: u32) -> bool {
        self.ports.get(port as usize).is_some_and(Port::is_started)
    }

    /// Closes one port, or all.
    ///
    /// # Errors
    /// [`MeasureError`] while threads forward.
    pub fn stop_port(&mut self, port: Option<u32>) -> Result<(), MeasureError> {
        self.not_running()?;
        for own in &mut self.ports {
            if is_meant(port, own) && own.is_started() {
                own.stop();
            }
        }
        Ok(())
    }

    /// Reopens one port, or all closed ones. A port that fails stays closed; the others are opened.
    ///
    /// # Errors
    /// [`MeasureError`] while threads forward, or if a port cannot be opened.
    pub fn start_port(&mut self, port: Option<u32>) -> Result<(), MeasureError> {
        self.not_running()?;
        self.make_room(&self.urls())?;
        let closed = self.ports.iter().enumerate();
        let closed: Vec<usize> = closed
            .filter(|(_, own)| is_meant(port, own) && !own.is_started())
            .map(|(at, _)| at)
            .collect();
        stay_stopped(&self.open_again(&closed))
    }

    /// Reopens closed ports; returns the failed ones with their errors.
    fn open_again(&mut self, which: &[usize]) -> Vec<(u32, PortError)> {
        let Self { ports, memory, .. } = self;
        let tried = which.iter().map(|&at| {
            let own = &mut ports[at];
            (own.number, own.start(memory))
        });
        let failed = tried.filter_map(|(number, tried)| Some((number, tried.err()?)));
        failed.collect()
    }

    /// Sets a key in the URL of closed ports; `None` selects all. Returns the number of changed
    /// ports.
    ///
    /// # Errors
    /// [`MeasureError`] if a port is open or the value is invalid: then no port is changed.
    pub fn configure(
        &mut self,
        port: Option<u32>,
        key: &str,
        value: &str,
    ) -> Result<usize, MeasureError> {
        self.not_running()?;
        let meant = self.ports.iter().filter(|own| is_meant(port, own));
        if let Some(open) = meant.clone().find(|own| own.is_started()) {
            return Err(refused(
                format!("port {}", open.number),
                "it is open, and its rings are allocated",
                "use `port stop all` first, and `port start all` afterwards",
            ));
        }
        let changed: Result<Vec<PortUrl>, PortError> =
            meant.map(|own| own.url.with(key, value)).collect();
        let changed = changed?;
        let count = changed.len();
        let meant = self.ports.iter_mut().filter(|own| is_meant(port, own));
        for (own, url) in meant.zip(changed) {
            own.url = url;
        }
        Ok(count)
    }

    /// Opens another port under the lowest free number; returns the number.
    ///
    /// # Errors
    /// [`MeasureError`] while threads forward, or if the port cannot be opened.
    pub fn attach(&mut self, url: &PortUrl) -> Result<u32, MeasureError> {
        self.not_running()?;
        let mut urls = self.urls();
        urls.push(url.clone());
        self.make_room(&urls)?;
        let free = self.ports.iter().position(|port| port.is_detached);
        let at = free.unwrap_or(self.ports.len());
        let number = u32::try_from(at).unwrap_or(u32::MAX);
        let port = Port::open(number, url, &self.memory)?;
        match self.ports.get_mut(at) {
            Some(place) => *place = port,
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
    /// [`MeasureError`] while threads forward, if there is no such port, or if it is the last one.
    pub fn detach(&mut self, port: u32) -> Result<(), MeasureError> {
        self.not_running()?;
        if self.numbers() == [port] {
            return Err(refused(
                format!("port {port}"),
                "it is the last one",
                "attach another first, or use `quit`",
            ));
        }
        let mut ports = self.ports.iter_mut();
        let Some(own) = ports.find(|own| is_meant(Some(port), own)) else {
            return Err(refused(
                format!("port {port}"),
                "there is no such port",
                "list the ports with `show port summary all`",
            ));
        };
        own.stop();
        own.is_detached = true;
        Ok(())
    }

    /// Sets promiscuous mode of a port's interface; returns false if the port has no interface with
    /// such a mode.
    ///
    /// # Errors
    /// [`MeasureError`] if the port is closed or the kernel rejects the change.
    pub fn set_promiscuous(&mut self, port: u32, on: bool) -> Result<bool, MeasureError> {
        let Some(own) = self
            .ports
            .get_mut(port as usize)
            .filter(|own| own.is_started())
        else {
            return Err(refused(
                format!("port {port}"),
                "it is closed",
                format!("use `port start {port}` first"),
            ));
        };
        match own.set_promiscuous(on) {
            None => Ok(false),
            Some(Ok(())) => Ok(true),
            Some(Err(source)) => Err(PortError::Kernel {
                port: own.url.short(),
                action: "change which frames are received",
                source,
            }
            .into()),
        }
    }

    /// Replaces the memory if it is too small for these ports, and reopens the open ports.
    fn make_room(&mut self, urls: &[PortUrl]) -> Result<(), MeasureError> {
        let plan = planned(urls, &self.wish)?;
        let has = &self.memory;
        let fits = plan.frames <= has.frames()
            && plan.frame_bytes <= has.frame_bytes()
            && (!plan.power_of_two || has.slot_bytes().is_power_of_two());
        if fits {
            return Ok(());
        }
        check_memory(&plan)?;
        let before = std::mem::replace(&mut self.memory, Memory::new(plan)?);
        let started = self.ports.iter().enumerate();
        let open: Vec<usize> = started
            .filter(|(_, port)| port.is_started())
            .map(|(at, _)| at)
            .collect();
        let close = |ports: &mut [Port]| open.iter().for_each(|&at| ports[at].stop());
        close(&mut self.ports);
        let failed = self.open_again(&open);
        let back = |ports: &[Port]| -> Vec<u32> {
            let back = open.iter().map(|&at| &ports[at]);
            let back = back.filter(|port| port.is_started());
            back.map(|port| port.number).collect()
        };
        let Some((number, error)) = failed.first() else {
            self.reopened = back(&self.ports);
            return Ok(());
        };
        // Restore the earlier memory as far as possible.
        close(&mut self.ports);
        self.memory = before;
        let failed_again = self.open_again(&open);
        self.reopened = back(&self.ports);
        stay_stopped(&failed_again)?;
        // The error text covers all reopened ports.
        self.reopened.clear();
        let problem = error.problem();
        Err(refused(
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
    /// [`MeasureError`] while threads forward.
    pub fn not_running(&self) -> Result<(), MeasureError> {
        match self.is_running() {
            false => Ok(()),
            true => Err(refused(
                "ports",
                "they are being polled",
                "use `stop` first",
            )),
        }
    }
}
