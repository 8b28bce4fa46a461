//! Result of a row, as a line of the table and as an object of results.json.

use std::fs;
use std::path::Path;

use linerate_stats::statistics::{median, paired_ratio};
use serde::Serialize;

use crate::error::BenchError;
use crate::pairs::{CacheLineState, FigurePair, RowMeasurement};
use crate::row::{BenchRow, RatioMark};

/// Path of the results, from the root of the repository.
pub const RESULTS_PATH: &str = "target/bench/results.json";

/// Object of results.json.
#[derive(Debug, Serialize)]
pub struct RowResult {
    pub name: &'static str,
    against: String,
    unit: &'static str,
    /// Median over the pairs, of linerate.
    ours: f64,
    /// Median over the pairs, of the program compared with.
    theirs: f64,
    /// Median of ours / theirs over the pairs.
    ratio: f64,
    low: f64,
    high: f64,
    pairs: usize,
    mark: String,
    /// True if the mark holds; `None` if the machine was not in the state that the row needs.
    pub holds: Option<bool>,
    state: Option<CacheLineState>,
    /// Cache-line round trip of each pair: median of the values before, between and after the runs.
    pair_line_rtt_ns: Vec<u64>,
    /// Share of CPU time stolen by the hypervisor, 0 to 1.
    steal: Option<f64>,
    #[serde(skip)]
    pairs_tried: usize,
}

impl RowResult {
    /// Result of a row.
    pub fn from_measurement(row: &BenchRow, measured: &RowMeasurement) -> Self {
        let figures: Vec<(f64, f64)> = (measured.pairs.iter())
            .map(|pair| (pair.ours, pair.theirs))
            .collect();
        let median_of = |side: fn(&FigurePair) -> f64| {
            let values: Vec<f64> = measured.pairs.iter().map(side).collect();
            median(&values).expect("a row without pairs is not measured")
        };
        let (ours, theirs) = (median_of(|pair| pair.ours), median_of(|pair| pair.theirs));
        // Pairs with a zero carry no information; without other pairs the row has no ratio.
        let estimate = paired_ratio(&figures);
        let (ratio, low, high) = estimate.map_or((f64::NAN, f64::NAN, f64::NAN), |estimate| {
            (estimate.median, estimate.low, estimate.high)
        });
        Self {
            name: row.name,
            against: match measured.peer {
                "" => row.against.to_owned(),
                peer => format!("{} ({peer})", row.against),
            },
            unit: row.unit,
            ours,
            theirs,
            ratio,
            low,
            high,
            pairs: figures.len(),
            mark: row.mark.to_string(),
            holds: judge(row.mark, measured.is_suitable, (ratio, low, high)),
            state: measured.state,
            pair_line_rtt_ns: (measured.pairs.iter())
                .filter_map(|pair| pair.line_rtt_ns)
                .map(|mut three| {
                    three.sort_unstable();
                    three[1]
                })
                .collect(),
            steal: measured.steal,
            pairs_tried: measured.pairs_tried,
        }
    }
}

impl RowResult {
    /// Row of the document.
    pub fn markdown(&self, date: &str) -> String {
        let side = |value| {
            format!("{} {}", format_four_digits(value), self.unit)
                .trim_end()
                .to_owned()
        };
        format!(
            "| {} | {} | {} | {} | {:.3} [{:.3}, {:.3}] | {}/{} | {} | {} | {} | {date} |",
            self.name,
            self.against,
            side(self.ours),
            side(self.theirs),
            self.ratio,
            self.low,
            self.high,
            self.pairs,
            self.pairs_tried,
            self.mark,
            self.verdict(),
            self.state_text(),
        )
    }

    fn verdict(&self) -> &'static str {
        match self.holds {
            Some(true) => "yes",
            Some(false) => "NO",
            None if self.mark == "-" => "-",
            None => "?",
        }
    }

    fn state_text(&self) -> &'static str {
        match self.state {
            Some(CacheLineState::Near) => "near",
            Some(CacheLineState::Far) => "far",
            None => "-",
        }
    }
}

fn judge(mark: RatioMark, is_suitable: bool, (ratio, low, high): (f64, f64, f64)) -> Option<bool> {
    (is_suitable && mark != RatioMark::Informational).then(|| mark.is_met(ratio, low, high))
}

/// Writes all results so far.
pub fn write_results(results: &[RowResult]) -> Result<(), BenchError> {
    let path = Path::new(RESULTS_PATH);
    let dir = path.parent().expect("the path has a folder");
    let text = serde_json::to_string_pretty(results).expect("outcomes can be represented in JSON");
    fs::create_dir_all(dir)
        .and_then(|()| fs::write(path, text + "\n"))
        .map_err(BenchError::system_call(format!("write {RESULTS_PATH}")))
}

