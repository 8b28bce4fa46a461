//! Conclusions from several runs: cost by size, by wait mode, by load.

use linerate_metric::forward::Saturation;
use linerate_metric::histogram::Quantiles;
use linerate_metric::load::{KNEE_ANSWERED, LoadCurve, LoadPoint, UnderLoad};
use linerate_metric::run_set::SetResult;
use linerate_metric::size_costs::{Cost, SizeCosts};
use linerate_metric::statistics::Estimate;
use linerate_metric::units::{
    format_bit_rate, format_count, format_nanos, format_per_second, format_share,
};
use linerate_metric::waiting_costs::WaitingCosts;

use super::table::{Grid, table};
use crate::forward;
use crate::phrases;
use crate::style::{Style, clean, wrap};

/// Conclusion from several runs: a table and its explanation.
pub(crate) struct Conclusion {
    pub(crate) grid: Option<Grid>,
    /// Sentences below the table; may be empty.
    pub(crate) said: String,
}

impl Conclusion {
    fn text(self, style: &Style) -> String {
        let grid = self.grid.map(|grid| grid.text(style));
        let said = (!self.said.is_empty()).then(|| wrap(&self.said, style.width).join("\n"));
        let blocks: Vec<String> = grid.into_iter().chain(said).collect();
        blocks.join("\n\n")
    }
}

/// Returns the conclusions by size, wait mode and load. Other results of a set have modules of
/// their own.
pub(crate) fn conclusions_of(result: &SetResult) -> Vec<Conclusion> {
    let mut all = Vec::new();
    all.extend(result.size_costs.as_ref().map(by_size));
    all.extend(result.waiting_costs.as_ref().map(waiting));
    all.extend(result.load_curve.as_ref().map(curve));
    all.extend(result.under_load.as_ref().map(under_load));
    all
}

/// Renders all results of a set, one block each.
pub(super) fn conclusions(result: &SetResult, style: &Style) -> Vec<String> {
    let mut blocks: Vec<String> = (conclusions_of(result).into_iter())
        .map(|found| found.text(style))
        .collect();
    blocks.extend(saturation(result, style));
    let compared = result.comparison.as_ref();
    blocks.extend(compared.map(|found| super::comparison::comparison(found, style)));
    blocks.extend(
        result
            .sweep
            .as_ref()
            .map(|found| super::sweep::sweep(found, style)),
    );
    blocks.extend(
        result
            .tuning
            .as_ref()
            .map(|found| super::tuning::tuning(found, style)),
    );
    blocks
}

/// Renders packets per second by packets in flight, with the plateau of each sweep.
fn saturation(result: &SetResult, style: &Style) -> Vec<String> {
    let walks = &result.saturation;
    if walks.is_empty() {
        return Vec::new();
    }
    let rows = walks.iter().flat_map(|walk| {
        let bars = bars(walk, style);
        let rows = forward::saturation_rows(walk).into_iter().zip(bars);
        rows.map(|(mut row, bar)| {
            row.insert(BARS_AT, bar);
            row
        })
    });
    let mut headings = forward::SATURATION.to_vec();
    headings.insert(BARS_AT, "");
    let words = walks.iter().map(forward::saturation_words);
    let lines: Vec<_> = words.flat_map(|words| wrap(&words, style.width)).collect();
    vec![table(&headings, rows.collect(), 0, style), lines.join("\n")]
}

/// Column of the bars, after the rates.
const BARS_AT: usize = 4;
/// Characters of the longest bar.
const BAR: usize = 14;

/// Draws the rates of a sweep as bars relative to its highest rate.
fn bars(walk: &Saturation, style: &Style) -> Vec<String> {
    let rates = walk.points.iter().map(|point| point.packets_per_second);
    let highest = rates.clone().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    rates
        .map(|rate| {
            let signs = (rate / highest * BAR as f64).round() as usize;
            let bar = style.glyph("█", "#").repeat(signs);
            format!("{bar:<BAR$}")
        })
        .collect()
}

/// Formats a time that may be negative or below a nanosecond.
fn fine(ns: f64) -> String {
    let sign = if ns < 0.0 { "-" } else { "" };
    let size = ns.abs();
    match size {
        0.0 => "0 ns".to_owned(),
        size if size < 100.0 => format!("{sign}{size:.3} ns"),
        size => format!("{sign}{}", format_nanos(size)),
    }
}

