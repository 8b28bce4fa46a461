//! Runs a capacity measurement on real ports.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate_host::sys::clock;
use linerate_metric::capacity::{CapacityTrial, SizeCapacity};
use linerate_metric::generate::{Load, TemplatePlan};
use linerate_metric::record::{Doubt, Record};

use super::caveats::all_of;
use super::rfc2544_suite::{Amount, Ask, Campaign, Options, Seen, Test};
use crate::MeasureError;
use crate::generate::{Ports, Ran, Settings, What, doubts, record, run as generate};

/// Results of a capacity measurement.
pub struct Measured {
    /// Results by frame size.
    pub sizes: Vec<SizeCapacity>,
    /// Full records of some trials: the latency trials, and per frame size the last trial that
    /// decided the throughput.
    pub records: Vec<Record>,
    /// Caveats of the results, one per kind, with the text of the last trial that had it.
    pub doubts: Vec<Doubt>,
    /// True if the user stopped the measurement.
    pub interrupted: bool,
    /// Error that ended the measurement early.
    pub failure: Option<MeasureError>,
}

/// Runs all trials and passes each to a callback.
///
/// `base` has the settings that the trials share: template, drain time, threads. `names` are the
/// names of the ports.
///
/// # Errors
/// The error of the first trial. Errors of later trials are in [`Measured::failure`].
pub fn run(
    ports: &mut Ports,
    names: (&str, Option<&str>),
    options: Options,
    base: &Settings,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&CapacityTrial),
) -> Result<Measured, MeasureError> {
    if let Some(port) = ports.without_carrier() {
        // The link may be coming up at this moment. If it stays down, the trials detect it.
        let until = clock::now() + CARRIER_PATIENCE_NS;
        let port = port.to_owned();
        while ports.without_carrier().is_some() && !stop.load(Relaxed) {
            if clock::now() > until {
                return Err(no_carrier(port));
            }
            clock::sleep_until(clock::now() + CARRIER_LOOK_NS);
        }
    }
    let sizes = options.sizes.clone();
    let (resolution, trial_s) = (options.resolution, options.trial_s);
    if let What::Template(plan) = &base.what {
        // An impossible size would otherwise end the measurement only after the trials of all sizes
        // before it.
        for (size, _) in &sizes {
            ports.template(&TemplatePlan {
                size: Some(size.clone()),
                ..plan.clone()
            })?;
        }
    }
    let mut campaign = Campaign::new(options);
    let mut measured = Measured {
        sizes: Vec::new(),
        records: Vec::new(),
        doubts: Vec::new(),
        interrupted: false,
        failure: None,
    };
    let mut first = true;
    let mut decided: Option<(usize, Record)> = None;
    while let Some(ask) = campaign.propose() {
        let settings = settings(base, &sizes[ask.size].0, &ask);
        let ran = match generate(ports, &settings, stop, &mut |_| {}) {
            Ok(ran) => ran,
            Err(error) if first => return Err(error),
            Err(error) => {
                measured.failure = Some(error);
                break;
            }
        };
        first = false;
        if ran.interrupted || stop.load(Relaxed) {
            measured.interrupted = true;
            break;
        }
        campaign.take(ask, &seen(&ran));
        if let Some(trial) = campaign.last_trial() {
            tell(trial);
        }
        note(&mut measured.doubts, &settings, &ran, ask.test);
        if decided
            .as_ref()
            .is_some_and(|(size, _)| *size != ask.size || ask.test != Test::Throughput)
        {
            measured
                .records
                .extend(decided.take().map(|(_, record)| record));
        }
        let stopped = ran.trouble.is_some();
        match ask.test {
            Test::Throughput => {
                decided = Some((ask.size, labelled(names, &settings, ran, &ask, &sizes)))
            }
            Test::Latency => measured
                .records
                .push(labelled(names, &settings, ran, &ask, &sizes)),
            Test::FrameLoss | Test::BackToBack => {}
        }
        if stopped {
            break;
        }
    }
    if campaign.propose().is_some() {
        campaign.interrupt();
    }
    if campaign.sends_nothing() {
        let down = ports.without_carrier().map(str::to_owned);
        let alone = ports.without_peer().map(str::to_owned);
        measured.failure = Some(match (down, alone) {
            (Some(port), _) => no_carrier(port),
            (None, Some(port)) => no_peer(port),
            (None, None) => nothing_sent(names.0),
        });
    }
    measured.records.extend(decided.map(|(_, record)| record));
    measured.sizes = campaign.results().to_vec();
    // A single trial in which nothing arrived (the link came up meanwhile) is no caveat for a size
    // of which frames arrived later.
    let arrives = |size: &SizeCapacity| size.trials.iter().any(|trial| trial.forwarding_fps > 0.0);
    if measured.sizes.iter().all(arrives) {
        (measured.doubts).retain(|doubt| doubt.doubt != "nothing-arrived");
    }
    (measured.doubts).extend(all_of(&measured.sizes, resolution, trial_s));
    Ok(measured)
}

