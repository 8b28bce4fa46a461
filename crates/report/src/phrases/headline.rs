//! Headlines: the main figures of runs as sentences.

use linerate_metric::plan::{Direction, Ends, Kind, Protocol, Wait};
use linerate_metric::record::{Quantiles, Record};
use linerate_metric::run_set::SetResult;
use linerate_metric::statistics::median;
use linerate_metric::units::{
    format_bit_rate, format_exact_bytes, format_nanos, format_per_second, format_share,
};

use super::plan_text::name;
use super::times;

/// Returns the main figures of some runs as sentences, one per kind and protocol.
pub(crate) fn headline(runs: &[Record]) -> Vec<String> {
    let mut sentences = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        sentences.extend(throughput_sentence(runs, protocol));
    }
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        sentences.extend(latency_sentence(runs, protocol));
    }
    sentences.extend(frames_sentences(runs));
    sentences
}

/// Returns the main result of a set of runs: that of its search, comparison, tuning or sweep,
/// otherwise the main figures of the runs.
pub(crate) fn set_headline(result: &SetResult, runs: &[Record]) -> Vec<String> {
    let mut sentences: Vec<String> = (result.capacity.iter())
        .filter_map(|capacity| crate::text::capacity::headline(capacity))
        .collect();
    sentences.extend(result.search.as_deref().map(crate::text::search_words));
    let walks = result.saturation.iter();
    sentences.extend(walks.map(|walk| format!("{}.", crate::forward::saturation_words(walk))));
    let proofs = [
        result.comparison.as_deref(),
        result
            .tuning
            .as_deref()
            .and_then(|tuning| tuning.proof.as_deref()),
    ];
    sentences.extend(proofs.into_iter().flatten().map(crate::text::verdict_words));
    sentences.extend(result.sweep.as_deref().and_then(crate::text::best_words));
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
        sentences = headline(runs);
    }
    sentences
}

