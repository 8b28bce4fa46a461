//! A run, and beside it a second one with stamps that tells where its time went.

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

/// Round trips of a timeline that the record keeps, for its picture.
const PICTURE_TRIPS: u64 = 50;

/// Round trips that the stamped pass makes at most when nothing is waited for: more change no
/// median.
const ENOUGH_TRIPS: u64 = 16_000;

/// Longest time of such a pass.
const ENOUGH_NS: u64 = 3_000_000_000;

/// Runs it; where stages were asked for twice more: with the stamps of packets, and with an eye on
/// the scheduler as well, which costs more. The figures are those of the run without either.
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

/// The passes that explain. Whatever keeps one from its end, the run's figures stay.
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
            // Somebody wants the command to end, between two passes.
            Err(MeasureError::Interrupted) => {
                record.interrupted = true;
                return None;
            }
            Err(error) => {
                record.validity.push(cut_off(&error));
                return Some(error);
            }
        };
        // Whoever ends a pass ends the command: what was measured until then is here.
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

/// What one of the passes that explain notes, and what ends it.
fn noted(plan: &Plan, stamps: Stamping) -> String {
    let what = match stamps {
        Stamping::None | Stamping::Packets => "the stamps of packets",
        Stamping::Scheduler => "the scheduler's wake-ups as well",
        Stamping::Driver => "the scheduler's wake-ups and the receive driver's work as well",
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
    Doubt::new(
        "no-stages",
        format!("the stamped pass was cut off: {failure}"),
    )
}

/// One of the passes. What happens in those that explain is not what people watch.
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

/// A pass that waits for a slow answer lasts as long as the run did; any other ends when it has
/// enough.
fn shorten(plan: &mut Plan) {
    plan.interval_ns = None;
    plan.omit_ns = 0;
    if plan.trace_on_ns.is_some() {
        return;
    }
    // At a rate, an amount takes as long as the rate says.
    let enough = match plan.round_trip.rate_per_second {
        Some(rate) => ENOUGH_TRIPS.min((rate * ENOUGH_NS).div_ceil(1_000_000_000)),
        None => ENOUGH_TRIPS,
    };
    plan.round_trips = plan.round_trips.map(|trips| trips.min(enough));
    plan.duration_ns = plan.duration_ns.map(|time| time.min(ENOUGH_NS));
}

/// How much slower one run's median is than another's.
fn slower_by(one: &Record, other: &Record) -> Option<i64> {
    let median = |record: &Record| record.summary.rtt_ns.map(|rtt| rtt.p50 as i64);
    Some(median(one)? - median(other)?)
}

/// Share of the stamped trips that may lack a stamp before that is told.
const FEW: f64 = 0.05;

/// Share of the median by which the stamped pass may be slower before its stages are doubtful.
const ALIKE: f64 = 0.5;

/// Puts the stages beside the figures.
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
            "the stamped pass did not come to its results: there are no stages",
        )),
        (Some(pass), None) if pass.round_trips == 0 && pass.left_out > 0 => Some(Doubt::new(
            "no-stages",
            "no packet came with all of its stamps: an interface on the way does not stamp",
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
                "{} of the stamped round trips lack a stamp: the stages are those of the others",
                format_share(share)
            ),
        )
    })
}

/// Says so when the stamped pass was not like the run that it explains.
fn unlike(asking_ns: Option<i64>, median_ns: u64) -> Option<Doubt> {
    let asking = asking_ns.filter(|&asking| asking > 0)?;
    let share = asking as f64 / median_ns.max(1) as f64;
    (share > ALIKE).then(|| {
        Doubt::new(
            "stages-unlike",
            format!(
                "the stamped pass was slower by {} than the run: its threads were placed or woken \
                 otherwise; pin both ends (--cpu 0/1) and hold idle states off (--hold-latency)",
                format_share(share)
            ),
        )
    })
}

/// Share of the median by which the stages' medians may miss it.
const TOGETHER: f64 = 0.05;

/// Says so when the stages' medians do not add up to the trips' median: then there were trips of
/// several kinds, and no trip is made of all medians.
fn apart(pass: &StagePass) -> Option<Doubt> {
    let median = pass.rtt_ns.filter(|rtt| rtt.p50 > 0)?.p50;
    let ratio = pass.sum_of_medians_ns as f64 / median as f64;
    ((ratio - 1.0).abs() > TOGETHER).then(|| {
        Doubt::new(
            "stages-apart",
            format!(
                "the stages' medians add up to {} of the median round trip: round trips were of \
                 several kinds (each is the sum of its own stages, and so are the means); pin both \
                 ends (--cpu 0/1) and hold idle states off (--hold-latency)",
                format_share(ratio)
            ),
        )
    })
}

/// Puts what the scheduler did within the stages that it divides.
fn divide(record: &mut Record, watched: Record) {
    let watching_ns = slower_by(&watched, record);
    record.timeline = watched.timeline;
    let Some(own) = &mut record.stage_pass else {
        return;
    };
    own.watching_ns = watching_ns;
    if let Some(pass) = watched.stage_pass {
        // Either pass says what holds for both.
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

/// What the receipt of a message consists of.
const PARTS: [&str; 3] = ["softirq", "wake-up", "receive-call"];

/// Writes the timeline, and leaves of it in the record what a picture needs.
pub fn write_trace(file: &Path, runs: &mut [Record]) -> Result<(), Failure> {
    let mut written = Ok(());
    for run in runs {
        let Some(timeline) = &mut run.timeline else {
            run.validity.push(Doubt::new(
                "no-timeline",
                format!(
                    "{} was not written: the run ended before there was a timeline",
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
        assert_eq!(noted(&plan, Stamping::Packets), "the stamps of packets");
        plan.trace_on_ns = Some(300_000);
        assert_eq!(noted(&plan, Stamping::Packets), "the stamps of packets");
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
