//! `make bench-tune`: compares `linerate tune` with an exhaustive sweep, whose result it must match
//! with a fifth
//! of the runs.
//!
//! In each of five labs every combination of some knobs is measured (`linerate sweep`). Then
//! `linerate
//! tune` searches the same knobs three times with three seeds, and its result is compared in pairs
//! with
//! the best point of the sweep. Two more rows start from the kernel's defaults: the gain of `tune`
//! over
//! iperf3's goodput, and over the default round trip.
//!
//! Options come from environment variables: `ONLY=name,…`, `TRIES=n`, `REPEATS=n` (of each point of
//! the
//! sweep), `TIME=duration` (of each run), `QUICK=1` (one try, one repeat, fewer values: a
//! functional
//! check without verdict), `WITHIN=seconds` (time limit), `RESUME=1` (keeps results and continues).
#![forbid(unsafe_code)]

mod default_rows;
mod labs;
mod program;

use std::process::ExitCode;
use std::time::Duration;

use labs::{Case, LABS};
use program::{Lab, Program, Trouble};
use serde_json::{Value, json};

/// Fraction of the best that `tune` must reach.
const REACHES: f64 = 0.95;
/// Fraction of the exhaustive runs that it may use, including its checks and its proof.
const MAY_TAKE: f64 = 0.20;
/// Maximum duration of a search with its proof.
const TUNES: Duration = Duration::from_secs(100);
/// Maximum duration of thirty pairs.
const COMPARES: Duration = Duration::from_secs(45);
/// Path of the results.
const RESULTS: &str = "target/bench/tune.json";

