//! `linerate throughput -b max`: the search for the highest rate.

use std::time::Duration;

use linerate_record::pace::PacingMethod;
use linerate_session::rate_search;

use super::{MeasurementPlan, nanos, plan_throughput, reject};
use crate::args::ThroughputArgs;
use crate::failure::CommandFailure;
use crate::load_option::LoadOption;

/// A search for the highest rate (`-b max`).
pub struct SearchPlan {
    /// Run that each trial varies.
    pub measurement: MeasurementPlan,
    pub options: rate_search::RateSearchOptions,
    pub trial_ns: u64,
    pub confirmation_ns: u64,
}

impl SearchPlan {
    /// Returns the lowest rate that is tried with datagrams of this size, in bits per second.
    pub fn floor_bps(&self, payload_bytes: u64) -> f64 {
        let trial_s = self.trial_ns as f64 / 1e9;
        MIN_DATAGRAMS * payload_bytes.max(1) as f64 * 8.0 / trial_s
    }
}

/// Maximum number of trials: three times the number that a steady network needs.
const MAX_TRIALS: u32 = 60;

/// Minimum number of datagrams in the slowest trial: fewer say nothing about loss.
const MIN_DATAGRAMS: f64 = 20.0;

/// Plans `linerate throughput -b max`.
pub fn plan_search(args: &ThroughputArgs) -> Result<SearchPlan, CommandFailure> {
    let loss = match args.bitrate {
        Some(LoadOption::Max { loss }) => loss,
        _ => 0.0,
    };
    if args.measure.peer.is_some() {
        return reject(
            "-b max with --peer",
            "trials follow each other without a pause, and servers of other tools need one between tests",
            "leave one of them out",
        );
    }
    if !args.measure.udp {
        return reject(
            "-b max",
            "needs -u: TCP has no fixed rate to search for",
            "add -u, or leave -b out",
        );
    }
    for (is_given, name, why) in [
        (args.bidir, "--bidir", "a search covers one direction"),
        (args.bytes.is_some(), "-n", "trials end by time"),
        (
            args.measure.repeat > 1,
            "--repeat",
            "a search makes many runs itself",
        ),
        (
            args.pacing != PacingMethod::User,
            "--pacing",
            "trials are paced by this program",
        ),
        (
            args.batch.is_some(),
            "--batch",
            "trials are paced by this program",
        ),
        (
            args.verify,
            "--verify",
            "trials are judged by their loss only",
        ),
        (
            args.trace.is_some() || args.trace_on.is_some(),
            "--trace or --trace-on",
            "a timeline covers one run, and a search makes many",
        ),
    ] {
        if is_given {
            return reject(&format!("-b max with {name}"), why, "leave one of them out");
        }
    }
    let trial = args.trial.unwrap_or(Duration::from_millis(500));
    if trial < Duration::from_millis(50) {
        return reject(
            "--trial",
            "shorter than 50 ms is not enough for a trial",
            "give 50ms or more",
        );
    }
    let resolution = args.resolution.unwrap_or(0.01);
    if !(0.0001..=0.5).contains(&resolution) {
        return reject("--resolution", "out of range", "give 0.01% to 50%");
    }
    let measurement = plan_throughput(args)?;
    Ok(SearchPlan {
        options: rate_search::RateSearchOptions {
            max_loss: loss,
            resolution,
            max_trials: MAX_TRIALS,
            // Set after the first trial, which has the size of the datagrams.
            floor_bps: 0.0,
        },
        measurement,
        trial_ns: nanos(trial),
        confirmation_ns: nanos(args.measure.time.unwrap_or(Duration::from_secs(2))),
    })
}
