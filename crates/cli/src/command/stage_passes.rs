//! A run followed by timestamp passes that show where its time went.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use linerate_interop::run_client;
use linerate_record::event::EventKind;
use linerate_record::ids::CaveatId;
use linerate_record::plan::{Plan, TimestampLevel};
use linerate_record::record::{Caveat, Record, RoundTripStage, StagePass};
use linerate_record::timeline::TraceFile;
use linerate_report::store::write_bytes;
use linerate_report::trace::{chrome, perfetto};
use linerate_session::client::Client;
use linerate_session::error::SessionError;
use linerate_session::loss::LabNetwork;
use linerate_stats::units::{format_nanos, format_share};

use crate::failure::CommandFailure;

/// Number of round trips of a timeline that the record keeps, for its diagram.
const DIAGRAM_ROUND_TRIPS: u64 = 50;

/// Maximum number of round trips of a timestamp pass: more do not change a median. A pass that
/// waits for a slow round trip has no such limit.
const MAX_PASS_ROUND_TRIPS: u64 = 16_000;

/// Maximum time of such a pass.
const MAX_PASS_NS: u64 = 3_000_000_000;

/// Makes the run and, if stages are requested, two more passes: with packet timestamps, and with
/// scheduler tracing too, which costs more. The figures are those of the first run.
pub fn run_with_stages(
    client: &Client,
    network: Option<&Arc<LabNetwork>>,
    stop: &AtomicBool,
    emit: &mut dyn FnMut(EventKind),
) -> Result<(Record, Option<SessionError>), SessionError> {
    if client.plan.timestamps.is_none() {
        return run_client(client, network, stop, emit);
    }
    let (mut record, mut failure) = run_pass(client, TimestampLevel::None, network, stop, emit)?;
    if failure.is_none() && !record.interrupted {
        failure = explain_passes(client, stop, &mut record, emit);
    }
    record.plan.timestamps = client.plan.timestamps;
    record.plan.trace_on_ns = client.plan.trace_on_ns;
    Ok((record, failure))
}

/// Makes the timestamp passes. Their failure does not affect the figures of the run.
fn explain_passes(
    client: &Client,
    stop: &AtomicBool,
    record: &mut Record,
    emit: &mut dyn FnMut(EventKind),
) -> Option<SessionError> {
    for (pass_number, stamps) in (2..).zip([TimestampLevel::Packets, client.plan.timestamps]) {
        emit(EventKind::Pass {
            pass: pass_number,
            passes: 3,
            notes: describe_pass(&client.plan, stamps),
        });
        let (pass_record, failure) = match run_pass(client, stamps, None, stop, &mut |_| {}) {
            Ok(outcome) => outcome,
            // Interrupted between two passes.
            Err(SessionError::Interrupted) => {
                record.interrupted = true;
                return None;
            }
            Err(error) => {
                record.validity.push(pass_failed(&error));
                return Some(error);
            }
        };
        // An interrupted pass interrupts the command; its data so far is used.
        record.interrupted = pass_record.interrupted && failure.is_none();
        if stamps == TimestampLevel::Packets {
            add_stages(record, pass_record, failure.as_ref());
        } else {
            add_stage_parts(record, pass_record);
        }
        if failure.is_some() || record.interrupted {
            return failure;
        }
    }
    None
}

/// Returns the description of a timestamp pass: recorded data, and the condition that ends it.
fn describe_pass(plan: &Plan, stamps: TimestampLevel) -> String {
    let data = match stamps {
        TimestampLevel::None | TimestampLevel::Packets => "packet timestamps",
        TimestampLevel::Scheduler => "packet timestamps and scheduler wake-ups",
        TimestampLevel::Driver => "packet timestamps, scheduler wake-ups and receive driver events",
    };
    match plan.trace_on_ns {
        Some(above_ns) if stamps >= TimestampLevel::Driver => format!(
            "{data}, until a round trip takes longer than {}",
            format_nanos(above_ns as f64)
        ),
        _ => data.to_owned(),
    }
}

fn pass_failed(failure: &SessionError) -> Caveat {
    Caveat::new(
        CaveatId::NoStages,
        format!("the timestamp pass failed: {failure}"),
    )
}

/// Makes one pass.
fn run_pass(
    client: &Client,
    stamps: TimestampLevel,
    network: Option<&Arc<LabNetwork>>,
    stop: &AtomicBool,
    emit: &mut dyn FnMut(EventKind),
) -> Result<(Record, Option<SessionError>), SessionError> {
    let mut client = client.clone();
    if stamps < TimestampLevel::Driver {
        client.plan.trace_on_ns = None;
    }
    if !stamps.is_none() {
        shorten(&mut client.plan);
    }
    client.plan.timestamps = stamps;
    run_client(&client, network, stop, emit)
}

