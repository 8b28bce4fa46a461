//! Packet generator runs: load, figures, tables of losses, delays and flows.

use linerate_record::generate::{GenerateFigures, IntendedLoad};
use linerate_record::plan::Plan;
use linerate_record::record::{Record, Summary};
use linerate_stats::histogram::Quantiles;
use linerate_stats::units::{
    format_bit_rate, format_count, format_nanos, format_per_second, format_share,
};

use crate::model::{Grid, SummaryFigure, count_of, or_unknown, summary_figure};

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

/// Describes the difference between offered and intended load: `-0.012 %`.
pub(crate) fn rate_error(record: &Record) -> Option<String> {
    let error = record.summary.rate_error?;
    let sign = if error < 0.0 { '-' } else { '+' };
    Some(format!("{sign}{}", format_share(error.abs())))
}

/// Returns the table of intended, offered and received load.
pub(crate) fn load_table(record: &Record, figures: &GenerateFigures) -> Option<Grid> {
    let mut rows = Vec::new();
    let intended = record
        .plan
        .generate
        .as_ref()
        .and_then(|plan| plan.intended_fps);
    if let Some(intended) = intended {
        let empty_cell = String::new;
        rows.push(vec![
            "intended".to_owned(),
            empty_cell(),
            format_per_second(intended),
            empty_cell(),
            empty_cell(),
        ]);
    }
    rows.push(vec![
        "offered".to_owned(),
        format_count(figures.sent),
        format_per_second(figures.offered_fps),
        format_bit_rate(figures.offered_l2_bps),
        format_bit_rate(figures.offered_l1_bps),
    ]);
    if figures.received.is_some() {
        rows.push(vec![
            "received".to_owned(),
            or_unknown(figures.received, format_count),
            or_unknown(figures.forwarding_fps, format_per_second),
            or_unknown(figures.forwarding_l2_bps, format_bit_rate),
            or_unknown(figures.forwarding_l1_bps, format_bit_rate),
        ]);
    }
    Grid::new(&["load", "frames", "frames/s", "L2", "L1"], rows, 1)
}

/// Returns the table of losses and order; `None` without a receive port.
pub(crate) fn loss_table(figures: &GenerateFigures) -> Option<Grid> {
    figures.received?;
    let headings = [
        "lost",
        "loss",
        "out of order",
        "duplicates",
        "corrupted",
        "unrelated",
    ];
    let row = vec![
        or_unknown(figures.lost, format_count),
        or_unknown(figures.loss_fraction, format_share),
        or_unknown(figures.out_of_order, format_count),
        or_unknown(figures.duplicates, format_count),
        or_unknown(figures.corrupted, format_count),
        format_count(figures.unrelated),
    ];
    Grid::new(&headings, vec![row], 0)
}

/// Returns the table of one-way delay and of lateness at the sender.
pub(crate) fn time_table(record: &Record, figures: &GenerateFigures) -> Option<Grid> {
    let row = |name: &str, times: &Quantiles| {
        let mut row = vec![
            name.to_owned(),
            format_nanos(times.min as f64),
            format_nanos(times.mean),
        ];
        let rest = [times.p50, times.p90, times.p99, times.p99_9, times.max];
        row.extend(rest.map(|time| format_nanos(time as f64)));
        row
    };
    let mut rows = Vec::new();
    rows.extend(
        figures
            .one_way_delay_ns
            .map(|times| row("one-way delay", &times)),
    );
    rows.extend(
        (record.summary.lateness_ns)
            .filter(|_| figures.sent > 0)
            .map(|times| row("lateness", &times)),
    );
    let headings = ["time", "min", "mean", "p50", "p90", "p99", "p99.9", "max"];
    Grid::new(&headings, rows, 1)
}

/// Returns the table of the first flows; `None` for a single flow.
pub(crate) fn flow_table(figures: &GenerateFigures, max_rows: usize) -> Option<Grid> {
    if figures.flows.len() < 2 {
        return None;
    }
    let corrupted = figures.flows.iter().any(|flow| flow.corrupted > 0);
    let rows = figures.flows.iter().take(max_rows).map(|flow| {
        let delay = |quantile: fn(&Quantiles) -> u64| {
            let times = flow.one_way_delay_ns.as_ref();
            or_unknown(times, |times| format_nanos(quantile(times) as f64))
        };
        let mut row = vec![flow.flow.to_string()];
        row.extend([flow.sent, flow.received, flow.lost].map(format_count));
        row.extend(corrupted.then(|| format_count(flow.corrupted)));
        row.extend([
            format_count(flow.out_of_order),
            delay(|times| times.p50),
            delay(|times| times.p99),
            delay(|times| times.max),
        ]);
        row
    });
    let first = match figures.flows_per_entry {
        0 | 1 => "flow".to_owned(),
        flows_per_row => format!("{flows_per_row} flows"),
    };
    let mut headings = vec![&*first, "sent", "received", "lost"];
    headings.extend(corrupted.then_some("corrupted"));
    headings.extend(["out of order", "p50", "p99", "max"]);
    Grid::new(&headings, rows.collect(), 0)
}