/// Table printed line by line.
pub struct BenchTable {
    name: usize,
    against: usize,
}

impl BenchTable {
    /// Table with the widths that these rows need.
    pub fn with_widths_of<'a>(rows: impl Iterator<Item = &'a BenchRow> + Clone) -> Self {
        let widest = |text: fn(&BenchRow) -> usize| rows.clone().map(text).max().unwrap_or(0);
        Self {
            name: widest(|row| row.name.len()),
            // The name of the best of several peers is appended.
            against: widest(|row| row.against.len() + if row.peers.len() > 1 { 9 } else { 0 }),
        }
    }

    /// Prints the names of the columns.
    pub fn print_header(&self) {
        println!(
            "{:<name$}  {:<against$}  {:>12}  {:>12}  {:>6}  {:<14}  {:>6}  {:<6}  {:<5}  {:<5}  {:>7}  {:>6}",
            "row",
            "against",
            "ours",
            "theirs",
            "ratio",
            "95 % interval",
            "pairs",
            "mark",
            "holds",
            "state",
            "line",
            "steal",
            name = self.name,
            against = self.against,
        );
    }

    /// Prints a result.
    pub fn print(&self, result: &RowResult) {
        let side = |value| format!("{} {}", format_four_digits(value), result.unit);
        let mut line_rtts = result.pair_line_rtt_ns.clone();
        line_rtts.sort_unstable();
        let median_line = line_rtts.get(line_rtts.len() / 2);
        println!(
            "{:<name$}  {:<against$}  {:>12}  {:>12}  {:>6.3}  {:<14}  {:>6}  {:<6}  {:<5}  {:<5}  {:>7}  {:>6}",
            result.name,
            result.against,
            side(result.ours),
            side(result.theirs),
            result.ratio,
            format!("{:.3} to {:.3}", result.low, result.high),
            format!("{}/{}", result.pairs, result.pairs_tried),
            result.mark,
            result.verdict(),
            result.state_text(),
            median_line.map_or("-".to_owned(), |line| format!("{line} ns")),
            result
                .steal
                .map_or("-".to_owned(), |steal| format!("{:.1} %", steal * 100.0)),
            name = self.name,
            against = self.against,
        );
    }

    /// Prints a row without a result.
    pub fn print_skipped(&self, row: &BenchRow, reason: &str) {
        println!(
            "{:<name$}  {:<against$}  skipped: {reason}",
            row.name,
            row.against,
            name = self.name,
            against = self.against,
        );
    }
}

/// Formats a number with four significant digits.
fn format_four_digits(value: f64) -> String {
    let before_point = value.abs().max(1.0).log10().floor() as usize + 1;
    format!("{value:.*}", 4_usize.saturating_sub(before_point))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::ROWS;

    #[test]
    fn four_digits() {
        for (value, expected) in [
            (3.30061, "3.301"),
            (61.239, "61.24"),
            (101.26, "101.3"),
            (5120.0, "5120"),
            (14_336.0, "14336"),
            (0.5, "0.500"),
        ] {
            assert_eq!(format_four_digits(value), expected);
        }
    }

    #[test]
    fn results_have_the_names_that_scripts_rely_on() {
        let pair = FigurePair {
            ours: 11.0,
            theirs: 10.0,
            line_rtt_ns: Some([120, 110, 111]),
        };
        let mut measured = RowMeasurement {
            pairs: vec![pair; 8],
            state: Some(CacheLineState::Near),
            pairs_tried: 9,
            steal: Some(0.25),
            is_suitable: true,
            peer: "",
        };
        let row = (ROWS.iter())
            .find(|row| row.mark == RatioMark::AtLeast(1.0))
            .expect("the ratio of these pairs is 1.1");
        let object = serde_json::to_value(RowResult::from_measurement(row, &measured)).unwrap();
        let names: Vec<&str> = object
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let mut expected = [
            "name",
            "against",
            "unit",
            "ours",
            "theirs",
            "ratio",
            "low",
            "high",
            "pairs",
            "mark",
            "holds",
            "state",
            "pair_line_rtt_ns",
            "steal",
        ];
        expected.sort_unstable();
        let mut sorted = names;
        sorted.sort_unstable();
        assert_eq!(sorted, expected);
        assert_eq!(object["holds"], true);
        assert_eq!(object["state"], "near");
        assert_eq!(object["pair_line_rtt_ns"], serde_json::json!(vec![111; 8]));
        assert_eq!(object["mark"], ">=1.00");
        measured.is_suitable = false;
        let object = serde_json::to_value(RowResult::from_measurement(row, &measured)).unwrap();
        assert!(object["holds"].is_null());
    }
}