/// Time to wait for the carrier of a link that was just configured, or whose driver resets it when
/// the port is opened.
const CARRIER_PATIENCE_NS: u64 = 3_000_000_000;
/// Interval between two checks of the carrier.
const CARRIER_LOOK_NS: u64 = 20_000_000;

fn no_carrier(port: String) -> MeasureError {
    MeasureError::Generator {
        object: port,
        situation: "it has no carrier".to_owned(),
        next_step: crate::carrier::NEXT.to_owned(),
    }
}

fn no_peer(port: String) -> MeasureError {
    MeasureError::Generator {
        object: port,
        situation: "no peer connected to its other end".to_owned(),
        next_step: crate::forward::NO_PEER_NEXT.to_owned(),
    }
}

fn nothing_sent(port: &str) -> MeasureError {
    MeasureError::Generator {
        object: port.to_owned(),
        situation: "no frame was sent in several trials".to_owned(),
        next_step: "check the port with `linerate generate`, or use another port".to_owned(),
    }
}

fn settings(base: &Settings, size: &str, ask: &Ask) -> Settings {
    let template = match &base.what {
        What::Template(plan) => plan.clone(),
        What::Capture(_) => TemplatePlan::default(),
    };
    let (duration, frames) = match ask.amount {
        Amount::Time(seconds) => (Some(Duration::from_secs_f64(seconds)), None),
        Amount::Frames(frames) => (None, Some(frames)),
    };
    Settings {
        what: What::Template(TemplatePlan {
            size: Some(size.to_owned()),
            ..template
        }),
        load: ask.load.map_or(Load::Max, Load::Frames),
        duration,
        frames,
        interval: None,
        gentle: true,
        settle: true,
        ..base.clone()
    }
}

fn seen(ran: &Ran) -> Seen {
    let figures = &ran.figures;
    Seen {
        sent: figures.sent,
        // A frame that arrives corrupted was not forwarded correctly.
        lost: figures.lost.unwrap_or(figures.sent) + figures.corrupted.unwrap_or(0),
        duration_ns: figures.duration_ns,
        offered: figures.offered_fps,
        forwarded: figures.forwarding_fps.unwrap_or(0.0),
        kept: ran.kept(),
        delay: figures.one_way_delay_ns,
        filling: ran.filling,
        arrival: ran.arrival_fps,
        own: ran.own,
    }
}

/// Keeps the newest caveat of each kind. Loads that were not offered and disturbances of this host
/// are left to the search in throughput trials: it repeats such trials, and marks results that
/// depend on them.
fn note(doubts_so_far: &mut Vec<Doubt>, settings: &Settings, ran: &Ran, test: Test) {
    for doubt in doubts(settings, ran) {
        let is_searched = match &*doubt.doubt {
            "tool-limit" => true,
            // The cause of a load that was not offered is still reported.
            "core-disturbed" | "sender-stalled" => ran.kept(),
            _ => false,
        };
        if test == Test::Throughput && is_searched {
            continue;
        }
        doubts_so_far.retain(|other| other.doubt != doubt.doubt);
        doubts_so_far.push(doubt);
    }
}

fn labelled(
    names: (&str, Option<&str>),
    settings: &Settings,
    ran: Ran,
    ask: &Ask,
    sizes: &[(String, f64)],
) -> Record {
    let size = &sizes[ask.size].0;
    let mut record = record(names, settings, ran);
    record.label = Some(format!("{} of {size}", ask.test.name()));
    record
}
