//! Perfetto trace format: a `Trace` message (protocol buffers) with one `TracePacket` for each
//! start and each end of a slice.
//!
//! Field numbers are those of perfetto's `trace_packet.proto`, `track_event.proto`,
//! `track_descriptor.proto` and `debug_annotation.proto`; only fields that viewers need are
//! written. A test decodes the output with its own schema.

use std::collections::BTreeSet;

use linerate_metric::facts::Role;
use linerate_metric::timeline::{Lane, Timeline};

use super::{Track, process};

/// Encoder of a protocol buffers message.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u64, value: u64) -> &mut Self {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    fn fixed64(&mut self, field: u64, value: u64) -> &mut Self {
        self.varint(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) -> &mut Self {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn message(&mut self, field: u64, inner: &Self) -> &mut Self {
        self.bytes(field, &inner.0)
    }
}

/// Id of the only packet sequence in the trace.
const SEQUENCE: u64 = 1;
/// CLOCK_MONOTONIC in `builtin_clock.proto`.
const CLOCK_MONOTONIC: u64 = 3;
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;

/// Renders a timeline for ui.perfetto.dev and `trace_processor`.
#[must_use]
pub fn perfetto(timeline: &Timeline) -> Vec<u8> {
    let mut trace = Message::default();
    for role in [Role::Client, Role::Server] {
        let (pid, name) = process(role);
        let mut own = Message::default();
        own.number(1, u64::from(pid)).bytes(6, name.as_bytes());
        let mut descriptor = Message::default();
        descriptor
            .number(1, process_uuid(role))
            .bytes(2, name.as_bytes())
            .message(3, &own);
        describe(&mut trace, &descriptor);
    }
    let tracks: BTreeSet<Track> = timeline.slices.iter().map(Track::of).collect();
    let tracks: Vec<Track> = tracks.into_iter().collect();
    for (number, track) in tracks.iter().enumerate() {
        let mut descriptor = Message::default();
        descriptor
            .number(1, track_uuid(number))
            .bytes(2, track.name().as_bytes())
            .number(5, process_uuid(track.role));
        describe(&mut trace, &descriptor);
    }
    for (at_ns, event) in events(timeline, &tracks) {
        let mut packet = Message::default();
        packet
            .number(8, at_ns)
            .number(58, CLOCK_MONOTONIC)
            .number(10, SEQUENCE)
            .message(11, &event);
        trace.message(1, &packet);
    }
    trace.0
}

fn describe(trace: &mut Message, descriptor: &Message) {
    let mut packet = Message::default();
    packet.number(10, SEQUENCE).message(60, descriptor);
    trace.message(1, &packet);
}

fn process_uuid(role: Role) -> u64 {
    u64::from(process(role).0)
}

fn track_uuid(number: usize) -> u64 {
    0x100 + number as u64
}

/// Returns starts and ends of slices in time order. At equal times ends come first, so that
/// adjacent slices do not nest.
fn events(timeline: &Timeline, tracks: &[Track]) -> Vec<(u64, Message)> {
    let mut events = Vec::with_capacity(2 * timeline.slices.len());
    for slice in &timeline.slices {
        let track = tracks.binary_search(&Track::of(slice));
        let uuid = track_uuid(track.expect("the tracks are those of the slices"));
        let mut begin = Message::default();
        begin
            .number(9, SLICE_BEGIN)
            .number(11, uuid)
            .bytes(23, slice.name.as_bytes());
        if let Some(trip) = slice.trip {
            let mut note = Message::default();
            note.number(3, trip).bytes(10, b"round_trip");
            begin.message(4, &note);
            if slice.lane == Lane::Thread {
                // A flow arrow connects the calls of a round trip across both hosts.
                begin.fixed64(47, trip + 1);
            }
        }
        let mut end = Message::default();
        end.number(9, SLICE_END).number(11, uuid);
        let end_ns = slice.end_ns.max(slice.start_ns);
        // The end of an empty slice sorts after its start.
        let rank = if end_ns == slice.start_ns { 2 } else { 0 };
        events.push((slice.start_ns, 1, begin));
        events.push((end_ns, rank, end));
    }
    events.sort_by_key(|&(at, rank, _)| (at, rank));
    events
        .into_iter()
        .map(|(at, _, event)| (at, event))
        .collect()
}
