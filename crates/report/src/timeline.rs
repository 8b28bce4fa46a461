//! Text about a timeline: content of its file, and whether its trigger fired.

use linerate_record::record::Record;
use linerate_record::timeline::{TraceFile, TraceTrigger, TriggerEvent};
use linerate_stats::units::{format_count, format_nanos};

/// Describes the file: `FILE holds the latest 5,076 round trips, 51.2 ms to 412 ms after the start
/// of …`.
pub(crate) fn describe_file(record: &Record) -> Option<String> {
    let timeline = record.timeline.as_ref()?;
    let TraceFile {
        path,
        format,
        round_trips,
        calls,
        from_ns,
        to_ns,
    } = timeline.file.as_ref()?;
    let (content, pass) = match (round_trips, calls) {
        (Some(count), _) => (
            format!("{} round trips", format_count(*count)),
            "a separate pass",
        ),
        (None, Some(0) | None) => {
            let notes = "nothing: neither host recorded an event";
            return Some(format!("{path} holds {notes}"));
        }
        (None, Some(calls)) => (format!("{} calls", format_count(*calls)), "the run"),
    };
    let viewer = match format.as_str() {
        "perfetto" => "; open it at ui.perfetto.dev",
        _ => "; open it at ui.perfetto.dev or in chrome://tracing",
    };
    let at = |ns: u64| format_nanos(ns as f64);
    Some(format!(
        "{path} holds the latest {content}, {} to {} after the start of {pass}{viewer}",
        at(*from_ns),
        at(*to_ns),
    ))
}

/// Describes the trigger: `rtt>300 us fired: round trip 5,012 took 412 us, 398 ms after the start
/// …`.
pub(crate) fn describe_trigger(record: &Record) -> Option<String> {
    let trigger = record.timeline.as_ref()?.trigger.as_ref()?;
    let TraceTrigger {
        quantity: of,
        threshold_ns: above_ns,
        fired,
    } = trigger;
    let condition = format!("{of}>{}", format_nanos(*above_ns as f64));
    let Some(fired) = fired else {
        let none = match of.as_str() {
            "rtt" => "no round trip of the recorded pass took longer",
            _ => "no recorded call took longer",
        };
        return Some(format!(
            "{condition} never fired: {none}; the file holds the latest events before the end"
        ));
    };
    let TriggerEvent {
        role,
        at_ns,
        duration_ns: took_ns,
        round_trip,
        call,
        lost,
    } = fired;
    let duration = format_nanos(*took_ns as f64);
    let at = format_nanos(*at_ns as f64);
    Some(match (round_trip, call) {
        (Some(round_trip), _) if *lost => format!(
            "{condition} fired: round trip {} timed out after {duration}; its request was sent {at} \
             after the start of the pass, which ended soon after",
            format_count(*round_trip)
        ),
        (Some(round_trip), _) => format!(
            "{condition} fired: round trip {} took {duration}, {at} after the start of the pass, which \
             ended soon after",
            format_count(*round_trip)
        ),
        (None, call) => format!(
            "{condition} fired: {} of the {} took {duration}, {at} after the start; the thread recorded \
             a few more calls, then stopped",
            call.as_deref().unwrap_or("a call"),
            role.as_str()
        ),
    })
}

#[cfg(test)]
mod tests {
    use linerate_record::facts::Role;
    use linerate_record::timeline::Timeline;

    use super::*;

    fn record(trigger: Option<TraceTrigger>, file: Option<TraceFile>) -> Record {
        let text = include_str!("../tests/fixtures/run-1.json");
        let mut record: Record = serde_json::from_str(text).expect("a record");
        record.timeline = Some(Timeline {
            trigger,
            file,
            ..Timeline::default()
        });
        record
    }

    #[test]
    fn the_trigger_is_described_whether_it_fired_or_not() {
        let describe = |fired| {
            let trigger = TraceTrigger {
                quantity: "rtt".to_owned(),
                threshold_ns: 300_000,
                fired,
            };
            describe_trigger(&record(Some(trigger), None)).unwrap()
        };
        assert!(describe(None).starts_with("rtt>300 us never fired"));
        let text = describe(Some(TriggerEvent {
            role: Role::Client,
            at_ns: 398_000_000,
            duration_ns: 412_000,
            round_trip: Some(5_012),
            call: None,
            lost: false,
        }));
        let expected = "rtt>300 us fired: round trip 5,012 took 412 us, 398 ms after";
        assert!(text.starts_with(expected), "{text}");
        let timed_out = describe(Some(TriggerEvent {
            role: Role::Client,
            at_ns: 398_000_000,
            duration_ns: 1_000_000_000,
            round_trip: Some(40),
            call: None,
            lost: true,
        }));
        let expected = "rtt>300 us fired: round trip 40 timed out after 1.00 s";
        assert!(timed_out.starts_with(expected), "{timed_out}");
        assert_eq!(describe_trigger(&record(None, None)), None);
    }

    #[test]
    fn a_file_is_named_with_what_it_holds() {
        let describe = |round_trips, calls| {
            let file = TraceFile {
                path: "slow.pftrace".to_owned(),
                format: "perfetto".to_owned(),
                round_trips,
                calls,
                from_ns: 51_200_000,
                to_ns: 412_000_000,
            };
            describe_file(&record(None, Some(file))).unwrap()
        };
        assert!(
            describe(Some(5_076), None)
                .starts_with("slow.pftrace holds the latest 5,076 round trips, 51.2 ms to 412 ms")
        );
        assert!(describe(None, Some(80)).contains("80 calls"));
        assert!(describe(None, Some(0)).contains("nothing"));
        assert_eq!(describe_file(&record(None, None)), None);
    }
}
