//! `make bench`: interleaved pairs of linerate and a program to compare with, on two hosts of a
//! lab.
//!
//! Options come from environment variables, so that `make bench ONLY=… PAIRS=…` passes them:
//! `ONLY=name,…` (a name or a prefix of names; `hops` is the table of switches), `PAIRS=n`,
//! `LONG=1`, `DETAIL=1` (each pair), `RECORD=1` (update docs/BENCHMARKS.md).
#![forbid(unsafe_code)]

mod bench_env;
mod benchmarks_doc;
mod error;
mod machine_text;
mod pairs;
mod peer;
mod process;
mod row;
mod row_result;
mod rows;

use std::process::ExitCode;

use bench_env::BenchEnv;
use error::BenchError;
use row::{BenchRow, ROWS};
use row_result::{BenchTable, RowResult, write_results};
use rows::hops;

/// Exit code if all marks hold or cannot be judged here.
const EXIT_OK: u8 = 0;
/// Exit code if a mark does not hold.
const EXIT_MISSED: u8 = 1;
/// Exit code if a row could not be measured.
const EXIT_NOT_MEASURED: u8 = 2;

/// Default number of pairs: they resolve 2 % of a round trip and 5 % of a throughput.
const DEFAULT_PAIRS: usize = 10;

/// Name that selects the table of switches, which is not a row.
const HOPS_NAME: &str = "hops";

/// Options of this run.
struct BenchOptions {
    rows: Vec<&'static BenchRow>,
    pairs: usize,
    run_long_rows: bool,
    /// True to print each pair.
    print_pairs: bool,
    /// True to measure the table of switches.
    hops: bool,
    /// True to update docs/BENCHMARKS.md.
    update_doc: bool,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = rows::memory::run_as_subject(&words) {
        return code;
    }
    match bench() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(EXIT_NOT_MEASURED)
        }
    }
}

fn bench() -> Result<u8, BenchError> {
    let options = parse_options(|name| std::env::var(name).ok())?;
    // Before the first thread starts: only a single-threaded process can enter a user namespace.
    if !linerate_lab::privileged() {
        linerate_lab::enter_user_namespace()?;
    }
    let ground = BenchEnv::build()?;
    let machine = machine_text::describe_machine(&ground);
    println!("{machine}");
    let table = BenchTable::with_widths_of(options.rows.iter().copied());
    table.print_header();
    let (mut results, mut any_failed): (Vec<RowResult>, bool) = (Vec::new(), false);
    for row in options.rows {
        let wanted_pairs = row
            .max_pairs
            .map_or(options.pairs, |n| n.min(options.pairs));
        let measured_row = if row.is_long && !options.run_long_rows {
            Err(BenchError::skip("takes long: enable it with LONG=1"))
        } else {
            pairs::measure_row(row, &ground, wanted_pairs)
        };
        match measured_row {
            Ok(measured) => {
                let result = RowResult::from_measurement(row, &measured);
                table.print(&result);
                results.push(result);
                if options.print_pairs {
                    measured.print_pairs();
                }
            }
            Err(BenchError::Skip { reason: why }) => table.print_skipped(row, &why),
            Err(error) => {
                any_failed = true;
                table.print_skipped(row, &format!("not measured: {error}"));
            }
        }
        for note in ground.take_notes() {
            println!("  {note}");
        }
        // Written after each row, so that a later failure loses nothing.
        write_results(&results)?;
        if options.update_doc {
            benchmarks_doc::write(&machine, &results, &[])?;
        }
    }
    let mut points = Vec::new();
    if options.hops {
        match hops::measure_table(&ground) {
            Ok(measured) => points = measured,
            Err(error) => {
                any_failed = true;
                println!("hops: not measured: {error}");
            }
        }
    }
    if options.update_doc {
        benchmarks_doc::write(&machine, &results, &points)?;
    }
    Ok(print_summary(&results, any_failed))
}

