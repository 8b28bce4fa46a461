//! `make bench-tune`: compares `linerate tune` with an exhaustive sweep, whose result it must match
//! with a fifth of the runs.
//!
//! In each of five labs every combination of some knobs is measured (`linerate sweep`). Then
//! `linerate tune` searches the same knobs three times with three seeds, and its result is compared
//! in pairs with the best point of the sweep. Two more rows start from the kernel's defaults: the
//! gain of `tune` over iperf3's goodput, and over the default round trip.
//!
//! Options come from environment variables: `ONLY=name,…`, `TRIES=n`, `REPEATS=n` (of each point of
//! the sweep), `TIME=duration` (of each run), `QUICK=1` (one try, one repeat, fewer
//! values: a functional check without verdict), `WITHIN=seconds` (time limit), `RESUME=1`
//! (keeps results and continues).
#![forbid(unsafe_code)]

mod default_rows;
mod labs;
mod program;

use std::process::ExitCode;
use std::time::Duration;

use labs::{LABS, LabCase};
use program::{BenchLab, LinerateProgram, TuneBenchError};
use serde_json::{Value, json};

/// Fraction of the best that `tune` must reach.
const MIN_SHARE_OF_BEST: f64 = 0.95;
/// Fraction of the exhaustive runs that it may use, including its checks and its proof.
const MAX_SHARE_OF_RUNS: f64 = 0.20;
/// Maximum duration of a search with its proof.
const MAX_TUNE_TIME: Duration = Duration::from_secs(100);
/// Maximum duration of thirty pairs.
const MAX_COMPARE_TIME: Duration = Duration::from_secs(45);
/// Path of the results.
const RESULTS_PATH: &str = "target/bench/tune.json";

/// Options of this run.
pub struct TuneBenchOptions {
    only: Vec<String>,
    tries: u64,
    repeats: u32,
    time: Option<String>,
    quick: bool,
    resume: bool,
    within: Option<u32>,
}