/// Shortens a timestamp pass to what it needs; a pass that waits for a slow round trip keeps the
/// duration of the run.
fn shorten(plan: &mut Plan) {
    plan.interval_ns = None;
    plan.omit_ns = 0;
    if plan.trace_on_ns.is_some() {
        return;
    }
    // At a fixed rate, the number of round trips sets the duration.
    let max_count = match plan.round_trip.rate_per_second {
        Some(rate) => MAX_PASS_ROUND_TRIPS.min((rate * MAX_PASS_NS).div_ceil(1_000_000_000)),
        None => MAX_PASS_ROUND_TRIPS,
    };
    plan.round_trips = plan.round_trips.map(|count| count.min(max_count));
    plan.duration_ns = plan.duration_ns.map(|time| time.min(MAX_PASS_NS));
}

/// Returns the difference of the medians of two runs in nanoseconds.
fn slower_by(slower: &Record, baseline: &Record) -> Option<i64> {
    let median = |record: &Record| record.summary.rtt_ns.map(|rtt| rtt.p50 as i64);
    Some(median(slower)? - median(baseline)?)
}

/// Fraction of the round trips that may lack a timestamp before a warning is added.
const MAX_INCOMPLETE_FRACTION: f64 = 0.05;

/// Fraction of the median by which the timestamp pass may be slower before a warning is added.
const MAX_SLOWDOWN_FRACTION: f64 = 0.5;

/// Adds the stages of a timestamp pass to the record of the run.
fn add_stages(record: &mut Record, pass_record: Record, failure: Option<&SessionError>) {
    let slowdown_ns = slower_by(&pass_record, record);
    let median = record.summary.rtt_ns.map_or(0, |rtt| rtt.p50);
    record.stages = pass_record.stages;
    record.stage_pass = pass_record.stage_pass.map(|pass| StagePass {
        timestamp_overhead_ns: slowdown_ns,
        ..pass
    });
    for caveat in pass_record.validity {
        if caveat.id == CaveatId::ClockUnknown {
            record.validity.push(caveat);
        }
    }
    let caveat = match (&record.stage_pass, failure) {
        (_, Some(failure)) => Some(pass_failed(failure)),
        (None, None) => Some(Caveat::new(
            CaveatId::NoStages,
            "the timestamp pass has no results: there are no stages",
        )),
        (Some(pass), None) if pass.round_trips == 0 && pass.incomplete > 0 => Some(Caveat::new(
            CaveatId::NoStages,
            "no packet has all of its timestamps: an interface on the path does not support them",
        )),
        (Some(pass), None) => few_stamps(pass)
            .or_else(|| slower_pass(slowdown_ns, median))
            .or_else(|| medians_do_not_add_up(pass)),
    };
    record.validity.extend(caveat);
}

fn few_stamps(pass: &StagePass) -> Option<Caveat> {
    let all = pass.round_trips + pass.incomplete;
    let share = pass.incomplete as f64 / all.max(1) as f64;
    (share > MAX_INCOMPLETE_FRACTION).then(|| {
        Caveat::new(
            CaveatId::StagesThin,
            format!(
                "{} of the round trips lack a timestamp: the stages are those of the others",
                format_share(share)
            ),
        )
    })
}

/// Returns a warning if the timestamp pass was much slower than the run that it explains.
fn slower_pass(slowdown_ns: Option<i64>, median_ns: u64) -> Option<Caveat> {
    let slowdown_ns = slowdown_ns.filter(|&slowdown_ns| slowdown_ns > 0)?;
    let share = slowdown_ns as f64 / median_ns.max(1) as f64;
    (share > MAX_SLOWDOWN_FRACTION).then(|| {
        Caveat::new(
            CaveatId::StagesDiffer,
            format!(
                "the timestamp pass was slower than the run by {}: its threads were placed or woken \
                 differently; pin both ends (--cpu 0/1) and disable idle states (--hold-latency)",
                format_share(share)
            ),
        )
    })
}

/// Fraction of the median by which the sum of the stages' medians may differ from it.
const MAX_SUM_ERROR: f64 = 0.05;

/// Returns a warning if the medians of the stages do not add up to the median round trip: then the
/// round trips are of several kinds.
fn medians_do_not_add_up(pass: &StagePass) -> Option<Caveat> {
    let median = pass.rtt_ns.filter(|rtt| rtt.p50 > 0)?.p50;
    let ratio = pass.sum_of_medians_ns as f64 / median as f64;
    ((ratio - 1.0).abs() > MAX_SUM_ERROR).then(|| {
        Caveat::new(
            CaveatId::StagesApart,
            format!(
                "the stages' medians add up to {} of the median round trip: round trips differ in \
                 kind (each is the sum of its own stages, and so are the means); pin both \
                 ends (--cpu 0/1) and disable idle states (--hold-latency)",
                format_share(ratio)
            ),
        )
    })
}

