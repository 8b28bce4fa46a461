//! Conclusions from several runs as a table and a sentence: cost by size, by wait mode, by load.

use linerate_record::ids::AddedDelay;
use linerate_record::load::{KNEE_RESPONSE_SHARE, LatencyUnderLoad, LoadCurve, LoadPoint};
use linerate_record::run_set::SetResult;
use linerate_record::waiting_costs::WaitingCosts;
use linerate_stats::histogram::Quantiles;
use linerate_stats::size_costs::{CostEstimate, SizeCosts};
use linerate_stats::statistics::Estimate;
use linerate_stats::units::{
    format_bit_rate, format_count, format_nanos, format_per_second, format_share,
};

use crate::model::{self, Grid};
use crate::style::strip_control_characters;

/// Conclusion from several runs: a table and its explanation.
pub(crate) struct Conclusion {
    pub(crate) grid: Option<Grid>,
    /// Sentences below the table; may be empty.
    pub(crate) explanation: String,
}

/// Returns the conclusions by size, wait mode and load. Other results of a set have modules of
/// their own.
pub(crate) fn conclusions_of(result: &SetResult) -> Vec<Conclusion> {
    let mut conclusions = Vec::new();
    conclusions.extend(result.size_costs.as_ref().map(size_conclusion));
    conclusions.extend(result.waiting_costs.as_ref().map(waiting_conclusion));
    conclusions.extend(result.load_curve.as_ref().map(load_curve_conclusion));
    conclusions.extend(result.under_load.as_ref().map(under_load_conclusion));
    conclusions
}

/// Formats a time that may be negative or below a nanosecond.
fn format_small_time(ns: f64) -> String {
    let sign = if ns < 0.0 { "-" } else { "" };
    let size = ns.abs();
    match size {
        0.0 => "0 ns".to_owned(),
        // Three digits, as larger times have.
        size if size < 0.9995 => format!("{sign}{size:.3} ns"),
        size if size < 9.995 => format!("{sign}{size:.2} ns"),
        size if size < 99.95 => format!("{sign}{size:.1} ns"),
        size => format!("{sign}{}", format_nanos(size)),
    }
}

fn size_conclusion(costs: &SizeCosts) -> Conclusion {
    let cost_row = |name: &str, cost: &CostEstimate, meaning: &str| {
        vec![
            name.to_owned(),
            format_small_time(cost.ns),
            meaning.to_owned(),
        ]
    };
    let mut rows = vec![
        cost_row(
            "fixed",
            &costs.fixed,
            "cost of a round trip without payload",
        ),
        cost_row(
            "per byte",
            &costs.per_byte,
            match costs.fragments_in_bytes {
                false => "added by each byte of the message, both directions together",
                true => {
                    "added by each byte of the message, both directions together, fragments included: \
                     these runs do not separate the two"
                }
            },
        ),
    ];
    rows.extend(costs.per_fragment.as_ref().map(|cost| {
        cost_row(
            "per fragment",
            cost,
            "added by each IP fragment beyond the first, both directions together",
        )
    }));
    let deviation = match costs.residual_ns {
        Some(residual) => format!(
            "The fitted line deviates from the medians by {} (root mean square).",
            format_small_time(residual)
        ),
        None => {
            "With as many sizes as parameters the line fits every median exactly, so it is not \
                 tested; use more sizes."
                .to_owned()
        }
    };
    Conclusion {
        grid: rows_with_meaning(&["cost", "fit"], rows),
        explanation: format!(
            "{deviation} One run a size does not show how the costs vary from run to run."
        ),
    }
}

/// Builds a table whose last column holds explanations, which move to lines of their own when they
/// do not fit.
fn rows_with_meaning(headings: &[&str], rows: Vec<Vec<String>>) -> Option<Grid> {
    let mut headings = headings.to_vec();
    headings.push("meaning");
    let label_columns = headings.len();
    Grid::new(&headings, rows, label_columns)
}

