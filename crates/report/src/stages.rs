//! Stages of a round trip: how they were measured, and the error of the clocks.

use linerate_record::ids::CaveatId;
use linerate_record::record::{Record, RoundTripStage, StagePass};
use linerate_stats::units::{format_count, format_nanos};

use crate::style::strip_control_characters;

/// Describes how the stages were measured.
pub(crate) fn describe_pass(record: &Record, pass: &StagePass) -> String {
    let mut text = match &pass.rtt_ns {
        None => "no round trip of the timestamped pass has all timestamps".to_owned(),
        Some(rtt) => format!(
            "stages of {} timestamped round trips ({} timestamps), p50 {}",
            format_count(pass.round_trips),
            timestamp_sources(record),
            format_nanos(rtt.p50 as f64)
        ),
    };
    if pass.incomplete > 0 {
        text.push_str(&format!(
            " ({} without all timestamps are excluded)",
            format_count(pass.incomplete)
        ));
    }
    if let Some(timestamp_cost) = pass.timestamp_overhead_ns {
        let size = format_nanos(timestamp_cost.unsigned_abs() as f64);
        // With this caveat most of the difference has another cause.
        let stages_differ = record
            .validity
            .iter()
            .any(|caveat| caveat.id == CaveatId::StagesDiffer);
        text.push_str(&if timestamp_cost >= 0 && stages_differ {
            format!(
                "; that pass was {size} slower than the run, which is more than timestamps cost: see \
                 stages-differ"
            )
        } else if timestamp_cost >= 0 {
            format!("; timestamping cost {size}, which is not part of the figures above")
        } else {
            format!("; the pass without timestamps was {size} slower: the load of the machine changed")
        });
    }
    if let Some(tracing_cost) = pass.tracing_overhead_ns.filter(|&cost| cost >= 0)
        && record.stages.iter().any(|stage| !stage.parts.is_empty())
    {
        text.push_str(&format!(
            "; indented parts come from a pass that also traced the scheduler and was {} slower; they do not add up to their stage",
            format_nanos(tracing_cost as f64)
        ));
    }
    text.push_str(&describe_clock_error(&record.stages));
    text
}

/// Describes the error of the clock offsets; empty if a single clock was used.
fn describe_clock_error(stages: &[RoundTripStage]) -> String {
    let by_device = stages
        .iter()
        .any(|stage| stage.timestamp_source == "hardware");
    let error = stages.iter().filter_map(|stage| stage.clock_error_ns).max();
    let error = error.map(|error| format_nanos(error as f64));
    match (by_device, error) {
        (_, None) => String::new(),
        (false, Some(error)) => {
            format!(
                "; the offset of the hosts' clocks is known to {error}, an error shared by the two path stages"
            )
        }
        (true, Some(error)) => format!(
            "; clock offsets of devices and hosts are known to {error} in the worst stage; adjacent stages have this error with opposite signs"
        ),
    }
}

/// Names the sources of the timestamps.
fn timestamp_sources(record: &Record) -> String {
    let mut kinds: Vec<_> = (record.stages.iter())
        .map(|stage| strip_control_characters(&stage.timestamp_source).into_owned())
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_errors_are_described() {
        let stage = |stamps: &str, clock_error_ns| RoundTripStage {
            timestamp_source: stamps.to_owned(),
            clock_error_ns,
            ..RoundTripStage::default()
        };
        let host_clock = stage("software", None);
        for (stages, expected) in [
            (vec![host_clock.clone()], ""),
            (
                vec![host_clock.clone(), stage("software", Some(4_000))],
                "; the offset of the hosts' clocks",
            ),
            (
                vec![
                    stage("hardware", Some(300)),
                    host_clock,
                    stage("hardware", Some(650)),
                ],
                "; clock offsets of devices and hosts are known to 650 ns",
            ),
        ] {
            let text = describe_clock_error(&stages);
            assert!(
                text.starts_with(expected) && text.is_empty() == expected.is_empty(),
                "{text}"
            );
        }
    }
}