fn by_size(costs: &SizeCosts) -> Conclusion {
    let row = |name: &str, cost: &Cost, meaning: &str| {
        vec![
            name.to_owned(),
            fine(cost.ns),
            phrases::or_unknown(cost.low_ns, fine),
            phrases::or_unknown(cost.high_ns, fine),
            meaning.to_owned(),
        ]
    };
    let mut rows = vec![
        row(
            "fixed",
            &costs.fixed,
            "cost of a round trip without payload",
        ),
        row(
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
        row(
            "per fragment",
            cost,
            "added by each IP fragment beyond the first, both directions together",
        )
    }));
    let misses = match costs.residual_ns {
        Some(residual) => format!(
            "The fitted line deviates from the medians by {} (root mean square).",
            fine(residual)
        ),
        None => {
            "With as many sizes as parameters the line fits every median exactly, so it is not \
                 tested; use more sizes."
                .to_owned()
        }
    };
    let error = match costs.fixed.low_ns {
        Some(_) => " The bounds come from the variation of the interval medians.",
        None => " The error is unknown: a run has fewer than three intervals.",
    };
    Conclusion {
        grid: rows_with_meaning(&["cost", "median", "95 % from", "to"], rows),
        said: format!("{misses}{error}"),
    }
}

/// Builds a table whose last column holds explanations, which move to lines of their own when they
/// do not fit.
fn rows_with_meaning(headings: &[&str], rows: Vec<Vec<String>>) -> Option<Grid> {
    let mut headings = headings.to_vec();
    headings.push("meaning");
    let left = headings.len();
    Grid::new(&headings, rows, left)
}

/// Describes a difference between two modes: a cost, no significant difference, or below zero with
/// a reason.
fn difference(cost: &Estimate, meaning: &str, below_zero: &str) -> String {
    if cost.low > 0.0 {
        return meaning.to_owned();
    }
    if cost.high < 0.0 {
        return format!("{meaning}. Below zero: {below_zero}");
    }
    format!("{meaning}. No difference within the spread of the rounds")
}

fn waiting(costs: &WaitingCosts) -> Conclusion {
    let row = |name: &str, cost: &Estimate, meaning: &str| {
        vec![
            name.to_owned(),
            fine(cost.median),
            fine(cost.low),
            fine(cost.high),
            meaning.to_owned(),
        ]
    };
    let mut rows = vec![row("blocking", &costs.blocking_ns, "both ends block")];
    rows.extend(costs.held_ns.as_ref().map(|cost| {
        row(
            "blocking, held",
            cost,
            "both ends block, CPU idle states disabled",
        )
    }));
    rows.push(row("spinning", &costs.spinning_ns, "both ends spin"));
    rows.extend(costs.halt_ns.as_ref().map(|cost| {
        let meaning = difference(
            cost,
            "blocking minus held: exit from CPU idle states",
            "disabling idle states made it slower: the cores share power or a host with others",
        );
        row("halt", cost, &meaning)
    }));
    // A spinning thread occupies its core; blocking frees it for other work.
    const SPINNING_COST: &str = "spinning made it slower: the spinning threads lack a core each, or \
                                 occupy one that moves the packets";
    rows.extend(costs.wake_up_ns.as_ref().map(|cost| {
        let meaning = difference(
            cost,
            "held minus spinning: wake-up of both threads by the scheduler",
            SPINNING_COST,
        );
        row("wake-up", cost, &meaning)
    }));
    let both = match costs.halt_ns {
        Some(_) => "blocking minus spinning: wake-up and idle-state exit together",
        None => {
            "blocking minus spinning: wake-up and idle-state exit together; `--hold-latency` separates them"
        }
    };
    let meaning = difference(&costs.sleeping_ns, both, SPINNING_COST);
    rows.push(row("sleeping", &costs.sleeping_ns, &meaning));
    let (low, high) = if costs.sleeping_ns.runs < 6 {
        ("lowest", "highest")
    } else {
        ("95 % from", "to")
    };
    Conclusion {
        grid: rows_with_meaning(&["p50", "median", low, high], rows),
        said: String::new(),
    }
}

