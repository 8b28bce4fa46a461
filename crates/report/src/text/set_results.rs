//! Results of a set of runs as text, one block each.

use linerate_record::forward::SaturationCurve;
use linerate_record::run_set::SetResult;

use super::table::render_table;
use crate::conclusions::{Conclusion, conclusions_of};
use crate::forward;
use crate::style::{TextStyle, wrap};

impl Conclusion {
    fn render(self, style: &TextStyle) -> String {
        let grid = self.grid.map(|grid| grid.render(style));
        let explanation =
            (!self.explanation.is_empty()).then(|| wrap(&self.explanation, style.width).join("\n"));
        let blocks: Vec<String> = grid.into_iter().chain(explanation).collect();
        blocks.join("\n\n")
    }
}

/// Renders all results of a set, one block each.
pub(super) fn render_set_results(result: &SetResult, style: &TextStyle) -> Vec<String> {
    let mut blocks: Vec<String> = (conclusions_of(result).into_iter())
        .map(|part| part.render(style))
        .collect();
    blocks.extend(render_saturation(result, style));
    let compared = result.comparison.as_ref();
    blocks.extend(compared.map(|part| super::paired_comparison::render_comparison(part, style)));
    blocks.extend(
        result
            .sweep
            .as_ref()
            .map(|part| super::sweep::render_sweep(part, style)),
    );
    blocks.extend(
        result
            .tuning
            .as_ref()
            .map(|part| super::tuning::render_tuning(part, style)),
    );
    blocks
}

/// Renders packets per second by packets in flight, with the plateau of each sweep.
fn render_saturation(result: &SetResult, style: &TextStyle) -> Vec<String> {
    let sweeps = &result.saturation;
    if sweeps.is_empty() {
        return Vec::new();
    }
    let rows = sweeps.iter().flat_map(|sweep| {
        let bars = rate_bars(sweep, style);
        let rows = forward::saturation_rows(sweep).into_iter().zip(bars);
        rows.map(|(mut row, bar)| {
            row.insert(BAR_COLUMN, bar);
            row
        })
    });
    let mut headings = forward::SATURATION_HEADINGS.to_vec();
    headings.insert(BAR_COLUMN, "");
    let sentences = sweeps.iter().map(forward::describe_saturation);
    let lines: Vec<_> = sentences
        .flat_map(|sentences| wrap(&sentences, style.width))
        .collect();
    vec![
        render_table(&headings, rows.collect(), 0, style),
        lines.join("\n"),
    ]
}

/// Column of the bars, after the rates.
const BAR_COLUMN: usize = 4;
/// Characters of the longest bar.
const MAX_BAR_CHARS: usize = 14;

/// Draws the rates of a sweep as bars relative to its highest rate.
fn rate_bars(sweep: &SaturationCurve, style: &TextStyle) -> Vec<String> {
    let rates = sweep.points.iter().map(|point| point.packets_per_second);
    let highest = rates.clone().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    rates
        .map(|rate| {
            let signs = (rate / highest * MAX_BAR_CHARS as f64).round() as usize;
            let bar = style.glyph("█", "#").repeat(signs);
            format!("{bar:<MAX_BAR_CHARS$}")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use linerate_record::forward::SaturationPoint;

    use super::*;

    #[test]
    fn bars_show_the_rates_of_a_sweep() {
        let point = |tx_first: u64, rate: f64| SaturationPoint {
            tx_first,
            in_flight: 32 * tx_first,
            packets_per_second: rate,
            ..SaturationPoint::default()
        };
        let sweep = |cores, rates: [f64; 3]| SaturationCurve {
            cores,
            points: [1, 2, 4]
                .into_iter()
                .zip(rates)
                .map(|(at, rate)| point(at, rate))
                .collect(),
            ..SaturationCurve::default()
        };
        // Bars are relative to the highest rate of their own sweep.
        let result = SetResult {
            saturation: vec![sweep(1, [1e9, 2e9, 2e9]), sweep(2, [0.0, 1e6, 4e6])],
            ..SetResult::default()
        };
        let plain = TextStyle {
            color: false,
            width: 80,
            unicode: false,
            brief: false,
        };
        let mut text = render_saturation(&result, &plain);
        let (text, notes) = (text.remove(0), text.remove(0));
        let bars: Vec<usize> = (text.lines().skip(1))
            .map(|line| line.matches('#').count())
            .collect();
        assert_eq!(bars, [7, 14, 14, 0, 4, 14], "{text}");
        assert_eq!(notes.lines().count(), 2, "{notes}");
        let fits = |text: &str| text.lines().all(|line| line.chars().count() <= 80);
        assert!(fits(&text), "{text}");
        // The note on a disturbed sweep is longer than a line.
        let mut disturbed = result;
        for sweep in &mut disturbed.saturation {
            sweep
                .points
                .iter_mut()
                .for_each(|point| point.disturbed = true);
        }
        let notes = render_saturation(&disturbed, &plain).remove(1);
        assert!(fits(&notes) && notes.contains("core-disturbed"), "{notes}");
    }
}
