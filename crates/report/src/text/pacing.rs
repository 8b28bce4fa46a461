//! Pacing as text: rate error, lateness, arrival gaps, delays.

use linerate_record::record::{DirectionFigures, Record};
use linerate_stats::histogram::Quantiles;
use linerate_stats::units::{format_nanos, format_share};

use super::table::render_table;
use crate::model::{self, or_unknown};
use crate::style::TextStyle;

/// Renders how precisely the rate was kept, and the recorded delays; `None` for a run without
/// either.
pub(super) fn render_pacing(record: &Record, serving: bool, style: &TextStyle) -> Option<String> {
    let has_delay = |figures: &DirectionFigures| figures.summary.one_way_delay_ns.is_some();
    if record.plan.rate_bps.is_none() && !record.directions.iter().any(has_delay) {
        return None;
    }
    let mut rows = Vec::new();
    for figures in &record.directions {
        let summary = &figures.summary;
        let kinds = [
            ("lateness", summary.lateness_ns),
            ("arrival gap", summary.arrival_gap_ns),
            ("delay variation", summary.delay_variation_ns),
            ("one-way delay", summary.one_way_delay_ns),
        ];
        // The first two describe the sender's timers, the others the path.
        let kinds = kinds.into_iter().skip(if style.brief { 2 } else { 0 });
        let mut error = Some(or_unknown(summary.rate_error, format_signed));
        for (name, quantiles) in kinds {
            if let Some(quantiles) = quantiles {
                let mut row = vec![
                    model::direction_name(figures.direction, serving).to_owned(),
                    error.take().unwrap_or_default(),
                    name.to_owned(),
                ];
                row.extend(quantile_cells(&quantiles));
                rows.push(row);
            }
        }
    }
    let headings = [
        "direction",
        "rate error",
        "time",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
    ];
    (!rows.is_empty()).then(|| render_table(&headings, rows, 3, style))
}

/// Formats a relative error: `+0.02 %`, `-1.50 %`.
fn format_signed(error: f64) -> String {
    let sign = if error < 0.0 { '-' } else { '+' };
    format!("{sign}{}", format_share(error.abs()))
}

fn quantile_cells(quantiles: &Quantiles) -> [String; 5] {
    [
        quantiles.p50,
        quantiles.p90,
        quantiles.p99,
        quantiles.p99_9,
        quantiles.max,
    ]
    .map(|value| format_nanos(value as f64))
}
