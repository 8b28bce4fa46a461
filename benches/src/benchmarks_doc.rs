//! Writer of `docs/BENCHMARKS.md`: the latest figures of every row, with machine and date.
//!
//! A run of some rows replaces theirs and keeps the others, each with its own date.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use jiff::Zoned;

use crate::error::BenchError;
use crate::row_result::RowResult;
use crate::rows::hops::HopsPoint;

/// Path from the root of the repository.
const DOC_PATH: &str = "docs/BENCHMARKS.md";

const DOC_HEAD: &str = "\
# Benchmarks

Written by `RECORD=1 make bench`; [benches/README.md](../benches/README.md) describes how each row is measured and how to read it.
`ratio` is ours over theirs, the median of interleaved pairs, with its 95 % interval. Rows of different dates were not measured
under the same conditions: compare ratios, never figures across rows.
";

const ROW_COLUMNS: &str = "\
| row | against | ours | theirs | ratio | pairs | mark | holds | state | date |
|---|---|---|---|---|---|---|---|---|---|
";

const HOPS_COLUMNS: &str = "\
| point | p50 | without a switch | date |
|---|---|---|---|
";

/// Updates the document with the measured rows.
pub fn write(machine: &str, results: &[RowResult], points: &[HopsPoint]) -> Result<(), BenchError> {
    let previous_text = fs::read_to_string(DOC_PATH).unwrap_or_default();
    let date = Zoned::now().strftime("%F").to_string();
    let text = render_document(&previous_text, machine, results, points, &date);
    fs::write(Path::new(DOC_PATH), text)
        .map_err(BenchError::system_call(format!("write {DOC_PATH}")))
}

fn render_document(
    previous_text: &str,
    machine: &str,
    results: &[RowResult],
    points: &[HopsPoint],
    date: &str,
) -> String {
    let mut rows = rows_by_name(previous_text);
    for result in results {
        rows.insert(result.name.to_owned(), result.markdown(date));
    }
    for point in points {
        let line = format!(
            "| {} | {:.2} us | {:.2} us | {date} |",
            point.name, point.p50_us, point.p50_without_switch_us
        );
        rows.insert(point.name.clone(), line);
    }
    let (hops, other_rows): (Vec<_>, Vec<_>) = rows
        .into_iter()
        .partition(|(name, _)| name.starts_with("hops/"));
    let join_lines = |rows: Vec<(String, String)>| -> String {
        rows.into_iter().map(|(_, line)| line + "\n").collect()
    };
    let mut text = format!(
        "{DOC_HEAD}\n```\n{}\n```\n\n{ROW_COLUMNS}{}",
        machine.trim(),
        join_lines(other_rows)
    );
    if !hops.is_empty() {
        text.push_str("\n## Latency added by each switch\n\nUDP round trips, p50, without idle states, five interleaved runs of each point.\n\n");
        text.push_str(HOPS_COLUMNS);
        text.push_str(&join_lines(hops));
    }
    text
}

/// Rows of a document by name.
fn rows_by_name(text: &str) -> BTreeMap<String, String> {
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
        let point = |name: &str, p50_us| HopsPoint {
            name: name.to_owned(),
            p50_us,
            p50_without_switch_us: 10.0,
        };
        let first = render_document(
            "",
            "machine one",
            &[],
            &[
                point("hops/1/1024/reused", 12.5),
                point("hops/2/1024/reused", 15.0),
            ],
            "2026-11-21",
        );
        let second = render_document(
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
            render_document(&second, "machine two", &[], &[], "2026-11-23"),
            second
        );
    }
}
