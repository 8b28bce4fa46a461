//! `make bench`: interleaved pairs of linerate and a program to compare with, on two hosts of a
//! lab.
//!
//! Options come from environment variables, so that `make bench ONLY=… PAIRS=…` passes them:
//! `ONLY=name,…` (a name or a prefix of names; `hops` is the table of switches), `PAIRS=n`,
//! `LONG=1`,
//! `DETAIL=1` (each pair), `RECORD=1` (update docs/BENCHMARKS.md).
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

use bench_env::Ground;
use error::Trouble;
use row::{ROWS, Row};
use row_result::{Outcome, Table, write_results};
use rows::hops;

/// Exit code if all marks hold or cannot be judged here.
const EXIT_OK: u8 = 0;
/// Exit code if a mark does not hold.
const EXIT_MISSED: u8 = 1;
/// Exit code if a row could not be measured.
const EXIT_BROKEN: u8 = 2;

/// Default number of pairs: they resolve 2 % of a round trip and 5 % of a throughput.
const DEFAULT_PAIRS: usize = 10;

/// Name that selects the table of switches, which is not a row.
const HOPS: &str = "hops";

/// Options of this run.
struct Asked {
    rows: Vec<&'static Row>,
    pairs: usize,
    long: bool,
    /// True to print each pair.
    detail: bool,
    /// True to measure the table of switches.
    hops: bool,
    /// True to update docs/BENCHMARKS.md.
    record: bool,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = rows::memory::as_subject(&words) {
        return code;
    }
    match bench() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(EXIT_BROKEN)
        }
    }
}

fn bench() -> Result<u8, Trouble> {
    let asked = asked(|name| std::env::var(name).ok())?;
    // Before the first thread starts: only a single-threaded process can enter a user namespace.
    if !linerate_lab::privileged() {
        linerate_lab::enter_user_namespace()?;
    }
    let ground = Ground::build()?;
    let setting = machine_text::text(&ground);
    println!("{setting}");
    let table = Table::of(asked.rows.iter().copied());
    table.print_head();
    let (mut outcomes, mut broken): (Vec<Outcome>, bool) = (Vec::new(), false);
    for row in asked.rows {
        let wanted = row.most_pairs.map_or(asked.pairs, |n| n.min(asked.pairs));
        let ran = if row.long && !asked.long {
            Err(Trouble::skip("takes long: enable it with LONG=1"))
        } else {
            pairs::run(row, &ground, wanted)
        };
        match ran {
            Ok(measured) => {
                let outcome = Outcome::of(row, &measured);
                table.print(&outcome);
                outcomes.push(outcome);
                if asked.detail {
                    measured.print_pairs();
                }
            }
            Err(Trouble::Skip { why }) => table.print_skipped(row, &why),
            Err(error) => {
                broken = true;
                table.print_skipped(row, &format!("not measured: {error}"));
            }
        }
        for note in ground.take_notes() {
            println!("  {note}");
        }
        // Written after each row, so that a later failure loses nothing.
        write_results(&outcomes)?;
        if asked.record {
            benchmarks_doc::write(&setting, &outcomes, &[])?;
        }
    }
    let mut points = Vec::new();
    if asked.hops {
        match hops::table(&ground) {
            Ok(measured) => points = measured,
            Err(error) => {
                broken = true;
                println!("hops: not measured: {error}");
            }
        }
    }
    if asked.record {
        benchmarks_doc::write(&setting, &outcomes, &points)?;
    }
    Ok(conclude(&outcomes, broken))
}

fn conclude(outcomes: &[Outcome], broken: bool) -> u8 {
    println!("\nwritten: {}", row_result::RESULTS);
    let missed: Vec<&str> = (outcomes.iter())
        .filter(|outcome| outcome.holds == Some(false))
        .map(|outcome| outcome.name)
        .collect();
    if !missed.is_empty() {
        println!("missed marks: {}", missed.join(", "));
        EXIT_MISSED
    } else if broken {
        EXIT_BROKEN
    } else {
        EXIT_OK
    }
}

fn asked(variable: impl Fn(&str) -> Option<String>) -> Result<Asked, Trouble> {
    let set = |name| variable(name).filter(|value| !value.trim().is_empty());
    let flag = |name| set(name).is_some_and(|value| value != "0");
    let pairs = match set("PAIRS") {
        None => DEFAULT_PAIRS,
        Some(text) => (text.trim().parse().ok())
            .filter(|&pairs| pairs > 0)
            .ok_or_else(|| {
                Trouble::usage(format!(
                    "PAIRS={text} is not a number of pairs: give 1 or more"
                ))
            })?,
    };
    let (rows, hops) = match set("ONLY") {
        None => (ROWS.iter().collect(), true),
        Some(names) => {
            let (hops, rows): (Vec<&str>, Vec<&str>) =
                names.split(',').partition(|name| name.trim() == HOPS);
            (chosen(&rows.join(","))?, !hops.is_empty())
        }
    };
    Ok(Asked {
        rows,
        pairs,
        long: flag("LONG"),
        detail: flag("DETAIL"),
        hops,
        record: flag("RECORD"),
    })
}

/// Rows selected by a list of names, in the order of the table.
fn chosen(names: &str) -> Result<Vec<&'static Row>, Trouble> {
    let names: Vec<&str> = (names.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    if let Some(name) = names.iter().find(|n| !ROWS.iter().any(|row| row.is(n))) {
        let known: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
        return Err(Trouble::usage(format!(
            "ONLY={name} matches no row: use one of {}",
            known.join(", ")
        )));
    }
    let is_asked = |row: &&Row| names.iter().any(|name| row.is(name));
    Ok(ROWS.iter().filter(is_asked).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &str) -> Vec<&'static str> {
        let rows = chosen(only).unwrap();
        rows.iter().map(|row| row.name).collect()
    }

    #[test]
    fn names_choose_rows_in_the_order_of_the_table() {
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
        assert!(chosen("throughput/tc").is_err());
        assert!(chosen("memory,nonsense").is_err());
    }

    #[test]
    fn settings_are_checked() {
        let with = |name: &'static str, value: &'static str| {
            asked(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert_eq!(with("PAIRS", "4").unwrap().pairs, 4);
        assert_eq!(with("PAIRS", "").unwrap().pairs, DEFAULT_PAIRS);
        assert!(with("PAIRS", "0").is_err());
        assert!(with("LONG", "1").unwrap().long);
        assert!(!with("LONG", "0").unwrap().long);
        assert_eq!(with("ONLY", "").unwrap().rows.len(), ROWS.len());
        assert!(with("ONLY", "").unwrap().hops && !with("ONLY", "memory").unwrap().hops);
        let hops = with("ONLY", "hops").unwrap();
        assert!(hops.hops && hops.rows.is_empty());
    }
}
