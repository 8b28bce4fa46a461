//! Rows in a lab with the kernel's defaults: the gain of `tune` without hints.

use std::time::{Duration, Instant};

use linerate_host::doctor::cache_line::{NEAR_BELOW, cache_line_round_trip};
use linerate_host::sys::cpu;
use serde_json::{Value, json};

use crate::Asked;
use crate::program::{Lab, Program, Trouble};

/// Names of these rows.
pub const NAMES: [&str; 2] = ["found-goodput", "found-p50"];

/// Required factor over iperf3's goodput, in the near state and in the far state.
const GOODPUT: (f64, f64) = (8.0, 6.0);
/// Required fraction of the default round trip.
const P50: f64 = 1.0 / 7.0;
/// Number of iperf3 runs with default settings, before the search and again after it.
const IPERF3_RUNS: usize = 7;

const DIRECT: &str =
    "[hosts.client]\n[hosts.server]\n[[links]]\nbetween = [\"client\", \"server\"]\n";

/// Runs a row: the result of `tune` over the default.
pub fn row(program: &Program, name: &str, asked: &Asked) -> Result<Value, Trouble> {
    // Grants that a user who tunes would give.
    let lab = Lab::up(
        program,
        name,
        DIRECT,
        "server -q --grant sched,idle,buffers,socket",
    )?;
    match name {
        "found-goodput" => goodput(&lab, asked),
        _ => p50(&lab, asked),
    }
}

/// Returns whether the machine is in the near state, in which a cache line crosses fast.
fn near() -> Option<bool> {
    let usable = cpu::usable().ok()?;
    let &[first, second, ..] = usable.as_slice() else {
        return None;
    };
    Some(cache_line_round_trip(first, second)? < NEAR_BELOW)
}

fn tune(lab: &Lab<'_>, goal: &str, asked: &Asked) -> Result<Value, Trouble> {
    let time = asked.time.as_deref().unwrap_or("300ms");
    let runs = if asked.quick { 40 } else { 120 };
    let words = format!("tune 10.77.0.2 --json --seed 1 --time {time} --runs {runs} {goal}");
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    Ok(lab.client(&words)?["result"]["tuning"].clone())
}

fn goodput(lab: &Lab<'_>, asked: &Asked) -> Result<Value, Trouble> {
    let near_before = near();
    let before = iperf3(lab)?;
    let tuned = tune(lab, "--goal goodput", asked)?;
    // Measured before and after the search, so that a slow phase of the machine does not look like
    // a gain.
    let after = iperf3(lab)?;
    let found = median(&[before, after].concat());
    // The higher mark applies if the machine was near before or after.
    let near = near_before.max(near());
    let mark = if near == Some(true) {
        GOODPUT.0
    } else {
        GOODPUT.1
    };
    let ours = proven(&tuned)?;
    let ratio = ours / found;
    Ok(print(
        "found-goodput",
        &tuned,
        (found, ours),
        ratio,
        (ratio >= mark, mark),
        near,
    ))
}

fn p50(lab: &Lab<'_>, asked: &Asked) -> Result<Value, Trouble> {
    let tuned = tune(lab, "--goal p50 -u", asked)?;
    let ratio = tuned["proof"]["ratio"]["median"].as_f64();
    let ratio = ratio.ok_or_else(|| Trouble("tune gave no proof".to_owned()))?;
    let start = tuned["proof"]["a"]["value"]["median"]
        .as_f64()
        .unwrap_or(f64::NAN);
    let ours = proven(&tuned)?;
    Ok(print(
        "found-p50",
        &tuned,
        (start, ours),
        ratio,
        (ratio <= P50, P50),
        near(),
    ))
}

fn proven(tuned: &Value) -> Result<f64, Trouble> {
    let value = tuned["proof"]["b"]["value"]["median"].as_f64();
    value.ok_or_else(|| Trouble("tune gave no proof".to_owned()))
}

fn print(
    name: &str,
    tuned: &Value,
    (found, ours): (f64, f64),
    ratio: f64,
    (holds, mark): (bool, f64),
    near: Option<bool>,
) -> Value {
    let changes = tuned["changes"].as_array().into_iter().flatten();
    let changes: Vec<String> = changes
        .map(|change| {
            let text = |name: &str| change[name].as_str().unwrap_or_default().to_owned();
            format!("{}={}", text("knob"), text("to"))
        })
        .collect();
    let state = match near {
        Some(true) => "near",
        Some(false) => "far",
        None => "unknown",
    };
    println!(
        "{name:<14} default {found:.4e}, tuned {ours:.4e}: ratio {ratio:.3} (mark {mark:.3}, {state}) {}  {}; {} runs",
        if holds { "yes" } else { "NO" },
        changes.join(" "),
        tuned["runs"]
    );
    json!({
        "name": format!("tune/{name}"), "as_found": found, "tuned": ours, "ratio": ratio, "mark": mark,
        "state": state, "changes": changes, "runs": tuned["runs"], "holds": holds,
    })
}

/// Goodput of iperf3 with default options, one second per run, bit/s at the receiver.
fn iperf3(lab: &Lab<'_>) -> Result<Vec<f64>, Trouble> {
    let mut server = lab.start("server", "iperf3", &["-s"])?;
    let until = Instant::now() + Duration::from_secs(5);
    let words = ["-c", "10.77.0.2", "-t", "1", "-J"].map(str::to_owned);
    let mut rates = Vec::new();
    while rates.len() < IPERF3_RUNS {
        let run = lab.other("client", "iperf3", &words);
        let document = run.and_then(|text| {
            serde_json::from_str::<Value>(&text)
                .map_err(|error| Trouble(format!("iperf3: {error}")))
        });
        let rate =
            document.map(|document| document["end"]["sum_received"]["bits_per_second"].as_f64());
        match rate {
            Ok(Some(rate)) => rates.push(rate),
            // The server may not listen yet.
            Ok(None) | Err(_) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(200));
            }
            Ok(None) => return Err(Trouble("iperf3 reported no rate".to_owned())),
            Err(error) => return Err(error),
        }
    }
    let _ = server.kill();
    let _ = server.wait();
    Ok(rates)
}

fn median(values: &[f64]) -> f64 {
    linerate_metric::statistics::median(values).unwrap_or(f64::NAN)
}
