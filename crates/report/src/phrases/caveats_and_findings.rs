//! Text of caveats and findings.

use linerate_record::finding::{Evidence, EvidenceValue};
use linerate_record::ids::{CaveatId, StoredId};
use linerate_record::record::{Caveat, Record};
use linerate_stats::units::{
    format_bit_rate, format_bytes, format_count, format_nanos, format_share,
};

use super::run_name;

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
    format!("{} {value} ({})", reading.counter, reading.source)
}

#[cfg(test)]
mod tests {
    use super::*;

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
