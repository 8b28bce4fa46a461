//! Runs a capacity measurement on real ports.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use linerate_port::FrameRunError;
use linerate_record::capacity::{CapacityTrial, SizeCapacity};
use linerate_record::generate::{IntendedLoad, TemplatePlan};
use linerate_record::ids::CaveatId;
use linerate_record::record::{Caveat, Record};
use linerate_sys::clock;

use super::caveats::suite_caveats;
use super::rfc2544_suite::{
    Rfc2544Suite, SuiteOptions, SuiteTest, SuiteTrial, SuiteTrialResult, TrialAmount,
};
use crate::{
    FrameInput, GeneratorPorts, GeneratorRun, GeneratorSettings, caveats, record, run as generate,
};

/// Results of a capacity measurement.
pub struct CapacityResults {
    /// Results by frame size.
    pub sizes: Vec<SizeCapacity>,
    /// Full records of some trials: the latency trials, and per frame size the last trial that
    /// decided the throughput.
    pub records: Vec<Record>,
    /// Caveats of the results, one per kind, with the text of the last trial that had it.
    pub caveats: Vec<Caveat>,
    /// True if the user stopped the measurement.
    pub interrupted: bool,
    /// Error that ended the measurement early.
    pub failure: Option<FrameRunError>,
}

/// Runs all trials and passes each to a callback.
///
/// `base` has the settings that the trials share: template, drain time, threads. `names` are the
/// names of the ports.
///
/// # Errors
/// The error of the first trial. Errors of later trials are in [`CapacityResults::failure`].
pub fn run(
    ports: &mut GeneratorPorts,
    names: (&str, Option<&str>),
    options: SuiteOptions,
    base: &GeneratorSettings,
    stop: &AtomicBool,
    on_trial: &mut dyn FnMut(&CapacityTrial),
) -> Result<CapacityResults, FrameRunError> {
    if let Some(port) = ports.without_carrier() {
        // The link may be coming up at this moment. If it stays down, the trials detect it.
        let deadline = clock::now() + CARRIER_TIMEOUT_NS;
        let port = port.to_owned();
        while ports.without_carrier().is_some() && !stop.load(Relaxed) {
            if clock::now() > deadline {
                return Err(no_carrier(port));
            }
            clock::sleep_until(clock::now() + CARRIER_POLL_NS);
        }
    }
    let sizes = options.sizes.clone();
    let (resolution, trial_s) = (options.resolution, options.trial_s);
    if let FrameInput::Template(plan) = &base.input {
        // An impossible size would otherwise end the measurement only after the trials of all sizes
        // before it.
        for (size, _) in &sizes {
            ports.template(&TemplatePlan {
                size: Some(size.clone()),
                ..plan.clone()
            })?;
        }
    }
    let mut suite = Rfc2544Suite::new(options);
    let mut results = CapacityResults {
        sizes: Vec::new(),
        records: Vec::new(),
        caveats: Vec::new(),
        interrupted: false,
        failure: None,
    };
    let mut is_first = true;
    let mut throughput_record: Option<(usize, Record)> = None;
    while let Some(trial) = suite.propose() {
        let settings = trial_settings(base, &sizes[trial.size].0, &trial);
        let generated = match generate(ports, &settings, stop, &mut |_| {}) {
            Ok(generated) => generated,
            Err(error) if is_first => return Err(error),
            Err(error) => {
                results.failure = Some(error);
                break;
            }
        };
        is_first = false;
        if generated.interrupted || stop.load(Relaxed) {
            results.interrupted = true;
            break;
        }
        suite.record(trial, &trial_result(&generated));
        if let Some(finished) = suite.last_trial() {
            on_trial(finished);
        }
        keep_caveats(&mut results.caveats, &settings, &generated, trial.test);
        if throughput_record
            .as_ref()
            .is_some_and(|(size, _)| *size != trial.size || trial.test != SuiteTest::Throughput)
        {
            results
                .records
                .extend(throughput_record.take().map(|(_, record)| record));
        }
        let is_stopped = generated.port_error.is_some();
        match trial.test {
            SuiteTest::Throughput => {
                throughput_record = Some((
                    trial.size,
                    labelled_record(names, &settings, generated, &trial, &sizes),
                ))
            }
            SuiteTest::Latency => results
                .records
                .push(labelled_record(names, &settings, generated, &trial, &sizes)),
            SuiteTest::FrameLoss | SuiteTest::BackToBack => {}
        }
        if is_stopped {
            break;
        }
    }
    if suite.propose().is_some() {
        suite.interrupt();
    }
    if suite.is_unable_to_send() {
        let no_carrier_port = ports.without_carrier().map(str::to_owned);
        let no_peer_port = ports.without_peer().map(str::to_owned);
        results.failure = Some(match (no_carrier_port, no_peer_port) {
            (Some(port), _) => no_carrier(port),
            (None, Some(port)) => no_peer(port),
            (None, None) => sends_nothing(names.0),
        });
    }
    results
        .records
        .extend(throughput_record.map(|(_, record)| record));
    results.sizes = suite.results().to_vec();
    // A single trial in which nothing arrived (the link came up meanwhile) is no caveat for a size
    // of which frames arrived later.
    let arrives = |size: &SizeCapacity| {
        size.trials
            .iter()
            .any(|finished| finished.forwarding_fps > 0.0)
    };
    if results.sizes.iter().all(arrives) {
        (results.caveats).retain(|caveat| caveat.id != CaveatId::NothingArrived);
    }
    (results.caveats).extend(suite_caveats(&results.sizes, resolution, trial_s));
    Ok(results)
}

