//! Text of caveats and findings.

use linerate_record::finding::{Evidence, EvidenceValue, Finding, FindingKind};
use linerate_record::ids::{CaveatId, StoredId};
use linerate_record::record::{Caveat, Record};
use linerate_stats::units::{
    format_bit_rate, format_bytes, format_count, format_nanos, format_share,
};

use super::run_name;
use crate::model;

/// Returns each distinct caveat of some runs, with the names of the runs that have it.
pub(crate) fn distinct_caveats(runs: &[Record]) -> Vec<(&Caveat, Vec<String>)> {
    let mut caveats: Vec<(&Caveat, Vec<String>)> = Vec::new();
    for run in runs {
        for caveat in &run.validity {
            match caveats.iter_mut().find(|(known, _)| *known == caveat) {
                Some((_, names)) => names.push(run_name(run)),
                None => caveats.push((caveat, vec![run_name(run)])),
            }
        }
    }
    caveats
}

/// A kind of caveat, counted over many runs.
pub(crate) struct CaveatCount<'a> {
    /// First caveat of this kind.
    pub(crate) example: &'a Caveat,
    /// Run of the example.
    pub(crate) run: &'a Record,
    /// Number of runs with this kind, and number of all runs.
    pub(crate) runs: (usize, usize),
}

impl CaveatCount<'_> {
    /// Describes the caveat: `in 24 of 24 runs, for example hops=0: …`.
    pub(crate) fn describe(&self) -> String {
        let (runs, of) = self.runs;
        let example = match &self.run.label {
            Some(label) => format!("for example {label}: "),
            None => "for example ".to_owned(),
        };
        format!("in {runs} of {of} runs, {example}{}", self.example.reason)
    }
}

/// Counts the runs that have each kind of caveat; the most frequent first.
pub(crate) fn count_caveats(runs: &[Record]) -> Vec<CaveatCount<'_>> {
    let mut counts: Vec<CaveatCount<'_>> = Vec::new();
    for run in runs {
        let mut kinds_of_run: Vec<&StoredId<CaveatId>> = Vec::new();
        for caveat in &run.validity {
            // A run may have several of one kind, such as one per host.
            if kinds_of_run.contains(&&caveat.id) {
                continue;
            }
            kinds_of_run.push(&caveat.id);
            match (counts.iter_mut()).find(|count| count.example.id == caveat.id) {
                Some(count) => count.runs.0 += 1,
                None => counts.push(CaveatCount {
                    example: caveat,
                    run,
                    runs: (1, runs.len()),
                }),
            }
        }
    }
    counts.sort_by_key(|kind| std::cmp::Reverse(kind.runs.0));
    counts
}

/// Returns where a finding is, its cost and its cause. A cost that its sentence has is not repeated.
pub(crate) fn finding_attributes(finding: &Finding, serving: bool) -> Vec<String> {
    let mut attributes = vec![model::finding_location(finding.end).to_owned()];
    attributes.extend(
        (finding.direction).map(|direction| model::direction_name(direction, serving).to_owned()),
    );
    let cost = format_share(finding.cost);
    if finding.kind != FindingKind::Unknown && !finding.summary.contains(&cost) {
        attributes.push(cost);
    }
    attributes.extend((finding.follows_from.as_ref()).map(|from| format!("follows from {from}")));
    attributes
}

/// Describes the gain of a remedy with its origin: `up to 1.50 times (1 / (1 - share lost here))`. A
/// gain without an upper bound says so.
pub(crate) fn describe_gain(finding: &Finding) -> Option<String> {
    let formula = finding.gain_formula.as_deref().unwrap_or_default();
    let gain = model::format_ratio(finding.gain?);
    Some(
        match (
            formula.starts_with("earlier tests"),
            finding.gain_is_estimate,
        ) {
            (true, _) => format!("at best about {gain} times ({formula})"),
            (false, true) => format!("about {gain} times, without an upper bound ({formula})"),
            (false, false) => format!("up to {gain} times ({formula})"),
        },
    )
}

/// Prefixes and first letters of names that kernels and standards gave to counters and settings.
const GIVEN_NAMES: [&str; 6] = ["tcpi_", "gso_", "tso_", "scaling_", "cpuinfo_", "rx_missed"];

/// Keys of the record whose names in text differ by more than the unit.
const COUNTER_NAMES: [(&str, &str); 7] = [
    ("rtt", "round trip"),
    ("rtt.min", "shortest round trip"),
    ("rtt.max", "longest round trip"),
    ("whole", "round trip with its socket"),
    ("rounds", "polls"),
    ("idle rounds", "empty polls"),
    ("cpu share", "CPU share"),
];