/// Describes a difference between two modes: a cost, no significant difference, or below zero with
/// a reason.
fn describe_difference(cost: &Estimate, meaning: &str, below_zero: &str) -> String {
    if cost.low > 0.0 {
        return meaning.to_owned();
    }
    if cost.high < 0.0 {
        return format!("{meaning}. Below zero: {below_zero}");
    }
    format!("{meaning}. No difference within the spread of the rounds")
}

fn waiting_conclusion(costs: &WaitingCosts) -> Conclusion {
    let row = |name: &str, cost: &Estimate, meaning: &str| {
        vec![
            name.to_owned(),
            format_small_time(cost.median),
            format_small_time(cost.low),
            format_small_time(cost.high),
            meaning.to_owned(),
        ]
    };
    let mut rows = vec![row("block", &costs.blocking_ns, "both ends block")];
    rows.extend(costs.no_halt_ns.as_ref().map(|cost| {
        row(
            "block, no idle states",
            cost,
            "both ends block, CPU idle states disabled",
        )
    }));
    rows.push(row("spin", &costs.spinning_ns, "both ends spin"));
    rows.extend(costs.halt_ns.as_ref().map(|cost| {
        let meaning = describe_difference(
            cost,
            "exit from CPU idle states: block minus block, no idle states",
            "disabling idle states made it slower: the CPUs share power or a host with others",
        );
        row("idle exit", cost, &meaning)
    }));
    // A spinning thread occupies its core; blocking frees it for other work.
    const SPINNING_COST: &str = "spinning made it slower: the spinning threads lack a CPU each, or \
                                 occupy one that moves the packets";
    rows.extend(costs.wake_up_ns.as_ref().map(|cost| {
        let meaning = describe_difference(
            cost,
            "wake-up of both threads by the scheduler: block, no idle states, minus spin",
            SPINNING_COST,
        );
        row("wake-up", cost, &meaning)
    }));
    let meaning_of_sum = match costs.halt_ns {
        Some(_) => "idle-state exit and wake-up together: block minus spin",
        None => {
            "idle-state exit and wake-up together: block minus spin; `--hold-latency` separates them"
        }
    };
    let meaning = describe_difference(&costs.sleeping_ns, meaning_of_sum, SPINNING_COST);
    rows.push(row("both", &costs.sleeping_ns, &meaning));
    let [low, high] = model::interval_headings(costs.sleeping_ns.runs);
    Conclusion {
        grid: rows_with_meaning(&["p50", "median", low, high], rows),
        explanation: String::new(),
    }
}

fn load_curve_conclusion(load_curve: &LoadCurve) -> Conclusion {
    let time =
        |read: fn(&Quantiles) -> u64, quantiles: &Quantiles| format_nanos(read(quantiles) as f64);
    let row = |point: &LoadPoint| {
        vec![
            format_share(point.share),
            format_per_second(point.intended_per_second),
            format_per_second(point.achieved_per_second),
            time(|q| q.p50, &point.rtt_intended_ns),
            time(|q| q.p90, &point.rtt_intended_ns),
            time(|q| q.p99, &point.rtt_intended_ns),
            time(|q| q.p50, &point.rtt_ns),
            time(|q| q.p99, &point.rtt_ns),
        ]
    };
    let mut rows: Vec<_> = load_curve.points.iter().map(row).collect();
    let mut headings = vec![
        "load",
        "intended",
        "achieved",
        "p50 sched",
        "p90 sched",
        "p99 sched",
        "p50 sent",
        "p99 sent",
    ];
    let mut missing = "";
    if load_curve
        .points
        .iter()
        .any(|point| point.lost + point.unsent > 0)
    {
        // Replaces the column that varies least, so that the table fits.
        headings[6] = "missing";
        for (row, point) in rows.iter_mut().zip(&load_curve.points) {
            row[6] = format_count(point.lost + point.unsent);
        }
        missing = " \"missing\": lost, or scheduled and not sent.";
    }
    let knee = match &load_curve.knee {
        Some(knee) => format!(
            "The knee is at {} of the capacity ({} requests): up to this load, p90 from the scheduled send time stays within twice that of the lowest load, and {} of the requests get a response.",
            format_share(knee.share),
            format_per_second(knee.intended_per_second),
            format_share(KNEE_RESPONSE_SHARE)
        ),
        None => "No knee was found: just above the lowest load, p90 from the scheduled send time is already more than twice as high, or requests get no response.".to_owned(),
    };
    let explanation = format!(
        "Capacity: {} requests, each sent as soon as a slot was free. \"sched\" counts from the scheduled send time, \"sent\" from the actual one.{missing} {knee}",
        format_per_second(load_curve.capacity_per_second)
    );
    Conclusion {
        grid: Grid::new(&headings, rows, 0),
        explanation,
    }
}

