//! Trace Event Format (JSON), for chrome://tracing and other viewers.

use std::collections::BTreeSet;

use linerate_record::timeline::Timeline;
use serde_json::{Value, json};

use super::{ViewerTrack, process_of_role};

/// Renders a timeline as JSON. Times are microseconds with three decimals, as the format requires.
#[must_use]
pub fn chrome(timeline: &Timeline) -> String {
    let tracks: BTreeSet<ViewerTrack> = timeline.slices.iter().map(ViewerTrack::of_slice).collect();
    let tracks: Vec<ViewerTrack> = tracks.into_iter().collect();
    let mut events: Vec<Value> = Vec::new();
    for (number, &track) in tracks.iter().enumerate() {
        let (pid, name) = process_of_role(track.role);
        events.push(json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}));
        events.push(json!({
            "ph": "M", "name": "thread_name", "pid": pid, "tid": number + 1,
            "args": {"name": track.name()},
        }));
    }
    for slice in &timeline.slices {
        let track = ViewerTrack::of_slice(slice);
        let number = tracks.binary_search(&track).map_or(0, |number| number + 1);
        let mut event = json!({
            "ph": "X", "name": slice.name, "pid": process_of_role(slice.role).0, "tid": number,
            "ts": slice.start_ns as f64 / 1e3,
            "dur": slice.end_ns.saturating_sub(slice.start_ns) as f64 / 1e3,
        });
        if let Some(round_trip) = slice.round_trip {
            event["args"] = json!({"round_trip": round_trip});
        }
        events.push(event);
    }
    json!({"displayTimeUnit": "ns", "traceEvents": events}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slice_is_there_on_a_named_track() {
        let text = chrome(&super::super::sample());
        let trace: Value = serde_json::from_str(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let slices: Vec<_> = events.iter().filter(|e| e["ph"] == "X").collect();
        assert_eq!(slices.len(), 6);
        for slice in slices {
            let named = events.iter().any(|e| {
                e["name"] == "thread_name" && e["tid"] == slice["tid"] && e["pid"] == slice["pid"]
            });
            assert!(named, "{slice}");
        }
        assert_eq!(events.last().unwrap()["dur"], 2_499_999.6);
    }
}