/// Options of this run.
pub struct Asked {
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

fn asked() -> Result<Asked, Trouble> {
    let set = |name: &str| {
        std::env::var(name)
            .ok()
            .filter(|text| !text.trim().is_empty())
    };
    let is_on = |name: &str| set(name).is_some_and(|value| value != "0");
    let quick = is_on("QUICK");
    let count = |name: &str, default: u32| match set(name) {
        None => Ok(default),
        Some(text) => match text.trim().parse() {
            Ok(count) if count > 0 => Ok(count),
            _ => Err(Trouble(format!("{name}={text} is not a number above 0"))),
        },
    };
    let only = set("ONLY").unwrap_or_default();
    let only: Vec<String> = (only.split(','))
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    let known = || LABS.iter().map(|case| case.name).chain(default_rows::NAMES);
    if let Some(name) = only
        .iter()
        .find(|name| !known().any(|known| known == *name))
    {
        let known: Vec<_> = known().collect();
        return Err(Trouble(format!(
            "ONLY={name}: use one of {}",
            known.join(", ")
        )));
    }
    Ok(Asked {
        only,
        tries: u64::from(count("TRIES", if quick { 1 } else { 3 })?),
        repeats: count("REPEATS", if quick { 1 } else { 3 })?,
        time: set("TIME"),
        quick,
        resume: is_on("RESUME"),
        within: set("WITHIN").map(|_| count("WITHIN", 1)).transpose()?,
    })
}

impl Asked {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

fn bench() -> Result<bool, Trouble> {
    let asked = asked()?;
    let within = asked
        .within
        .map(|seconds| Duration::from_secs(seconds.into()));
    let program = Program::beside_this_one(asked.resume, within)?;
    let mut rows: Vec<Value> = Vec::new();
    let mut good = true;
    println!(
        "lab            try  goal     best of sweep  tune finds     of best [98 %]  runs         share  holds"
    );
    for case in LABS.iter().filter(|case| asked.wants(case.name)) {
        match measure(&program, case, &asked) {
            Ok(measured) => {
                good &= measured.iter().all(|row| row["holds"] != json!(false));
                rows.extend(measured);
            }
            Err(error) => {
                good = false;
                println!("{:<14} not measured: {error}", case.name);
            }
        }
        write(&rows)?;
    }
    for name in default_rows::NAMES
        .into_iter()
        .filter(|name| asked.wants(name))
    {
        match default_rows::row(&program, name, &asked) {
            Ok(row) => {
                good &= row["holds"] != json!(false);
                rows.push(row);
            }
            Err(error) => {
                good = false;
                println!("{name:<14} not measured: {error}");
            }
        }
        write(&rows)?;
    }
    println!("\nwritten: {RESULTS}");
    Ok(good)
}

fn write(rows: &[Value]) -> Result<(), Trouble> {
    let failed = |error: std::io::Error| Trouble(format!("{RESULTS}: {error}"));
    std::fs::create_dir_all("target/bench").map_err(failed)?;
    let text = serde_json::to_string_pretty(rows).map_err(|error| Trouble(error.to_string()))?;
    std::fs::write(RESULTS, text).map_err(failed)
}

/// Runs the sweep of a lab, and compares each try of `tune` with its best point.
fn measure(program: &Program, case: &Case, asked: &Asked) -> Result<Vec<Value>, Trouble> {
    let lab = Lab::up(program, case.name, case.topology, case.serves)?;
    let time = asked.time.as_deref().unwrap_or(case.time);
    let knobs = case.knobs(asked.quick);
    lab.write(&case.knob_file(), &case.knob_text(&knobs))?;
    let command = case.command(time);
    let swept = program.once(&format!("{}-sweep", case.name), || {
        let journal = program.journal(case.name).filter(|_| asked.resume);
        match journal {
            Some(journal) => lab.client(&Case::resumed(&journal)),
            None => lab.client(&case.sweep(&knobs, &command, asked.repeats)),
        }
    })?;
    let sweep = &swept["result"]["sweep"];
    let points = sweep["points"]
        .as_array()
        .ok_or_else(|| Trouble("the sweep has no points".to_owned()))?;
    let exhaustive = points.len() as u64 * u64::from(asked.repeats);
    let allowed = |point: &&Value| {
        let within = |limit: f64| {
            point["memory_bytes"]
                .as_f64()
                .is_some_and(|bytes| bytes <= limit)
        };
        point["value"].is_object() && case.memory_limit.is_none_or(within)
    };
    let value = |point: &Value| point["value"]["median"].as_f64().unwrap_or(f64::NAN);
    let better = |a: &&Value, b: &&Value| match case.lower_is_better() {
        true => value(b).total_cmp(&value(a)),
        false => value(a).total_cmp(&value(b)),
    };
    let best = points.iter().filter(allowed).max_by(better);
    let best = best.ok_or_else(|| Trouble("no point of the sweep may be chosen".to_owned()))?;
    let mut rows = Vec::new();
    for seed in 1..=asked.tries {
        let tuned = program.once(&format!("{}-tune-{seed}", case.name), || {
            program.needs(TUNES)?;
            lab.client(&case.tune(&knobs, time, seed, exhaustive))
        })?;
        let found = &tuned["result"]["tuning"];
        let runs = found["runs"].as_u64().unwrap_or(u64::MAX);
        let setting = case.setting_of(found);
        let ratio = program.once(&format!("{}-compared-{seed}", case.name), || {
            program.needs(COMPARES)?;
            against(&lab, case, &command, best, &setting)
        })?;
        let [ratio, low, high] =
            ["median", "low", "high"].map(|of| of_best(&ratio[of], case).unwrap_or(f64::NAN));
        // If lower is better, inverting the ratio swaps the limits.
        let (low, high) = (low.min(high), low.max(high));
        let share = runs as f64 / exhaustive as f64;
        let holds = ratio >= REACHES && share <= MAY_TAKE;
        // With few values the sweep is cheaper than any proof.
        let judged = (!asked.quick).then_some(holds);
        let setting: Vec<_> = setting.iter().map(|(k, v)| format!("{k}={v}")).collect();
        println!(
            "{:<14} {seed:>3}  {:<8} {:>13.4e}  {:>13.4e}  {:>6.1} % [{:.1}, {:.1}]  {runs:>4} of {exhaustive:<5} {:>4.0} %  {}   {}",
            case.name,
            case.goal,
            value(best),
            value(best)
                * if case.lower_is_better() {
                    1.0 / ratio
                } else {
                    ratio
                },
            ratio * 100.0,
            low * 100.0,
            high * 100.0,
            share * 100.0,
            match judged {
                Some(true) => "yes",
                Some(false) => "NO",
                None => "-",
            },
            setting.join(" ")
        );
        rows.push(json!({
            "name": format!("tune/{}", case.name), "try": seed, "goal": case.goal, "best": value(best),
            "best_setting": best["setting"], "found_setting": setting, "of_best": ratio, "of_best_interval": [low, high],
            "runs": runs, "exhaustive_runs": exhaustive, "share": share, "spent": found["spent"], "holds": judged,
        }));
    }
    Ok(rows)
}

/// Ratio of the found setting to the best of the sweep, with its interval; measured in pairs.
fn against(
    lab: &Lab<'_>,
    case: &Case,
    command: &[String],
    best: &Value,
    found: &[(String, String)],
) -> Result<Value, Trouble> {
    let best = case.setting_in(&best["setting"]);
    if best == found {
        return Ok(json!({ "median": 1.0, "low": 1.0, "high": 1.0 }));
    }
    let compared = lab.client(&case.compare(command, &best, found))?;
    match &compared["result"]["comparison"]["ratio"] {
        Value::Null => Err(Trouble("the comparison has no ratio".to_owned())),
        ratio => Ok(ratio.clone()),
    }
}

/// Ratio of two figures, inverted if lower is better, so that more is better.
fn of_best(ratio: &Value, case: &Case) -> Option<f64> {
    let ratio = ratio.as_f64()?;
    Some(match case.lower_is_better() {
        true => 1.0 / ratio,
        false => ratio,
    })
}
