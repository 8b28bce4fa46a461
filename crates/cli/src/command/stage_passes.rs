//! A run followed by timestamp passes that show where its time went.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use linerate_measure::{Client, MeasureError, Network};
use linerate_metric::event::What;
use linerate_metric::plan::{Plan, Stamping};
use linerate_metric::record::{Doubt, Record, Stage, StagePass};
use linerate_metric::timeline::TraceFile;
use linerate_metric::units::{format_nanos, format_share};
use linerate_report::store::write_bytes;
use linerate_report::trace::{chrome, perfetto};

use crate::failure::Failure;

/// Number of round trips of a timeline that the record keeps, for its diagram.
const PICTURE_TRIPS: u64 = 50;

/// Maximum number of round trips of a timestamp pass: more do not change a median. A pass that
/// waits for a slow round trip has no such limit.
const ENOUGH_TRIPS: u64 = 16_000;

/// Maximum time of such a pass.
const ENOUGH_NS: u64 = 3_000_000_000;

/// Makes the run and, if stages are requested, two more passes: with packet timestamps, and with
/// scheduler tracing too, which costs more. The figures are those of the first run.
pub fn run(
    client: &Client,
    network: Option<&Arc<Network>>,
    stop: &AtomicBool,
    emit: &mut dyn FnMut(What),
) -> Result<(Record, Option<MeasureError>), MeasureError> {
    if client.plan.stamps.is_none() {
        return client.run_within(network, stop, emit);
    }
    let (mut record, mut failure) = pass(client, Stamping::None, network, stop, emit)?;
    if failure.is_none() && !record.interrupted {
        failure = explain_passes(client, stop, &mut record, emit);
    }
    record.plan.stamps = client.plan.stamps;
    record.plan.trace_on_ns = client.plan.trace_on_ns;
    Ok((record, failure))
}

/// Makes the timestamp passes. Their failure does not affect the figures of the run.
fn explain_passes(
    client: &Client,
    stop: &AtomicBool,
    record: &mut Record,
    emit: &mut dyn FnMut(What),
) -> Option<MeasureError> {
    for (pass_number, stamps) in (2..).zip([Stamping::Packets, client.plan.stamps]) {
        emit(What::Pass {
            pass: pass_number,
            passes: 3,
            notes: noted(&client.plan, stamps),
        });
        let (found, failure) = match pass(client, stamps, None, stop, &mut |_| {}) {
            Ok(ran) => ran,
            // Interrupted between two passes.
            Err(MeasureError::Interrupted) => {
                record.interrupted = true;
                return None;
            }
            Err(error) => {
                record.validity.push(cut_off(&error));
                return Some(error);
            }
        };
        // An interrupted pass interrupts the command; its data so far is used.
        record.interrupted = found.interrupted && failure.is_none();
        if stamps == Stamping::Packets {
            explain(record, found, failure.as_ref());
        } else {
            divide(record, found);
        }
        if failure.is_some() || record.interrupted {
            return failure;
        }
    }
    None
}

/// Returns the description of a timestamp pass: recorded data, and the condition that ends it.
fn noted(plan: &Plan, stamps: Stamping) -> String {
    let what = match stamps {
        Stamping::None | Stamping::Packets => "packet timestamps",
        Stamping::Scheduler => "packet timestamps and scheduler wake-ups",
        Stamping::Driver => "packet timestamps, scheduler wake-ups and receive driver events",
    };
    match plan.trace_on_ns {
        Some(above_ns) if stamps >= Stamping::Driver => format!(
            "{what}, until a round trip takes longer than {}",
            format_nanos(above_ns as f64)
        ),
        _ => what.to_owned(),
    }
}

fn cut_off(failure: &MeasureError) -> Doubt {
    Doubt::new("no-stages", format!("the timestamp pass failed: {failure}"))
}

