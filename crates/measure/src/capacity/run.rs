//! A measurement of capacity on real ports.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate_host::sys::clock;
use linerate_metric::capacity::{CapacityTrial, SizeCapacity};
use linerate_metric::generate::{Load, TemplatePlan};
use linerate_metric::record::{Doubt, Record};

use super::campaign::{Amount, Ask, Campaign, Options, Seen, Test};
use super::doubts::all_of;
use crate::MeasureError;
use crate::generate::{Ports, Ran, Settings, What, doubts, record, run as generate};

/// What a measurement gave.
pub struct Measured {
    /// The results by size.
    pub sizes: Vec<SizeCapacity>,
    /// Records of trials that say more than a line: those of the delay test, and of each size the
    /// last one that decided its throughput.
    pub records: Vec<Record>,
    /// What speaks against the results: each once, as its last trial had it.
    pub doubts: Vec<Doubt>,
    /// Whether somebody stopped it.
    pub interrupted: bool,
    /// What ended it before its time.
    pub failure: Option<MeasureError>,
}

/// Makes all trials.
///
/// `base` has what trials share: the template, the drain time, threads. `names` are the ports'.
///
/// # Errors
/// What kept the first trial from being made; what ends later ones is in [`Measured::failure`].
pub fn run(
    ports: &mut Ports,
    names: (&str, Option<&str>),
    options: Options,
    base: &Settings,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&CapacityTrial),
) -> Result<Measured, MeasureError> {
    if let Some(port) = ports.without_carrier() {
        // It may be coming up at this moment; a link that stays down is found by the trials.
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
        // A size that cannot be would otherwise end the measurement after the trials of all before it.
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
    // One trial of many in which nothing arrived (a link that came up meanwhile) says nothing of a size of which
    // frames came later.
    let arrives = |size: &SizeCapacity| size.trials.iter().any(|trial| trial.forwarding_fps > 0.0);
    if measured.sizes.iter().all(arrives) {
        (measured.doubts).retain(|doubt| doubt.doubt != "nothing-arrived");
    }
    (measured.doubts).extend(all_of(&measured.sizes, resolution, trial_s));
    Ok(measured)
}

/// How long a link that is down is waited for: one that was just set up, or whose driver sets it up anew for
/// us.
const CARRIER_PATIENCE_NS: u64 = 3_000_000_000;
/// How often it is looked at meanwhile.
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
        situation: "nobody came to its other end".to_owned(),
        next_step: crate::forward::NO_PEER_NEXT.to_owned(),
    }
}

fn nothing_sent(port: &str) -> MeasureError {
    MeasureError::Generator {
        object: port.to_owned(),
        situation: "no frame left it in several trials".to_owned(),
        next_step: "see with `linerate generate` what it does, or use another port".to_owned(),
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
        // A frame that arrives changed was not forwarded.
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

/// Keeps a doubt of each kind. That the generator could not offer a load, or that this machine was disturbed,
/// is the search's business: it made the trial again, and a result that stands on such trials says so.
fn note(doubts_so_far: &mut Vec<Doubt>, settings: &Settings, ran: &Ran, test: Test) {
    for doubt in doubts(settings, ran) {
        let is_searched = match &*doubt.doubt {
            "tool-limit" => true,
            // Why a load was not offered is told all the same.
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