/// Splits the receive stages by the scheduler events of the second pass.
fn add_stage_parts(record: &mut Record, pass_record: Record) {
    let watching_ns = slower_by(&pass_record, record);
    record.timeline = pass_record.timeline;
    let Some(stage_pass) = &mut record.stage_pass else {
        return;
    };
    stage_pass.tracing_overhead_ns = watching_ns;
    if let Some(pass) = pass_record.stage_pass {
        // Notes that apply to both passes are listed once.
        let new_notes = pass.notes.into_iter();
        let new_notes: Vec<_> = new_notes
            .filter(|note| !stage_pass.notes.contains(note))
            .collect();
        stage_pass.notes.extend(new_notes);
    }
    for end in ["client", "server"] {
        let stage_name = format!("{end}-receive");
        let parts: Vec<RoundTripStage> = (pass_record.stages.iter())
            .filter(|stage| {
                PARTS
                    .iter()
                    .any(|part| stage.stage == format!("{end}-{part}"))
            })
            .cloned()
            .collect();
        if let Some(stage) = record
            .stages
            .iter_mut()
            .find(|stage| stage.stage == stage_name)
        {
            stage.parts = parts;
        }
    }
}

/// Parts of a receive stage.
const PARTS: [&str; 3] = ["softirq", "wake-up", "receive-call"];

/// Writes the timeline to a file; the record keeps the part that its diagram needs.
pub fn write_trace(file: &Path, runs: &mut [Record]) -> Result<(), CommandFailure> {
    let mut written = Ok(());
    for run in runs {
        let Some(timeline) = &mut run.timeline else {
            run.validity.push(Caveat::new(
                CaveatId::NoTimeline,
                format!(
                    "{} was not written: the run ended before it had a timeline",
                    file.display()
                ),
            ));
            continue;
        };
        let is_json = file
            .extension()
            .is_some_and(|extension| extension == "json");
        let (bytes, format) = if is_json {
            (chrome(timeline).into_bytes(), "trace-event")
        } else {
            (perfetto(timeline), "perfetto")
        };
        let extent = timeline.extent();
        timeline.keep_last(DIAGRAM_ROUND_TRIPS);
        match write_bytes(file, &bytes) {
            Ok(()) => {
                timeline.file = Some(TraceFile {
                    path: file.display().to_string(),
                    format: format.to_owned(),
                    ..extent
                });
            }
            Err(error) => written = Err(error.into()),
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::{RunKind, TransportProtocol};
    use linerate_stats::histogram::Histogram;

    use super::*;

    #[test]
    fn unreliable_stages_have_a_caveat() {
        let pass = |round_trips, left_out| StagePass {
            round_trips,
            incomplete: left_out,
            ..StagePass::default()
        };
        assert!(few_stamps(&pass(16_000, 1)).is_none());
        assert_eq!(
            few_stamps(&pass(245, 255)).unwrap().id,
            CaveatId::StagesThin
        );
        assert!(slower_pass(Some(1_300), 12_000).is_none());
        assert!(slower_pass(Some(-9_000), 12_000).is_none() && slower_pass(None, 0).is_none());
        assert_eq!(
            slower_pass(Some(32_500), 11_000).unwrap().id,
            CaveatId::StagesDiffer
        );
        let mut histogram = Histogram::new();
        histogram.record(10_000);
        let added = |sum_of_medians_ns| StagePass {
            sum_of_medians_ns,
            rtt_ns: histogram.summary(),
            ..StagePass::default()
        };
        for (sum, is_warned) in [
            (9_600, false),
            (10_400, false),
            (9_300, true),
            (10_700, true),
        ] {
            assert_eq!(
                medians_do_not_add_up(&added(sum)).is_some(),
                is_warned,
                "{sum}"
            );
        }
        assert!(medians_do_not_add_up(&StagePass::default()).is_none());
    }

    #[test]
    fn each_pass_says_what_it_notes() {
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "host");
        assert_eq!(
            describe_pass(&plan, TimestampLevel::Packets),
            "packet timestamps"
        );
        plan.trace_on_ns = Some(300_000);
        assert_eq!(
            describe_pass(&plan, TimestampLevel::Packets),
            "packet timestamps"
        );
        let last = describe_pass(&plan, TimestampLevel::Driver);
        assert!(last.ends_with("longer than 300 us"), "{last}");
    }

    #[test]
    fn a_pass_that_waits_for_something_is_not_cut_short() {
        let mut plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "host");
        plan.duration_ns = Some(60_000_000_000);
        let mut waiting = plan.clone();
        waiting.trace_on_ns = Some(1);
        shorten(&mut plan);
        shorten(&mut waiting);
        assert_eq!(plan.duration_ns, Some(MAX_PASS_NS));
        assert_eq!(waiting.duration_ns, Some(60_000_000_000));
        assert_eq!(plan.interval_ns, None);
    }
}