fn print_summary(results: &[RowResult], any_failed: bool) -> u8 {
    println!("\nwritten: {}", row_result::RESULTS_PATH);
    let missed: Vec<&str> = (results.iter())
        .filter(|result| result.holds == Some(false))
        .map(|result| result.name)
        .collect();
    if !missed.is_empty() {
        println!("missed marks: {}", missed.join(", "));
        EXIT_MISSED
    } else if any_failed {
        EXIT_NOT_MEASURED
    } else {
        EXIT_OK
    }
}

fn parse_options(variable: impl Fn(&str) -> Option<String>) -> Result<BenchOptions, BenchError> {
    let value_of = |name| variable(name).filter(|value| !value.trim().is_empty());
    let is_on = |name| value_of(name).is_some_and(|value| value != "0");
    let pairs = match value_of("PAIRS") {
        None => DEFAULT_PAIRS,
        Some(text) => (text.trim().parse().ok())
            .filter(|&pairs| pairs > 0)
            .ok_or_else(|| {
                BenchError::invalid_option(format!(
                    "PAIRS={text} is not a number of pairs: give 1 or more"
                ))
            })?,
    };
    let (rows, hops) = match value_of("ONLY") {
        None => (ROWS.iter().collect(), true),
        Some(names) => {
            let (hops, rows): (Vec<&str>, Vec<&str>) =
                names.split(',').partition(|name| name.trim() == HOPS_NAME);
            (select_rows(&rows.join(","))?, !hops.is_empty())
        }
    };
    Ok(BenchOptions {
        rows,
        pairs,
        run_long_rows: is_on("LONG"),
        print_pairs: is_on("DETAIL"),
        hops,
        update_doc: is_on("RECORD"),
    })
}

/// Rows selected by a list of names, in the order of the table.
fn select_rows(names: &str) -> Result<Vec<&'static BenchRow>, BenchError> {
    let names: Vec<&str> = (names.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    if let Some(name) = names
        .iter()
        .find(|n| !ROWS.iter().any(|row| row.is_selected_by(n)))
    {
        let row_names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
        return Err(BenchError::invalid_option(format!(
            "ONLY={name} matches no row: use one of {}",
            row_names.join(", ")
        )));
    }
    let is_selected = |row: &&BenchRow| names.iter().any(|name| row.is_selected_by(name));
    Ok(ROWS.iter().filter(is_selected).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &str) -> Vec<&'static str> {
        let rows = select_rows(only).unwrap();
        rows.iter().map(|row| row.name).collect()
    }

    #[test]
    fn names_select_rows_in_the_order_of_the_table() {
        let defaults = ["throughput/tcp/defaults", "throughput/tcp/defaults/found"];
        assert_eq!(names("throughput/tcp/defaults"), defaults);
        let three = [
            "throughput/udp/64B/gso_gro",
            "throughput/udp/64B",
            "latency/udp/1024B/blocking",
        ];
        assert_eq!(
            names("latency/udp/1024B/blocking, throughput/udp/64B"),
            three
        );
        assert!(select_rows("throughput/tc").is_err());
        assert!(select_rows("memory,nonsense").is_err());
    }

    #[test]
    fn options_are_validated() {
        let parse_with = |name: &'static str, value: &'static str| {
            parse_options(move |requested| (requested == name).then(|| value.to_owned()))
        };
        assert_eq!(parse_with("PAIRS", "4").unwrap().pairs, 4);
        assert_eq!(parse_with("PAIRS", "").unwrap().pairs, DEFAULT_PAIRS);
        assert!(parse_with("PAIRS", "0").is_err());
        assert!(parse_with("LONG", "1").unwrap().run_long_rows);
        assert!(!parse_with("LONG", "0").unwrap().run_long_rows);
        assert_eq!(parse_with("ONLY", "").unwrap().rows.len(), ROWS.len());
        assert!(
            parse_with("ONLY", "").unwrap().hops && !parse_with("ONLY", "memory").unwrap().hops
        );
        let hops = parse_with("ONLY", "hops").unwrap();
        assert!(hops.hops && hops.rows.is_empty());
    }
}