/// Makes one pass.
fn pass(
    client: &Client,
    stamps: Stamping,
    network: Option<&Arc<Network>>,
    stop: &AtomicBool,
    emit: &mut dyn FnMut(What),
) -> Result<(Record, Option<MeasureError>), MeasureError> {
    let mut client = client.clone();
    if stamps < Stamping::Driver {
        client.plan.trace_on_ns = None;
    }
    if !stamps.is_none() {
        shorten(&mut client.plan);
    }
    client.plan.stamps = stamps;
    client.run_within(network, stop, emit)
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
    let enough = match plan.round_trip.rate_per_second {
        Some(rate) => ENOUGH_TRIPS.min((rate * ENOUGH_NS).div_ceil(1_000_000_000)),
        None => ENOUGH_TRIPS,
    };
    plan.round_trips = plan.round_trips.map(|trips| trips.min(enough));
    plan.duration_ns = plan.duration_ns.map(|time| time.min(ENOUGH_NS));
}

/// Returns the difference of the medians of two runs in nanoseconds.
fn slower_by(one: &Record, other: &Record) -> Option<i64> {
    let median = |record: &Record| record.summary.rtt_ns.map(|rtt| rtt.p50 as i64);
    Some(median(one)? - median(other)?)
}

/// Fraction of the round trips that may lack a timestamp before a warning is added.
const FEW: f64 = 0.05;

/// Fraction of the median by which the timestamp pass may be slower before a warning is added.
const ALIKE: f64 = 0.5;

/// Adds the stages of a timestamp pass to the record of the run.
fn explain(record: &mut Record, stamped: Record, failure: Option<&MeasureError>) {
    let asking_ns = slower_by(&stamped, record);
    let median = record.summary.rtt_ns.map_or(0, |rtt| rtt.p50);
    record.stages = stamped.stages;
    record.stage_pass = stamped
        .stage_pass
        .map(|pass| StagePass { asking_ns, ..pass });
    for doubt in stamped.validity {
        if doubt.doubt == "clock-unknown" {
            record.validity.push(doubt);
        }
    }
    let doubt = match (&record.stage_pass, failure) {
        (_, Some(failure)) => Some(cut_off(failure)),
        (None, None) => Some(Doubt::new(
            "no-stages",
            "the timestamp pass has no results: there are no stages",
        )),
        (Some(pass), None) if pass.round_trips == 0 && pass.left_out > 0 => Some(Doubt::new(
            "no-stages",
            "no packet has all of its timestamps: an interface on the path does not support them",
        )),
        (Some(pass), None) => few_stamps(pass)
            .or_else(|| unlike(asking_ns, median))
            .or_else(|| apart(pass)),
    };
    record.validity.extend(doubt);
}

fn few_stamps(pass: &StagePass) -> Option<Doubt> {
    let all = pass.round_trips + pass.left_out;
    let share = pass.left_out as f64 / all.max(1) as f64;
    (share > FEW).then(|| {
        Doubt::new(
            "stages-thin",
            format!(
                "{} of the round trips lack a timestamp: the stages are those of the others",
                format_share(share)
            ),
        )
    })
}

/// Returns a warning if the timestamp pass was much slower than the run that it explains.
fn unlike(asking_ns: Option<i64>, median_ns: u64) -> Option<Doubt> {
    let asking = asking_ns.filter(|&asking| asking > 0)?;
    let share = asking as f64 / median_ns.max(1) as f64;
    (share > ALIKE).then(|| {
        Doubt::new(
            "stages-unlike",
            format!(
                "the timestamp pass was slower than the run by {}: its threads were placed or woken \
                 differently; pin both ends (--cpu 0/1) and disable idle states (--hold-latency)",
                format_share(share)
            ),
        )
    })
}

/// Fraction of the median by which the sum of the stages' medians may differ from it.
const TOGETHER: f64 = 0.05;

