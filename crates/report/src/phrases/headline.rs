//! Headlines: the main figures of runs as sentences.

use linerate_record::plan::{Direction, PerEnd, RunKind, TransportProtocol, WaitMode};
use linerate_record::record::Record;
use linerate_record::run_set::SetResult;
use linerate_stats::histogram::Quantiles;
use linerate_stats::statistics::median;
use linerate_stats::units::{
    format_bit_rate, format_exact_bytes, format_nanos, format_per_second, format_share,
};

use super::plan_text::run_name;
use crate::figures;
use crate::model::{capitalise, format_factor};

/// Returns the main figures of some runs as sentences, one per kind and protocol.
pub(crate) fn run_headlines(runs: &[Record]) -> Vec<String> {
    let mut sentences = Vec::new();
    for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        sentences.extend(throughput_sentence(runs, protocol));
    }
    for protocol in [TransportProtocol::Udp, TransportProtocol::Tcp] {
        sentences.extend(latency_sentence(runs, protocol));
    }
    sentences.extend(packet_sentences(runs));
    sentences
}

/// Returns the main result of a set of runs: that of its search, comparison, tuning or sweep,
/// otherwise the main figures of the runs.
pub(crate) fn set_headlines(result: &SetResult, runs: &[Record]) -> Vec<String> {
    let mut sentences: Vec<String> = (result.capacity.iter())
        .filter_map(|capacity| crate::capacity::describe_throughput(capacity))
        .collect();
    sentences.extend(
        result
            .search
            .as_deref()
            .map(crate::rate_search::search_headline),
    );
    let saturations = result.saturation.iter();
    sentences.extend(
        saturations
            .map(|saturation| format!("{}.", crate::forward::describe_saturation(saturation))),
    );
    let proofs = [
        result.comparison.as_deref(),
        result
            .tuning
            .as_deref()
            .and_then(|tuning| tuning.proof.as_deref()),
    ];
    sentences.extend(
        proofs
            .into_iter()
            .flatten()
            .map(crate::paired_comparison::describe_verdict),
    );
    sentences.extend(
        result
            .sweep
            .as_deref()
            .and_then(crate::sweep::describe_best),
    );
    if let Some(tuning) = result.tuning.as_deref() {
        let changes: Vec<String> = (tuning.changes.iter())
            .map(|change| format!("{} {} instead of {}", change.knob, change.to, change.from))
            .collect();
        sentences.push(match changes.as_slice() {
            [] => "No tested change gave a proven improvement.".to_owned(),
            changes => format!("Changes with a proven effect: {}.", changes.join(", ")),
        });
    }
    if sentences.is_empty() {
        sentences = run_headlines(runs);
    }
    sentences
}

