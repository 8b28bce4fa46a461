//! Decodes a Perfetto trace with its schema: all fields are known, all slices are complete.

use std::collections::BTreeMap;

use linerate_record::facts::Role;
use linerate_record::timeline::{Timeline, TimelineSlice, TimelineTrack};
use linerate_report::trace::perfetto;
use proptest::prelude::*;
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage, Value};

fn decode(bytes: &[u8]) -> DynamicMessage {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    let files = protox::compile(["trace.proto"], [dir]).unwrap();
    let pool = DescriptorPool::from_file_descriptor_set(files).unwrap();
    let trace = pool.get_message_by_name("test.Trace").unwrap();
    DynamicMessage::decode(trace, bytes).unwrap()
}

/// Fails on any field that is not in the schema.
fn assert_all_fields_known(message: &DynamicMessage) {
    assert_eq!(message.unknown_fields().count(), 0, "{message}");
    for (_, value) in message.fields() {
        let inner = |value: &Value| {
            if let Some(message) = value.as_message() {
                assert_all_fields_known(message);
            }
        };
        match value {
            Value::List(values) => values.iter().for_each(inner),
            value => inner(value),
        }
    }
}

fn number(message: &DynamicMessage, field: &str) -> Option<u64> {
    if !message.has_field_by_name(field) {
        return None;
    }
    match message.get_field_by_name(field)?.into_owned() {
        Value::U64(value) => Some(value),
        Value::U32(value) => Some(value.into()),
        Value::EnumNumber(value) => u64::try_from(value).ok(),
        other_value => panic!("{field} is no number: {other_value:?}"),
    }
}

fn inner(message: &DynamicMessage, field: &str) -> Option<DynamicMessage> {
    if !message.has_field_by_name(field) {
        return None;
    }
    message.get_field_by_name(field)?.as_message().cloned()
}

/// Returns the slices by track name.
fn slices(bytes: &[u8]) -> BTreeMap<String, Vec<(String, u64, u64)>> {
    let trace = decode(bytes);
    assert_all_fields_known(&trace);
    assert_eq!(trace.descriptor().full_name(), "test.Trace");
    let packets = trace.get_field_by_name("packet").unwrap();
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    let mut open: BTreeMap<u64, Vec<(String, u64)>> = BTreeMap::new();
    let mut done: BTreeMap<String, Vec<(String, u64, u64)>> = BTreeMap::new();
    let mut last = 0;
    for packet in packets.as_list().unwrap() {
        let packet = packet.as_message().unwrap();
        assert_eq!(number(packet, "trusted_packet_sequence_id"), Some(1));
        if let Some(track) = inner(packet, "track_descriptor") {
            let name = track
                .get_field_by_name("name")
                .unwrap()
                .as_str()
                .unwrap()
                .to_owned();
            if let Some(parent) = number(&track, "parent_uuid") {
                assert!(names.contains_key(&parent), "a parent comes first");
            }
            names.insert(number(&track, "uuid").unwrap(), name);
            continue;
        }
        let event = inner(packet, "track_event").unwrap();
        let at = number(packet, "timestamp").unwrap();
        assert!(at >= last, "time goes forward");
        last = at;
        let track = number(&event, "track_uuid").unwrap();
        let name = names
            .get(&track)
            .expect("a track is described before its events");
        match number(&event, "type") {
            Some(1) => {
                let name_of_slice = event
                    .get_field_by_name("name")
                    .unwrap()
                    .as_str()
                    .unwrap()
                    .to_owned();
                open.entry(track).or_default().push((name_of_slice, at));
            }
            Some(2) => {
                let (name_of_slice, from) = open.get_mut(&track).unwrap().pop().unwrap();
                done.entry(name.clone())
                    .or_default()
                    .push((name_of_slice, from, at));
            }
            other_value => panic!("no slice: {other_value:?}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "every slice ends");
    done
}

fn slice(
    role: Role,
    track: TimelineTrack,
    name: &str,
    start_ns: u64,
    end_ns: u64,
    cpu: Option<u32>,
) -> TimelineSlice {
    TimelineSlice {
        role,
        track,
        name: name.to_owned(),
        start_ns,
        end_ns,
        round_trip: cpu.is_none().then_some(start_ns / 1_000),
        cpu,
        thread: None,
    }
}

#[test]
fn slices_are_on_the_right_track() {
    let timeline = Timeline {
        slices: vec![
            slice(
                Role::Client,
                TimelineTrack::Thread,
                "send",
                1_000,
                1_400,
                None,
            ),
            slice(
                Role::Client,
                TimelineTrack::Thread,
                "receive",
                1_400,
                9_000_000_000,
                None,
            ),
            slice(
                Role::Server,
                TimelineTrack::Driver,
                "net-rx",
                1_500,
                1_600,
                Some(3),
            ),
            slice(
                Role::Server,
                TimelineTrack::Kernel,
                "qdisc",
                1_700,
                1_700,
                None,
            ),
        ],
        ..Timeline::default()
    };
    let decoded = slices(&perfetto(&timeline));
    assert_eq!(
        decoded["measuring thread"],
        [
            ("send".to_owned(), 1_000, 1_400),
            ("receive".to_owned(), 1_400, 9_000_000_000)
        ]
    );
    assert_eq!(
        decoded["receive work, cpu 3"],
        [("net-rx".to_owned(), 1_500, 1_600)]
    );
    assert_eq!(
        decoded["packets in the stack"],
        [("qdisc".to_owned(), 1_700, 1_700)]
    );
    assert!(slices(&perfetto(&Timeline::default())).is_empty());
}

proptest! {
    /// Slices of a track are consecutive, like the calls of a thread, with and without gaps and
    /// length.
    #[test]
    fn every_slice_comes_back(lengths in prop::collection::vec((0u64..1 << 40, 0u64..50), 1..60)) {
        let mut at = 0;
        let mut wanted = Vec::new();
        for (length, pause) in lengths {
            at += pause;
            wanted.push(slice(Role::Client, TimelineTrack::Thread, "send", at, at + length, None));
            at += length;
        }
        let timeline = Timeline { slices: wanted.clone(), ..Timeline::default() };
        let seen = slices(&perfetto(&timeline)).remove("measuring thread").unwrap();
        let seen: Vec<_> = seen.into_iter().map(|(_, from, to)| (from, to)).collect();
        let wanted: Vec<_> = wanted.into_iter().map(|s| (s.start_ns, s.end_ns)).collect();
        let sorted = |mut list: Vec<(u64, u64)>| { list.sort_unstable(); list };
        prop_assert_eq!(sorted(seen), sorted(wanted));
    }
}
