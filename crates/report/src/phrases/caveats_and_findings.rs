//! Text of caveats and findings.

use linerate_metric::finding::{End, Evidence, Value};
use linerate_metric::record::{Doubt, Record};
use linerate_metric::units::{
    format_bit_rate, format_bytes, format_count, format_nanos, format_share,
};

use super::name;

/// Returns each distinct caveat of some runs, with the names of the runs that have it.
pub(crate) fn doubts(runs: &[Record]) -> Vec<(&Doubt, Vec<String>)> {
    let mut found: Vec<(&Doubt, Vec<String>)> = Vec::new();
    for run in runs {
        for doubt in &run.validity {
            match found.iter_mut().find(|(known, _)| *known == doubt) {
                Some((_, names)) => names.push(name(run)),
                None => found.push((doubt, vec![name(run)])),
            }
        }
    }
    found
}

/// A kind of caveat, counted over many runs.
pub(crate) struct Counted<'a> {
    /// First caveat of this kind.
    pub(crate) example: &'a Doubt,
    /// Run of the example.
    pub(crate) of: &'a Record,
    /// Number of runs with this kind, and number of all runs.
    pub(crate) runs: (usize, usize),
}

impl Counted<'_> {
    /// Describes the caveat: `in 24 of 24 runs, for example hops=0: …`.
    pub(crate) fn words(&self) -> String {
        let (runs, of) = self.runs;
        let example = match &self.of.label {
            Some(label) => format!("for example {label}: "),
            None => "for example ".to_owned(),
        };
        format!("in {runs} of {of} runs, {example}{}", self.example.why)
    }
}

/// Counts the runs that have each kind of caveat; the most frequent first.
pub(crate) fn counted(runs: &[Record]) -> Vec<Counted<'_>> {
    let mut found: Vec<Counted<'_>> = Vec::new();
    for run in runs {
        let mut here: Vec<&str> = Vec::new();
        for doubt in &run.validity {
            // A run may have several of one kind, such as one per host.
            if here.contains(&&*doubt.doubt) {
                continue;
            }
            here.push(&doubt.doubt);
            match (found.iter_mut()).find(|known| known.example.doubt == doubt.doubt) {
                Some(known) => known.runs.0 += 1,
                None => found.push(Counted {
                    example: doubt,
                    of: run,
                    runs: (1, runs.len()),
                }),
            }
        }
    }
    found.sort_by_key(|kind| std::cmp::Reverse(kind.runs.0));
    found
}

/// Returns the end that a finding is about, as text.
pub(crate) fn finding_end(end: End) -> &'static str {
    match end {
        End::Client => "client",
        End::Server => "server",
        End::Both => "both ends",
        End::Path => "path",
    }
}

/// Describes a reading that supports a finding: `tcpi_rtt 120 us (client TCP_INFO)`.
pub(crate) fn evidence(reading: &Evidence) -> String {
    let number = |value: f64| match reading.unit.as_str() {
        "share" => format_share(value),
        "ns" => format_nanos(value),
        "bit/s" => format_bit_rate(value),
        "B" => format_bytes(value as u64),
        "" => format_count(value as u64),
        unit if value.fract() == 0.0 => format!("{} {unit}", format_count(value as u64)),
        unit => format!("{value:.2} {unit}"),
    };
    let value = match (&reading.value, &reading.missing) {
        (Some(Value::Count(count)), _) => number(*count as f64),
        (Some(Value::Number(value)), _) => number(*value),
        (Some(Value::Word(word)), _) => word.clone(),
        (None, Some(why)) => format!("unknown ({why})"),
        (None, None) => "unknown".to_owned(),
    };
    format!("{} {value} ({})", reading.counter, reading.read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_doubts_are_counted_over_runs() {
        let text = include_str!("../../tests/fixtures/run-1.json");
        let run = |label: &str, doubts: &[(&str, &str)]| {
            let mut run: Record = serde_json::from_str(text).unwrap();
            run.label = Some(label.to_owned());
            run.validity = (doubts.iter())
                .map(|(doubt, why)| Doubt::new(doubt, *why))
                .collect();
            run
        };
        let runs = [
            run("hops=0", &[("thin-tail", "9 trips")]),
            run(
                "hops=1",
                &[("crowded-cores", "client"), ("crowded-cores", "server")],
            ),
            run("hops=2", &[("crowded-cores", "client had 10 %")]),
        ];
        let told: Vec<String> = counted(&runs).iter().map(Counted::words).collect();
        assert_eq!(
            told,
            [
                "in 2 of 3 runs, for example hops=1: client",
                "in 1 of 3 runs, for example hops=0: 9 trips"
            ]
        );
    }
}