/// Summarises forwarding and generator runs: `io forwarding between 2 ports, 1 core: 1.31 G/s of
/// packets, none dropped.`
fn packet_sentences(runs: &[Record]) -> Vec<String> {
    let sentence = |sentence: &Record| {
        let meaning = match sentence.kind {
            RunKind::Forward => crate::forward::explain_headline(sentence),
            RunKind::Generate => crate::generate::explain_headline(sentence),
            RunKind::Throughput | RunKind::Latency | RunKind::Stack => return None,
        };
        let rate = sentence.summary.packets_per_second;
        Some(match rate.filter(|&rate| rate > 0.0) {
            Some(rate) => format!(
                "{}: {} {meaning}.",
                run_name(sentence),
                format_per_second(rate)
            ),
            None => format!("{}: {meaning}.", run_name(sentence)),
        })
    };
    // Several such runs have a table.
    match runs {
        [only] => sentence(only).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Summarises throughput: `TCP: sent 61.2 Gb/s, received 58.9 Gb/s.`
fn throughput_sentence(runs: &[Record], protocol: TransportProtocol) -> Option<String> {
    let median_of = |direction: Direction| {
        let goodput_and_loss = |run: &Record| {
            let describe = run
                .directions
                .iter()
                .find(|describe| describe.direction == direction)?;
            Some((
                describe.summary.goodput_bps?,
                figures::path_loss(&describe.summary),
            ))
        };
        let first = runs.iter().find(|run| {
            run.kind == RunKind::Throughput
                && run.plan.protocol == protocol
                && goodput_and_loss(run).is_some()
        })?;
        let repeated: Vec<_> = repeats(runs, first).filter_map(goodput_and_loss).collect();
        let rates: Vec<_> = repeated.iter().map(|describe| describe.0).collect();
        let losses: Vec<_> = repeated.iter().filter_map(|describe| describe.1).collect();
        Some((median(&rates)?, median(&losses), rates.len()))
    };
    let loss_suffix = |loss: Option<f64>| match loss {
        Some(loss) if loss > 0.0 => {
            format!(" with {} loss", format_share(loss))
        }
        _ => String::new(),
    };
    let describe = |verb: &str, (rate, loss, _): (f64, Option<f64>, usize)| {
        format!("{verb} {}{}", format_bit_rate(rate), loss_suffix(loss))
    };
    let (send, receive) = (median_of(Direction::Send), median_of(Direction::Receive));
    let count = send.or(receive)?.2;
    let sent = send.map(|send| describe("sent", send));
    let received = receive.map(|receive| describe("received", receive));
    let text: Vec<_> = sent.into_iter().chain(received).collect();
    Some(format!(
        "{protocol}: {}{}.",
        text.join(", "),
        run_count_suffix(count)
    ))
}

/// Returns the runs with the same plan and label as `first`.
fn repeats<'a>(runs: &'a [Record], first: &'a Record) -> impl Iterator<Item = &'a Record> {
    let is_repeat = |run: &&Record| run.plan == first.plan && run.label == first.label;
    runs.iter().filter(is_repeat)
}

/// Returns ` (median of 7 runs)`; empty for one run.
fn run_count_suffix(count: usize) -> String {
    match count {
        0 | 1 => String::new(),
        n => format!(" (median of {n} runs)"),
    }
}

/// Summarises latency: `UDP round trip p50 48.3 us blocking, 6.10 us spinning: 7.9x faster.`
fn latency_sentence(runs: &[Record], protocol: TransportProtocol) -> Option<String> {
    let is_measured = |run: &&Record| {
        run.kind == RunKind::Latency
            && run.plan.protocol == protocol
            && run.summary.rtt_ns.is_some()
    };
    let median_quantile = |first: &Record, read: fn(&Quantiles) -> u64| {
        let values: Vec<_> = repeats(runs, first)
            .filter_map(|run| run.summary.rtt_ns.as_ref())
            .map(|rtt| read(rtt) as f64)
            .collect();
        Some((median(&values)?, run_count_suffix(values.len())))
    };
    let run_with_wait = |wait: WaitMode| {
        runs.iter()
            .filter(is_measured)
            .find(|run| run.plan.wait == Some(PerEnd::same(wait)))
    };
    if let (Some(block), Some(spin)) = (
        run_with_wait(WaitMode::Block),
        run_with_wait(WaitMode::Spin),
    ) {
        let (block, count) = median_quantile(block, |rtt| rtt.p50)?;
        let (spin, _) = median_quantile(spin, |rtt| rtt.p50)?;
        return Some(format!(
            "{protocol} round trip p50 {} blocking, {} spinning{}{count}.",
            format_nanos(block),
            format_nanos(spin),
            speed_change(block, spin),
        ));
    }
    if let Some(sentence) = latency_of_different_plans(runs, protocol, &median_quantile) {
        return Some(sentence);
    }
    let first = runs.iter().find(is_measured)?;
    // One plan may have several labels, such as idle and loaded.
    let mut distinct_runs: Vec<&Record> = Vec::new();
    for run in runs.iter().filter(is_measured) {
        if run.plan == first.plan && distinct_runs.iter().all(|first| first.label != run.label) {
            distinct_runs.push(run);
        }
    }
    let sentence = |first: &&Record| {
        let (p50, count) = median_quantile(first, |rtt| rtt.p50)?;
        let (p99, _) = median_quantile(first, |rtt| rtt.p99)?;
        let label = first.label.as_ref().filter(|_| distinct_runs.len() > 1);
        let prefix = label.map_or_else(String::new, |label| format!("{label}: "));
        let prefix = capitalise(&prefix);
        let from = match first.summary.rtt_intended_ns {
            Some(_) => ", sent: ",
            None => " ",
        };
        Some(format!(
            "{prefix}{protocol} round trip{from}p50 {}, p99 {}{count}.",
            format_nanos(p50),
            format_nanos(p99),
        ))
    };
    let sentences: Option<Vec<_>> = distinct_runs.iter().map(sentence).collect();
    Some(sentences?.join(" "))
}

/// Returns the median over a run's repeats of one quantile, with the number of runs as text.
type MedianQuantile<'a> = dyn Fn(&Record, fn(&Quantiles) -> u64) -> Option<(f64, String)> + 'a;

/// Largest number of measurements that are listed one by one in a sentence.
const MAX_LISTED: usize = 4;

/// Summarises latency runs with different plans, such as a sweep: `UDP round trip p50 12.3 us (64
/// B), 41.0 us (32 KiB).` `None` when all plans are equal.
fn latency_of_different_plans(
    runs: &[Record],
    protocol: TransportProtocol,
    median_quantile: &MedianQuantile<'_>,
) -> Option<String> {
    let runs_of_protocol: Vec<&Record> = (runs.iter())
        .filter(|run| run.kind == RunKind::Latency && run.plan.protocol == protocol)
        .filter(|run| run.summary.rtt_ns.is_some())
        .collect();
    // Runs at a fixed rate show the response time at that load. Runs without a rate show the
    // capacity, so they are left out when there are rated runs.
    let has_rate = runs_of_protocol
        .iter()
        .any(|run| run.plan.round_trip.rate_per_second.is_some());
    let runs_of_protocol = runs_of_protocol
        .into_iter()
        .filter(|run| !has_rate || run.plan.round_trip.rate_per_second.is_some());
    let mut distinct_runs: Vec<&Record> = Vec::new();
    for run in runs_of_protocol {
        let is_repeat = |first: &&Record| first.plan == run.plan && first.label == run.label;
        if !distinct_runs.iter().any(is_repeat) {
            distinct_runs.push(run);
        }
    }
    let first = distinct_runs.first()?;
    if distinct_runs.iter().all(|run| run.plan == first.plan) {
        return None;
    }
    let condition = |run: &Record| match &run.label {
        Some(label) => label.clone(),
        None => format!("{} messages", format_exact_bytes(run.plan.payload_bytes)),
    };
    let figure = |run: &Record| {
        let (p50, _) = median_quantile(run, |rtt| rtt.p50)?;
        Some((format_nanos(p50), condition(run)))
    };
    let (_, count) = median_quantile(first, |rtt| rtt.p50)?;
    let prefix = format!("{protocol} round trip p50");
    if distinct_runs.len() > MAX_LISTED {
        let (low, at_low) = figure(first)?;
        let (high, at_high) = figure(distinct_runs.last()?)?;
        return Some(format!(
            "{prefix} {low} ({at_low}), {high} ({at_high}){count}."
        ));
    }
    let figures: Option<Vec<_>> = distinct_runs
        .iter()
        .map(|run| figure(run).map(|(time, condition)| format!("{time} ({condition})")))
        .collect();
    Some(format!("{prefix} {}{count}.", figures?.join(", ")))
}

/// Returns `: 7.9x faster` or `: 1.2x slower`; empty if the ratio of the times rounds to `1.0x`.
pub(super) fn speed_change(before: f64, after: f64) -> String {
    if before <= 0.0 || after <= 0.0 {
        return String::new();
    }
    let (ratio, comparative) = match after <= before {
        true => (before / after, "faster"),
        false => (after / before, "slower"),
    };
    match format_factor(ratio) {
        ratio if ratio == format_factor(1.0) => String::new(),
        ratio => format!(": {ratio} {comparative}"),
    }
}

#[cfg(test)]
mod tests {
    use linerate_record::plan::Plan;
    use linerate_stats::histogram::Histogram;

    use super::*;

    fn latency_run(bytes: u64, rate: Option<u64>, label: &str, p50: u64) -> Record {
        let text = include_str!("../../tests/fixtures/run-1.json");
        let mut run: Record = serde_json::from_str(text).unwrap();
        let mut times = Histogram::new();
        times.record(p50);
        run.kind = RunKind::Latency;
        run.plan = Plan::new(RunKind::Latency, TransportProtocol::Udp, "host");
        run.plan.payload_bytes = bytes;
        run.plan.round_trip.rate_per_second = rate;
        run.label = Some(label.to_owned());
        run.summary.rtt_ns = times.summary();
        run
    }

    #[test]
    fn equal_times_are_not_called_faster() {
        for (before, after, expected) in [
            (48_300.0, 6_100.0, ": 7.9x faster"),
            (11_900.0, 11_300.0, ": 1.1x faster"),
            (11_900.0, 11_800.0, ""),
            (11_800.0, 11_900.0, ""),
            (12_400.0, 8_000_000.0, ": 645x slower"),
            (11_800.0, 0.0, ""),
            (0.0, 11_800.0, ""),
        ] {
            assert_eq!(speed_change(before, after), expected, "{before} {after}");
        }
    }

    #[test]
    fn round_trips_of_several_sizes_or_rates_are_listed_separately() {
        let sizes: Vec<_> = [(64, "64 B", 12_000), (1_024, "1 KiB", 14_000)]
            .map(|(bytes, label, p50)| latency_run(bytes, None, label, p50))
            .into();
        assert_eq!(
            run_headlines(&sizes),
            ["UDP round trip p50 12.0 us (64 B), 14.0 us (1 KiB)."]
        );
        let mut curve = vec![latency_run(64, None, "capacity", 900_000)];
        curve.extend((1..=9).map(|n| {
            let label = format!("{n}0 % load");
            latency_run(64, Some(n * 1_000), &label, 10_000 + n * 1_000)
        }));
        assert_eq!(
            run_headlines(&curve),
            ["UDP round trip p50 11.0 us (10 % load), 19.0 us (90 % load)."]
        );
        let loaded = ["idle", "loaded"].map(|label| latency_run(64, None, label, 12_000));
        let sentences = run_headlines(&loaded);
        assert!(
            sentences[0].starts_with("Idle: UDP round trip p50"),
            "{sentences:?}"
        );
    }
}