/// Returns the name of a counter or key of the record in text: `goodput` for `goodput_bps`, `lost
/// at qdisc` for `losses[qdisc]`.
fn counter_name(counter: &str) -> String {
    let is_given = GIVEN_NAMES.iter().any(|prefix| counter.starts_with(prefix))
        || counter.starts_with(|first: char| first.is_uppercase());
    if is_given {
        return counter.to_owned();
    }
    let in_place = |name| counter.strip_prefix(name)?.strip_suffix(']');
    if let Some(place) = in_place("losses[") {
        return format!("lost at {place}");
    }
    if let Some(causes) = in_place("drops[") {
        return format!("drops ({causes})");
    }
    let (key, part) = match counter.split_once('.') {
        // A key of the user-space stack or of the kernel is a name.
        Some((key, _)) if !key.ends_with("_ns") => return counter.to_owned(),
        Some((key, part)) => (key, format!(".{part}")),
        None => (counter, String::new()),
    };
    let units = ["_ns", "_bps", "_fps", "_bytes"];
    // A comma separates a remark: `goodput_bps, slower`.
    let (key, remark) = key.split_at(key.find(',').unwrap_or(key.len()));
    let words = units.iter().find_map(|unit| key.strip_suffix(unit));
    let words = words.unwrap_or(key).replace('_', " ") + remark;
    let known = |name: &str| {
        let mut known = COUNTER_NAMES.iter();
        known.find(|(key, _)| *key == name).map(|(_, name)| *name)
    };
    match known(&format!("{words}{part}")) {
        Some(name) => name.to_owned(),
        None => format!(
            "{}{}",
            known(&words).unwrap_or(&words),
            part.replace('.', " ")
        ),
    }
}

/// Describes a reading that supports a finding: `tcpi_rtt 120 us (client TCP_INFO)`.
pub(crate) fn describe_evidence(reading: &Evidence) -> String {
    let format_number = |value: f64| match reading.unit.as_str() {
        "share" => format_share(value),
        "ns" => format_nanos(value),
        "bit/s" => format_bit_rate(value),
        "B" => format_bytes(value as u64),
        "" => format_count(value as u64),
        unit if value.fract() == 0.0 => format!("{} {unit}", format_count(value as u64)),
        unit => format!("{value:.2} {unit}"),
    };
    let value = match (&reading.value, &reading.missing) {
        (Some(EvidenceValue::Count(count)), _) => format_number(*count as f64),
        (Some(EvidenceValue::Number(value)), _) => format_number(*value),
        (Some(EvidenceValue::Text(text)), _) => text.clone(),
        (None, Some(why)) => format!("unknown ({why})"),
        (None, None) => "unknown".to_owned(),
    };
    format!(
        "{} {value} ({})",
        counter_name(&reading.counter),
        reading.source
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_names_in_text() {
        for (counter, name) in [
            ("goodput_bps", "goodput"),
            ("goodput_bps, slower", "goodput, slower"),
            ("rtt_ns.p50", "round trip p50"),
            ("rtt_ns.max", "longest round trip"),
            ("losses[udp-receive-queue]", "lost at udp-receive-queue"),
            ("round_trips", "round trips"),
            ("tcpi_min_rtt", "tcpi_min_rtt"),
            ("ip.reassembly_evicted", "ip.reassembly_evicted"),
            ("SO_RCVBUF", "SO_RCVBUF"),
        ] {
            assert_eq!(counter_name(counter), name, "{counter}");
        }
    }

    #[test]
    fn kinds_of_caveats_are_counted_over_runs() {
        let text = include_str!("../../tests/fixtures/run-1.json");
        let run = |label: &str, caveats: &[(CaveatId, &str)]| {
            let mut run: Record = serde_json::from_str(text).unwrap();
            run.label = Some(label.to_owned());
            run.validity = (caveats.iter())
                .map(|&(id, reason)| Caveat::new(id, reason))
                .collect();
            run
        };
        let runs = [
            run("hops=0", &[(CaveatId::ThinTail, "9 trips")]),
            run(
                "hops=1",
                &[
                    (CaveatId::CrowdedCores, "client"),
                    (CaveatId::CrowdedCores, "server"),
                ],
            ),
            run("hops=2", &[(CaveatId::CrowdedCores, "client had 10 %")]),
        ];
        let texts: Vec<String> = count_caveats(&runs)
            .iter()
            .map(CaveatCount::describe)
            .collect();
        assert_eq!(
            texts,
            [
                "in 2 of 3 runs, for example hops=1: client",
                "in 1 of 3 runs, for example hops=0: 9 trips"
            ]
        );
    }
}
