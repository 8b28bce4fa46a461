//! `linerate throughput -b max`: the search for the highest rate.

use std::time::Duration;

use linerate_measure::search;
use linerate_metric::pace::Pacing;

use super::{Measurement, nanos, refuse, throughput};
use crate::args::ThroughputArgs;
use crate::failure::Failure;
use crate::load::Load;

/// A search for the highest rate (`-b max`).
pub struct SearchPlan {
    /// The run that its trials vary.
    pub measurement: Measurement,
    /// What is searched for.
    pub options: search::Options,
    /// How long a trial takes.
    pub trial_ns: u64,
    /// How long the confirmation takes.
    pub confirmation_ns: u64,
}

/// Most trials of a search: three times what a steady network takes.
const MOST_TRIALS: u32 = 60;

/// Datagrams that the slowest trial sends: fewer tell nothing of loss.
const LEAST_DATAGRAMS: f64 = 20.0;

/// `linerate throughput -b max`.
pub fn search(args: &ThroughputArgs) -> Result<SearchPlan, Failure> {
    let loss = match args.bitrate {
        Some(Load::Max { loss }) => loss,
        _ => 0.0,
    };
    if args.measure.peer.is_some() {
        return refuse(
            "-b max with --peer",
            "trials follow each other at once, and other programs' servers need a pause between tests",
            "leave one of them out",
        );
    }
    if !args.measure.udp {
        return refuse(
            "-b max without -u",
            "TCP finds its rate by itself",
            "add -u, or leave -b out",
        );
    }
    for (given, name, why) in [
        (args.bidir, "--bidir", "one direction is searched at a time"),
        (args.bytes.is_some(), "-n", "trials have a time"),
        (
            args.measure.repeat > 1,
            "--repeat",
            "a search makes many runs of its own",
        ),
        (
            args.pacing != Pacing::User,
            "--pacing",
            "trials are paced by the program",
        ),
        (
            args.batch.is_some(),
            "--batch",
            "trials are paced by the program",
        ),
        (
            args.verify,
            "--verify",
            "trials are judged by what they lose",
        ),
        (
            args.trace.is_some() || args.trace_on.is_some(),
            "--trace or --trace-on",
            "a timeline is that of one run, and a search makes many",
        ),
    ] {
        if given {
            return refuse(&format!("-b max with {name}"), why, "leave one of them out");
        }
    }
    let trial = args.trial.unwrap_or(Duration::from_millis(500));
    if trial < Duration::from_millis(50) {
        return refuse(
            "--trial",
            "shorter than 50 ms: it tells nothing",
            "give 50ms or more",
        );
    }
    let resolution = args.resolution.unwrap_or(0.01);
    if !(0.0001..=0.5).contains(&resolution) {
        return refuse("--resolution", "no such share", "give 0.01% to 50%");
    }
    let measurement = throughput(args)?;
    let payload = measurement.client.plan.payload_bytes.max(64) as f64;
    Ok(SearchPlan {
        options: search::Options {
            loss,
            resolution,
            trials: MOST_TRIALS,
            floor_bps: LEAST_DATAGRAMS * payload * 8.0 / trial.as_secs_f64(),
        },
        measurement,
        trial_ns: nanos(trial),
        confirmation_ns: nanos(args.measure.time.unwrap_or(Duration::from_secs(2))),
    })
}
