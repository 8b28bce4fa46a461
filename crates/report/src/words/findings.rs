//! Doubts and findings in words.

use linerate_metric::finding::{End, Evidence, Value};
use linerate_metric::record::{Doubt, Record};
use linerate_metric::units::{
    format_bit_rate, format_bytes, format_count, format_nanos, format_share,
};

use super::name;

/// Every doubt of some runs once, with the names of the runs that have it.
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

/// Where a finding is, in a word.
pub(crate) fn finding_end(end: End) -> &'static str {
    match end {
        End::Client => "client",
        End::Server => "server",
        End::Both => "both ends",
        End::Path => "path",
    }
}

/// A reading that a finding rests on: `tcpi_rtt 120 us (client TCP_INFO)`.
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
        (None, Some(why)) => format!("not known ({why})"),
        (None, None) => "not known".to_owned(),
    };
    format!("{} {value} ({})", reading.counter, reading.read)
}
