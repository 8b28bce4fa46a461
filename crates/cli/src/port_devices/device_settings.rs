//! Values of device settings that the URL of a port requests.

use std::ops::RangeInclusive;

use linerate_host::settings::rss::DEFAULT_TABLE;
use linerate_tune::guard::SettingKind;

/// Returns the channels to set for `count` queues, or `None` if there are as many already. Drivers
/// with combined and single-direction queues use combined ones.
pub(super) fn channels_for(now: &str, count: u32) -> Option<String> {
    let counts: Vec<(&str, &str)> = now
        .split_whitespace()
        .filter_map(|field| field.split_once('='))
        .collect();
    let has_combined = counts
        .iter()
        .any(|(name, value)| *name == "combined" && *value != "0");
    let only_combined = counts.iter().all(|(name, _)| *name == "combined");
    let is_used = |name: &str| (name == "combined") == (has_combined || only_combined);
    let change = |(name, value): &(&str, &str)| {
        let change = match is_used(name) {
            true => count,
            false => 0,
        };
        // No request for a kind of queue that the driver does not have.
        (*value != change.to_string()).then(|| format!("{name}={change}"))
    };
    let changes: Vec<String> = counts.iter().filter_map(change).collect();
    (!changes.is_empty() || counts.is_empty()).then(|| match counts.is_empty() {
        true => format!("combined={count}"),
        false => changes.join(" "),
    })
}

/// Returns whether more than `count` queues of a kind are in use.
pub(super) fn uses_more_queues(now: &str, count: u32) -> bool {
    let counts = now
        .split_whitespace()
        .filter_map(|field| field.split_once('='));
    let mut counts = counts.filter_map(|(_, value)| value.parse::<u32>().ok());
    counts.any(|now| now > count)
}

/// Returns the RSS table over the queues in use; `None` if it is set already.
pub(super) fn rss_table_for(
    now: &str,
    channels: Option<u32>,
    queues_in_use: RangeInclusive<u32>,
) -> Option<String> {
    let queues: Vec<String> = queues_in_use.map(|queue| queue.to_string()).collect();
    // The driver's default spreads over all queues, which are these if their number is set.
    let all = now == DEFAULT_TABLE && channels.is_some_and(|count| count as usize == queues.len());
    let table = queues.join(" ");
    (!all && now != table).then_some(table)
}

/// Returns the next step after a setting failed.
pub(super) fn next_step(kind: SettingKind, option: &str, interface: &str) -> String {
    let (first, shows) = match kind {
        SettingKind::Flow => {
            let root = "run as root (CAP_NET_ADMIN)";
            let filters =
                format!("{root}, and switch filters on (`ethtool -K {interface} ntuple on`)");
            // Drivers with rules for IPv4 only reject the IPv6 half of `udp` and `tcp`.
            match option.split_once("6:") {
                None => (filters, "-n"),
                Some((kind, port)) => (
                    format!("{filters}; if the driver has no IPv6 rules, use `{kind}4:{port}`"),
                    "-n",
                ),
            }
        }
        SettingKind::Rss => ("run as root (CAP_NET_ADMIN)".to_owned(), "-x"),
        _ => ("run as root (CAP_NET_ADMIN)".to_owned(), "-l"),
    };
    format!(
        "{first}; if the driver does not support it, leave out `{option}`, and see its settings with `ethtool {shows} {interface}`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_changed_where_it_names_others() {
        for (now, channels, queues_in_use, expected) in [
            ("default", Some(2), 0..=1, None),
            ("default", None, 0..=1, Some("0 1")),
            ("default", Some(4), 2..=3, Some("2 3")),
            ("0 1", Some(2), 0..=1, None),
            ("0 3", Some(2), 0..=1, Some("0 1")),
        ] {
            let table = rss_table_for(now, channels, queues_in_use.clone());
            assert_eq!(
                table,
                expected.map(str::to_owned),
                "{now} {queues_in_use:?}"
            );
        }
        for (now, count, expected) in [
            ("rx=4 tx=1", 2, true),
            ("combined=2", 2, false),
            ("combined=2", 4, false),
            ("", 1, false),
        ] {
            assert_eq!(uses_more_queues(now, count), expected, "{now} {count}");
        }
    }

    #[test]
    fn channels_are_changed_where_they_are_others() {
        for (now, count, expected) in [
            ("rx=4 tx=4", 2, Some("rx=2 tx=2")),
            ("rx=2 tx=4", 2, Some("tx=2")),
            ("rx=2 tx=2", 2, None),
            ("combined=8", 2, Some("combined=2")),
            ("combined=2", 2, None),
            // Drivers with both kinds use one of them.
            ("rx=0 tx=0 combined=8", 4, Some("combined=4")),
            ("rx=0 tx=0 combined=4", 4, None),
            ("rx=8 tx=8 combined=0", 4, Some("rx=4 tx=4")),
            // Queues for one direction would be numbered after the combined ones.
            ("rx=2 tx=0 combined=4", 4, Some("rx=0")),
            // A driver that reports nothing gets the request anyway and reports the reason.
            ("", 2, Some("combined=2")),
        ] {
            assert_eq!(
                channels_for(now, count),
                expected.map(str::to_owned),
                "{now} {count}"
            );
        }
    }
}
