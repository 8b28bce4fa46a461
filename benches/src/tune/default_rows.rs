//! Rows in a lab with the kernel's defaults: the gain of `linerate tune` without hints.

use std::time::{Duration, Instant};

use linerate_host::doctor::cache_line::{NEAR_LIMIT, measure_cache_line};
use linerate_sys::cpu;
use serde_json::{Value, json};

use crate::TuneBenchOptions;
use crate::program::{BenchLab, LinerateProgram, TuneBenchError};

/// Names of these rows.
pub const ROW_NAMES: [&str; 2] = ["found-goodput", "found-p50"];

/// Required factor over iperf3's goodput, in the near state and in the far state.
const GOODPUT_FACTORS: (f64, f64) = (8.0, 6.0);
/// Required fraction of the default round trip.
const P50_FRACTION: f64 = 1.0 / 7.0;
/// Number of iperf3 runs with default settings, before the search and again after it.
const IPERF3_RUNS: usize = 7;

const DIRECT: &str =
    "[hosts.client]\n[hosts.server]\n[[links]]\nbetween = [\"client\", \"server\"]\n";

/// Runs a row: the result of `linerate tune` over the default.
pub fn measure_row(
    program: &LinerateProgram,
    name: &str,
    options: &TuneBenchOptions,
) -> Result<Value, TuneBenchError> {
    // Grants that a user who tunes would give.
    let lab = BenchLab::up(
        program,
        name,
        DIRECT,
        "server -q --grant sched,idle,buffers,socket",
    )?;
    match name {
        "found-goodput" => measure_goodput(&lab, options),
        _ => measure_p50(&lab, options),
    }
}

/// Returns whether the machine is in the near state, in which a cache line crosses fast.
fn is_near_state() -> Option<bool> {
    let usable = cpu::list_usable().ok()?;
    let &[first, second, ..] = usable.as_slice() else {
        return None;
    };
    Some(measure_cache_line(first, second)? < NEAR_LIMIT)
}

fn run_tune(
    lab: &BenchLab<'_>,
    goal: &str,
    options: &TuneBenchOptions,
) -> Result<Value, TuneBenchError> {
    let time = options.time.as_deref().unwrap_or("300ms");
    let runs = if options.quick { 40 } else { 120 };
    let args = format!("tune 10.77.0.2 --json --seed 1 --time {time} --runs {runs} {goal}");
    let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
    Ok(lab.run_linerate(&args)?["result"]["tuning"].clone())
}

fn measure_goodput(
    lab: &BenchLab<'_>,
    options: &TuneBenchOptions,
) -> Result<Value, TuneBenchError> {
    let was_near = is_near_state();
    let before = measure_iperf3(lab)?;
    let tuned = run_tune(lab, "--goal goodput", options)?;
    // Measured before and after the search, so that a slow phase of the machine does not look like
    // a gain.
    let after = measure_iperf3(lab)?;
    let default_value = median(&[before, after].concat());
    // The higher mark applies if the machine was near before or after.
    let is_near = was_near.max(is_near_state());
    let mark = if is_near == Some(true) {
        GOODPUT_FACTORS.0
    } else {
        GOODPUT_FACTORS.1
    };
    let tuned_value = proven_median(&tuned)?;
    let ratio = tuned_value / default_value;
    Ok(print_row(
        "found-goodput",
        &tuned,
        (default_value, tuned_value),
        ratio,
        (ratio >= mark, mark),
        is_near,
    ))
}

fn measure_p50(lab: &BenchLab<'_>, options: &TuneBenchOptions) -> Result<Value, TuneBenchError> {
    let tuned = run_tune(lab, "--goal p50 -u", options)?;
    let ratio = tuned["proof"]["ratio"]["median"].as_f64();
    let ratio = ratio.ok_or_else(|| TuneBenchError("tune gave no proof".to_owned()))?;
    let start = tuned["proof"]["a"]["value"]["median"]
        .as_f64()
        .unwrap_or(f64::NAN);
    let tuned_value = proven_median(&tuned)?;
    Ok(print_row(
        "found-p50",
        &tuned,
        (start, tuned_value),
        ratio,
        (ratio <= P50_FRACTION, P50_FRACTION),
        is_near_state(),
    ))
}

fn proven_median(tuned: &Value) -> Result<f64, TuneBenchError> {
    let value = tuned["proof"]["b"]["value"]["median"].as_f64();
    value.ok_or_else(|| TuneBenchError("tune gave no proof".to_owned()))
}

fn print_row(
    name: &str,
    tuned: &Value,
    (default_value, tuned_value): (f64, f64),
    ratio: f64,
    (holds, mark): (bool, f64),
    is_near: Option<bool>,
) -> Value {
    let changes = tuned["changes"].as_array().into_iter().flatten();
    let changes: Vec<String> = changes
        .map(|change| {
            let text = |name: &str| change[name].as_str().unwrap_or_default().to_owned();
            format!("{}={}", text("knob"), text("to"))
        })
        .collect();
    let state = match is_near {
        Some(true) => "near",
        Some(false) => "far",
        None => "unknown",
    };
    println!(
        "{name:<14} default {default_value:.4e}, tuned {tuned_value:.4e}: ratio {ratio:.3} (mark {mark:.3}, {state}) {}  {}; {} runs",
        if holds { "yes" } else { "NO" },
        changes.join(" "),
        tuned["runs"]
    );
    json!({
        "name": format!("tune/{name}"), "as_found": default_value, "tuned": tuned_value, "ratio": ratio, "mark": mark,
        "state": state, "changes": changes, "runs": tuned["runs"], "holds": holds,
    })
}

/// Goodput of iperf3 with default options, one second per run, bit/s at the receiver.
fn measure_iperf3(lab: &BenchLab<'_>) -> Result<Vec<f64>, TuneBenchError> {
    let mut server = lab.start_program("server", "iperf3", &["-s"])?;
    let listen_deadline = Instant::now() + Duration::from_secs(5);
    let args = ["-c", "10.77.0.2", "-t", "1", "-J"].map(str::to_owned);
    let mut rates = Vec::new();
    while rates.len() < IPERF3_RUNS {
        let run = lab.run_program("client", "iperf3", &args);
        let document = run.and_then(|text| {
            serde_json::from_str::<Value>(&text)
                .map_err(|error| TuneBenchError(format!("iperf3: {error}")))
        });
        let rate =
            document.map(|document| document["end"]["sum_received"]["bits_per_second"].as_f64());
        match rate {
            Ok(Some(rate)) => rates.push(rate),
            // The server may not listen yet.
            Ok(None) | Err(_) if Instant::now() < listen_deadline => {
                std::thread::sleep(Duration::from_millis(200));
            }
            Ok(None) => return Err(TuneBenchError("iperf3 reported no rate".to_owned())),
            Err(error) => return Err(error),
        }
    }
    let _ = server.kill();
    let _ = server.wait();
    Ok(rates)
}

fn median(values: &[f64]) -> f64 {
    linerate_stats::statistics::median(values).unwrap_or(f64::NAN)
}