/// Summarises forwarding and generator runs: `io forwarding between 2 ports, 1 core: 1.31 G/s of
/// packets, none dropped.`
fn frames_sentences(runs: &[Record]) -> Vec<String> {
    let run = |run: &Record| {
        let meaning = match run.kind {
            Kind::Forward => crate::forward::meaning(run),
            Kind::Generate => crate::generate::meaning(run),
            Kind::Throughput | Kind::Latency | Kind::Stack => return None,
        };
        let rate = run.summary.packets_per_second;
        Some(match rate.filter(|&rate| rate > 0.0) {
            Some(rate) => format!("{}: {} {meaning}.", name(run), format_per_second(rate)),
            None => format!("{}: {meaning}.", name(run)),
        })
    };
    // Several such runs have a table.
    match runs {
        [only] => run(only).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Summarises throughput: `TCP carried 61.2 Gb/s out and 58.9 Gb/s back.`
fn throughput_sentence(runs: &[Record], protocol: Protocol) -> Option<String> {
    let found = |direction: Direction| {
        let of = |run: &Record| {
            let way = run
                .directions
                .iter()
                .find(|way| way.direction == direction)?;
            Some((way.summary.goodput_bps?, way.summary.loss_fraction))
        };
        let first = runs.iter().find(|run| {
            run.kind == Kind::Throughput && run.plan.protocol == protocol && of(run).is_some()
        })?;
        let same: Vec<_> = repeats(runs, first).filter_map(of).collect();
        let rates: Vec<_> = same.iter().map(|way| way.0).collect();
        let losses: Vec<_> = same.iter().filter_map(|way| way.1).collect();
        Some((median(&rates)?, median(&losses), rates.len()))
    };
    let lost = |loss: Option<f64>| match loss {
        Some(loss) if loss > 0.0 => {
            format!(" with {} loss", format_share(loss))
        }
        _ => String::new(),
    };
    let way = |(rate, loss, _): (f64, Option<f64>, usize), word: &str| {
        format!("{}{word}{}", format_bit_rate(rate), lost(loss))
    };
    let (send, receive) = (found(Direction::Send), found(Direction::Receive));
    let count = send.or(receive)?.2;
    let text = match (send, receive) {
        (Some(send), Some(receive)) => {
            format!("{} and {}", way(send, " out"), way(receive, " back"))
        }
        (Some(send), None) => way(send, ""),
        (None, Some(receive)) => way(receive, " back"),
        (None, None) => return None,
    };
    Some(format!("{protocol} carried {text}{}.", of_runs(count)))
}

/// Returns the runs with the same plan and label as `first`.
fn repeats<'a>(runs: &'a [Record], first: &'a Record) -> impl Iterator<Item = &'a Record> {
    let alike = |run: &&Record| run.plan == first.plan && run.label == first.label;
    runs.iter().filter(alike)
}

/// Returns ` (median of 7 runs)`; empty for one run.
fn of_runs(count: usize) -> String {
    match count {
        0 | 1 => String::new(),
        n => format!(" (median of {n} runs)"),
    }
}

/// Summarises latency: `UDP round trip p50 48.3 us blocking, 6.10 us spinning: 7.9x faster.`
fn latency_sentence(runs: &[Record], protocol: Protocol) -> Option<String> {
    let known = |run: &&Record| {
        run.kind == Kind::Latency && run.plan.protocol == protocol && run.summary.rtt_ns.is_some()
    };
    let typical = |first: &Record, read: fn(&Quantiles) -> u64| {
        let values: Vec<_> = repeats(runs, first)
            .filter_map(|run| run.summary.rtt_ns.as_ref())
            .map(|rtt| read(rtt) as f64)
            .collect();
        Some((median(&values)?, of_runs(values.len())))
    };
    let waited = |wanted: Wait| {
        runs.iter()
            .filter(known)
            .find(|run| run.plan.wait == Some(Ends::both(wanted)))
    };
    if let (Some(block), Some(spin)) = (waited(Wait::Block), waited(Wait::Spin)) {
        let (block, count) = typical(block, |rtt| rtt.p50)?;
        let (spin, _) = typical(spin, |rtt| rtt.p50)?;
        return Some(format!(
            "{protocol} round trip p50 {} blocking, {} spinning{}{count}.",
            format_nanos(block),
            format_nanos(spin),
            faster(block, spin),
        ));
    }
    if let Some(sentence) = different_round_trips(runs, protocol, &typical) {
        return Some(sentence);
    }
    let first = runs.iter().find(known)?;
    // One plan may have several labels, such as idle and loaded.
    let mut firsts: Vec<&Record> = Vec::new();
    for run in runs.iter().filter(known) {
        if run.plan == first.plan && firsts.iter().all(|first| first.label != run.label) {
            firsts.push(run);
        }
    }
    let sentence = |first: &&Record| {
        let (p50, count) = typical(first, |rtt| rtt.p50)?;
        let (p99, _) = typical(first, |rtt| rtt.p99)?;
        let label = first.label.as_ref().filter(|_| firsts.len() > 1);
        let half = label.map_or_else(String::new, |label| format!("{label}: "));
        let half = capitalised(&half);
        Some(format!(
            "{half}{protocol} round trip p50 {}, p99 {}{count}.",
            format_nanos(p50),
            format_nanos(p99),
        ))
    };
    let sentences: Option<Vec<_>> = firsts.iter().map(sentence).collect();
    Some(sentences?.join(" "))
}

/// Returns the median over a run's repeats of one quantile, with the number of runs as text.
type Typical<'a> = dyn Fn(&Record, fn(&Quantiles) -> u64) -> Option<(f64, String)> + 'a;

/// Largest number of measurements that are listed one by one in a sentence.
const EACH: usize = 4;

/// Summarises latency runs with different plans, such as a sweep: `UDP round trip p50 12.3 us (64
/// B), 41.0 us (32 KiB).` `None` when all plans are equal.
fn different_round_trips(
    runs: &[Record],
    protocol: Protocol,
    typical: &Typical<'_>,
) -> Option<String> {
    let known: Vec<&Record> = (runs.iter())
        .filter(|run| run.kind == Kind::Latency && run.plan.protocol == protocol)
        .filter(|run| run.summary.rtt_ns.is_some())
        .collect();
    // Runs at a fixed rate show the response time at that load. Runs without a rate show the
    // capacity, so they are left out when there are rated runs.
    let rated = known
        .iter()
        .any(|run| run.plan.round_trip.rate_per_second.is_some());
    let known = known
        .into_iter()
        .filter(|run| !rated || run.plan.round_trip.rate_per_second.is_some());
    let mut firsts: Vec<&Record> = Vec::new();
    for run in known {
        let is_repeat = |first: &&Record| first.plan == run.plan && first.label == run.label;
        if !firsts.iter().any(is_repeat) {
            firsts.push(run);
        }
    }
    let first = firsts.first()?;
    if firsts.iter().all(|run| run.plan == first.plan) {
        return None;
    }
    let what = |run: &Record| match &run.label {
        Some(label) => label.clone(),
        None => format!("{} messages", format_exact_bytes(run.plan.payload_bytes)),
    };
    let figure = |run: &Record| {
        let (p50, _) = typical(run, |rtt| rtt.p50)?;
        Some((format_nanos(p50), what(run)))
    };
    let (_, count) = typical(first, |rtt| rtt.p50)?;
    let half = format!("{protocol} round trip p50");
    if firsts.len() > EACH {
        let (low, at_low) = figure(first)?;
        let (high, at_high) = figure(firsts.last()?)?;
        return Some(format!(
            "{half} {low} ({at_low}), {high} ({at_high}){count}."
        ));
    }
    let figures: Option<Vec<_>> = firsts
        .iter()
        .map(|run| figure(run).map(|(time, what)| format!("{time} ({what})")))
        .collect();
    Some(format!("{half} {}{count}.", figures?.join(", ")))
}

/// Capitalises the first letter of a sentence.
pub(crate) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// Returns `: 7.9x faster` or `: 1.2x slower`; empty if the ratio of the times rounds to `1.0x`.
pub(super) fn faster(before: f64, after: f64) -> String {
    if before <= 0.0 || after <= 0.0 {
        return String::new();
    }
    let (ratio, way) = match after <= before {
        true => (before / after, "faster"),
        false => (after / before, "slower"),
    };
    match times(ratio) {
        ratio if ratio == times(1.0) => String::new(),
        ratio => format!(": {ratio} {way}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::histogram::Histogram;
    use linerate_metric::plan::Plan;

    fn asked(bytes: u64, rate: Option<u64>, label: &str, p50: u64) -> Record {
        let text = include_str!("../../tests/fixtures/run-1.json");
        let mut run: Record = serde_json::from_str(text).unwrap();
        let mut times = Histogram::new();
        times.record(p50);
        run.kind = Kind::Latency;
        run.plan = Plan::new(Kind::Latency, Protocol::Udp, "host");
        run.plan.payload_bytes = bytes;
        run.plan.round_trip.rate_per_second = rate;
        run.label = Some(label.to_owned());
        run.summary.rtt_ns = times.summary();
        run
    }

    #[test]
    fn what_is_as_fast_is_not_called_faster() {
        for (before, after, want) in [
            (48_300.0, 6_100.0, ": 7.9x faster"),
            (11_900.0, 11_300.0, ": 1.1x faster"),
            (11_900.0, 11_800.0, ""),
            (11_800.0, 11_900.0, ""),
            (12_400.0, 8_000_000.0, ": 645x slower"),
            (11_800.0, 0.0, ""),
            (0.0, 11_800.0, ""),
        ] {
            assert_eq!(faster(before, after), want, "{before} {after}");
        }
    }

    #[test]
    fn round_trips_of_several_sizes_or_rates_are_told_apart() {
        let sizes: Vec<_> = [(64, "64 B", 12_000), (1_024, "1 KiB", 14_000)]
            .map(|(bytes, label, p50)| asked(bytes, None, label, p50))
            .into();
        assert_eq!(
            headline(&sizes),
            ["UDP round trip p50 12.0 us (64 B), 14.0 us (1 KiB)."]
        );
        let mut curve = vec![asked(64, None, "capacity", 900_000)];
        curve.extend((1..=9).map(|n| {
            let label = format!("{n}0 % load");
            asked(64, Some(n * 1_000), &label, 10_000 + n * 1_000)
        }));
        assert_eq!(
            headline(&curve),
            ["UDP round trip p50 11.0 us (10 % load), 19.0 us (90 % load)."]
        );
        let loaded = ["idle", "loaded"].map(|label| asked(64, None, label, 12_000));
        let told = headline(&loaded);
        assert!(told[0].starts_with("Idle: UDP round trip p50"), "{told:?}");
    }
}