fn main() -> ExitCode {
    match bench() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn parse_options() -> Result<TuneBenchOptions, TuneBenchError> {
    let value_of = |name: &str| {
        std::env::var(name)
            .ok()
            .filter(|text| !text.trim().is_empty())
    };
    let is_on = |name: &str| value_of(name).is_some_and(|value| value != "0");
    let quick = is_on("QUICK");
    let count = |name: &str, default: u32| match value_of(name) {
        None => Ok(default),
        Some(text) => match text.trim().parse() {
            Ok(count) if count > 0 => Ok(count),
            _ => Err(TuneBenchError(format!(
                "{name}={text} is not a number above 0"
            ))),
        },
    };
    let only = value_of("ONLY").unwrap_or_default();
    let only: Vec<String> = (only.split(','))
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    let lab_names = || {
        LABS.iter()
            .map(|lab_case| lab_case.name)
            .chain(default_rows::ROW_NAMES)
    };
    if let Some(name) = only
        .iter()
        .find(|name| !lab_names().any(|lab_names| lab_names == *name))
    {
        let lab_names: Vec<_> = lab_names().collect();
        return Err(TuneBenchError(format!(
            "ONLY={name}: use one of {}",
            lab_names.join(", ")
        )));
    }
    Ok(TuneBenchOptions {
        only,
        tries: u64::from(count("TRIES", if quick { 1 } else { 3 })?),
        repeats: count("REPEATS", if quick { 1 } else { 3 })?,
        time: value_of("TIME"),
        quick,
        resume: is_on("RESUME"),
        within: value_of("WITHIN").map(|_| count("WITHIN", 1)).transpose()?,
    })
}

impl TuneBenchOptions {
    fn is_selected(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

fn bench() -> Result<bool, TuneBenchError> {
    let options = parse_options()?;
    let within = options
        .within
        .map(|seconds| Duration::from_secs(seconds.into()));
    let program = LinerateProgram::find(options.resume, within)?;
    let mut rows: Vec<Value> = Vec::new();
    let mut good = true;
    println!(
        "lab            try  goal     best of sweep  tune finds     of best [98 %]  runs         share  holds"
    );
    for lab_case in LABS
        .iter()
        .filter(|lab_case| options.is_selected(lab_case.name))
    {
        match measure_lab(&program, lab_case, &options) {
            Ok(measured) => {
                good &= measured.iter().all(|row| row["holds"] != json!(false));
                rows.extend(measured);
            }
            Err(error) => {
                good = false;
                println!("{:<14} not measured: {error}", lab_case.name);
            }
        }
        write_results(&rows)?;
    }
    for name in default_rows::ROW_NAMES
        .into_iter()
        .filter(|name| options.is_selected(name))
    {
        match default_rows::measure_row(&program, name, &options) {
            Ok(row) => {
                good &= row["holds"] != json!(false);
                rows.push(row);
            }
            Err(error) => {
                good = false;
                println!("{name:<14} not measured: {error}");
            }
        }
        write_results(&rows)?;
    }
    println!("\nwritten: {RESULTS_PATH}");
    Ok(good)
}

fn write_results(rows: &[Value]) -> Result<(), TuneBenchError> {
    let failed = |error: std::io::Error| TuneBenchError(format!("{RESULTS_PATH}: {error}"));
    std::fs::create_dir_all("target/bench").map_err(failed)?;
    let text =
        serde_json::to_string_pretty(rows).map_err(|error| TuneBenchError(error.to_string()))?;
    std::fs::write(RESULTS_PATH, text).map_err(failed)
}

/// Runs the sweep of a lab, and compares each try of `tune` with its best point.
fn measure_lab(
    program: &LinerateProgram,
    lab_case: &LabCase,
    options: &TuneBenchOptions,
) -> Result<Vec<Value>, TuneBenchError> {
    let lab = BenchLab::up(
        program,
        lab_case.name,
        lab_case.topology,
        lab_case.server_args,
    )?;
    let time = options.time.as_deref().unwrap_or(lab_case.time);
    let knobs = lab_case.selected_knobs(options.quick);
    lab.write_file(&lab_case.knob_file_name(), &lab_case.knob_file_text(&knobs))?;
    let command = lab_case.measure_args(time);
    let sweep_set = program.cached(&format!("{}-sweep", lab_case.name), || {
        let journal = program
            .sweep_journal(lab_case.name)
            .filter(|_| options.resume);
        match journal {
            Some(journal) => lab.run_linerate(&LabCase::resume_args(&journal)),
            None => lab.run_linerate(&lab_case.sweep_args(&knobs, &command, options.repeats)),
        }
    })?;
    let sweep = &sweep_set["result"]["sweep"];
    let points = sweep["points"]
        .as_array()
        .ok_or_else(|| TuneBenchError("the sweep has no points".to_owned()))?;
    let exhaustive = points.len() as u64 * u64::from(options.repeats);
    let is_allowed = |point: &&Value| {
        let within = |limit: f64| {
            point["memory_bytes"]
                .as_f64()
                .is_some_and(|bytes| bytes <= limit)
        };
        point["value"].is_object() && lab_case.memory_limit.is_none_or(within)
    };
    let value = |point: &Value| point["value"]["median"].as_f64().unwrap_or(f64::NAN);
    let better = |a: &&Value, b: &&Value| match lab_case.lower_is_better() {
        true => value(b).total_cmp(&value(a)),
        false => value(a).total_cmp(&value(b)),
    };
    let best = points.iter().filter(is_allowed).max_by(better);
    let best =
        best.ok_or_else(|| TuneBenchError("no point of the sweep may be chosen".to_owned()))?;
    let mut rows = Vec::new();
    for seed in 1..=options.tries {
        let tuned = program.cached(&format!("{}-tune-{seed}", lab_case.name), || {
            program.check_time_left(MAX_TUNE_TIME)?;
            lab.run_linerate(&lab_case.tune_args(&knobs, time, seed, exhaustive))
        })?;
        let tuning = &tuned["result"]["tuning"];
        let runs = tuning["runs"].as_u64().unwrap_or(u64::MAX);
        let setting = lab_case.tuned_setting(tuning);
        let ratio = program.cached(&format!("{}-compared-{seed}", lab_case.name), || {
            program.check_time_left(MAX_COMPARE_TIME)?;
            compare_with_best(&lab, lab_case, &command, best, &setting)
        })?;
        let [ratio, low, high] = ["median", "low", "high"]
            .map(|quantile| share_of_best(&ratio[quantile], lab_case).unwrap_or(f64::NAN));
        // If lower is better, inverting the ratio swaps the limits.
        let (low, high) = (low.min(high), low.max(high));
        let share = runs as f64 / exhaustive as f64;
        let holds = ratio >= MIN_SHARE_OF_BEST && share <= MAX_SHARE_OF_RUNS;
        // With few values the sweep is cheaper than any proof.
        let verdict = (!options.quick).then_some(holds);
        let setting: Vec<_> = setting.iter().map(|(k, v)| format!("{k}={v}")).collect();
        println!(
            "{:<14} {seed:>3}  {:<8} {:>13.4e}  {:>13.4e}  {:>6.1} % [{:.1}, {:.1}]  {runs:>4} of {exhaustive:<5} {:>4.0} %  {}   {}",
            lab_case.name,
            lab_case.goal,
            value(best),
            value(best)
                * if lab_case.lower_is_better() {
                    1.0 / ratio
                } else {
                    ratio
                },
            ratio * 100.0,
            low * 100.0,
            high * 100.0,
            share * 100.0,
            match verdict {
                Some(true) => "yes",
                Some(false) => "NO",
                None => "-",
            },
            setting.join(" ")
        );
        rows.push(json!({
            "name": format!("tune/{}", lab_case.name), "try": seed, "goal": lab_case.goal, "best": value(best),
            "best_setting": best["setting"], "found_setting": setting, "of_best": ratio, "of_best_interval": [low, high],
            "runs": runs, "exhaustive_runs": exhaustive, "share": share, "run_counts": tuning["run_counts"], "holds": verdict,
        }));
    }
    Ok(rows)
}

/// Ratio of the found setting to the best of the sweep, with its interval; measured in pairs.
fn compare_with_best(
    lab: &BenchLab<'_>,
    lab_case: &LabCase,
    command: &[String],
    best: &Value,
    found_setting: &[(String, String)],
) -> Result<Value, TuneBenchError> {
    let best = lab_case.point_setting(&best["setting"]);
    if best == found_setting {
        return Ok(json!({ "median": 1.0, "low": 1.0, "high": 1.0 }));
    }
    let comparison_set = lab.run_linerate(&lab_case.compare_args(command, &best, found_setting))?;
    match &comparison_set["result"]["comparison"]["ratio"] {
        Value::Null => Err(TuneBenchError("the comparison has no ratio".to_owned())),
        ratio => Ok(ratio.clone()),
    }
}

/// Ratio of two figures, inverted if lower is better, so that more is better.
fn share_of_best(ratio: &Value, lab_case: &LabCase) -> Option<f64> {
    let ratio = ratio.as_f64()?;
    Some(match lab_case.lower_is_better() {
        true => 1.0 / ratio,
        false => ratio,
    })
}