fn curve(found: &LoadCurve) -> Conclusion {
    let time = |read: fn(&Quantiles) -> u64, from: &Quantiles| format_nanos(read(from) as f64);
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
    let mut rows: Vec<_> = found.points.iter().map(row).collect();
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
    if found
        .points
        .iter()
        .any(|point| point.lost + point.unsent > 0)
    {
        // Replaces the column that varies least, so that the table fits.
        headings[6] = "missing";
        for (row, point) in rows.iter_mut().zip(&found.points) {
            row[6] = format_count(point.lost + point.unsent);
        }
        missing = " \"missing\": lost, or scheduled and not sent.";
    }
    let knee = match &found.knee {
        Some(knee) => format!(
            "The knee is at {} of the capacity ({} requests): up to this load, p90 from the scheduled send time stays within twice that of the lowest load, and {} of the requests get a response.",
            format_share(knee.share),
            format_per_second(knee.intended_per_second),
            format_share(KNEE_ANSWERED)
        ),
        None => "No knee was found: just above the lowest load, p90 from the scheduled send time is already more than twice as high, or requests get no response.".to_owned(),
    };
    let all = format!(
        "Capacity: {} requests, each sent as soon as a slot was free. \"sched\" counts from the scheduled send time, \"sent\" from the actual one.{missing} {knee}",
        format_per_second(found.capacity_per_second)
    );
    Conclusion {
        grid: Grid::new(&headings, rows, 0),
        said: all,
    }
}

fn under_load(found: &UnderLoad) -> Conclusion {
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
            fine(loaded - idle),
        ]
    });
    let load = clean(&found.load);
    let mut what = match found.load_goodput_bps {
        Some(rate) => format!("Goodput of the load ({load}): {}.", format_bit_rate(rate)),
        None => format!("Load: {load}."),
    };
    what.push_str(match (found.added_p50_ns < 0.0, found.load_goodput_bps) {
        (true, _) => {
            " The median is lower under load: the load keeps cores out of idle states, which hides the delay it adds. `--hold-latency` disables idle states in both runs."
        }
        (false, Some(_)) => {
            " The added time is queueing (bufferbloat), and kernel time on both hosts."
        }
        (false, None) => " The added time is the wait of the threads for a CPU.",
    });
    if let Some(rate) = found.rate_per_second {
        what.push_str(&format!(
            " Each flow sent {} requests per second in both runs; times count from the scheduled send time.",
            format_count(rate)
        ));
    }
    Conclusion {
        grid: Grid::new(&["rtt", "idle", "loaded", "added"], rows.into(), 1),
        said: what,
    }
}

#[cfg(test)]
mod tests {
    use linerate_metric::forward::SaturationPoint;

    use super::*;

    #[test]
    fn differences_below_zero_are_explained() {
        let told = |low, median, high| {
            let cost = Estimate {
                runs: 5,
                median,
                low,
                high,
            };
            difference(&cost, "a minus b", "b is slower")
        };
        assert_eq!(told(1.0, 2.0, 3.0), "a minus b");
        assert_eq!(told(-3.0, -2.0, -1.0), "a minus b. Below zero: b is slower");
        for (low, median, high) in [(-1.0, 2.0, 3.0), (-3.0, -2.0, 1.0), (0.0, 0.0, 0.0)] {
            assert!(told(low, median, high).contains("No difference within the spread"));
        }
    }

    #[test]
    fn a_walk_is_drawn_beside_its_rates() {
        let point = |tx_first: u64, rate: f64| SaturationPoint {
            tx_first,
            in_flight: 32 * tx_first,
            packets_per_second: rate,
            ..SaturationPoint::default()
        };
        let walk = |cores, rates: [f64; 3]| Saturation {
            cores,
            points: [1, 2, 4]
                .into_iter()
                .zip(rates)
                .map(|(at, rate)| point(at, rate))
                .collect(),
            ..Saturation::default()
        };
        // Bars are relative to the highest rate of their own sweep.
        let result = SetResult {
            saturation: vec![walk(1, [1e9, 2e9, 2e9]), walk(2, [0.0, 1e6, 4e6])],
            ..SetResult::default()
        };
        let plain = Style {
            color: false,
            width: 80,
            unicode: false,
        };
        let mut text = saturation(&result, &plain);
        let (text, words) = (text.remove(0), text.remove(0));
        let bars: Vec<usize> = (text.lines().skip(1))
            .map(|line| line.matches('#').count())
            .collect();
        assert_eq!(bars, [7, 14, 14, 0, 4, 14], "{text}");
        assert_eq!(words.lines().count(), 2, "{words}");
        let fits = |text: &str| text.lines().all(|line| line.chars().count() <= 80);
        assert!(fits(&text), "{text}");
        // The note on a disturbed sweep is longer than a line.
        let mut disturbed = result;
        for walk in &mut disturbed.saturation {
            walk.points
                .iter_mut()
                .for_each(|point| point.disturbed = true);
        }
        let words = saturation(&disturbed, &plain).remove(1);
        assert!(fits(&words) && words.contains("core-disturbed"), "{words}");
    }
}
