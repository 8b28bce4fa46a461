//! Text about a timeline: content of its file, and whether its trigger fired.

use linerate_metric::record::Record;
use linerate_metric::timeline::{Fired, TraceFile, Trigger};
use linerate_metric::units::{format_count, format_nanos};

use crate::figures;

/// Describes the file: `FILE holds the latest 5,076 round trips, 51.2 ms to 412 ms after the start
/// of …`.
pub(crate) fn file_words(record: &Record) -> Option<String> {
    let timeline = record.timeline.as_ref()?;
    let TraceFile {
        path,
        format,
        round_trips,
        calls,
        from_ns,
        to_ns,
    } = timeline.file.as_ref()?;
    let (what, pass) = match (round_trips, calls) {
        (Some(trips), _) => (
            format!("{} round trips", format_count(*trips)),
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
        "{path} holds the latest {what}, {} to {} after the start of {pass}{viewer}",
        at(*from_ns),
        at(*to_ns),
    ))
}

/// Describes the trigger: `rtt>300 us fired: round trip 5,012 took 412 us, 398 ms after the start
/// …`.
pub(crate) fn trigger_words(record: &Record) -> Option<String> {
    let trigger = record.timeline.as_ref()?.trigger.as_ref()?;
    let Trigger {
        of,
        above_ns,
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
    let Fired {
        role,
        at_ns,
        took_ns,
        trip,
        call,
        lost,
    } = fired;
    let took = format_nanos(*took_ns as f64);
    let at = format_nanos(*at_ns as f64);
    Some(match (trip, call) {
        (Some(trip), _) if *lost => format!(
            "{condition} fired: round trip {} timed out after {took}; its request was sent {at} \
             after the start of the pass, which ended soon after",
            format_count(*trip)
        ),
        (Some(trip), _) => format!(
            "{condition} fired: round trip {} took {took}, {at} after the start of the pass, which \
             ended soon after",
            format_count(*trip)
        ),
        (None, call) => format!(
            "{condition} fired: {} of the {} took {took}, {at} after the start; the thread recorded \
             a few more calls, then stopped",
            call.as_deref().unwrap_or("a call"),
            figures::role(*role)
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_metric::facts::Role;
    use linerate_metric::timeline::Timeline;

    fn record(trigger: Option<Trigger>, file: Option<TraceFile>) -> Record {
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
    fn what_was_waited_for_is_told_whether_or_not_it_came() {
        let waited = |fired| {
            let trigger = Trigger {
                of: "rtt".to_owned(),
                above_ns: 300_000,
                fired,
            };
            trigger_words(&record(Some(trigger), None)).unwrap()
        };
        assert!(waited(None).starts_with("rtt>300 us never fired"));
        let came = waited(Some(Fired {
            role: Role::Client,
            at_ns: 398_000_000,
            took_ns: 412_000,
            trip: Some(5_012),
            call: None,
            lost: false,
        }));
        let want = "rtt>300 us fired: round trip 5,012 took 412 us, 398 ms after";
        assert!(came.starts_with(want), "{came}");
        let never_answered = waited(Some(Fired {
            role: Role::Client,
            at_ns: 398_000_000,
            took_ns: 1_000_000_000,
            trip: Some(40),
            call: None,
            lost: true,
        }));
        let want = "rtt>300 us fired: round trip 40 timed out after 1.00 s";
        assert!(never_answered.starts_with(want), "{never_answered}");
        assert_eq!(trigger_words(&record(None, None)), None);
    }

    #[test]
    fn a_file_is_named_with_what_it_holds() {
        let told = |round_trips, calls| {
            let file = TraceFile {
                path: "slow.pftrace".to_owned(),
                format: "perfetto".to_owned(),
                round_trips,
                calls,
                from_ns: 51_200_000,
                to_ns: 412_000_000,
            };
            file_words(&record(None, Some(file))).unwrap()
        };
        assert!(
            told(Some(5_076), None)
                .starts_with("slow.pftrace holds the latest 5,076 round trips, 51.2 ms to 412 ms")
        );
        assert!(told(None, Some(80)).contains("80 calls"));
        assert!(told(None, Some(0)).contains("nothing"));
        assert_eq!(file_words(&record(None, None)), None);
    }
}
