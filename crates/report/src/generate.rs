//! Text and figures of packet generator runs.

use linerate_record::generate::IntendedLoad;
use linerate_record::plan::Plan;
use linerate_record::record::{Record, Summary};
use linerate_stats::units::{
    format_bit_rate, format_count, format_nanos, format_per_second, format_share,
};

use crate::model::{SummaryFigure, summary_figure};

/// Describes the load: `64 B frames from packet:eth0 to packet:eth1 at 10k/s`.
pub(crate) fn describe_load(plan: &Plan) -> String {
    let Some(plan) = plan.generate.as_deref() else {
        return "frames".to_owned();
    };
    let size_pattern = plan.template.as_ref().and_then(|it| it.size.as_deref());
    let frames = match size_pattern {
        Some(size) if !size.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{size} frames (mean {:.0} B)", plan.frame_bytes)
        }
        _ if plan.capture.is_some() => format!("captured frames (mean {:.0} B)", plan.frame_bytes),
        _ => format!("{} B frames", plan.frame_bytes),
    };
    let to = match &plan.receive {
        Some(receive) if *receive == plan.send => " and back".to_owned(),
        Some(receive) => format!(" to {receive}"),
        None => String::new(),
    };
    let rate = match (plan.load, plan.recorded_times) {
        (_, true) => "at recorded times".to_owned(),
        (IntendedLoad::Max, _) => "at the highest possible rate".to_owned(),
        (IntendedLoad::FrameRate(rate), _) => format!("at {}", format_per_second(rate)),
        (IntendedLoad::L1(bps), _) => format!("at {} (L1)", format_bit_rate(bps as f64)),
        (IntendedLoad::L2(bps), _) => format!("at {} (L2)", format_bit_rate(bps as f64)),
        (IntendedLoad::LineShare(share), _) => {
            format!("at {} of the line rate", format_share(share))
        }
    };
    format!("{frames} from {}{to} {rate}", plan.send)
}

/// Explains the headline figure of a run.
pub(crate) fn explain_headline(run: &Record) -> String {
    match (run.summary.loss_fraction, run.summary.packets_sent) {
        (Some(loss), _) => format!(
            "frames received; {} of the frames sent were lost",
            format_share(loss)
        ),
        (None, Some(sent)) => format!("{} frames sent; no receive port", format_count(sent)),
        _ => "frames received".to_owned(),
    }
}

/// Returns the figures of a summary.
pub(crate) fn generator_figures(summary: &Summary) -> Vec<SummaryFigure> {
    let count = |value: Option<u64>| value.map(format_count);
    vec![
        summary_figure(
            "sent",
            "frames accepted by the port",
            count(summary.packets_sent),
        ),
        summary_figure(
            "received",
            "frames of this run that were received",
            count(summary.packets_received),
        ),
        summary_figure(
            "rate",
            "frames received over the sending time",
            summary.packets_per_second.map(format_per_second),
        ),
        summary_figure("lost", "frames that were not received", count(summary.lost)),
        summary_figure(
            "loss",
            "share of the frames sent that was not received",
            summary.loss_fraction.map(format_share),
        ),
        summary_figure(
            "out of order",
            "frames received after one with a higher number",
            count(summary.out_of_order),
        ),
        summary_figure(
            "duplicates",
            "frames received more than once",
            count(summary.duplicates),
        ),
    ]
}

/// Describes the run: flows, duration, threads, frame sizes.
pub(crate) fn describe_run(plan: &Plan) -> Vec<String> {
    let Some(generate) = plan.generate.as_deref() else {
        return Vec::new();
    };
    let count_of = |count: u64, noun: &str| match count {
        1 => format!("1 {noun}"),
        n => format!("{} {noun}s", format_count(n)),
    };
    let mut parts = vec![count_of(generate.flows.into(), "flow")];
    parts.extend(generate.frames.map(|frames| count_of(frames, "frame")));
    parts.extend(plan.duration_ns.map(|time| format_nanos(time as f64)));
    parts.push(count_of(generate.threads.into(), "polling thread"));
    parts.push(match generate.size_fitted {
        true => format!(
            "frame sizes include the FCS (no size requested: {} B is the smallest for these headers, a sequence number and a timestamp)",
            generate.frame_bytes
        ),
        false => "frame sizes include the FCS".to_owned(),
    });
    parts
}
