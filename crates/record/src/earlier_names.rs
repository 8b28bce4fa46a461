//! Names of map entries in records of earlier versions: histograms, calls and counters.
//!
//! Renamed fields have a serde alias; keys of maps are data and are renamed here while they are
//! read.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// Earlier names with the present ones.
const RENAMED: [(&str, &str); 3] = [
    ("around_ns", "outside_ns"),
    ("turn", "stack_poll"),
    ("path_mtu_told", "path_mtu_reported"),
];

fn present_name(name: String) -> String {
    let renamed = RENAMED.iter().find(|(earlier, _)| *earlier == name);
    renamed.map_or(name, |(_, present)| (*present).to_owned())
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
