//! Tables of packet generator runs.

use linerate_record::generate::GenerateFigures;
use linerate_record::record::Record;
use linerate_stats::histogram::Quantiles;
use linerate_stats::units::{
    format_bit_rate, format_count, format_nanos, format_per_second, format_share,
};

use super::{MAX_LIST_ENTRIES, more_entries};
use crate::model::{Grid, or_unknown};
use crate::style::TextStyle;

/// Returns the tables of a run: load, losses and order, delay, rate error, flows.
pub(crate) fn generator_tables(record: &Record, style: &TextStyle) -> Vec<String> {
    let Some(figures) = record.generate.as_deref() else {
        return Vec::new();
    };
    let mut blocks = vec![load_table(record, figures)];
    blocks.push(loss_table(figures));
    blocks.push(time_table(record, figures));
    let mut blocks: Vec<String> = (blocks.into_iter().flatten())
        .map(|grid| grid.render(style))
        .collect();
    if let Some(error) = rate_error(record)
        && let Some(last) = blocks.last_mut()
    {
        last.push_str(&format!("\nrate error  {error}"));
    }
    if let Some(grid) = flow_table(figures, MAX_LIST_ENTRIES) {
        let mut text = grid.render(style);
        if figures.flows.len() > MAX_LIST_ENTRIES {
            text.push('\n');
            text.push_str(&more_entries(figures.flows.len() - MAX_LIST_ENTRIES, style));
        }
        blocks.push(text);
    }
    blocks
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
