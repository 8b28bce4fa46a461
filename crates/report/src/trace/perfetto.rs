//! Perfetto trace format: a `Trace` message (protocol buffers) with one `TracePacket` for each
//! start and each end of a slice.
//!
//! Field numbers are those of perfetto's `trace_packet.proto`, `track_event.proto`,
//! `track_descriptor.proto` and `debug_annotation.proto`; only fields that viewers need are
//! written. A test decodes the output with its own schema.

use std::collections::BTreeSet;

use linerate_record::facts::Role;
use linerate_record::timeline::{Timeline, TimelineTrack};

use super::{ViewerTrack, process_of_role};

/// Encoder of a protocol buffers message.
#[derive(Default)]
struct ProtobufMessage(Vec<u8>);

impl ProtobufMessage {
    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn put_varint_field(&mut self, field: u64, value: u64) -> &mut Self {
        self.put_varint(field << 3);
        self.put_varint(value);
        self
    }

    fn put_fixed64_field(&mut self, field: u64, value: u64) -> &mut Self {
        self.put_varint(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn put_bytes_field(&mut self, field: u64, bytes: &[u8]) -> &mut Self {
        self.put_varint(field << 3 | 2);
        self.put_varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn put_message_field(&mut self, field: u64, inner: &Self) -> &mut Self {
        self.put_bytes_field(field, &inner.0)
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
    let mut trace = ProtobufMessage::default();
    for role in [Role::Client, Role::Server] {
        let (pid, name) = process_of_role(role);
        let mut own = ProtobufMessage::default();
        own.put_varint_field(1, u64::from(pid))
            .put_bytes_field(6, name.as_bytes());
        let mut descriptor = ProtobufMessage::default();
        descriptor
            .put_varint_field(1, process_uuid(role))
            .put_bytes_field(2, name.as_bytes())
            .put_message_field(3, &own);
        push_descriptor(&mut trace, &descriptor);
    }
    let tracks: BTreeSet<ViewerTrack> = timeline.slices.iter().map(ViewerTrack::of_slice).collect();
    let tracks: Vec<ViewerTrack> = tracks.into_iter().collect();
    for (number, track) in tracks.iter().enumerate() {
        let mut descriptor = ProtobufMessage::default();
        descriptor
            .put_varint_field(1, track_uuid(number))
            .put_bytes_field(2, track.name().as_bytes())
            .put_varint_field(5, process_uuid(track.role));
        push_descriptor(&mut trace, &descriptor);
    }
    for (at_ns, event) in ordered_events(timeline, &tracks) {
        let mut packet = ProtobufMessage::default();
        packet
            .put_varint_field(8, at_ns)
            .put_varint_field(58, CLOCK_MONOTONIC)
            .put_varint_field(10, SEQUENCE)
            .put_message_field(11, &event);
        trace.put_message_field(1, &packet);
    }
    trace.0
}

fn push_descriptor(trace: &mut ProtobufMessage, descriptor: &ProtobufMessage) {
    let mut packet = ProtobufMessage::default();
    packet
        .put_varint_field(10, SEQUENCE)
        .put_message_field(60, descriptor);
    trace.put_message_field(1, &packet);
}

fn process_uuid(role: Role) -> u64 {
    u64::from(process_of_role(role).0)
}

fn track_uuid(number: usize) -> u64 {
    0x100 + number as u64
}

/// Returns starts and ends of slices in time order. At equal times ends come first, so that
/// adjacent slices do not nest.
fn ordered_events(timeline: &Timeline, tracks: &[ViewerTrack]) -> Vec<(u64, ProtobufMessage)> {
    let mut events = Vec::with_capacity(2 * timeline.slices.len());
    for slice in &timeline.slices {
        let track = tracks.binary_search(&ViewerTrack::of_slice(slice));
        let uuid = track_uuid(track.expect("the tracks are those of the slices"));
        let mut begin = ProtobufMessage::default();
        begin
            .put_varint_field(9, SLICE_BEGIN)
            .put_varint_field(11, uuid)
            .put_bytes_field(23, slice.name.as_bytes());
        if let Some(round_trip) = slice.round_trip {
            let mut note = ProtobufMessage::default();
            note.put_varint_field(3, round_trip)
                .put_bytes_field(10, b"round_trip");
            begin.put_message_field(4, &note);
            if slice.track == TimelineTrack::Thread {
                // A flow arrow connects the calls of a round trip across both hosts.
                begin.put_fixed64_field(47, round_trip + 1);
            }
        }
        let mut end = ProtobufMessage::default();
        end.put_varint_field(9, SLICE_END)
            .put_varint_field(11, uuid);
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
