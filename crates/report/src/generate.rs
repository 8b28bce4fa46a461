//! Text and figures of packet generator runs.

use linerate_metric::generate::Load;
use linerate_metric::plan::Plan;
use linerate_metric::record::{Record, Summary};
use linerate_metric::units::{
    format_bit_rate, format_count, format_nanos, format_per_second, format_share,
};

use crate::figures::{Figure, figure};

/// Describes the load: `64 B frames from packet:eth0 to packet:eth1 at 10k/s`.
pub(crate) fn title(plan: &Plan) -> String {
    let Some(plan) = plan.generate.as_deref() else {
        return "frames".to_owned();
    };
    let asked = plan.template.as_ref().and_then(|it| it.size.as_deref());
    let frames = match asked {
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
        (Load::Max, _) => "at the highest possible rate".to_owned(),
        (Load::Frames(rate), _) => format!("at {}", format_per_second(rate)),
        (Load::L1(bps), _) => format!("at {} (L1)", format_bit_rate(bps as f64)),
        (Load::L2(bps), _) => format!("at {} (L2)", format_bit_rate(bps as f64)),
        (Load::Line(share), _) => format!("at {} of the line rate", format_share(share)),
    };
    format!("{frames} from {}{to} {rate}", plan.send)
}

/// Explains the headline figure of a run.
pub(crate) fn meaning(run: &Record) -> String {
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
pub(crate) fn figures(summary: &Summary) -> Vec<Figure> {
    let count = |value: Option<u64>| value.map(format_count);
    vec![
        figure(
            "sent",
            "frames accepted by the port",
            count(summary.packets_sent),
        ),
        figure(
            "received",
            "frames of this run that were received",
            count(summary.packets_received),
        ),
        figure(
            "rate",
            "frames received over the sending time",
            summary.packets_per_second.map(format_per_second),
        ),
        figure("lost", "frames that were not received", count(summary.lost)),
        figure(
            "loss",
            "share of the frames sent that was not received",
            summary.loss_fraction.map(format_share),
        ),
        figure(
            "out of order",
            "frames received after one with a higher number",
            count(summary.out_of_order),
        ),
        figure(
            "duplicates",
            "frames received more than once",
            count(summary.duplicates),
        ),
    ]
}

/// Describes the run: flows, duration, threads, frame sizes.
pub(crate) fn details(plan: &Plan) -> Vec<String> {
    let Some(own) = plan.generate.as_deref() else {
        return Vec::new();
    };
    let many = |count: u64, one: &str| match count {
        1 => format!("1 {one}"),
        n => format!("{} {one}s", format_count(n)),
    };
    let mut words = vec![many(own.flows.into(), "flow")];
    words.extend(own.frames.map(|frames| many(frames, "frame")));
    words.extend(plan.duration_ns.map(|time| format_nanos(time as f64)));
    words.push(many(own.threads.into(), "polling thread"));
    words.push(match own.size_fitted {
        true => format!(
            "frame sizes include the FCS (no size requested: {} B is the smallest for these headers, a sequence number and a timestamp)",
            own.frame_bytes
        ),
        false => "frame sizes include the FCS".to_owned(),
    });
    words
}
