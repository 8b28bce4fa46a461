//! Flow diagram of lost datagrams by place.

use linerate_record::record::Record;
use linerate_stats::units::{format_count, format_share};

use super::with_micro_sign;
use crate::phrases;
use crate::svg::{LossFlow, NARROW_SIZE, WIDE_SIZE, escape_markup};

/// Renders one diagram per direction; empty for a run without losses or with an unknown number of
/// packets received.
pub(super) fn loss_flows(run: &Record) -> String {
    let mut out = String::new();
    for figures in &run.directions {
        let mut losses: Vec<_> = run
            .losses
            .iter()
            .filter(|loss| loss.direction == figures.direction && loss.packets > 0)
            .collect();
        let Some(received) = figures
            .summary
            .packets_received
            .filter(|_| !losses.is_empty())
        else {
            continue;
        };
        losses.sort_by_key(|loss| {
            // In path order; unknown points last.
            let point = loss.place.known();
            (point.is_none(), point)
        });
        let received = received.saturating_sub(figures.summary.duplicates.unwrap_or(0));
        let lost: u64 = losses.iter().map(|loss| loss.packets).sum();
        let sent = figures
            .summary
            .packets_sent
            .unwrap_or(0)
            .max(received + lost);
        let share = |count: u64| {
            with_micro_sign(&format!(
                "{} ({})",
                format_count(count),
                format_share(count as f64 / sent.max(1) as f64)
            ))
        };
        let flow = LossFlow {
            title: format!(
                "Datagrams sent, lost and received, {}",
                phrases::recorded_direction(run, figures.direction)
            ),
            sent: (format!("{} sent", format_count(sent)), sent),
            losses: losses
                .iter()
                .map(|loss| (loss.place.to_string(), loss.packets, share(loss.packets)))
                .collect(),
            received: (share(received), "received".to_owned()),
        };
        out.push_str(&format!(
            "<figure class=\"flow\">\n<figcaption><h4>{}</h4></figcaption>\n<div class=\"canvas\">{}{}</div>\n</figure>\n",
            escape_markup(&flow.title),
            flow.draw(WIDE_SIZE),
            flow.draw(NARROW_SIZE)
        ));
    }
    out
}