/// Time to wait for the carrier of a link that was just configured, or whose driver resets it when
/// the port is opened.
const CARRIER_TIMEOUT_NS: u64 = 3_000_000_000;
/// Interval between two checks of the carrier.
const CARRIER_POLL_NS: u64 = 20_000_000;

fn no_carrier(port: String) -> FrameRunError {
    FrameRunError::Setup {
        object: port,
        situation: "it has no carrier".to_owned(),
        next_step: linerate_port::caveats::NO_CARRIER_REMEDY.to_owned(),
    }
}

fn no_peer(port: String) -> FrameRunError {
    FrameRunError::Setup {
        object: port,
        situation: "no peer connected to its other end".to_owned(),
        next_step: linerate_port::caveats::NO_PEER_NEXT_STEP.to_owned(),
    }
}

fn sends_nothing(port: &str) -> FrameRunError {
    FrameRunError::Setup {
        object: port.to_owned(),
        situation: "no frame was sent in several trials".to_owned(),
        next_step: "check the port with `linerate generate`, or use another port".to_owned(),
    }
}

fn trial_settings(base: &GeneratorSettings, size: &str, trial: &SuiteTrial) -> GeneratorSettings {
    let template = match &base.input {
        FrameInput::Template(plan) => plan.clone(),
        FrameInput::Capture(_) => TemplatePlan::default(),
    };
    let (duration, frames) = match trial.amount {
        TrialAmount::Time(seconds) => (Some(Duration::from_secs_f64(seconds)), None),
        TrialAmount::Frames(frames) => (None, Some(frames)),
    };
    GeneratorSettings {
        input: FrameInput::Template(TemplatePlan {
            size: Some(size.to_owned()),
            ..template
        }),
        load: trial
            .load
            .map_or(IntendedLoad::Max, IntendedLoad::FrameRate),
        duration,
        max_frames: frames,
        interval: None,
        catches_up_gently: true,
        extends_drain: true,
        ..base.clone()
    }
}

fn trial_result(generated: &GeneratorRun) -> SuiteTrialResult {
    let figures = &generated.figures;
    SuiteTrialResult {
        sent: figures.sent,
        // A frame that arrives corrupted was not forwarded correctly.
        lost: figures.lost.unwrap_or(figures.sent) + figures.corrupted.unwrap_or(0),
        duration_ns: figures.duration_ns,
        offered_fps: figures.offered_fps,
        forwarding_fps: figures.forwarding_fps.unwrap_or(0.0),
        load_met: generated.is_load_met(),
        one_way_delay_ns: figures.one_way_delay_ns,
        queue_growth: generated.queue_growth,
        arrival_fps: generated.arrival_fps,
        disturbance: generated.disturbance,
    }
}

/// Keeps the newest caveat of each kind. Loads that were not offered and disturbances of this host
/// are left to the search in throughput trials: it repeats such trials, and marks results that
/// depend on them.
fn keep_caveats(
    kept: &mut Vec<Caveat>,
    settings: &GeneratorSettings,
    generated: &GeneratorRun,
    test: SuiteTest,
) {
    for caveat in caveats(settings, generated) {
        let left_to_search = match caveat.id.known() {
            Some(CaveatId::ToolLimit) => true,
            // The cause of a load that was not offered is still reported.
            Some(CaveatId::CoreDisturbed | CaveatId::SenderStalled) => generated.is_load_met(),
            _ => false,
        };
        if test == SuiteTest::Throughput && left_to_search {
            continue;
        }
        kept.retain(|earlier| earlier.id != caveat.id);
        kept.push(caveat);
    }
}

fn labelled_record(
    names: (&str, Option<&str>),
    settings: &GeneratorSettings,
    generated: GeneratorRun,
    trial: &SuiteTrial,
    sizes: &[(String, f64)],
) -> Record {
    let size = &sizes[trial.size].0;
    let mut record = record(names, settings, generated);
    record.label = Some(format!("{} of {size}", trial.test.name()));
    record
}
