//! `--json-stream`: one line of JSON per event.

use jiff::Timestamp;
use linerate_record::event::Event;
use serde::Serialize;

/// Schema id of an event line.
pub const EVENT_SCHEMA: &str = "linerate/event/1";

#[derive(Serialize)]
struct EventLine<'a> {
    schema: &'static str,
    time: Timestamp,
    #[serde(flatten)]
    event: &'a Event,
}

/// Renders one event as one line, with the time of its output (RFC 3339, UTC).
#[must_use]
pub fn event_line(event: &Event, now: Timestamp) -> String {
    serde_json::to_string(&EventLine {
        schema: EVENT_SCHEMA,
        time: now,
        event,
    })
    .expect("an event has a JSON form")
}
