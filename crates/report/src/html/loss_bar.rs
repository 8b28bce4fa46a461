//! What became of the datagrams that were sent: one bar a direction, of those that arrived and those
//! that were lost at each place.

use linerate_metric::record::Record;
use linerate_metric::units::{format_count, format_share};

use super::pretty;
use crate::svg::escape;

/// Width of a bar in units of the drawing, and the least that a place with any loss gets.
const WIDTH: f64 = 600.0;
const LEAST: f64 = 3.0;

/// Nothing for a run that lost nothing, or of which it is not known how much was sent.
pub(super) fn bars(run: &Record) -> String {
    let mut out = String::new();
    for way in &run.directions {
        let summary = &way.summary;
        let losses: Vec<_> = run
            .losses
            .iter()
            .filter(|loss| loss.direction == way.direction && loss.packets > 0)
            .collect();
        let Some(arrived) = summary.packets_received.filter(|_| !losses.is_empty()) else {
            continue;
        };
        let arrived = arrived.saturating_sub(summary.duplicates.unwrap_or(0));
        let mut parts = vec![("arrived".to_owned(), arrived)];
        parts.extend(losses.iter().map(|loss| (loss.place.clone(), loss.packets)));
        let whole: f64 = parts.iter().map(|(_, packets)| *packets as f64).sum();
        let wide: Vec<f64> = parts
            .iter()
            .map(|(_, packets)| (*packets as f64 / whole.max(1.0) * WIDTH).max(LEAST))
            .collect();
        // What small parts were given comes from the widest.
        let surplus = wide.iter().sum::<f64>() - WIDTH;
        let widest = wide.iter().copied().fold(0.0, f64::max);
        out.push_str(&format!(
            "<svg class=\"flow\" role=\"img\" viewBox=\"0 0 {WIDTH} 22\"><title>where the datagrams went, {}</title>",
            way.direction
        ));
        let mut left = 0.0;
        let mut reduced = false;
        let mut key = String::new();
        for (number, ((name, packets), width)) in parts.iter().zip(&wide).enumerate() {
            let mut width = *width;
            if !reduced && width >= widest {
                reduced = true;
                width = (width - surplus).max(LEAST);
            }
            let share = pretty(&format_share(*packets as f64 / whole.max(1.0)));
            let color = number % 6;
            let text = escape(&format!("{name}: {} ({share})", format_count(*packets)));
            out.push_str(&format!(
                "<rect class=\"c{color}\" x=\"{left:.1}\" y=\"1\" width=\"{width:.1}\" height=\"20\" fill=\"var(--c)\"/>"
            ));
            key.push_str(&format!(
                "<span class=\"c{color}\"><b style=\"color:var(--c)\">■</b> {text}</span> "
            ));
            left += width;
        }
        out.push_str(&format!(
            "</svg>\n<p class=\"muted\">{}: {key}</p>\n",
            way.direction
        ));
    }
    out
}
