//! Writer of `docs/BENCHMARKS.md`: the latest figures of every row, with machine and date.
//!
//! A run of some rows replaces theirs and keeps the others, each with its own date.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use jiff::Zoned;

use crate::error::Trouble;
use crate::row_result::Outcome;
use crate::rows::hops::Point;

/// Path from the root of the repository.
const PATH: &str = "docs/BENCHMARKS.md";

const HEAD: &str = "\
# Benchmarks

Written by `RECORD=1 make bench`; [benches/README.md](../benches/README.md) describes how each row is measured and how to read it.
`ratio` is ours over theirs, the median of interleaved pairs, with its 95 % interval. Rows of different dates were not measured
under the same conditions: compare ratios, never figures across rows.
";

const COLUMNS: &str = "\
| row | against | ours | theirs | ratio | pairs | mark | holds | state | date |
|---|---|---|---|---|---|---|---|---|---|
";

const HOPS: &str = "\
| point | p50 | without a switch | date |
|---|---|---|---|
";

/// Updates the document with the measured rows.
pub fn write(setting: &str, outcomes: &[Outcome], points: &[Point]) -> Result<(), Trouble> {
    let before = fs::read_to_string(PATH).unwrap_or_default();
    let date = Zoned::now().strftime("%F").to_string();
    let text = document(&before, setting, outcomes, points, &date);
    fs::write(Path::new(PATH), text).map_err(Trouble::system(format!("write {PATH}")))
}

fn document(
    before: &str,
    setting: &str,
    outcomes: &[Outcome],
    points: &[Point],
    date: &str,
) -> String {
    let mut rows = lines_of(before);
    for outcome in outcomes {
        rows.insert(outcome.name.to_owned(), outcome.markdown(date));
    }
    for point in points {
        let line = format!(
            "| {} | {:.2} us | {:.2} us | {date} |",
            point.name, point.p50_us, point.without_us
        );
        rows.insert(point.name.clone(), line);
    }
    let (hops, others): (Vec<_>, Vec<_>) = rows
        .into_iter()
        .partition(|(name, _)| name.starts_with("hops/"));
    let lines = |rows: Vec<(String, String)>| -> String {
        rows.into_iter().map(|(_, line)| line + "\n").collect()
    };
    let mut text = format!(
        "{HEAD}\n```\n{}\n```\n\n{COLUMNS}{}",
        setting.trim(),
        lines(others)
    );
    if !hops.is_empty() {
        text.push_str("\n## Latency added by each switch\n\nUDP round trips, p50, without idle states, five interleaved runs of each point.\n\n");
        text.push_str(HOPS);
        text.push_str(&lines(hops));
    }
    text
}

/// Rows of a document by name.
fn lines_of(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| {
            let name = line.strip_prefix("| ")?.split(" | ").next()?;
            // Column headings contain no slash.
            name.contains('/')
                .then(|| (name.to_owned(), line.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_were_not_measured_stay() {
        let point = |name: &str, p50_us| Point {
            name: name.to_owned(),
            p50_us,
            without_us: 10.0,
        };
        let first = document(
            "",
            "machine one",
            &[],
            &[
                point("hops/1/1024/reused", 12.5),
                point("hops/2/1024/reused", 15.0),
            ],
            "2026-11-21",
        );
        let second = document(
            &first,
            "machine two",
            &[],
            &[point("hops/1/1024/reused", 12.0)],
            "2026-11-22",
        );
        assert!(second.contains("| hops/1/1024/reused | 12.00 us | 10.00 us | 2026-11-22 |"));
        assert!(second.contains("| hops/2/1024/reused | 15.00 us | 10.00 us | 2026-11-21 |"));
        assert!(second.contains("machine two") && !second.contains("machine one"));
        assert_eq!(second.matches("# Benchmarks").count(), 1);
        assert_eq!(
            document(&second, "machine two", &[], &[], "2026-11-23"),
            second
        );
    }
}
