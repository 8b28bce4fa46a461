//! Earlier names of map entries (histograms, calls and counters), of stages and of keys in JSON pointers.
//!
//! Renamed fields have a serde alias; keys of maps are data and are renamed here while they are
//! read.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// Earlier names with the present ones.
const RENAMED: [(&str, &str); 5] = [
    ("around_ns", "outside_ns"),
    ("turn", "stack_poll"),
    ("path_mtu_told", "path_mtu_reported"),
    ("path-there", "path-to-server"),
    ("path-back", "path-to-client"),
];

/// Earlier keys of a record that lead to numbers, with the present ones. Fields have the same pairs
/// as serde aliases, which the schema does not contain.
const RENAMED_KEYS: [(&str, &str); 27] = [
    ("Frames", "FrameRate"),
    ("Line", "LineShare"),
    ("above_ns", "threshold_ns"),
    ("absences", "peer_outages"),
    ("answer_timeout_ns", "response_timeout_ns"),
    ("answers_lost", "responses_lost"),
    ("around_ns", "outside_ns"),
    ("asking_ns", "timestamp_overhead_ns"),
    ("burn", "load_threads"),
    ("counts", "mode_counters"),
    ("far", "server"),
    ("far_calls", "server_calls"),
    ("flows_each", "flows_per_entry"),
    ("foreign", "unrelated"),
    ("held_ns", "no_halt_ns"),
    ("left_out", "incomplete"),
    ("near", "client"),
    ("near_stack", "client_stack"),
    ("refusals", "port_unreachable"),
    ("refused_polls", "short_transmits"),
    ("room", "accepted"),
    ("stamp_payload", "payload_timestamps"),
    ("taken", "consumed"),
    ("took_ns", "duration_ns"),
    ("trip", "round_trip"),
    ("untold", "unconfirmed"),
    ("watching_ns", "tracing_overhead_ns"),
];

fn find_present(pairs: &[(&'static str, &'static str)], earlier: &str) -> Option<&'static str> {
    let pair = pairs.iter().find(|(name, _)| *name == earlier);
    pair.map(|(_, present)| *present)
}

fn present_name(name: String) -> String {
    find_present(&RENAMED, &name).map_or(name, str::to_owned)
}

/// Returns the present name of a map entry that was renamed.
pub fn present_entry(earlier: &str) -> Option<&'static str> {
    find_present(&RENAMED, earlier)
}

/// Returns the present name of a key that was renamed. The earlier name may still be the name of
/// another key.
pub fn present_key(earlier: &str) -> Option<&'static str> {
    find_present(&RENAMED_KEYS, earlier)
}

/// Reads a name.
pub fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(present_name)
}

/// Reads a map by name.
pub fn map<'de, D: Deserializer<'de>, V: Deserialize<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, V>, D::Error> {
    let map = BTreeMap::<String, V>::deserialize(deserializer)?;
    Ok(map
        .into_iter()
        .map(|(name, value)| (present_name(name), value))
        .collect())
}

/// Reads a map by group and name.
pub fn nested_map<'de, D: Deserializer<'de>, V: Deserialize<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, BTreeMap<String, V>>, D::Error> {
    let groups = BTreeMap::<String, BTreeMap<String, V>>::deserialize(deserializer)?;
    let renamed = |map: BTreeMap<String, V>| {
        map.into_iter()
            .map(|(name, value)| (present_name(name), value))
            .collect()
    };
    Ok(groups
        .into_iter()
        .map(|(group, map)| (group, renamed(map)))
        .collect())
}
