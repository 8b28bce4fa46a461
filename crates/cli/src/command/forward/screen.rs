//! `--tui`: port rates on the full screen.

use std::time::Duration;

use linerate_forwarder::{
    ForwardEvent, ForwardInterval, ForwardRun, ForwardSettings, Forwarder, PortTotals, RunTimes,
    run as forward,
};
use linerate_host::stop_flag::StopFlag;
use linerate_port::PortUrl;
use linerate_record::event::{Event, EventKind};
use linerate_record::plan::{Plan, RunKind, TransportProtocol};

use super::{QUIET_TIME, started_event};
use crate::event_queue::EventSender;
use crate::failure::CommandFailure;
use crate::output::CommandOutput;
use crate::ui_update::UiUpdate;

/// Interval of the full-screen display.
pub const SCREEN_INTERVAL: Duration = Duration::from_millis(250);

/// Forwards with the full-screen display.
pub fn run(
    urls: &[PortUrl],
    settings: &ForwardSettings,
    forwarder: &mut Forwarder,
    duration: Option<Duration>,
    stop: &StopFlag,
    output: &mut CommandOutput,
) -> Result<ForwardRun, CommandFailure> {
    let times = RunTimes {
        duration,
        interval: SCREEN_INTERVAL,
        flush_quiet: QUIET_TIME,
    };
    let flag = stop.atomic();
    let outcome = crate::live::run_with_output(true, stop, output, |events| {
        let mut forward_events = ForwardEvents::new(urls, duration, events);
        forward(forwarder, settings, &times, &flag, &mut |update| {
            forward_events.on_update(&update);
        })
    })?;
    Ok(outcome?)
}

/// Sends the events of a run to the screen.
pub struct ForwardEvents<'a> {
    events: &'a EventSender,
    names: Vec<String>,
    /// Totals of the ports so far.
    sums: Vec<PortTotals>,
    number: u64,
}

impl<'a> ForwardEvents<'a> {
    /// Starts a run of this duration; `None` runs until it is stopped.
    pub fn new(urls: &[PortUrl], duration: Option<Duration>, events: &'a EventSender) -> Self {
        let names: Vec<String> = urls.iter().map(ToString::to_string).collect();
        let mut plan = Plan::new(RunKind::Forward, TransportProtocol::Udp, names.join(" "));
        plan.duration_ns = duration.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        events.send(Event {
            test: 1,
            kind: started_event(plan),
        });
        Self {
            events,
            names,
            sums: Vec::new(),
            number: 0,
        }
    }

    /// Handles an event of the run.
    pub fn on_update(&mut self, update: &ForwardEvent<'_>) {
        if let ForwardEvent::Interval(reading) = update {
            self.on_interval(reading);
        }
    }

    fn on_interval(&mut self, reading: &ForwardInterval) {
        let interval = Box::new(reading.interval(self.number));
        self.number += 1;
        let what = EventKind::Interval { interval };
        self.events.send(Event {
            test: 1,
            kind: what,
        });
        self.sums
            .resize_with(reading.ports.len(), PortTotals::default);
        for (sum, interval_totals) in self.sums.iter_mut().zip(&reading.ports) {
            *sum = sum.plus(*interval_totals);
        }
        let queues = self.names.iter().zip(&self.sums).flat_map(|(name, sum)| {
            [
                (format!("{name} receiving"), sum.receive),
                (format!("{name} sending"), sum.transmit),
            ]
        });
        self.events.show(UiUpdate::port_drops(queues));
    }
}
