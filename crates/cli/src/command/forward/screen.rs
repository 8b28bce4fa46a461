//! `--tui`: port rates on the full screen.

use std::time::Duration;

use linerate_host::stop_flag::Stop;
use linerate_measure::forward::{
    Forwarder, PortTotals, PortUrl, Ran, Reading, Settings, Times, Told, run as forward,
};
use linerate_metric::event::{Event, What};
use linerate_metric::plan::{Kind, Plan, Protocol};

use super::{QUIET, started};
use crate::failure::Failure;
use crate::output::Output;
use crate::printer::Teller;
use crate::ui_update::Scene;

/// Interval of the full-screen display.
pub const INTERVAL: Duration = Duration::from_millis(250);

/// Forwards with the full-screen display.
pub fn run(
    urls: &[PortUrl],
    settings: &Settings,
    forwarder: &mut Forwarder,
    duration: Option<Duration>,
    stop: &Stop,
    output: &mut Output,
) -> Result<Ran, Failure> {
    let times = Times {
        duration,
        interval: INTERVAL,
        quiet: QUIET,
    };
    let flag = stop.as_flag();
    let ran = crate::live::while_told(true, stop, output, |teller| {
        let mut shown = Shown::new(urls, duration, teller);
        forward(forwarder, settings, &times, &flag, &mut |told| {
            shown.take(&told);
        })
    })?;
    Ok(ran?)
}

/// Sends the events of a run to the screen.
pub struct Shown<'a> {
    teller: &'a Teller,
    names: Vec<String>,
    /// Totals of the ports so far.
    sums: Vec<PortTotals>,
    number: u64,
}

impl<'a> Shown<'a> {
    /// Starts a run of this duration; `None` runs until it is stopped.
    pub fn new(urls: &[PortUrl], duration: Option<Duration>, teller: &'a Teller) -> Self {
        let names: Vec<String> = urls.iter().map(ToString::to_string).collect();
        let mut plan = Plan::new(Kind::Forward, Protocol::Udp, names.join(" "));
        plan.duration_ns = duration.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        teller.tell(Event {
            test: 1,
            what: started(plan),
        });
        Self {
            teller,
            names,
            sums: Vec::new(),
            number: 0,
        }
    }

    /// Handles an event of the run.
    pub fn take(&mut self, told: &Told<'_>) {
        if let Told::Interval(reading) = told {
            self.interval(reading);
        }
    }

    fn interval(&mut self, reading: &Reading) {
        let interval = Box::new(reading.interval(self.number));
        self.number += 1;
        let what = What::Interval { interval };
        self.teller.tell(Event { test: 1, what });
        self.sums
            .resize_with(reading.ports.len(), PortTotals::default);
        for (sum, moved) in self.sums.iter_mut().zip(&reading.ports) {
            *sum = sum.plus(*moved);
        }
        let ways = self.names.iter().zip(&self.sums).flat_map(|(name, sum)| {
            [
                (format!("{name} receiving"), sum.receive),
                (format!("{name} sending"), sum.transmit),
            ]
        });
        self.teller.show(Scene::drops(ways));
    }
}