fn under_load_conclusion(found: &LatencyUnderLoad) -> Conclusion {
    let rows = [
        ("p50", found.idle_ns.p50, found.loaded_ns.p50),
        ("p90", found.idle_ns.p90, found.loaded_ns.p90),
        ("p99", found.idle_ns.p99, found.loaded_ns.p99),
        ("p99.9", found.idle_ns.p99_9, found.loaded_ns.p99_9),
        ("max", found.idle_ns.max, found.loaded_ns.max),
    ]
    .map(|(name, idle, loaded)| {
        let (idle, loaded) = (idle as f64, loaded as f64);
        vec![
            name.to_owned(),
            format_nanos(idle),
            format_nanos(loaded),
            format_small_time(loaded - idle),
        ]
    });
    let load = strip_control_characters(&found.load);
    let mut explanation = match found.load_goodput_bps {
        Some(rate) => format!("Goodput of the load ({load}): {}.", format_bit_rate(rate)),
        None => format!("Load: {load}."),
    };
    let added_by = found.added_by.as_ref().and_then(|origin| origin.known());
    if found.added_p50_ns < 0.0 {
        explanation.push_str(
            " The median is lower under load: the load keeps CPUs out of idle states, which hides the delay it adds. `--hold-latency` disables idle states in both runs.",
        );
    } else if let Some(origin) = added_by {
        explanation.push_str(match origin {
            AddedDelay::ProcessorWait => {
                " The added time is the wait of the threads for a CPU, not a queue on the path."
            }
            AddedDelay::KernelWork => {
                " The added time is work of the kernel and of the load's threads on this machine: over loopback no link has a queue."
            }
            AddedDelay::PathQueue => {
                " The added time is queueing (bufferbloat), and kernel time on both hosts."
            }
        });
    }
    if let Some(wait) = found
        .processor_wait_ns
        .filter(|&wait| wait > 0.0 && found.added_p50_ns >= 0.0)
    {
        explanation.push_str(&format!(
            " Threads waited {} a round trip longer for a CPU.",
            format_small_time(wait)
        ));
    }
    if let Some(rate) = found.rate_per_second {
        explanation.push_str(&format!(
            " Each flow sent {} requests per second in both runs. These times count from the scheduled send time; those of each run, marked \"sent\", from the actual one.",
            format_count(rate)
        ));
    }
    let from = match found.rate_per_second {
        Some(_) => "rtt, scheduled",
        None => "rtt, sent",
    };
    Conclusion {
        grid: Grid::new(&[from, "idle", "loaded", "added"], rows.into(), 1),
        explanation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_below_zero_are_explained() {
        let describe = |low, median, high| {
            let cost = Estimate {
                runs: 5,
                median,
                low,
                high,
            };
            describe_difference(&cost, "a minus b", "b is slower")
        };
        assert_eq!(describe(1.0, 2.0, 3.0), "a minus b");
        assert_eq!(
            describe(-3.0, -2.0, -1.0),
            "a minus b. Below zero: b is slower"
        );
        for (low, median, high) in [(-1.0, 2.0, 3.0), (-3.0, -2.0, 1.0), (0.0, 0.0, 0.0)] {
            assert!(describe(low, median, high).contains("No difference within the spread"));
        }
    }
}