/// Returns a warning if the medians of the stages do not add up to the median round trip: then the
/// round trips are of several kinds.
fn apart(pass: &StagePass) -> Option<Doubt> {
    let median = pass.rtt_ns.filter(|rtt| rtt.p50 > 0)?.p50;
    let ratio = pass.sum_of_medians_ns as f64 / median as f64;
    ((ratio - 1.0).abs() > TOGETHER).then(|| {
        Doubt::new(
            "stages-apart",
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
fn divide(record: &mut Record, watched: Record) {
    let watching_ns = slower_by(&watched, record);
    record.timeline = watched.timeline;
    let Some(own) = &mut record.stage_pass else {
        return;
    };
    own.watching_ns = watching_ns;
    if let Some(pass) = watched.stage_pass {
        // Notes that apply to both passes are listed once.
        let more = pass.notes.into_iter();
        let more: Vec<_> = more.filter(|note| !own.notes.contains(note)).collect();
        own.notes.extend(more);
    }
    for end in ["client", "server"] {
        let whole = format!("{end}-receive");
        let parts: Vec<Stage> = (watched.stages.iter())
            .filter(|stage| {
                PARTS
                    .iter()
                    .any(|part| stage.stage == format!("{end}-{part}"))
            })
            .cloned()
            .collect();
        if let Some(stage) = record.stages.iter_mut().find(|stage| stage.stage == whole) {
            stage.parts = parts;
        }
    }
}

/// Parts of a receive stage.
const PARTS: [&str; 3] = ["softirq", "wake-up", "receive-call"];

/// Writes the timeline to a file; the record keeps the part that its diagram needs.
pub fn write_trace(file: &Path, runs: &mut [Record]) -> Result<(), Failure> {
    let mut written = Ok(());
    for run in runs {
        let Some(timeline) = &mut run.timeline else {
            run.validity.push(Doubt::new(
                "no-timeline",
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
        timeline.keep_last(PICTURE_TRIPS);
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
    use super::*;
    use linerate_metric::histogram::Histogram;
    use linerate_metric::plan::{Kind, Protocol};

    #[test]
    fn doubtful_stages_are_told() {
        let pass = |round_trips, left_out| StagePass {
            round_trips,
            left_out,
            ..StagePass::default()
        };
        assert!(few_stamps(&pass(16_000, 1)).is_none());
        assert_eq!(few_stamps(&pass(245, 255)).unwrap().doubt, "stages-thin");
        assert!(unlike(Some(1_300), 12_000).is_none());
        assert!(unlike(Some(-9_000), 12_000).is_none() && unlike(None, 0).is_none());
        assert_eq!(unlike(Some(32_500), 11_000).unwrap().doubt, "stages-unlike");
        let mut trips = Histogram::new();
        trips.record(10_000);
        let added = |sum_of_medians_ns| StagePass {
            sum_of_medians_ns,
            rtt_ns: trips.summary(),
            ..StagePass::default()
        };
        for (sum, told) in [
            (9_600, false),
            (10_400, false),
            (9_300, true),
            (10_700, true),
        ] {
            assert_eq!(apart(&added(sum)).is_some(), told, "{sum}");
        }
        assert!(apart(&StagePass::default()).is_none());
    }

    #[test]
    fn each_pass_says_what_it_notes() {
        let mut plan = Plan::new(Kind::Latency, Protocol::Udp, "host");
        assert_eq!(noted(&plan, Stamping::Packets), "packet timestamps");
        plan.trace_on_ns = Some(300_000);
        assert_eq!(noted(&plan, Stamping::Packets), "packet timestamps");
        let last = noted(&plan, Stamping::Driver);
        assert!(last.ends_with("longer than 300 us"), "{last}");
    }

    #[test]
    fn a_pass_that_waits_for_something_is_not_cut_short() {
        let mut plan = Plan::new(Kind::Latency, Protocol::Udp, "host");
        plan.duration_ns = Some(60_000_000_000);
        let mut waiting = plan.clone();
        waiting.trace_on_ns = Some(1);
        shorten(&mut plan);
        shorten(&mut waiting);
        assert_eq!(plan.duration_ns, Some(ENOUGH_NS));
        assert_eq!(waiting.duration_ns, Some(60_000_000_000));
        assert_eq!(plan.interval_ns, None);
    }
}
